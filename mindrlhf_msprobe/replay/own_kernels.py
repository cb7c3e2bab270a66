"""How the operators of a second run compute: by kernels of its own, and in a higher precision.

On a CPU, MindSpore tries in the first calls of a kernel's object into how many parts elements are
cut, five calls each and 30 at most, and keeps what took the least time. What is left of a part when
it has been cut into vectors is computed by another formula, so that the last bits of some kernels
depend on it. A call of a second run must not count among those of the training: it has objects of
its own of such kernels.
"""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import Tensor, ops

from mindrlhf_msprobe.capture.framework.private import RUN_OP, uncast
from mindrlhf_msprobe.capture.opening.observer import OperatorCall
from mindrlhf_msprobe.capture.operators.interception import handled_inside, is_mindspores
from mindrlhf_msprobe.replay.held import CannotRepeatError
from mindrlhf_msprobe.replay.kinds import writes
from mindrlhf_msprobe.replay.precise.values import replaced

#: The last part of an operator's name → its kernel, of one input, whose last bits depend on that.
KERNELS = {"log": "Log", "Log": "Log", "Softplus": "Softplus", "Mish": "Mish"}
#: Operators whose gradients are computed by one of these kernels, out of Python's reach …
_IN_GRADIENTS = frozenset(
    [
        *("mish", "Mish", "logcumsumexp", "CumulativeLogsumexp"),
        *("binary_cross_entropy", "BinaryCrossEntropy"),
    ]
)
#: … and those of which only the gradient of an exponent is.
_POWERS = frozenset(["pow", "Pow", "__pow__", "__rpow__"])
_DTYPES = (mindspore.float32, mindspore.float64)
#: After so many calls an object of a kernel tries no more.
_MOST_CALLS = 31
_OWN = "mindrlhf_msprobe"  # an attribute by which MindSpore makes other objects of kernels

_primitives: dict[str, ops.Primitive] = {}
_settled: set[tuple[object, ...]] = set()


class OwnKernels:
    """Computes operators of a second run; kernels that count their calls by objects of its own.

    Args:
        settled: whether those must be through with trying, so that they are deterministic.
        differentiated: whether gradients flow through the second run.

    Attributes:
        used: the kernels that were called so.
    """

    def __init__(self, *, settled: bool = False, differentiated: bool = False) -> None:
        self._settled, self._differentiated = settled, differentiated
        self._on_cpu = mindspore.get_context("device_target") == "CPU" and RUN_OP is not None
        self.used: set[str] = set()

    def compute(self, call: OperatorCall) -> Any:
        """Return what an operator computes.

        Raises:
            CannotRepeatError: its gradients would call a kernel that counts.
        """
        if not self._on_cpu:
            return call.compute(*call.args, **call.kwargs)
        operator, given = call.operator, [*call.args, *call.kwargs.values()]
        powers = operator.name in _POWERS and all(isinstance(one, Tensor) for one in given[:2])
        if self._differentiated and (powers or operator.name in _IN_GRADIENTS):
            raise CannotRepeatError.saying("benchmark.counts", operator=operator.full_name)
        kernel = KERNELS.get(operator.name)
        of_tensor = len(given) == 1 and isinstance(given[0], Tensor) and given[0].dtype in _DTYPES
        if kernel is not None and of_tensor and is_mindspores(call.compute):
            return self._own(kernel, given[0])
        with handled_inside(lambda *inner: self.compute(OperatorCall(*inner))):
            return call.compute(*call.args, **call.kwargs)

    def _own(self, kernel: str, tensor: Tensor) -> Tensor:
        self.used.add(kernel)
        primitive = _primitives.get(kernel)
        if primitive is None:
            primitive = _primitives[kernel] = ops.Primitive(kernel)
            primitive.add_prim_attr(_OWN, 1)
        if self._settled:
            # A tensor that is not on the device yet has another object: the call puts it there.
            RUN_OP(primitive, kernel, (tensor,))
            key = kernel, str(tensor.dtype), tensor.shape
            if key not in _settled:
                for _ in range(_MOST_CALLS):
                    RUN_OP(primitive, kernel, (tensor,))
                _settled.add(key)
        return RUN_OP(primitive, kernel, (tensor,))


_16_BITS = {"Float16": mindspore.float16, "BFloat16": mindspore.bfloat16}
_HIGHER = mindspore.float32
#: Methods that only cast.
_CASTS = frozenset(["half", "bfloat16", "float"])


def can_be_higher(coarsest: str) -> bool:
    """Return whether what computes in a dtype, by MindSpore's name, is computed in a higher one."""
    return coarsest in _16_BITS


class Higher:
    """Computes each operator in float32 that has 16 bits; casts to 16 bits are not followed.

    An operator that has no kernel for it computes as it was called, and its result goes on in
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

        def raised(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf.astype(_HIGHER) if leaf.dtype in self._lower else leaf
            is_dtype = type(leaf).__module__.startswith("mindspore._c_expression")
            return _HIGHER if is_dtype and any(leaf == one for one in self._lower) else leaf

        return replaced(value, raised)

    def compute(self, call: OperatorCall) -> Any:
        """Return what an operator computes of its operands in the higher precision."""
        operator = call.operator
        if operator.kind == "Tensor" and operator.name in _CASTS:
            return self.raised(call.args[0])
        if writes(operator.name) or operator.full_name in self.without:
            return self._as_called(call)
        try:
            args, kwargs = self.raised(call.args), self.raised(call.kwargs)
            return uncast(lambda: call.compute(*args, **kwargs))()
        except (RuntimeError, TypeError, ValueError):
            return self._as_called(call)

    def _as_called(self, call: OperatorCall) -> Any:
        def lowered(leaf: Any) -> Any:
            is_higher = isinstance(leaf, Tensor) and leaf.dtype == _HIGHER
            return leaf.astype(self._coarsest) if is_higher else leaf

        self.without.add(call.operator.full_name)
        args, kwargs = replaced(call.args, lowered), replaced(call.kwargs, lowered)
        return self.raised(uncast(lambda: call.compute(*args, **kwargs))())
