"""Two arrays → pairs of blocks that fit the cache; and what counts as the same in them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from fractions import Fraction
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
    than BLOCK elements. Pages of contiguous arrays that open_npy mapped are given back on the way;
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
