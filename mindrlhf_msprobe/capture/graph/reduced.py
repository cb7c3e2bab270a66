"""Statistics of a tensor that are reduced inside a compiled graph, and what the host makes of them.

What leaves the graph is an array of at most 48 bytes, whatever the tensor's size: `reduced` is
compiled into it, and `leaf_of` reads it. The edges of integers stand in it as digits of 16 bits.

max and min are exact. mean and norm come of sums in float32 (in float64 for float64 tensors), along
rows, then over the rows, of elements over the largest of them, so that no square overflows. There
is no fingerprint: inside a graph MindSpore has no operator that reads a tensor's bits. Every
operator here is in the graph once for each tensor, so they are few.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import functools
import math
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.graph.outline import TensorOutline
from mindrlhf_msprobe.capture.graph.probes import SITES, Question
from mindrlhf_msprobe.capture.graph.switch import reduces
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.leaves import Leaf

#: How a tensor leaves the graph: as it is, or as statistics of floats, of integers, of bools. Of an
#: empty one only the news leaves it: it has no elements.
WHOLE, FLOATS, WIDE_FLOATS, INTEGERS, UNSIGNED, BOOLS, EMPTY = (
    *("whole", "floats", "wide floats"),
    *("integers", "unsigned", "bools", "empty"),
)
_KINDS = {"Float16": FLOATS, "BFloat16": FLOATS, "Float32": FLOATS, "Float64": WIDE_FLOATS}
_KINDS |= dict.fromkeys(("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32"), INTEGERS)
_KINDS |= {"UInt64": UNSIGNED, "Bool": BOOLS}

_LENGTHS = {FLOATS: 6, WIDE_FLOATS: 6, INTEGERS: 10, UNSIGNED: 10, BOOLS: 2}

#: The most bytes that leave the graph for a tensor that is reduced.
MOST_BYTES = 6 * 8

_BASE = 1 << 16
_DIGITS = 4  # of an integer of 64 bits
_ONE = Tensor(np.zeros(1, np.float32))


class _Reduction(Question):
    """How a tensor of a cell leaves the graph."""

    in_python = WHOLE

    def answer(self, cell: int, tensor: Any) -> str:
        if not isinstance(tensor, TensorOutline):
            return WHOLE
        if 0 in tensor.shape:
            return EMPTY
        if cell in SITES.whole or not reduces():
            return WHOLE
        return _KINDS.get(tensor.dtype, WHOLE)


class _Rows(Question):
    """A shape of two axes, as near to a square as it can be, into which a tensor fits."""

    in_python = 1, -1  # not read

    def answer(self, tensor: Any) -> tuple[int, int]:
        size = math.prod(tensor.shape)
        rows = next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)
        return rows, size // rows


REDUCTION = _Reduction()
ROWS = _Rows()
_depend = ops.Depend()
_stack = ops.Stack(0)
_bitwise_and = ops.BitwiseAnd()
_right_shift = ops.RightShift()
_LOW = Tensor(_BASE - 1, mindspore.int64)
_SHIFTS = tuple(Tensor(16 * n, mindspore.int64) for n in range(_DIGITS - 1, -1, -1))
_LOWEST = Tensor(np.int64(-(1 << 63)))
#: No zero, by which the elements are divided where all of them are zero.
_SMALLEST = {
    FLOATS: float(np.finfo(np.float32).tiny),
    WIDE_FLOATS: float(np.finfo(np.float64).tiny),
}
_SMALLEST32 = Tensor(_SMALLEST[FLOATS], mindspore.float32)
_SMALLEST64 = Tensor(_SMALLEST[WIDE_FLOATS], mindspore.float64)


def reduced(how, tensor):
    """Return what leaves the graph for a tensor."""
    if how == "whole":
        return tensor
    if how == "empty":
        return _depend(_ONE, tensor)
    rows = F.reshape(tensor, ROWS(tensor))
    if how == "floats":
        values = F.cast(rows, mindspore.float32)
        edges = (F.reduce_max(values), F.reduce_min(values))
        return _stack(edges + _sums(values, edges, _SMALLEST32) + _counts(values))
    if how == "wide floats":
        edges = (F.reduce_max(rows), F.reduce_min(rows))
        counts = _counts(rows)
        counts = (F.cast(counts[0], mindspore.float64), F.cast(counts[1], mindspore.float64))
        return _stack(edges + _sums(rows, edges, _SMALLEST64) + counts)
    values = F.cast(rows, mindspore.float32)
    edges = (F.reduce_max(values), F.reduce_min(values))
    if how == "bools":
        return _stack(edges)
    exact = F.cast(rows, mindspore.int64)
    if how == "unsigned":  # in the order of its values: the host takes the same off again
        exact = exact + _LOWEST
    digits = _digits(F.reduce_max(exact)) + _digits(F.reduce_min(exact))
    return _stack(_sums(values, edges, _SMALLEST32) + digits)


def _sums(values, edges, smallest):
    """Return the sum and the sum of squares, of values over the largest of them."""
    scaled = values / F.maximum(F.maximum(edges[0], -edges[1]), smallest)
    return (_total(scaled), _total(scaled * scaled))


def _total(rows):
    return F.reduce_sum(F.reduce_sum(rows, 1))


def _counts(values):
    """Return how many are NaN, and how many infinite."""
    nans, infs = F.isnan(values), F.isinf(values)
    return (
        F.reduce_sum(F.cast(nans, mindspore.float32)),
        F.reduce_sum(F.cast(infs, mindspore.float32)),
    )


def _digits(number):
    digits = ()
    for shift in _SHIFTS:
        digit = _bitwise_and(_right_shift(number, shift), _LOW)
        digits = (*digits, F.cast(digit, mindspore.float32))
    return digits


def leaf_of(tensor: TensorOutline, numbers: np.ndarray) -> Leaf:
    """Return the description of a tensor for which `reduced` returned some numbers.

    Raises:
        ValueError: these are not as many numbers as it returns.
    """
    how, size = _KINDS[tensor.dtype], math.prod(tensor.shape)
    if numbers.shape != (_LENGTHS[how],):
        known = {"shape": str(numbers.shape), "expected": f"({_LENGTHS[how]},)"}
        raise ValueError(message("fault.statistics", **known))
    found = [float(number) for number in numbers]
    given: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": tensor.dtype}
    given |= {"shape": tensor.shape, "nan_count": 0, "inf_count": 0}
    if how == BOOLS:
        return Leaf(**given, max=bool(found[0]), min=bool(found[1]))
    if how in (FLOATS, WIDE_FLOATS):
        largest, smallest, total, squares, nans, infs = found
        given |= {"nan_count": round(nans), "inf_count": round(infs)}
        if nans:  # on some devices a maximum passes over it
            return Leaf(**given, max=math.nan, min=math.nan, mean=math.nan, norm=math.nan)
        if infs:
            mean = sum(edge for edge in (largest, smallest) if math.isinf(edge))
            return Leaf(**given, max=largest, min=smallest, mean=mean, norm=math.inf)
        scale = max(largest, -smallest, _SMALLEST[how])
    else:
        total, squares = found[:2]
        edges = [_number(found[at : at + _DIGITS]) for at in (2, 2 + _DIGITS)]
        half = 1 << 63
        edges = [edge - (edge >= half) * 2 * half + (how == UNSIGNED) * half for edge in edges]
        largest, smallest = edges
        scale = max(*(abs(float(np.float32(edge))) for edge in edges), _SMALLEST[FLOATS])
    norm = math.sqrt(squares) * scale
    return Leaf(**given, max=largest, min=smallest, mean=total / size * scale, norm=norm)


def _number(digits: list[float]) -> int:
    return functools.reduce(lambda number, digit: number * _BASE + round(digit), digits, 0)
