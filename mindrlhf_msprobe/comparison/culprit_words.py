"""The words for what is to blame beyond a cell, and for which time in a step it is."""

from __future__ import annotations

from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Occasion, ordinal
from mindrlhf_msprobe.phases import UPDATE_PHASES


def words_of_occasion(occasion: Occasion, finding: Finding) -> str:
    """Return a sentence on which opening of a phase it is, "" if it is the first or key data."""
    if finding.entry is None or not occasion.number:
        return ""
    updates = [phase for phase in occasion.since if phase in UPDATE_PHASES]
    what = f"This is the {ordinal(occasion.number + 1)} call of {finding.phase} in this step"
    others = [phase for phase in occasion.since if phase != finding.phase]
    between = f", with {' and '.join(others)} between" if others else ""
    if finding.phase in updates and occasion.weights_moved:
        return f"{what}, after the {ordinal(occasion.number)} update{between}."
    still = ""
    if occasion.weights_moved is False:
        still = "; its weights did not change between"
    return f"{what}, after the {ordinal(occasion.number)}{between}{still}."


def words_of(culprit: Culprit, finding: Finding) -> str:
    """Return the sentences that say what is to blame, and why."""
    return _WORDS[culprit.code](culprit, finding)


def _earlier_update(culprit: Culprit, finding: Finding) -> str:
    details = culprit.details
    micro_step, number = details["micro_step"], details["number"]
    return (
        f"{finding.key} agrees in micro-step {micro_step} and differs in micro-step "
        f"{micro_step + 1}: the {ordinal(number)} update, {details['phase']} of micro-step "
        f"{micro_step}, is to blame first (its gradients, its optimizer step); then the batch of "
        f"micro-step {micro_step + 1} and its forward pass."
    )


_WORDS = {
    CulpritCode.EARLIER_UPDATE: _earlier_update,
}
