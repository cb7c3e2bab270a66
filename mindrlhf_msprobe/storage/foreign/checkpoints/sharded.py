"""Checkpoints of several ranks: put together by a strategy file, else rank by rank."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import few_numbers, shortened
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import (
    Checkpoint,
    CheckpointError,
    StoredTensor,
)
from mindrlhf_msprobe.storage.foreign.checkpoints.strategy import Cut, Strategy, read_strategies

_RANK = re.compile(r"rank_?([0-9]{1,6})")
_SAVED_AT = re.compile(r"-([0-9]{1,9})_([0-9]{1,9})\.(?:ckpt|safetensors)")
_SUFFIXES = (".ckpt", ".safetensors")
_SHOWN = 4
_LONG_ROW = 1 << 18  # elements; longer rows are not put together as a whole

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
                names = [path.name for path in files[:_SHOWN]]
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
    merged = {name: _whole(name, ranks, strategy, size) for name in names}
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


def _whole(name: str, ranks: Ranks, strategy: Strategy, size: int) -> StoredTensor:
    """Return one parameter of the whole network."""
    copies: list[StoredTensor] = []
    for stage in sorted(strategy):
        held = {r: ranks[stage * size + r].get(name) for r in range(size)}
        local = {r: tensor for r, tensor in held.items() if tensor is not None}
        if local:
            copies.append(_of_stage(name, local, strategy[stage].get(name), stage * size))
    return copies[0] if len(copies) == 1 else Copies(name, copies)


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
        return tensors[0] if len(tensors) == 1 else Copies(name, tensors)

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
    return Sharded(name, cut.parts, shards)


def _why_not_one(held: Sequence[StoredTensor]) -> Message | None:
    """Return why what several ranks hold cannot be one parameter; None if it can."""
    why = next((tensor.why for tensor in held if tensor.why is not None), None)
    first = held[0]
    if why is None and any((t.dtype, t.shape) != (first.dtype, first.shape) for t in held):
        why = message("checkpoint.unlike_ranks")
    return why


class Copies(StoredTensor):
    """A parameter that several ranks hold, which have to agree."""

    def __init__(self, name: str, copies: Sequence[StoredTensor]) -> None:
        first = copies[0]
        super().__init__(name, first.dtype, first.shape, _why_not_one(copies))
        self._copies = copies

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `StoredTensor.read` says.

        Raises:
            CheckpointError: the ranks hold other elements; or as `StoredTensor.read`.
        """
        found = self._copies[0].read(start, stop)
        for other in self._copies[1:]:
            if other.read(start, stop).tobytes() != found.tobytes():
                name = shortened(self.name)
                raise CheckpointError.saying("checkpoint.copies_differ", name=name)
        return found


class Sharded(StoredTensor):
    """A parameter that is put together from shards of equal shape.

    An axis that is not cut is one with the axis before it, so that there are few axes. What is
    asked for in whole rows is put together by rows, the rest run by run.

    Args:
        parts: how many shards lie along each axis.
        shards: by their places along the axes; those of one place are copies.
    """

    def __init__(
        self,
        name: str,
        parts: tuple[int, ...],
        shards: Mapping[tuple[int, ...], Sequence[StoredTensor]],
    ) -> None:
        first = next(iter(shards.values()))[0]
        shape = tuple(n * size for n, size in zip(parts, first.shape))
        super().__init__(name, first.dtype, shape)
        self._axes: list[tuple[int, int]] = []  # into how many parts, and the size of a part
        kept = [i for i, n in enumerate(parts) if n > 1 or i == 0]
        for i, (n, size) in enumerate(zip(parts, first.shape)):
            if i in kept:
                self._axes.append((n, size))
            else:
                self._axes[-1] = self._axes[-1][0], self._axes[-1][1] * size
        self._shards = {
            tuple(part[i] for i in kept): same[0] if len(same) == 1 else Copies(name, same)
            for part, same in shards.items()
        }

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `StoredTensor.read` says."""
        row = math.prod(n * size for n, size in self._axes[1:])
        first, last = -(-start // row), stop // row
        if row > _LONG_ROW or first >= last:
            return self._by_runs(start, stop)
        parts = [self._by_rows(first, last)]
        if start < first * row:
            parts.insert(0, self._by_runs(start, first * row))
        if last * row < stop:
            parts.append(self._by_runs(last * row, stop))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _by_rows(self, first: int, last: int) -> np.ndarray:
        """Return the elements of the rows from `first` to before `last`."""
        (_, height), *others = self._axes
        own = math.prod(size for _, size in others)
        whole: np.ndarray | None = None
        for part, shard in self._shards.items():
            begin = part[0] * height
            low, high = max(first, begin), min(last, begin + height)
            if low >= high:
                continue
            rows = shard.read((low - begin) * own, (high - begin) * own)
            if whole is None:
                whole = np.empty((last - first, *(n * size for n, size in others)), rows.dtype)
            place = (slice(p * size, (p + 1) * size) for p, (_, size) in zip(part[1:], others))
            shape = (high - low, *(size for _, size in others))
            own_place = (slice(low - first, high - first), *place)
            whole[own_place] = rows.reshape(shape)
        assert whole is not None
        return whole.reshape(-1)

    def _by_runs(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, each run of one shard by itself."""
        runs = self._runs(0, start, stop)
        return np.concatenate([self._shards[part].read(at, at + n) for part, at, n in runs])

    def _runs(self, axis: int, start: int, stop: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield where the elements lie of what the axes from `axis` on span: shard, begin, size."""
        _, size = self._axes[axis]
        row = math.prod(n * of for n, of in self._axes[axis + 1 :])
        own = math.prod(of for _, of in self._axes[axis + 1 :])
        at = start
        while at < stop:
            index = at // row
            part, inner = divmod(index, size)
            if row == 1:  # what is left of the part is one run
                end = min(stop, (part + 1) * size)
                yield (part,), inner, end - at
            else:
                end = min(stop, (index + 1) * row)
                for rest, begin, n in self._runs(axis + 1, at - index * row, end - index * row):
                    yield (part, *rest), inner * own + begin, n
            at = end
