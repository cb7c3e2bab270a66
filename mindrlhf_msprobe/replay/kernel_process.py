"""The process that computes operators in float64 by MindSpore's kernels on the CPU.

It is none of the training's: a kernel that is missing, or that ends its process, ends this one
alone, no graph of gradients is touched, and what was put in an operator's place is not there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.processes import receive, send
from mindrlhf_msprobe.replay.kernels import KernelCall, KernelResults, NamedDtype, NoAnswerError
from mindrlhf_msprobe.replay.precise.values import replaced

#: By how much an input is moved to see whether float64 is computed in, and by how much float32
#: would notice.
_FINE, _COARSE = 2.0**-36, 2.0**-18
#: A result that moves by less is computed in more than float32.
_LEAST_OF_FLOAT32 = 2.0**-27
#: Said where a result is in a lower precision.
_LOWER = "lower_precision"
#: How far a gradient may be from differences: of its own terms.
_APART = 1e-4
#: Of inputs up to this size gradients are made of differences, where no kernel gives them.
_MOST_DIFFERENCES = 256
_STEP = 2.0**-20
_DIRECTIONS = 3


#: Takes arrays, returns those of the outputs.
_Function = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class _Operator:
    """One operator with its arguments, as a function of arrays."""

    def __init__(self, call: KernelCall) -> None:
        from mindrlhf_msprobe.capture.operators.inventory import find_operator
        from mindrlhf_msprobe.replay.offline.called_operator import computes_only

        operator = find_operator(call.operator)
        if operator is None or not computes_only(operator):
            raise NoAnswerError(call.operator)
        self._computed: Callable[..., Any] = operator.original
        if operator.kind == "Primitive":
            self._computed = operator.owner(**call.attributes)
        self._call = call
        self.several = False

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs.

        Raises:
            NoAnswerError: it returns what is no tensor, or no float64.
        """
        from mindspore import Tensor

        return [np.array(one.asnumpy()) for one in self.of_tensors([Tensor(a) for a in arrays])]

    def of_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Return tensors of tensors."""
        import mindspore
        from mindspore import Tensor

        left = iter(tensors)

        def made(leaf: Any) -> Any:
            if isinstance(leaf, np.ndarray):
                return next(left)
            if isinstance(leaf, NamedDtype):
                return getattr(mindspore, "float64" if "float" in leaf.name else leaf.name)
            return leaf

        args = replaced(tuple(self._call.args), made)
        returned = self._computed(*args, **replaced(dict(self._call.kwargs), made))
        self.several = isinstance(returned, (tuple, list))
        found = [*returned] if self.several else [returned]
        if not all(isinstance(one, Tensor) for one in found):
            raise NoAnswerError("not_a_tensor")
        names = {str(one.dtype) for one in found}
        if names & {"Float16", "BFloat16", "Float32", "Complex64", "Complex128"}:
            raise NoAnswerError(_LOWER)
        return found


class Kernels:
    """Computes calls, and remembers which operators compute in float64."""

    def __init__(self) -> None:
        self._in_float64: dict[str, bool] = {}

    def answer(self, call: KernelCall) -> KernelResults:
        """Compute a call.

        Raises:
            NoAnswerError: there is no kernel.
            Exception: of MindSpore.
        """
        operator = _Operator(call)
        key = f"{call.operator} {[str(a.dtype) for a in call.draws[0]]}"
        if key not in self._in_float64:
            self._in_float64[key] = computes_in_float64(operator, call.draws[0])
        if not self._in_float64[key]:
            raise NoAnswerError(_LOWER)
        if not call.arriving:
            results = [tuple(operator(arrays)) for arrays in call.draws]
            return KernelResults(tuple(results), operator.several)
        found = [
            tuple(gradients(operator, arrays, arriving, call.output, verified=not number))
            for number, (arrays, arriving) in enumerate(zip(call.draws, call.arriving))
        ]
        return KernelResults(tuple(found))


def computes_in_float64(function: _Function, arrays: Sequence[np.ndarray]) -> bool:
    """Return whether results follow a move of inputs that float32 does not know.

    What does not move at all is computed in float64 where a larger move does not change it either.
    """
    random = np.random.default_rng(0)

    def moved(size: float) -> list[np.ndarray]:
        signs = [random.choice([-1.0, 1.0], array.shape) for array in arrays]
        return [a * (1 + size * s) if a.dtype.kind == "f" else a for a, s in zip(arrays, signs)]

    first, fine = function(arrays), function(moved(_FINE))
    change, size = _largest_change(first, fine)
    if 0 < change < _LEAST_OF_FLOAT32 * size or not size:
        return True
    if change == 0:
        return _largest_change(first, function(moved(_COARSE)))[0] == 0
    # Some may jump, as the results of a sort do: then most of them do not.
    steps = np.concatenate(
        [np.abs(a - b).ravel() for a, b in zip(first, fine) if a.dtype.kind == "f"] or [np.zeros(1)]
    )
    known = steps[steps > 0]
    return bool(np.median(known) < _LEAST_OF_FLOAT32 * size)


def _largest_change(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray]
) -> tuple[float, float]:
    """Return the largest change of the outputs and their largest magnitude."""
    change = size = 0.0
    for a, b in zip(first, second):
        if a.dtype.kind == "f" and a.size:
            known = np.isfinite(a) & np.isfinite(b)
            change = max(change, float(np.max(np.abs(a - b), where=known, initial=0)))
            size = max(size, float(np.max(np.abs(a), where=known, initial=0)))
    return change, size


def gradients(
    operator: _Operator,
    arrays: Sequence[np.ndarray],
    arriving: np.ndarray,
    output: int,
    *,
    verified: bool = True,
) -> list[np.ndarray | None]:
    """Return the gradients of floating arrays, given that of one output.

    Those of a kernel are held against central differences along random directions.

    Raises:
        NoAnswerError: no kernel gives them, and there are too many elements for differences.
    """

    def projected(moved: Sequence[np.ndarray]) -> float:
        with np.errstate(all="ignore"):
            return float(np.sum(operator(moved)[output] * arriving))

    floats = [i for i, array in enumerate(arrays) if array.dtype.kind == "f"]
    with suppress(Exception):  # whatever MindSpore raises: differences need no kernel
        found = _by_kernel(operator, arrays, arriving, output, floats)
        if not verified or _agrees(projected, arrays, found, floats):
            return found
    if sum(arrays[i].size for i in floats) > _MOST_DIFFERENCES:
        raise NoAnswerError("no_gradient")
    return _by_differences(projected, arrays, floats)


def _by_kernel(
    operator: _Operator,
    arrays: Sequence[np.ndarray],
    arriving: np.ndarray,
    output: int,
    floats: Sequence[int],
) -> list[np.ndarray | None]:
    from mindspore import Tensor, ops

    def function(*given: Any) -> Any:
        tensors = [Tensor(array) for array in arrays]
        for i, tensor in zip(floats, given):
            tensors[i] = tensor
        return operator.of_tensors(tensors)[output]

    derived = ops.GradOperation(get_all=True, sens_param=True)(function)
    returned = derived(*(Tensor(arrays[i]) for i in floats), Tensor(arriving))
    found: list[np.ndarray | None] = [None] * len(arrays)
    for i, gradient in zip(floats, returned):
        found[i] = np.array(gradient.asnumpy(), np.float64)
    return found


def _step_of(array: np.ndarray) -> float:
    return _STEP * (float(np.sqrt(np.mean(np.square(array)))) or 1.0) if array.size else 0.0


def _agrees(
    projected: Callable[[Sequence[np.ndarray]], float],
    arrays: Sequence[np.ndarray],
    found: Sequence[np.ndarray | None],
    floats: Sequence[int],
) -> bool:
    """Return whether gradients are those of central differences, along random directions."""
    random = np.random.default_rng(1)
    for _ in range(_DIRECTIONS):
        ways = {i: random.standard_normal(arrays[i].shape) * _step_of(arrays[i]) for i in floats}
        ahead, behind = (
            projected([a + side * ways[i] if i in ways else a for i, a in enumerate(arrays)])
            for side in (1, -1)
        )
        terms = [np.multiply(np.asarray(found[i]), way).ravel() for i, way in ways.items()]
        along = np.concatenate(terms)
        size = float(np.sqrt(np.sum(np.square(along)))) + float(np.abs(ahead)) * 1e-12
        if not abs((ahead - behind) / 2 - float(np.sum(along))) <= _APART * size + 1e-300:
            return False
    return True


def _by_differences(
    projected: Callable[[Sequence[np.ndarray]], float],
    arrays: Sequence[np.ndarray],
    floats: Sequence[int],
) -> list[np.ndarray | None]:
    """Return gradients as central differences of each element.

    Raises:
        NoAnswerError: at a bend, where those to both sides differ.
    """
    found: list[np.ndarray | None] = [None] * len(arrays)
    here = projected(arrays)
    for i in floats:
        gradient, step = np.zeros(arrays[i].shape), _step_of(arrays[i])
        largest = 0.0
        bends: list[float] = []
        for at in np.ndindex(arrays[i].shape):
            sides = []
            for side in (1, -1):
                moved = [np.array(a) if n == i else a for n, a in enumerate(arrays)]
                moved[i][at] += side * step
                sides.append(projected(moved))
            gradient[at] = (sides[0] - sides[1]) / (2 * step)
            bends.append(abs(sides[0] + sides[1] - 2 * here) / step)
            largest = max(largest, abs(gradient[at]))
        if max(bends, default=0.0) > 1e-3 * largest + 1e-9 * abs(here) / step:
            raise NoAnswerError("bend")
        found[i] = gradient
    return found


def _serve(inbox: Any, outbox: Any) -> None:
    import mindspore

    mindspore.set_context(
        mode=mindspore.PYNATIVE_MODE, device_target="CPU", pynative_synchronize=True
    )
    kernels = Kernels()
    while True:
        try:
            call = receive(inbox)
        except EOFError:  # the training has ended
            return
        try:
            said: KernelResults | NoAnswerError = kernels.answer(call)
        except Exception as error:  # of MindSpore: the training is told that there is no answer
            said = NoAnswerError(f"{type(error).__name__}: {error}"[:200])
        send(outbox, said)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training's
    for variable in ("RANK_TABLE_FILE", "MS_ROLE", "MS_SCHED_HOST", "MS_WORKER_NUM", "RANK_ID"):
        os.environ.pop(variable, None)
    with (
        os.fdopen(int(sys.argv[1]), "rb") as calls,
        os.fdopen(int(sys.argv[2]), "wb") as said,
        suppress(BrokenPipeError),
    ):
        _serve(calls, said)
