"""Two arrays → how far they are apart, block by block, so that memory stays flat."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mindrlhf_msprobe.findings import Metrics

BLOCK = 1 << 18  # elements compared at a time


@dataclass(frozen=True)
class Tolerance:
    """What counts as the same: |a−b| ≤ atol + rtol · max(|a|, |b|), element by element.

    The default is bitwise: nothing but equal values is the same.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; expected a number, 0 or larger")

    @property
    def bitwise(self) -> bool:
        """Whether only equal values are the same."""
        return self.rtol == 0 and self.atol == 0


@dataclass
class ArrayComparison:
    """The metrics of two arrays, and what the statuses need beside them.

    Attributes:
        equal: all elements are equal.
        one_sided: somewhere one side is NaN or infinite where the other is finite.
        within: all elements are within the tolerance.
    """

    metrics: Metrics
    equal: bool
    one_sided: bool
    within: bool


class _Sums:
    """What is accumulated over the blocks."""

    def __init__(self) -> None:
        self.equal = 0
        self.first: int | None = None
        self.compared = 0
        self.max_abs: float = 0.0
        self.max_rel = 0.0
        self.within = [0, 0, 0]
        self.dot = self.norm_a = self.norm_b = self.distance = 0.0
        self.nan_a = self.nan_b = self.inf_a = self.inf_b = 0
        self.one_sided = False
        self.within_tolerance = True


_BOUNDS = (1e-3, 5e-3, 1e-2)


def compare_arrays(a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> ArrayComparison:
    """Compare two arrays of one shape, element by element, in row-major order.

    Integers of any width and sign are compared exactly, without wrapping, and their largest
    distance is exact; float16 and float32 are computed in float64; a complex element is equal if
    both its parts are.

    Raises:
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ")
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    sums = _Sums()
    for start in range(0, flat_a.size, BLOCK):
        block = slice(start, start + BLOCK)
        _add_block(sums, start, np.asarray(flat_a[block]), np.asarray(flat_b[block]), tolerance)
    return _finish(sums, flat_a.size)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays of one dtype and shape hold the same bytes, block by block."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    return all(
        flat_a[start : start + BLOCK].tobytes() == flat_b[start : start + BLOCK].tobytes()
        for start in range(0, flat_a.size, BLOCK)
    )


def _add_block(sums: _Sums, start: int, a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> None:
    exact = _is_exact(a) and _is_exact(b)
    if a.dtype != b.dtype:
        a, b = _common_integers(a, b) if exact else _common_floats(a, b)
    with np.errstate(all="ignore"):
        equal = _equal(a, b, exact)
        if not exact:
            nan_a, nan_b = np.isnan(a), np.isnan(b)
            finite_a, finite_b = np.isfinite(a), np.isfinite(b)
            sums.nan_a += int(np.count_nonzero(nan_a))
            sums.nan_b += int(np.count_nonzero(nan_b))
            sums.inf_a += int(np.count_nonzero(~finite_a & ~nan_a))
            sums.inf_b += int(np.count_nonzero(~finite_b & ~nan_b))
            sums.one_sided |= bool((finite_a != finite_b).any())
            both = finite_a & finite_b
        count = int(np.count_nonzero(equal))
        sums.equal += count
        if count < equal.size:
            if sums.first is None:
                sums.first = start + int(np.argmin(equal))
            if not exact and not (equal | both).all():
                sums.within_tolerance = False
        if not exact and not both.all():
            a, b = a[both], b[both]
            for i in range(3):  # NaN beside NaN and inf beside inf are no error
                sums.within[i] += int(np.count_nonzero(equal & ~both))
        _add_finite(sums, a, b, tolerance, exact)


def _equal(a: np.ndarray, b: np.ndarray, exact: bool) -> np.ndarray:
    """Return which elements are equal, NaN beside NaN included."""
    if "c" in (a.dtype.kind, b.dtype.kind):
        return _equal(a.real, b.real, exact) & _equal(a.imag, b.imag, exact)
    equal = (a == b).astype(bool, copy=False)
    return equal if exact else equal | (np.isnan(a) & np.isnan(b))


def _add_finite(
    sums: _Sums, a: np.ndarray, b: np.ndarray, tolerance: Tolerance, exact: bool
) -> None:
    if a.size == 0:
        return
    wide_a, wide_b = _wide(a), _wide(b)
    distance = _absolute_difference(a, b) if exact else np.abs(wide_a - wide_b)
    difference = distance.astype(wide_a.real.dtype, copy=False)
    size_a, size_b = np.abs(wide_a), np.abs(wide_b)
    larger = np.maximum(size_a, size_b)
    relative = np.divide(difference, larger, out=np.zeros_like(larger), where=larger > 0)
    if (overflown := np.isinf(difference)).any():
        scale = larger[overflown]
        relative[overflown] = np.abs(wide_a[overflown] / scale - wide_b[overflown] / scale)
    sums.compared += a.size
    sums.max_abs = max(sums.max_abs, int(distance.max()) if exact else float(distance.max()))
    sums.max_rel = max(sums.max_rel, float(relative.max()))
    for i, bound in enumerate(_BOUNDS):
        sums.within[i] += int(np.count_nonzero(relative < bound))
    if sums.within_tolerance:
        allowed = tolerance.atol + tolerance.rtol * larger
        sums.within_tolerance = bool((difference <= allowed).all())
    sums.dot += float(np.vdot(wide_a, wide_b).real)
    sums.norm_a += float(np.dot(size_a, size_a))
    sums.norm_b += float(np.dot(size_b, size_b))
    sums.distance += float(np.dot(difference, difference))


def _is_exact(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu"


def _wide(array: np.ndarray) -> np.ndarray:
    """Return the array in a dtype wide enough to compute in: float64, or its own if wider."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    if array.dtype.kind in "fc":
        return array.astype(np.promote_types(array.dtype, wide), copy=False)
    return array.astype(wide)


def _common_integers(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring integers of unlike dtypes together without loss."""
    has_uint64 = any(x.dtype.kind == "u" and x.dtype.itemsize == 8 for x in (a, b))
    wide = np.dtype(object) if has_uint64 else np.dtype(np.int64)
    return a.astype(wide), b.astype(wide)


def _common_floats(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring 64-bit integers and floats together in the widest float, which holds both."""
    if any(x.dtype.kind in "iu" and x.dtype.itemsize == 8 for x in (a, b)):
        wide = np.result_type(a.dtype, b.dtype, np.longdouble)
        return a.astype(wide), b.astype(wide)
    return a, b


def _absolute_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a−b| of integers of one dtype, exact, as integers that can hold it."""
    if a.dtype.kind == "b":
        return (a != b).astype(np.uint8)
    if a.dtype == object:
        return np.abs(a - b)
    if a.dtype.itemsize < 8:
        return np.abs(a.astype(np.int64) - b.astype(np.int64))
    # The distance of two 64-bit integers always fits 64 bits without a sign.
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    return larger.view(np.uint64) - smaller.view(np.uint64)


def _finish(sums: _Sums, size: int) -> ArrayComparison:
    norms = math.sqrt(sums.norm_a) * math.sqrt(sums.norm_b)
    some = sums.compared > 0
    equal = sums.equal == size
    metrics = Metrics(
        equal_percent=_percent(sums.equal, size),
        first_mismatch=sums.first,
        max_abs_err=sums.max_abs if some or not size else None,
        max_rel_err=sums.max_rel if some or not size else None,
        within_1e3_percent=_percent(sums.within[0], size),
        within_5e3_percent=_percent(sums.within[1], size),
        within_1e2_percent=_percent(sums.within[2], size),
        cosine=_cosine(sums, norms, equal),
        euclidean=math.sqrt(sums.distance) if some or not size else None,
        nan_a=sums.nan_a,
        nan_b=sums.nan_b,
        inf_a=sums.inf_a,
        inf_b=sums.inf_b,
    )
    return ArrayComparison(
        metrics, equal=equal, one_sided=sums.one_sided, within=sums.within_tolerance
    )


def _percent(count: int, size: int) -> float:
    return 100.0 * count / size if size else 100.0


def _cosine(sums: _Sums, norms: float, equal: bool) -> float | None:
    if equal:
        return 1.0
    if not norms or not math.isfinite(norms):
        return None
    return max(-1.0, min(1.0, sums.dot / norms))
