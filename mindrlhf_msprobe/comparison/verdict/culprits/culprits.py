"""What beyond the record and its cell is to blame for the first divergence."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.verdict.culprits.gradients import before_optimizer
from mindrlhf_msprobe.comparison.verdict.culprits.loss import loss_or_schedule
from mindrlhf_msprobe.comparison.verdict.culprits.optimizer import optimizer
from mindrlhf_msprobe.comparison.verdict.culprits.sampling import sampling
from mindrlhf_msprobe.comparison.verdict.culprits.weights import (
    Differing,
    changed_between,
    not_moved,
    synchronisation,
)
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.comparison.verdict.history import History
from mindrlhf_msprobe.comparison.verdict.occasion import earlier_update
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Occasion

#: What does not decide: what is known of the record itself is said as well.
_NOT_RECORDED = (CulpritCode.GRADIENTS_NOT_RECORDED, CulpritCode.UPDATE_NOT_RECORDED)
#: What leaves it open where the weights diverge.
_UNDECIDED = (
    None,
    CulpritCode.UPDATE_NOT_RECORDED,
    CulpritCode.OPTIMIZER_OR_SYNCHRONISATION,
)


def culprit_of(first: FirstDifference, history: History, occasion: Occasion) -> Culprit | None:
    """Return what else is to blame for the first difference; None if unknown."""
    if first.is_of_state:
        return None
    differing = Differing.from_first(first, history)
    if differing is None:
        found = sampling(first) or before_optimizer(first)
        return found or loss_or_schedule(first) or earlier_update(first, occasion)
    found = synchronisation(differing) or changed_between(differing)
    if found is None:
        found = optimizer(differing, first)
        if (found and found.code) in _UNDECIDED:
            found = not_moved(differing) or found
    return found


def culprit_reasons(
    culprit: Culprit, finding: Finding, why: Sequence[Message]
) -> tuple[Message, ...]:
    """Return what is to blame, and why.

    Args:
        finding: the first record that differs.
        why: what is said of the record where nothing else is known.
    """
    params = dict(culprit.details)
    if culprit.code is CulpritCode.EARLIER_UPDATE:
        params |= {"key": finding.key, "step": finding.step}
    said = Message(f"culprit.{culprit.code.value}", params)
    return (*why, said) if culprit.code in _NOT_RECORDED else (said,)
