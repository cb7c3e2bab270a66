"""Operators in a higher precision than they are called in, by MindSpore's own kernels."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import Tensor

from mindrlhf_msprobe.capture.framework.private import uncast
from mindrlhf_msprobe.capture.opening.observer import OperatorCall
from mindrlhf_msprobe.replay.kinds import writes

_16_BITS = {"Float16": mindspore.float16, "BFloat16": mindspore.bfloat16}
_HIGHER = mindspore.float32
#: Methods that only cast.
_CASTS = frozenset(["half", "bfloat16", "float"])


def can_be_higher(coarsest: str) -> bool:
    """Return whether what computes in a dtype, by MindSpore's name, is computed in a higher one."""
    return coarsest in _16_BITS


class Higher:
    """Computes each operator in float32 that has 16 bits; casts to 16 bits are not followed.

    An operator that has no kernel for it computes as it was asked to, and its result goes on in
    float32. What is float32 already stays so: the same kernels in float64 are missing as a rule.

    Args:
        coarsest: MindSpore's name of the coarsest dtype that computes, of 16 bits.

    Attributes:
        without: full names of the operators that had no kernel.
    """

    def __init__(self, coarsest: str) -> None:
        self._coarsest = _16_BITS[coarsest]
        self._lower = tuple(_16_BITS.values())
        self.without: set[str] = set()

    def raised(self, value: Any) -> Any:
        """Return a value with its floating tensors, and dtypes that ask for one, in the dtype."""
        if isinstance(value, Tensor):
            return value.astype(_HIGHER) if value.dtype in self._lower else value
        if type(value) in (list, tuple):
            return type(value)(self.raised(item) for item in value)
        if type(value) is dict:
            return {key: self.raised(item) for key, item in value.items()}
        return _HIGHER if _is_one_of(value, self._lower) else value

    def compute(self, call: OperatorCall) -> Any:
        """Return what an operator computes of its operands in the higher precision."""
        operator = call.operator
        if operator.kind == "Tensor" and operator.name in _CASTS:
            return self.raised(call.args[0])
        if writes(operator.name) or operator.full_name in self.without:
            return self._as_asked(call)
        try:
            args, kwargs = self.raised(call.args), self.raised(call.kwargs)
            return uncast(lambda: call.compute(*args, **kwargs))()
        except (RuntimeError, TypeError, ValueError):
            return self._as_asked(call)

    def _as_asked(self, call: OperatorCall) -> Any:
        self.without.add(call.operator.full_name)
        args, kwargs = self._lowered(call.args), self._lowered(call.kwargs)
        return self.raised(uncast(lambda: call.compute(*args, **kwargs))())

    def _lowered(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.astype(self._coarsest) if value.dtype == _HIGHER else value
        if type(value) in (list, tuple):
            return type(value)(self._lowered(item) for item in value)
        if type(value) is dict:
            return {key: self._lowered(item) for key, item in value.items()}
        return value


def _is_one_of(value: Any, dtypes: tuple[Any, ...]) -> bool:
    return type(value).__module__.startswith("mindspore._c_expression") and any(
        value == dtype for dtype in dtypes
    )
