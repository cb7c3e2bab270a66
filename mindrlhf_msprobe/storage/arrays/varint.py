"""Whole numbers as protobuf and Thrift write them: seven bits a byte, the lowest first."""

from __future__ import annotations

_LONGEST = 10  # bytes of 64 bits


def varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the number that begins at an offset, and where it ends.

    Raises:
        IndexError, ValueError: the bytes end inside of it, or it has more than 64 bits need.
    """
    value = 0
    for index in range(_LONGEST):
        byte = data[at + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError(value)
