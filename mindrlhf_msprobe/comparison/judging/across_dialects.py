"""Statistics that two tools made of what may be the same tensor: exact ones against rounded ones.

The dialect of the rounded ones says in which precisions they may have been computed.
"""

from __future__ import annotations

import math
from typing import Any

from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_finite, is_nan
from mindrlhf_msprobe.storage.foreign.dialect import DIALECTS, Precision
from mindrlhf_msprobe.storage.leaves import Leaf

_SUBNORMAL = 2.0**-126  # float32 below it may be taken for zero


def unlike_dialects(a: Leaf, b: Leaf) -> bool:
    """Return whether two tools made the statistics of two tensors of one dtype."""
    return a.dialect != b.dialect and a.dtype == b.dtype


def may_be_equal(a: Leaf, b: Leaf) -> bool:
    """Return whether the statistics differ by no more than the two tools do on equal tensors.

    Beside NaN or infinity they would have to be equal: nothing else is left to go by.
    """
    exact, found = (b, a) if DIALECTS[a.dialect].precisions else (a, b)
    if exact.nan_count or exact.inf_count:
        return False
    return any(
        _computed_in(precision, found)
        and _extremes_agree(exact, found, precision)
        and _sums_agree(exact, found, precision)
        for precision in DIALECTS[found.dialect].precisions
    )


def _computed_in(precision: Precision, found: Leaf) -> bool:
    """Return whether all statistics are numbers of that dtype; those of a wider one never are."""
    if precision.rounding is None:
        return True
    known = [v for v in (found.max, found.min, found.mean, found.norm) if is_finite(v)]
    return bool(known) and all(precision.rounding(value) == value for value in known)


def _extremes_agree(exact: Leaf, found: Leaf, precision: Precision) -> bool:
    """Return whether max and min are equal; those of floats, rounded to the dtype."""
    for x, y in ((exact.max, found.max), (exact.min, found.min)):
        rounds = precision.rounding is not None and not exact.is_discrete and is_finite(x)
        rounded = precision.rounding(x) if rounds and precision.rounding else x
        if y == rounded or (is_nan(y) and is_nan(rounded)):
            continue
        if not (is_finite(x) and is_finite(y) and abs(y - x) <= _SUBNORMAL):
            return False
    return True


def _sums_agree(exact: Leaf, found: Leaf, precision: Precision) -> bool:
    """Return whether mean and norm may be of equal tensors: off by a sum's error or too large.

    Σ|x| is at most √n times the norm.
    """
    names = ("max", "min") if precision.rounding is not None else ("max", "min", "norm")
    sizes = [abs(v) for x in (exact, found) for n in names if is_finite(v := getattr(x, n))]
    scale = max(sizes, default=0.0)
    norm = exact.norm if is_finite(exact.norm) else 0.0
    total = norm * math.prod(math.sqrt(size) for size in exact.shape or ())
    return all(
        _close(x, y, scale, precision.error, most * (1 + precision.error) >= limit)
        for x, y, most, limit in (
            (exact.mean, found.mean, total, precision.largest),
            (exact.norm, found.norm, norm, math.sqrt(precision.largest)),
        )
    )


def _close(exact: Any, found: Any, scale: float, error: float, overflows: bool) -> bool:
    """Return whether a mean or norm agrees with the exact one.

    Args:
        scale: how large what was summed is.
        error: of the sum, relative to that.
        overflows: the sum may be larger than its dtype can hold, though no element is infinite.
    """
    if exact == found or (overflows and isinstance(found, float) and math.isinf(found)):
        return True
    if not (is_finite(exact) and is_finite(found)):
        return False
    return bool(abs(exact - found) <= error * (scale + max(abs(exact), abs(found))) + _SUBNORMAL)
