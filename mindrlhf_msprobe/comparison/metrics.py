"""Two arrays → how far they are apart, block by block, so that memory stays flat.

float32 and narrower elements are computed in float32 where that is provably good enough, and again
in float64 where it is not: a rounded difference or quotient decides only outside its own error.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindrlhf_msprobe.comparison import accelerator
from mindrlhf_msprobe.findings import Metrics

#: elements compared at a time: few enough for the cache, so many that calls outlast their overhead
BLOCK = 1 << 17
_SMALL = 1 << 13  # below, float32 has more overhead than it saves
_ROW = 512  # elements whose products are summed before the sums are added up in float64
_BOUNDS = (1e-3, 5e-3, 1e-2)
_EXACT_IN_FLOAT64 = 1 << 52

_FLOAT32, _FLOAT64, _WIDEST = (np.dtype(t) for t in (np.float32, np.float64, np.longdouble))
_WIDER = {_FLOAT32: _FLOAT64, _FLOAT64: _WIDEST}
#: dtype → (largest element whose squares can be summed, smallest sum of squares that is not
#: hurt by underflow); beyond them a block is computed in the next wider dtype
_RANGE = {_FLOAT32: (1e17, 1e-30), _FLOAT64: (1e140, 1e-280)}
if _WIDEST == _FLOAT64:
    del _RANGE[_FLOAT64]
_FLOAT32_MAX = float(np.finfo(np.float32).max)
#: four times the error of |a−b| / max(|a|, |b|) in float32: two roundings of 2⁻²⁴ each
_FLOAT32_MARGIN = 2.0**-21
#: a share's bound, it in float32, and float32 numbers surely below and above; arrays, as ufuncs
#: take them faster
_FLOAT32_BOUNDS: list[tuple[float, np.ndarray, np.ndarray, np.ndarray]] = [
    (
        bound,
        np.array([bound], np.float32),
        np.array([bound * (1 - _FLOAT32_MARGIN)], np.float32),
        np.array([bound * (1 + _FLOAT32_MARGIN)], np.float32),
    )
    for bound in _BOUNDS
]
_COMPILED_BOUNDS = accelerator.bounds_of(_BOUNDS, _FLOAT32_MARGIN)
_SAMPLED = 4096  # elements that tell whether many errors are as large as a bound


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


def compare_arrays(a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> ArrayComparison:
    """Compare two arrays of one shape, element by element; indices count in row-major order.

    Integers of any width and sign are compared exactly, without wrapping, and their largest
    distance is exact. Floats are equal by their values; the largest errors are right to 1e-7,
    cosine and distance to 1e-6. A complex element is equal if both its parts are.

    Raises:
        TypeError: the elements are no numbers.
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ")
    for array in (a, b):
        if array.dtype.kind not in "biufc":
            raise TypeError(f"elements of dtype {array.dtype} cannot be compared")
    transposed = _is_transposed(a, b)
    sums = _Sums(tolerance, exact=_is_exact(a) and _is_exact(b))
    with np.errstate(all="ignore"):
        for start, block_a, block_b in _blocks(*((a.T, b.T) if transposed else (a, b))):
            _add_block(sums, start, block_a, block_b)
        if transposed and sums.first is not None:
            sums.first = _first_different(a, b, sums.exact)
        return _finish(sums, a.size)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays of one dtype and shape hold the same bytes, block by block."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if _is_transposed(a, b):
        a, b = a.T, b.T
    if a.flags.c_contiguous and b.flags.c_contiguous:
        return _same_memory(a.reshape(-1), b.reshape(-1))
    return all(_same_memory(x, y) for _, x, y in _blocks(a, b))


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Compare the bytes of two contiguous 1-d arrays of one dtype, 8 at a time."""
    if a.nbytes < 1024:
        return a.tobytes() == b.tobytes()
    bytes_a, bytes_b = a.view(np.uint8), b.view(np.uint8)
    whole = a.nbytes - a.nbytes % 8
    words_a, words_b = bytes_a[:whole].view(np.uint64), bytes_b[:whole].view(np.uint64)
    for i in range(0, words_a.size, BLOCK):
        block_a, block_b = words_a[i : i + BLOCK], words_b[i : i + BLOCK]
        if not np.equal(block_a, block_b, out=_scratch.mask[: block_a.size]).all():
            return False
    return bytes_a[whole:].tobytes() == bytes_b[whole:].tobytes()


def _is_transposed(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether both arrays lie in memory in column-major order alone."""
    return all(x.flags.f_contiguous and not x.flags.c_contiguous for x in (a, b))


def _blocks(
    a: np.ndarray, b: np.ndarray, start: int = 0
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Cut two arrays of one shape into (flat index, block of a, block of b), in row-major order.

    A block is 1-d and contiguous. One of contiguous arrays is a view; of others, a copy of no more
    than BLOCK elements.
    """
    contiguous = a.flags.c_contiguous and b.flags.c_contiguous
    if a.size <= BLOCK:
        if a.size:
            yield start, np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    elif contiguous:
        flat_a, flat_b = a.reshape(-1), b.reshape(-1)
        for i in range(0, a.size, BLOCK):
            yield start + i, flat_a[i : i + BLOCK], flat_b[i : i + BLOCK]
    else:
        row = a.size // len(a)
        step = BLOCK // row
        for i in range(0, len(a), step or 1):
            part: Any = slice(i, i + step) if step else i
            yield from _blocks(a[part], b[part], start + i * row)


def _first_different(a: np.ndarray, b: np.ndarray, exact: bool) -> int | None:
    """Return the row-major index of the first different element of column-major arrays."""
    for start, block_a, block_b in _blocks(a, b):
        sums = _Sums(Tolerance(), exact)
        _add_block(sums, start, block_a, block_b)
        if sums.first is not None:
            return sums.first
    return None


class _Sums:
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
        self.products = _Products()
        self.nan_a = self.nan_b = self.inf_a = self.inf_b = 0
        self.one_sided = False
        self.within_tolerance = True
        # rtol and atol below which float32 is sure that an element is within the tolerance
        self.surely_within = (
            min(tolerance.rtol * (1 - 1e-6), _FLOAT32_MAX),
            min(tolerance.atol * (1 - 1e-6) - 1e-37, _FLOAT32_MAX),
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
class _Products:
    """Sums of products over elements that are finite on both sides; d is a−b."""

    aa: Any = 0.0
    bb: Any = 0.0
    ab: Any = 0.0
    dd: Any = 0.0
    ad: Any = 0.0

    def add(self, other: _Products) -> None:
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


class _Scratch(threading.local):
    """Arrays of BLOCK elements that a thread uses again for every block, by dtype."""

    def __init__(self) -> None:
        self.buffers: dict[np.dtype, tuple[np.ndarray, ...]] = {}
        self.mask = np.empty(BLOCK, np.bool_)

    def of(self, dtype: np.dtype) -> tuple[np.ndarray, ...]:
        """Return five arrays of `dtype`: two for converted inputs, three for results."""
        if dtype not in self.buffers:
            self.buffers[dtype] = tuple(np.empty(BLOCK, dtype) for _ in range(5))
        return self.buffers[dtype]


_scratch = _Scratch()


def _add_block(sums: _Sums, start: int, a: np.ndarray, b: np.ndarray) -> None:
    """Add two contiguous 1-d blocks of any numeric dtypes."""
    dtype = _working_dtype(a, b)
    if dtype is None:
        _add_plainly(sums, start, *(_common_integers(a, b) if sums.exact else (a, b)))
        return
    buffers = _scratch.of(dtype)
    _add_floats(sums, start, _converted(a, dtype, buffers[0]), _converted(b, dtype, buffers[1]))


def _working_dtype(a: np.ndarray, b: np.ndarray) -> np.dtype | None:
    """Return a float dtype that holds every element of both exactly; None if there is none.

    The distance of two integers is exact in it, too.
    """
    if a.dtype == b.dtype and a.dtype in _WIDER:
        dtype = a.dtype
    elif "c" in (a.dtype.kind, b.dtype.kind):
        return None
    else:
        long = [x for x in (a, b) if x.dtype.kind in "iu" and x.dtype.itemsize == 8]
        if not (_is_exact(a) and _is_exact(b)):
            dtype = _WIDEST if long else np.result_type(a.dtype, b.dtype, _FLOAT32)
        elif any(x.min() < -_EXACT_IN_FLOAT64 or x.max() > _EXACT_IN_FLOAT64 for x in long):
            return None
        else:
            dtype = _FLOAT32 if max(a.itemsize, b.itemsize) <= 2 else _FLOAT64
    return _FLOAT64 if dtype == _FLOAT32 and a.size <= _SMALL else dtype.newbyteorder("=")


def _converted(array: np.ndarray, dtype: np.dtype, buffer: np.ndarray) -> np.ndarray:
    """Return the elements as `dtype` in native byte order, in `buffer` unless they are it."""
    if array.dtype == dtype:
        return array
    part = buffer[: array.size]
    np.copyto(part, array)
    return part


def _add_floats(sums: _Sums, start: int, a: np.ndarray, b: np.ndarray) -> None:
    """Add two contiguous 1-d blocks of float32, float64 or longdouble, no longer than BLOCK."""
    if a.dtype == _FLOAT32 and _add_compiled(sums, start, a, b):
        return
    size = a.size
    equal = np.equal(a, b, out=_scratch.mask[:size])
    count = int(np.count_nonzero(equal))
    if count == size and _add_same(sums, start, equal, a):
        return
    distance, larger, other = (buffer[:size] for buffer in _scratch.of(a.dtype)[2:])
    products = _products(a, b, np.subtract(a, b, out=distance))
    np.maximum(np.abs(a, out=larger), np.abs(b, out=other), out=larger)
    if (products is None or a.dtype not in _RANGE) and not np.isfinite(_largest(larger)):
        _add_non_finite(sums, start, a, b, equal)
        return
    if products is None:
        wider = _WIDER[a.dtype]
        _add_floats(sums, start, a.astype(wider), b.astype(wider))
        return
    sums.products.add(products)
    sums.add_equal(start, equal, count)
    sums.compared += size
    _add_errors(sums, a, b, np.abs(distance, out=distance), larger, other)


def _add_compiled(sums: _Sums, start: int, a: np.ndarray, b: np.ndarray) -> bool:
    """Add two float32 blocks by the compiled library; False where numpy has to decide.

    That is where there is no library, an element is not finite, a relative error is too close to a
    bound, a distance to the tolerance, or float32's range does not do.
    """
    found = accelerator.float32_sums(a, b, _COMPILED_BOUNDS, *sums.surely_within)
    if found is None:
        return False
    judged = not sums.tolerance.bitwise and sums.within_tolerance
    if found.non_finite or found.undecided or (found.outside and judged):
        return False
    if not (_in_range(found.aa, a) and _in_range(found.bb, b)):
        return False
    unlike = found.equal < a.size
    low, high = _squares_in_range(a.dtype)
    if unlike and not low <= found.dd <= high:
        return False
    sums.products.add(_Products(found.aa, found.bb, found.ab, found.dd, found.ad))
    sums.equal += found.equal
    sums.compared += a.size
    for i in range(3):
        sums.within[i] += found.below[i]
    if not unlike:
        return True
    if sums.first is None:
        sums.first = start + int(np.not_equal(a, b, out=_scratch.mask[: a.size]).argmax())
    if sums.tolerance.bitwise:
        sums.within_tolerance = False
    _add_largest(sums, a, b, found.abs_at, found.rel_at)
    return True


def _add_largest(sums: _Sums, a: np.ndarray, b: np.ndarray, far: int, odd: int) -> None:
    """Add the largest errors by their places, computed in float64."""
    sums.max_abs = max(sums.max_abs, abs(float(a[far]) - float(b[far])))
    x, y = float(a[odd]), float(b[odd])
    if x != y:
        sums.max_rel = max(sums.max_rel, abs(x - y) / max(abs(x), abs(y)))


def _largest(values: np.ndarray) -> Any:
    """Return the largest element, NaN if there is one."""
    return _scalar(np.maximum.reduce(values))


def _add_same(sums: _Sums, start: int, equal: np.ndarray, a: np.ndarray) -> bool:
    """Add a block that is the same on both sides; tell whether its squares could be summed.

    None of its elements is NaN, as NaN is not equal to itself.
    """
    square = _dot(a, a)
    if a.dtype in _RANGE and not _in_range(square, a):
        return False
    if a.dtype not in _RANGE and not np.isfinite(square):
        return False
    sums.products.add(_Products(aa=square, bb=square, ab=square))
    sums.add_equal(start, equal, a.size)
    sums.compared += a.size
    for i in range(3):
        sums.within[i] += a.size
    return True


def _products(a: np.ndarray, b: np.ndarray, distance: np.ndarray) -> _Products | None:
    """Return the sums of products, None if the dtype's range does not do or not all are finite.

    Each is right relative to the norms of its factors: what is small is summed, and what can be
    had from it without cancellation is derived.
    """
    aa, dd = _dot(a, a), _dot(distance, distance)
    if not (_in_range(aa, a) and _in_range(dd, distance)):
        return None
    if 0 < dd <= aa / 4:
        ad = _dot(a, distance)
        return _Products(aa=aa, bb=aa - 2 * ad + dd, ab=aa - ad, dd=dd, ad=ad)
    bb, ab = _dot(b, b), _dot(a, b)
    return _Products(aa=aa, bb=bb, ab=ab, dd=dd, ad=aa - ab) if _in_range(bb, b) else None


def _in_range(square: Any, values: np.ndarray) -> bool:
    """Whether a sum of squares of `values` suffered neither overflow nor underflow."""
    if values.dtype not in _RANGE:
        return True
    if square == 0:
        return not values.any()
    low, high = _squares_in_range(values.dtype)
    return bool(low <= square <= high)


def _squares_in_range(dtype: np.dtype) -> tuple[float, float]:
    """Return between what a sum of squares lies that suffered neither over- nor underflow."""
    top, bottom = _RANGE[dtype]
    return bottom, top * top * BLOCK


def _dot(a: np.ndarray, b: np.ndarray) -> Any:
    """Return the sum of a·b, summed in the arrays' dtype over short rows and in float64 beyond.

    That bounds the rounding errors, and rows are too short for BLAS to start threads.
    """
    size = a.size
    if size < _ROW:
        return _scalar(np.dot(a, b))
    whole = size - size % _ROW
    rows = np.matmul(a[:whole].reshape(-1, 1, _ROW), b[:whole].reshape(-1, _ROW, 1))
    total = _scalar(rows.sum(dtype=_FLOAT64 if a.dtype == _FLOAT32 else a.dtype))
    return total + _scalar(np.dot(a[whole:], b[whole:])) if whole < size else total


def _scalar(number: Any) -> Any:
    """Return a numpy float as a Python number, which is faster, unless it is a wider one."""
    return number if number.dtype == _WIDEST else float(number)


def _add_errors(
    sums: _Sums,
    a: np.ndarray,
    b: np.ndarray,
    distance: np.ndarray,
    larger: np.ndarray,
    relative: np.ndarray,
) -> None:
    """Add the errors of finite blocks: distance is |a−b|, larger max(|a|, |b|), relative free."""
    _relative_errors(a, b, distance, larger, out=relative)
    if a.dtype == _FLOAT32:
        _add_float32_errors(sums, a, b, distance, larger, relative)
        return
    top = _largest(relative)
    sums.max_abs = max(sums.max_abs, _largest(distance))
    sums.max_rel = max(sums.max_rel, top)
    shares = relative.astype(np.float64, copy=False)
    for i, bound in enumerate(_BOUNDS):
        sums.within[i] += a.size if float(top) < bound else _count(np.less, shares, bound)
    if sums.within_tolerance and not sums.tolerance.bitwise:
        sums.within_tolerance = _all_within(sums.tolerance, distance, larger)


def _relative_errors(
    a: np.ndarray, b: np.ndarray, distance: np.ndarray, larger: np.ndarray, out: np.ndarray
) -> None:
    """Write |a−b| / max(|a|, |b|), 0 where both are 0, into `out`."""
    np.divide(distance, larger, out=out)
    if np.isnan(_largest(out)):  # 0 / 0: 0 over the smallest number instead
        np.maximum(larger, np.finfo(a.dtype).smallest_subnormal, out=larger)
        np.divide(distance, larger, out=out)
    if a.dtype not in _RANGE and np.isinf(distance.max()):  # a−b does not fit the widest float
        over = np.isinf(distance)
        out[over] = np.abs(a[over] / larger[over] - b[over] / larger[over])


def _all_within(tolerance: Tolerance, distance: np.ndarray, larger: np.ndarray) -> bool:
    return bool((distance <= tolerance.atol + tolerance.rtol * larger).all())


def _count(compare: np.ufunc, values: np.ndarray, bound: Any) -> int:
    return int(np.count_nonzero(compare(values, bound, out=_scratch.mask[: values.size])))


def _add_float32_errors(
    sums: _Sums,
    a: np.ndarray,
    b: np.ndarray,
    distance: np.ndarray,
    larger: np.ndarray,
    relative: np.ndarray,
) -> None:
    """Add float32 errors; elements that float32 cannot decide are computed in float64.

    The largest errors are those of the elements float32 finds them in, so they are right to its
    rounding, 1e-7. Of a share, about one element in 10⁷ may be too close to the bound to tell,
    unless a sample shows that many are.
    """
    odd = int(relative.argmax())
    top = float(relative[odd])
    _add_largest(sums, a, b, int(distance.argmax()), odd)
    for i, (exact, bound, low, high) in enumerate(_FLOAT32_BOUNDS):
        if top < low[0]:
            sums.within[i] += a.size
            continue
        sample = relative[:_SAMPLED]
        if _count(np.less, sample, low) == _count(np.less, sample, high):
            sums.within[i] += _count(np.less, relative, bound)
        else:
            sums.within[i] += _count_below(a, b, relative, exact, low, high)
    if sums.within_tolerance and not sums.tolerance.bitwise:
        close = top * (1 + _FLOAT32_MARGIN) <= sums.tolerance.rtol
        sums.within_tolerance = close or _all_within_float32(sums.tolerance, a, b, distance, larger)


def _float64_errors(
    a: np.ndarray, b: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return |a−b|, max(|a|, |b|) and their ratio at the indices `chosen`, in float64."""
    wide_a, wide_b = a[chosen].astype(np.float64), b[chosen].astype(np.float64)
    distance = np.abs(wide_a - wide_b)
    larger = np.maximum(np.abs(wide_a), np.abs(wide_b))
    return distance, larger, distance / larger


def _count_below(
    a: np.ndarray,
    b: np.ndarray,
    relative: np.ndarray,
    bound: float,
    low: np.ndarray,
    high: np.ndarray,
) -> int:
    """Count the float32 elements whose float64 relative error is below `bound`."""
    below = _count(np.less, relative, low)
    chosen = np.flatnonzero((relative >= low) & (relative < high))
    return below + int(np.count_nonzero(_float64_errors(a, b, chosen)[2] < bound))


def _all_within_float32(
    tolerance: Tolerance, a: np.ndarray, b: np.ndarray, distance: np.ndarray, larger: np.ndarray
) -> bool:
    """Tell whether all float32 elements are within; `larger` is overwritten.

    What exceeds a bound somewhat below the allowed one is computed in float64.
    """
    np.multiply(larger, np.float32(min(tolerance.rtol, _FLOAT32_MAX)), out=larger)
    np.add(larger, np.float32(min(tolerance.atol, _FLOAT32_MAX)), out=larger)
    np.multiply(larger, np.float32(1 - 1e-6), out=larger)
    np.maximum(np.subtract(larger, np.float32(1e-37), out=larger), 0, out=larger)
    outside = np.greater(distance, larger, out=_scratch.mask[: a.size])
    if not outside.any():
        return True
    distances, larger_ones, _ = _float64_errors(a, b, np.flatnonzero(outside))
    return _all_within(tolerance, distances, larger_ones)


def _add_non_finite(
    sums: _Sums, start: int, a: np.ndarray, b: np.ndarray, equal: np.ndarray
) -> None:
    """Add blocks that hold NaN or infinity; the finite elements are added without the others.

    Elements that are not finite on both sides become 0 on both, and what those zeros add to the
    counts is taken off again.
    """
    equal = equal | (np.isnan(a) & np.isnan(b))
    both = _count_non_finite(sums, a, b)
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
    _add_floats(sums, start, np.where(both, a, zero), np.where(both, b, zero))


def _count_non_finite(sums: _Sums, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count NaN and infinite elements; return which elements are finite on both sides."""
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    sums.nan_a += int(np.count_nonzero(nan_a))
    sums.nan_b += int(np.count_nonzero(nan_b))
    sums.inf_a += int(np.count_nonzero(~finite_a & ~nan_a))
    sums.inf_b += int(np.count_nonzero(~finite_b & ~nan_b))
    sums.one_sided |= bool((finite_a != finite_b).any())
    both: np.ndarray = finite_a & finite_b
    return both


def _add_plainly(sums: _Sums, start: int, a: np.ndarray, b: np.ndarray) -> None:
    """Add blocks that no float holds: complex ones, and 64-bit integers beyond 2⁵²."""
    equal = _equal_parts(a, b) if not sums.exact else (a == b).astype(bool, copy=False)
    sums.add_equal(start, equal, int(np.count_nonzero(equal)))
    if not sums.exact:
        both = _count_non_finite(sums, a, b)
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
        if _is_exact(x) != _is_exact(y):  # an integer beside a float
            x, y = x.astype(_WIDEST), y.astype(_WIDEST)
        equal &= (x == y) | (np.isnan(x) & np.isnan(y))
    return equal


def _add_plain_errors(sums: _Sums, a: np.ndarray, b: np.ndarray) -> None:
    """Add the errors of finite elements, computed in float64, complex128 or clongdouble."""
    wide_a, wide_b = _wide(a, b)
    size_a, size_b = np.abs(wide_a), np.abs(wide_b)
    larger = np.maximum(size_a, size_b)
    if sums.exact:
        exact = _absolute_difference(a, b)
        distance = exact.astype(np.float64)
        apart = np.where((a < b).astype(bool), -distance, distance)
        sums.max_abs = max(sums.max_abs, int(exact.max()))
    else:
        apart = wide_a - wide_b
        distance = np.abs(apart)
        sums.max_abs = max(sums.max_abs, distance.max())
    relative = np.divide(distance, larger, out=np.zeros_like(larger), where=larger > 0)
    if (over := np.isinf(distance)).any():
        relative[over] = np.abs(wide_a[over] / larger[over] - wide_b[over] / larger[over])
    sums.compared += a.size
    sums.max_rel = max(sums.max_rel, relative.max())
    for i, bound in enumerate(_BOUNDS):
        sums.within[i] += int(np.count_nonzero(relative.astype(np.float64) < bound))
    if sums.within_tolerance and not sums.tolerance.bitwise:
        sums.within_tolerance = _all_within(sums.tolerance, distance, larger)
    sums.products.add(
        _Products(
            aa=_dot(size_a, size_a),
            bb=_dot(size_b, size_b),
            ab=np.sum((wide_a.conj() * wide_b).real),
            dd=_dot(distance, distance),
            ad=np.sum((wide_a.conj() * apart).real),
        )
    )


def _is_exact(array: np.ndarray) -> bool:
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


def _common_integers(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _finish(sums: _Sums, size: int) -> ArrayComparison:
    some = sums.compared > 0 or not size
    equal = sums.equal == size
    metrics = Metrics(
        equal_percent=_percent(sums.equal, size),
        first_mismatch=sums.first,
        max_abs_err=(int if sums.exact else float)(sums.max_abs) if some else None,
        max_rel_err=float(sums.max_rel) if some else None,
        within_1e3_percent=_percent(sums.within[0], size),
        within_5e3_percent=_percent(sums.within[1], size),
        within_1e2_percent=_percent(sums.within[2], size),
        cosine=1.0 if equal else sums.products.cosine(),
        euclidean=float(np.sqrt(sums.products.dd)) if some else None,
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
