"""timeline.rank<N>.jsonl: when the phases of one rank's steps ran, a line each finished step."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, write_atomic
from mindrlhf_msprobe.storage.reading.step_times import step_of_line
from mindrlhf_msprobe.storage.step_lines import append_whole


def append_times(root: Path, rank: int, times: Mapping[str, Any]) -> None:
    """Append the times of one step, whole or not at all.

    Args:
        times: `step` first, by which a line is found.

    Raises:
        OSError: the file cannot be written, or something that is no plain file stands there.
    """
    append_whole(root / layout.timeline_name(rank), dump_json(times) + b"\n")


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
