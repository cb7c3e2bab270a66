"""What the check of results of second runs says, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text


def _what(stage: str, path: str) -> str:
    if stage == "backward":
        return f"the gradient {path}"
    return f"output {path}"


def _changes(path: str, stage: str, change: float | None, by: float | None, mode: str) -> str:
    how = "becomes NaN or Inf" if change is None else f"changes by {change:.3g}"
    if mode == "improve_precision":
        return f"{_what(stage, path)} {how} in higher precision"
    of_inputs = "are exchanged" if by is None else f"change by {by:.3g}"  # with NaN or Inf
    return f"{_what(stage, path)} {how} where the inputs {of_inputs} ({mode})"


def _not_deterministic(path: str, stage: str, differing: int, size: int) -> str:
    return (
        f"{_what(stage, path)} is another one when the call runs again on the same inputs: "
        f"{differing} of {size} elements differ"
    )


TEXTS: dict[str, Text] = {
    "changes": _changes,
    "not_deterministic": _not_deterministic,
    "not_recorded": "no call ran again (task: free_benchmark)",
    "not_run": "{cell} did not run again: {why}",
    "cause_ill_conditioned": (
        "it takes the difference of nearly equal numbers, or divides by a small one"
    ),
    "cause_kernel": "a kernel that rounds more than its dtype",
    "cause_order": "sums in an order that is not fixed, such as atomic additions",
    "cause_state": "something it keeps from call to call, or memory that was not written",
}
