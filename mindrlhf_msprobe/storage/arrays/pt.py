"""Tensors as PyTorch saves them, one a file (.pt): read without unpickling anything.

Such a file is a zip archive: `data.pkl` says dtype, shape and strides, `data/0` holds the elements.
The pickle is read operation by operation, as data: it may name the few things that a single tensor
is made of, and nothing that it names is imported or called. Nothing is decompressed: PyTorch stores
elements as they are, so that they are mapped where they lie.
"""

from __future__ import annotations

import math
import os
import pickletools
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    ArrayFileError,
    bfloat16_bits_to_float32,
    open_part,
)

_HEAD = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s22xHH")
_MOST_READ = 1 << 20  # bytes of the archive's directory, or of data.pkl

#: What elements are stored as, by PyTorch's names; bfloat16 as its bits.
_STORAGES = {
    "Float": "<f4",
    "Double": "<f8",
    "Half": "<f2",
    "BFloat16": "<u2",
    "Long": "<i8",
    "Int": "<i4",
    "Short": "<i2",
    "Char": "i1",
    "Byte": "u1",
    "Bool": "?",
    "ComplexFloat": "<c8",
    "ComplexDouble": "<c16",
}
_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_ORDERED = "collections OrderedDict"
_MARK = object()
_HOOKS = object()  # of a tensor: an empty OrderedDict


@dataclass(frozen=True)
class _Name:
    """A name in the pickle; nothing is done with it but to compare it."""

    text: str


@dataclass(frozen=True)
class _Storage:
    kind: str
    key: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def open_pt(path: str | Path) -> tuple[np.ndarray, str]:
    """Map the one tensor of a .pt file into memory, read-only, and return the dtype it has.

    Returns:
        The elements, bfloat16 as float32 (a copy), and the dtype by MindSpore's name.

    Raises:
        ArrayFileError: it is missing, cut short, or anything else than one tensor stored by
            `torch.save`.
    """
    try:
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for ever
        with open(path, "rb", opener=lambda path, of: os.open(path, of | flags)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ArrayFileError.saying("unread.no_file")
            tensor, offset, size = _described(file)
    except FileNotFoundError:
        raise ArrayFileError.saying("unread.file_missing") from None
    except ArrayFileError:
        raise
    except (OSError, ValueError, NotImplementedError, struct.error, zipfile.BadZipFile) as error:
        raise ArrayFileError.saying("unread.no_pt", why=shortened(error)) from None
    stored = np.dtype(_STORAGES[tensor.storage.kind])
    _check_extent(tensor, size // stored.itemsize)
    if not math.prod(tensor.shape):
        array = np.empty(tensor.shape, stored)
        array.flags.writeable = False
    else:
        elements = open_part(path, _HEAD, offset, size // stored.itemsize * stored.itemsize)
        strides = tuple(n * stored.itemsize for n in tensor.strides)
        flat = elements.view(stored)[tensor.offset :]
        array = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
    if tensor.storage.kind == BFLOAT16:
        return bfloat16_bits_to_float32(array), BFLOAT16
    name = stored.name
    return array, "UInt8" if name == "uint8" else name.capitalize()


class _Bounded:
    """A file of which no large part is read at once, whatever the archive says of itself."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        found = b"" if size > _MOST_READ else self._file.read(_MOST_READ + 1 if size < 0 else size)
        if max(size, len(found)) > _MOST_READ:
            raise ArrayFileError.saying("unread.pt_head", most=bounds.in_bytes(_MOST_READ))
        return found


def _described(file: BinaryIO) -> tuple[_Tensor, int, int]:
    """Return what a file says of its tensor, and where its elements lie: offset, size in bytes."""
    if file.read(len(_HEAD)) != _HEAD:
        raise ArrayFileError.saying("unread.no_pt", why="PK")
    bounded: Any = _Bounded(file)
    with zipfile.ZipFile(bounded) as archive:
        members = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise ArrayFileError.saying("unread.no_pt", why="data.pkl")
    folder = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{folder}byteorder")
    if order is not None and _content(bounded, order) != b"little":
        raise ArrayFileError.saying("unread.pt_order")
    tensor = _read_pickle(_content(bounded, members[pickles[0]]))
    place = members.get(f"{folder}data/{tensor.storage.key}")
    if place is None:
        raise ArrayFileError.saying("unread.no_pt", why=f"data/{shortened(tensor.storage.key)}")
    offset = _begin(bounded, place)
    return tensor, offset, place.file_size


def _content(file: Any, member: zipfile.ZipInfo) -> bytes:
    file.seek(_begin(file, member))
    found: bytes = file.read(member.file_size)
    if len(found) < member.file_size:
        raise ArrayFileError.saying("unread.cut_short", size=member.file_size, present=len(found))
    return found


def _begin(file: Any, member: zipfile.ZipInfo) -> int:
    """Return where a member's bytes begin; only one that is stored as it is has such a place."""
    stored = member.compress_type == zipfile.ZIP_STORED
    if not stored or member.file_size != member.compress_size or member.flag_bits & 1:
        raise ArrayFileError.saying("unread.pt_compressed")
    file.seek(member.header_offset)
    mark, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    if mark != _HEAD:
        raise ArrayFileError.saying("unread.no_pt", why="PK")
    return int(member.header_offset + _LOCAL.size + name + extra)


def _check_extent(tensor: _Tensor, count: int) -> None:
    """Refuse a tensor whose elements lie outside of what is stored, or are more than that."""
    shape, strides = tensor.shape, tensor.strides
    sizes = (*shape, *strides, tensor.offset)
    if len(shape) != len(strides) or len(shape) > bounds.DIMENSIONS or min(sizes) < 0:
        raise ArrayFileError.saying("unread.claimed_shape", shape=shortened(list(shape)))
    total = math.prod(shape)
    last = tensor.offset + sum((n - 1) * step for n, step in zip(shape, strides))
    needed = max(total, last + 1) if total else 0
    if needed > count:
        raise ArrayFileError.saying("unread.cut_short", size=needed, present=count)


def _read_pickle(content: bytes) -> _Tensor:
    """Return what a pickle says of one tensor, without doing anything that it says."""
    machine = _Machine()
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if number >= 10_000:
                break
            if operation.name == "STOP":
                break
            machine.do(operation.name, argument)
    except ArrayFileError:
        raise
    except Exception as error:  # pickletools raises many kinds, and so do tuples that do not fit
        raise ArrayFileError.saying("unread.pt_pickle", what=shortened(error)) from None
    if len(machine.stack) != 1 or not isinstance(machine.stack[0], _Tensor):
        raise ArrayFileError.saying("unread.pt_pickle", what=shortened(machine.shown()))
    return machine.stack[0]


class _Machine:
    """What a pickle builds, as far as a single tensor needs it."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def shown(self) -> str:
        """Return what the pickle held instead of a tensor."""
        top = self.stack[-1] if self.stack else None
        return "dict" if top is _HOOKS else type(top).__name__

    def do(self, name: str, argument: Any) -> None:
        """Follow one operation.

        Raises:
            ArrayFileError: a tensor does not need it.
        """
        stack = self.stack
        if name == "PROTO":
            return
        if name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"):
            stack.append(argument)
        elif name in ("NEWFALSE", "NEWTRUE"):
            stack.append(name == "NEWTRUE")
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            marked = name == "TUPLE"
            size = [*reversed(stack)].index(_MARK) if marked else int(name[-1])
            found = tuple(stack[len(stack) - size :])
            del stack[len(stack) - size - marked :]
            stack.append(found)
        elif name == "GLOBAL":
            stack.append(_name(argument))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            given = stack.pop()
            stack.append(_made(stack.pop(), given))
        else:
            raise ArrayFileError.saying("unread.pt_pickle", what=name)


def _name(text: str) -> _Name:
    known = {_TENSOR, _PARAMETER, _ORDERED, *(f"torch {kind}Storage" for kind in _STORAGES)}
    if text not in known:
        raise ArrayFileError.saying("unread.pt_pickle", what=shortened(text.replace(" ", ".")))
    return _Name(text)


def _storage(given: Any) -> _Storage:
    _, kind, key, _, count = given
    whole = isinstance(key, str) and type(count) is int and given[0] == "storage"
    if not whole or not isinstance(kind, _Name) or not kind.text.endswith("Storage"):
        raise ArrayFileError.saying("unread.pt_pickle", what="storage")
    return _Storage(kind.text.removeprefix("torch ").removesuffix("Storage"), key, count)


def _made(what: Any, given: Any) -> Any:
    """Return what a call in the pickle would make."""
    if what == _Name(_ORDERED) and given == ():
        return _HOOKS
    if what == _Name(_PARAMETER) and isinstance(given[0], _Tensor):
        return given[0]
    if what == _Name(_TENSOR):
        storage, offset, shape, strides = given[:4]
        numbers = (offset, *shape, *strides)
        if isinstance(storage, _Storage) and all(type(n) is int for n in numbers):
            return _Tensor(storage, offset, shape, strides)
    raise ArrayFileError.saying("unread.pt_pickle", what=shortened(getattr(what, "text", what)))
