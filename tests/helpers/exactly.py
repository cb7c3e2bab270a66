"""What a comparison must find, computed one element at a time in fractions: no rounding at all.

It shares nothing with the package but the words: slow, plain, and right by inspection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.findings import Status


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def is_finite(value: Any) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def same(x: Any, y: Any) -> bool:
    """Two values are equal, two NaNs as well."""
    return (is_nan(x) and is_nan(y)) or x == y


def within(x: Any, y: Any, tolerance: Tolerance) -> bool:
    """|x−y| ≤ atol + rtol · max(|x|, |y|); nothing that is not finite is."""
    if not (is_finite(x) and is_finite(y)):
        return False
    p, q = Fraction(x), Fraction(y)
    allowed = Fraction(tolerance.atol) + Fraction(tolerance.rtol) * max(abs(p), abs(q))
    return abs(p - q) <= allowed


def elements(array: np.ndarray) -> list[Any]:
    """The elements in row-major order, as Python's int or float, which hold them exactly."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "f":
        return flat.astype(np.float64).tolist()
    return [int(v) for v in flat.tolist()]


def relative(x: Any, y: Any) -> Fraction:
    p, q = Fraction(x), Fraction(y)
    larger = max(abs(p), abs(q))
    return abs(p - q) / larger if larger else Fraction(0)


@dataclass
class Truth:
    """What is so of two arrays of one shape."""

    size: int
    equal: int
    first: int | None
    max_abs: Fraction | None
    max_rel: Fraction | None
    shares: tuple[int, int, int]
    squares: tuple[Fraction, Fraction, Fraction, Fraction]  # a·a, b·b, a·b, (a−b)·(a−b)
    nan: tuple[int, int]
    inf: tuple[int, int]
    one_sided: bool
    unlike: bool
    within: bool


def truth(a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> Truth:
    pairs = list(zip(elements(a), elements(b)))
    equal = [same(x, y) for x, y in pairs]
    finite = [(Fraction(x), Fraction(y)) for x, y in pairs if is_finite(x) and is_finite(y)]
    other = [e for e, (x, y) in zip(equal, pairs) if not (is_finite(x) and is_finite(y))]
    errors = [relative(x, y) for x, y in finite]
    bounds = (Fraction(1, 1000), Fraction(5, 1000), Fraction(1, 100))
    return Truth(
        size=len(pairs),
        equal=sum(equal),
        first=None if all(equal) else equal.index(False),
        max_abs=max((abs(x - y) for x, y in finite), default=None),
        max_rel=max(errors, default=None),
        shares=tuple(sum(e < bound for e in errors) + sum(other) for bound in bounds),
        squares=(
            sum((x * x for x, _ in finite), Fraction(0)),
            sum((y * y for _, y in finite), Fraction(0)),
            sum((x * y for x, y in finite), Fraction(0)),
            sum(((x - y) ** 2 for x, y in finite), Fraction(0)),
        ),
        nan=tuple(sum(map(is_nan, side)) for side in zip(*pairs)) or (0, 0),
        inf=tuple(sum(isinstance(v, float) and math.isinf(v) for v in side) for side in zip(*pairs))
        or (0, 0),
        one_sided=any(is_finite(x) != is_finite(y) for x, y in pairs),
        unlike=any(not (is_finite(x) or is_finite(y) or e) for e, (x, y) in zip(equal, pairs)),
        within=all(
            e or (not tolerance.bitwise and within(x, y, tolerance))
            for e, (x, y) in zip(equal, pairs)
        ),
    )


def root(square: Fraction) -> Fraction:
    """The square root, to 40 digits."""
    if not square:
        return Fraction(0)
    scale = 10 ** max(0, 40 - (len(str(square.numerator)) - len(str(square.denominator))) // 2)
    return Fraction(math.isqrt(square.numerator * scale**2 // square.denominator), scale)


def status_of_arrays(a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> Status:
    """The status of two records with their elements."""
    if a.dtype.newbyteorder("=") != b.dtype.newbyteorder("=") and tolerance.bitwise:
        return Status.DTYPE_MISMATCH
    if a.shape != b.shape:
        return Status.SHAPE_MISMATCH
    found = truth(a, b, tolerance)
    if found.equal == found.size:
        return Status.IDENTICAL
    if found.one_sided:
        return Status.NON_FINITE
    return Status.WITHIN_TOLERANCE if found.within else Status.DIFFERENT


def status_of_numbers(x: Any, y: Any, tolerance: Tolerance) -> Status:
    """The status of two Python numbers."""
    if type(x) is not type(y) and tolerance.bitwise:
        return Status.DTYPE_MISMATCH
    if same(x, y):
        return Status.IDENTICAL
    if is_finite(x) != is_finite(y):
        return Status.NON_FINITE
    close = not tolerance.bitwise and within(x, y, tolerance)
    return Status.WITHIN_TOLERANCE if close else Status.DIFFERENT


@dataclass
class Statistics:
    """What was recorded of a tensor without its elements."""

    values: tuple[Any, Any, Any, Any]  # max, min, mean, norm; None where there is none
    nan: int
    inf: int
    whole_numbers: bool


def status_of_statistics(
    a: Statistics, b: Statistics, size: int, same_bytes: bool | None, tolerance: Tolerance
) -> Status:
    """The status of two tensors of one dtype and shape, of which only statistics are known.

    Args:
        same_bytes: what the fingerprints say; None without any of one kind.
    """
    if same_bytes:
        return Status.IDENTICAL
    if size == 0:
        return Status.IDENTICAL
    if a.nan + a.inf != b.nan + b.inf:
        return Status.NON_FINITE
    pairs = [(x, y) for x, y in zip(a.values, b.values) if x is not None or y is not None]
    whole = all(x is not None and y is not None for x, y in pairs)
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    equal = whole and all(same(x, y) for x, y in known) and (a.nan, a.inf) == (b.nan, b.inf)
    finite = all(is_finite(x) and is_finite(y) for x, y in known) and not a.nan + a.inf
    close = finite and whole and known and not tolerance.bitwise
    close = close and all(within(x, y, tolerance) for x, y in known)
    if same_bytes is False:
        if close and a.whole_numbers:  # which are 1 apart if they are not the same
            largest = max(abs(v) for x, y in known[:2] for v in (x, y))
            close = Fraction(tolerance.atol) + Fraction(tolerance.rtol) * largest >= 1
        return Status.WITHIN_TOLERANCE if close else Status.DIFFERENT
    if not known:
        return Status.UNREADABLE
    if finite:
        return Status.WITHIN_TOLERANCE if equal or close else Status.DIFFERENT
    if a.nan == b.nan == size:
        return Status.WITHIN_TOLERANCE
    if a.nan or b.nan:
        return Status.UNREADABLE if (a.nan, a.inf) == (b.nan, b.inf) else Status.DIFFERENT
    if not equal:
        return Status.DIFFERENT
    every_one = a.values[0] in (math.inf, -math.inf) and a.values[0] == a.values[1]
    return (
        Status.WITHIN_TOLERANCE
        if every_one or any(is_finite(x) for x, _ in known)
        else Status.UNREADABLE
    )
