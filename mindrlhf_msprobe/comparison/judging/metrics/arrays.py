"""Two arrays → how far they are apart, block by block, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

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
    Tolerance,
    blocks,
    is_transposed,
    scratch,
)
from mindrlhf_msprobe.comparison.judging.metrics.sums import (
    FLOAT32,
    FLOAT64,
    WIDEST,
    EachBlock,
    Sums,
)
from mindrlhf_msprobe.findings import Metrics

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


def sum_span(a: np.ndarray, b: np.ndarray, start: int, stop: int, tolerance: Tolerance) -> Sums:
    """Return what the elements from `start` to `stop` add to the sums of two large arrays.

    `summed` of the sums of all spans is what compare_arrays returns, to the last digit.

    Args:
        a, b: 1-d and contiguous, of more than SMALL elements.
        start: a multiple of BLOCK; and so is stop, but for the end.
    """
    return sum_part(a[start:stop], b[start:stop], start, tolerance)


def sum_part(a: np.ndarray, b: np.ndarray, start: int, tolerance: Tolerance) -> Sums:
    """Return what a span of two large arrays adds to their sums, as `sum_span` does.

    Args:
        a, b: the span of each: 1-d and contiguous.
        start: the index of its first element, a multiple of BLOCK.
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


def in_row_major_order(compared: ArrayComparison, a: np.ndarray, b: np.ndarray) -> ArrayComparison:
    """Say where in row-major order the first mismatch is, which was counted as memory goes."""
    if compared.metrics.first_mismatch is None or not is_transposed(a, b):
        return compared
    with np.errstate(all="ignore"):
        first = _first_different(a, b, is_exact(a) and is_exact(b))
    return replace(compared, metrics=replace(compared.metrics, first_mismatch=first))


def _suits_library(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether blocks of these arrays are for the compiled library, as far as it can."""
    alike = a.dtype == b.dtype == FLOAT32 and a.dtype.isnative and b.dtype.isnative
    return alike and a.flags.c_contiguous and b.flags.c_contiguous and a.size > SMALL


def _first_different(a: np.ndarray, b: np.ndarray, exact: bool) -> int | None:
    """Return the row-major index of the first different element of column-major arrays."""
    for start, block_a, block_b in blocks(a, b):
        sums = Sums(Tolerance(), exact, small=True)
        _add_block(sums, start, block_a, block_b)
        if sums.first is not None:
            return sums.first
    return None


def _add_block(
    sums: Sums, start: int, a: np.ndarray, b: np.ndarray, compiled: bool = False
) -> None:
    """Add two contiguous 1-d blocks of any numeric dtypes; numpy adds what the library cannot."""
    if compiled and add_compiled(sums, start, a, b):
        return
    dtype = _working_dtype(a, b, sums.small)
    if dtype is None:
        add_plainly(sums, start, *(common_integers(a, b) if sums.exact else (a, b)))
        return
    buffers = scratch.of_dtype(dtype)
    add_floats(sums, start, _converted(a, dtype, buffers[0]), _converted(b, dtype, buffers[1]))


def _working_dtype(a: np.ndarray, b: np.ndarray, small: bool) -> np.dtype | None:
    """Return a float dtype that holds every element of both exactly; None if there is none.

    The distance of two integers is exact in it, too.
    """
    same = a.dtype == b.dtype and a.dtype in _FLOATS
    dtype = a.dtype if same else _common_dtype(a, b)
    if dtype is None:
        return None
    return FLOAT64 if dtype == FLOAT32 and small else dtype.newbyteorder("=")


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
