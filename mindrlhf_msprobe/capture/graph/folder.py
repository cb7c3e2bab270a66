"""Which folders the compiled graphs of this process write into: one in each run that it records.

A file's name is a constant of the graph: what is compiled while a run is recorded writes into that
run's folder for as long as it runs, also when the run has ended, and TensorDump makes the folder
anew. So the folders of ended runs are looked after, too, and removed whenever nothing lies in them.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.common.printable import size as in_words
from mindrlhf_msprobe.storage.writing.graph_files import (
    GraphFile,
    files_in,
    folder_of,
    make_temporary,
    newest_in,
    remove_folder,
)

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.graph.ascend import GraphReading

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


class Drain:
    """Empties the folders into which compiled graphs write, while the graphs run.

    One thread looks at the folders: fifty times a second while a phase records, more often while
    files come, else seldom. What nobody wants, because no phase records, is removed unread;
    the rest is read by another thread, in the order in which it was written. When what waits to be
    read takes more room than it may, further tensors are removed unread, and each is reported as
    lost. Several threads may call it. MindSpore is not imported for it.

    Args:
        folders: returns the folders there are.
        most_bytes: returns how much may wait to be read.
        reader: takes what is wanted.
    """

    def __init__(
        self,
        folders: Callable[[], Iterable[Path]],
        most_bytes: Callable[[], int],
        reader: GraphReading,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock  # of this machine
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
                else:
                    self._reader.take(file, error)
            except Exception as failed:
                self._reader.fault(failed, file.kind)
            finally:
                _remove(file)
                self._moved = self._clock()
                if error is None and self._reader.is_payload(file.kind):
                    with self._counting:
                        self._waiting -= file.size


def _remove(file: GraphFile) -> None:
    with suppress(OSError):
        file.path.unlink(missing_ok=True)


_QUIET = 1.0  # seconds after which the empty folder of an ended run goes


@dataclass
class _Run:
    """A run that this process records, or has recorded.

    Attributes:
        used: whether a graph was compiled that writes into its folder.
        ended: whether it has ended.
        temporary: whether the folder is none of the run's, because something else has its name.
    """

    root: Path
    folder: Path
    most_bytes: int
    used: bool = False
    ended: bool = False
    temporary: bool = False


class GraphFolders:
    """The folders of this process; may be used by several threads."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._lock = threading.Lock()
        self._drain: Drain | None = None
        self._process = os.getpid()

    @property
    def is_used(self) -> bool:
        """Whether any graph was compiled that writes into a folder."""
        return any(run.used for run in self._runs)

    def begin(self, root: Path, rank: int, most_bytes: int) -> None:
        """Let what is compiled from now on write into a run's folder.

        Args:
            most_bytes: what may wait there to be read.
        """
        with self._lock:
            folder = folder_of(root, rank)
            # What an earlier run of this process there was compiled for writes there still.
            earlier = [run for run in self._runs if run.folder == folder]
            self._runs = [run for run in self._runs if run.folder != folder]
            self._runs.append(_Run(root, folder, most_bytes, used=bool(earlier)))
            if earlier:
                _make(self._runs[-1])

    def end(self, root: Path) -> None:
        """Let a run's folder go; what graphs go on writing into it is removed."""
        with self._lock:
            ended = [run for run in self._runs if run.root == root and not run.ended]
            for run in ended:
                run.ended = True
            self._runs = [run for run in self._runs if run.used or not run.ended]
        if any(run.used for run in ended) and self._drain is not None:
            with suppress(OSError):
                self._drain.look()
        for run in ended:
            with suppress(OSError):  # something lies in it
                run.folder.rmdir()

    def file(self, name: str, reader: Callable[[], GraphReading]) -> str:
        """Return the path of a file that a graph which is compiled now will write, every time.

        Args:
            reader: returns who takes what is written.
        """
        with self._lock:
            run = next((run for run in reversed(self._runs) if not run.ended), None)
            if run is None:  # a graph of a run that has ended is compiled for other shapes
                run = self._runs[-1] if self._runs else _in_temporary()
                if run not in self._runs:
                    self._runs.append(run)
            if not run.used:
                _make(run)
                run.used = True
            if self._drain is None:
                self._drain = Drain(self._present, self._most_bytes, reader())
        self._drain.start()
        return str(run.folder / name)

    def fence(self, write: Callable[[str], None]) -> None:
        """Return when everything that graphs wrote before has been read or removed.

        Args:
            write: writes, behind everything else, a file into which its path goes.

        Raises:
            Exception: as `Drain.fence`.
        """
        with self._lock:
            run = next((run for run in reversed(self._runs) if run.used), None)
        if run is None or self._drain is None or os.getpid() != self._process:
            return
        folder = run.folder
        self._drain.start()
        self._drain.fence(lambda number: write(str(folder / f"{FENCE}.{number}")))

    def abandon(self) -> None:
        """Forget everything: called in a forked child, which leaves the folders to its parent."""
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._runs = []
        if self._drain is not None:
            self._drain.abandon()

    def at_exit(self) -> None:
        """Read what still waits, and remove the folders."""
        if os.getpid() != self._process:
            return
        if self._drain is not None:
            self._drain.stop()
        for run in self._runs:
            remove_folder(run.folder)
            if run.temporary:
                shutil.rmtree(run.folder, ignore_errors=True)

    def _present(self) -> list[Path]:
        """Return the folders into which graphs write; those of ended runs go when they are idle."""
        used = [run for run in [*self._runs] if run.used]
        for run in used:
            with suppress(OSError):  # it is not there, or something lies in it
                # Where nothing was written into it lately: it may just have been made anew.
                if run.ended and time.time() - run.folder.stat().st_mtime > _QUIET:
                    run.folder.rmdir()
        return [run.folder for run in used]

    def _most_bytes(self) -> int:
        return min((run.most_bytes for run in self._runs if not run.ended), default=0)


def _make(run: _Run) -> None:
    """Make a run's folder, a temporary one where something else has its name."""
    try:
        run.folder.mkdir(exist_ok=True)
        if not run.folder.is_symlink():
            return
    except OSError:
        pass
    with suppress(OSError):  # TensorDump will say where it cannot write
        run.folder, run.temporary = _in_temporary().folder, True


def _in_temporary() -> _Run:
    folder = make_temporary()
    return _Run(folder, folder, 0, temporary=True)


FOLDERS = GraphFolders()
# Before any probe says what is to be done at exit: so it comes after what they do.
atexit.register(FOLDERS.at_exit)
os.register_at_fork(after_in_child=FOLDERS.abandon)
