"""The processes of one job: what tells it from another, and who records which rank."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.storage import layout

_FLOCK = "@hhlli4x"  # struct flock of Linux: type, whence, start, length, process
_MOST_SAID = 4096  # bytes of a lock file


def world_of(environment: dict[str, str] | os._Environ[str] = os.environ) -> dict[str, Any]:
    """Return what tells one distributed job from another: its size and its scheduler."""
    names = ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE")
    size = next((environment[name] for name in names if environment.get(name)), "1")
    host, port = environment.get("MS_SCHED_HOST"), environment.get("MS_SCHED_PORT")
    scheduler = f"{host}:{port}" if host and port else None
    return {"size": int(size) if size.isdigit() else 1, "scheduler": scheduler}


def process_started() -> float:
    """Return when this process was started, in seconds since 1970, as Linux knows it.

    Source: proc(5), /proc/<pid>/stat, field 22 (starttime), in clock ticks since the boot.
    """
    try:
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0  # earlier than anything: nothing follows from it
    return time.time() - uptime + int(ticks) / os.sysconf("SC_CLK_TCK")


class DumpPathLostError(SpokenError):
    """A run's directory, its lock or its manifest is no longer the one that a rank claimed.

    Attributes:
        what: what was removed, or is another's by now.
        kind: what is counted of it.
    """

    kind = message("lost.dump_path")

    def __init__(self, what: Path) -> None:
        super().__init__(message("fault.dump_path_lost", what=str(what)))
        self.what = what


class RankLock:
    """Held by the process that records a rank of a run; the system releases it when that ends.

    A record lock, which a forked child does not inherit. It keeps other processes out, not another
    probe of this one. Where the file system has none, everyone gets it. The run's directory is open
    for as long, so that no other one has its inode.
    """

    #: The locks of this process: opening and closing such a file again would let its lock go.
    _held: ClassVar[dict[Path, tuple[int, int]]] = {}  # file → process that holds it, descriptor

    def __init__(self, root: Path, rank: int) -> None:
        self.rank = rank
        self._root, self._path = root, root / f".{layout.manifest_name(rank)}.lock"
        if self._path.is_dir():  # somebody's has that name
            self._path = root / f".{layout.manifest_name(rank)}.msprobe.lock"
        self._directory: int | None = None
        self._file: int | None = None
        self._ours = True  # whether the file is this package's, not somebody's own of that name
        self._said = b""  # what was written into the file

    def acquire(self) -> bool:
        """Take the lock; False if another process holds it.

        Raises:
            OSError: its file cannot be made.
        """
        if self._directory is None:
            self._directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._is_held_here():
            return True
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            if not _locked(file):
                os.close(file)
                return False
            if _is_at(file, self._path):  # not removed by its last holder meanwhile
                break
            os.close(file)
        self._file = file
        self._held[self._path] = os.getpid(), file
        self._ours = _says_who_holds_it(file)
        holder = {"pid": os.getpid(), "host": platform.node(), "world": world_of()}
        with suppress(OSError):
            if self._ours:
                os.ftruncate(file, 0)
                os.write(file, json.dumps(holder).encode())
        with suppress(OSError):  # as much of it as a full disk took
            self._said = os.pread(file, _MOST_SAID, 0)
        return True

    def release(self) -> None:
        """Let the lock go, if it is held."""
        if self._file is not None and self._ours and _is_at(self._file, self._path):
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._close()
        directory, self._directory = self._directory, None
        if directory is not None:
            os.close(directory)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            if self._held.get(self._path) == (os.getpid(), file):
                del self._held[self._path]
            os.close(file)

    def lost(self) -> Path | None:
        """Return what is no longer as it was claimed: the directory, or the lock's file.

        A file that was removed is made once more, if nobody else has done so.
        """
        if self._directory is None:
            return None
        try:
            if not os.path.samestat(os.stat(self._root), os.fstat(self._directory)):
                return self._root
        except (FileNotFoundError, NotADirectoryError):
            return self._root
        except OSError:  # that it cannot be looked at now says nothing; writing there will
            return None
        if self._file is None or self._is_as_written(self._file):  # or another probe's, of here
            return None
        with suppress(OSError):
            if not os.path.lexists(self._path):
                self._close()
                return None if self.acquire() else self._path
        return self._path

    def _is_as_written(self, file: int) -> bool:
        """Return whether the lock's file stands there with what was written into it.

        Another job writes into the same one where the file system has no locks.
        """
        try:
            return _is_at(file, self._path) and os.pread(file, _MOST_SAID, 0) == self._said
        except OSError:
            return True

    def is_held(self) -> bool:
        """Return whether a process holds the lock now, this one or another."""
        return self._is_held_here() or self.held_elsewhere()

    def held_elsewhere(self) -> bool:
        """Return whether another process holds the lock now."""
        if self._is_held_here():
            return False
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return _is_locked(file)
        finally:
            os.close(file)

    def _is_held_here(self) -> bool:
        """Return whether this process holds it, and its file still stands there."""
        process, file = self._held.get(self._path, (0, -1))
        return process == os.getpid() and _is_at(file, self._path)

    def holder(self) -> dict[str, Any]:
        """Return the `pid`, `host` and `world` of who holds it; {} where that is not known."""
        try:
            said = json.loads(layout.read_inside(self._path.parent, self._path)[:_MOST_SAID])
        except (OSError, ValueError):  # it has the lock and is about to say so
            return {}
        return said if isinstance(said, dict) else {}

    def holder_in_words(self) -> Message:
        """Return who holds it."""
        said = self.holder()
        pid, host = said.get("pid"), said.get("host")
        if isinstance(pid, int) and isinstance(host, str) and host.isprintable():
            return message("error.held_by", pid=pid, host=host)
        return message("error.held_by_another")


def _says_who_holds_it(file: int) -> bool:
    """Return whether a file is a lock's: new, or one that a process left when it was killed."""
    try:
        text = os.pread(file, _MOST_SAID, 0)
        said = json.loads(text) if text else {"pid": 0}
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and "pid" in said


def _locked(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def _is_locked(file: int) -> bool:
    """Return whether another process holds the lock, without taking it for a moment: fcntl(2)."""
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
    except OSError:
        return False
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file))
    except OSError:
        return False


def missing_ranks(root: Path, size: int, ranks: Sequence[int]) -> list[int]:
    """Return which of the ranks that are to record into `root` have not begun to.

    Args:
        size: how many ranks the job has.
        ranks: those that record; empty for all.
    """
    begun = {layout.manifest_rank(path) for path in layout.manifests(root)}
    return sorted({rank for rank in ranks or range(size) if rank < size} - begun)
