"""Which share of a gradient equal operands were given: any mean of the legal ways may be.

The gradient of `minimum` at equal operands is no single one: a kernel may give it to either, or
half to each, and does the same everywhere. What was computed is fitted by such a choice for each
operator, and judged by the gradients of that choice: two gradients that do not sum up to the one
that arrived fit none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mindrlhf_msprobe.replay.precise.values import Gradients, Sharing, Tape

_ROUNDS = 2
_STEPS = 20


def fitted(
    tape: Tape, compute: Callable[[], Gradients], actual: Sequence[np.ndarray | None]
) -> tuple[Gradients, Sharing]:
    """Return gradients with the shares of equal operands that fit best to those of a kernel.

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
                    ends.append(_of(compute(), actual))
                sharing.weights[operator] = _closest(ends, wanted)
        return compute(), sharing
    finally:
        tape.sharing = None


def _of(found: Gradients, actual: Sequence[np.ndarray | None]) -> np.ndarray:
    """Return the gradients whose actual ones are known, one behind the other."""
    pairs = [(value, one) for value, one in zip(found.of, actual) if one is not None]
    return _flat([np.zeros(one.shape) if v is None else v.exact for v, one in pairs])


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
