"""What the checks against healthy runs say, in English."""

from __future__ import annotations

from collections.abc import Callable

from mindrlhf_msprobe.report.messages import Text


def _and_others(said: str) -> Callable[..., str]:
    def text(others: int) -> str:
        return f"{said} ({others} more in this step)" if others else said

    return text


TEXTS: dict[str, Text] = {
    "finite": _and_others("not finite, which it always is in healthy runs"),
    "dtype": _and_others("a dtype that healthy runs do not have here"),
    "shape": _and_others("a shape that healthy runs do not have here"),
    "range": _and_others("a norm far outside the range of healthy runs"),
    "unknown": _and_others("an entry that healthy runs do not have"),
    "calls": _and_others("another number of calls than in any step of healthy runs"),
    "drift": _and_others("drifts away from what healthy runs do in the same steps"),
    "cause_settings": "a setting that differs from the healthy runs (learning rate, data, weights)",
    "cause_precision": "errors that add up from step to step (precision, weights not synchronised)",
}
