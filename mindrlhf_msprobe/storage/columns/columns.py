"""Reads what a rank recorded in a phase of a step into columns: a row a record.

The rows of an entry stand together, entries in the order in which they ended. An entry is made when
it is wanted, and what it holds when that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.columns.layouts import Layout
from mindrlhf_msprobe.storage.columns.leaf_json import (
    COUNTS,
    STATISTICS,
    USUAL,
    LeafJson,
    are_moderate,
    is_ordinary,
    statistic,
)
from mindrlhf_msprobe.storage.columns.rows import Records, Rows
from mindrlhf_msprobe.storage.journal_line import IO_OF
from mindrlhf_msprobe.storage.leaves import leaf_from_json
from mindrlhf_msprobe.storage.operators import Attributes
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, EntryValue, Locator, Record, known_at

#: What `Heads` hold, as entries and lines of a journal call it; there `around` is `cell`.
HEADS = ("seq", "end", "parent", "opening", "token", "around")


class Heads(NamedTuple):
    """What is said of entries beside their names and values, of each in turn.

    Attributes:
        seqs, ends: when they began and ended; an end is None where one never did.
        parents: the name of the entry that each ran in, or None.
        openings: how often the phase had been opened before.
        tokens: the generated token that each belongs to, or None.
        arounds: of an operator the cell in which it was called; None where that is not known.
    """

    seqs: list[int]
    ends: list[int | None]
    parents: list[str | None]
    openings: list[int]
    tokens: list[int | None]
    arounds: list[str | None]

    def time(self, number: int, io: str) -> int:
        """Return when values of an entry were known; see `known_at`."""
        return known_at(io, self.seqs[number], self.ends[number])


class Columns:
    """The records of one phase, step and rank.

    Attributes:
        at: where they are.
        layout: the names of its entries, and where their values stand.
        heads: what else is said of the entries.
        values: its values.
        objects: what they were made of where there is no whole journal of this package: another
            tool's dump, or what is left of a damaged one; else None.
    """

    heads: Heads
    objects: list[Entry] | None = None

    def __init__(self, at: LayerPlace, layout: Layout, values: Values) -> None:
        self.at, self.layout, self.values = at, layout, values
        self.phase, self.step, self.rank = at
        self._entries: dict[int, Entry] = {}
        self._records: dict[tuple[str, ...], Records] = {}

    def __len__(self) -> int:
        return len(self.layout.names)

    def frames(self, number: int) -> tuple[str, ...]:
        """Return the call stack of an entry, innermost first; () if it was not recorded."""
        raise NotImplementedError

    def argument(self, number: int, io: str, path: str) -> str:
        """Return what `construct` calls the argument that a value is or lies in, or ""."""
        raise NotImplementedError

    def marked(self, marks: tuple[bytes, ...]) -> list[int]:
        """Return the entries in whose lines one of these texts stands, and maybe others."""
        raise NotImplementedError

    def made(self, number: int) -> Entry:
        """Return an entry with all that it holds, to be kept without the columns.

        Raises:
            ValueError: a value of it cannot be read.
        """
        raise NotImplementedError

    @cached_property
    def kinds(self) -> tuple[list[Any], list[Any]]:
        """The dtypes and shapes of its values: one object for journals with the same."""
        found = self.values.field("dtype"), self.values.field("shape")
        if self.layout.kinds != found:
            self.layout.kinds = found
        return self.layout.kinds

    @property
    def span(self) -> tuple[int, int] | None:
        """When its first entry began, and its last one ended; None without any."""
        pairs = zip(self.heads.seqs, self.heads.ends)
        ends = (begin if end is None else end for begin, end in pairs)
        return (min(self.heads.seqs), max(ends)) if self.heads.seqs else None

    @cached_property
    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """(entries,) int64 each: when they began and ended, -1 of one that never did."""
        ends = [-1 if end is None else end for end in self.heads.ends]
        return np.array(self.heads.seqs, np.int64), np.array(ends, np.int64)

    def stand_as(self, other: Columns, order: np.ndarray) -> bool:
        """Return whether its entries have the parents, openings and tokens of another place's.

        Args:
            order: (entries,) which entry of the other place each is compared with.
        """
        pairs = ((one.parents, one.openings, one.tokens) for one in (self.heads, other.heads))
        there = order.tolist()
        return all(ours == [theirs[n] for n in there] for ours, theirs in zip(*pairs))

    def records(self, *parts: str) -> Records:
        """Return the records of some parts (`output`, `parameters_grad`, …)."""
        if parts not in self._records:
            self._records[parts] = Records(self, self.layout.once(Rows, parts))
        return self._records[parts]

    def entry(self, number: int) -> Entry:
        """Return an entry; what it holds is made when it is wanted, and may raise as `made`."""
        found = self._entries.get(number)
        if found is None:
            found = self._entries[number] = _EntryOfColumns.of(self, number)
        return found

    def entries(self) -> Iterator[Entry]:
        """Yield the entries; see `entry`."""
        return map(self.entry, range(len(self)))


class _EntryOfColumns(Entry):
    """An entry that stands in columns: what it holds is made when it is first wanted."""

    _columns: Columns | None = None  # of one that `dataclasses.replace` made of it
    _number: int

    @classmethod
    def of(cls, columns: Columns, number: int) -> Entry:
        """Return one of the entries of columns."""
        found = cls.__new__(cls)
        heads, (phase, step, rank) = columns.heads, columns.at
        vars(found).update(
            name=columns.layout.names[number],
            phase=phase,
            step=step,
            rank=rank,
            seq=heads.seqs[number],
            end=heads.ends[number],
            parent=heads.parents[number],
            opening=heads.openings[number],
            token=heads.tokens[number],
            around=heads.arounds[number],
            _columns=columns,
            _number=number,
        )
        return found

    @cached_property
    def values(self) -> Sequence[EntryValue]:
        if self._columns is None:
            return super().values
        layout, leaf = self._columns.layout, self._columns.values.leaf
        places = layout.structures[self._number].places
        rows = enumerate(places, int(layout.first[self._number]))
        return [(IO_OF[part], path, leaf(row)) for row, (part, path) in rows]

    @cached_property
    def stack(self) -> tuple[str, ...]:
        assert self._columns is not None
        return self._columns.frames(self._number)[: bounds.FRAMES]

    @cached_property
    def _made(self) -> Entry:
        assert self._columns is not None
        return self._columns.made(self._number)

    @cached_property
    def records(self) -> tuple[Record, ...]:
        return self._made.records

    @cached_property
    def attributes(self) -> Attributes | None:
        return self._made.attributes

    def argument(self, io: str, path: str) -> str:
        if self._columns is None:
            return super().argument(io, path)
        return self._columns.argument(self._number, io, path)


def elements_of(run: Run, at: LayerPlace, leaf: LeafJson) -> np.ndarray:
    """Map the elements of a value of one place into memory, read-only.

    Raises:
        ArrayFileError, ValueError: they were not stored, or cannot be read.
    """
    return record_of(leaf, run.locator(at)).array()


def record_of(leaf: LeafJson, files: Locator, name: str = "") -> Record:
    """Return a value alone as a record of that name, with the file of its elements.

    Raises:
        ValueError: it cannot be read.
    """
    made = leaf_from_json(dict(leaf))
    return Record(name, "", "", *files.locate(made, made.data_name))


_TEXT, _COUNT, _NUMBER = (str, NoneType), (int, NoneType), (float, int, bool, str, NoneType)
#: The types of what is read of a leaf.
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("dtype", "fingerprint", "md5", "data_name", "signs"), _TEXT),
    **dict.fromkeys(COUNTS, _COUNT),
    **dict.fromkeys(STATISTICS, _NUMBER),
    "shape": (list, NoneType),
}


class Values:
    """Values as JSON objects, of which a field is a list, or an array."""

    def __init__(self, leaves: list[LeafJson]) -> None:
        self._leaves = leaves
        self._fields: dict[str, list[Any]] = {}
        self._numbers: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._leaves)

    def leaf(self, row: int) -> LeafJson:
        """Return a value as JSON."""
        return self._leaves[row]

    def field(self, name: str) -> list[Any]:
        """Return one field of all values as JSON has it, or None."""
        found = self._fields.get(name)
        if found is None:
            found = self._fields[name] = [leaf.get(name) for leaf in self._leaves]
        return found

    def holds(self, name: str) -> bool:
        """Return whether a value has a field of this name that is not None."""
        return any(value is not None for value in self.field(name))

    @cached_property
    def are_whole(self) -> bool:
        """Whether fields have the types that those of values have, in no damaged line."""
        for name in {*chain.from_iterable({*self._forms})} & _TYPES.keys():
            if not {*map(type, self.field(name))} <= {*_TYPES[name]}:
                return False
            if name in COUNTS and min(filter(None, self.field(name)), default=0) < 0:
                return False
        sizes = [*chain.from_iterable(filter(None, self.field("shape")))]
        return {*map(type, sizes)} <= {int} and min(sizes, default=0) >= 0

    def numbers(self, name: str) -> np.ndarray:
        """Return a statistic (`Max`, `Min`, `Mean`, `Norm`) as float64; NaN where there is none."""
        if name not in self._numbers:
            values = self.field(name)
            if not {*map(type, values)} <= {float, int, NoneType}:  # of a text numpy makes a number
                values = [statistic(leaf, name) for leaf in self._leaves]
            self._numbers[name] = np.array(values, np.float64)
        return self._numbers[name]

    @cached_property
    def fingerprints(self) -> list[str | None]:
        """The fingerprint of each value, or None."""
        if "md5" in chain.from_iterable({*self._forms}):
            pairs = zip(*map(self.field, ("fingerprint", "md5")))
            return [own or checksum for own, checksum in pairs]
        return [fingerprint or None for fingerprint in self.field("fingerprint")]

    @cached_property
    def _forms(self) -> list[tuple[str, ...]]:
        """The names of the fields of each value."""
        return [*map(tuple, self._leaves)]

    @cached_property
    def _are_usual(self) -> np.ndarray:
        """Which values are tensors of which fields say all that JSON does."""
        usual = {form: USUAL <= {*form} <= USUAL.union(COUNTS) for form in {*self._forms}}
        found = np.array([usual[form] for form in self._forms], bool)
        for name in ("dtype", "shape", "fingerprint"):
            if None in self.field(name):
                found &= np.array([value is not None for value in self.field(name)], bool)
        if "str" in self.field("type"):
            found &= np.array([kind != "str" for kind in self.field("type")], bool)
        return found

    @property
    def are_told(self) -> np.ndarray:
        """Which values are such tensors with statistics of the type float."""
        found = self._are_usual
        for name in STATISTICS:
            if {*map(type, self.field(name))} != {float}:
                found = found & np.array([type(v) is float for v in self.field(name)], bool)
        return found

    @cached_property
    def _are_finite(self) -> np.ndarray:
        """Which values of these have finite statistics of no unusual size."""
        found = np.ones(len(self), bool)
        for name in STATISTICS:
            moderate = are_moderate(self.numbers(name))
            if not moderate.all():
                moderate |= np.array([value is None for value in self.field(name)], bool)
            found &= moderate
        for name in COUNTS:
            if any(self.field(name)):
                found &= np.array([not count for count in self.field(name)], bool)
        return found

    def are_identical(self, rows: np.ndarray, other: Values, there: np.ndarray) -> np.ndarray:
        """Return which values are those of another place, and deserve no look.

        A tensor has the same fingerprint, dtype, shape and finite statistics; any other value is
        at hand and finite.

        Args:
            rows, there: the numbers of the values here, and of those in the other place.
        """
        usual = self._are_usual[rows] & other._are_usual[there]
        same = usual & self._are_same(rows, other, there)
        for number in np.flatnonzero(~usual).tolist():
            leaf, theirs = self.leaf(int(rows[number])), other.leaf(int(there[number]))
            same[number] = is_ordinary(leaf) and _text(leaf) == _text(theirs)
        return same

    def _are_same(self, rows: np.ndarray, other: Values, there: np.ndarray) -> np.ndarray:
        """Return which usual values are finite, and those of another place."""
        found = self._are_finite[rows]
        if self is not other:
            found = found & other._are_finite[there] & self._agree(rows, other, there)
        return found

    def _agree(self, rows: np.ndarray, other: Values, there: np.ndarray) -> np.ndarray:
        """Return which values have the statistics and fields of those of another place."""
        found = np.ones(len(rows), bool)
        for name in STATISTICS:
            one, two = self.numbers(name)[rows], other.numbers(name)[there]
            found &= one.view(np.int64) == two.view(np.int64)
        for name in ("fingerprint", "dtype", "shape", "type"):
            found &= self._equal(name, rows, other, there)
        return found

    def _equal(
        self, name: str, rows: np.ndarray, other: Values, there: np.ndarray
    ) -> np.ndarray | bool:
        """Return where a field is the same."""
        one, two = self.field(name), other.field(name)
        whole = len(rows) == len(one) == len(two)
        if whole and one == two and (rows == there).all():
            return True
        pairs = zip(rows.tolist(), there.tolist())
        return np.array([one[n] == two[m] for n, m in pairs], bool)


def _text(leaf: LeafJson) -> bytes:
    return dump_json(dict(sorted(leaf.items())))
