"""What the check for NaN and infinity says, in English."""

from __future__ import annotations

from functools import partial

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import counted, non_finite
from mindrlhf_msprobe.report.messages.lists import by, made


def _held(nan: int, inf: int, size: int, **_: object) -> str:
    return f"{non_finite(nan, inf)} in {counted(size, 'element')}"


def _called(operator: str, cell: str | None, line: str, **_: object) -> str:
    where = "" if cell is None else f" inside {cell}" if cell else " outside every cell"
    return f"{operator}{where} ({line})" if line else f"{operator}{where}"


_holds = partial(made, held=_held)
_of_operator = partial(made, held=_held, called=_called)


def _carried(ranks: list[int], origin: int, step: int, kind: str, collective: str) -> str:
    of = f"{'rank' if len(ranks) == 1 else 'ranks'} {few_numbers(ranks)}"
    if collective:
        how = f"through the collective {collective}"
    elif kind == "gradient":
        how = "through the reduction of gradients (their own backward entries were finite before)"
    elif kind == "parameter":
        how = "through the parameters: gradients were reduced over ranks, or weights synchronised"
    elif kind == "data":
        how = "by what the trainer exchanged between ranks: a reduced loss or norm, gathered data"
    elif kind == "output":
        how = "through a collective in this cell: its output is the same on both, its input is not"
    else:
        how = "by what this cell was given"
    return f"non-finite on {of} from here on: it came from rank {origin}, step {step}, {how}"


def _retried(steps: int) -> str:
    again = f" ({steps} steps in a row)" if steps > 1 else ""
    return (
        f"gradients overflowed under the loss scale and the step was skipped{again}: normal "
        "for dynamic loss scaling"
    )


TEXTS: dict[str, Text] = {
    "born": by(
        "backward",
        {
            False: _holds(
                "the output of this cell holds {held}; its inputs and parameters are finite"
            ),
            True: _holds(
                "the gradient that leaves this cell holds {held}; the one that arrives is finite"
            ),
        },
    ),
    "born_of_operator": by(
        "backward",
        {
            False: _of_operator("the output of {called} holds {held}; its inputs are finite"),
            True: _of_operator(
                "the gradient that leaves {called} holds {held}; the one that arrives is finite"
            ),
        },
    ),
    "in_container_operator": _holds(
        "an input of this operator holds {held}, and {container}, which calls it, was given finite "
        "values: it arose in that container's own code, between the recorded operators"
    ),
    "came_in_operator": _holds(
        "what this operator of {phase} was given holds {held}; nothing recorded before it is "
        "non-finite, so it came from something that was not recorded"
    ),
    "in_container": _holds(
        "an input of this cell holds {held}, and {container}, which calls it, was given finite "
        "values: it arose in that container's own code"
    ),
    "came_in": _holds(
        "what this cell of {phase} was given holds {held}; nothing recorded before it is "
        "non-finite, so it came from outside the recorded cells"
    ),
    "parameter": by(
        "gradients_finite",
        {
            True: _holds(
                "a parameter holds {held} after the update, and its gradients were finite: it "
                "arose in the optimizer"
            ),
            False: _holds(
                "a parameter holds {held} when the cell is entered; everything recorded before is "
                "finite: it came with the last update, or was loaded"
            ),
        },
    ),
    "parameter_after_gap": _holds(
        "a parameter holds {held} when the cell is entered; everything of step {before} is finite, "
        "and nothing is recorded between: it arose there"
    ),
    "parameter_of_ranks": _holds(
        "a parameter holds {held} after the update, and its gradients on this rank were finite: "
        "it came from the gradients of another rank ({others} not looked at), or arose in the "
        "optimizer"
    ),
    "optimizer_state": by(
        "gradients_finite",
        {
            False: _holds("what the optimizer keeps for its next update holds {held}"),
            True: _holds(
                "what the optimizer keeps for its next update holds {held}, and the gradients "
                "were finite: it arose in the optimizer"
            ),
        },
    ),
    "parameter_at_first": _holds("a parameter holds {held} when it is first seen"),
    "gradient": _holds(
        "the gradient of a parameter holds {held}, and every recorded backward entry before is "
        "finite: it arose in between (accumulation, reduction over ranks, unscaling, clipping)"
    ),
    "data": _holds("{key} holds {held}; everything recorded before it is finite"),
    "zero_deviation": _holds(
        "advantages hold {held}; the rewards of these samples are all {rewards:g}, so their "
        "standard deviation is 0"
    ),
    "carried": _carried,
    "retried": _retried,
    "stuck": (
        "gradients overflowed in {steps} steps in a row: the loss scale falls and nothing is "
        "learned"
    ),
    "also": "later: {what}",
    "given": "it was given",
    "near": "before it, close to the limit of {dtype}",
    "reached": "reached in this step and rank, records by phase or key",
    "cause_overflow": (
        "overflow: a value beyond the dtype's range; compute it in float32 or bfloat16, or scale it"
    ),
    "cause_overflow_backward": "overflow of a scaled gradient; the loss scale is too large",
    "cause_masked_row": "a softmax over a row that is masked throughout (-inf everywhere)",
    "cause_zero_division": (
        "division by zero, log or sqrt of what is not positive, 0 times infinity"
    ),
    "cause_singular_gradient": "a derivative without bound: sqrt, norm, log or division at zero",
    "cause_kernel": "a faulty kernel: compute the recorded entry again in higher precision",
    "cause_collective": "a collective in this cell; which of the ranks brought it is not recorded",
    "cause_own_code": "the container's own arithmetic between its cells",
    "cause_trainer_code": "the trainer's own arithmetic between the phases",
    "cause_not_recorded": "a cell or phase that was not recorded",
    "cause_loading": "the checkpoint that was loaded",
    "cause_initialisation": "initialisation",
    "cause_optimizer": (
        "the optimizer: division by sqrt(v) + eps with eps lost in float16, or a moment "
        "that overflowed"
    ),
    "cause_learning_rate": "a learning rate or weight decay that is not finite",
    "cause_gradient_not_recorded": "a gradient that was not finite, and not recorded",
    "cause_reduction": "the reduction of gradients over ranks or micro-steps",
    "cause_unscaling": "unscaling or clipping: a loss scale of 0, or a gradient norm of 0 or Inf",
    "cause_zero_deviation": (
        "advantages normalised by a standard deviation of 0: add eps, or skip groups of "
        "equal rewards"
    ),
    "cause_probability_zero": (
        "a token of probability 0: masked by top_k, top_p or temperature, or rounded to 0"
    ),
    "cause_ratio_overflow": (
        "exp(log_prob - old_log_prob) overflows: the policies are far apart, or rows do not"
        " correspond"
    ),
    "cause_scale_floor": (
        "gradients that are non-finite whatever the loss scale: look for the cell in which "
        "they arise"
    ),
}
