"""A path → the checkpoint that lies there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.printable import few_numbers, shortened
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.foreign.checkpoints.mindspore_ckpt import (
    HEAD,
    read_ckpt,
    refuse_others,
)
from mindrlhf_msprobe.storage.foreign.checkpoints.safetensors import (
    INDEX_SUFFIX,
    looks_like_safetensors,
    read_all,
    read_index,
    read_safetensors,
)
from mindrlhf_msprobe.storage.foreign.checkpoints.sharded import (
    checkpoint_files,
    files_of_ranks,
    put_together,
    rank_directories,
)
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import (
    Checkpoint,
    CheckpointError,
    DataFile,
    StoredTensor,
)

_CKPT, _SAFETENSORS = ".ckpt", ".safetensors"
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle")
_NAMES = (_CKPT, _SAFETENSORS, INDEX_SUFFIX, *_PICKLES)
#: Below a directory of this name the hub's cache keeps links to files beside it.
_SNAPSHOTS = "snapshots"
_NUMBERED = re.compile(
    r"(?P<name>.*)-(?P<number>[0-9]{1,5})-of-(?P<count>[0-9]{1,5})\.safetensors", re.DOTALL
)
_SHOWN = 4
_JSON = re.compile(rb"[\[{]\s*(?:[\"\[{\]}0-9tfn-]|\Z)")  # how it begins


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is to be read as a checkpoint, and not as a run.

    A file is one if it is called so, or as PyTorch calls its own, which are refused; a directory
    that holds checkpoints is one unless it holds a run.
    """
    if path.is_dir():
        if layout.holds_run(path):
            return False
        return bool(_indices(path) or checkpoint_files(path) or rank_directories(path))
    return path.is_file() and path.name.endswith(_NAMES)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read what a checkpoint holds; of its elements none.

    Args:
        path: a .ckpt, a .safetensors, an index of safetensors, or a directory with one of them or
            with several .safetensors; or with a directory `rank_N` for each rank.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    try:
        if path.is_dir():
            return _in_directory(path)
        if path.name.endswith(INDEX_SUFFIX):
            return _of_index(path, path.parent)
        return _read(path, path)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise CheckpointError.of_file(path, layout.why_unread(error)) from None


def _read(file_path: Path, path: Path) -> Checkpoint:
    """Return what a file holds by what it is, not by what it is called.

    Args:
        path: as it was given.
    """
    file = DataFile(file_path)
    head = bytes(file.read(0, min(file.size, HEAD)))
    named = file_path.suffix == _SAFETENSORS
    if _JSON.match(head) and b"\0" not in head[:8]:  # a header's length of safetensors holds zeros
        raise file.error("checkpoint.json")
    if named and len(head) == HEAD and not looks_like_safetensors(head):
        refuse_others(file, head)
    if named or looks_like_safetensors(head):
        return Checkpoint(path, "safetensors", {0: read_safetensors(file)})
    return read_ckpt(file, path)


def _of_index(path: Path, directory: Path) -> Checkpoint:
    tensors, notes = read_index(path, _root_of(directory))
    return Checkpoint(path, "safetensors", {0: tensors}, notes=notes)


def _root_of(directory: Path) -> Path:
    """Return what no file of a directory may leave: the model's part of the cache, for the hub's.

    There a snapshot holds links to files beside all snapshots.
    """
    return directory.parent.parent if directory.parent.name == _SNAPSHOTS else directory


def _in_directory(path: Path) -> Checkpoint:
    if directories := rank_directories(path):
        of_ranks, notes = files_of_ranks(directories)
        ranks: dict[int, Mapping[str, StoredTensor]] = {}
        texts: dict[str, str] = {}
        for rank, file in of_ranks.items():
            _check_inside(path, file)
            own = _read(file, file)
            ranks[rank] = own.ranks[0]
            texts |= {f"rank_{rank}: {name}": text for name, text in own.texts.items()}
        found = put_together(path, ranks, notes)
        return Checkpoint(path, found.kind, found.ranks, texts, found.notes, found.whole)
    indices, files = _indices(path), checkpoint_files(path)
    if len(indices) == 1:
        return _of_index(indices[0], path)
    kinds = {file.suffix for file in files}
    several = len(files) > 1 and kinds != {_SAFETENSORS}
    if len(indices) > 1 or several:
        names = [file.name for file in (indices or files)[:_SHOWN]]
        raise CheckpointError.saying("checkpoint.several", path=str(path), names=names)
    if not files:
        pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
        code = "checkpoint.only_pickles" if pickles else "checkpoint.none_there"
        raise CheckpointError.saying(code, path=str(path), names=pickles[:_SHOWN])
    for file in files:
        _check_inside(path, file)
    if kinds == {_CKPT}:
        return _read(files[0], path)
    _check_numbers(path, files)
    return Checkpoint(path, "safetensors", {0: read_all(files)[0]})


def _check_numbers(path: Path, files: Sequence[Path]) -> None:
    """Make sure that of files that are numbered `-00001-of-00003` none is missing.

    Raises:
        CheckpointError: one is.
    """
    held: dict[tuple[str, int], set[int]] = {}
    for file in files:
        match = _NUMBERED.fullmatch(file.name)
        if match:
            held.setdefault((match["name"], int(match["count"])), set()).add(int(match["number"]))
    for (name, count), numbers in held.items():
        missing = {*range(1, count + 1)} - numbers
        if missing:
            what = {"name": shortened(name), "count": count}
            numbered = few_numbers(sorted(missing))
            raise CheckpointError.saying(
                "checkpoint.files_missing", path=str(path), **what, missing=numbered
            )


def _check_inside(directory: Path, file: Path) -> None:
    """Refuse a file that a symbolic link leads out of the directory that was given.

    Raises:
        CheckpointError: it does.
    """
    if not layout.inside(_root_of(directory), file):
        raise CheckpointError.of_file(file, message("checkpoint.link_leaves"))


def _indices(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.name.endswith(INDEX_SUFFIX))
