"""The files that compiled graphs write until they are read: their folder in a run, and their names.

`.msprobe_graph.rank<R>/<kind>.<probe>_<dtype>_<n>.npy`: TensorDump appends the dtype and a number
that counts up over all files of a process. The folder is there while its rank is recorded. Graphs
that run outside of any run write into a temporary folder, which its process keeps locked.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, open_npy

#: `mindspore.ops.DumpGradient` says, between the probe and the dtype: in, out.
_FILE = re.compile(
    r"(?P<kind>[a-z_]{1,32})\.(?P<probe>[0-9]{1,18})"
    r"(?:_(?:in|out))?_[a-z0-9]{1,16}_(?P<order>[0-9]{1,18})\.npy"
)
_FOLDER = re.compile(r"\.msprobe_graph\.rank([0-9]{1,18})")
_TEMPORARY = "mindrlhf_msprobe_graph_files_"
_NEW = 60.0  # seconds for which a temporary folder may not be locked yet
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class GraphFile(NamedTuple):
    """One file that a graph has written, or is writing.

    Attributes:
        kind: what it stands for, e.g. `tensor` or `gradient`.
        probe: the number of the probe that wrote it.
        order: its place among all files of the process.
        size: bytes.
        closed: whether it is not writable: TensorDump takes that away once a file is whole.
        changed: when it was written into last, in seconds since 1970.
    """

    kind: str
    probe: int
    order: int
    path: Path
    size: int
    closed: bool
    changed: float

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is missing: it has the size its header says."""
        with suppress(ArrayFileError, OSError, ValueError):
            open_npy(self.path)
            return True
        return False


def folder_of(root: Path, rank: int) -> Path:
    """Return the folder into which the graphs of one rank write."""
    return root / f".msprobe_graph.rank{rank}"


def newest_in(folder: Path) -> int:
    """Return the number of the file in a folder that was written last; -1 where none lies there."""
    return max((int(match["order"]) for _, match in _named(folder)), default=-1)


def _named(folder: Path) -> Iterator[tuple[os.DirEntry[str], re.Match[str]]]:
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match is not None:
                yield entry, match


def files_in(folder: Path, first: int = 0, last: int | None = None) -> Iterator[GraphFile]:
    """Yield the files of graphs in a folder, in any order; files of other names are not ours.

    Args:
        first, last: the numbers between which they lie.
    """
    for entry, match in _named(folder):
        order = int(match["order"])
        if order >= first and (last is None or order <= last):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed since it was listed
                continue
            if stat.S_ISREG(status.st_mode):
                closed = not status.st_mode & _WRITABLE
                kind, probe = match["kind"], int(match["probe"])
                path, size, changed = Path(entry.path), status.st_size, status.st_mtime
                yield GraphFile(kind, probe, order, path, size, closed, changed)


def remove_folder(folder: Path) -> None:
    """Remove what graphs wrote into a folder, and the folder where nothing else lies in it.

    A symbolic link in its place is left, and what it leads to.
    """
    if folder.is_symlink():
        return
    with suppress(OSError):
        for file in files_in(folder):
            file.path.unlink(missing_ok=True)
        folder.rmdir()


def sweep_folders(root: Path, rank: int, world_size: int) -> None:
    """Remove what a killed attempt at a rank left; for rank 0 also at ranks beyond the world."""
    with suppress(OSError):
        for path in root.glob(".msprobe_graph.rank*"):
            match = _FOLDER.fullmatch(path.name)
            of = rank if match is None else int(match[1])
            if match and (of == rank or (rank == 0 and of >= world_size)):
                remove_folder(path)


def make_temporary() -> Path:
    """Return a new temporary folder, locked for as long as this process and its children live.

    Those of processes that were killed are removed.

    Raises:
        OSError: it cannot be made.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            status = left.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_own and time.time() - status.st_mtime >= _NEW:
                lock = _lock(left)  # which fails where a process has it
                try:
                    remove_folder(left)
                finally:
                    os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    with suppress(OSError):  # a file system without locks: then nobody removes what is left there
        _lock(folder)  # and never close it
    return folder


def _lock(folder: Path) -> int:
    """Lock a folder, and return the descriptor that holds the lock.

    Raises:
        OSError: another process has.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
