"""safetensors: eight bytes with the length of a JSON header, the header, and the elements.

The header is checked as its format wants it: the parts of the file that its entries name lie one
behind the other, from the first byte behind it to the last one of the file.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16
from mindrlhf_msprobe.storage.foreign.checkpoints.mindspore_ckpt import check_crc
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import (
    STORED,
    CheckpointError,
    DataFile,
    FileTensor,
    Piece,
    StoredTensor,
)

INDEX_SUFFIX = ".safetensors.index.json"
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_MINDSPORE, _CRC, _PACKED = "ms", "crc_num", "Int4"
_NUMBER = re.compile("[0-9]{1,10}")
_DTYPES = {
    **{"BOOL": "Bool", "BF16": BFLOAT16, "F16": "Float16", "F32": "Float32", "F64": "Float64"},
    **{f"I{n}": f"Int{n}" for n in (8, 16, 32, 64)},
    **{f"U{n}": f"UInt{n}" for n in (8, 16, 32, 64)},
    **{"F8_E4M3": "Float8E4M3FN", "F8_E5M2": "Float8E5M2", "C64": "Complex64"},
}


def looks_like_safetensors(head: bytes) -> bool:
    """Return whether a file begins as safetensors do.

    Args:
        head: its first nine bytes at least.
    """
    return len(head) > _LENGTH.size and head[_LENGTH.size : _LENGTH.size + 1] == b"{"


def read_safetensors(file: DataFile) -> dict[str, StoredTensor]:
    """Return the parameters of one file by their names.

    Raises:
        CheckpointError: it is no such file, cut short, or its header does not fit it.
    """
    header, start = _header(file)
    metadata = header.pop(_METADATA, None)
    said: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
    if len(header) > bounds.PARAMETERS:
        raise file.error("checkpoint.too_many", most=bounds.PARAMETERS)
    found: dict[str, StoredTensor] = {}
    parts: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(file, name, entry)
        parts.append((begin, end, name))
        # MindSpore says of its 4-bit integers, which lie there two by two, in the metadata.
        known = _PACKED if said.get(name) == _PACKED else _DTYPES.get(dtype, dtype)
        if known in STORED and math.prod(shape) * STORED[known].itemsize != end - begin:
            what = {"name": shortened(name), "shape": str(list(shape)), "dtype": dtype}
            raise file.error("checkpoint.entry_size", **what, size=end - begin)
        found[name] = FileTensor(name, known, shape, (Piece(file, start + begin, end - begin),))
    _check_parts(file, parts, file.size - start)
    crc = said.get(_CRC) if said.get("format") == _MINDSPORE else None
    is_number = isinstance(crc, str) and _NUMBER.fullmatch(crc)
    # Of an integer without axes MindSpore takes as many zeros as it says, instead of its bytes.
    if is_number and all(t.shape or "Int" not in t.dtype for t in found.values()):
        own = 0  # that of `crc_check=True`: of names and elements, by name
        for begin, end, name in sorted(parts, key=lambda part: part[2]):
            own = zlib.crc32(name.encode("utf-8", "surrogatepass"), own)
            own = file.crc(start + begin, start + end, own)
        check_crc(file, int(str(crc)), own)
    return found


def _header(file: DataFile) -> tuple[dict[str, Any], int]:
    """Return the header and where it ends."""
    if not file.size:
        raise file.error("checkpoint.empty")
    if file.size < _LENGTH.size:
        raise file.error("checkpoint.no_safetensors")
    (length,) = _LENGTH.unpack(file.read(0, _LENGTH.size))
    if length > bounds.HEADER:
        raise file.error("checkpoint.header_long", size=length, most=bounds.HEADER)
    if length > file.size - _LENGTH.size:
        present = file.size - _LENGTH.size
        raise file.error("checkpoint.header_cut_short", size=length, present=present)
    text = file.read(_LENGTH.size, length)
    if not text.startswith(b"{"):
        raise file.error("checkpoint.no_safetensors")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        seen: set[str] = set()
        for name, _ in pairs if len(found) < len(pairs) else ():
            if name in seen:
                raise file.error("checkpoint.name_twice", name=shortened(name))
            seen.add(name)
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise file.error("checkpoint.header", why=shortened(str(error))) from None
    return header, _LENGTH.size + length


def _entry(file: DataFile, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape and place of an entry."""
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    place: Any = fields.get("data_offsets")
    known = (
        isinstance(dtype, str)
        and _are_sizes(shape)
        and len(shape) <= bounds.DIMENSIONS
        and _are_sizes(place)
        and len(place) == 2
    )
    if not known or len(name) > bounds.NAME:
        raise file.error("checkpoint.entry", name=shortened(name), shown=shortened(repr(entry)))
    return dtype, tuple(shape), place[0], place[1]


def _are_sizes(value: Any) -> bool:
    whole = isinstance(value, list) and all(type(n) is int for n in value)
    return whole and all(0 <= n <= bounds.SIZE for n in value)


def _check_parts(file: DataFile, parts: list[tuple[int, int, str]], present: int) -> None:
    """Make sure that the entries' parts fill the file without a gap, and none lies over another."""
    at, before = 0, ""
    for begin, end, name in sorted(parts):
        places = {"name": shortened(name), "begin": begin, "end": end}
        if end < begin or end > present:
            raise file.error("checkpoint.outside", **places, present=present)
        if begin < at:
            raise file.error("checkpoint.overlap", **places, before=shortened(before))
        if begin > at:
            raise file.error("checkpoint.hole", **places, at=at)
        at, before = end, name
    if at != present:
        raise file.error("checkpoint.rest", size=at, present=present)


def read_index(path: Path, root: Path) -> tuple[dict[str, StoredTensor], Messages]:
    """Return the parameters of all files that an index names, and where it does not fit them.

    Args:
        root: the directory that no file may leave.

    Raises:
        CheckpointError: the index, or a file, cannot be used.
    """
    try:
        content = layout.read_json(root, path, bounds.HEADER)
    except (OSError, ValueError) as error:
        raise CheckpointError.of_file(path, layout.why_unread(error)) from None
    names = content.get("weight_map") if isinstance(content, dict) else None
    texts = isinstance(names, dict) and all(isinstance(file, str) for file in names.values())
    if not isinstance(names, dict) or not texts or not names:
        raise CheckpointError.of_file(path, message("checkpoint.index"))
    files: dict[str, Path] = {}
    for name in dict.fromkeys(names.values()):
        # A file stands beside the index that names it, and nowhere else.
        plain = name not in ("", ".", "..") and not {"/", "\\", "\0"} & {*name}
        files[name] = path.parent / name
        if not plain or not layout.inside(root, files[name]):
            raise CheckpointError.of_file(path, message("checkpoint.leaves", name=shortened(name)))
    found, homes = read_all([*files.values()])
    missing = {
        name: StoredTensor(name, "", (), message("checkpoint.not_in_file", file=shortened(file)))
        for name, file in names.items()
        if name not in found
    }
    wrong = [name for name in found if name in names and homes[name] != files[names[name]]]
    unlisted = [name for name in found if name not in names]
    notes = [message("checkpoint.unlisted", **_some(unlisted))] if unlisted else []
    if wrong:
        place = {"file": homes[wrong[0]].name, "said": names[wrong[0]]}
        notes.append(message("checkpoint.in_another_file", **_some(wrong), **place))
    return {**found, **missing}, tuple(notes)


def _some(names: list[str]) -> dict[str, Any]:
    return {"names": names[:4], "count": len(names)}  # names of parameters in a note


def read_all(paths: list[Path]) -> tuple[dict[str, StoredTensor], dict[str, Path]]:
    """Return the parameters of several files, in which each name stands once, and their files.

    Raises:
        CheckpointError: a file cannot be used, or a name stands in two.
    """
    found: dict[str, StoredTensor] = {}
    homes: dict[str, Path] = {}
    for path in paths:
        file = DataFile(path)
        tensors = read_safetensors(file)
        for name in tensors.keys() & found.keys():
            others = homes[name].name
            raise file.error("checkpoint.in_two_files", name=shortened(name), other=others)
        found |= tensors
        homes |= dict.fromkeys(tensors, path)
    return found, homes
