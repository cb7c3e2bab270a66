"""Checkpoints → the fingerprint of each parameter, else of each file, read block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint_of_parts
from mindrlhf_msprobe.storage.foreign.checkpoints.opening import open_checkpoint
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError, StoredTensor

_BLOCK = 4 << 20  # bytes that are read at once
_AT_ONCE = 1 << 20  # elements
_MOST_FILES = 10_000
_READ = (".ckpt", ".safetensors", ".json")


class Described(NamedTuple):
    """What is known of one checkpoint.

    Attributes:
        content: its entry in the section `checkpoints`.
        parameters: the fingerprint of each parameter, as a run's initial weights have it, None of
            one that cannot be read; None where the format is not read, or parts of parameters lie
            there.
        why: why a format that is read could not be.
    """

    content: dict[str, Any]
    parameters: dict[str, str | None] | None
    why: Message | None = None


def describe_checkpoint(path: Path) -> Described:
    """Return the parameters of a checkpoint, else its files by their path inside it.

    A checkpoint is a file, or a directory with all files below it; hidden ones are left out.
    Formats whose content would have to be executed are never opened as such.

    Raises:
        RunError: it cannot be read, is empty, or has too many files.
    """
    why = None
    if _is_of_a_format(path):
        try:
            checkpoint = open_checkpoint(path)
            if checkpoint.whole and checkpoint.kind != "run":
                tensors = checkpoint.ranks[0]
                found = {name: _fingerprint(tensor) for name, tensor in tensors.items()}
                return Described({"format": checkpoint.kind, "parameters": len(found)}, found)
        except CheckpointError as error:
            why = error.said
    return Described({"files": _files(path)}, None, why)


def _is_of_a_format(path: Path) -> bool:
    files = [path] if path.is_file() else [*path.glob("*"), *path.glob("rank_*/*")]
    return any(file.suffix in _READ for file in files)


def _fingerprint(tensor: StoredTensor) -> str | None:
    if tensor.why is not None:
        return None
    parts = (
        np.ascontiguousarray(tensor.read(at, min(at + _AT_ONCE, tensor.size)))
        for at in range(0, tensor.size, _AT_ONCE)
    )
    return fingerprint_of_parts(tensor.dtype, tensor.shape, parts)


def _files(root: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in _below(root):
        if len(found) == _MOST_FILES:
            raise RunError.saying("collect.many_files", path=root, most=_MOST_FILES)
        name = file.name if file == root else file.relative_to(root).as_posix()
        found[name] = _describe(file)
    if not found:
        raise RunError.saying("collect.empty_checkpoint", path=root)
    return found


def _below(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        yield root
        return
    for directory, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(directory, name) for name in sorted(files) if not name.startswith("."))
        yield from (path for path in paths if path.is_file())  # no pipe, no link to nowhere


def _describe(file: Path) -> dict[str, Any]:
    """Return the size of a file in bytes and its fingerprint."""
    digest, size = xxhash.xxh3_128(), 0
    try:
        if not file.is_file():
            raise RunError.saying("collect.no_regular_file", path=file)
        with open(file, "rb", buffering=0) as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
                size += len(block)
    except OSError as error:
        why = error.strerror or error
        raise RunError.saying("collect.unread", path=file, why=why) from None
    return {"size": size, "fingerprint": f"xxh3_128:{digest.hexdigest()}"}
