"""The words for what is to blame beyond a cell, and for which time in a step it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Occasion, counted, ordinal
from mindrlhf_msprobe.phases import UPDATE_PHASES

_PARAMETER = "Everything before it agrees, but the cell already holds another parameter"
_TOKENS = "seed, temperature, top-p, top-k, post-processing"


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


def words_of(culprit: Culprit, finding: Finding, why: str) -> str:
    """Return the sentences that say what is to blame, and why.

    Args:
        why: what is said of the record where nothing else is known.
    """
    return _WORDS[culprit.code](culprit.details, finding, why)


_Details = Mapping[str, Any]


def _earlier_update(details: _Details, finding: Finding, why: str) -> str:
    micro_step, number = details["micro_step"], details["number"]
    batch, agrees = "the batch or the", ""
    if details.get("batch_agrees"):
        batch, agrees = "the", " (its batch agrees: loss_inputs)"
    return (
        f"{finding.key} agrees in micro-step {micro_step} and differs in micro-step "
        f"{micro_step + 1}: the {ordinal(number)} update ({details['phase']} of micro-step "
        f"{micro_step}: its gradients or its optimizer step) is to blame, or {batch} "
        f"forward pass of micro-step {micro_step + 1}{agrees}, and key data alone do not tell "
        f"which: record the cells of {_phases(details['record'])}, gradients included, in step "
        f"{finding.step} of both runs to decide."
    )


def _phases(names: Sequence[str]) -> str:
    return " and ".join(names)


def _update(details: _Details) -> str:
    """Return which update it is: actor_update of step 3, micro-step 1."""
    micro_step = f", micro-step {details['micro_step']}" if details.get("updates", 1) > 1 else ""
    return f"{details['phase']} of step {details['step']}{micro_step}"


def _optimizer_step(details: _Details) -> str:
    after = f"the optimizer step of {details['phase']} in step {details['step']}"
    if details.get("updates", 1) > 1:
        after = f"the optimizer step after micro-step {details['micro_step']} of {details['phase']}"
        after += f" in step {details['step']}"
    settings = ["lr", "weight decay", *([] if details["clipped"] else ["clipping"]), "state"]
    return f"{after} ({', '.join(settings)})"


def _before_optimizer(details: _Details, finding: Finding, why: str) -> str:
    return (
        f"The gradients as they enter the optimizer differ, all {details['gradients']} of them, "
        f"and the {counted(details['backward'], 'record')} of the backward pass of "
        f"{details['phase']} agree bit for bit: look at what stands between the two (clipping, "
        f"loss scale, accumulation, reduction across ranks), not at this cell."
    )


def _unmoved(details: _Details) -> str:
    if details["unmoved"] is None:
        return ""
    return (
        f" In {details['unmoved']} that step changed no parameter: an lr of 0, or a step that was "
        f"skipped."
    )


def _unseen(details: _Details) -> str:
    """Return what else may be to blame, because it was not recorded."""
    unseen = []
    if details["filtered"]:
        unseen.append("of cells that were left out by include/exclude")
    if details["ranks_unseen"]:
        unseen.append("of ranks that were not recorded")
    if not unseen:
        return ""
    return f" But gradients {' and '.join(unseen)} may differ, and act through a sum or a norm."


def _optimizer(details: _Details, finding: Finding, why: str) -> str:
    return (
        f"The gradients of the update before it, {_update(details)}, and the weights it began "
        f"with agree bit for bit; the weights after it differ in {details['parameters']} of "
        f"{counted(details['of'], 'parameter')}: {_optimizer_step(details)} is to blame."
        f"{_unmoved(details)}{_unseen(details)}"
    )


def _optimizer_or_synchronisation(details: _Details, finding: Finding, why: str) -> str:
    return (
        f"The gradients of the update before it, {_update(details)}, and the weights it began "
        f"with agree bit for bit; these weights differ in {details['parameters']} of "
        f"{counted(details['of'], 'parameter')}: {_optimizer_step(details)} is to blame, or what "
        f"brings the weights from the trained network here. The weights of {details['phase']} after"
        f" it, which would tell, were not recorded.{_unmoved(details)}{_unseen(details)}"
    )


def _update_close(details: _Details, finding: Finding, why: str) -> str:
    return (
        f"{_PARAMETER}: the gradients of the update before it, {_update(details)}, or the weights "
        f"it began with agree only within a tolerance or by statistics, so either these small "
        f"differences grew, or {_optimizer_step(details)} is to blame.{_unmoved(details)}"
    )


def _gradients_not_recorded(details: _Details, finding: Finding, why: str) -> str:
    what = "its gradients" if details["weights"] else "its gradients and the weights it began with"
    return (
        f"{why} {what[0].upper()}{what[1:]} in {_update(details)}, were not recorded of both runs; "
        f"record that step with directions: [forward, backward] to tell the optimizer from the "
        f"gradients.{_unmoved(details)}"
    )


def _update_not_recorded(details: _Details, finding: Finding, why: str) -> str:
    return (
        f"{why} The update before it, {_update(details)}, was not recorded: record step "
        f"{details['step']} as well to tell loading, synchronisation and optimizer apart."
    )


def _by(details: _Details) -> str:
    return "" if details["exact"] else " (by statistics: without fingerprints that is no proof)"


def _state(details: _Details) -> str:
    if "step" not in details:
        return "its initial weights"
    micro_step = f", micro-step {details['micro_step']}" if "micro_step" in details else ""
    return f"the weights of step {details['step']}{micro_step}"


def _other(details: _Details, trained: str) -> str:
    run = "B" if details["run"] == "A" else "A"
    if details["other"] == "current":
        return f" In {run} it has {trained}."
    if details["other"]:
        return f" In {run} it has {_state(details['other'])}."
    return ""


def _not_synchronised(details: _Details, finding: Finding, why: str) -> str:
    number = f"{details['parameters']} of {counted(details['of'], 'parameter')}"
    return (
        f"{_PARAMETER}. In {details['run']} the network of {details['phase']} still has "
        f"{_state(details)}, in {number} that are others in {details['trained']} by now"
        f"{_by(details)}: not synchronised."
        + _other(details, f"those of {details['trained']}, as it should")
    )


def _follows_trained(details: _Details, finding: Finding, why: str) -> str:
    number = f"{details['parameters']} of {counted(details['of'], 'parameter')}"
    return (
        f"{_PARAMETER}. In {details['run']} the network of {details['phase']} was changed to the "
        f"weights of {details['trained']}, in {number}{_by(details)}: it was updated with them, or "
        f"is the same network." + _other(details, "them, too")
    )


def _synchronisation(details: _Details, finding: Finding, why: str) -> str:
    run = details["run"]
    whose = ""
    if run is not None:
        right = "B" if run == "A" else "A"
        whose = f" In {right} this network has the weights of {details['trained']}, in {run} not."
    return (
        f"{_PARAMETER}, in {details['parameters']} of {counted(details['of'], 'parameter')}. The "
        f"weights of {details['trained']} at that time agree: what brings them to the network of "
        f"{details['phase']} is to blame (loading, weight synchronisation, conversion).{whose}"
    )


def _not_moved(details: _Details, finding: Finding, why: str) -> str:
    still, moved = details["run"], "B" if details["run"] == "A" else "A"
    fact = (
        f"{_PARAMETER}. In {still} none of {counted(details['of'], 'parameter')} has changed since "
        f"step {details['step']}{_by(details)}, in {moved} {details['parameters']} of them"
    )
    if details["trained"] is None:
        return (
            f"{fact}. No phase trains this network: look at what changed it in {moved} (loading, "
            f"weight synchronisation, a value that was written into a parameter), or at why "
            f"{still} left that out."
        )
    if details["trained_agrees"]:
        return (
            f"{fact}, while the weights of {details['trained']} agree: {still} was not "
            f"synchronised, or {moved} should not have been."
        )
    return (
        f"{fact}: {still} was not synchronised or not updated, or {moved} should not have been. "
        f"The update between was not recorded."
    )


def _changed_between(details: _Details, finding: Finding, why: str) -> str:
    right = "B" if details["run"] == "A" else "A"
    return (
        f"{_PARAMETER}, in {details['parameters']} of {counted(details['of'], 'parameter')}. In "
        f"{details['since']}, before it in this step, the parameter agrees, and in {right} it is "
        f"still the same: in {details['run']} it was changed between the two, where nothing is "
        f"updated (loading, weight synchronisation, conversion)."
    )


def _sampling(details: _Details, finding: Finding, why: str) -> str:
    token = details["token"]
    prompt = ", or a new prompt begins here" if details["prompt"] else ""
    if details["last"]:
        return (
            f"Every recorded cell of {details['phase']} agrees, the outputs of token {token}, the "
            f"last one, bit for bit: the choice of the last token ({_TOKENS}), or what was made "
            f"of the tokens afterwards, is where the runs part."
        )
    return (
        f"The outputs of the network for token {token} (its logits) agree bit for bit, the tokens "
        f"it is given next differ: the choice of the token ({_TOKENS}) is where the runs part"
        f"{prompt}."
    )


def _sampling_or_logits(details: _Details, finding: Finding, why: str) -> str:
    token = details["token"]
    what = "the responses" if details["last"] else "the tokens it is given next"
    return (
        f"The outputs of the network for token {token} (its logits) agree only within a tolerance "
        f"or by statistics, {what} differ: either these small differences tip a token over, or "
        f"its choice ({_TOKENS}) is where the runs part."
    )


def _loss(details: _Details, finding: Finding, why: str) -> str:
    return (
        f"What the loss is given (loss_inputs) and log_prob agree bit for bit in this micro-step, "
        f"{counted(details['agree'], 'record')}: what the loss computes of them is to blame (its "
        f"code, or what it is set to: beta, clipping, how it is averaged), not the forward pass of "
        f"the network."
    )


def _schedule(details: _Details, finding: Finding, why: str) -> str:
    return (
        f"No cell of {details['phase']} computes it: it is set for the update, by the schedule of "
        f"the optimizer or by how many updates it has counted."
    )


_WORDS: dict[CulpritCode, Callable[[_Details, Finding, str], str]] = {
    CulpritCode.EARLIER_UPDATE: _earlier_update,
    CulpritCode.OPTIMIZER: _optimizer,
    CulpritCode.BEFORE_OPTIMIZER: _before_optimizer,
    CulpritCode.OPTIMIZER_OR_SYNCHRONISATION: _optimizer_or_synchronisation,
    CulpritCode.UPDATE_CLOSE: _update_close,
    CulpritCode.GRADIENTS_NOT_RECORDED: _gradients_not_recorded,
    CulpritCode.UPDATE_NOT_RECORDED: _update_not_recorded,
    CulpritCode.NOT_SYNCHRONISED: _not_synchronised,
    CulpritCode.SYNCHRONISATION: _synchronisation,
    CulpritCode.FOLLOWS_TRAINED: _follows_trained,
    CulpritCode.NOT_MOVED: _not_moved,
    CulpritCode.CHANGED_BETWEEN: _changed_between,
    CulpritCode.SAMPLING: _sampling,
    CulpritCode.SAMPLING_OR_LOGITS: _sampling_or_logits,
    CulpritCode.LOSS: _loss,
    CulpritCode.SCHEDULE: _schedule,
}
