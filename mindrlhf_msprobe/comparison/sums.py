"""What is accumulated over the blocks of two arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mindrlhf_msprobe.comparison.blocks import BLOCK, Tolerance

#: relative errors whose shares are counted
BOUNDS = (1e-3, 5e-3, 1e-2)
FLOAT32, FLOAT64, WIDEST = (np.dtype(t) for t in (np.float32, np.float64, np.longdouble))
FLOAT32_MAX = float(np.finfo(np.float32).max)
#: dtype → (largest element whose squares can be summed, smallest sum of squares that is not
#: hurt by underflow); beyond them a block is computed in the next wider dtype
RANGE = {FLOAT32: (1e17, 1e-30), FLOAT64: (1e140, 1e-280)}
if WIDEST == FLOAT64:
    del RANGE[FLOAT64]
_ROW = 512  # elements whose products are summed before the sums are added up in float64


class Sums:
    """What is accumulated over the blocks.

    The sums of products are float64, or longdouble once a block needed its range. d is a−b.
    """

    def __init__(self, tolerance: Tolerance, exact: bool) -> None:
        self.tolerance = tolerance
        self.exact = exact  # both sides are integers or bool
        self.equal = 0
        self.first: int | None = None
        self.compared = 0  # elements that are finite on both sides
        self.max_abs: Any = 0
        self.max_rel: Any = 0.0
        self.within = [0, 0, 0]
        self.products = Products()
        self.nan_a = self.nan_b = self.inf_a = self.inf_b = 0
        self.one_sided = self.unlike = False
        self.within_tolerance = True
        # rtol and atol below which float32 is sure that an element is within the tolerance
        self.surely_within = (
            min(tolerance.rtol * (1 - 1e-6), FLOAT32_MAX),
            min(tolerance.atol * (1 - 1e-6) - 1e-37, FLOAT32_MAX),
        )

    def add_equal(self, start: int, equal: np.ndarray, count: int) -> None:
        """Count the equal elements of the block at `start`."""
        self.equal += count
        if count < equal.size:
            if self.first is None:
                self.first = start + int(equal.argmin())
            if self.tolerance.bitwise:
                self.within_tolerance = False


@dataclass
class Products:
    """Sums of products over elements that are finite on both sides; d is a−b."""

    aa: Any = 0.0
    bb: Any = 0.0
    ab: Any = 0.0
    dd: Any = 0.0
    ad: Any = 0.0

    def add(self, other: Products) -> None:
        """Add the sums of further elements."""
        self.aa += other.aa
        self.bb += other.bb
        self.ab += other.ab
        self.dd += other.dd
        self.ad += other.ad

    def cosine(self) -> float | None:
        """Return a·b / (|a| |b|), None if it is not defined.

        Close arrays go by 1 − cos = (|d|² − (|a|−|b|)²) / (2 |a| |b|), in which nothing cancels
        but what the rounding of the elements left; |a|² − |b|² = 2 a·d − |d|².
        """
        norm_a, norm_b = np.sqrt(self.aa), np.sqrt(self.bb)
        norms = norm_a * norm_b
        if not norms or not np.isfinite(norms):
            return None
        if self.dd <= self.aa / 4:
            apart = (2 * self.ad - self.dd) / (norm_a + norm_b)
            cosine = 1 - (self.dd - apart * apart) / (2 * norms)
        else:
            cosine = self.ab / norms
        return max(-1.0, min(1.0, float(cosine)))


def in_range(square: Any, values: np.ndarray) -> bool:
    """Whether a sum of squares of `values` suffered neither overflow nor underflow."""
    if values.dtype not in RANGE:
        return True
    if square == 0:
        return not values.any()
    low, high = squares_in_range(values.dtype)
    return bool(low <= square <= high)


def squares_in_range(dtype: np.dtype) -> tuple[float, float]:
    """Return between what a sum of squares lies that suffered neither over- nor underflow."""
    top, bottom = RANGE[dtype]
    return bottom, top * top * BLOCK


def dot(a: np.ndarray, b: np.ndarray) -> Any:
    """Return the sum of a·b, summed in the arrays' dtype over short rows and in float64 beyond.

    That bounds the rounding errors, and rows are too short for BLAS to start threads.
    """
    size = a.size
    if size < _ROW:
        return scalar(np.dot(a, b))
    whole = size - size % _ROW
    rows = np.matmul(a[:whole].reshape(-1, 1, _ROW), b[:whole].reshape(-1, _ROW, 1))
    total = scalar(rows.sum(dtype=FLOAT64 if a.dtype == FLOAT32 else a.dtype))
    return total + scalar(np.dot(a[whole:], b[whole:])) if whole < size else total


def scalar(number: Any) -> Any:
    """Return a numpy float as a Python number, which is faster, unless it is a wider one."""
    return number if number.dtype == WIDEST else float(number)


def count_non_finite(sums: Sums, a: np.ndarray, b: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """Count NaN and infinite elements; return which elements are finite on both sides.

    Args:
        equal: which elements are equal, NaN beside NaN included.
    """
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    sums.nan_a += int(np.count_nonzero(nan_a))
    sums.nan_b += int(np.count_nonzero(nan_b))
    sums.inf_a += int(np.count_nonzero(~finite_a & ~nan_a))
    sums.inf_b += int(np.count_nonzero(~finite_b & ~nan_b))
    sums.one_sided |= bool((finite_a != finite_b).any())
    sums.unlike |= not bool((equal | finite_a | finite_b).all())
    both: np.ndarray = finite_a & finite_b
    return both


def all_within(tolerance: Tolerance, distance: np.ndarray, larger: np.ndarray) -> bool:
    """Tell whether all are within the tolerance: distance is |a−b|, larger max(|a|, |b|)."""
    return bool((distance <= tolerance.atol + tolerance.rtol * larger).all())
