"""Arrays as .npy files: no pickle, sizes checked before anything is read.

bfloat16 has no .npy form of its own, so it is stored as float32 (exact: every bfloat16 is a
float32); the dtype by which it was recorded stands in the leaf beside it.

And the fingerprint of a tensor on the host: an ordered hash of dtype, shape and bytes.
"""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import os
import stat
import struct
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.lib import format as npy

from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import write_atomic

#: How the names of files end in which PyTorch saved a tensor.
PYTORCH_SUFFIX = ".pt"
#: Half the distance of 1 to the next number: how far rounding moves a value of 1 at most.
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8 / 2,
}
BFLOAT16 = "BFloat16"
#: The dtypes to which weights are rounded when they are handed on.
ROUNDED = ("Float16", BFLOAT16)


class ArrayFileError(SpokenError):
    """An .npy file that cannot be used; the message says why."""


def bfloat16_bits_to_float32(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 given as uint16 bits; exact, any shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to the nearest bfloat16, ties to even, as uint16 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) | 0x40).astype(np.uint16)  # rounding up could turn a NaN into infinity
    return np.where(np.isnan(values), quiet, rounded)


def rounded(values: np.ndarray, dtype: str | None) -> np.ndarray:
    """Return values rounded to the nearest ones of a lower dtype, float32.

    Args:
        dtype: by MindSpore's name; None: float32.
    """
    if dtype == BFLOAT16:
        return bfloat16_bits_to_float32(float32_to_bfloat16_bits(values.astype(np.float32)))
    with np.errstate(over="ignore"):
        return values.astype((dtype or "float32").lower()).astype(np.float32)


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype) -> str:
    """Return MindSpore's name of a numpy dtype, e.g. `Float32`, `UInt8`, `Bool`."""
    name = dtype.name
    return "UInt" + name[4:] if name.startswith("uint") else name.capitalize()


def roundoff(dtype: str | None) -> float:
    """Return the unit roundoff of a floating dtype; 0 of any other."""
    return UNIT_ROUNDOFF.get((dtype or "").lower(), 0.0)


def save_npy(path: Path, array: np.ndarray) -> int:
    """Write `array` as a .npy file, whole or not at all; return the file's size in bytes.

    Raises:
        OSError: it cannot be written.
        ValueError: the dtype holds Python objects, which are never pickled.
    """
    array = np.asarray(array)
    if array.dtype.hasobject:
        raise ValueError(message("fault.objects", dtype=str(array.dtype)))
    header = npy_header(array.dtype, array.shape)
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return write_atomic(path, [header, content.data])


@lru_cache(maxsize=1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the bytes that stand before the elements of a C-ordered array in a .npy file."""
    stream = io.BytesIO()
    content = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, content)
    return stream.getvalue()


def npy_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of the .npy file of a tensor, as it is written here.

    Args:
        dtype: by numpy's name or MindSpore's.

    Raises:
        TypeError: numpy does not know the dtype.
    """
    known = np.dtype(dtype.lower())
    return len(npy_header(known, shape)) + known.itemsize * math.prod(shape)


def open_npy(path: str | Path) -> np.ndarray:
    """Map a .npy file into memory, read-only; a small one is read at once.

    Raises:
        ArrayFileError: it is missing, unreadable, not .npy, holds pickled objects, or is shorter
            than its header says.
    """
    file = _open_file(path)
    try:
        return _open_array(file)
    except OSError as error:
        raise _failed(error) from None
    finally:
        os.close(file)


def open_part(path: str | Path, head: bytes, offset: int, size: int) -> np.ndarray:
    """Map a part of a file into memory, read-only: uint8 [size]; a small one is read at once.

    Args:
        head: what the file begins with.

    Raises:
        ArrayFileError: it is missing, unreadable, does not begin so, or ends before the part does.
    """
    file = _open_file(path)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ArrayFileError.saying("unread.no_file")
        if os.pread(file, len(head), 0) != head:
            raise ArrayFileError.saying("unread.part_head")
        if offset + size > status.st_size:
            ends = {"end": offset + size, "present": status.st_size}
            raise ArrayFileError.saying("unread.part_cut_short", **ends)
        if size <= _HEAD:
            data: Any = os.pread(file, size, offset)
            return np.frombuffer(data, np.uint8, size)
        before = offset % mmap.ALLOCATIONGRANULARITY
        data = _Mapped(file, before + size, access=mmap.ACCESS_READ, offset=offset - before)
        return np.frombuffer(data, np.uint8, size, before)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise _failed(error) from None
    finally:
        os.close(file)


def _open_file(path: str | Path) -> int:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for ever.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ArrayFileError.saying("unread.file_missing") from None
    except (OSError, ValueError) as error:  # or a name that no file can have
        raise _failed(error) from None


def _failed(error: Exception) -> ArrayFileError:
    why = getattr(error, "strerror", None) or str(error)
    return ArrayFileError.saying("unread.failed", why=why)


def _open_array(file: int) -> np.ndarray:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise ArrayFileError.saying("unread.no_file")
    head = os.read(file, _HEAD)
    offset = _header_end(head)
    if offset > len(head):  # a long header, or the claim of one
        head += os.read(file, min(offset, _LONGEST_HEADER) - len(head))
    # Only the header is handed to numpy's parser: never more than it can be, whatever it claims.
    shape, fortran, dtype = _parse_header(head[:offset])
    count = math.prod(shape)
    expected, present = count * dtype.itemsize, status.st_size - offset
    if expected > bounds.TENSOR:
        most = bounds.in_bytes(bounds.TENSOR)
        raise ArrayFileError.saying("unread.too_much_data", size=expected, most=most)
    if present < expected:
        raise ArrayFileError.saying("unread.cut_short", size=expected, present=present)
    try:
        if expected == 0:
            return np.empty(shape, dtype)
        data: Any = head
        if offset + expected > len(head):
            if expected <= _SMALL:
                data, offset = os.pread(file, expected, offset), 0
            else:
                data = _Mapped(file, offset + expected, access=mmap.ACCESS_READ)
        array = np.frombuffer(data, dtype, count, offset)
        return array.reshape(shape, order="F" if fortran else "C")
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        why = message("unread.not_mapped", shape=str(list(shape)), why=str(error))
        raise ArrayFileError(why) from None


class _Mapped(mmap.mmap):
    """A file mapped here: shared and read-only, so that its pages can be had again."""


def map_elements(file: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Map a file of nothing but elements into memory, read-only, by its descriptor.

    It must not be empty, and may be deleted meanwhile.
    """
    size = math.prod(shape) * dtype.itemsize
    data: Any = _Mapped(file, size, access=mmap.ACCESS_READ)
    return np.frombuffer(data, dtype).reshape(shape)


def give_back(array: np.ndarray) -> None:
    """Take the pages of a file that open_npy mapped out of this process's memory.

    They are mapped again where they are read again, from the page cache as long as they are there.
    Nothing happens to any other array.
    """
    held: Any = array
    while isinstance(held, np.ndarray):
        held = held.base
    if isinstance(held, memoryview):
        held = held.obj
    if isinstance(held, _Mapped) and _DONTNEED is not None:
        with contextlib.suppress(OSError):
            held.madvise(_DONTNEED)


_DONTNEED = getattr(mmap, "MADV_DONTNEED", None) if hasattr(mmap.mmap, "madvise") else None


def _header_end(head: bytes) -> int:
    """Return how long the header says it is, its magic included."""
    if head[:6] != _MAGIC:
        raise ArrayFileError.saying("unread.no_npy")
    version = tuple(head[6:8])
    if version not in _LENGTHS:
        raise ArrayFileError.saying("unread.npy_version", version=".".join(map(str, version)))
    length = _LENGTHS[version]
    end = 8 + length.size
    if len(head) < end:
        raise ArrayFileError.saying("unread.npy_cut_short")
    return end + int(length.unpack(head[8:end])[0])


_MAGIC = b"\x93NUMPY"
_LENGTHS = {(1, 0): struct.Struct("<H"), (2, 0): struct.Struct("<I")}
_KINDS = "biufcSU"  # numbers and texts: what tensors and key data are made of
_HEAD = 1 << 12  # bytes read at once
_SMALL = 1 << 18  # bytes that are read sooner than they are mapped
_LONGEST_HEADER = 8 + 4 + (1 << 16)


@lru_cache(maxsize=4096)  # the same few shapes and dtypes come again and again
def _parse_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(head)
    try:
        if npy.read_magic(stream) == (1, 0):
            header = npy.read_array_header_1_0(stream)
        else:
            header = npy.read_array_header_2_0(stream)
    except Exception as error:  # numpy parses the header as Python, which fails by many exceptions
        raise ArrayFileError.saying("unread.npy_header", why=shortened(error)) from None
    shape, fortran, dtype = header
    if not (
        isinstance(shape, tuple)
        and len(shape) <= bounds.DIMENSIONS
        and all(type(n) is int and 0 <= n <= bounds.SIZE for n in shape)
    ):
        raise ArrayFileError.saying("unread.claimed_shape", shape=shortened(shape))
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        if dtype.hasobject:
            raise ArrayFileError.saying("unread.pickled")
        raise ArrayFileError.saying("unread.held_dtype", dtype=shortened(dtype))
    return shape, bool(fortran), dtype


ALGORITHM = "xxh3_128"
_AT_ONCE = 1 << 22  # elements that are converted at once


def fingerprint(dtype: str, array: np.ndarray) -> str:
    """Return `xxh3_128:<hex>` over dtype, shape and bytes, in order.

    Args:
        dtype: MindSpore's name.
        array: C-contiguous; bfloat16 as its uint16 bits.
    """
    digest = xxhash.xxh3_128(_kind(dtype, array.shape))
    if array.size:
        digest.update(array.data)  # C-contiguous: its buffer is its bytes
    return f"{ALGORITHM}:{digest.hexdigest()}"


def fingerprint_of_file(dtype: str, array: np.ndarray) -> str:
    """Return the same of what a file holds, where bfloat16 is stored as float32."""
    if dtype != BFLOAT16:
        return fingerprint(dtype, array)
    flat = array.reshape(-1)
    parts = (flat[start : start + _AT_ONCE] for start in range(0, flat.size, _AT_ONCE))
    return fingerprint_of_parts(dtype, array.shape, parts)


def fingerprint_of_parts(dtype: str, shape: tuple[int, ...], parts: Iterable[np.ndarray]) -> str:
    """Return the same of an array whose elements come part by part, in row-major order.

    Args:
        parts: C-contiguous; bfloat16 as float32.
    """
    digest = xxhash.xxh3_128(_kind(dtype, shape))
    for part in parts:
        digest.update((float32_to_bfloat16_bits(part) if dtype == BFLOAT16 else part).data)
    return f"{ALGORITHM}:{digest.hexdigest()}"


@lru_cache(maxsize=1024)
def _kind(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{dtype}{list(shape)}".encode()
