"""Two arrays → how far they are apart, block by block, in flat memory; large ones in spans.

What a comparison of a pair asks about its elements goes through an `Elements`. It answers at
once, or, of a pair that is large, asks for the parts of the answer: a `Cut`. Whoever does the work
answers its spans, in any order and anywhere, puts the parts together (`Gathering`) and compares the
pair again with the answer at hand. The answer is the same to the last digit, however it was had.

Spans begin at multiples of BLOCK elements, so that they have the blocks of the whole. A pair is cut
as it lies in memory if both sides are contiguous, row-major or both column-major, whatever their
dtypes. One row-major and one column-major array are compared at once, as each block of the one lies
all over the other; and so is what is put together from several files, as every span would have to
do that again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.judging.metrics.block_sums import (
    add_compiled,
    add_floats,
    add_plainly,
    common_integers,
    is_exact,
)
from mindrlhf_msprobe.comparison.judging.metrics.blocks import (
    BLOCK,
    FLOAT32,
    FLOAT64,
    WIDEST,
    EachBlock,
    Sums,
    Tolerance,
    blocks,
    is_transposed,
    same_bytes,
    scratch,
)
from mindrlhf_msprobe.findings import Metrics
from mindrlhf_msprobe.storage.arrays.expression import CHUNK, Expression
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, is_mapped
from mindrlhf_msprobe.storage.records import Record

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
    """

    metrics: Metrics
    equal: bool
    one_sided: bool
    unlike: bool
    within: bool
    norms: tuple[float, float] = (0.0, 0.0)


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


def compare_opened(a: Expression, b: Expression, tolerance: Tolerance) -> ArrayComparison:
    """Compare two tensors span by span, as compare_arrays does; little of them is in memory."""
    check_comparable(np.empty(0, a.numpy_dtype), np.empty(0, b.numpy_dtype))

    def spans() -> Iterator[Sums]:
        start = 0
        for x, y in zip(a.blocks(_AT_A_TIME), b.blocks(_AT_A_TIME), strict=True):
            yield sum_part(x, y, start, tolerance)
            start += len(x)

    return summed(spans(), math.prod(a.shape), tolerance)


_AT_A_TIME = CHUNK // BLOCK * BLOCK


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


#: Bytes of both sides that one span has, about.
SPAN_BYTES = 32 << 20
#: A pair of more than so many spans is cut.
LEAST_SPANS = 4

Records = tuple[Record, Record]
Arrays = tuple[np.ndarray, np.ndarray]
#: Whether the bytes are the same, or what compare_arrays returns.
Answer = bool | ArrayComparison
#: Of an answer, what one span tells.
Part = bool | Sums


@dataclass(frozen=True)
class Question:
    """What is to be known of the elements of two records.

    Attributes:
        tolerance: for the comparison of their elements; None: whether their bytes are the same.
    """

    records: Records
    tolerance: Tolerance | None

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from all others."""
        return (*(record.location for record in self.records), self.tolerance)


#: Questions, by their keys, and what the answers are.
Answers = tuple[tuple[tuple[object, ...], Answer], ...]


@dataclass(frozen=True)
class Cut:
    """A question of which every span is to be answered by itself.

    Attributes:
        layout: of the arrays; a file that has another one by then was replaced.
        size: of each array, in elements.
        span: elements of a span, a multiple of BLOCK; the last one may have fewer.
        item_bytes: of one element on both sides together.
    """

    question: Question
    layout: tuple[object, ...]
    size: int
    span: int
    item_bytes: int

    def __len__(self) -> int:
        return -(-self.size // self.span)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return where a span begins and ends."""
        return number * self.span, min((number + 1) * self.span, self.size)

    def bytes(self, number: int) -> int:
        """Return how many bytes of both sides a span has."""
        start, stop = self.bounds(number)
        return (stop - start) * self.item_bytes


class Unanswered(Exception):
    """A question to a pair that is to be cut.

    Attributes:
        cut: into what.
    """

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)
        self.cut = cut


class Elements:
    """Answers questions about the elements of two records.

    Args:
        span_bytes: of a pair of more than LEAST_SPANS times as many bytes, spans are to be
            answered by themselves; None: all is answered at once.
        answers: what is known already.
    """

    def __init__(self, span_bytes: int | None = None, answers: Answers = ()) -> None:
        self._span_bytes = span_bytes
        self._answers = dict(answers)

    def same_bytes(self, records: Records, arrays: Arrays) -> bool:
        """Return whether the elements of two records, of one shape, are the same bytes.

        Raises:
            Unanswered: the pair is large.
        """
        if arrays[0].dtype != arrays[1].dtype:
            return False
        known = self._known(Question(records, None), arrays)
        return same_bytes(*arrays) if known is None else bool(known)

    def compare(self, records: Records, arrays: Arrays, tolerance: Tolerance) -> ArrayComparison:
        """Compare the elements of two records, of one shape, as compare_arrays does.

        Raises:
            TypeError, ValueError: as compare_arrays does.
            Unanswered: the pair is large.
        """
        known = self._known(Question(records, tolerance), arrays)
        if isinstance(known, ArrayComparison):
            return in_row_major_order(known, *arrays)
        return compare_arrays(*arrays, tolerance)

    def _known(self, question: Question, arrays: Arrays) -> Answer | None:
        """Return the answer to a question if it is known; ask for the spans of a large pair."""
        if question.key in self._answers:
            return self._answers[question.key]
        a, b = arrays
        if self._span_bytes is None or a.nbytes + b.nbytes <= LEAST_SPANS * self._span_bytes:
            return None
        in_order = (a.flags.c_contiguous and b.flags.c_contiguous) or is_transposed(a, b)
        if not (in_order and is_mapped(a) and is_mapped(b)):
            return None
        item_bytes = a.itemsize + b.itemsize
        span = max(1, self._span_bytes // (BLOCK * item_bytes)) * BLOCK
        if a.size > span:
            check_comparable(a, b)
            raise Unanswered(Cut(question, _layout(arrays), a.size, span, item_bytes))
        return None


#: Answers everything at once.
AT_ONCE = Elements()


def _layout(arrays: Arrays) -> tuple[object, ...]:
    return tuple(part for x in arrays for part in (x.dtype.str, x.shape, x.flags.c_contiguous))


def answer_span(cut: Cut, number: int) -> Part:
    """Tell what one span says.

    The files are mapped anew, so that no page of them stays when it is done.

    Raises:
        ArrayFileError: a file cannot be read any more, or another one has taken its place.
    """
    first, second = cut.question.records
    arrays = first.array(), second.array()
    if _layout(arrays) != cut.layout:
        raise ArrayFileError.saying("unread.another_file")
    transposed = is_transposed(*arrays)
    a, b = ((x.T if transposed else x).reshape(-1) for x in arrays)
    start, stop = cut.bounds(number)
    if cut.question.tolerance is None:
        return same_bytes(a[start:stop], b[start:stop])
    return sum_part(a[start:stop], b[start:stop], start, cut.question.tolerance)


class Gathering:
    """The parts of an answer, as they come."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._parts: dict[int, Part] = {}

    def add(self, number: int, part: Part) -> Answer | None:
        """Take in what a span says; return the answer as soon as it is known."""
        self._parts[number] = part
        if part is False:
            return False
        if len(self._parts) < len(self._cut):
            return None
        tolerance = self._cut.question.tolerance
        if tolerance is None:
            return True
        in_order = [self._parts[number] for number in range(len(self._cut))]
        return summed(cast(list[Sums], in_order), self._cut.size, tolerance)
