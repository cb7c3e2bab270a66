"""Files with a line of JSON for each thing that is told of a rank's steps.

Lines are appended whole, and read as far as they are whole: of a process that was killed the last
one may not be.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, write_all, write_atomic


def step_line(raw: bytes) -> dict[str, Any] | None:
    """Return what a line says of a step; None if it is no such line."""
    try:
        found = loads(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and bounds.is_place(found.get("step")) else None


class StepLines:
    """One such file.

    Args:
        root: the run's directory.
        name: of the file.
        most, longest: bytes of the file, and of a line, that are read.
    """

    def __init__(self, root: Path, name: str, *, most: int, longest: int) -> None:
        self._root, self._path = root, root / name
        self._most, self._longest = most, longest

    def append(self, lines: Iterable[Mapping[str, Any]]) -> int:
        """Append lines, all of them or none; return how many bytes. The file is made with them.

        Args:
            lines: each has at least `step`.

        Raises:
            OSError: the file cannot be written, or something that is no plain file stands there.
        """
        return append_whole(self._path, b"".join(map(_line, lines)))

    def forget(self, first_step: int) -> None:
        """Remove the lines of steps from one on, which run again, and what is no line.

        Raises:
            OSError: the file cannot be read or written.
        """
        if not os.path.lexists(self._path):
            return
        plain = self._path.is_file() and not self._path.is_symlink()
        kept = (_line(line) for line in self.read() if line["step"] < first_step)
        if not plain or not write_atomic(self._path, kept):
            self._path.unlink()

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the lines in the order in which they were written; none where there is no file."""
        try:
            file = layout.open_inside(self._root, self._path, self._most)
        except (OSError, ValueError):
            return
        with file:
            while raw := file.readline(self._longest):
                if (line := step_line(raw)) is not None:
                    yield line


def append_whole(path: Path, content: bytes) -> int:
    """Append bytes to a file, all of them or none; return how many.

    Raises:
        OSError: the file cannot be written, or something that is no plain file stands there.
    """
    # A pipe that nobody reads would be waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, message("fault.of_others"), str(path))
        try:
            return write_all(file, content)
        except OSError:  # on a full disk part of a line may be there
            os.ftruncate(file, before.st_size)
            raise
    finally:
        os.close(file)


def _line(content: Mapping[str, Any]) -> bytes:
    return dump_json(content) + b"\n"
