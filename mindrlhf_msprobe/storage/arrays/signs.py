"""The direction of a gradient: one bit an element, and how its elements are distributed.

msprobe's grad_probe keeps `gradient > 0` as a bool array, one byte an element; here eight elements
share a byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, bfloat16_bits_to_float32, open_npy

_BLOCK = 1 << 20  # bytes of packed bits that are compared at a time
_ELEMENTS = 1 << 16  # of a gradient that are looked at at a time; a multiple of 8
_SET_BITS = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def packed_signs(gradient: np.ndarray, *, bfloat16: bool = False) -> np.ndarray:
    """Return which elements are above zero, as bits: uint8 [ceil(size / 8)].

    The elements are taken in C order, the first one is the highest bit of the first byte; the bits
    behind the last element are 0. Zeros, negative numbers and NaN are 0, as in msprobe.

    Args:
        gradient: any real dtype, any shape.
        bfloat16: whether it holds the bits of bfloat16 as uint16.
    """
    packed = np.empty(math.ceil(gradient.size / 8), np.uint8)
    for start, block in _blocks(gradient, bfloat16):
        bits = np.packbits(block > 0)
        packed[start // 8 : start // 8 + len(bits)] = bits
    return packed


def shares_within(
    gradient: np.ndarray, bounds: Sequence[float], *, bfloat16: bool = False
) -> list[float]:
    """Return the share of elements in each interval, then that of zeros: len(bounds) + 2 numbers.

    The intervals are (-inf, b0], (b0, b1], …, (bn, inf), as msprobe's grad_probe has them; NaN lies
    in none. Of a gradient without elements all shares are 0.

    Args:
        gradient: any real dtype, any shape; compared as float32, wider ones as they are.
        bounds: in ascending order.
        bfloat16: as `packed_signs` has it.
    """
    found = [0] * (len(bounds) + 2)  # at or below each bound, numbers, zeros
    for _, block in _blocks(gradient, bfloat16):
        tests = [block <= block.dtype.type(bound) for bound in bounds]
        tests += [block == block, block == 0]
        found = [known + int(np.count_nonzero(test)) for known, test in zip(found, tests)]
    counts = [*np.diff([0, *found[:-1]]).tolist(), found[-1]]
    return [count / max(1, gradient.size) for count in counts]


def _blocks(gradient: np.ndarray, bfloat16: bool) -> Iterator[tuple[int, np.ndarray]]:
    """Yield blocks of the elements and where each begins, as float32 or a wider dtype."""
    flat = gradient.reshape(-1)
    for start in range(0, flat.size, _ELEMENTS):
        block = flat[start : start + _ELEMENTS]
        if bfloat16:
            yield start, bfloat16_bits_to_float32(block)
        else:
            yield start, block.astype(np.result_type(block, np.float32), copy=False)


def read_signs(path: str | Path, size: int) -> np.ndarray:
    """Map the packed signs of a gradient into memory, read-only: uint8 [ceil(size / 8)].

    Args:
        size: how many elements the gradient has.

    Raises:
        ArrayFileError: the file cannot be used, or holds another number of bits.
    """
    bits = open_npy(path)
    if bits.dtype != np.uint8 or bits.shape != (math.ceil(size / 8),):
        held = f"{bits.dtype.name} {list(bits.shape)}"
        raise ArrayFileError.saying("unread.other_signs", held=held, size=size)
    return bits


def equal_signs(a: np.ndarray, b: np.ndarray, size: int) -> int:
    """Return how many of `size` elements have the same bit in `a` and `b`.

    Args:
        a, b: packed signs, uint8 [ceil(size / 8)].
    """
    unequal = 0
    for start in range(0, len(a), _BLOCK):
        other = np.bitwise_xor(a[start : start + _BLOCK], b[start : start + _BLOCK])
        if start + len(other) == len(a) and size % 8:
            other[-1] &= 0xFF << (8 - size % 8) & 0xFF  # whatever stands behind the last element
        unequal += int(_SET_BITS[other].sum(dtype=np.int64))
    return size - unequal
