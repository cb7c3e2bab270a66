"""A run's directory: the processes of one job, who records which rank, and what of it is whose.

What an earlier run recorded is removed as far as its journals name it, and nothing else: a
directory goes when it is empty then. Whatever else lies there is somebody's own: it is left, and
remembered, so that it can be mentioned.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import is_temporary_of_ours
from mindrlhf_msprobe.storage.arrays.sketches import HEAD

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
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    os.close(file)
                    return False
            if _is_at(file, self._path):  # not removed by its last holder meanwhile
                break
            os.close(file)
        self._file = file
        self._held[self._path] = os.getpid(), file
        try:  # new, or one that a process left when it was killed
            text = os.pread(file, _MOST_SAID, 0)
            found = json.loads(text) if text else {"pid": 0}
        except (OSError, ValueError):
            found = None
        self._ours = isinstance(found, dict) and "pid" in found
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
        if self._file is None:  # or another probe's, of here
            return None
        try:  # another job writes into the same one where the file system has no locks
            at = _is_at(self._file, self._path)
            if at and os.pread(self._file, _MOST_SAID, 0) == self._said:
                return None
        except OSError:
            return None
        with suppress(OSError):
            if not os.path.lexists(self._path):
                self._close()
                return None if self.acquire() else self._path
        return self._path

    def is_held(self) -> bool:
        """Return whether a process holds the lock now, this one or another."""
        return self._is_held_here() or self.is_held_by_another()

    def is_held_by_another(self) -> bool:
        """Return whether another process holds the lock now."""
        if self._is_held_here():
            return False
        # It is not taken for a moment: fcntl(2).
        query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
            return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
        except OSError:
            return False
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


_DATA_NAME = re.compile(rb'"data_name": "([A-Za-z0-9_.:-]+)"')
_OF_MSPROBE = (layout.DUMP_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE)


class Removal:
    """What was removed of a run, and what was left because no journal of it names it.

    Args:
        description_last: remove the JSON of a save after its arrays, so that a removal that was cut
            short can be ended; else before them, so that no save is read without its arrays.

    Attributes:
        left: files and directories that stand where the run was.
    """

    def __init__(self, *, description_last: bool = False) -> None:
        self.left: list[Path] = []
        self._description_last = description_last

    def remove(self, root: Path, directory: Path) -> None:
        """Remove what was recorded into one rank's directory of a step, of a phase or a key.

        Raises:
            OSError: something that was recorded cannot be removed.
        """
        key = _key_of(root, directory)
        if not _is_directory(directory):
            return
        if key is None:
            self._remove_phase(directory)
        else:
            for name in _names(directory):
                path = directory / name
                if not _is_directory(path):
                    continue
                if is_temporary_of_ours(name):
                    _unlink(path, _names(path))
                elif layout.micro_step_number(name) is not None:
                    remove_save(path, key, description_last=self._description_last)
                self._remove_if_empty(path)
            remove_save(directory, key, description_last=self._description_last)
        self._remove_if_empty(directory)

    def remove_tensors(self, directory: Path) -> None:
        """Remove the elements and sketches in one rank's directory of a step of a phase.

        Raises:
            OSError: they cannot be removed.
        """
        journal, tensors = directory / layout.JOURNAL_FILE, directory / layout.TENSOR_DIR
        if is_journal(journal) and _is_directory(tensors):
            _unlink(tensors, _tensors_in(journal))
            self._remove_if_empty(tensors)
        _remove_sketches(directory)

    def _remove_phase(self, directory: Path) -> None:
        journal = directory / layout.JOURNAL_FILE
        tensors = directory / layout.TENSOR_DIR
        listed: set[str] = set()
        if _is_file(listing := directory / layout.TENSOR_LIST):  # plain names lead nowhere else
            lines = listing.read_bytes().decode("utf-8", errors="replace").splitlines()
            listed = {line for line in lines if re.fullmatch(r"[A-Za-z0-9_.:-]+\.npy", line)}
        if _is_directory(tensors):
            _unlink(tensors, listed)
        self.remove_tensors(directory)
        if is_journal(journal):
            _unlink(directory, [*_OF_MSPROBE, layout.JOURNAL_FILE])
        elif _is_directory(tensors):
            self._remove_if_empty(tensors)
        _unlink(directory, [layout.TENSOR_LIST])

    def _remove_if_empty(self, directory: Path) -> None:
        """Remove a directory with nothing but temporary files of ours in it; else note the rest."""
        names = _names(directory)
        _unlink(directory, [name for name in names if is_temporary_of_ours(name)])
        rest = _names(directory)
        if not rest:
            with suppress(FileNotFoundError):
                directory.rmdir()
        known = {path.name for path in self.left if path.parent == directory}
        below = {path.parent.name for path in self.left if path.parent.parent == directory}
        self.left += [directory / name for name in rest if name not in known | below]


def remove_save(directory: Path, key: str, *, description_last: bool = False) -> None:
    """Remove what this package saved under a key into a directory; the JSON first, or last.

    Raises:
        OSError: something cannot be removed.
    """
    description = layout.file_name(key, ".json")
    if (listed := _files_of(directory / description)) is not None:
        names = [*listed, description] if description_last else [description, *listed]
        _unlink(directory, names)


def _remove_sketches(directory: Path) -> None:
    """Remove a file of sketches, as far as it was written."""
    path = directory / layout.SKETCH_FILE
    if _is_file(path):
        with open(path, "rb") as file:
            ours = HEAD.startswith(file.read(len(HEAD)))
        if ours:
            path.unlink(missing_ok=True)


def _unlink(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        path = directory / name
        if _is_file(path):
            path.unlink(missing_ok=True)


def recorded_file(root: Path, directory: Path) -> Path | None:
    """Return the journal in a rank's directory of a step, or of a key the JSON of its first save.

    None where this package recorded nothing.
    """
    key = _key_of(root, directory)
    if key is None:
        journal = directory / layout.JOURNAL_FILE
        return journal if is_journal(journal) else None
    description = layout.file_name(key, ".json")
    found = (directory / name / description for name in ("", *_names(directory)))
    return next((path for path in found if _files_of(path) is not None), None)


def was_recorded(root: Path, directory: Path) -> bool:
    """Return whether a rank's directory of a step holds what this or another tool recorded."""
    if recorded_file(root, directory) is not None:
        return True
    return _key_of(root, directory) is None and _is_file(directory / layout.DUMP_FILE)


def is_removable(root: Path, directory: Path) -> bool:
    """Return whether `Removal` knows what of a directory that was recorded is this package's."""
    return _key_of(root, directory) is not None or is_journal(directory / layout.JOURNAL_FILE)


def is_journal(path: Path) -> bool:
    """Return whether a file is a journal of this package, as far as it was written."""
    if not _is_file(path):
        return False
    with open(path, "rb") as file:
        line = file.readline(1 << 20)
    if not line:
        return True
    if re.match(rb'\{"entry": "[^"]*", "seq": -?[0-9]+', line):
        return True
    try:
        content = json.loads(line)
    except ValueError:
        return False
    return isinstance(content, dict) and {"entry", "seq"} <= content.keys()


def _key_of(root: Path, directory: Path) -> str | None:
    """Return the key whose rank directory this is, None for a phase's."""
    parts = directory.relative_to(root).parts
    return parts[1] if len(parts) == 4 and parts[0] == layout.KEY_DATA_DIR else None


def _tensors_in(journal: Path) -> set[str]:
    with open(journal, "rb") as file:
        return {name.decode() for line in file for name in _DATA_NAME.findall(line)}


def _files_of(description: Path) -> set[str] | None:
    """Return the files beside the JSON of a save; None if it is not this package's."""
    if not _is_file(description):
        return None
    try:
        content: Any = json.loads(description.read_bytes())
        if not isinstance(content, dict) or "seq" not in content:
            return None
        arrays = {name for name, _ in files_in(content.get("data")) if os.sep not in name}
        numbered = arrays if content.get("numbered") is True else ()
        return arrays | {f"{name[:-4]}.json" for name in numbered}
    except (OSError, ValueError, RecursionError):
        return None


def files_in(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield (file name, leaf) for what a structure of leaves says lies beside it."""
    if isinstance(content, dict):
        name = content.get("data_name")
        if isinstance(name, str):
            yield name, content
        content = list(content.values())
    if isinstance(content, list):
        for item in content:
            yield from files_in(item)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:  # another rank, which begins too, may have removed it
        return []


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """Return what stands at a path itself, 0 for nothing: a link is no file and no directory."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a null character
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nothing can stand there
            return 0
        raise
