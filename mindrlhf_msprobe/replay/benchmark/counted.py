"""Kernels that count their calls: a second run has objects of its own of them.

On a CPU, MindSpore tries in the first calls of a kernel's object into how many parts elements are
cut, five calls each and 30 at most, and keeps what took the least time. What is left of a part when
it has been cut into vectors is computed by another formula, so that the last bits of some kernels
depend on it. A call of a second run must not count among those of the training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore
from mindspore import Tensor, ops

from mindrlhf_msprobe.capture.framework.private import RUN_OP
from mindrlhf_msprobe.capture.operators.interception import handled_inside, is_mindspores
from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.replay.benchmark.arguments import CannotRepeatError

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

    def compute(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Return what an operator computes.

        Raises:
            CannotRepeatError: its gradients would call a kernel that counts.
        """
        if not self._on_cpu:
            return original(*args, **kwargs)
        given = [*args, *kwargs.values()]
        if self._differentiated and _counts_in_gradients(operator.name, given):
            said = message("benchmark.counts", operator=operator.full_name)
            raise CannotRepeatError(said)
        kernel = KERNELS.get(operator.name)
        of_tensor = len(given) == 1 and isinstance(given[0], Tensor) and given[0].dtype in _DTYPES
        if kernel is not None and of_tensor and is_mindspores(original):
            return self._own(kernel, given[0])
        with handled_inside(self.compute):
            return original(*args, **kwargs)

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


def _counts_in_gradients(name: str, given: Sequence[Any]) -> bool:
    if name in _POWERS:
        return all(isinstance(value, Tensor) for value in given[:2])
    return name in _IN_GRADIENTS
