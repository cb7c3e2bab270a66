"""Protobuf's wire format, read from a file piece by piece; what is large is passed over.

Only what MindSpore's messages hold is read: a field that none of them has is damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindrlhf_msprobe.storage.foreign.checkpoints.stored import DataFile

VARINT, BYTES = 0, 2
_WINDOW = 1 << 16  # bytes read at once
_LONGEST_VARINT = 10

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
            self._fill(start)
        return bytes(self._window[start - self._at : end - self._at])

    def varints(self, start: int, end: int) -> Iterator[int]:
        """Yield the numbers of a packed field."""
        while start < end:
            value, start = self._varint(start, end)
            yield value

    def _fill(self, at: int) -> None:
        self._window = self.file.read(at, min(_WINDOW, self.file.size - at))
        self._at = at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a number and where it ends."""
        most = min(end, at + _LONGEST_VARINT)
        held = self.read(at, most)
        value = 0
        for i, byte in enumerate(held):
            value |= (byte & 127) << (7 * i)
            if byte < 128:
                return value & ((1 << 64) - 1), at + i + 1
        raise self.file.error("checkpoint.number", at=at)
