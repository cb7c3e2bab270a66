"""Two blocks that no float holds, complex ones and 64-bit integers → what they add to the sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.comparison.judging.metrics.sums import (
    SHARES,
    WIDEST,
    Products,
    Sums,
    all_within,
    count_non_finite,
    dots,
)


def add_plainly(sums: Sums, start: int, a: np.ndarray, b: np.ndarray) -> None:
    """Add blocks that no float holds: complex ones, and 64-bit integers beyond 2⁵²."""
    equal = _equal_parts(a, b) if not sums.exact else (a == b).astype(bool, copy=False)
    sums.add_equal(start, equal, int(np.count_nonzero(equal)))
    if not sums.exact:
        both = count_non_finite(sums, a, b, equal)
        if not (equal | both).all():
            sums.within_tolerance = False
        for i in range(3):
            sums.within[i] += int(np.count_nonzero(equal & ~both))
        a, b = a[both], b[both]
    if a.size:
        _add_plain_errors(sums, a, b)


def _equal_parts(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return which complex elements are equal in both parts, NaN beside NaN included."""
    equal = np.ones(a.size, np.bool_)
    for x, y in ((a.real, b.real), (a.imag, b.imag)):
        if is_exact(x) != is_exact(y):  # an integer beside a float
            x, y = x.astype(WIDEST), y.astype(WIDEST)
        equal &= (x == y) | (np.isnan(x) & np.isnan(y))
    return equal


def _add_plain_errors(sums: Sums, a: np.ndarray, b: np.ndarray) -> None:
    """Add the errors of finite elements, computed in float64, complex128 or clongdouble."""
    wide_a, wide_b = _wide(a, b)
    size_a, size_b = np.abs(wide_a), np.abs(wide_b)
    larger = np.maximum(size_a, size_b)
    if sums.exact:
        exact = _absolute_difference(a, b)
        distance = exact.astype(np.float64)
        sums.max_abs = max(sums.max_abs, int(exact.max()))
    else:
        distance = np.abs(wide_a - wide_b)
        sums.max_abs = max(sums.max_abs, distance.max())
    relative = np.divide(distance, larger, out=np.zeros_like(larger), where=larger > 0)
    if (over := np.isinf(distance)).any():
        relative[over] = np.abs(wide_a[over] / larger[over] - wide_b[over] / larger[over])
    sums.compared += a.size
    sums.max_rel = max(sums.max_rel, relative.max())
    for i, share in enumerate(SHARES):
        if sums.exact:
            below = exact <= (np.maximum(_size(a), _size(b)) - 1) // share
            below |= exact == 0
        else:
            below = relative.astype(np.float64) < 1 / share
        sums.within[i] += int(np.count_nonzero(below))
    if sums.within_tolerance and not sums.tolerance.bitwise:
        sums.within_tolerance = all_within(sums.tolerance, distance, larger, a, b)
    crossed = (wide_a.conj() * wide_b).real
    aa, bb, dd = dots((size_a, size_a), (size_b, size_b), (distance, distance))
    (ab,) = dots((crossed, np.ones_like(crossed)))
    less = sums.exact and (a < b).astype(bool)
    apart = np.where(less, -distance, distance) if sums.exact else wide_a - wide_b
    projected = (wide_a.conj() * apart).real
    (ad,) = dots((projected, np.ones_like(projected)))
    sums.products.add(Products(aa=aa, bb=bb, ab=ab, dd=dd, ad=ad))


def _size(integers: np.ndarray) -> np.ndarray:
    """Return |x| of integers, exact, and at least 1, as integers that can hold it."""
    if integers.dtype == object:
        return np.maximum(np.abs(integers), 1)
    native = integers.astype(integers.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind != "i":
        return np.maximum(native.astype(np.uint64), np.uint64(1))
    bits = native.astype(np.int64).view(np.uint64)
    return np.maximum(np.where(native < 0, np.uint64(0) - bits, bits), np.uint64(1))


def is_exact(array: np.ndarray) -> bool:
    """Tell whether the elements are integers or bool."""
    return array.dtype.kind in "biu"


def _wide(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return finite elements as float64, or as complex numbers whose squares can be summed."""
    if all(x.dtype.kind in "iuO" for x in (a, b)):
        return a.astype(np.float64), b.astype(np.float64)
    wide: Any = np.promote_types(np.result_type(a.dtype, b.dtype), np.complex128)
    if any(x.dtype.kind in "iu" and x.dtype.itemsize == 8 for x in (a, b)):
        wide = np.clongdouble
    elif wide == np.complex128:
        sizes = np.abs(a).max(), np.abs(b).max(), np.abs(a - b).max()
        if not all(1e-140 < size < 1e140 for size in sizes if size):
            wide = np.clongdouble
    return a.astype(wide), b.astype(wide)


def common_integers(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring integers together without loss: in their dtype if they share it."""
    if a.dtype == b.dtype:
        return a, b
    has_uint64 = any(x.dtype.kind == "u" and x.dtype.itemsize == 8 for x in (a, b))
    wide = np.dtype(object) if has_uint64 else np.dtype(np.int64)
    return a.astype(wide), b.astype(wide)


def _absolute_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a−b| of 64-bit integers of one dtype, exact, as integers that can hold it."""
    if a.dtype == object:
        return np.abs(a - b)
    # The distance of two 64-bit integers always fits 64 bits without a sign.
    native = a.dtype.newbyteorder("=")
    larger = np.maximum(a, b).astype(native, copy=False)
    smaller = np.minimum(a, b).astype(native, copy=False)
    difference: np.ndarray = larger.view(np.uint64) - smaller.view(np.uint64)
    return difference
