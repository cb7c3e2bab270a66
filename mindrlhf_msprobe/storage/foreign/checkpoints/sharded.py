"""Checkpoints of several ranks: put together by a strategy file, else rank by rank."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import few_numbers, shortened
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.expression import BySpans, Tile, Tiled
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import (
    Checkpoint,
    CheckpointError,
    StoredTensor,
)
from mindrlhf_msprobe.storage.foreign.checkpoints.strategy import Cut, Strategy, read_strategies

_RANK = re.compile(r"rank_?([0-9]{1,6})")
_SAVED_AT = re.compile(r"-([0-9]{1,9})_([0-9]{1,9})\.(?:ckpt|safetensors)")
_SUFFIXES = (".ckpt", ".safetensors")

Ranks = Mapping[int, Mapping[str, StoredTensor]]


def rank_directories(path: Path) -> dict[int, Path]:
    """Return the directories `rank_N` that hold checkpoints, by their ranks.

    Raises:
        CheckpointError: two are of one rank, such as `rank_0` and `rank0`.
    """
    found: dict[int, Path] = {}
    for directory in layout.subdirectories(path, links=True):
        match = _RANK.fullmatch(directory.name)
        if match and checkpoint_files(directory):
            rank = int(match[1])
            if rank in found:
                names = [found[rank].name, directory.name]
                raise CheckpointError.saying(
                    "checkpoint.rank_twice", path=str(path), rank=rank, names=names
                )
            found[rank] = directory
    return dict(sorted(found.items()))


def checkpoint_files(directory: Path) -> list[Path]:
    """Return the .ckpt and .safetensors in a directory, sorted by name."""
    files = [path for path in directory.iterdir() if path.suffix in _SUFFIXES and path.is_file()]
    return sorted(files, key=lambda path: path.name)


def files_of_ranks(directories: Mapping[int, Path]) -> tuple[dict[int, Path], Messages]:
    """Return one file for each rank: of several, those of the last step that all ranks have.

    Raises:
        CheckpointError: nothing tells which one is meant.
    """
    found = {rank: checkpoint_files(directory) for rank, directory in directories.items()}
    if all(len(files) == 1 for files in found.values()):
        return {rank: files[0] for rank, files in found.items()}, ()
    saved: dict[int, dict[tuple[int, int], Path]] = {}
    for rank, files in found.items():
        saved[rank] = {}
        for file in files:
            match = _SAVED_AT.search(file.name)
            at = (int(match[1]), int(match[2])) if match else None
            if at is None or at in saved[rank]:
                names = [path.name for path in files[:4]]
                path = str(directories[rank])
                raise CheckpointError.saying("checkpoint.several", path=path, names=names)
            saved[rank][at] = file
    common = set.intersection(*(set(of) for of in saved.values()))
    if not common:
        path = str(next(iter(directories.values())).parent)
        raise CheckpointError.saying("checkpoint.no_common_step", path=path)
    last = max(common)
    note = message("checkpoint.last_step", epoch=last[0], step=last[1], others=len(common) - 1)
    return {rank: of[last] for rank, of in saved.items()}, (note,)


def strategy_files(path: Path) -> list[Path]:
    """Return the strategy files of a sharded checkpoint, where MindSpore and MindFormers put them.

    That is beside its `rank_N`, there with `strategy` in their names, in its `strategy/`, or in the
    `strategy/` beside it.
    """
    for directory in (path, path / "strategy", path.parent / "strategy"):
        if directory.is_dir():
            files = [
                file
                for file in directory.iterdir()
                if (directory != path or "strategy" in file.name)
                and file.suffix in (".ckpt", ".json")
                and file.is_file()
            ]
            if files:
                return sorted(files)
    return []


def put_together(path: Path, ranks: Ranks, notes: Messages) -> Checkpoint:
    """Return a checkpoint of several ranks, its parameters whole where a strategy says how.

    Raises:
        CheckpointError: the strategy is not that of these ranks.
    """
    files = strategy_files(path)
    if not files:
        return Checkpoint(path, "sharded", ranks, notes=notes, whole=len(ranks) == 1)
    if len(ranks) == 1:  # all of it, beside what it was put together by; or the others are missing
        with suppress(CheckpointError):
            expected = _ranks_of(read_strategies(files, files[0].parent))[1]
            if expected > 1:
                rank = next(iter(ranks))
                known = {"rank": rank, "file": files[0].name, "expected": expected}
                notes = (*notes, message("checkpoint.one_rank", **known))
        return Checkpoint(path, "sharded", ranks, notes=notes)
    strategy = read_strategies(files, files[0].parent)
    stages = sorted(strategy)
    sizes, expected = _ranks_of(strategy)
    size = next(iter(sizes), 0)
    if len(sizes) != 1 or [*ranks] != [*range(expected)] or stages != [*range(len(stages))]:
        raise CheckpointError.saying(
            "checkpoint.other_strategy",
            path=str(path),
            file=files[0].name,
            expected=expected,
            ranks=few_numbers(list(ranks)),
            stages=few_numbers(stages),
        )
    names = dict.fromkeys(name for tensors in ranks.values() for name in tensors)
    merged = {}
    for name in names:
        copies: list[StoredTensor] = []
        for stage in stages:
            held = {r: ranks[stage * size + r].get(name) for r in range(size)}
            local = {r: tensor for r, tensor in held.items() if tensor is not None}
            if local:
                copies.append(_of_stage(name, local, strategy[stage].get(name), stage * size))
        merged[name] = _one(name, copies)
    notes = (*notes, message("checkpoint.by_strategy", file=files[0].name, ranks=len(ranks)))
    return Checkpoint(path, "sharded", {0: merged}, notes=notes)


def _ranks_of(strategy: Strategy) -> tuple[set[int], int]:
    """Return how many ranks a stage has, by each parameter, and how many all stages have."""
    sizes = {
        math.prod(cut.devices)
        for cuts in strategy.values()
        for cut in cuts.values()
        if isinstance(cut, Cut)
    }
    return sizes, next(iter(sizes), 0) * len(strategy)


def _of_stage(
    name: str, local: Mapping[int, StoredTensor], cut: Cut | Message | None, first: int
) -> StoredTensor:
    """Return a parameter of the ranks of one stage, which are counted from its `first`."""
    tensors = [*local.values()]
    dtype, shape = tensors[0].dtype, tensors[0].shape
    why = _why_not_one(tensors)
    if why is None and isinstance(cut, Message):
        why = cut
    if why is not None:
        return StoredTensor(name, dtype, shape, why)
    if not isinstance(cut, Cut) or math.prod(cut.parts) == 1:  # every rank has all of it
        return _one(name, tensors)

    if len(cut.parts) != len(shape):
        return StoredTensor(name, dtype, shape, message("checkpoint.other_axes"))
    shards: dict[tuple[int, ...], list[StoredTensor]] = {}
    for device, tensor in local.items():
        shards.setdefault(cut.part_of(device), []).append(tensor)
    for part in itertools.product(*map(range, cut.parts)):
        if part not in shards:
            missing = [first + d for d in range(math.prod(cut.devices)) if cut.part_of(d) == part]
            what = message("checkpoint.shard_missing", ranks=few_numbers(missing))
            return StoredTensor(name, dtype, shape, what)
    # Shards of one place are copies.
    zeros = (0,) * len(shape)
    tiles = [
        Tile(tuple(p * n for p, n in zip(place, shape)), shape, number, zeros)
        for number, place in enumerate(shards)
    ]
    whole = [n * size for n, size in zip(cut.parts, shape)]
    held = [_one(name, same) for same in shards.values()]
    return StoredTensor(name, dtype, tuple(whole), made_of=Tiled(held, tiles, whole))


def _why_not_one(held: Sequence[StoredTensor]) -> Message | None:
    """Return why what several ranks hold cannot be one parameter; None if it can."""
    why = next((tensor.why for tensor in held if tensor.why is not None), None)
    first = held[0]
    if why is None and any((t.dtype, t.shape) != (first.dtype, first.shape) for t in held):
        why = message("checkpoint.unlike_ranks")
    return why


class Copies(BySpans):
    """A tensor that several ranks hold, which have to agree."""

    def __init__(self, name: str, copies: Sequence[StoredTensor]) -> None:
        super().__init__(copies[0].shape, copies)
        self._name = name

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `StoredTensor` says.

        Raises:
            CheckpointError: the ranks hold other elements; or as `StoredTensor`.
        """
        found, *others = (copy.read(start, stop) for copy in self.sources)
        if any(other.tobytes() != found.tobytes() for other in others):
            name = shortened(self._name)
            raise CheckpointError.saying("checkpoint.copies_differ", name=name)
        return found


def _one(name: str, copies: Sequence[StoredTensor]) -> StoredTensor:
    """Return what several ranks hold as one parameter."""
    if len(copies) == 1:
        return copies[0]
    first, made_of = copies[0], Copies(name, copies)
    return StoredTensor(name, first.dtype, first.shape, _why_not_one(copies), made_of)
