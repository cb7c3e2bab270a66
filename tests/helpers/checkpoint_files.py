"""Checkpoints written byte by byte, as MindSpore and safetensors write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_SAFETENSORS = {"float32": "F32", "float16": "F16", "int64": "I64", "int8": "I8", "bool": "BOOL"}


def varint(value: int) -> bytes:
    """Return a whole number as protobuf writes it."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def part(number: int, content: bytes) -> bytes:
    """Return a field with bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def value(name: str, dtype: str, shape: Sequence[int], content: bytes) -> bytes:
    """Return one value of a .ckpt: a parameter, or a slice of one."""
    dims = b"".join(varint(8) + varint(n) for n in shape)
    tensor = dims + part(2, dtype.encode()) + part(3, content)
    return part(1, part(1, name.encode()) + part(2, tensor))


def write_ckpt(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Write a .ckpt."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"".join(
            value(name, array.dtype.name.capitalize(), array.shape or (0,), array.tobytes())
            for name, array in arrays.items()
        )
    )
    return path


def safetensors(header: Mapping[str, Any] | bytes, data: bytes) -> bytes:
    """Return a file of safetensors with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Write a .safetensors; of bfloat16 give the bits as uint16."""
    header, data = {}, b""
    for name, array in arrays.items():
        dtype = "BF16" if array.dtype == np.uint16 else _SAFETENSORS[array.dtype.name]
        places = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": places}
        data += array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors(header, data))
    return path


def write_strategy(
    path: Path,
    layouts: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    *,
    shards: int = 0,
    stage: int = 0,
) -> Path:
    """Write a strategy file: of each parameter its device matrix and its tensor map.

    Args:
        shards: of every parameter, by the optimizer.
    """

    def signed(n: int) -> bytes:
        return varint(n % (1 << 64))

    def sizes(number: int, of: Sequence[int]) -> bytes:
        return part(number, b"".join(varint(8) + signed(n) for n in of))

    strategies = part(2, part(1, b"op") + part(2, varint(8) + varint(stage)))
    items = b""
    for name, (devices, tensor_map) in layouts.items():
        layout = sizes(1, devices) + sizes(2, tensor_map) + sizes(3, [])
        layout += b"".join(varint(n << 3) + signed(v) for n, v in ((5, 0), (6, 1), (7, shards)))
        items += part(3, part(1, name.encode()) + part(2, layout))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(varint(8) + varint(1) + strategies + items)
    return path
