"""Arrays as .npy files: no pickle, sizes checked before anything is read.

bfloat16 has no .npy form of its own, so it is stored as float32 (exact: every bfloat16 is a
float32); the dtype by which it was recorded stands in the leaf beside it.
"""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from mindrlhf_msprobe.storage.atomic import write_atomic

BFLOAT16 = "BFloat16"


class ArrayFileError(Exception):
    """An .npy file that cannot be used; the message says why."""


def bfloat16_bits_to_float32(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 given as uint16 bits; exact, any shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def dtype_name(dtype: np.dtype) -> str:
    """Return MindSpore's name of a numpy dtype, e.g. `Float32`, `UInt8`, `Bool`."""
    name = dtype.name
    return "UInt" + name[4:] if name.startswith("uint") else name.capitalize()


def save_npy(path: Path, array: np.ndarray) -> None:
    """Write `array` as a .npy file, whole or not at all, without ever pickling.

    Raises:
        OSError: it cannot be written.
        ValueError: the dtype holds Python objects.
    """
    write_atomic(path, lambda file: npy.write_array(file, np.asarray(array), allow_pickle=False))


def open_npy(path: Path) -> np.ndarray:
    """Map a .npy file into memory, read-only; its elements are read when they are used.

    Raises:
        ArrayFileError: it is missing, unreadable, not .npy, holds pickled objects, or is shorter
            than its header says.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise ArrayFileError("is not a regular file")
        with open(path, "rb") as file:
            shape, fortran, dtype = _read_header(file)
            offset = file.tell()
            expected = math.prod(shape) * dtype.itemsize
            present = os.fstat(file.fileno()).st_size - offset
    except FileNotFoundError:
        raise ArrayFileError("the file is missing") from None
    except OSError as error:
        raise ArrayFileError(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise ArrayFileError(f"cannot be read: {error}") from None
    if dtype.hasobject:
        raise ArrayFileError("holds pickled Python objects, which are never loaded")
    if present < expected:
        raise ArrayFileError(
            f"is cut short: its header promises {expected} bytes of data, {present} are there"
        )
    try:
        if expected == 0:
            return np.empty(shape, dtype)
        mapped = np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise ArrayFileError(f"cannot be mapped as shape {list(shape)}: {error}") from None
    return np.asarray(mapped)


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    # Only the header is handed to numpy's parser: never more than it can be, whatever it claims.
    head = io.BytesIO(file.read(65_536 + 12))
    try:
        version = npy.read_magic(head)
        if version == (1, 0):
            header = npy.read_array_header_1_0(head)
        elif version == (2, 0):
            header = npy.read_array_header_2_0(head)
        else:
            raise ArrayFileError(f"has .npy format version {version}, expected 1.0 or 2.0")
    except ArrayFileError:
        raise
    except Exception as error:  # numpy parses the header as Python, which fails in many ways
        raise ArrayFileError(f"has no valid .npy header: {str(error)[:200]}") from None
    if any(n < 0 for n in header[0]):
        raise ArrayFileError(f"claims the shape {header[0]}")
    file.seek(head.tell())
    return header
