"""timeline.rank<N>.jsonl: when the phases of one rank's steps ran, a line each finished step."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, write_all, write_atomic
from mindrlhf_msprobe.storage.reading.step_times import step_of_line


def append_times(root: Path, rank: int, times: Mapping[str, Any]) -> None:
    """Append the times of one step, whole or not at all.

    Args:
        times: `step` first, by which a line is found.

    Raises:
        OSError: the file cannot be written, or something that is no plain file stands there.
    """
    path = root / layout.timeline_name(rank)
    # A pipe that nobody reads would be waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, message("fault.of_others"), str(path))
        try:
            write_all(file, dump_json(times) + b"\n")
        except OSError:  # on a full disk part of a line may be there
            os.ftruncate(file, before.st_size)
            raise
    finally:
        os.close(file)


def forget_times(root: Path, rank: int, first_step: int) -> None:
    """Remove the times of a rank's steps from one on, which run again, and what is no line.

    Raises:
        OSError: the file cannot be read or written.
    """
    path = root / layout.timeline_name(rank)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):  # appending to it says that it is none
            return
    except FileNotFoundError:
        return
    with open(path, "rb") as file:
        if not write_atomic(path, _lines_before(file, first_step)):
            path.unlink()


def _lines_before(file: BinaryIO, first_step: int) -> Iterator[bytes]:
    while raw := file.readline(bounds.TIMELINE_LINE):
        step = step_of_line(raw)
        if step is not None and step < first_step:
            yield raw
