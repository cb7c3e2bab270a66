"""Settings that change while a training runs: what they are from which step on, in two runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mindrlhf_msprobe.comparison.preflight.values import same
from mindrlhf_msprobe.storage.manifest.run_file import RunFile, Timeline

#: Stands for both values where two settings do not differ.
SAME: Any = object()


def last_step(file: RunFile) -> float:
    """Return the last step that a run has; infinity where it does not say."""
    steps = [
        step
        for attempt in file.attempts
        for step in (attempt.last_completed_step, attempt.unfinished_step)
        if step is not None
    ]
    return max(steps, default=float("inf"))


def first_apart(a: Timeline, b: Timeline, last: float) -> tuple[int | None, Any, Any]:
    """Return the step from which on two timelines differ, None for the first, and both values.

    Both values are `SAME` where they do not differ.
    """
    first = max(a[0][0], b[0][0])
    for step in sorted({first, *(s for s, _ in (*a, *b) if first < s <= last)}):
        for mine, other in _in_turn(a, b, step):
            if not _alike(mine, other):
                return None if step == first else step, mine, other
    return None, SAME, SAME


def _in_turn(a: Timeline, b: Timeline, step: int) -> Iterator[tuple[Any, Any]]:
    """Yield what both were in turn in a step; the last of one that had fewer values stays."""
    left, right = _values(a, step), _values(b, step)
    for i in range(max(len(left), len(right))):
        yield left[min(i, len(left) - 1)], right[min(i, len(right) - 1)]


def _values(timeline: Timeline, step: int) -> list[Any]:
    """Return what a setting was in a step: one value, or several in turn."""
    before = [value for at, value in timeline if at < step][-1:]
    return [value for at, value in timeline if at == step] or before


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):  # a mode
        return bool(a == b)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(_alike(x, y) for x, y in zip(a, b))
    return same(a, b)


def apart(
    a: Any, b: Any, changes: Sequence[Timeline], last: float, most: float = float("inf")
) -> tuple[int | None, Any, Any]:
    """Return from which step on a setting differs, None for the first, with both values.

    Args:
        a, b: its values at the beginning.
        changes: of both.
        most: how many changes are recorded; after so many nothing is known.
    """
    if not _alike(a, b):
        return None, a, b
    for timeline in changes:
        if len(timeline) >= most:
            last = min(last, timeline[-1][0])
    left_all, right_all = ([(-1, start), *timeline] for start, timeline in zip((a, b), changes))
    for step in sorted({step for timeline in changes for step, _ in timeline if step <= last}):
        for left, right in _in_turn(left_all, right_all, step):
            if not _alike(left, right):
                return step, left, right
    return None, SAME, SAME
