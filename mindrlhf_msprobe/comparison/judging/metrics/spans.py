"""A pair of large tensors, cut into spans that are compared by themselves.

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

from typing import cast

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.judging.metrics.arrays import (
    ArrayComparison,
    check_comparable,
    compare_arrays,
    in_row_major_order,
    sum_span,
    summed,
)
from mindrlhf_msprobe.comparison.judging.metrics.blocks import (
    BLOCK,
    Tolerance,
    is_transposed,
    same_bytes,
)
from mindrlhf_msprobe.comparison.judging.metrics.sums import Sums
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, is_mapped
from mindrlhf_msprobe.storage.records import Record

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
    """What is asked about the elements of two records.

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
    """Answers what is asked about the elements of two records.

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
    return sum_span(a, b, start, stop, cut.question.tolerance)


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
