"""Files that appear whole or not at all, and JSON that is always valid JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import message

#: json.dumps would make one anew for every call.
_ONE_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def write_atomic(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    """Write a file beside its place and rename it in, so that readers see all of it or none.

    Returns:
        How many bytes it has.
    """
    # No buffered file object: a forked child would write what is left in its buffer again.
    file, temporary = open_temporary(path)
    try:
        try:
            size = sum(write_all(file, part) for part in parts)
        finally:
            os.close(file)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        unnamed = None, str(temporary)
        if isinstance(error, OSError) and error.errno is not None and error.filename in unnamed:
            error.filename, error.filename2 = str(path), None  # not the name it has meanwhile
        raise
    return size


class Reserve:
    """Room on the disk for a file that must still be written when the disk is full.

    The room is a file of zeros beside it, into which the file is written when it is needed.
    """

    def __init__(self, path: Path) -> None:
        self._path = reserve_of(path)
        self._size = 0  # bytes

    def keep(self, size: int) -> None:
        """Keep room for a file of `size` bytes, and for its growth as far as there is any."""
        if self._size >= size:
            return
        growth = size + (1 << 16)
        for sixteenths in range(16, -1, -1):
            with suppress(OSError):
                room = bytes(size + growth * sixteenths // 16)
                self._size = write_atomic(self._path, [room])
                return

    def write(self, path: Path, content: bytes, error: OSError) -> bool:
        """Write a file into the room that was kept, if `error` says that the disk is full.

        Nothing new is taken of the disk, so nobody can take the room in between.

        Returns:
            Whether there was enough room.
        """
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full or self._size < len(content):
            return False
        try:
            with open(self._path, "r+b", buffering=0) as file:
                write_all(file.fileno(), content)
                file.truncate(len(content))
            os.replace(self._path, path)
        except OSError:
            return False
        self._size = 0
        return True

    def drop(self) -> None:
        """Remove the file that keeps the room."""
        self._size = 0
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def temporary_of(path: Path, number: int = 0) -> Path:
    """Return the name under which a file is written before it is renamed to `path`.

    It is a name that nobody else gives to a file; `number` makes another one.
    """
    more = f"-{number}" if number else ""
    return path.with_name(f".{path.name[:80]}.{os.getpid()}{more}.msprobe.tmp")


def open_temporary(path: Path) -> tuple[int, Path]:
    """Open a new file under a temporary name of `path`; what has such a name already stays."""
    for number in range(10):
        temporary = temporary_of(path, number)
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return os.open(temporary, flags, 0o666), temporary
    raise FileExistsError(errno.EEXIST, message("fault.names_taken"), str(path))


def put_in_place(temporary: Path, directory: Path, last: str) -> None:
    """Rename a directory in; beside files of others that stand there already, file by file.

    Args:
        last: the file without which the others are not a whole.

    Raises:
        OSError: it cannot be done; FileExistsError if one of others has a file's name.
    """
    try:
        os.rename(temporary, directory)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    names = sorted(os.listdir(temporary), key=lambda name: name == last)
    for name in names:
        if os.path.lexists(directory / name):
            taken = str(directory / name)
            raise FileExistsError(errno.EEXIST, message("fault.of_others"), taken)
    for name in names:
        os.rename(temporary / name, directory / name)
    os.rmdir(temporary)


def reserve_of(path: Path) -> Path:
    """Return the name of the file that keeps room for `path`."""
    return path.with_name(f".{path.name}.msprobe.reserve")


def is_temporary_of_ours(name: str) -> bool:
    """Return whether a file of this name is one that was being written when its process ended."""
    return _TEMPORARY.fullmatch(name) is not None


_TEMPORARY = re.compile(r"\..+\.[0-9]{1,10}(?:-[0-9]{1,18})?\.msprobe\.tmp", re.DOTALL)


def write_all(file: int, part: bytes | memoryview) -> int:
    """Write all of `part` to a file descriptor and return its size in bytes."""
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(file, rest) :]
    return len(part)


def write_json(path: Path, content: Any, *, indent: int | None = 1) -> int:
    """Write `content` as valid UTF-8 JSON, whole or not at all; return its size in bytes."""
    return write_atomic(path, [dump_json(content, indent=indent)])


def dump_json(content: Any, *, indent: int | None = None) -> bytes:
    """Return `content` as UTF-8 JSON; NaN and infinities must have been named already."""
    if indent is None:
        text = _ONE_LINE.encode(content)
    else:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=indent)
    # A lone surrogate has no UTF-8 form; its escape \udcxx is valid JSON.
    return text.encode("utf-8", errors="backslashreplace")


def dump_lines(content: Mapping[str, Any]) -> bytes:
    """Return a mapping as UTF-8 JSON: a line for each value, and for each item of a list.

    That reads well and is encoded in C, which an indent would rule out.
    """
    lines = []
    for name, value in content.items():
        if isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
            held = b"[\n  %b\n ]" % b",\n  ".join(map(dump_json, value))
        else:
            held = dump_json(value)
        lines.append(b" %b: %b" % (dump_json(name), held))
    return b"{\n%b\n}\n" % b",\n".join(lines)


def number_to_json(value: float | int | bool | complex | None) -> Any:
    """Return a number as JSON takes it: NaN and infinities become the strings msprobe uses."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, complex) else value


def number_from_json(value: Any) -> Any:
    """Undo `number_to_json`; what is not a number is returned as it is."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    return value


_orjson: Callable[[bytes], Any] | None
try:
    from orjson import loads as found

    _orjson = found
except ImportError:  # a platform without a wheel: slower, the same values
    _orjson = None


def loads(raw: bytes) -> Any:
    """Return what JSON bytes hold; whole numbers beyond 64 bits come as float.

    Raises:
        ValueError, RecursionError: they are none.
    """
    if _orjson is not None:
        try:
            return _orjson(raw)
        except ValueError:  # it refuses NaN and lone surrogates, as in files of others
            pass
    return json.loads(raw, parse_int=_whole)


def _whole(digits: str) -> int | float:
    value = int(digits)
    if -1 << 63 <= value < 1 << 64:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ValueError(digits) from None
