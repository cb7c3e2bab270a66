"""Which folders the compiled graphs of this process write into: one in each run that it records.

A file's name is a constant of the graph: what is compiled while a run is recorded writes into that
run's folder for as long as it runs, also when the run has ended, and TensorDump makes the folder
anew. So the folders of ended runs are looked after, too, and removed whenever nothing lies in them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mindrlhf_msprobe.capture.graph.files.drain import Drain, Reader
from mindrlhf_msprobe.storage.directory.graph_files import folder_of, remove_folder

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
            _remove_if_empty(run.folder)

    def file(self, name: str, reader: Callable[[], Reader]) -> str:
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

    def fence(self, write: Callable[[str], None], name: str) -> None:
        """Return when everything that graphs wrote before has been read or removed.

        Args:
            write: writes, behind everything else, a file into which its path goes.
            name: the file's name, but for the number behind it.

        Raises:
            Exception: as `Drain.fence`.
        """
        with self._lock:
            run = next((run for run in reversed(self._runs) if run.used), None)
        if run is None or self._drain is None or os.getpid() != self._process:
            return
        folder = run.folder
        self._drain.start()
        self._drain.fence(lambda number: write(str(folder / f"{name}.{number}")))

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
            if run.ended and _is_quiet(run.folder):
                _remove_if_empty(run.folder)
        return [run.folder for run in used]

    def _most_bytes(self) -> int:
        return min((run.most_bytes for run in self._runs if not run.ended), default=0)


def _make(run: _Run) -> None:
    """Make a run's folder, elsewhere where its name is taken by something else."""
    try:
        run.folder.mkdir(exist_ok=True)
        if not run.folder.is_symlink():
            return
    except OSError:
        pass
    with suppress(OSError):  # TensorDump will say where it cannot write
        run.folder, run.temporary = _in_temporary().folder, True


def _in_temporary() -> _Run:
    folder = Path(tempfile.mkdtemp(prefix="mindrlhf_msprobe_graph_files_"))
    return _Run(folder, folder, 0, temporary=True)


def _is_quiet(folder: Path) -> bool:
    """Return whether nothing was written into a folder lately: it may just have been made anew."""
    try:
        return time.time() - folder.stat().st_mtime > _QUIET
    except OSError:
        return False


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


FOLDERS = GraphFolders()
# Before any probe says what is to be done at exit: so it comes after what they do.
atexit.register(FOLDERS.at_exit)
os.register_at_fork(after_in_child=FOLDERS.abandon)
