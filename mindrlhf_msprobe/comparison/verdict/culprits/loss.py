"""Whether key data of an update diverge in its loss, or in how it is set, not in a network."""

from __future__ import annotations

from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Status

#: What a loss makes of what it is given and of the policy's log-probabilities alone.
_OF_LOSS = ("ratio", "kl", "kl_loss", "actor_loss")
_MADE_OF = ("loss_inputs", "log_prob")
_SET = ("lr",)


def loss_or_schedule(first: FirstDifference) -> Culprit | None:
    """Return that a key of an update is not of its network.

    Either the loss made it of what it was given and of log_prob, which agree bit for bit in this
    micro-step (the details: `agree`, how many records that are), or it is set for the update.
    """
    finding, phase = first.finding, first.event.phase
    if finding.status not in (Status.DIFFERENT, Status.NON_FINITE, Status.SHAPE_MISMATCH):
        return None
    if finding.key in _SET and phase is not None:
        return Culprit(CulpritCode.SCHEDULE, {"phase": phase})
    if finding.key not in _OF_LOSS or phase is None:
        return None
    statuses = _made_of(first)
    if not statuses or any(status is not Status.IDENTICAL for status in statuses):
        return None
    return Culprit(CulpritCode.LOSS, {"phase": phase, "agree": len(statuses)})


def _made_of(first: FirstDifference) -> list[Status]:
    """Return what was found of all that a loss is made of; [] unless each key is there."""
    found: dict[str, list[Status]] = {key: [] for key in _MADE_OF}
    for pair, finding in first.pairs:
        same = pair.event.micro_step == first.event.micro_step
        if same and finding is not None and finding.key in found:
            found[finding.key].append(finding.status)
    if not all(found.values()):
        return []
    return [status for of_key in found.values() for status in of_key]
