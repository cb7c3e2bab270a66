"""A parameter that a container used before the cell that holds it was called, and recorded it."""

from __future__ import annotations

from dataclasses import replace

from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.comparison.verdict.history import (
    History,
    StepFindings,
    of_entries,
    same,
)
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.records import cell_name


def in_time(step: StepFindings, index: int, history: History) -> StepFindings:
    """Return a step whose first difference is a parameter, where it differed before the pair did.

    That is so where a cell was handed something by a container whose own inputs agree, and a
    parameter within the container differs that was recorded later, with its cell: it is what was
    handed, or a table of integers or bool that has differed since the start, or was changed in one
    run alone. The others stay where they are: of weights the cell that holds them makes use.

    Args:
        index: of the first pair that does not agree.
    """
    pair, finding = step.pairs[index]
    entry = pair.entry
    if entry is None or finding is None or finding.io != "input" or pair.event.kind != BEGIN:
        return step
    container = step.plan.parents.get((entry.phase, pair.event.name))
    if container is None or not history.comparable:
        return step
    cell = cell_name(container)
    late = [
        other
        for other, found, of in of_entries(
            step.pairs[index + 1 :], entry.phase, opening=entry.opening, io="parameters"
        )
        if found is not None and found.status is Status.DIFFERENT
        if other.a is not None and other.b is not None and other.event != pair.event
        if cell == ROOT or of.cell.startswith(f"{cell}.")
    ]
    handed = [other for other in late if _is_what_was_handed(other, pair)]
    tables = (other for other in late if other.record.leaf.is_discrete)
    for other in (*handed, *(one for one in tables if _differed_before(one, step, history))):
        pairs = list(step.pairs)
        pairs.insert(index, pairs.pop(next(i for i, (p, _) in enumerate(pairs) if p is other)))
        return replace(step, pairs=tuple(pairs))
    return step


def recorded_late(first: FirstDifference) -> Messages:
    """Say what was recorded before the first difference, a parameter, and may come of it."""
    earlier = first.step.plan.pairs[first.index]
    if earlier is first.pair:
        return ()
    return (message("explanation.recorded_late", record=earlier.record.name),)


def _is_what_was_handed(parameter: Pair, handed: Pair) -> bool:
    """Return whether a cell was handed the parameter itself, in both runs."""
    sides = ((parameter.a, handed.a), (parameter.b, handed.b))
    return all(p is not None and h is not None and same(p.leaf, h.leaf) for p, h in sides)


def _differed_before(pair: Pair, step: StepFindings, history: History) -> bool:
    """Return whether a parameter differed from the start, or was changed in one run alone.

    What both runs change while they run may differ because of what they computed.
    """
    kept = history.kept(pair, step.plan.step)
    if kept is None:
        return False
    a, b = kept
    return a.alike is not b.alike or (a.alike and same(a.leaf, b.leaf) is False)
