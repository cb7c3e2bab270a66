"""Sketches of tensors: short signed sums of every row, and a fingerprint a row.

The last axis of a tensor is its columns, all others together, in C order, its rows; a tensor of one
axis is one row. Of each row one signed sum is kept for each block of 64 columns, with the same
signs in every block, so that sketches are linear: sketch(a) - sketch(b) = sketch(a - b), partial
sums add, and columns that are put side by side at the border of a block have their sketches side by
side.

A sketch, little-endian: uint64 [rows], xxh3_64 (seed 0) of each row's bytes in the dtype that was
recorded (bfloat16: two bytes an element); float32 [rows, ceil(columns / 64)], the sum of
sign[i mod 64] * x[i] over a block, whose halves are added to each other until one number is left
(Float64 in float64, rounded at the end), so that it is the same on every machine; zeros up to a
multiple of 8 bytes. The file begins with `HEAD`. Equal tensors of a place share a sketch.

How near the distance of two sketches is to that of the rows: let d be the difference of rows, d_b
its blocks of 64, G the sum of the d_b d_b^T. For signs drawn independently the expected sum of the
squares is tr G = |d|^2, with a relative standard error of at most sqrt(2 / r), where r =
(tr G)^2 / |G|^2 lies between 1 and 64; by Chebyshev's inequality it is off by more than t |d|^2 in
at most 2 / (r t^2) of the draws. For noise in n rows of k blocks that is sqrt(2 / (n k)), for one
pattern over the columns with a factor a row sqrt(2 / k), for one column 0, and for the same pattern
in every block sqrt(2), the worst; for constants, alternating columns and the other Walsh functions
the signs below make it 0. A sum is rounded by about 2^-25 of its block's norm. One sum a block is
the "tug of war" sketch of Alon, Matias and Szegedy (1996); blocks side by side are CountSketch
(Charikar, Chen, Farach-Colton, 2002) with a fixed place for each column; projections on +-1:
Achlioptas (2003).

All sketches of a phase, step and rank lie in one file, one behind the other.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import xxhash

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, bfloat16_bits_to_float32, open_part

ALGORITHM = "signed_sums_64"
#: What the file of sketches begins with; the first sketch lies behind it.
HEAD = b"msprobe sketches"

#: Columns of one sum. Two neighbouring sums added up would be no sketch: as their signs are the
#: same, the product of two columns 64 apart would not vanish from the expected square.
COLUMNS = 64
# Bit i: the sign of column i is minus. Drawn with seed 17 among the sequences whose sum with every
# Walsh function is 8 or -8 ("bent"): a difference that is constant, or alternates, over columns is
# then measured exactly. They belong to the algorithm, as its name does: others need another name.
_MINUS = 0x045BDC7C91948A70
SIGNS = np.array([-1 if _MINUS >> i & 1 else 1 for i in range(COLUMNS)], np.float32)

#: What is kept of a tensor beside its statistics.
WHOLE, MASK, SKETCH, STATISTICS = "whole", "mask", "sketch", "statistics"
#: The floating dtypes of which there are sums, by MindSpore's name.
FLOATS = ("Float32", "BFloat16", "Float16", "Float64")
#: Rows of floats with fewer columns are stored whole: their sketches would be as large.
SHORT = 16
#: Bytes of a tensor that is stored whole, in its own dtype.
MOST_WHOLE = 4 << 20
#: Bytes of a row of a mask of three axes or more that is stored whole.
MOST_OF_A_MASK_ROW = 2048
_ITEM_SIZES = {
    **{"Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Float16": 2, "BFloat16": 2},
    **{"Int32": 4, "UInt32": 4, "Float32": 4},
}

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class SketchPlace:
    """Where the sketch of a tensor lies, as its record says.

    Attributes:
        algorithm: its name.
        block: the columns of one sum, 64; 0 where there are fingerprints alone, as of integers.
        offset: of its first byte in the file.
        why: it could not be written, or cannot be read; None if it could.
    """

    algorithm: str
    block: int
    offset: int
    why: Message | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return SketchPlace, (self.algorithm, self.block, self.offset, self.why)


@dataclass(frozen=True, eq=False, slots=True)
class Sketch:
    """What is kept of a tensor's rows.

    Attributes:
        shape: of the tensor.
        block: the columns of one sum, 64; 0: there are none.
        fingerprints: uint64 [rows]: xxh3_64 of each row's bytes, in the dtype that was recorded.
        sums: float32 [rows, blocks]; may be mapped from a file.
    """

    shape: tuple[int, ...]
    block: int
    fingerprints: np.ndarray
    sums: np.ndarray
    algorithm: str = ALGORITHM

    @property
    def rows(self) -> int:
        """The number of rows."""
        return rows_of(self.shape)[0]

    @property
    def columns(self) -> int:
        """The number of columns."""
        return rows_of(self.shape)[1]


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many rows and columns a tensor has; one of a single axis is a row."""
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def blocks_of(columns: int, block: int) -> int:
    """Return how many sums a row has; 0 for a block of 0 columns."""
    return -(-columns // block) if block else 0


def size_of(shape: tuple[int, ...], block: int) -> int:
    """Return how many bytes the sketch of a tensor takes."""
    rows, columns = rows_of(shape)
    return -(-rows * (8 + 4 * blocks_of(columns, block)) // _ALIGNMENT) * _ALIGNMENT


def parts_of(buffer: np.ndarray, shape: tuple[int, ...], block: int) -> Sketch:
    """Return the sketch that lies in a buffer of `size_of` bytes: the fingerprints, then the sums.

    Args:
        buffer: uint8; the numbers in it are little-endian.
    """
    rows, columns = rows_of(shape)
    blocks = blocks_of(columns, block)
    fingerprints = buffer[: 8 * rows].view("<u8")
    sums = buffer[8 * rows : rows * (8 + 4 * blocks)].view("<f4").reshape(rows, blocks)
    return Sketch(shape, block, fingerprints, sums)


def kept_of(dtype: str | None, shape: tuple[int, ...] | None) -> str:
    """Return what `task: sketch` keeps of a tensor beside its statistics.

    Token ids, positions, lengths and masks, which name the rows, are stored whole, and so are rows
    that are not longer than their sketches, up to `MOST_WHOLE` bytes. Of a tensor without columns
    or elements, of complex numbers and of fewer than 16 floats of one axis there is nothing more.

    Args:
        dtype: by MindSpore's name.

    Returns:
        MASK: integers or bools that may be an attention mask of three or four axes, as they have no
        fewer columns than queries: stored whole while there is `MaskRoom`, else as a sketch.
    """
    if not shape or not dtype or 0 in shape:
        return STATISTICS
    is_float = dtype in FLOATS
    if not is_float and not dtype.startswith(("Int", "UInt", "Bool")):
        return STATISTICS
    short = shape[-1] < SHORT
    if is_float and short and len(shape) == 1:
        return STATISTICS
    size = _ITEM_SIZES.get(dtype, 8)
    if math.prod(shape) * size > MOST_WHOLE:
        return SKETCH
    if short if is_float else len(shape) <= 2:
        return WHOLE
    may_be_mask = not is_float and len(shape) <= 4 and shape[-1] >= shape[-2]
    return MASK if may_be_mask and shape[-1] * size <= MOST_OF_A_MASK_ROW else SKETCH


class MaskRoom:
    """How many bytes of masks of three axes or more one phase may store.

    One mask is always stored; all together take no more than it, or than 256 KiB and a 4096th of
    the bytes of the tensors that are sketched. So what is not a mask, as the choices of experts in
    every layer, cannot take more, and sketches keep their size: of a network of 32 layers of 12
    bfloat16 tensors with 4096 columns a token has 3 MB, and its row of the mask at most 2 KiB.
    """

    _FREE = 256 << 10
    _SHARE = 4096

    def __init__(self) -> None:
        self._left = float(self._FREE)
        self._stored: set[str | None] = set()

    def sketched(self, size: int) -> None:
        """Take note of a tensor of so many bytes of which there is a new sketch."""
        self._left += size / self._SHARE

    def has(self, size: int, fingerprint: str | None) -> bool:
        """Return whether a mask is stored; equal ones are stored once, and take room once."""
        if fingerprint in self._stored:
            return True
        if self._stored and size > self._left:
            return False
        self._left -= size
        self._stored.add(fingerprint)
        return True


def block_for(dtype: str | None) -> int:
    """Return the columns of one sum of a tensor: 0, as there are none, unless it is of floats."""
    return COLUMNS if dtype in FLOATS else 0


def sketch_of(array: np.ndarray, *, bfloat16: bool = False) -> Sketch:
    """Return the sketch of a tensor, as `bytes_of` computes it."""
    return parts_of(bytes_of(array, bfloat16=bfloat16), array.shape, _block(array, bfloat16))


def _block(array: np.ndarray, bfloat16: bool) -> int:
    return COLUMNS if bfloat16 or array.dtype.kind == "f" else 0


def bytes_of(array: np.ndarray, *, bfloat16: bool = False) -> np.ndarray:
    """Return the sketch of a tensor as the file of sketches holds it: uint8; computed by numpy.

    Halves of 64 signed columns are added to each other until one number is left, in float32, of
    float64 in float64; so the sums are the same bits wherever they are computed.

    Args:
        array: C-contiguous, not empty. Of integers and bools there are fingerprints alone.
        bfloat16: whether it holds the bits of bfloat16 as uint16.
    """
    block = _block(array, bfloat16)
    buffer = np.zeros(size_of(array.shape, block), np.uint8)
    sketch = parts_of(buffer, array.shape, block)
    rows = array.reshape(sketch.rows, sketch.columns)
    sketch.fingerprints[:] = [xxhash.xxh3_64_intdigest(row.data) for row in rows.view(np.uint8)]
    at_once = max(1, (1 << 18) // sketch.columns)  # elements that are summed up at once
    for start in range(0, sketch.rows if block else 0, at_once):
        here = rows[start : start + at_once]
        sums = _sums(bfloat16_bits_to_float32(here) if bfloat16 else here)
        with np.errstate(over="ignore"):
            sketch.sums[start : start + at_once] = sums
    return buffer


def _sums(rows: np.ndarray) -> np.ndarray:
    """Return the sums of every 64 columns: float32 or float64 [rows, blocks]."""
    wide = np.float64 if rows.dtype == np.float64 else np.float32
    count, columns = rows.shape
    padded = np.zeros((count, blocks_of(columns, COLUMNS) * COLUMNS), wide)
    padded[:, :columns] = rows
    with np.errstate(all="ignore"):
        found = padded.reshape(count, -1, COLUMNS) * SIGNS.astype(wide)
        half = COLUMNS
        while half > 1:
            half //= 2
            found = found[..., :half] + found[..., half:]
    return found[..., 0]


def read_sketch(path: str | Path, place: SketchPlace, shape: tuple[int, ...]) -> Sketch:
    """Map the sketch of a tensor into memory, read-only.

    Args:
        path: the file of sketches.
        shape: of the tensor.

    Raises:
        ArrayFileError: it cannot be used; what it says is checked before anything is read.
    """
    if place.why is not None:
        raise ArrayFileError(place.why)
    if place.algorithm != ALGORITHM:
        raise ArrayFileError.saying("unread.sketch_algorithm", held=place.algorithm[:80])
    if place.block not in (0, COLUMNS):
        raise ArrayFileError.saying("unread.sketch_block", held=place.block)
    size = size_of(shape, place.block)
    if size > bounds.TENSOR:
        most = bounds.in_bytes(bounds.TENSOR)
        raise ArrayFileError.saying("unread.too_much_data", size=size, most=most)
    if place.offset < len(HEAD) or place.offset % _ALIGNMENT:
        raise ArrayFileError.saying("unread.sketch_offset", offset=place.offset)
    return parts_of(open_part(path, HEAD, place.offset, size), shape, place.block)
