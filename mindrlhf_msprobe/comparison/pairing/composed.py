"""A record that is compared in another form than it was recorded in, or not compared, and why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.judging.tolerance import is_finite, is_nan, is_number
from mindrlhf_msprobe.storage.arrays.expression import (
    Expression,
    Permuted,
    Reordered,
    Reshaped,
    Scaled,
    Sum,
    Tile,
    Tiled,
    concatenated,
    overlap,
    rows_of,
    runs_of,
)
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry, Record

_Recorded = TypeVar("_Recorded", Entry, KeyDatum)


@dataclass(frozen=True)
class Composed(Record):
    """A record, with what is known of it for this comparison alone.

    Attributes:
        expression: what its elements are made of; None: they are its own.
        gap: why it is not compared; None if it is.
        gap_if_unlike: why it does not count if it differs; None if it does.
        beside: the largest element of what it stands beside; 0 where that is unknown.
    """

    expression: Expression | None = None
    gap: Message | None = None
    gap_if_unlike: Message | None = None
    beside: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.expression, self.gap, self.gap_if_unlike, self.beside)
        return Composed, (*Record.__reduce__(self)[1], *own)

    def array(self) -> np.ndarray:
        """Return the elements; a large tensor that is put together lies in a file.

        Raises:
            ArrayFileError: as `Record.array`, for any of the records that it is made of.
        """
        if self.expression is None or self.location is None or self.leaf.why is not None:
            return Record.array(self)
        return self.expression.array()

    def opened(self) -> Expression:
        """Return the elements as `Record.opened` does; those of all records that it is made of."""
        if self.expression is None or self.location is None:
            return Record.opened(self)
        return self.expression.opened()


class OfRecord(Expression):
    """The elements of a record, read by opening it."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.leaf.shape or ())
        self.record = record

    def __str__(self) -> str:
        return self.record.name

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        return self.opened().numpy_dtype

    def opened(self) -> Expression:
        """Return the record's elements, opened; see `Record.opened`."""
        found = self.record.opened()
        if found.shape != self.shape:
            shapes = {"held": str(list(found.shape)), "recorded": str(list(self.shape))}
            raise ArrayFileError.saying("unread.other_shape", **shapes)
        return found

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        return self.opened().box(start, shape)


@dataclass(frozen=True)
class Shard:
    """What a rank holds of a value."""

    rank: int
    record: Record


#: Of a part of a whole, its copies: each the shards whose sum or mean it is.
Part = tuple[tuple[Shard, ...], ...]


class Assembly(Expression):
    """A whole that ranks hold in parts; of a part there may be copies, which need not be equal.

    Args and attributes:
        parts: of the whole, each with its copies.
        tiles: where the parts lie in the whole; a tile's source is the number of its part.
        divided_by: by what a sum of several shards is divided.
        times: by what elements are multiplied.
        leaves: the descriptions of the whole, by which copies are taken.
        of: how many ranks the run has.
        is_cut: whether it is some rows of what the ranks hold.
        taken: which copy of each part is read, the last one where there are fewer.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        tiles: Sequence[Tile],
        *,
        leaves: Sequence[Leaf],
        divided_by: int = 1,
        times: float = 1.0,
        of: int = 1,
        is_cut: bool = False,
    ) -> None:
        copies = []
        for terms in itertools.chain.from_iterable(parts):
            each = [OfRecord(shard.record) for shard in terms]
            copies.append(each[0] if len(each) == 1 else Sum(each, divided_by))
        super().__init__(leaves[0].shape or (), copies)
        self.parts, self.tiles, self.leaves = tuple(parts), tuple(tiles), tuple(leaves)
        self.divided_by, self.times, self.of, self.is_cut = divided_by, times, of, is_cut
        self.taken = 0

    def __str__(self) -> str:
        return str(self._whole(self.sources))

    @property
    def copies(self) -> int:
        """How many copies there are of the part that has the most."""
        return max(map(len, self.parts), default=1)

    @property
    def ranks(self) -> list[int]:
        """The ranks that hold some of it."""
        copies = itertools.chain.from_iterable(self.parts)
        return sorted({shard.rank for terms in copies for shard in terms})

    def terms(self, tile: Tile, number: int) -> tuple[Shard, ...]:
        """Return the shards that a copy of a tile is the sum of."""
        copies = self.parts[tile.source]
        return copies[min(number, len(copies) - 1)]

    def taking(self, number: int) -> Assembly:
        """Return the same of another copy of each part."""
        found = self.over(self.sources)
        found.taken = number
        return found

    def added(self) -> Expression:
        """Return the same with the copies of a part as terms of one sum."""
        all_terms = [sorted(itertools.chain(*part), key=lambda s: s.rank) for part in self.parts]
        return Assembly(
            [(tuple(terms),) for terms in all_terms],
            self.tiles,
            leaves=self.leaves,
            divided_by=self.divided_by,
            times=self.times,
        )

    def opened(self) -> Expression:
        """Return the whole of shards that are opened: all, those of other copies, too."""
        return self._whole([source.opened() for source in self.sources])

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        return self._whole(self.sources).box(start, shape)

    def _whole(self, copies: Sequence[Expression]) -> Expression:
        left, parts = iter(copies), []
        for part in self.parts:
            own = [next(left) for _ in part]
            parts.append(own[min(self.taken, len(own) - 1)])
        whole = Tiled(parts, self.tiles, self.shape)
        return whole if self.times == 1.0 else Scaled(whole, self.times)

    @classmethod
    def of_rows(
        cls, sources: Sequence[tuple[Assembly, Sequence[int]]], axis: int, each: int, leaf: Leaf
    ) -> Assembly:
        """Return rows of several, one behind the other; the arguments are those of `rows_of`."""
        parts: list[Part] = []
        tiles: list[Tile] = []
        numbers: dict[tuple[int, int], int] = {}  # of the parts that have some of these rows
        at = 0
        for made, (begin, count) in (
            (made, run) for made, rows in sources for run in runs_of(rows)
        ):
            low, sizes = [0] * len(made.shape), [*made.shape]
            low[axis], sizes[axis] = begin * each, count * each
            for tile in made.tiles:
                if (common := overlap((low, sizes), (tile.start, tile.shape))) is not None:
                    own = (b + n - s for b, n, s in zip(tile.begin, common[0], tile.start))
                    start = [*common[0]]
                    start[axis] += at - low[axis]
                    number = numbers.setdefault((id(made), tile.source), len(parts))
                    parts += [made.parts[tile.source]] if number == len(parts) else []
                    tiles.append(Tile(tuple(start), common[1], number, tuple(own)))
            at += sizes[axis]
        first = sources[0][0]
        return cls(
            parts,
            tiles,
            leaves=[leaf],
            divided_by=first.divided_by,
            times=first.times,
            of=first.of,
            is_cut=True,
        )


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


def composed(record: Record, **changes: Any) -> Composed:
    """Return a record with other attributes than it has, those of `Composed` among them."""
    own = record if isinstance(record, Composed) else Composed(*Record.__reduce__(record)[1])
    return replace(own, **changes)


def marked(of: _Recorded, gap: Message) -> _Recorded:
    """Return an entry, or what was saved under a key, that says why it is not compared."""
    return replace(of, records=tuple(composed(record, gap=gap) for record in of.records))


def cut_out(
    record: Record, sources: Sequence[tuple[Record, Sequence[int]]], axis: int, each: int = 1
) -> Composed:
    """Return what rows of several records make up, under the name of `record`, of their dtype.

    Args:
        sources: the records, and the rows of each, in this order.
        axis, each: along which axis the rows lie, and how many places each has there.
    """
    old, shape = record.leaf, [*(sources[0][0].leaf.shape or ())]
    shape[axis] = each * sum(len(rows) for _, rows in sources)
    leaf = Leaf(old.type, old.dtype, tuple(shape), data_name=old.data_name)
    of_ranks = [(assembly_of(source), rows) for source, rows in sources]
    assemblies = [(made, rows) for made, rows in of_ranks if made is not None]
    made_of: Expression
    reduced = {(made.divided_by, made.times) for made, _ in assemblies}
    if len(assemblies) == len(sources) and len(reduced) == 1:
        made_of = Assembly.of_rows(assemblies, axis, each, leaf)
    else:
        made_of = rows_of([(OfRecord(source), rows) for source, rows in sources], axis, each)
    return composed(record, leaf=leaf, expression=made_of)


def reshaped(record: Record, shape: tuple[int, ...]) -> Record:
    """Return a record with the same elements, in the same order, in another shape."""
    if record.leaf.shape == shape:
        return record
    made_of = Reshaped(OfRecord(record), shape)
    return composed(record, leaf=replace(record.leaf, shape=shape), expression=made_of)


def transposed(record: Record) -> Record:
    """Return a matrix with rows for columns."""
    made_of = Permuted(OfRecord(record), (1, 0))
    leaf = replace(record.leaf, shape=made_of.shape, fingerprint=None, md5=None)
    return composed(record, leaf=leaf, expression=made_of)


def joined(
    records: Sequence[Record],
    name: str,
    *,
    axis: int = 0,
    order: Sequence[int] | None = None,
    turned: bool = False,
    turned_back: bool = False,
) -> Record:
    """Return several records as one, by the name that it is to have.

    Args:
        axis: along which they stand one behind the other, after they were `turned`.
        order: the place, along `axis`, of each row in the records; None: as they are.
        turned: the records are transposed before.
        turned_back: the result is transposed.
    """
    parts: list[Expression] = [OfRecord(record) for record in records]
    parts = [Permuted(part, (1, 0)) for part in parts] if turned else parts
    axis %= max(len(parts[0].shape), 1)
    made_of = concatenated(parts, axis)
    if order is not None:
        made_of = Reordered(made_of, order, axis)
    made_of = Permuted(made_of, (1, 0)) if turned_back else made_of
    leaf = together([record.leaf for record in records], made_of.shape)
    stored = all(record.location is not None for record in records)
    location = records[0].location if stored else None
    return composed(records[0], name=name, leaf=leaf, location=location, expression=made_of)


def gap_of(pair: Iterable[Record | None], if_unlike: bool = False) -> Message | None:
    """Return why two records are not compared, or do not count if they differ; None if they do."""
    known = [record for record in pair if isinstance(record, Composed)]
    gaps = (record.gap_if_unlike if if_unlike else record.gap for record in known)
    return next(filter(None, gaps), None)


def together(leaves: Sequence[Leaf], shape: tuple[int, ...]) -> Leaf:
    """Return the description of a tensor by those of its parts, each once.

    Largest, smallest and counts are exact; mean and norm are rounded once more. The fingerprint of
    the whole does not follow from those of parts.
    """
    first = leaves[0]
    some = [leaf for leaf in leaves if math.prod(leaf.shape or ())]
    found: dict[str, Any] = {}
    for name in ("max", "min", "mean", "norm") if some else ():
        values = [getattr(leaf, name) for leaf in some]
        finite = all(map(is_finite, values))
        if not all(map(is_number, values)):
            continue
        if name == "mean":
            sizes = [math.prod(leaf.shape or ()) for leaf in some]
            total = math.fsum(m * n for m, n in zip(values, sizes)) if finite else sum(values)
            found[name] = total / sum(sizes)
        elif name == "norm" and finite:
            found[name] = math.hypot(*values)
        elif any(map(is_nan, values)):
            found[name] = math.nan
        else:
            found[name] = min(values) if name == "min" else max(values)
    for name in ("nan_count", "inf_count"):
        counts = [getattr(leaf, name) for leaf in leaves]
        found[name] = None if None in counts else sum(counts)
    return Leaf(
        first.type,
        first.dtype,
        shape,
        **found,
        data_name=first.data_name,
        why=next((leaf.why for leaf in leaves if leaf.why is not None), None),
        dialect=first.dialect,
    )
