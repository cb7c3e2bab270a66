"""Checkpoints → the size and the fingerprint of each file, read block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from mindrlhf_msprobe.errors import RunError

_BLOCK = 4 << 20  # bytes that are read at once
_MOST_FILES = 10_000


def describe_checkpoints(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return the files of each checkpoint, by their path inside it.

    A checkpoint is a file, or a directory with all files below it; hidden ones are left out.

    Raises:
        RunError: one cannot be read, is empty, or has too many files.
    """
    return {name: {"files": _files(path)} for name, path in paths.items()}


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
