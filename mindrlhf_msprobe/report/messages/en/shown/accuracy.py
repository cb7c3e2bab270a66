"""What the second opinion on a run says, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "headline_wrong": "WRONG {path}: a result is further from float64 than rounding explains",
    "headline_ordinary": "ORDINARY {path}: rounding explains every result that was computed again",
    "headline_gaps": "UNDECIDED {path}: nothing wrong in {judged} call(s); {count} without an "
    "opinion: {names}",
    "headline_undecided": "UNDECIDED {path}: no result could be judged",
    "in_cell": "{name} in {cell}",
    "apart": "{record}, step {step}, rank {rank}: relative error {error:.2g}; rounding of "
    "{precision} explains {explained:.2g}. At {index}: {actual:.7g}, exact {exact:.7g}",
    "by_shape": "{record}, step {step}, rank {rank}: another shape than the exact result",
    "by_not_finite": "{record}, step {step}, rank {rank}: at {index} it is {actual}, exact "
    "{exact:.7g}",
    "by_not_equal": "{record}, step {step}, rank {rank}: at {index} it is {actual:.7g}, exact "
    "{exact:.7g}",
    "counts": "{calls} calls computed again in {seconds:.1f} s; tensors: {wrong} wrong, "
    "{undecided} undecided, {ordinary} ordinary",
    "ranked": "Opinion, error in units of what rounding explains, relative error, precision:",
    "is_wrong": "wrong",
    "is_ordinary": "ordinary",
    "is_undecided": "undecided",
    "more": "and {count} more",
    "not_computed": "No opinion on {call} ({cell}), {count} call(s): {why}",
    "outside": "outside every cell",
    "unchecked": "{count} call(s) have no opinion: nothing was checked there: {names}",
    "written": "Written: {files}",
    "none": "{path} has no second opinion ({file}); record it with task: accuracy_check",
    "nothing": (
        "{path} was recorded with task: {task}, and nothing was computed again: in its phases and "
        "steps no chosen cell was called. level: mix takes operators outside every cell, too; "
        "include, exclude, step_start and step_end say what is chosen"
    ),
    "reason_unseen": "a tensor came from an operator that was not seen",
    "reason_ties": "equal elements may be put in another order",
    "reason_overflowed": "the forward result, or a derivative, is beyond what the dtype holds",
    "reason_given_not_finite": "it was given NaN or Inf",
    "reason_exact_not_finite": "the exact result is not finite",
    "reason_not_finite": "not finite, while the exact result is",
    "reason_not_equal": "not equal",
    "reason_shape": "another shape",
}
