"""Statistics of this package against msprobe's of what may be the same tensor.

Ours are exact: summed in float64, with NaN if one element is NaN. msprobe's are MindSpore's
operators on the tensor: they sum float32 in float32, float16 in float16, and in a network under
`to_float` they round whatever the cell takes or holds to that dtype first; on CPU its max and min
pass over NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage.leaves import Leaf

_SUBNORMAL = 2.0**-126  # float32 below it may be taken for zero
_Rounding = Callable[[float], float]


@dataclass(frozen=True)
class _Precision:
    """A dtype in which statistics may have been computed.

    Attributes:
        rounding: takes a number to the nearest one of the dtype; None where that is all there is.
        error: what a sum may be off, relative to what is summed.
        largest: the largest finite number of the dtype, beyond which a sum overflows.
    """

    rounding: _Rounding | None
    error: float
    largest: float


def _float16(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(value))


def _bfloat16(value: float) -> float:
    """Round to nearest, ties to even: the upper half of a float32's bits."""
    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(np.uint32(upper).view(np.float32))


_FLOAT32 = _Precision(None, 1e-5, float(np.finfo(np.float32).max))
_LOW = (
    _Precision(_float16, 2.0**-10, float(np.finfo(np.float16).max)),
    _Precision(_bfloat16, 2.0**-7, _bfloat16(3.38e38)),
)


def of_two_tools(a: Leaf, b: Leaf) -> bool:
    """Tell whether this package made the one's statistics and msprobe the other's."""
    return (a.nan_count is None) != (b.nan_count is None) and a.dtype == b.dtype


def may_be_equal(a: Leaf, b: Leaf) -> bool:
    """Tell whether the statistics differ by no more than the two tools do on equal tensors.

    Beside NaN or infinity they would have to be equal: nothing else is left to go by.
    """
    ours, theirs = (a, b) if b.nan_count is None else (b, a)
    if ours.nan_count or ours.inf_count:
        return False
    if _agree(ours, theirs, _FLOAT32):
        return True
    return any(_computed_in(p, theirs) and _agree(ours, theirs, p) for p in _LOW)


def _computed_in(precision: _Precision, theirs: Leaf) -> bool:
    """Tell whether all statistics are numbers of that dtype, as those of a wider one never are."""
    assert precision.rounding is not None
    values = [theirs.max, theirs.min, theirs.mean, theirs.norm]
    known = [value for value in values if _is_finite(value)]
    return bool(known) and all(precision.rounding(value) == value for value in known)


def _agree(ours: Leaf, theirs: Leaf, precision: _Precision) -> bool:
    whole = (ours.dtype or "").lower().startswith(("bool", "int", "uint"))
    rounding = None if whole else precision.rounding
    for exact, found in ((ours.max, theirs.max), (ours.min, theirs.min)):
        rounded = rounding(exact) if rounding is not None and _is_finite(exact) else exact
        both = _is_finite(found) and _is_finite(exact)
        same = found == rounded or (_is_nan(found) and _is_nan(rounded))
        if not (same or (both and abs(found - exact) <= _SUBNORMAL)):
            return False
    sizes = [abs(v) for leaf in (ours, theirs) for v in (leaf.max, leaf.min) if _is_finite(v)]
    if precision.rounding is None:
        sizes += [abs(leaf.norm) for leaf in (ours, theirs) if _is_finite(leaf.norm)]
    largest = max(sizes, default=0.0)
    for exact, found, overflows in (
        (ours.mean, theirs.mean, _sum_overflows),
        (ours.norm, theirs.norm, _squares_overflow),
    ):
        if exact == found:
            continue
        if isinstance(found, float) and math.isinf(found) and overflows(ours, precision):
            continue
        if not (_is_finite(exact) and _is_finite(found)):
            return False
        allowed = precision.error * (largest + max(abs(exact), abs(found))) + _SUBNORMAL
        if abs(exact - found) > allowed:
            return False
    return True


def _squares_overflow(ours: Leaf, precision: _Precision) -> bool:
    """Tell whether the sum of the squares may overflow, though no element is infinite."""
    return _is_finite(ours.norm) and ours.norm * (1 + precision.error) >= math.sqrt(
        precision.largest
    )


def _sum_overflows(ours: Leaf, precision: _Precision) -> bool:
    """Tell whether a sum of some elements may overflow: Σ|x| is at most √n times the norm."""
    if not _is_finite(ours.norm):
        return False
    total = ours.norm * math.sqrt(math.prod(ours.shape or ()))
    return bool(total * (1 + precision.error) >= precision.largest)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # a Python integer beyond every float
        return False


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
