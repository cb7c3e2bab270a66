"""Values that were divided by their standard deviation, by n in one run and by n − 1 in the other.

A small epsilon, beside the deviation or beside the variance under the root, makes the factor
another one in each group, and none of them √(n / (n − 1)). It is solved for: values divided by
their own deviation would have one of 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mindrlhf_msprobe.findings import Change

_MOST_EPSILON = 0.05  # of the deviation
_ROUNDING = 4e-7  # of a deviation of float32
_CENTRED = 1e-5  # of a deviation: what a mean of nothing may be
_FEWEST = 4  # values that tell
_MOST_ELEMENTS = 1 << 22


def standardised(a: np.ndarray, b: np.ndarray) -> Change | None:
    """Return that two arrays are the same values, standardised by unlike standard deviations.

    The change: `a` and `b` are the ddof of each run, `n` how many values a group has, and `epsilon`
    the smallest and the largest one, of the deviation of their group, or where it stands under the
    root (`root`) of the variance; empty where there is none.
    """
    if a.dtype.kind != "f" or a.itemsize < 4 or not _FEWEST <= a.size <= _MOST_ELEMENTS:
        return None
    for x, y in _groups(a.astype(np.float64), b.astype(np.float64)):
        n = x.shape[1]
        for ddof in (0, 1) if n > 1 and x.size >= _FEWEST else ():
            less, more = (x, y) if ddof == 0 else (y, x)
            for power in (1, 2):
                epsilons = _epsilons(less, more, power)
                if epsilons is None:
                    continue
                known: dict[str, Any] = {"a": ddof, "b": 1 - ddof, "n": n}
                known["epsilon"] = [*epsilons] if max(epsilons) > 2 * power * _ROUNDING else []
                return Change("ddof", known | ({"root": True} if power > 1 else {}))
    return None


def _groups(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield how values may have been standardised together: [groups, values of each]."""
    counted = (a != 0) & (b != 0)  # a mask leaves 0
    if not counted.any() or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return
    yield a[counted][None], b[counted][None]
    if a.ndim == 2:
        if counted.all() and _centred(a, b):
            yield a, b
            yield a.T, b.T
        # One value a sample, the same for each of its tokens.
        a, b = (np.abs(x).max(axis=1) * np.sign(x.sum(axis=1)) for x in (a, b))
    for n in range(2, a.size + 1) if a.ndim == 1 and _centred(a, b) else ():
        if a.size % n == 0:
            yield a.reshape(-1, n), b.reshape(-1, n)


def _centred(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether the mean of all values is 0, as it is where each group has a mean of 0."""
    return all(abs(x.mean()) <= 2 * _CENTRED for x in (a, b))


def _epsilons(less: np.ndarray, more: np.ndarray, power: int) -> tuple[float, float] | None:
    """Return the smallest and the largest epsilon over the groups, of their deviations.

    Args:
        less: of the run that divides by n.
        more: of the one that divides by n − 1.
        power: 2 where it stands beside the variance, of which it is then.
    """
    n = less.shape[1]
    if any((np.abs(x.mean(axis=1)) > _CENTRED).any() for x in (less, more)):
        return None
    deviations = [np.sqrt((x * x).sum(axis=1) / m) for x, m in ((less, n), (more, n - 1))]
    if any((d <= 1 / (1 + _MOST_EPSILON)).any() for d in deviations):
        return None
    of_less, of_more = (d**-power - 1.0 for d in deviations)
    of_more = of_more * math.sqrt(n / (n - 1)) ** power  # of the same deviation as the other one
    rounding = 2 * power * _ROUNDING
    if (np.abs(of_less - of_more) > rounding).any() or (of_less < -rounding).any():
        return None
    return float(max(of_less.min(), 0.0)), float(of_less.max())
