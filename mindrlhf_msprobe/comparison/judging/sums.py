"""Two blocks → what they add to the sums that a comparison keeps, and how products are summed.

float32 is computed in float32 where that is provably good enough, and again in float64 where it is
not: a rounded difference or quotient decides only outside its own error. Complex numbers and 64-bit
integers beyond 2⁵² are computed plainly.
"""

from __future__ import annotations

import ctypes
import math
import threading
from fractions import Fraction
from operator import mul
from typing import Any

import numpy as np
from numpy import ndarray as Array

from mindrlhf_msprobe.common.compiled import library_beside
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance

#: elements compared at a time: few enough for the cache, so many that calls outlast their overhead
BLOCK = 1 << 17


class _Scratch(threading.local):
    """Arrays of BLOCK elements that a thread uses again for every block, by dtype."""

    def __init__(self) -> None:
        self.buffers: dict[np.dtype, tuple[Array, ...]] = {}
        self.rows: dict[np.dtype, Array] = {}
        self.mask = np.empty(BLOCK, np.bool_)

    def of_dtype(self, dtype: np.dtype) -> tuple[Array, ...]:
        """Return five arrays of `dtype`: two for converted inputs, three for results."""
        if dtype not in self.buffers:
            self.buffers[dtype] = tuple(np.empty(BLOCK, dtype) for _ in range(5))
        return self.buffers[dtype]

    def products(self, dtype: np.dtype, size: int) -> Array:
        """Return five rows of `size` elements of `dtype`, for products."""
        if dtype not in self.rows:
            self.rows[dtype] = np.empty((5, size), dtype)
        return self.rows[dtype]


scratch = _Scratch()


#: 1 / the relative errors whose shares are counted
SHARES = (1000, 200, 100)
FLOAT32, FLOAT64, WIDEST = (np.dtype(t) for t in (np.float32, np.float64, np.longdouble))
FLOAT32_MAX = float(np.finfo(np.float32).max)
#: dtype → (largest element whose squares can be summed, smallest sum of squares that is not
#: hurt by underflow); beyond them a block is computed in the next wider dtype
RANGE = {FLOAT32: (1e17, 1e-30), FLOAT64: (1e140, 1e-280)}
if WIDEST == FLOAT64:
    del RANGE[FLOAT64]
# The order in which products are summed, that of _float32.c: every lane takes each 128th product of
# a chunk, one after the other; then the halves of the lanes are added, of float32 in float64, the
# halves of that, and so on; then the chunks of a block, then the blocks. What is missing of a chunk
# counts as zeros. So all digits are the same on every machine.
_LANES, _CHUNK = 128, 2048
_AT_ONCE = 1 << 15  # products that stay in the cache together
_FEW = 48  # numbers that Python sums faster than numpy is called


class Sums:
    """What is accumulated over the blocks.

    The sums of products are float64, or longdouble once a block needed its range. d is a−b.
    """

    def __init__(
        self,
        tolerance: Tolerance,
        exact: bool,
        *,
        small: bool = True,
        products: Products | None = None,
    ) -> None:
        self.tolerance = tolerance
        self.exact = exact  # both sides are integers or bool
        self.small = small  # few elements in all, for which float32 has more overhead than it saves
        self.equal = 0
        self.first: int | None = None
        self.compared = 0  # elements that are finite on both sides
        self.max_abs: Any = 0
        self.max_rel: Any = 0.0
        self.within = [0, 0, 0]
        self.products = Products() if products is None else products
        self.nan_a = self.nan_b = self.inf_a = self.inf_b = 0
        self.one_sided = self.unlike = False
        self.within_tolerance = True
        # rtol and atol below which float32 is sure that an element is within the tolerance
        self.surely_within = (
            min(tolerance.rtol * (1 - 1e-6), FLOAT32_MAX),
            min(tolerance.atol * (1 - 1e-6) - 1e-37, FLOAT32_MAX),
        )

    def add_span(self, other: Sums) -> None:
        """Add the sums of the span that follows; its products are an EachBlock.

        All but the products are counts, extremes and answers, which come out the same in whatever
        parts they are had. Products are rounded with every sum, so they are added block by block.
        """
        for name in ("equal", "compared", "nan_a", "nan_b", "inf_a", "inf_b"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if self.first is None:
            self.first = other.first
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        self.within = [x + y for x, y in zip(self.within, other.within)]
        self.one_sided |= other.one_sided
        self.unlike |= other.unlike
        self.within_tolerance &= other.within_tolerance
        assert isinstance(other.products, EachBlock)
        for products in other.products.blocks:
            self.products.add(products)

    def add_equal(self, start: int, equal: Array, count: int) -> None:
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
        """Add the sums of a further block."""
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


class EachBlock(Products):
    """The products of every block by themselves, to be added up in order later.

    Attributes:
        blocks: those of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Products] = []

    def add(self, other: Products) -> None:
        """Keep the sums of a further block."""
        self.blocks.append(other)


def in_range(square: Any, values: Array) -> bool:
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


def dots(*pairs: tuple[Array, Array]) -> list[Any]:
    """Return the sum of the products of each pair of 1-d arrays, all of one dtype and length.

    They are multiplied and summed in their dtype, float32 no more than 16 at a time.
    """
    size, dtype = pairs[0][0].size, pairs[0][0].dtype
    if size <= _FEW and dtype == FLOAT64:
        return [_exactly(x, y) for x, y in pairs]
    found: list[Any] = [0.0] * len(pairs)
    for at in range(0, size, _AT_ONCE):
        count = min(_AT_ONCE, size - at)
        unit = _LANES if count < _CHUNK else _CHUNK  # whole rows of zeros change no sum
        room = scratch.products(dtype, _AT_ONCE)[: len(pairs), : -(-count // unit) * unit]
        room[:, count:] = 0
        for (x, y), row in zip(pairs, room):
            np.multiply(x[at : at + count], y[at : at + count], out=row[:count])
        for row, sums in enumerate(_chunk_sums(room)):
            for chunk in sums:
                found[row] += chunk
    return found


def _exactly(x: Array, y: Array) -> float:
    """Return the sum of a few products, rounded once; NaN where it is none."""
    try:
        return math.fsum(map(mul, x.tolist(), y.tolist()))
    except (OverflowError, ValueError):  # beyond every float; infinities of both signs
        return math.nan


def _chunk_sums(products: Array) -> Any:
    """Return the sums of the chunks of each row of products."""
    rows, size = products.shape
    lanes = np.add.reduce(products.reshape(rows, -1, min(_CHUNK, size) // _LANES, _LANES), axis=2)
    if lanes.dtype == FLOAT32:
        lanes = lanes.astype(FLOAT64)
    while (half := lanes.shape[2] // 2) > 0:
        lanes = lanes[:, :, :half] + lanes[:, :, half:]
    found = lanes[:, :, 0]
    return found if found.dtype == WIDEST else found.tolist()


def scalar(number: Any) -> Any:
    """Return a numpy float as a Python number, which is faster, unless it is a wider one."""
    return number if number.dtype == WIDEST else float(number)


def count_non_finite(sums: Sums, a: Array, b: Array, equal: Array) -> Array:
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
    both: Array = finite_a & finite_b
    return both


def all_within(tolerance: Tolerance, distance: Array, larger: Array, a: Array, b: Array) -> bool:
    """Return whether all are within the tolerance: distance is |a−b|, larger max(|a|, |b|).

    Where rounding could decide, it does not: those elements are looked at one by one.
    """
    allowed = tolerance.atol + tolerance.rtol * larger
    if not (distance <= allowed * (1 + _CLOSE) + _TINY).all():
        return False
    unsure = np.flatnonzero(~(distance < allowed * (1 - _CLOSE) - _TINY) & (distance > 0))
    if not unsure.size:
        return True
    if a.dtype.kind == "c":  # a distance that is a square root
        return bool((distance <= allowed).all())
    if tolerance.rtol == 0:
        return _surely_at_most(tolerance.atol, a[unsure], b[unsure])
    return all(tolerance.allows(_exact(a[i]), _exact(b[i])) for i in unsure)


_CLOSE = 1e-14  # relative; some dozen roundings of float64
_TINY = 1e-300  # what numbers below it lose to rounding is less


def _surely_at_most(atol: float, a: Array, b: Array) -> bool:
    """Return whether no |a−b| exceeds `atol`, by what a subtraction loses to rounding."""
    if a.dtype.kind == "f":
        apart = a - b
        back = apart - a
        lost = (a - (apart - back)) - (b + back)  # Knuth's TwoSum
        if np.isfinite(lost).all():
            lost = np.where(apart < 0, -lost, lost)
            return not ((np.abs(apart) > atol) | ((np.abs(apart) == atol) & (lost > 0))).any()
    return all(Tolerance(atol=atol).allows(_exact(x), _exact(y)) for x, y in zip(a, b))


def _exact(element: Any) -> Any:
    """Return an element as a Python number that holds it exactly."""
    if isinstance(element, np.longdouble):
        return Fraction(*element.as_integer_ratio())
    return element.item() if isinstance(element, np.generic) else element


def count_below(relative: Array, distance: Array, larger: Array, share: int) -> int:
    """Count the elements whose relative error, distance / larger, is below 1 / share.

    Where rounding could decide, distance is exact, being so small, and so is what follows.
    """
    low, high = 1 / share * (1 - _CLOSE), 1 / share * (1 + _CLOSE)
    sure = count_less(relative, low)
    if count_less(relative, high) == sure:
        return sure
    unsure = np.flatnonzero((relative < high) & ~(relative < low))
    return sure + int(np.count_nonzero(_is_below(distance[unsure], larger[unsure], share)))


def count_less(values: Array, bound: Any) -> int:
    """Count the elements of a block that are below `bound`."""
    if values.size > BLOCK:
        return int(np.count_nonzero(values < bound))
    return int(np.count_nonzero(np.less(values, bound, out=scratch.mask[: values.size])))


#: share → whole numbers p, q, r of which share is p − q + r
_PARTS = {1000: (1024, 32, 8), 200: (256, 64, 8), 100: (128, 32, 4)}


def _is_below(distance: Array, larger: Array, share: int) -> Array:
    """Tell where share · distance < larger, of floats whose quotient is about that.

    Multiples by powers of two are exact, and so are differences of numbers as close as these.
    """
    p, q, r = _PARTS[share]
    huge = larger > 1e290
    distance = np.where(huge, distance / 2048, distance)
    larger = np.where(huge, larger / 2048, larger)
    rest = (p * distance - larger) - q * distance
    below: Array = rest < -r * distance
    return below


class Float32Sums(ctypes.Structure):
    """What the library computes of two blocks, as _float32.c lays it out."""

    _fields_ = (
        ("equal", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("below", ctypes.c_int64 * 3),
        ("aa", ctypes.c_double),
        ("bb", ctypes.c_double),
        ("ab", ctypes.c_double),
        ("dd", ctypes.c_double),
        ("ad", ctypes.c_double),
        ("abs_at", ctypes.c_int64),
        ("rel_at", ctypes.c_int64),
        ("max_abs", ctypes.c_float),
        ("max_rel", ctypes.c_float),
        ("non_finite", ctypes.c_int32),
        ("outside", ctypes.c_int32),
    )


def _load() -> Any:
    """Return the library's function, None where it was not built."""
    function = getattr(library_beside(__file__, "_float32"), "msprobe_float32_exactly", None)
    if function is not None:
        pointer, number = ctypes.c_void_p, ctypes.c_float
        function.argtypes = (
            *(pointer, pointer, ctypes.c_int64, pointer),
            *(ctypes.c_int32, number, number, ctypes.POINTER(Float32Sums)),
        )
        function.restype = None
    return function


#: The library's function, or None.
FUNCTION = _load()
_SHARES = (ctypes.c_double * len(SHARES))(*SHARES)


_WIDER = {FLOAT32: FLOAT64, FLOAT64: WIDEST}
if WIDEST == FLOAT64:
    del _WIDER[FLOAT64]
#: four times the error of |a−b| / max(|a|, |b|) in float32: two roundings of 2⁻²⁴ each
_FLOAT32_MARGIN = 2.0**-21
#: a share, and float32 numbers surely below and above its bound; arrays, as ufuncs take them faster
_FLOAT32_BOUNDS: list[tuple[int, Array, Array]] = [
    (
        share,
        np.array([1 / share * (1 - _FLOAT32_MARGIN)], np.float32),
        np.array([1 / share * (1 + _FLOAT32_MARGIN)], np.float32),
    )
    for share in SHARES
]


def add_floats(sums: Sums, start: int, a: Array, b: Array) -> None:
    """Add two contiguous 1-d blocks of float32, float64 or longdouble, no longer than BLOCK."""
    size = a.size
    equal = np.equal(a, b, out=scratch.mask[:size])
    count = int(np.count_nonzero(equal))
    if count == size:  # none of the elements is NaN, as NaN is not equal to itself
        (square,) = dots((a, a))
        if in_range(square, a) if a.dtype in _WIDER else np.isfinite(square):
            sums.products.add(Products(aa=square, bb=square, ab=square))
            sums.add_equal(start, equal, size)
            sums.compared += size
            sums.within = [n + size for n in sums.within]
            return
    distance, larger, other = (buffer[:size] for buffer in scratch.of_dtype(a.dtype)[2:])
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


def add_compiled(sums: Sums, start: int, a: Array, b: Array) -> bool:
    """Add two contiguous 1-d float32 arrays by the compiled library; False where it cannot.

    That is where there is no library, the arrays do not begin at a multiple of their element's
    size, an element is not finite, a distance is too close to the tolerance for float32, or its
    range does not do.
    """
    if FUNCTION is None or not (a.flags.aligned and b.flags.aligned):
        return False
    # It says `outside` where a distance exceeds rtol · max(|a|, |b|) + atol, rounded to float32.
    by_tolerance = not sums.tolerance.bitwise and sums.within_tolerance
    rtol, atol = sums.surely_within if by_tolerance else (0.0, 0.0)
    found, at = Float32Sums(), (a.ctypes.data, b.ctypes.data, a.size)
    FUNCTION(*at, _SHARES, by_tolerance, rtol, atol, ctypes.byref(found))
    if found.non_finite or found.outside:
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


def _add_largest(sums: Sums, a: Array, b: Array, far: int, odd: int) -> None:
    """Add the largest errors by their places, computed in float64."""
    sums.max_abs = max(sums.max_abs, abs(float(a[far]) - float(b[far])))
    x, y = float(a[odd]), float(b[odd])
    if x != y:
        sums.max_rel = max(sums.max_rel, abs(x - y) / max(abs(x), abs(y)))


def _largest(values: Array) -> Any:
    """Return the largest element, NaN if there is one."""
    return scalar(np.maximum.reduce(values))


def _products(a: Array, b: Array, distance: Array) -> Products | None:
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
    sums: Sums, a: Array, b: Array, distance: Array, larger: Array, relative: Array
) -> None:
    """Add the errors of finite blocks: distance is |a−b|, larger max(|a|, |b|), relative free.

    The relative error is |a−b| / max(|a|, |b|), 0 where both are 0.
    """
    np.divide(distance, larger, out=relative)
    if np.isnan(_largest(relative)):  # 0 / 0: 0 over the smallest number instead
        np.maximum(larger, np.finfo(a.dtype).smallest_subnormal, out=larger)
        np.divide(distance, larger, out=relative)
    if a.dtype == WIDEST and np.isinf(distance.max()):  # a−b does not fit the widest float
        over = np.isinf(distance)
        relative[over] = np.abs(a[over] / larger[over] - b[over] / larger[over])
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


def _add_float32_errors(
    sums: Sums, a: Array, b: Array, distance: Array, larger: Array, relative: Array
) -> None:
    """Add float32 errors; elements that float32 cannot decide are computed in float64.

    The largest errors are those of the elements float32 finds them in, so they are right to its
    rounding, 1e-7. `larger` is overwritten.
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
        if top * (1 + _FLOAT32_MARGIN) <= sums.tolerance.rtol:
            return
        # What exceeds a bound somewhat below the allowed one is computed in float64.
        np.multiply(larger, np.float32(min(sums.tolerance.rtol, FLOAT32_MAX)), out=larger)
        np.add(larger, np.float32(min(sums.tolerance.atol, FLOAT32_MAX)), out=larger)
        np.multiply(larger, np.float32(1 - 1e-6), out=larger)
        np.maximum(np.subtract(larger, np.float32(1e-37), out=larger), 0, out=larger)
        outside = np.greater(distance, larger, out=scratch.mask[: a.size])
        if outside.any():
            wide_a, wide_b = a[outside].astype(np.float64), b[outside].astype(np.float64)
            apart, most = np.abs(wide_a - wide_b), np.maximum(np.abs(wide_a), np.abs(wide_b))
            sums.within_tolerance = all_within(sums.tolerance, apart, most, wide_a, wide_b)


def _add_non_finite(sums: Sums, start: int, a: Array, b: Array, equal: Array) -> None:
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


def add_plainly(sums: Sums, start: int, a: Array, b: Array) -> None:
    """Add contiguous 1-d blocks that no float holds: complex ones, and integers beyond 2⁵²."""
    if sums.exact:
        equal = (a == b).astype(bool, copy=False)
    else:  # complex elements are equal in both parts, NaN beside NaN included
        equal = np.ones(a.size, np.bool_)
        for x, y in ((a.real, b.real), (a.imag, b.imag)):
            if is_exact(x) != is_exact(y):  # an integer beside a float
                x, y = x.astype(WIDEST), y.astype(WIDEST)
            equal &= (x == y) | (np.isnan(x) & np.isnan(y))
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


def _add_plain_errors(sums: Sums, a: Array, b: Array) -> None:
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


def _size(integers: Array) -> Array:
    """Return |x| of integers, exact, and at least 1, as integers that can hold it."""
    if integers.dtype == object:
        return np.maximum(np.abs(integers), 1)
    native = integers.astype(integers.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind != "i":
        return np.maximum(native.astype(np.uint64), np.uint64(1))
    bits = native.astype(np.int64).view(np.uint64)
    return np.maximum(np.where(native < 0, np.uint64(0) - bits, bits), np.uint64(1))


def is_exact(array: Array) -> bool:
    """Return whether the elements are integers or bool."""
    return array.dtype.kind in "biu"


def _wide(a: Array, b: Array) -> tuple[Array, Array]:
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


def common_integers(a: Array, b: Array) -> tuple[Array, Array]:
    """Bring integers together without loss: in their dtype if they share it."""
    if a.dtype == b.dtype:
        return a, b
    has_uint64 = any(x.dtype.kind == "u" and x.dtype.itemsize == 8 for x in (a, b))
    wide = np.dtype(object) if has_uint64 else np.dtype(np.int64)
    return a.astype(wide), b.astype(wide)


def _absolute_difference(a: Array, b: Array) -> Array:
    """Return |a−b| of 64-bit integers of one dtype, exact, as integers that can hold it."""
    if a.dtype == object:
        return np.abs(a - b)
    # The distance of two 64-bit integers always fits 64 bits without a sign.
    native = a.dtype.newbyteorder("=")
    larger = np.maximum(a, b).astype(native, copy=False)
    smaller = np.minimum(a, b).astype(native, copy=False)
    difference: Array = larger.view(np.uint64) - smaller.view(np.uint64)
    return difference
