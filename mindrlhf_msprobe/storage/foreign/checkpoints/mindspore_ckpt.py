"""MindSpore's .ckpt: a protobuf message `Checkpoint` whose values are parameters by their tags.

`save_checkpoint` cuts a parameter of more than 512 MB into several values with the same tag and
the whole shape, one after the other; behind the last value may stand 17 bytes with the CRC-32 of
all before (`crc_check=True`). Without it nothing says how many parameters a file should hold.

Protobuf's wire format is read from the file piece by piece; what is large is passed over. Only what
MindSpore's messages hold is read: a field that none of them has is damage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.varint import varint
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import (
    STORED,
    Checkpoint,
    DataFile,
    FileTensor,
    Piece,
    StoredTensor,
)

VARINT, BYTES = 0, 2
_WINDOW = 1 << 16  # bytes read at once

#: Field number, wire type, and a number (VARINT) or where the bytes begin and end (BYTES).
Field = tuple[int, int, int, int]


class Wire:
    """Reads fields of messages of a file."""

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self._window = bytearray()
        self._at = 0  # of the window's first byte

    def fields(self, start: int, end: int, known: Sequence[tuple[int, int]]) -> Iterator[Field]:
        """Yield the fields of the message between two offsets.

        Args:
            known: number and wire type of each field that it may have.

        Raises:
            CheckpointError: it has another one, or ends inside of one.
        """
        at = start
        while at < end:
            key, after = self._varint(at, end)
            number, kind = key >> 3, key & 7
            if (number, kind) not in known:
                raise self.file.error("checkpoint.field", number=number, kind=kind, at=at)
            value, after = self._varint(after, end)
            if kind == VARINT:
                yield number, kind, value, after
                at = after
                continue
            if value > end - after:
                ends = {"at": at, "size": value, "present": end - after}
                raise self.file.error("checkpoint.field_cut_short", **ends)
            at = after + value
            yield number, kind, after, at

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes between two offsets, which are not far apart."""
        if not self._at <= start <= end <= self._at + len(self._window):
            if end - start > _WINDOW:
                return bytes(self.file.read(start, end - start))
            self._window = self.file.read(start, min(_WINDOW, self.file.size - start))
            self._at = start
        return bytes(self._window[start - self._at : end - self._at])

    def varints(self, start: int, end: int) -> Iterator[int]:
        """Yield the numbers of a packed field."""
        while start < end:
            value, start = self._varint(start, end)
            yield value

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a number and where it ends."""
        try:
            value, size = varint(self.read(at, min(end, at + 10)), 0)
        except (IndexError, ValueError):
            raise self.file.error("checkpoint.number", at=at) from None
        return value & ((1 << 64) - 1), at + size


_VALUE = ((1, BYTES),)
_OF_VALUE = ((1, BYTES), (2, BYTES), (3, BYTES))
_OF_TENSOR = ((1, VARINT), (1, BYTES), (2, BYTES), (3, BYTES))
_TAG, _TENSOR, _MAP = 1, 2, 3
_DIMS, _TYPE, _CONTENT = 1, 2, 3
_CRC_MARK, _CRC_SIZE = b"crc_num", 17
_TEXT, _MAP_TENSOR = "str", "MapTensor"
_LONGEST_TEXT = 1 << 20  # bytes of a text, 4 for each character
#: Bytes of a file by which its format is known.
HEAD = 16
#: What stands at the beginning of files that are none of MindSpore's, and what they are.
_OTHERS = (
    (b"PK\x03\x04", "checkpoint.zip"),
    (b"PK\x05\x06", "checkpoint.zip"),
    (b"\x80", "checkpoint.pickle"),
    *((mark, "checkpoint.pickle") for mark in (b"(dp0\n", b"(lp0\n", b"ccollections\n")),
    (b"\x1f\x8b", "checkpoint.gzip"),
    (b"BZh", "checkpoint.compressed"),
    (b"\xfd7zXZ\0", "checkpoint.compressed"),
    (b"\x28\xb5\x2f\xfd", "checkpoint.compressed"),
    (b"version https://", "checkpoint.git_lfs"),
    (b"GGUF", "checkpoint.gguf"),
    (b"\x89HDF", "checkpoint.hdf5"),
    # AES-GCM, AES-CBC and SM4-CBC, in either byte order.
    *((bytes([n]) + b"\x5e\x3a\x7f", "checkpoint.encrypted") for n in (0xD8, 0xD9, 0xDA)),
    *((b"\x7f\x3a\x5e" + bytes([n]), "checkpoint.encrypted") for n in (0xD8, 0xD9, 0xDA)),
)


@dataclass
class _Value:
    """What the values of one tag say."""

    dtype: str
    shape: tuple[int, ...]
    pieces: list[Piece] = field(default_factory=list)
    why: Message | None = None


def read_ckpt(file: DataFile, path: Path) -> Checkpoint:
    """Return the parameters of a .ckpt, and its texts.

    With a CRC the whole file is read, to check it; MapTensors, which MindSpore leaves out of its
    CRC, leave it unchecked.

    Args:
        path: as it was given.

    Raises:
        CheckpointError: it is no such file, cut short, or not what its CRC says.
    """
    if not file.size:
        raise file.error("checkpoint.empty")
    head = bytes(file.read(0, min(file.size, HEAD)))
    refuse_others(file, head)
    if head[0] != _VALUE[0][0] << 3 | BYTES:
        raise file.error("checkpoint.no_ckpt", head=head[:8].hex(" "))
    wire = Wire(file)
    found: dict[str, _Value] = {}
    last = ""
    whole, stored = _end(file)
    for count, (_, _, start, end) in enumerate(wire.fields(0, whole, _VALUE)):
        if count >= bounds.PARAMETERS:
            raise file.error("checkpoint.too_many", most=bounds.PARAMETERS)
        tag, value = _value(wire, start, end)
        known = found.setdefault(tag, value)
        if known is not value:
            _join(known, value, follows=tag == last)
        last = tag
    if stored is not None and all(value.dtype != _MAP_TENSOR for value in found.values()):
        check_crc(file, stored, file.crc(0, whole))
    tensors: dict[str, StoredTensor] = {}
    texts: dict[str, str] = {}
    for tag, value in found.items():
        if value.dtype == _TEXT and value.why is None:
            texts[tag] = _text(value)
        elif value.why is None:
            tensors[tag] = FileTensor(tag, value.dtype, value.shape, tuple(value.pieces))
        else:
            tensors[tag] = StoredTensor(tag, value.dtype, value.shape, value.why)
    # Where no CRC marks its end, anything may be missing there.
    return Checkpoint(path, "ckpt", {0: tensors}, texts, open_end=stored is None)


def refuse_others(file: DataFile, head: bytes) -> None:
    """Refuse a file that begins as another format does, by its name.

    Args:
        head: its first `HEAD` bytes.

    Raises:
        CheckpointError: it does.
    """
    for mark, code in _OTHERS:
        if head.startswith(mark):
            raise file.error(code)


def check_crc(file: DataFile, stored: int, found: int) -> None:
    """Compare the CRC-32 that a file holds with that of its content.

    Raises:
        CheckpointError: they differ.
    """
    if stored != found:
        raise file.error("checkpoint.crc", stored=f"{stored:#010x}", found=f"{found:#010x}")


def _end(file: DataFile) -> tuple[int, int | None]:
    """Return where the values end, and the CRC that stands behind them; None if there is none."""
    if file.size < _CRC_SIZE:
        return file.size, None
    tail = bytes(file.read(file.size - _CRC_SIZE, _CRC_SIZE))
    if not tail.startswith(_CRC_MARK):
        return file.size, None
    return file.size - _CRC_SIZE, int.from_bytes(tail[len(_CRC_MARK) :], "big")


def _value(wire: Wire, start: int, end: int) -> tuple[str, _Value]:
    tag, value = None, None
    for number, _, first, last in wire.fields(start, end, _OF_VALUE):
        if number == _TAG:
            if last - first > bounds.NAME:
                raise wire.file.error("checkpoint.long_name", at=first, length=last - first)
            tag = wire.read(first, last).decode("utf-8", "backslashreplace")
        elif number == _TENSOR:
            value = _tensor(wire, first, last)
        else:
            value = _Value(_MAP_TENSOR, (), why=message("checkpoint.map"))
    if tag is None or value is None:
        raise wire.file.error("checkpoint.no_tag", at=start)
    return tag, value


def _tensor(wire: Wire, start: int, end: int) -> _Value:
    shape: list[int] = []
    dtype, content = "", None
    for number, kind, first, last in wire.fields(start, end, _OF_TENSOR):
        if number == _DIMS:
            packed = itertools.islice(wire.varints(first, last), bounds.DIMENSIONS + 1)
            shape += [first] if kind == VARINT else packed
            if len(shape) > bounds.DIMENSIONS:
                raise wire.file.error("checkpoint.dimensions", at=start, most=bounds.DIMENSIONS)
        elif number == _TYPE:
            dtype = shortened(wire.read(first, min(last, first + 64)).decode("utf-8", "replace"))
        else:
            content = Piece(wire.file, first, last - first)
    if content is None:
        raise wire.file.error("checkpoint.no_content", at=start)
    # A tensor without axes is written with the shape [0].
    if shape == [0] and dtype in STORED and content.size == STORED[dtype].itemsize:
        shape = []
    return _Value(dtype, tuple(shape), [content])


def _join(known: _Value, value: _Value, *, follows: bool) -> None:
    """Add a further slice of a parameter."""
    if known.why is not None:
        return
    if value.why is not None or not follows:
        known.why = value.why or message("checkpoint.twice")
    elif (known.dtype, known.shape) != (value.dtype, value.shape):
        known.why = message("checkpoint.unlike_slices")
    else:
        known.pieces += value.pieces


def _text(value: _Value) -> str:
    """Return a text, which lies there as numpy's, four bytes a character."""
    size = sum(piece.size for piece in value.pieces)
    data = b"".join(
        bytes(piece.file.read(piece.offset, min(piece.size, _LONGEST_TEXT)))
        for piece in value.pieces[:1]
    )
    text = data[: len(data) // 4 * 4].decode("utf-32-le", "replace").rstrip("\0")
    return text if size <= _LONGEST_TEXT else f"{text}… ({size})"
