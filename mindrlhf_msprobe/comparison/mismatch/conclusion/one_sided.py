"""Cells that ran in one of both networks alone, before a value at which they part."""

from __future__ import annotations

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.mismatch.conclusion.births import kind_of
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.pairing.names import NUMBER, Name, with_numbers
from mindrlhf_msprobe.findings.mismatch import is_around


def ran_alone(walk: Walk, name: Name, around: str) -> Message | None:
    """Say which cells ran before a value in one network, and not in the other; None if none did.

    Where both have cells of their own there, these may be the same under two names.

    Args:
        around: the cell whose code or inner cells made the value.
    """
    alone = [_before(walk, side, name, around) for side in (0, 1)]
    if bool(alone[0]) == bool(alone[1]):
        return None
    side = 0 if alone[0] else 1
    cells = [cell for cell in alone[side] if not _is_usual(walk, name, cell)]
    if not cells:
        return None
    own = (walk.rollout, walk.training)[side].cells
    return message(
        "mismatch.ran_alone",
        **{"cell": name.cell, "io": name.io, "side": ("rollout", "training")[side]},
        **{"cells": [f"{cell} ({own[cell]})" for cell in cells], "first": cells[0]},
        skipped=walk.is_given_to(name, 1 - side, cells[0]),
    )


def _before(walk: Walk, side: int, name: Name, around: str) -> list[str]:
    """Return the outermost cells of one network alone that ran inside a cell before a value.

    Those behind the last value before it that was compared, if any is: nothing else lies between.
    Cells that return what they are given, such as dropout in evaluation, do nothing.
    """
    own = (walk.rollout, walk.training)[side]
    order = [*walk.stages]
    compared = [v.time for n in order[: order.index(name)] for v in walk.sources(n)[side].values]
    until = walk.sources(name)[side].values[0].time
    since = max((time for time in compared if time < until), default=-1)
    times: dict[str, int] = {}
    for of, value in own.values.items():
        is_inside = is_around(around, walk.names_of[side](of.cell) or of.cell)
        if of.io != "output" or not is_inside or of.cell not in walk.cells_alone[side]:
            continue
        given = own.values.get(of._replace(io="input"))
        does_nothing = given is not None and given.prints_in_order == value.prints_in_order
        if value.time < until and not (does_nothing and value.prints_in_order):
            times[of.cell] = max(times.get(of.cell, -1), value.time)
    nearest = [cell for cell, time in times.items() if time > since] or [*times]
    return [cell for cell in nearest if not any(is_around(outer, cell) for outer in nearest)]


def _is_usual(walk: Walk, name: Name, cell: str) -> bool:
    """Return whether its like stands in an earlier layer, behind which nothing parts."""
    order = [*walk.stages]
    for other in order[: order.index(name)]:
        if kind_of(other) == kind_of(name) and not walk.stages[other].born:
            numbers = NUMBER.findall(other.cell)
            like = with_numbers(cell, [*numbers, *NUMBER.findall(cell)[len(numbers) :]])
            if any(like in cells for cells in walk.cells_alone):
                return True
    return False
