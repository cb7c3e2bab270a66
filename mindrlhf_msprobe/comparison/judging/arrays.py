"""Two tensors → how far they are apart, block by block, in flat memory; large ones by threads.

A large pair is gone through in spans, several at a time, whoever compares it: runs, layouts,
checkpoints. Spans begin at multiples of BLOCK elements, so that they have the blocks of the whole:
the numbers are the same to the last digit, however many threads there are.

Two arrays in memory, or in files that are mapped, are cut as they lie there if both are contiguous,
row-major or both column-major, whatever their dtypes. One row-major and one column-major array are
compared at once, as each block of the one lies all over the other.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.judging.sums import (
    BLOCK,
    FLOAT32,
    FLOAT64,
    WIDEST,
    EachBlock,
    Sums,
    add_compiled,
    add_floats,
    add_plainly,
    common_integers,
    is_exact,
    scratch,
)
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.findings import Metrics
from mindrlhf_msprobe.storage.arrays.expression import Expression, InMemory
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, give_back, rounded

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_HELD = 32 << 20  # bytes of a mapped file after which its pages are given back; a power of 2
SMALL = 1 << 13  # elements, below which float32 has more overhead than it saves
_EXACT_IN_FLOAT64 = 1 << 52
_FLOATS = (FLOAT32, FLOAT64)


@dataclass
class ArrayComparison:
    """The metrics of two arrays, and what the statuses need beside them.

    Attributes:
        equal: all elements are equal.
        one_sided: somewhere one side is NaN or infinite where the other is finite.
        unlike: somewhere neither side is finite, and they are not the same.
        within: all elements are within the tolerance.
        norms: L2 norm of each side, over elements that are finite on both.
        rounded_to: the lower dtype to which one side was rounded, if that makes it the other one.
    """

    metrics: Metrics
    equal: bool
    one_sided: bool
    unlike: bool
    within: bool
    norms: tuple[float, float] = (0.0, 0.0)
    rounded_to: str | None = None


def compare_arrays(a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> ArrayComparison:
    """Compare two arrays of one shape, element by element; indices count in row-major order.

    Integers of any width and sign are compared exactly, without wrapping, and their largest
    distance is exact. Floats are equal by their values; all counts, shares and the tolerance are
    decided exactly, the largest errors are right to 3e-7, cosine and distance to 1e-6. A complex
    element is equal if both its parts are. The digits are the same with the compiled library and
    without, and on every machine (but for complex numbers, and where a sum needs longdouble).

    Raises:
        TypeError: the elements are no numbers.
        ValueError: the shapes differ.
    """
    check_comparable(a, b)
    transposed = is_transposed(a, b)
    sums = Sums(tolerance, exact=is_exact(a) and is_exact(b), small=a.size <= SMALL)
    with np.errstate(all="ignore"):
        x, y = (a.T, b.T) if transposed else (a, b)
        compiled = _suits_library(x, y)
        for at, block_a, block_b in blocks(x, y):
            _add_block(sums, at, block_a, block_b, compiled)
        return in_row_major_order(_finish(sums, a.size), a, b)


def check_comparable(a: np.ndarray, b: np.ndarray) -> None:
    """Make sure that two arrays can be compared.

    Raises:
        TypeError: the elements are no numbers.
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(message("error.shapes", a=str(a.shape), b=str(b.shape)))
    for array in (a, b):
        if array.dtype.kind not in "biufc":
            raise TypeError(message("error.elements", dtype=str(array.dtype)))


def sum_part(a: np.ndarray, b: np.ndarray, start: int, tolerance: Tolerance) -> Sums:
    """Return what a span of two large arrays adds to their sums.

    `summed` of the sums of all spans is what compare_arrays returns, to the last digit.

    Args:
        a, b: the span of each: 1-d and contiguous, of arrays of more than SMALL elements.
        start: the index of its first element, a multiple of BLOCK; its size is one, too, but for
            the last one.
    """
    exact = is_exact(a) and is_exact(b)
    sums = Sums(tolerance, exact, small=False, products=EachBlock())
    compiled = _suits_library(a, b)
    with np.errstate(all="ignore"):
        for at, x, y in blocks(a, b, start):
            _add_block(sums, at, x, y, compiled)
    return sums


def summed(spans: Iterable[Sums], size: int, tolerance: Tolerance) -> ArrayComparison:
    """Put the sums of all spans together.

    Args:
        spans: in their order.
        size: of the arrays, in elements; the first mismatch counts as they lie in memory.
    """
    whole: Sums | None = None
    with np.errstate(all="ignore"):
        for sums in spans:
            whole = whole or Sums(tolerance, sums.exact, small=False)
            whole.add_span(sums)
        return _finish(whole or Sums(tolerance, exact=False), size)


#: Elements of two tensors that are read and compared at once; a multiple of BLOCK.
SPAN = 4 * BLOCK
#: Of what lies in memory, or in files that are mapped: a pause to give pages back costs as well.
MAPPED_SPAN = 32 * BLOCK
#: Threads that share a tensor: more gain nothing where files are read.
MOST_THREADS = 4
_AHEAD = 2  # spans that each thread may be ahead of the one whose turn it is

_Found = TypeVar("_Found")
#: Called with how many elements are done, and of how many.
Progress = Callable[[int, int], None]


class Threads:
    """Goes through tensors span by span, several spans at a time.

    Args:
        count: how many threads; each holds a few spans of both sides.
        total: how many elements there are to be compared.
        progress: told how many are done.
    """

    def __init__(self, count: int = 1, total: int = 0, progress: Progress | None = None) -> None:
        self._count = count
        self._done, self._total, self._progress = 0, total, progress
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            from concurrent.futures import ThreadPoolExecutor  # 4 ms, which small runs need not

            self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def in_order(
        self, work: Callable[[int, int], _Found], size: int, *, mapped: bool = False
    ) -> Iterator[_Found]:
        """Yield what is found of each span of a tensor, in their order; few are held at once."""
        span = MAPPED_SPAN if mapped else SPAN
        spans = [(at, min(at + span, size)) for at in range(0, size, span)]
        if self._pool is None or len(spans) == 1:
            for start, stop in spans:
                yield work(start, stop)
                self.told(stop - start)
            return
        left = iter(spans)
        running: deque[tuple[int, Future[_Found]]] = deque()
        for start, stop in itertools.islice(left, _AHEAD * self._count):
            running.append((stop - start, self._pool.submit(work, start, stop)))
        while running:
            size, first = running.popleft()
            yield first.result()
            self.told(size)
            for start, stop in itertools.islice(left, 1):
                running.append((stop - start, self._pool.submit(work, start, stop)))

    def told(self, elements: int) -> None:
        """Count elements that are done."""
        self._done = min(self._done + elements, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)


#: Goes through tensors in the thread that calls it.
ALONE = Threads()


def compare_tensors(
    a: Expression,
    b: Expression,
    tolerance: Tolerance,
    threads: Threads = ALONE,
    lowers: Sequence[Lower] = (),
) -> ArrayComparison:
    """Compare two tensors of one shape, as compare_arrays does; of large ones little is in memory.

    Args:
        a, b: opened.
        lowers: to which dtypes one side may have been rounded, if that is to be found, too.

    Raises:
        TypeError, ValueError: as compare_arrays does; or what reading the tensors raises.
    """
    size = math.prod(a.shape)
    arrays = (a.array(), b.array()) if size <= SPAN or (a.is_view and b.is_view) else None
    if arrays is not None:
        in_order = _as_in_memory(*arrays)
        if size <= SPAN or in_order is None:
            threads.told(size)
            compared = compare_arrays(*arrays, tolerance)
            if lowers:
                x, y = (np.ascontiguousarray(array).reshape(-1) for array in arrays)
                compared.rounded_to = next((low.dtype for low in lowers if low.rounds(x, y)), None)
            return compared
        a, b = map(InMemory, in_order)
    check_comparable(np.empty(0, a.numpy_dtype), np.empty(0, b.numpy_dtype))

    def of_span(start: int, stop: int) -> tuple[Sums, list[bool]]:
        x, y = a.read(start, stop), b.read(start, stop)
        found = sum_part(x, y, start, tolerance), [low.rounds(x, y) for low in lowers]
        a.give_back()
        b.give_back()
        return found

    found = [*threads.in_order(of_span, size, mapped=arrays is not None)]
    compared = summed([sums for sums, _ in found], size, tolerance)
    for number, low in enumerate(lowers):
        if compared.rounded_to is None and all(rounds[number] for _, rounds in found):
            compared.rounded_to = low.dtype
    return compared if arrays is None else in_row_major_order(compared, *arrays)


def same_elements(a: np.ndarray, b: np.ndarray, threads: Threads = ALONE) -> bool:
    """Return whether two arrays hold the same bytes, as same_bytes does."""
    in_order = _as_in_memory(a, b) if a.size > SPAN and a.shape == b.shape else None
    if in_order is None:
        return same_bytes(a, b)

    def of_span(start: int, stop: int) -> bool:
        same = same_bytes(*(flat[start:stop] for flat in in_order))
        give_back(a)
        give_back(b)
        return same

    return all(threads.in_order(of_span, a.size, mapped=True))


def _as_in_memory(a: np.ndarray, b: np.ndarray) -> list[np.ndarray] | None:
    """Return two arrays with their elements as they lie in memory; None: in unlike orders."""
    turned = is_transposed(a, b)
    if not turned and not (a.flags.c_contiguous and b.flags.c_contiguous):
        return None
    return [(array.T if turned else array).reshape(-1) for array in (a, b)]


_FLOATING = {BFLOAT16: 16, "Float16": 16, "Float32": 32, "Float64": 64}  # and their bits


@dataclass(frozen=True)
class Lower:
    """A dtype to which one of two tensors may have been rounded.

    Attributes:
        dtype: by MindSpore's name.
        is_of_a: whether A was, and not B.
    """

    dtype: str
    is_of_a: bool

    @classmethod
    def of(cls, a: str | None, b: str | None) -> Lower | None:
        """Return the one of 16 bits of two dtypes, where the other one has more; else None."""
        bits = {name: _FLOATING.get(name or "", 0) for name in (a, b)}
        low, high = min(bits, key=lambda n: bits[n]), max(bits, key=lambda n: bits[n])
        return cls(low, a == low) if low is not None and bits[low] == 16 < bits[high] else None

    def rounds(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Return whether the elements of the one are those of the other, rounded to it."""
        high, low = (b, a) if self.is_of_a else (a, b)
        for at in range(0, high.size, BLOCK):
            u, v = high[at : at + BLOCK], low[at : at + BLOCK]
            plain = u.dtype == v.dtype == np.float32 and self.dtype == BFLOAT16
            if plain and _same_bfloat16(u, v):
                continue
            if not np.array_equal(rounded(u, self.dtype), v, equal_nan=True):
                return False
        return True


def _same_bfloat16(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether float32 values are surely equal once rounded; of NaN it is not sure."""
    x, y = a.view(np.uint32), b.view(np.uint32)
    apart = x - y  # of bits: how far the one lies above the other, of one sign
    near = (apart + np.uint32(0x7FFF)) < np.uint32(0xFFFF)  # less than half of a step
    if not near.all():
        return False
    return not ((y & np.uint32(0xFFFF)).any() or np.isnan(b).any() or np.isnan(a).any())


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


def in_row_major_order(compared: ArrayComparison, a: np.ndarray, b: np.ndarray) -> ArrayComparison:
    """Say where in row-major order the first mismatch is, which was counted as memory goes."""
    if compared.metrics.first_mismatch is None or not is_transposed(a, b):
        return compared
    exact = is_exact(a) and is_exact(b)
    with np.errstate(all="ignore"):
        for start, block_a, block_b in blocks(a, b):
            sums = Sums(Tolerance(), exact, small=True)
            _add_block(sums, start, block_a, block_b)
            if sums.first is not None:
                break
    return replace(compared, metrics=replace(compared.metrics, first_mismatch=sums.first))


def _suits_library(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether blocks of these arrays are for the compiled library, as far as it can."""
    native = a.dtype == b.dtype == FLOAT32 and a.dtype.isnative and b.dtype.isnative
    return native and a.flags.c_contiguous and b.flags.c_contiguous and a.size > SMALL


def _add_block(
    sums: Sums, start: int, a: np.ndarray, b: np.ndarray, compiled: bool = False
) -> None:
    """Add two contiguous 1-d blocks of any numeric dtypes; numpy adds what the library cannot."""
    if compiled and add_compiled(sums, start, a, b):
        return
    # A float dtype that holds every element of both exactly, and the distance of two integers.
    same = a.dtype == b.dtype and a.dtype in _FLOATS
    dtype = a.dtype if same else _common_dtype(a, b)
    if dtype is None:
        add_plainly(sums, start, *(common_integers(a, b) if sums.exact else (a, b)))
        return
    dtype = FLOAT64 if dtype == FLOAT32 and sums.small else dtype.newbyteorder("=")
    buffers = scratch.of_dtype(dtype)
    add_floats(sums, start, _converted(a, dtype, buffers[0]), _converted(b, dtype, buffers[1]))


def _common_dtype(a: np.ndarray, b: np.ndarray) -> np.dtype | None:
    if "c" in (a.dtype.kind, b.dtype.kind):
        return None
    long = [x for x in (a, b) if x.dtype.kind in "iu" and x.dtype.itemsize == 8]
    if not (is_exact(a) and is_exact(b)):
        return WIDEST if long else np.result_type(a.dtype, b.dtype, FLOAT32)
    if any(x.min() < -_EXACT_IN_FLOAT64 or x.max() > _EXACT_IN_FLOAT64 for x in long):
        return None
    return FLOAT32 if max(a.itemsize, b.itemsize) <= 2 else FLOAT64


def _converted(array: np.ndarray, dtype: np.dtype, buffer: np.ndarray) -> np.ndarray:
    """Return the elements as `dtype` in native byte order, in `buffer` unless they are it."""
    if array.dtype == dtype:
        return array
    part = buffer[: array.size]
    np.copyto(part, array)
    return part


def _finish(sums: Sums, size: int) -> ArrayComparison:
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
        metrics,
        equal=equal,
        one_sided=sums.one_sided,
        unlike=sums.unlike,
        within=sums.within_tolerance,
        norms=(float(np.sqrt(sums.products.aa)), float(np.sqrt(sums.products.bb))),
    )


def _percent(count: int, size: int) -> float:
    return 100.0 * count / size if size else 100.0
