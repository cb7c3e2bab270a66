"""How much the values of two arrays tell for an explanation of their differences.

A mask that is cut by one column is also a mask that is shifted by one, and two rows of it that are
swapped may as well have changed. So each value that an explanation predicts counts by its bits: how
unlikely it is that another change put the same value there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

#: Bits without which an explanation is not told from others: one chance in a thousand.
ENOUGH = 10.0
_MOST_COUNTED = 1 << 20  # elements among which others are counted
_MOST_PAIRS = 1 << 16  # elements that differ and are looked at


def tells_one_number(predicted: Iterable[np.ndarray]) -> bool:
    """Return whether values tell for one factor or offset, which one of them itself gives.

    Args:
        predicted: the values of B that differ, in parts.
    """
    bits = _bits(_distinct(predicted))
    return bool(bits.size) and bits.sum() - bits.max() >= ENOUGH


def are_several(values: Iterable[np.ndarray]) -> bool:
    """Return whether values, in parts, are not all one."""
    return _distinct(values).size > 1


def tells_moved(pairs: tuple[np.ndarray, np.ndarray], whole: np.ndarray, choices: float) -> bool:
    """Return whether elements that differ tell that they come from other places.

    Equal pairs count once: they may have one reason. An element that there is only once is known by
    all its bits, of others it counts how few there are.

    Args:
        pairs: what stands in the same places of A and B, one-dimensional.
        whole: all elements of A, of which some are counted.
        choices: bits of the choice among all explanations of the kind; infinite: any element may
            come from any place.
    """
    x, y = (side[np.lexsort(pairs)] for side in pairs)
    predicted = y[np.append(True, (x[1:] != x[:-1]) | (y[1:] != y[:-1]))[: len(y)]]
    some = whole.reshape(-1)[:: -(-whole.size // _MOST_COUNTED)]
    values, counts = np.unique(some, return_counts=True)
    at = np.searchsorted(values, predicted).clip(max=len(values) - 1)
    count = np.where(values[at] == predicted, counts[at], 1)
    bits = np.log2(some.size / count)
    bits = np.where(count == 1, np.maximum(bits, _bits(predicted)), bits)
    if math.isinf(choices):
        choices = bits_of_order(len(predicted))
    return float(bits.sum()) - choices >= ENOUGH


def bits_of_order(count: int) -> float:
    """Return the bits of an order of so many places, each other than before."""
    return max(0.0, (math.lgamma(count + 1) - 1) / math.log(2))


def differing(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what differs in two arrays of one shape, as many pairs as are looked at."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    count = 0
    rows = max(1, _MOST_PAIRS * len(a) // max(1, a.size))
    for start in range(0, len(a), rows):
        x, y = a[start : start + rows], b[start : start + rows]
        unlike = x != y
        found.append((x[unlike], y[unlike]))
        count += len(found[-1][0])
        if count >= _MOST_PAIRS:
            break
    x, y = (np.concatenate(each)[:_MOST_PAIRS] for each in zip(*found))
    return x, y


def _distinct(parts: Iterable[np.ndarray]) -> np.ndarray:
    found = [np.unique(part[:_MOST_PAIRS]) for part in parts]
    return np.unique(np.concatenate(found)) if found else np.zeros(0)


def _bits(values: np.ndarray) -> np.ndarray:
    """Return how many digits each value has in base two; of a whole number all, float64.

    An infinity has none.
    """
    mantissa, exponent = np.frexp(np.abs(values.astype(np.float64)))
    if values.dtype.kind != "f":
        return exponent.astype(np.float64)
    whole = (np.where(np.isfinite(mantissa), mantissa, 0) * 2.0**53).astype(np.int64)
    lowest = np.log2(np.maximum(whole & -whole, 1))
    return np.where(whole > 0, 53 - lowest, 0)
