"""One parameter of a checkpoint, read in pieces, and the checkpoint that holds it.

No file is mapped: one that is cut short while it is read is an error then, and no signal.
"""

from __future__ import annotations

import math
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.expression import BySpans, Expression
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8, float8_to_float32
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, bfloat16_bits_to_float32

#: MindSpore's names of dtypes, and how their elements lie in a file.
STORED = {
    **{name: np.dtype(name.lower()) for name in ("Bool", "Int8", "UInt8")},
    **{
        name: np.dtype(name.lower()).newbyteorder("<")
        for name in ("Int16", "Int32", "Int64", "UInt16", "UInt32", "UInt64")
    },
    **{name: np.dtype(name.lower()).newbyteorder("<") for name in ("Float16", "Float32")},
    **{
        name: np.dtype(name.lower()).newbyteorder("<")
        for name in ("Float64", "Complex64", "Complex128")
    },
    BFLOAT16: np.dtype("<u2"),
    **{name: np.dtype("u1") for name in FLOAT8},
}
_PIECE = 4 << 20  # bytes that a CRC reads at once


class CheckpointError(RunError):
    """A checkpoint that cannot be used; the message names the file and says why."""

    @classmethod
    def of_file(cls, path: Path, why: Message) -> CheckpointError:
        """Return the error that says of a file why it cannot be used."""
        return cls.saying("unread.at", path=str(path), why=why)


@dataclass(frozen=True)
class Piece:
    """A part of a file that holds elements of a parameter.

    Attributes:
        offset, size: in bytes.
    """

    file: DataFile
    offset: int
    size: int


class DataFile:
    """A file of a checkpoint; only as it was when it was first opened.

    Args:
        path: may be a symbolic link; whoever makes this has checked where it leads.

    Raises:
        CheckpointError: it is missing, no regular file, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        file = self._open()
        try:
            status = os.fstat(file)
        finally:
            os.close(file)
        if not stat.S_ISREG(status.st_mode):
            raise self.error("unread.no_file")
        self.size = status.st_size
        self._known = _identity(status)

    def error(self, code: str, **params: object) -> CheckpointError:
        """Return the error that says of this file what a code says."""
        return CheckpointError.of_file(self.path, message(code, **params))

    def read(self, offset: int, size: int) -> bytearray:
        """Return a part of the file; see `array`."""
        return bytearray(self.array(offset, size).data)

    def array(self, offset: int, size: int) -> np.ndarray:
        """Return a part of the file, uint8 [size]; nothing is written there before it is read.

        Raises:
            CheckpointError: it ends before, was replaced or changed, or cannot be read.
        """
        found = np.empty(size, np.uint8)
        file = self._open()
        try:
            if _identity(os.fstat(file)) != self._known:
                raise self.error("checkpoint.changed")
            view, at = found.data, 0
            while at < size:
                got = os.preadv(file, [view[at:]], offset + at)
                if not got:
                    raise self.error("checkpoint.ends", end=offset + size, present=offset + at)
                at += got
        except OSError as error:
            raise self._failed(error) from None
        finally:
            os.close(file)
        return found

    def crc(self, start: int, end: int, before: int = 0) -> int:
        """Return the CRC-32 of the bytes between two offsets, in pieces.

        Args:
            before: the CRC-32 of what stands before them.

        Raises:
            CheckpointError: as `read`.
        """
        for at in range(start, end, _PIECE):
            before = zlib.crc32(self.array(at, min(_PIECE, end - at)).data, before)
        return before

    def _open(self) -> int:
        try:
            # Without O_NONBLOCK, opening a pipe would wait for ever.
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:  # or a name that no file can have
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> CheckpointError:
        why = getattr(error, "strerror", None) or str(error)
        return self.error("unread.failed", why=why)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class StoredTensor(BySpans):
    """One parameter; bfloat16 and 8-bit floats are read as float32, all else in its dtype.

    Reading raises CheckpointError where the file was changed, or cannot be read.

    Attributes:
        name, shape: as the checkpoint has them.
        dtype: by MindSpore's name, e.g. BFloat16.
        why: why its elements cannot be read; None if they can.

    Args:
        made_of: what has its elements, if they do not lie in a file as they are.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        why: Message | None = None,
        made_of: Expression | None = None,
    ) -> None:
        super().__init__(shape, () if made_of is None else (made_of,))
        self.name = name
        self.dtype = dtype
        self.why = why
        self.size = math.prod(shape)

    def __str__(self) -> str:
        return self.name

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        wider = self.dtype == BFLOAT16 or self.dtype in FLOAT8
        return np.dtype(np.float32) if wider else STORED[self.dtype]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `Expression.read` says."""
        return self.sources[0].read(start, stop)


class FileTensor(StoredTensor):
    """A parameter that lies in a file as it is, in one piece or in several."""

    def __init__(
        self, name: str, dtype: str, shape: tuple[int, ...], pieces: tuple[Piece, ...]
    ) -> None:
        present = sum(piece.size for piece in pieces)
        super().__init__(name, dtype, shape, _why(dtype, shape, present))
        self._pieces = pieces

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `Expression.read` says."""
        stored = STORED[self.dtype]
        first, last = start * stored.itemsize, stop * stored.itemsize
        parts, at = [], 0
        for piece in self._pieces:
            begin, end = max(first, at), min(last, at + piece.size)
            if begin < end:
                parts.append(piece.file.array(piece.offset + begin - at, end - begin))
            at += piece.size
        data = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
        return in_numbers(self.dtype, data.view(stored))


def _why(dtype: str, shape: tuple[int, ...], present: int) -> Message | None:
    known = len(shape) <= bounds.DIMENSIONS and all(0 <= n <= bounds.SIZE for n in shape)
    # numpy has no array whose other axes say too much, even if it is empty.
    if not known or math.prod(filter(None, shape)) > bounds.SIZE // 16:
        return message("unread.claimed_shape", shape=shortened(list(shape)))
    if dtype not in STORED:
        return message("checkpoint.dtype", dtype=shortened(dtype))
    expected = math.prod(shape) * STORED[dtype].itemsize
    if expected != present:
        return message("checkpoint.size", size=expected, present=present)
    return None


def in_numbers(dtype: str, stored: np.ndarray) -> np.ndarray:
    """Return elements as numpy can compute with them: bfloat16 and 8-bit floats as float32."""
    if dtype == BFLOAT16:
        return bfloat16_bits_to_float32(stored)
    if dtype in FLOAT8:
        return float8_to_float32(dtype, stored)
    # A byte that is neither 0 nor 1 is true; numpy would compare its bits.
    return stored.view(np.uint8) != 0 if dtype == "Bool" else stored


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        path: as it was given.
        kind: ckpt, safetensors, sharded, or run.
        ranks: parameters by name for each rank; of all else they are those of rank 0. Each is a
            `StoredTensor`, of a run the `Record` of it.
        texts: entries that are no tensors, by name.
        notes: how it was read, e.g. which of several checkpoints was taken.
        whole: whether the parameters are those of the whole network, and no rank's part.
        open_end: whether it could be cut between two parameters without a trace.
    """

    path: Path
    kind: str
    ranks: Mapping[int, Mapping[str, Any]]
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: Messages = ()
    whole: bool = True
    open_end: bool = False
