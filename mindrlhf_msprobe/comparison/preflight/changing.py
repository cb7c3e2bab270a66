"""Settings that change while a training runs: what they are from which step on, in two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mindrlhf_msprobe.comparison.preflight.values import ABSENT, Notes, same
from mindrlhf_msprobe.storage.manifest.run_file import RunFile, Timeline

#: Stands for both values where two settings do not differ.
SAME: Any = object()

_BEGINNING = -1  # before the first step


def last_step(file: RunFile) -> float:
    """Return the last step that a run has; infinity where it does not say."""
    steps = [
        step
        for attempt in file.attempts
        for step in (attempt.last_completed_step, attempt.unfinished_step)
        if step is not None
    ]
    return max(steps, default=math.inf)


def first_apart(a: Timeline, b: Timeline, last: float) -> tuple[int | None, Any, Any]:
    """Return the step from which on two timelines differ, None for the first, and both values.

    Both values are `SAME` where they do not differ.
    """
    first = max(a[0][0], b[0][0])
    for step in sorted({first, *(s for s, _ in (*a, *b) if first < s <= last)}):
        # What both were in turn; the last of one that had fewer values stays.
        left, right = _values(a, step), _values(b, step)
        for i in range(max(len(left), len(right))):
            mine, other = left[min(i, len(left) - 1)], right[min(i, len(right) - 1)]
            if not _alike(mine, other):
                return None if step == first else step, mine, other
    return None, SAME, SAME


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


def timelines_of(
    settings: Mapping[str, Any], changes: Mapping[str, Timeline]
) -> dict[str, Timeline]:
    """Return what settings were from the beginning on, given what they were changed to."""
    return {name: [(_BEGINNING, v), *changes.get(name, ())] for name, v in settings.items()}


def settings_apart(
    a: Mapping[str, Timeline],
    b: Mapping[str, Timeline],
    last: float,
    whose: tuple[str, ...],
    notes: Notes | None,
    *,
    begin: int = _BEGINNING,
    most: float = math.inf,
) -> Iterator[tuple[str, int | None, Any, Any]]:
    """Yield the settings that differ: the name, from which step on (None: the first), both values.

    Args:
        whose: the section, and what stands before a setting's name in it.
        notes: where a setting that one run alone has is noted, as it is not known. None: it
            differs, and the other value is `ABSENT`.
        begin: the step from which on a run lacks what it does not have.
        most: how many changes are recorded; after so many nothing is known.
    """
    absent = [(begin, ABSENT)]
    for name in dict.fromkeys([*a, *b]):
        if notes is not None and not (name in a and name in b):
            notes.only_in(whose[0], name in a, *whose[1:], name)
            continue
        both = a.get(name, absent), b.get(name, absent)
        known = min([last, *(timeline[-1][0] for timeline in both if len(timeline) > most)])
        step, mine, other = first_apart(*both, known)
        if mine is not SAME:
            yield name, step, mine, other
