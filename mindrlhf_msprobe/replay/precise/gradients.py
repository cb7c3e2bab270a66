"""Gradients of what was computed on a tape, and of equal operands the shares that fit a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mindrlhf_msprobe.replay.precise.tape import Sharing, Tape
from mindrlhf_msprobe.replay.precise.values import NoGradientError, Value


@dataclass
class Gradients:
    """What a backward pass found.

    Attributes:
        of: the gradient of each value that was asked for; None where nothing flows.
        stopped_at: names of operators whose gradient is not known, where one was needed.
    """

    of: list[Value | None]
    stopped_at: list[str] = field(default_factory=list)


def backward(
    tape: Tape, outputs: Sequence[tuple[Value, Value]], wanted: Sequence[Value]
) -> Gradients:
    """Take gradients of outputs back to values.

    Args:
        tape: of the computation.
        outputs: outputs with the gradients that arrive at them.
        wanted: the values whose gradients are asked for.
    """
    order = _ordered([output for output, _ in outputs])
    kept = {id(value) for value in wanted}
    needed = {*kept}  # what leads to those
    for value in order:
        if any(id(parent) in needed for parent in value.parents):
            needed.add(id(value))
    sums: dict[int, Value] = {}  # what has arrived at values
    stopped_at: list[str] = []

    def give(value: Value, gradient: Value) -> None:
        if id(value) in needed:
            known = sums.get(id(value))
            sums[id(value)] = gradient if known is None else known + gradient

    with tape.without_gradients():
        for output, gradient in outputs:
            give(output, gradient)
        for value in reversed(order):
            take = sums.get if id(value) in kept else sums.pop
            arrived = take(id(value), None)
            if arrived is None or value.pull is None:
                continue
            try:
                pulled = value.pull(arrived, value, *value.parents)
            except NoGradientError as error:
                stopped_at.append(str(error))
                continue
            for parent, of_parent in zip(value.parents, pulled):
                if of_parent is None:
                    continue
                if tape.slopes:
                    tape.note_reach(of_parent.exact, arrived.exact)
                give(parent, of_parent)
    return Gradients([sums.get(id(value)) for value in wanted], stopped_at)


def _ordered(outputs: Sequence[Value]) -> list[Value]:
    """Return all values behind outputs, operands before what was computed of them."""
    order: list[Value] = []
    seen: set[int] = set()
    waiting: list[tuple[Value, bool]] = [(value, False) for value in outputs]
    while waiting:
        value, done = waiting.pop()
        if done:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.append((value, True))
            waiting.extend((parent, False) for parent in value.parents)
    return order


_ROUNDS = 2
_STEPS = 20


def fitted(
    tape: Tape, compute: Callable[[], Gradients], actual: Sequence[np.ndarray | None]
) -> tuple[Gradients, Sharing]:
    """Return gradients with the shares of equal operands that fit best to those of a kernel.

    Any mean of the legal ways may be: what was computed is fitted by such a choice for each
    operator, and judged by the gradients of that choice. Two gradients that do not sum up to the
    one that arrived fit none.

    Args:
        compute: computes gradients on the tape.
        actual: the kernel's, one for each of those; None: not known.
    """
    tape.sharing = sharing = Sharing()
    try:
        found = compute()
        if not sharing.met:
            return found, sharing
        wanted = _flat([one for one in actual if one is not None])
        for _ in range(_ROUNDS):
            for operator, count in sharing.met.items():
                ends = []
                for way in range(count):
                    sharing.weights[operator] = [float(i == way) for i in range(count)]
                    pairs = zip(compute().of, actual)
                    known = [(value, one) for value, one in pairs if one is not None]
                    ends.append(
                        _flat([np.zeros(a.shape) if v is None else v.exact for v, a in known])
                    )
                sharing.weights[operator] = _closest(ends, wanted)
        return compute(), sharing
    finally:
        tape.sharing = None


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    flat = [np.asarray(array, np.float64).ravel() for array in arrays]
    return np.nan_to_num(np.concatenate(flat)) if flat else np.zeros(0)


def _closest(ends: Sequence[np.ndarray], wanted: np.ndarray) -> list[float]:
    """Return weights, none negative, of sum 1, of the mean of ends next to what is wanted."""
    weights = np.full(len(ends), 1 / len(ends))
    for _ in range(_STEPS):
        for i in range(len(ends)):
            for j in range(i):
                along = ends[i] - ends[j]
                length = float(along @ along)
                if not length:
                    continue
                mean = sum(weight * end for weight, end in zip(weights, ends))
                step = float((wanted - mean) @ along) / length
                step = float(np.clip(step, -weights[i], weights[j]))
                weights[i], weights[j] = weights[i] + step, weights[j] - step
    return [float(weight) for weight in weights]
