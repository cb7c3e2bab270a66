"""Two blocks of floats → what they add to the sums.

float32 is computed in float32 where that is provably good enough, and again in float64 where it is
not: a rounded difference or quotient decides only outside its own error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.comparison.judging.metrics import accelerator
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance, scratch
from mindrlhf_msprobe.comparison.judging.metrics.sums import (
    FLOAT32,
    FLOAT32_MAX,
    FLOAT64,
    SHARES,
    WIDEST,
    Products,
    Sums,
    all_within,
    count_below,
    count_less,
    count_non_finite,
    dots,
    in_range,
    scalar,
    squares_in_range,
)

_WIDER = {FLOAT32: FLOAT64, FLOAT64: WIDEST}
if WIDEST == FLOAT64:
    del _WIDER[FLOAT64]
#: four times the error of |a−b| / max(|a|, |b|) in float32: two roundings of 2⁻²⁴ each
_FLOAT32_MARGIN = 2.0**-21
#: a share, and float32 numbers surely below and above its bound; arrays, as ufuncs take them faster
_FLOAT32_BOUNDS: list[tuple[int, np.ndarray, np.ndarray]] = [
    (
        share,
        np.array([1 / share * (1 - _FLOAT32_MARGIN)], np.float32),
        np.array([1 / share * (1 + _FLOAT32_MARGIN)], np.float32),
    )
    for share in SHARES
]


def add_floats(sums: Sums, start: int, a: np.ndarray, b: np.ndarray) -> None:
    """Add two contiguous 1-d blocks of float32, float64 or longdouble, no longer than BLOCK."""
    size = a.size
    equal = np.equal(a, b, out=scratch.mask[:size])
    count = int(np.count_nonzero(equal))
    if count == size and _add_same(sums, start, equal, a):
        return
    distance, larger, other = (buffer[:size] for buffer in scratch.of(a.dtype)[2:])
    products = _products(a, b, np.subtract(a, b, out=distance))
    np.maximum(np.abs(a, out=larger), np.abs(b, out=other), out=larger)
    if (products is None or a.dtype not in _WIDER) and not np.isfinite(_largest(larger)):
        _add_non_finite(sums, start, a, b, equal)
        return
    if products is None:
        wider = _WIDER[a.dtype]
        add_floats(sums, start, a.astype(wider), b.astype(wider))
        return
    sums.products.add(products)
    sums.add_equal(start, equal, count)
    sums.compared += size
    _add_errors(sums, a, b, np.abs(distance, out=distance), larger, other)


def add_compiled(sums: Sums, start: int, a: np.ndarray, b: np.ndarray) -> bool:
    """Add two contiguous 1-d float32 arrays by the compiled library; False where it cannot.

    That is where there is no library, an element is not finite, a distance is too close to the
    tolerance for float32, or its range does not do.
    """
    judged = not sums.tolerance.bitwise and sums.within_tolerance
    found = accelerator.float32_sums(a, b, sums.surely_within if judged else None)
    if found is None or found.non_finite or found.outside:
        return False
    if not (in_range(found.aa, a) and in_range(found.bb, b)):
        return False
    low, high = squares_in_range(a.dtype)
    if found.first >= 0 and not low <= found.dd <= high:
        return False
    sums.products.add(Products(found.aa, found.bb, found.ab, found.dd, found.ad))
    sums.equal += found.equal
    sums.compared += a.size
    for i in range(3):
        sums.within[i] += found.below[i]
    if found.first >= 0:
        if sums.first is None:
            sums.first = start + found.first
        if sums.tolerance.bitwise:
            sums.within_tolerance = False
        _add_largest(sums, a, b, found.abs_at, found.rel_at)
    return True


def _add_largest(sums: Sums, a: np.ndarray, b: np.ndarray, far: int, odd: int) -> None:
    """Add the largest errors by their places, computed in float64."""
    sums.max_abs = max(sums.max_abs, abs(float(a[far]) - float(b[far])))
    x, y = float(a[odd]), float(b[odd])
    if x != y:
        sums.max_rel = max(sums.max_rel, abs(x - y) / max(abs(x), abs(y)))


def _largest(values: np.ndarray) -> Any:
    """Return the largest element, NaN if there is one."""
    return scalar(np.maximum.reduce(values))


def _add_same(sums: Sums, start: int, equal: np.ndarray, a: np.ndarray) -> bool:
    """Add a block that is the same on both sides; tell whether its squares could be summed.

    None of its elements is NaN, as NaN is not equal to itself.
    """
    (square,) = dots((a, a))
    if a.dtype in _WIDER and not in_range(square, a):
        return False
    if a.dtype not in _WIDER and not np.isfinite(square):
        return False
    sums.products.add(Products(aa=square, bb=square, ab=square))
    sums.add_equal(start, equal, a.size)
    sums.compared += a.size
    for i in range(3):
        sums.within[i] += a.size
    return True


def _products(a: np.ndarray, b: np.ndarray, distance: np.ndarray) -> Products | None:
    """Return the sums of products, None if the dtype's range does not do or not all are finite.

    Each is right relative to the norms of its factors: what is small is summed, and what can be
    had from it without cancellation is derived; of float32, all are summed, as the library does.
    """
    if a.dtype == FLOAT32:
        found = Products(*dots((a, a), (b, b), (a, b), (distance, distance), (a, distance)))
        sides = (found.aa, a), (found.bb, b), (found.dd, distance)
        return found if all(in_range(square, x) for square, x in sides) else None
    aa, dd, ad = dots((a, a), (distance, distance), (a, distance))
    if not (in_range(aa, a) and in_range(dd, distance)):
        return None
    if 0 < dd <= aa / 4:
        return Products(aa=aa, bb=aa - 2 * ad + dd, ab=aa - ad, dd=dd, ad=ad)
    bb, ab = dots((b, b), (a, b))
    return Products(aa=aa, bb=bb, ab=ab, dd=dd, ad=aa - ab) if in_range(bb, b) else None


def _add_errors(
    sums: Sums,
    a: np.ndarray,
    b: np.ndarray,
    distance: np.ndarray,
    larger: np.ndarray,
    relative: np.ndarray,
) -> None:
    """Add the errors of finite blocks: distance is |a−b|, larger max(|a|, |b|), relative free."""
    _relative_errors(a, b, distance, larger, out=relative)
    if a.dtype == FLOAT32:
        _add_float32_errors(sums, a, b, distance, larger, relative)
        return
    top = _largest(relative)
    sums.max_abs = max(sums.max_abs, _largest(distance))
    sums.max_rel = max(sums.max_rel, top)
    for i, share in enumerate(SHARES):
        below = float(top) < 1 / share * (1 - 1e-9)
        sums.within[i] += a.size if below else count_below(relative, distance, larger, share)
    if sums.within_tolerance and not sums.tolerance.bitwise:
        sums.within_tolerance = all_within(sums.tolerance, distance, larger, a, b)


def _relative_errors(
    a: np.ndarray, b: np.ndarray, distance: np.ndarray, larger: np.ndarray, out: np.ndarray
) -> None:
    """Write |a−b| / max(|a|, |b|), 0 where both are 0, into `out`."""
    np.divide(distance, larger, out=out)
    if np.isnan(_largest(out)):  # 0 / 0: 0 over the smallest number instead
        np.maximum(larger, np.finfo(a.dtype).smallest_subnormal, out=larger)
        np.divide(distance, larger, out=out)
    if a.dtype == WIDEST and np.isinf(distance.max()):  # a−b does not fit the widest float
        over = np.isinf(distance)
        out[over] = np.abs(a[over] / larger[over] - b[over] / larger[over])


def _add_float32_errors(
    sums: Sums,
    a: np.ndarray,
    b: np.ndarray,
    distance: np.ndarray,
    larger: np.ndarray,
    relative: np.ndarray,
) -> None:
    """Add float32 errors; elements that float32 cannot decide are computed in float64.

    The largest errors are those of the elements float32 finds them in, so they are right to its
    rounding, 1e-7.
    """
    odd = int(relative.argmax())
    top = float(relative[odd])
    _add_largest(sums, a, b, int(distance.argmax()), odd)
    for i, (share, low, high) in enumerate(_FLOAT32_BOUNDS):
        if top < low[0]:
            sums.within[i] += a.size
            continue
        sure = count_less(relative, low)
        sums.within[i] += sure
        if sure < count_less(relative, high):
            unsure = (relative >= low) & (relative < high)
            wide_a, wide_b = a[unsure].astype(np.float64), b[unsure].astype(np.float64)
            apart = np.abs(wide_a - wide_b)
            most = np.maximum(np.abs(wide_a), np.abs(wide_b))
            sums.within[i] += count_below(apart / most, apart, most, share)
    if sums.within_tolerance and not sums.tolerance.bitwise:
        close = top * (1 + _FLOAT32_MARGIN) <= sums.tolerance.rtol
        sums.within_tolerance = close or _all_within_float32(sums.tolerance, a, b, distance, larger)


def _all_within_float32(
    tolerance: Tolerance, a: np.ndarray, b: np.ndarray, distance: np.ndarray, larger: np.ndarray
) -> bool:
    """Tell whether all float32 elements are within; `larger` is overwritten.

    What exceeds a bound somewhat below the allowed one is computed in float64.
    """
    np.multiply(larger, np.float32(min(tolerance.rtol, FLOAT32_MAX)), out=larger)
    np.add(larger, np.float32(min(tolerance.atol, FLOAT32_MAX)), out=larger)
    np.multiply(larger, np.float32(1 - 1e-6), out=larger)
    np.maximum(np.subtract(larger, np.float32(1e-37), out=larger), 0, out=larger)
    outside = np.greater(distance, larger, out=scratch.mask[: a.size])
    if not outside.any():
        return True
    wide_a, wide_b = a[outside].astype(np.float64), b[outside].astype(np.float64)
    larger = np.maximum(np.abs(wide_a), np.abs(wide_b))
    return all_within(tolerance, np.abs(wide_a - wide_b), larger, wide_a, wide_b)


def _add_non_finite(
    sums: Sums, start: int, a: np.ndarray, b: np.ndarray, equal: np.ndarray
) -> None:
    """Add blocks that hold NaN or infinity; the finite elements are added without the others.

    Elements that are not finite on both sides become 0 on both, and what those zeros add to the
    counts is taken off again.
    """
    equal = equal | (np.isnan(a) & np.isnan(b))
    both = count_non_finite(sums, a, b, equal)
    same = int(np.count_nonzero(equal & ~both))  # NaN beside NaN and inf beside inf are no error
    others = a.size - int(np.count_nonzero(both))
    if same < others:
        sums.within_tolerance = False
    if sums.first is None and not equal.all():
        sums.first = start + int(equal.argmin())
    sums.compared -= others
    sums.equal += same - others
    for i in range(3):
        sums.within[i] += same - others
    zero = a.dtype.type(0)
    add_floats(sums, start, np.where(both, a, zero), np.where(both, b, zero))
