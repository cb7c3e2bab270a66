"""Reads columns from the copy that a run has of its journals, where these have not changed since.

A file of others is data: what is not of this version's schema, too large, or contradicts itself is
not used, and the journal is read.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import loads
from mindrlhf_msprobe.storage.columns.columns import HEADS, Columns, Heads, Values
from mindrlhf_msprobe.storage.columns.layouts import Layout, Layouts, Structure
from mindrlhf_msprobe.storage.columns.leaf_json import (
    NON_FINITE_MARKS,
    STATISTICS,
    LeafJson,
    are_moderate,
)
from mindrlhf_msprobe.storage.columns.page_sizes import decompressed_size
from mindrlhf_msprobe.storage.columns.parquet import (
    METADATA,
    NUMBERS,
    OF_VALUE,
    READ,
    SAID,
    SCHEMA,
    TEXTS,
    CopiedPlace,
    array_of,
    content_digest,
    digest_of,
    known_in,
    said_of,
    schema,
    shape_of,
)
from mindrlhf_msprobe.storage.journal_line import IO_OF
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry

_MOST_ROWS = 1 << 22  # of a row group
_MOST_BYTES = 1 << 27  # of a row group, once it is decompressed
_HELD = 64  # row groups of a run, about a megabyte each
_IDLE = 512  # places that are read until one is let go of that none of them lies in


#: The texts of a value, beside its statistics.
_TELLING = ("algorithm", "fingerprint", "dtype", "shape", "type")
#: Of an entry where it stands among the others, but for its time.
_STANDING = ("parent", "opening", "token")


class _Groups:
    """The row groups of a run that are in memory.

    Where steps are read in turn, that is one of each rank; where rank after rank is, few.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], tuple[int, _Group | None]] = OrderedDict()
        self._reads = 0

    def get(self, key: tuple[int, int], read: Callable[[], _Group | None]) -> _Group | None:
        """Return the group of a rank and number, read if it is not there."""
        self._reads += 1
        group = self._known.pop(key)[1] if key in self._known else read()
        self._known[key] = self._reads, group
        last, _ = next(iter(self._known.values()))
        if len(self._known) > _HELD or last < self._reads - _IDLE:
            self._known.popitem(last=False)
        return group


def copied_columns(
    run: Run, at: LayerPlace, layouts: Layouts, of_journal: Callable[[], Columns | None]
) -> Columns | None:
    """Return a place from the copy of its journal; None where there is none that can be used.

    Args:
        of_journal: reads the journal itself.
    """
    if at.rank not in run.copies:
        run.copies[at.rank] = None
        held = next((copy.groups for copy in run.copies.values() if copy is not None), None)
        path = run.path / layout.columns_name(at.rank)
        try:
            groups = _Groups() if held is None else held
            run.copies[at.rank] = Copy(run.path, path, at.rank, groups)
        except ModuleNotFoundError:
            pass
        except Exception as error:  # whatever is wrong with the file: the journals are there
            warn("log.columns_unread", path=str(path), why=layout.why_unread(error))
    copy: Copy | None = run.copies[at.rank]
    return None if copy is None else copy.columns(run, at, layouts, of_journal)


class Copy:
    """One file of columns.

    Args:
        groups: those of the run.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: it cannot be read, or is of another schema.
    """

    def __init__(self, root: Path, path: Path, rank: int, groups: _Groups) -> None:
        self._root, self._path, self._rank = root, path, rank
        self._metadata: Any = None
        with self._open() as (_, copy):
            self._metadata = copy.metadata
            content = loads((copy.metadata.metadata or {}).get(METADATA, b"{}"))
            own = isinstance(content, dict) and content.get("schema") == SCHEMA
            if not own or not copy.schema_arrow.remove_metadata().equals(schema()):
                raise layout.UnreadError.saying("unread.columns_schema", schema=SCHEMA)
        self._digests = [bounds.text(one) for one in bounds.items(content.get("digests"))]
        places = map(CopiedPlace.of, bounds.items(content.get("places")))
        self._places = {(place.phase, place.step): place for place in places}
        self.groups = groups
        self._said = False

    @contextmanager
    def _open(self) -> Iterator[tuple[BinaryIO, Any]]:
        import pyarrow.parquet as pq

        with layout.open_inside(self._root, self._path, bounds.JOURNAL) as file:
            yield (
                file,
                pq.ParquetFile(
                    file,
                    metadata=self._metadata,
                    read_dictionary=[*TEXTS],
                    thrift_string_size_limit=bounds.METADATA,
                    thrift_container_size_limit=1 << 24,
                ),
            )

    def columns(
        self, run: Run, at: LayerPlace, layouts: Layouts, of_journal: Callable[[], Columns | None]
    ) -> Columns | None:
        """Return a place, or None where its journal is another one than was copied."""
        place = self._places.get((at.phase, at.step))
        if place is None:
            return None
        group = None  # also where it is not what was written
        try:
            status = os.stat(run.journal_path(at))
            same = status.st_size == place.source.size
            if same and status.st_mtime_ns != place.source.changed:
                content = run.journal(at)
                same = content is not None and content_digest(content) == place.source.digest
        except OSError:
            same = False
        if same:
            read = partial(self._read, place.group)
            group = self.groups.get((self._rank, place.group), read)
        if group is None or place.first + place.rows > group.rows:
            if not self._said:
                self._said = True
                warn("log.columns_differ", path=str(self._path), phase=at.phase, step=at.step)
            return None
        rows = slice(place.first, place.first + place.rows)
        return CopiedColumns(run, at, group, rows, layouts, of_journal)

    def _read(self, number: int) -> _Group | None:
        if not 0 <= number < min(len(self._digests), self._metadata.num_row_groups):
            return None
        about = self._metadata.row_group(number)
        if about.num_rows > _MOST_ROWS:
            return None
        try:
            with self._open() as (file, copy):
                chunks = [about.column(index) for index in range(about.num_columns)]
                read = [chunk for chunk in chunks if chunk.path_in_schema in READ]
                if sum(decompressed_size(file, chunk) for chunk in read) > _MOST_BYTES:
                    return None
                table = copy.read_row_group(number, columns=READ, use_threads=False)
            return _Group(table) if digest_of(table) == self._digests[number] else None
        except Exception:  # pyarrow's are many
            return None


class _Group:
    """A row group in memory.

    Attributes:
        codes: column of text → (rows,) the number of each text in `texts`, -1 of null.
        numbers: column of numbers → (rows,) float64, NaN of null; of whole numbers int64, -1.
        known: column → (rows,) whether there is a number.
        layouts: each once.
    """

    def __init__(self, table: Any) -> None:
        self.rows = len(table)
        self.codes: dict[str, np.ndarray] = {}
        self.numbers: dict[str, np.ndarray] = {}
        self.known: dict[str, np.ndarray] = {}
        self._dictionaries: dict[str, Any] = {}
        self._texts: dict[str, list[Any]] = {}
        self.layouts: dict[tuple[bytes, ...], Layout] = {}
        self._codes_in: dict[tuple[str, int], tuple[_Group, np.ndarray]] = {}
        self._compared: tuple[tuple[_Group, int], np.ndarray] | None = None
        for name, column in zip(table.column_names, table.columns):
            chunk = column.chunk(0)
            if name in TEXTS:
                self._dictionaries[name] = chunk.dictionary
                self.codes[name] = array_of(chunk.indices, -1)
                continue
            fill = False if name == "whole" else float("nan") if name in NUMBERS.values() else -1
            self.numbers[name] = array_of(chunk, fill)
            if chunk.null_count:
                self.known[name] = known_in(chunk)

    def texts(self, name: str) -> list[Any]:
        """Return the texts of a column, and None at the end, for -1."""
        if name not in self._texts:
            found = self._dictionaries[name].to_pylist()
            self._texts[name] = [*(map(shape_of, found) if name == "shape" else found), None]
        return self._texts[name]

    def listed(self, name: str, rows: np.ndarray | slice) -> list[Any]:
        """Return a column in some rows as a list."""
        if name == "fingerprint":
            algorithms = self.texts("algorithm"), self.codes["algorithm"][rows].tolist()
            texts = self.texts(name)
            return [
                text if head is None or text is None else f"{head}:{text}"
                for text, head in (
                    (texts[code], algorithms[0][of])
                    for code, of in zip(self.codes[name][rows].tolist(), algorithms[1])
                )
            ]
        if name in TEXTS:
            texts = self.texts(name)
            return [texts[code] for code in self.codes[name][rows].tolist()]
        found = self.numbers[name][rows].tolist()
        if name in self.known:
            return [
                value if known else None
                for value, known in zip(found, self.known[name][rows].tolist())
            ]
        return found

    def equal(self, name: str, rows: Any, other: _Group, there: Any) -> np.ndarray:
        """Return in which rows a column has what it has in those of another group."""
        if name in TEXTS:
            return self.codes_in(other, name)[self.codes[name][rows]] == other.codes[name][there]
        one, two = self.numbers[name][rows], other.numbers[name][there]
        found = one.view(np.int64) == two.view(np.int64)
        if name in self.known or name in other.known:
            known = self.known.get(name, self.all_known), other.known.get(name, other.all_known)
            found &= known[0][rows] == known[1][there]
        return found

    def codes_in(self, other: _Group, name: str) -> np.ndarray:
        """Return the number that each text of a column has in another group, -2 without one."""
        key = name, id(other)
        if key not in self._codes_in:
            own, theirs = self._dictionaries[name], other._dictionaries[name]
            if own.equals(theirs):
                found = np.arange(len(own) + 1)
            else:
                there = {text: number for number, text in enumerate(theirs.to_pylist())}
                found = np.array([*(there.get(text, -2) for text in own.to_pylist()), -1])
            found[-1] = -1
            self._codes_in[key] = other, found
        return self._codes_in[key][1]

    @cached_property
    def are_usual(self) -> np.ndarray:
        """(rows,) which are tensors of which columns say all."""
        found = self.codes["more"] < 0
        for name in ("type", "dtype", "shape", "fingerprint"):
            found &= self.codes[name] >= 0
        return found

    @cached_property
    def are_finite(self) -> np.ndarray:
        """(rows,) which have finite statistics of no unusual size, or none."""
        found = np.ones(self.rows, bool)
        for name in map(NUMBERS.__getitem__, STATISTICS):
            moderate = are_moderate(self.numbers[name])
            found &= moderate | ~self.known[name] if name in self.known else moderate
        for name in ("nan_count", "inf_count"):
            found &= self.numbers[name] <= 0
        return found

    @cached_property
    def all_known(self) -> np.ndarray:
        """(rows,) True."""
        return np.ones(self.rows, bool)

    @cached_property
    def begin_entries(self) -> np.ndarray:
        """(rows,) which have another number of an entry than the row before them."""
        return np.diff(self.numbers["number"], prepend=-1) != 0

    def identical(self, rows: np.ndarray, other: _Group, there: np.ndarray) -> np.ndarray:
        """Return which rows are usual and finite, and those of another group.

        Rows that are as far from theirs as the last ones were are looked up: of two runs that
        recorded the same, all rows of two groups are.
        """
        shift = int(there[0] - rows[0]) if len(rows) else 0
        if (there - rows != shift).any():
            return self._identical(rows, other, there)
        key = other, shift
        if self._compared is None or self._compared[0] != key:
            found = np.zeros(self.rows, bool)
            both = slice(max(0, -shift), min(self.rows, other.rows - shift))
            theirs = slice(both.start + shift, both.stop + shift)
            found[both] = self._identical(both, other, theirs)
            self._compared = key, found
        return self._compared[1][rows]

    def _identical(self, rows: Any, other: _Group, there: Any) -> np.ndarray:
        names = (*map(NUMBERS.__getitem__, STATISTICS), *_TELLING)
        same = [self.equal(name, rows, other, there) for name in names]
        for group, own in ((self, rows), (other, there)):
            same += [group.are_usual[own], group.are_finite[own]]
        return np.logical_and.reduce(same)


class CopiedValues(Values):
    """Values in some rows of a row group."""

    def __init__(self, group: _Group, rows: np.ndarray) -> None:
        super().__init__([])
        self._group, self._rows = group, rows
        self._columns: dict[str, list[Any]] = {}
        codes = group.codes["more"][rows]
        self._with_more = np.flatnonzero(codes >= 0).tolist()
        self.are_whole = True

    def __len__(self) -> int:
        return len(self._rows)

    def leaf(self, row: int) -> LeafJson:
        """See `Values.leaf`."""
        columns = (*OF_VALUE, "fingerprint", "shape", *NUMBERS.values())
        said = said_of(*(self._column(name)[row] for name in columns))
        more = self._column("more")[row]
        return said if more is None else said | loads(more.encode())

    def _column(self, name: str) -> list[Any]:
        if name not in self._columns:
            self._columns[name] = self._group.listed(name, self._rows)
        return self._columns[name]

    def field(self, name: str) -> list[Any]:
        """See `Values.field`."""
        found = self._fields.get(name)
        if found is None:
            found = [None] * len(self)
            if name in SAID:
                found = [*self._column(NUMBERS.get(name, name))]
            for row in self._with_more:
                found[row] = self.leaf(row).get(name)
            self._fields[name] = found
        return found

    def numbers(self, name: str) -> np.ndarray:
        """See `Values.numbers`."""
        if name not in self._numbers:
            self._numbers[name] = self._group.numbers[NUMBERS[name]][self._rows]
        return self._numbers[name]

    @cached_property
    def fingerprints(self) -> list[str | None]:
        """See `Values.fingerprints`."""
        found = [*self.field("fingerprint")]
        for row in self._with_more:
            leaf = self.leaf(row)
            found[row] = leaf.get("fingerprint") or leaf.get("md5")
        return found

    @cached_property
    def _are_usual(self) -> np.ndarray:
        return self._group.are_usual[self._rows]

    @cached_property
    def _are_finite(self) -> np.ndarray:
        return self._group.are_finite[self._rows]

    def _are_same(self, rows: np.ndarray, other: Values, there: np.ndarray) -> np.ndarray:
        if not isinstance(other, CopiedValues):
            return super()._are_same(rows, other, there)
        return self._group.identical(self._rows[rows], other._group, other._rows[there])


class CopiedColumns(Columns):
    """A place of a row group; for what columns lack, such as call stacks, the journal is read."""

    def __init__(
        self,
        run: Run,
        at: LayerPlace,
        group: _Group,
        rows: slice,
        layouts: Layouts,
        of_journal: Callable[[], Columns | None],
    ) -> None:
        self._run, self._group, self._of_journal = run, group, of_journal
        begin = group.begin_entries[rows].copy()
        begin[:1] = True
        own = np.arange(rows.start, rows.stop)
        self._first = own[begin]
        self._filled = own[group.codes["part"][rows] >= 0]
        layout = self._layout(at, rows, layouts)
        super().__init__(at, layout, CopiedValues(group, self._filled))

    @cached_property
    def heads(self) -> Heads:  # type: ignore[override]
        """See `Columns.heads`."""
        return Heads(*(self._group.listed(name, self._first) for name in HEADS))

    @cached_property
    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """See `Columns.times`."""
        numbers = self._group.numbers
        return numbers["seq"][self._first], numbers["end"][self._first]

    def stand_as(self, other: Columns, order: np.ndarray) -> bool:
        """See `Columns.stand_as`."""
        if not isinstance(other, CopiedColumns):
            return super().stand_as(other, order)
        rows = self._first, other._group, other._first[order]
        return all(self._group.equal(name, *rows).all() for name in _STANDING)

    def _layout(self, at: LayerPlace, rows: slice, layouts: Layouts) -> Layout:
        group = self._group
        names = ("entry", "part", "path")
        key = tuple(group.codes[name][rows].tobytes() for name in names)
        key = (*key, group.numbers["whole"][rows].tobytes(), str(id(layouts)).encode())
        if key not in group.layouts:
            entries = group.listed("entry", self._first)
            whole = group.listed("whole", self._first)
            places = [*zip(group.listed("part", rows), group.listed("path", rows))]
            ends = [*(self._first[1:] - rows.start).tolist(), rows.stop - rows.start]
            structures, begin = [], 0
            for end, is_whole in zip(ends, whole):
                own = tuple(place for place in places[begin:end] if place[0] is not None)
                structures.append(Structure(own, is_whole))
                begin = end
            group.layouts[key] = layouts.layout(
                at.phase, (self._run.path, at.rank), entries, structures
            )
        return group.layouts[key]

    @cached_property
    def _journal(self) -> Columns | None:
        return self._of_journal()

    def frames(self, number: int) -> tuple[str, ...]:
        """See `Columns.frames`."""
        return () if self._journal is None else self._journal.frames(number)

    def argument(self, number: int, io: str, path: str) -> str:
        """See `Columns.argument`."""
        first = int(self.layout.first[number])
        for row, (part, own) in enumerate(self.layout.structures[number].places, first):
            if own == path and IO_OF.get(part) == io:
                return self._group.listed("argument", self._filled[row : row + 1])[0] or ""
        return ""

    def marked(self, marks: tuple[bytes, ...]) -> list[int]:
        """See `Columns.marked`."""
        found = np.zeros(len(self.values), bool)
        if {*marks} & {*NON_FINITE_MARKS}:
            for name in STATISTICS:
                found |= ~np.isfinite(self.values.numbers(name))
        texts = [
            text is not None and any(mark in text.encode() for mark in marks)
            for text in self._group.texts("more")
        ]
        found |= np.array(texts, bool)[self._group.codes["more"][self._filled]]
        rows = np.flatnonzero(found)
        return sorted({*(np.searchsorted(self.layout.first, rows, side="right") - 1).tolist()})

    def made(self, number: int) -> Entry:
        """See `Columns.made`."""
        if self._journal is None:
            raise ValueError(self.at)
        return self._journal.made(number)
