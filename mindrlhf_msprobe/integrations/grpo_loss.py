"""What MindRLHF's GRPO loss computes on the way and keeps to itself: log_prob and kl_loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_KL, _MEAN = "compute_approx_kl", "masked_mean"


class LossValues:
    """Listens to two methods of a GRPOModel while it trains.

    MindSpore runs the loss once for its value and once more for the gradients; the last run counts.

    Raises:
        AttributeError: it has no such methods.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._methods: dict[str, Callable[..., Any]] = {
            name: getattr(model, name) for name in (_KL, _MEAN)
        }
        self._calls: dict[str, Any] = {}

    def __enter__(self) -> LossValues:
        # Of this cell alone: its class keeps its own.
        vars(self._model).update({_KL: self._approximate, _MEAN: self._average})
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._methods:
            vars(self._model).pop(name, None)

    # Inside the training: nothing here may fail where the methods themselves do not.

    def _approximate(self, *args: Any, **kwargs: Any) -> Any:
        result = self._methods[_KL](*args, **kwargs)
        self._calls[_KL] = result, args, kwargs
        return result

    def _average(self, *args: Any, **kwargs: Any) -> Any:
        result = self._methods[_MEAN](*args, **kwargs)
        if _KL in self._calls and args and args[0] is self._calls[_KL][0]:
            self._calls[_MEAN] = result, args, kwargs
        return result

    def found(self) -> dict[str, Any]:
        """Return log_prob, and kl_loss as the construct sums it up, so far as they were seen."""
        values: dict[str, Any] = {}
        if _KL in self._calls:
            values["log_prob"] = self._argument(_KL, "log_probs")
        if _MEAN in self._calls:
            mean = self._calls[_MEAN][0].asnumpy()
            samples = (self._argument(_MEAN, "sample_valid_length").asnumpy() != 1).sum()
            values["kl_loss"] = mean.sum(dtype=mean.dtype) / samples.astype(mean.dtype)
        self._calls.clear()
        return values

    def _argument(self, method: str, name: str) -> Any:
        _, args, kwargs = self._calls[method]
        return inspect.signature(self._methods[method]).bind(*args, **kwargs).arguments[name]
