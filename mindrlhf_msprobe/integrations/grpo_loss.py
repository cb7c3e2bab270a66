"""What MindRLHF's GRPO loss computes on the way and keeps to itself: log_prob and kl_loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def runs_in_python(model: Any) -> bool:
    """Tell whether the loss cell runs as Python code: only then can its methods be listened to."""
    import mindspore

    jitted = hasattr(type(model).construct, "__wrapped_by_jit__")
    return bool(mindspore.get_context("mode") == mindspore.PYNATIVE_MODE) and not jitted


@contextmanager
def values_of_the_loss(model: Any) -> Iterator[dict[str, Any]]:
    """Listen to the methods of a GRPOModel while it trains; what they saw is in the mapping then.

    MindSpore runs the loss once for its value and once more for the gradients; the last run counts.
    """
    seen: dict[str, Any] = {}
    approximate, mean = model.compute_approx_kl, model.masked_mean

    def compute_approx_kl(log_probs: Any, *args: Any, **kwargs: Any) -> Any:
        kl = approximate(log_probs, *args, **kwargs)
        seen.update(log_prob=log_probs, kl=kl)
        return kl

    def masked_mean(data: Any, *args: Any, **kwargs: Any) -> Any:
        result = mean(data, *args, **kwargs)
        if data is seen.get("kl"):
            seen.update(kl_mean=result, valid_length=args[3])
        return result

    own = {"compute_approx_kl": compute_approx_kl, "masked_mean": masked_mean}
    found: dict[str, Any] = {}
    vars(model).update(own)  # of this cell alone: its class has its own
    try:
        yield found
    finally:
        for name in own:
            vars(model).pop(name, None)
    if "log_prob" in seen:
        found["log_prob"] = seen["log_prob"]
    if "kl_mean" in seen:  # the sum that the construct makes of it
        samples = (seen["valid_length"].asnumpy() != 1).sum()
        found["kl_loss"] = seen["kl_mean"].asnumpy().sum(dtype="float32") / samples
