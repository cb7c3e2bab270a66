"""What beyond the record that differs first is to blame, and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted, ordinal
from mindrlhf_msprobe.report.messages.numbers import other_run

_PARAMETER = "Everything before it agrees, but the cell already holds another parameter"
_TOKENS = "seed, temperature, top-p, top-k, post-processing"


def _earlier_update(
    key: str,
    step: int,
    phase: str,
    micro_step: int,
    number: int,
    record: Sequence[str],
    batch_agrees: bool = False,
    **_: Any,
) -> str:
    batch, agrees = "the batch or the", ""
    if batch_agrees:
        batch, agrees = "the", " (its batch agrees: loss_inputs)"
    return (
        f"{key} agrees in micro-step {micro_step} and differs in micro-step {micro_step + 1}: the "
        f"{ordinal(number)} update ({phase} of micro-step {micro_step}: its gradients or its "
        f"optimizer step) is to blame, or {batch} forward pass of micro-step {micro_step + 1}"
        f"{agrees}, and key data alone do not tell which: record the cells of "
        f"{' and '.join(record)}, gradients included, in step {step} of both runs to decide."
    )


def _update(phase: str, step: int, micro_step: int, updates: int, **_: Any) -> str:
    """Return which update it is: actor_update of step 3, micro-step 1."""
    of = f", micro-step {micro_step}" if updates > 1 else ""
    return f"{phase} of step {step}{of}"


def _optimizer_step(
    phase: str, step: int, micro_step: int, updates: int, clipped: bool, **_: Any
) -> str:
    after = f"the optimizer step of {phase} in step {step}"
    if updates > 1:
        after = f"the optimizer step after micro-step {micro_step} of {phase} in step {step}"
    settings = ["lr", "weight decay", *([] if clipped else ["clipping"]), "state"]
    return f"{after} ({', '.join(settings)})"


def _before_optimizer(phase: str, gradients: int, backward: int, **_: Any) -> str:
    return (
        f"The gradients as they enter the optimizer differ, all {gradients} of them, and the "
        f"{counted(backward, 'record')} of the backward pass of {phase} agree bit for bit: look at "
        f"what stands between the two (clipping, loss scale, accumulation, reduction across ranks),"
        f" not at this cell."
    )


def _unmoved(unmoved: str | None, **_: Any) -> str:
    if unmoved is None:
        return ""
    return f" In {unmoved} that step changed no parameter: an lr of 0, or a step that was skipped."


def _unseen(filtered: bool, ranks_unseen: bool, **_: Any) -> str:
    """Return what else may be to blame, because it was not recorded."""
    unseen = []
    if filtered:
        unseen.append("of cells that were left out by include/exclude")
    if ranks_unseen:
        unseen.append("of ranks that were not recorded")
    if not unseen:
        return ""
    return f" But gradients {' and '.join(unseen)} may differ, and act through a sum or a norm."


def _optimizer(parameters: int, of: int, after: bool = True, **details: Any) -> str:
    weights = "the weights after it" if after else "these weights"
    or_else = (
        f", or what brings the weights from the trained network here. The weights of "
        f"{details['phase']} after it, which would tell, were not recorded."
    )
    return (
        f"The gradients of the update before it, {_update(**details)}, and the weights it began "
        f"with agree bit for bit; {weights} differ in {parameters} of {counted(of, 'parameter')}: "
        f"{_optimizer_step(**details)} is to blame{'.' if after else or_else}"
        f"{_unmoved(**details)}{_unseen(**details)}"
    )


def _update_close(**details: Any) -> str:
    return (
        f"{_PARAMETER}: the gradients of the update before it, {_update(**details)}, or the "
        f"weights it began with agree only within a tolerance or by statistics, so either these "
        f"small differences grew, or {_optimizer_step(**details)} is to blame."
        f"{_unmoved(**details)}"
    )


def _gradients_not_recorded(weights: bool, **details: Any) -> str:
    what = "Its gradients" if weights else "Its gradients and the weights it began with"
    return (
        f"{what} in {_update(**details)}, were not recorded of both runs; record that step with "
        f"directions: [forward, backward] to tell the optimizer from the gradients."
        f"{_unmoved(**details)}"
    )


def _by(exact: bool) -> str:
    return "" if exact else " (by statistics: without fingerprints that is no proof)"


def _state(step: int | None = None, micro_step: int | None = None, **_: Any) -> str:
    if step is None:
        return "its initial weights"
    return f"the weights of step {step}" + (
        "" if micro_step is None else f", micro-step {micro_step}"
    )


def _other(run: str, other: Any, trained: str) -> str:
    """Return what the network has in the other run."""
    if other == "current":
        return f" In {other_run(run)} it has {trained}."
    if other:
        return f" In {other_run(run)} it has {_state(**other)}."
    return ""


def _not_synchronised(
    run: str,
    phase: str,
    trained: str,
    parameters: int,
    of: int,
    other: Any,
    exact: bool,
    **state: Any,
) -> str:
    return (
        f"{_PARAMETER}. In {run} the network of {phase} still has {_state(**state)}, in "
        f"{parameters} of {counted(of, 'parameter')} that are others in {trained} by now"
        f"{_by(exact)}: not synchronised." + _other(run, other, f"those of {trained}, as it should")
    )


def _follows_trained(
    run: str, phase: str, trained: str, parameters: int, of: int, other: Any, exact: bool, **_: Any
) -> str:
    return (
        f"{_PARAMETER}. In {run} the network of {phase} was changed to the weights of {trained}, "
        f"in {parameters} of {counted(of, 'parameter')}{_by(exact)}: it was updated with them, or "
        f"is the same network." + _other(run, other, "them, too")
    )


def _synchronisation(
    run: str | None, phase: str, trained: str, parameters: int, of: int, **_: Any
) -> str:
    whose = ""
    if run is not None:
        right = other_run(run)
        whose = f" In {right} this network has the weights of {trained}, in {run} not."
    return (
        f"{_PARAMETER}, in {parameters} of {counted(of, 'parameter')}. The weights of {trained} at "
        f"that time agree: what brings them to the network of {phase} is to blame (loading, weight "
        f"synchronisation, conversion).{whose}"
    )


def _not_moved(
    run: str,
    trained: str | None,
    step: int,
    parameters: int,
    of: int,
    exact: bool,
    trained_agrees: bool,
    **_: Any,
) -> str:
    moved = other_run(run)
    fact = (
        f"{_PARAMETER}. In {run} none of {counted(of, 'parameter')} has changed since step {step}"
        f"{_by(exact)}, in {moved} {parameters} of them"
    )
    if trained is None:
        return (
            f"{fact}. No phase trains this network: look at what changed it in {moved} (loading, "
            f"weight synchronisation, a value that was written into a parameter), or at why {run} "
            f"left that out."
        )
    if trained_agrees:
        return (
            f"{fact}, while the weights of {trained} agree: {run} was not synchronised, or "
            f"{moved} should not have been."
        )
    return (
        f"{fact}: {run} was not synchronised or not updated, or {moved} should not have been. "
        f"The update between was not recorded."
    )


def _changed_between(run: str, since: str, parameters: int, of: int, **_: Any) -> str:
    return (
        f"{_PARAMETER}, in {parameters} of {counted(of, 'parameter')}. In {since}, before it in "
        f"this step, the parameter agrees, and in {other_run(run)} it is still the same: in {run} "
        f"it was changed between the two, where nothing is updated (loading, weight "
        f"synchronisation, conversion)."
    )


def _sampling(phase: str, token: int, last: bool, prompt: bool, **_: Any) -> str:
    if last:
        return (
            f"Every recorded cell of {phase} agrees, the outputs of token {token}, the last one, "
            f"bit for bit: the choice of the last token ({_TOKENS}), or what was made of the "
            f"tokens afterwards, is where the runs diverge."
        )
    return (
        f"The outputs of the network for token {token} (its logits) agree bit for bit, the tokens "
        f"it is given next differ: the choice of the token ({_TOKENS}) is where the runs diverge"
        f"{', or a new prompt begins here' if prompt else ''}."
    )


def _sampling_or_logits(token: int, last: bool, **_: Any) -> str:
    what = "the responses" if last else "the tokens it is given next"
    return (
        f"The outputs of the network for token {token} (its logits) agree only within a tolerance "
        f"or by statistics, {what} differ: either these small differences tip a token over, or "
        f"its choice ({_TOKENS}) is where the runs diverge."
    )


def _loss(agree: int, **_: Any) -> str:
    return (
        f"What the loss is given (loss_inputs) and log_prob agree bit for bit in this micro-step, "
        f"{counted(agree, 'record')}: what the loss computes of them is to blame (its code, or "
        f"what it is set to: beta, clipping, how it is averaged), not the forward pass of the "
        f"network."
    )


TEXTS: Mapping[str, Any] = {
    "earlier_update": _earlier_update,
    "optimizer": _optimizer,
    "before_optimizer": _before_optimizer,
    "optimizer_or_synchronisation": partial(_optimizer, after=False),
    "update_close": _update_close,
    "gradients_not_recorded": _gradients_not_recorded,
    "update_not_recorded": (
        "The update before it, {phase} of step {step}, was not recorded: record step {step} as "
        "well to tell loading, synchronisation and optimizer apart."
    ),
    "not_synchronised": _not_synchronised,
    "synchronisation": _synchronisation,
    "follows_trained": _follows_trained,
    "not_moved": _not_moved,
    "changed_between": _changed_between,
    "sampling": _sampling,
    "sampling_or_logits": _sampling_or_logits,
    "loss": _loss,
    "schedule": (
        "No cell of {phase} computes it: it is set for the update, by the schedule of the optimizer"
        " or by how many updates it has counted."
    ),
}
