"""Two arrays → pairs of blocks that fit the cache; and what counts as the same in them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from fractions import Fraction
from operator import mul
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.storage.arrays.npy import give_back

#: elements compared at a time: few enough for the cache, so many that calls outlast their overhead
BLOCK = 1 << 17
_HELD = 32 << 20  # bytes of a mapped file after which its pages are given back; a power of 2


@dataclass(frozen=True)
class Tolerance:
    """What counts as the same: |a−b| ≤ atol + rtol · max(|a|, |b|), element by element.

    The default is bitwise: nothing but equal values is the same.

    Raises:
        ConfigError: one of the two is no number, or a negative one.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError.saying("tolerance.number", name=name, value=repr(value))

    @property
    def bitwise(self) -> bool:
        """Whether only equal values are the same."""
        return self.rtol == 0 and self.atol == 0

    def allows(self, a: Any, b: Any) -> bool:
        """Return whether two Python numbers are within the tolerance, without rounding.

        What is not finite, or no number, is within no tolerance: not even its equal, of which
        nothing follows for what made it overflow.
        """
        if not (is_finite(a) and is_finite(b)):
            return False
        if isinstance(a, Fraction) or isinstance(b, Fraction):
            return self._allows_exactly(a, b)
        try:
            distance = float(abs(a - b))
            allowed = self.atol + self.rtol * float(max(abs(a), abs(b)))
        except OverflowError:  # Python integers beyond every float
            return self._allows_exactly(a, b)
        if _SURE < distance < math.inf and _SURE < allowed < math.inf:
            if distance < allowed * (1 - _ROUNDING):
                return True
            if distance > allowed * (1 + _ROUNDING):
                return False
        return self._allows_exactly(a, b)

    def _allows_exactly(self, a: Any, b: Any) -> bool:
        x, y = Fraction(a), Fraction(b)
        larger = max(abs(x), abs(y))
        return abs(x - y) <= Fraction(self.atol) + Fraction(self.rtol) * larger


_ROUNDING = 1e-12  # far more than floats lose in a difference, a product and a sum
_SURE = 1e-280  # above it none of them loses digits


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, NaN and infinities included."""
    return isinstance(value, (int, float))


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that is neither NaN nor infinite."""
    return isinstance(value, (int, Fraction)) or (isinstance(value, float) and math.isfinite(value))


def is_nan(value: Any) -> bool:
    """Return whether a value is the float NaN."""
    return isinstance(value, float) and math.isnan(value)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays of one dtype and shape hold the same bytes, block by block."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if is_transposed(a, b):
        a, b = a.T, b.T
    if a.flags.c_contiguous and b.flags.c_contiguous:
        return _same_memory(a.reshape(-1), b.reshape(-1))
    return all(_same_memory(x, y) for _, x, y in blocks(a, b))


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Compare the bytes of two contiguous 1-d arrays of one dtype, 8 at a time."""
    if a.nbytes < 1024:
        return a.tobytes() == b.tobytes()
    bytes_a, bytes_b = a.view(np.uint8), b.view(np.uint8)
    whole = a.nbytes - a.nbytes % 8
    words_a, words_b = bytes_a[:whole].view(np.uint64), bytes_b[:whole].view(np.uint64)
    for _, x, y in blocks(words_a, words_b):
        if not np.equal(x, y, out=scratch.mask[: x.size]).all():
            return False
    return bytes_a[whole:].tobytes() == bytes_b[whole:].tobytes()


def is_transposed(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether both arrays lie in memory in column-major order alone."""
    return all(x.flags.f_contiguous and not x.flags.c_contiguous for x in (a, b))


def blocks(
    a: np.ndarray, b: np.ndarray, start: int = 0
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Cut two arrays of one shape into (flat index, block of a, block of b), in row-major order.

    A block is 1-d and contiguous. One of contiguous arrays is a view; of others, a copy of no more
    than BLOCK elements. Pages of contiguous arrays that open_npy mapped are given back meanwhile;
    those of others, of which every block may touch the whole file, stay until the array is let go.
    """
    contiguous = a.flags.c_contiguous and b.flags.c_contiguous
    if a.size <= BLOCK:
        if a.size:
            yield start, np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    elif contiguous:
        flat_a, flat_b = a.reshape(-1), b.reshape(-1)
        for i in range(0, a.size, BLOCK):
            if i and not i * a.itemsize % _HELD:
                give_back(a)
                give_back(b)
            yield start + i, flat_a[i : i + BLOCK], flat_b[i : i + BLOCK]
    else:
        row = a.size // len(a)
        step = BLOCK // row
        for i in range(0, len(a), step or 1):
            part: Any = slice(i, i + step) if step else i
            yield from blocks(a[part], b[part], start + i * row)


class _Scratch(threading.local):
    """Arrays of BLOCK elements that a thread uses again for every block, by dtype."""

    def __init__(self) -> None:
        self.buffers: dict[np.dtype, tuple[np.ndarray, ...]] = {}
        self.rows: dict[np.dtype, np.ndarray] = {}
        self.mask = np.empty(BLOCK, np.bool_)

    def of_dtype(self, dtype: np.dtype) -> tuple[np.ndarray, ...]:
        """Return five arrays of `dtype`: two for converted inputs, three for results."""
        if dtype not in self.buffers:
            self.buffers[dtype] = tuple(np.empty(BLOCK, dtype) for _ in range(5))
        return self.buffers[dtype]

    def products(self, dtype: np.dtype, size: int) -> np.ndarray:
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


def dots(*pairs: tuple[np.ndarray, np.ndarray]) -> list[Any]:
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


def _exactly(x: np.ndarray, y: np.ndarray) -> float:
    """Return the sum of a few products, rounded once; NaN where it is none."""
    try:
        return math.fsum(map(mul, x.tolist(), y.tolist()))
    except (OverflowError, ValueError):  # beyond every float; infinities of both signs
        return math.nan


def _chunk_sums(products: np.ndarray) -> Any:
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


def all_within(
    tolerance: Tolerance, distance: np.ndarray, larger: np.ndarray, a: np.ndarray, b: np.ndarray
) -> bool:
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


def _surely_at_most(atol: float, a: np.ndarray, b: np.ndarray) -> bool:
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


def count_below(relative: np.ndarray, distance: np.ndarray, larger: np.ndarray, share: int) -> int:
    """Count the elements whose relative error, distance / larger, is below 1 / share.

    Where rounding could decide, distance is exact, being so small, and so is what follows.
    """
    low, high = 1 / share * (1 - _CLOSE), 1 / share * (1 + _CLOSE)
    sure = count_less(relative, low)
    if count_less(relative, high) == sure:
        return sure
    unsure = np.flatnonzero((relative < high) & ~(relative < low))
    return sure + int(np.count_nonzero(_is_below(distance[unsure], larger[unsure], share)))


def count_less(values: np.ndarray, bound: Any) -> int:
    """Count the elements of a block that are below `bound`."""
    if values.size > BLOCK:
        return int(np.count_nonzero(values < bound))
    return int(np.count_nonzero(np.less(values, bound, out=scratch.mask[: values.size])))


#: share → whole numbers p, q, r of which share is p − q + r
_PARTS = {1000: (1024, 32, 8), 200: (256, 64, 8), 100: (128, 32, 4)}


def _is_below(distance: np.ndarray, larger: np.ndarray, share: int) -> np.ndarray:
    """Tell where share · distance < larger, of floats whose quotient is about that.

    Multiples by powers of two are exact, and so are differences of numbers as close as these.
    """
    p, q, r = _PARTS[share]
    huge = larger > 1e290
    distance = np.where(huge, distance / 2048, distance)
    larger = np.where(huge, larger / 2048, larger)
    rest = (p * distance - larger) - q * distance
    below: np.ndarray = rest < -r * distance
    return below
