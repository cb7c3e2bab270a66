"""A record that is put together from what several ranks hold, piece by piece."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_finite, is_nan, is_number
from mindrlhf_msprobe.comparison.pairing.key_pieces import Piece
from mindrlhf_msprobe.storage.arrays.npy import give_back, map_elements
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

#: Elements that are put together at a time.
CHUNK = 1 << 21
#: Bytes of a record that is put together as a whole.
WHOLE = 32 << 20

Box = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins, and its sizes


@dataclass(frozen=True)
class Tile:
    """A part of the whole that is one shard, or a box of one.

    Attributes:
        start, shape: where it lies in the whole.
        source: where it begins in the shard.
        copies: the shards that hold it, each the ones whose sum it is: numbers of `Assembly.ranks`.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    source: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Assembly:
    """What a record is put together from.

    Attributes:
        ranks: of the shards.
        shards: what each of them holds.
        tiles: cover the whole once.
        divided_by: by what a sum of several shards is divided.
        times: by what elements are multiplied.
        leaves: the description of the whole, by which copies are taken.
        of: how many ranks the run has.
    """

    ranks: tuple[int, ...]
    shards: tuple[Record, ...]
    tiles: tuple[Tile, ...]
    divided_by: int = 1
    times: float = 1.0
    leaves: tuple[Leaf, ...] = ()
    of: int = 1

    @property
    def copies(self) -> int:
        """How many copies there are of the part that has the most."""
        return max((len(tile.copies) for tile in self.tiles), default=1)

    def holders(self, tile: Tile, copy: int) -> tuple[int, ...]:
        """Return the ranks that hold a tile."""
        return tuple(self.ranks[i] for i in tile.copies[min(copy, len(tile.copies) - 1)])


@dataclass(frozen=True)
class Joined(Piece):
    """A record of several ranks, under its name in the whole network.

    Attributes:
        made_of: what it is put together from; None where it cannot be.
        copy: which copy of each part is taken, the last one where there are fewer.
    """

    made_of: Assembly | None = None
    copy: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        cls, values = Piece.__reduce__(self)
        del cls
        return Joined, (*values, self.made_of, self.copy)

    def variants(self) -> Iterator[Joined]:
        """Yield the record with the first copy of each part, with the second, …"""
        for copy in range(self.made_of.copies if self.made_of else 1):
            assert self.made_of is not None or not copy
            leaf = self.made_of.leaves[copy] if self.made_of else self.leaf
            yield replace(self, leaf=leaf, copy=copy)

    def array(self) -> np.ndarray:
        """Return the whole; a large one lies in a file that is gone with it.

        Raises:
            ArrayFileError: as `Record.array`, for any of the shards.
        """
        if self.made_of is None or self.location is None:
            return Record.array(self)
        reader = Reader(self)
        size = math.prod(reader.shape) * reader.dtype.itemsize
        if size <= WHOLE:
            return reader.read((0,) * len(reader.shape), reader.shape)
        with tempfile.TemporaryFile() as file:
            for block in reader.blocks(CHUNK):
                file.write(np.ascontiguousarray(block).data)
            file.flush()
            return map_elements(file.fileno(), reader.dtype, reader.shape)


def joined(record: Record, leaf: Leaf, **changes: Any) -> Joined:
    """Return a record of one rank as one of several, described by `leaf`."""
    return replace(Joined(*Record.__reduce__(record)[1]), leaf=leaf, **changes)


class Reader:
    """Reads boxes of a record, whole or put together.

    Attributes:
        shape: of the whole.
        dtype: of what is read.

    Raises:
        ArrayFileError: as `Record.array`, for any of the shards.
    """

    def __init__(self, record: Record) -> None:
        self.shape = record.leaf.shape or ()
        self._assembly = record.made_of if isinstance(record, Joined) else None
        self._copy = record.copy if isinstance(record, Joined) else 0
        if self._assembly is None:
            self._arrays = [record.array()]
        else:
            self._arrays = [shard.array() for shard in self._assembly.shards]
        self.dtype = self._arrays[0].dtype
        if any(array.dtype != self.dtype for array in self._arrays):
            self.dtype = np.result_type(*self._arrays)

    def read(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return a box of the whole."""
        if self._assembly is None:
            return self._arrays[0][tuple(slice(b, b + n) for b, n in zip(start, shape))]
        found = np.empty(tuple(shape), self.dtype)
        for tile in self._assembly.tiles:
            low = [max(b, t) for b, t in zip(start, tile.start)]
            ends = zip(start, shape, tile.start, tile.shape)
            high = [min(b + n, t + m) for b, n, t, m in ends]
            if any(x >= y for x, y in zip(low, high)):
                continue
            into = tuple(slice(x - b, y - b) for x, y, b in zip(low, high, start))
            moved = zip(low, high, tile.start, tile.source)
            own = tuple(slice(x - t + s, y - t + s) for x, y, t, s in moved)
            found[into] = self._sum(tile.copies[min(self._copy, len(tile.copies) - 1)], own)
        if self._assembly.times != 1.0:
            np.multiply(found, self._assembly.times, out=found, casting="unsafe")
        return found

    def _sum(self, terms: tuple[int, ...], own: tuple[slice, ...]) -> np.ndarray:
        assert self._assembly is not None
        if len(terms) == 1:
            return self._arrays[terms[0]][own]
        exact = self.dtype.kind in "biu"
        total = sum(
            (self._arrays[i][own].astype(self.dtype if exact else _wide(self.dtype))) for i in terms
        )
        divided = total if self._assembly.divided_by == 1 else total / self._assembly.divided_by
        return np.asarray(divided).astype(self.dtype)

    def give_back(self) -> None:
        """Take the pages of all files out of this process's memory."""
        for array in self._arrays:
            give_back(array)

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """Yield the whole in row-major order: 1-d, of `size` elements each, the last of fewer."""
        left: list[np.ndarray] = []
        held = 0
        for start, shape in boxes(self.shape, size):
            part = np.array(self.read(start, shape)).reshape(-1)
            self.give_back()
            left.append(part)
            held += part.size
            while held >= size:
                whole = left[0] if len(left) == 1 else np.concatenate(left)
                yield whole[:size]
                left, held = [whole[size:]], held - size
        if held:
            yield left[0] if len(left) == 1 else np.concatenate(left)


def _wide(dtype: np.dtype) -> np.dtype:
    return np.result_type(dtype, np.float64)


def boxes(shape: Sequence[int], most: int) -> Iterator[Box]:
    """Cut a shape into boxes of at most so many elements, in row-major order."""
    axis, row = 0, math.prod(shape)
    while axis < len(shape) and row > most:
        row //= shape[axis]
        axis += 1
    if not row or 0 in shape:
        return
    if not axis:
        yield (0,) * len(shape), tuple(shape)
        return
    axis -= 1
    each, rest = max(1, most // row), len(shape) - axis - 1
    for outer in itertools.product(*(range(n) for n in shape[:axis])):
        for at in range(0, shape[axis], each):
            size = min(each, shape[axis] - at)
            ones = (1,) * axis
            yield (*outer, at, *(0,) * rest), (*ones, size, *shape[axis + 1 :])


def same_value(leaves: Sequence[Leaf]) -> bool:
    """Return whether ranks say the same of a value, as far as they say anything."""
    return all(known_of(leaf) == known_of(leaves[0]) for leaf in leaves[1:])


def known_of(leaf: Leaf) -> tuple[Any, ...]:
    """Return what a description says of a value, as far as it can be compared."""
    of = (leaf.type, leaf.dtype, leaf.shape, leaf.fingerprint, leaf.value, leaf.opaque)
    return (*of, leaf.why, *(repr(v) for v in (leaf.max, leaf.min, leaf.mean, leaf.norm)))


def whole_of(leaves: Sequence[Leaf], shape: tuple[int, ...]) -> Leaf:
    """Return the description of a tensor by those of its parts, each once.

    Largest, smallest and counts are exact; mean and norm are rounded once more. The fingerprint of
    the whole does not follow from those of parts.
    """
    if len(leaves) == 1:
        return leaves[0]
    some = [leaf for leaf in leaves if math.prod(leaf.shape or ())]
    return Leaf(
        leaves[0].type,
        leaves[0].dtype,
        shape,
        max=_extreme([leaf.max for leaf in some], max),
        min=_extreme([leaf.min for leaf in some], min),
        mean=_mean(some),
        norm=_norm([leaf.norm for leaf in some]),
        nan_count=_sum([leaf.nan_count for leaf in leaves]),
        inf_count=_sum([leaf.inf_count for leaf in leaves]),
        data_name=leaves[0].data_name,
        dialect=leaves[0].dialect,
    )


def scaled(leaf: Leaf, times: float) -> Leaf:
    """Return the description of a tensor whose elements are multiplied by a number above zero."""
    if times == 1.0:
        return leaf
    known = {name: getattr(leaf, name) for name in ("max", "min", "mean", "norm")}
    changed = {name: v * times if is_number(v) else v for name, v in known.items()}
    return replace(leaf, fingerprint=None, md5=None, **changed)


def _known(values: Sequence[Any]) -> bool:
    return bool(values) and all(map(is_number, values))


def _finite(values: Sequence[Any]) -> bool:
    return all(map(is_finite, values))


def _nan(values: Sequence[Any]) -> bool:
    return any(map(is_nan, values))


def _mean(leaves: Sequence[Leaf]) -> Any:
    """Return the mean of all elements of parts that have some; None where one is unknown."""
    means: list[Any] = [leaf.mean for leaf in leaves]
    if not _known(means):
        return None
    sizes = [math.prod(leaf.shape or ()) for leaf in leaves]
    total = math.fsum(m * n for m, n in zip(means, sizes)) if _finite(means) else sum(means)
    return total / sum(sizes)


def _norm(norms: Sequence[Any]) -> float | None:
    if not _known(norms):
        return None
    if _finite(norms):
        return math.hypot(*norms)
    return math.nan if _nan(norms) else math.inf


def _extreme(values: Sequence[Any], most: Callable[[Sequence[Any]], Any]) -> Any:
    if not _known(values):
        return None
    return math.nan if _nan(values) else most(values)


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(n for n in values if n is not None)
