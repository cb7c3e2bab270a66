"""free_benchmark.rank<N>.jsonl: what became of disturbed computations, a line an output."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, write_all, write_atomic

_LONGEST = 1 << 20  # bytes of a line


def append_rows(root: Path, rank: int, rows: Sequence[Mapping[str, Any]]) -> int:
    """Append rows, all of them or none; return how many bytes.

    Args:
        rows: each has at least `step`, `phase` and `entry`.

    Raises:
        OSError: the file cannot be written, or something that is no plain file stands there.
    """
    path = root / layout.benchmark_name(rank)
    # A pipe that nobody reads would be waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, message("fault.of_others"), str(path))
        try:
            return write_all(file, b"".join(map(_line, rows)))
        except OSError:  # on a full disk part of a line may be there
            os.ftruncate(file, before.st_size)
            raise
    finally:
        os.close(file)


def forget_rows(root: Path, rank: int, first_step: int) -> None:
    """Remove the rows of a rank's steps from one on, which run again.

    Raises:
        OSError: the file cannot be read or written.
    """
    path = root / layout.benchmark_name(rank)
    if not os.path.lexists(path):
        return
    kept = (row for row in read_rows(root, rank) if row["step"] < first_step)
    if not write_atomic(path, map(_line, kept)):
        path.unlink()


def read_rows(root: Path, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a rank, in the order in which they were written; none where none are.

    A line that is none, as the last one of a killed process may be, is left out.
    """
    try:
        file = layout.open_inside(root, root / layout.benchmark_name(rank), bounds.JOURNAL)
    except (OSError, ValueError):
        return
    with file:
        while raw := file.readline(_LONGEST):
            try:
                row = loads(raw)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and _is_row(row):
                yield row


class RowsOfSteps:
    """The rows of a rank, read once, as far as they are asked for.

    Args:
        root: the run's directory.
    """

    def __init__(self, root: Path, rank: int) -> None:
        self._rows = read_rows(root, rank)
        self._next: dict[str, Any] | None = next(self._rows, None)

    def take(self, step: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a step; those of earlier ones are passed over."""
        while self._next is not None and self._next["step"] <= step:
            row, self._next = self._next, next(self._rows, None)
            if row["step"] == step:
                yield row


def _is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a line says what every row does, in the form in which it is written."""
    if not bounds.is_place(row.get("step")) or row["step"] < 0:
        return False
    texts = (row.get(key) for key in ("phase", "entry", "pert_mode", "stage"))
    if not all(isinstance(text, str) and len(text) <= bounds.NAME for text in texts):
        return False
    if isinstance(row.get("why"), list):
        return True
    numbers = (row.get(key) for key in ("change", "ratio", "threshold", "disturbed_by"))
    return isinstance(row.get("consistent"), bool) and all(map(_is_number, numbers))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _line(row: Mapping[str, Any]) -> bytes:
    return dump_json(row) + b"\n"
