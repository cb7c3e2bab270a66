"""max, min, mean, norm and what is not finite in an array of numbers, on the host."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.common.compiled import library_beside
from mindrlhf_msprobe.storage.arrays.npy import bfloat16_bits_to_float32

_BLOCK = 1 << 16  # elements converted to float64 at a time: 512 KiB
_FLOAT32_BLOCK = 1 << 8  # float32 elements added up before float64 takes over
# Between these sizes squares and their sum over a block neither overflow nor vanish in float32.
_FLOAT32_SAFE = (1e-12, 1e16)
# Between these sizes squares of float64 and their sum neither overflow nor vanish, however many.
_FLOAT64_SAFE = (1e-140, 1e140)
_LIBRARY = library_beside(__file__, "_statistics")


class Statistics(NamedTuple):
    """What is known of an array's elements.

    Attributes:
        max, min: IEEE rules: one NaN makes them NaN. Exact for integers.
        mean, norm: accumulated in float64; norm is the L2 norm, infinite only where it is
            itself beyond float64. None for bool.
        nan_count, inf_count: elements.
    """

    max: Any = None
    min: Any = None
    mean: Any = None
    norm: Any = None
    nan_count: int = 0
    inf_count: int = 0


class _Sums(ctypes.Structure):
    """As `statistics` in _statistics.c lays it out."""

    _fields_ = (
        ("sum", ctypes.c_double),
        ("squares", ctypes.c_double),
        ("max", ctypes.c_float),
        ("min", ctypes.c_float),
        ("non_finite", ctypes.c_int32),
    )


def _pass_of(name: str) -> Any:
    function = getattr(_LIBRARY, name, None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Sums))
        function.restype = None
    return function


_FLOAT32 = _pass_of("msprobe_float32")
_BFLOAT16 = _pass_of("msprobe_bfloat16")


def statistics_of(array: np.ndarray, *, bfloat16: bool = False) -> Statistics:
    """Return the statistics of a contiguous array; complex numbers count by their absolute values.

    Args:
        bfloat16: whether the array holds the bits of bfloat16 as uint16.
    """
    if array.size == 0:
        return Statistics()
    compiled = _BFLOAT16 if bfloat16 else _FLOAT32 if array.dtype == np.float32 else None
    if compiled is not None and array.flags.aligned:
        sums = _Sums()
        compiled(array.ctypes.data, array.size, ctypes.byref(sums))
        if not sums.non_finite:
            norm = math.sqrt(sums.squares)
            return Statistics(sums.max, sums.min, sums.sum / array.size, norm)
    values = array.reshape(-1)  # numpy 1 computes with 0-d arrays in other dtypes than with others
    if bfloat16:
        values = bfloat16_bits_to_float32(values)
    elif values.dtype.kind == "c":
        values = np.abs(values)
    with np.errstate(all="ignore"):
        return _by_numpy(values)


def _by_numpy(values: np.ndarray) -> Statistics:
    largest, smallest = _number(values.max()), _number(values.min())
    if values.dtype.kind == "b":
        return Statistics(largest, smallest)
    size = max(abs(largest), abs(smallest))
    total, squares = _sums(values, size)
    nans = infs = 0
    if values.dtype.kind == "f" and not np.isfinite(np.float64(largest) - smallest):
        nans = int(np.count_nonzero(np.isnan(values)))
        infs = int(np.count_nonzero(np.isinf(values)))
    mean, norm = total / values.size, float(np.sqrt(squares))
    if 0 < size < np.inf and not _FLOAT64_SAFE[0] < size < _FLOAT64_SAFE[1]:
        mean, norm = _of_extreme_sizes(values, size, mean)
    return Statistics(largest, smallest, mean, norm, nans, infs)


def _sums(flat: np.ndarray, size: float) -> tuple[float, float]:
    """Return the sum and the sum of squares, accumulated in float64 block by block.

    Squares of float32 of ordinary `size` (its largest absolute value) are first added up over
    short blocks as they are: many times faster, and right to 1e-6, since none are negative.
    """
    if flat.dtype == np.float32 and _FLOAT32_SAFE[0] < size < _FLOAT32_SAFE[1]:
        whole = flat.size // _FLOAT32_BLOCK * _FLOAT32_BLOCK
        rows = flat[:whole].reshape(-1, 1, _FLOAT32_BLOCK)
        squares = float(np.matmul(rows, rows.transpose(0, 2, 1)).sum(dtype=np.float64))
        rest = flat[whole:].astype(np.float64)
        return float(flat.sum(dtype=np.float64)), squares + float(np.dot(rest, rest))
    return _by_blocks(flat)


def _by_blocks(flat: np.ndarray, exponent: int = 0) -> tuple[float, float]:
    """Return the sum and the sum of squares of elements over a power of two, in float64."""
    total = squares = 0.0
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        if exponent:
            block = np.ldexp(block, -exponent)
        total += float(block.sum())
        squares += float(np.dot(block, block))
    return total, squares


def _of_extreme_sizes(flat: np.ndarray, size: float, mean: float) -> tuple[float, float]:
    """Return mean and norm of elements whose squares, or whose sum, float64 cannot hold.

    They are summed up scaled by a power of two, so that no bit of them is rounded, and rounded as
    plain sums where those are right. The mean is `mean`, that of the plain sum, where it is finite.
    """
    exponent = int(np.frexp(size)[1])
    total, squares = _by_blocks(flat, exponent)
    if not np.isfinite(mean):
        mean = float(np.ldexp(total / flat.size, exponent))
    return mean, float(np.ldexp(np.sqrt(squares), exponent))


def _number(value: np.generic) -> Any:
    """Return a Python number; a long double, which has none of its own, is rounded to a float."""
    return float(value) if isinstance(value, np.longdouble) else value.item()
