"""free_benchmark.rank<N>.jsonl: what became of disturbed computations, a line an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.step_lines import StepLines

_LONGEST = 1 << 20  # bytes of a line


def append_rows(root: Path, rank: int, rows: Sequence[Mapping[str, Any]]) -> int:
    """Append rows, all of them or none; return how many bytes.

    Args:
        rows: each has at least `step`, `phase` and `entry`.

    Raises:
        OSError: the file cannot be written, or something that is no plain file stands there.
    """
    return benchmark_lines(root, rank).append(rows)


def read_rows(root: Path, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a rank, in the order in which they were written; none where none are."""
    return filter(_is_row, benchmark_lines(root, rank).read())


def benchmark_lines(root: Path, rank: int) -> StepLines:
    """Return the file of a rank's rows."""
    name = layout.benchmark_name(rank)
    return StepLines(root, name, most=bounds.JOURNAL, longest=_LONGEST)


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
    if row["step"] < 0:
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
