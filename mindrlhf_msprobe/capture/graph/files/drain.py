"""Empties the folders into which compiled graphs write, while the graphs run.

One thread looks at the folders: fifty times a second while a phase records, more often while files
come, seldom otherwise. What nobody wants, because no phase records, is removed unread; the rest is
read by another thread, in the order in which it was written. When what waits to be read takes more
room than it may, further tensors are removed unread, and each is reported as lost. Nothing in here
imports MindSpore.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.common.text.numbers import size as in_words
from mindrlhf_msprobe.storage.directory.graph_files import GraphFile, files_in, newest_in

#: The kind of the files by which one knows that all before them have been written.
FENCE = "fence"

_INTERVAL = 0.02  # seconds between two looks at the folders, while a phase records
_BUSY_INTERVAL = 0.002  # likewise, while files come
_IDLE_INTERVAL = 0.5  # likewise, while none does and no files come
_PATIENCE = 60.0  # seconds without any file that a fence waits
_NO_PATIENCE = 1.0  # likewise, after one waited in vain: there may be no room for its file
_SETTLED = 1.0  # seconds after which a file is not written any more, others having followed


class FolderFullError(SpokenError):
    """More waits to be read than there may."""


class CutShortError(SpokenError):
    """A file was never finished."""


class Reader(Protocol):
    """Takes the files; called by one thread at a time, in the order of their numbers."""

    @property
    def is_recording(self) -> bool:
        """Whether a phase is open."""

    def wants(self, kind: str) -> bool:
        """Return whether files of a kind are read now; otherwise they are removed."""

    def is_payload(self, kind: str) -> bool:
        """Return whether files of a kind hold what is recorded, and may be lost."""

    def take(self, file: GraphFile) -> None:
        """Read a file."""

    def lose(self, file: GraphFile, error: Exception) -> None:
        """Take note that a file is lost."""

    def fault(self, error: Exception) -> None:
        """Take note that a file could not be read."""


class Drain:
    """Empties folders; several threads may call it.

    Args:
        folders: returns the folders there are.
        most_bytes: returns how much may wait to be read.
        reader: takes what is wanted.
    """

    def __init__(
        self,
        folders: Callable[[], Iterable[Path]],
        most_bytes: Callable[[], int],
        reader: Reader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock  # which no clock of another machine is asked for
        self._folders = folders
        self._most_bytes = most_bytes
        self._reader = reader
        self._looking = threading.Lock()
        self._counting = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[GraphFile, Exception | None] | None]
        self._queue = queue.SimpleQueue()
        self._waiting = 0  # bytes
        self._last = -1  # the number of the last file that was removed, or given to the reader
        self._moved = 0.0  # when that was
        self._unfinished: tuple[Path, int, float] | None = None  # a file, its size, since when
        self._numbers = itertools.count(1)
        self._fences: dict[int, threading.Event] = {}
        self._patience = _PATIENCE
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads, once."""
        with self._looking:
            if self._threads:
                return
            self._stopped.clear()
            for work in (self._look_again_and_again, self._read):
                thread = threading.Thread(target=work, name=f"msprobe{work.__name__}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        """Stop the threads; what still waits is read first."""
        self._stopped.set()
        self._woken.set()
        self._queue.put(None)
        with self._looking:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(_PATIENCE)

    def abandon(self) -> None:
        """Forget the threads: they are not there in a forked child."""
        self._threads = []
        self._looking, self._counting = threading.Lock(), threading.Lock()
        self._queue, self._waiting = queue.SimpleQueue(), 0

    def fence(self, write: Callable[[int], None]) -> None:
        """Return when everything that was written before has been read or removed.

        Args:
            write: writes, behind everything else, a file of the kind `FENCE` with a number.

        Raises:
            TimeoutError: that file does not come, and no other does.
            Exception: `write` failed.
        """
        number = next(self._numbers)
        event = self._fences[number] = threading.Event()
        self._moved = self._clock()
        try:
            write(number)
            while not event.wait(0.001):
                self.look()
                if self._clock() - self._moved > self._patience:
                    waited, self._patience = self._patience, min(_NO_PATIENCE, self._patience)
                    raise TimeoutError(message("fault.no_files", waited=waited))
            self._patience = _PATIENCE
        finally:
            self._fences.pop(number, None)
            self._woken.set()

    def look(self) -> None:
        """Look at the folders once."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        folders = [*self._folders()]
        newest = max(map(newest_in, folders), default=-1)
        if newest <= self._last:
            return
        # Once more: a directory that is listed while it grows may lack what is older.
        files = [file for folder in folders for file in files_in(folder, self._last + 1, newest)]
        for file in sorted(files, key=lambda file: file.order):
            error: Exception | None = None
            if not file.closed:
                if not self._is_left(file, newest):
                    return
                if not file.is_whole:
                    known = {"file": file.path.name, "size": file.size}
                    error = CutShortError.saying("fault.cut_short", **known)
            self._pass_on(file, error)
            self._last, self._moved = file.order, self._clock()

    def _pass_on(self, file: GraphFile, error: Exception | None) -> None:
        if file.kind != FENCE and not self._reader.wants(file.kind):
            _remove(file)
            return
        if self._reader.is_payload(file.kind):
            most = self._most_bytes()
            with self._counting:
                if self._waiting and self._waiting + file.size > most:
                    size = in_words(most)
                    error = error or FolderFullError.saying("fault.folder_full", size=size)
                if error is None:
                    self._waiting += file.size
            if error is not None:
                _remove(file)
        else:
            error = None  # that it was written says all
        self._queue.put((file, error))

    def _is_left(self, file: GraphFile, newest: int) -> bool:
        """Return whether a file is not written any more: others came, and it did not grow.

        It was cut short, or its file system does not show that it was closed.
        """
        if newest == file.order and file.kind != FENCE:
            return False
        if time.time() - file.changed > _SETTLED:
            return True
        now = self._clock()
        if self._unfinished is None or self._unfinished[:2] != (file.path, file.size):
            self._unfinished = file.path, file.size, now
        return now - self._unfinished[2] > _SETTLED

    def _look_again_and_again(self) -> None:
        interval = _INTERVAL
        while not self._stopped.is_set():
            self._woken.wait(interval)
            self._woken.clear()
            before, began = self._last, time.monotonic()
            with suppress(OSError):  # a directory that cannot be listed now
                self.look()
            if self._last > before:
                interval = max(_BUSY_INTERVAL, 4 * (time.monotonic() - began))
            elif self._reader.is_recording:
                interval = _INTERVAL
            else:
                interval = min(2 * interval, _IDLE_INTERVAL)

    def _read(self) -> None:
        while (item := self._queue.get()) is not None:
            file, error = item
            try:
                if file.kind == FENCE:
                    _remove(file)
                    if (event := self._fences.get(file.probe)) is not None:
                        event.set()
                elif error is not None:
                    self._reader.lose(file, error)
                else:
                    self._reader.take(file)
            except Exception as failed:
                self._reader.fault(failed)
            finally:
                _remove(file)
                self._moved = self._clock()
                if error is None and self._reader.is_payload(file.kind):
                    with self._counting:
                        self._waiting -= file.size


def _remove(file: GraphFile) -> None:
    with suppress(OSError):
        file.path.unlink(missing_ok=True)
