"""A tensor that is put together from what several ranks hold, piece by piece."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_number
from mindrlhf_msprobe.comparison.pairing.composed import Composed, OfRecord
from mindrlhf_msprobe.storage.arrays.expression import Expression, Scaled, Sum, Tile, Tiled
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

#: Of a part, its copies: each the numbers of the shards whose sum or mean it is.
Part = tuple[tuple[int, ...], ...]


class Assembly(Expression):
    """A whole that ranks hold in parts; of a part there may be copies, which need not be equal.

    Args and attributes:
        ranks: of the shards.
        shards: what each of them holds.
        parts: of the whole, each with its copies.
        tiles: where the parts lie in the whole; a tile's source is the number of its part.
        divided_by: by what a sum of several shards is divided.
        times: by what elements are multiplied.
        leaves: the descriptions of the whole, by which copies are taken.
        of: how many ranks the run has.
        taken: which copy of each part is read, the last one where there are fewer.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        shards: tuple[Record, ...],
        parts: tuple[Part, ...],
        tiles: tuple[Tile, ...],
        *,
        leaves: tuple[Leaf, ...],
        divided_by: int = 1,
        times: float = 1.0,
        of: int = 1,
    ) -> None:
        super().__init__(leaves[0].shape or (), [OfRecord(shard) for shard in shards])
        self.ranks, self.shards, self.parts, self.tiles = ranks, shards, parts, tiles
        self.leaves, self.of = leaves, of
        self.taken = 0
        self._divided_by, self._times = divided_by, times

    def __str__(self) -> str:
        return str(self._of(self.sources))

    @property
    def copies(self) -> int:
        """How many copies there are of the part that has the most."""
        return max(map(len, self.parts), default=1)

    def terms(self, tile: Tile, number: int) -> tuple[int, ...]:
        """Return the shards that a copy of a tile is the sum of."""
        copies = self.parts[tile.source]
        return copies[min(number, len(copies) - 1)]

    def holders(self, tile: Tile, number: int) -> tuple[int, ...]:
        """Return the ranks that hold a copy of a tile."""
        return tuple(self.ranks[shard] for shard in self.terms(tile, number))

    def taking(self, number: int) -> Assembly:
        """Return the same of another copy of each part."""
        found = copy.copy(self)
        found.taken = number
        return found

    def added(self) -> Assembly:
        """Return the same with the copies of a part as terms of one sum."""
        found = self.taking(0)
        found.parts = tuple((tuple(sorted(i for one in part for i in one)),) for part in self.parts)
        return found

    def opened(self) -> Expression:
        """Return the whole of shards that are opened: all, those of other copies, too."""
        return self._of([source.opened() for source in self.sources])

    def _of(self, shards: Sequence[Expression]) -> Expression:
        parts = []
        for copies in self.parts:
            terms = [shards[number] for number in copies[min(self.taken, len(copies) - 1)]]
            parts.append(terms[0] if len(terms) == 1 else Sum(terms, self._divided_by))
        whole = Tiled(parts, self.tiles, self.shape)
        return whole if self._times == 1.0 else Scaled(whole, self._times)

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        return self._of(self.sources).box(start, shape)


def assembly_of(record: Record) -> Assembly | None:
    """Return what a record of several ranks is put together from; None for any other."""
    found = record.expression if isinstance(record, Composed) else None
    return found if isinstance(found, Assembly) else None


def taking(record: Record, number: int) -> Record:
    """Return a record with another copy of each of its parts; any other as it is."""
    made = assembly_of(record)
    if made is None or not isinstance(record, Composed):
        return record
    leaf = made.leaves[min(number, len(made.leaves) - 1)]
    return replace(record, leaf=leaf, expression=made.taking(number))


def same_value(leaves: Sequence[Leaf]) -> bool:
    """Return whether ranks say the same of a value, as far as they say anything."""
    return all(known_of(leaf) == known_of(leaves[0]) for leaf in leaves[1:])


def known_of(leaf: Leaf) -> tuple[Any, ...]:
    """Return what a description says of a value, as far as it can be compared."""
    of = (leaf.type, leaf.dtype, leaf.shape, leaf.fingerprint, leaf.value, leaf.opaque)
    return (*of, leaf.why, *(repr(v) for v in (leaf.max, leaf.min, leaf.mean, leaf.norm)))


def scaled(leaf: Leaf, times: float) -> Leaf:
    """Return the description of a tensor whose elements are multiplied by a number above zero."""
    if times == 1.0:
        return leaf
    known = {name: getattr(leaf, name) for name in ("max", "min", "mean", "norm")}
    changed = {name: v * times if is_number(v) else v for name, v in known.items()}
    return replace(leaf, fingerprint=None, md5=None, **changed)
