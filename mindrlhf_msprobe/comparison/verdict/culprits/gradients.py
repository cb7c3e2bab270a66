"""Whether gradients diverge between the backward pass and the optimizer: clipping, unscaling, …"""

from __future__ import annotations

from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Status
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry


def enters_optimizer(pair: Pair) -> bool:
    """Return whether both sides of a pair are a gradient as it entered the optimizer."""
    return all(record is not None and record.leaf.at_optimizer for record in (pair.a, pair.b))


def before_optimizer(first: FirstDifference) -> Culprit | None:
    """Return that all gradients of an update differ where they enter the optimizer, and none of
    its backward pass does.

    A cell that computes the gradient of its parameters otherwise changes those alone. The details:
    `phase`, `gradients` (how many there are) and `backward` (how many records of the backward pass
    agree bit for bit).
    """
    entry, status = first.entry, first.finding.status
    if entry is None or entry.direction != PARAMETERS_GRAD or not enters_optimizer(first.pair):
        return None
    if status not in (Status.DIFFERENT, Status.NON_FINITE):
        return None
    gradients, backward = _statuses_of_update(first, entry)
    if len(gradients) < 2 or any(status.agrees for status in gradients):
        return None
    if not backward or any(status is not Status.IDENTICAL for status in backward):
        return None
    details = {"phase": entry.phase, "gradients": len(gradients), "backward": len(backward)}
    return Culprit(CulpritCode.BEFORE_OPTIMIZER, details)


def _statuses_of_update(first: FirstDifference, entry: Entry) -> tuple[list[Status], list[Status]]:
    """Return what was found of an update's gradients, and of its backward pass before a pair."""
    gradients, backward = [], []
    for i, (pair, finding) in enumerate(first.pairs):
        of = pair.entry
        if finding is None or of is None or (of.phase, of.opening) != (entry.phase, entry.opening):
            continue
        if of.direction == PARAMETERS_GRAD and of.call == entry.call:
            gradients.append(finding.status)
        elif of.direction == "backward" and i < first.index:
            backward.append(finding.status)
    return gradients, backward
