"""Operators in a higher precision than they are called in, by MindSpore's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
from mindspore import Tensor

from mindrlhf_msprobe.capture.framework.private import uncast
from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.replay.kinds import writes

_16_BITS = (mindspore.float16, mindspore.bfloat16)
_FLOATS = (*_16_BITS, mindspore.float32)
#: Methods that only cast, and to what.
_CASTS = frozenset(["half", "bfloat16", "float", "double"])


class Higher:
    """Computes each operator in a higher precision; casts to a lower one are not followed.

    An operator that has no kernel for it computes as it was asked to, and its result goes on in the
    higher precision.

    Args:
        coarsest: MindSpore's name of the coarsest dtype that computes: of 16 bits it is float32
            that is higher, else float64.

    Attributes:
        without: full names of the operators that had no kernel.
    """

    def __init__(self, coarsest: str) -> None:
        few = coarsest in ("Float16", "BFloat16")
        self.dtype = mindspore.float32 if few else mindspore.float64
        self._lower = _16_BITS if few else _FLOATS
        self.without: set[str] = set()

    def raised(self, value: Any) -> Any:
        """Return a value with its floating tensors, and dtypes that ask for one, in the dtype."""
        if isinstance(value, Tensor):
            return value.astype(self.dtype) if value.dtype in self._lower else value
        if type(value) in (list, tuple):
            return type(value)(self.raised(item) for item in value)
        if type(value) is dict:
            return {key: self.raised(item) for key, item in value.items()}
        return self.dtype if _is_one_of(value, self._lower) else value

    def compute(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return what an operator computes of its operands in the higher precision."""
        if operator.kind == "Tensor" and operator.name in _CASTS:
            return self.raised(args[0])
        if writes(operator.name):
            return self._as_asked(operator, original, args, kwargs)
        try:
            return uncast(lambda: original(*self.raised(args), **self.raised(kwargs)))()
        except (RuntimeError, TypeError, ValueError):
            return self._as_asked(operator, original, args, kwargs)

    def _as_asked(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        self.without.add(operator.full_name)
        lowered = self._lowered(args), self._lowered(kwargs)
        return self.raised(uncast(lambda: original(*lowered[0], **lowered[1]))())

    def _lowered(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype == self.dtype:
            return value.astype(self._lower[-1] if self.dtype == mindspore.float64 else self._own)
        if type(value) in (list, tuple):
            return type(value)(self._lowered(item) for item in value)
        if type(value) is dict:
            return {key: self._lowered(item) for key, item in value.items()}
        return value

    @property
    def _own(self) -> Any:
        return mindspore.float32  # every kernel of 16 bits has a sister of 32


def _is_one_of(value: Any, dtypes: tuple[Any, ...]) -> bool:
    return type(value).__module__.startswith("mindspore._c_expression") and any(
        value == dtype for dtype in dtypes
    )
