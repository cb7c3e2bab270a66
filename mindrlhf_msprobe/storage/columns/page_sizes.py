"""How many bytes the pages of a Parquet file have once decompressed, by the header of each page.

pyarrow makes room for what the headers say, whatever the file's footer claims. The headers are
structures in Thrift's compact protocol: github.com/apache/parquet-format, parquet.thrift.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from mindrlhf_msprobe.storage.arrays.varint import varint

#: In a PageHeader: the fields that hold its sizes, each of the type i32.
_DECOMPRESSED, _COMPRESSED = 2, 3
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEPTH = 16  # of structures in each other


def decompressed_size(file: BinaryIO, chunk: Any) -> int:
    """Return how many bytes the pages of a column chunk have.

    Args:
        chunk: its pyarrow.parquet.ColumnChunkMetaData.

    Raises:
        ValueError, IndexError: a header cannot be read, or the pages do not fill the chunk.
    """
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    file.seek(start)
    data = file.read(chunk.total_compressed_size)
    at = found = 0
    while at < len(data):
        at, sizes = _struct(data, at)
        found += sizes[_DECOMPRESSED]
        at += sizes[_COMPRESSED]
        if min(sizes.values()) < 0:
            raise ValueError(sizes)
    if at != chunk.total_compressed_size:
        raise ValueError(at)
    return found


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[int, dict[int, int]]:
    """Return where a structure ends, and its fields of the type i32."""
    if depth > _DEPTH:
        raise ValueError(depth)
    numbers = {_DECOMPRESSED: -1, _COMPRESSED: -1} if not depth else {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            at, number = _zigzag(data, at)
        if kind == _I32:
            at, numbers[number] = _zigzag(data, at)
        else:
            at = _behind(data, at, kind, depth)
    return at + 1, numbers


def _behind(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a value of a type ends."""
    if kind in (_TRUE, _FALSE):
        return at
    if kind in (_I16, _I32, _I64):
        return varint(data, at)[1]
    if kind == _BINARY:
        length, at = varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)[0]
    fixed = {_BYTE: 1, _DOUBLE: 8}
    if kind not in fixed:  # no page header holds a list, a set or a map
        raise ValueError(kind)
    return at + fixed[kind]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return at, (value >> 1) ^ -(value & 1)
