"""columns.rank<N>.parquet: the records of a rank's journals as columns, a row a record.

It is a copy: a journal that has changed since is read itself. Needs pyarrow, which is imported when
such a file is written or read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import (
    dump_json,
    number_from_json,
    number_to_json,
    open_temporary,
)
from mindrlhf_msprobe.storage.columns.columns import HEADS, Values
from mindrlhf_msprobe.storage.columns.leaf_json import COUNTS, STATISTICS
from mindrlhf_msprobe.storage.journal_line import IO_OF
from mindrlhf_msprobe.storage.records import parts_of_name

if TYPE_CHECKING:
    import pyarrow as pa

    from mindrlhf_msprobe.storage.columns.reading import JournalColumns

SCHEMA = 1
#: Under this name the file says which places it holds, and of which journals.
METADATA = b"mindrlhf_msprobe"
_ROWS = 8192  # of a row group: whole places, until there are as many
_LEVEL = 14  # of zstd: smaller than at 12 by a tenth, while 16 takes half as long again

#: Columns of whole numbers.
WHOLE = ("step", "rank", "number", "call", "opening", "token", "seq", "end", *COUNTS)
#: Columns of text, of which each text is stored once a row group.
TEXTS = (
    *("phase", "entry", "cell", "direction", "part", "path", "argument", "parent", "around"),
    *("type", "dtype", "shape", "algorithm", "fingerprint", "more"),
)
#: Columns of float64: the column of each statistic.
NUMBERS = {name: name.lower() for name in STATISTICS}
#: The columns that are for queries alone: the others say the same.
_FOR_QUERIES = ("step", "rank", "call", "phase", "cell", "direction")
READ = [name for name in (*WHOLE, *TEXTS, *NUMBERS.values(), "whole") if name not in _FOR_QUERIES]
#: What the name of an entry says, by the names of the columns.
_OF_NAME = ("cell", "direction", "call")
_MANIFOLD = (*NUMBERS.values(), "fingerprint")
#: What JSON has of a value as its column has it.
OF_VALUE = ("type", "dtype", *COUNTS)
#: JSON's names of all that columns say of a value.
SAID = frozenset((*OF_VALUE, "fingerprint", "shape", *STATISTICS))


def schema() -> pa.Schema:
    """Return the names and types of the columns; docs/en/files.md says what they mean."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    fields = [(name, pa.int64()) for name in WHOLE]
    fields += [(name, text) for name in TEXTS]
    fields += [(name, pa.float64()) for name in NUMBERS.values()]
    return pa.schema([*fields, ("whole", pa.bool_())])


class Source(NamedTuple):
    """What tells whether a journal is still the one that was copied.

    Attributes:
        size: of the file, in bytes.
        changed: when it was last changed, in nanoseconds.
        digest: of what is in it.
    """

    size: int
    changed: int
    digest: str


class CopiedPlace(NamedTuple):
    """Where a place stands in the file: rows of a row group; and what it was copied from."""

    phase: str
    step: int
    group: int
    first: int
    rows: int
    source: Source

    @classmethod
    def of(cls, content: Any) -> CopiedPlace:
        """Return the place that the file's metadata say.

        Raises:
            ValueError: they say none.
        """
        phase, *numbers, digest = bounds.items(content)
        step, group, first, rows, size, changed = map(bounds.count, numbers)
        source = Source(size, changed, bounds.text(digest))
        return cls(bounds.text(phase), step, group, first, rows, source)


def content_digest(content: bytes) -> str:
    """Return what tells a journal's content from any other."""
    return xxhash.xxh3_64_hexdigest(content)


class ColumnsWriter:
    """Writes the columns of a rank into a file, which has its name when it is closed.

    Args:
        path: of the file.

    Raises:
        ModuleNotFoundError: there is no pyarrow.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._schema, self._path = schema(), path
        file, self._temporary = open_temporary(path)
        self._file = open(file, "wb")  # noqa: SIM115
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            compression_level=_LEVEL,
            # Of what hardly repeats the compression finds the repeats in less room.
            use_dictionary=[n for n in self._schema.names if n not in _MANIFOLD],
            write_statistics=["step"],
        )
        self._tables: list[pa.Table] = []
        self._places: list[list[Any]] = []
        self._digests: list[str] = []

    def add(self, columns: JournalColumns, source: Source) -> bool:
        """Add a place; return whether all of it can be told in columns.

        Args:
            source: its journal.
        """
        import pyarrow as pa

        arrays = _arrays_of(columns)
        try:
            made = [
                pa.array(arrays[field.name], pa.string() if field.name in TEXTS else field.type)
                for field in self._schema
            ]
        except (ValueError, TypeError, OverflowError):  # a text that is no UTF-8, say
            return False
        table = pa.Table.from_arrays(made, names=self._schema.names)
        if not len(table):  # reading the empty journal is as well
            return True
        first = sum(map(len, self._tables))
        place = columns.phase, columns.step, len(self._digests), first, len(table)
        self._places.append([*place, *source])
        self._tables.append(table)
        if first + len(table) >= _ROWS:
            self._flush()
        return True

    def _flush(self) -> None:
        import pyarrow as pa

        whole = pa.concat_tables(self._tables).combine_chunks()
        arrays = [
            column.combine_chunks().dictionary_encode() if name in TEXTS else column
            for name, column in zip(whole.column_names, whole.columns)
        ]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(table, row_group_size=max(1, len(table)))
        self._digests.append(digest_of(table))
        self._tables.clear()

    def close(self) -> int:
        """Complete the file; return how many bytes it has."""
        if self._tables:
            self._flush()
        content = {"schema": SCHEMA, "places": self._places, "digests": self._digests}
        self._writer.add_key_value_metadata({METADATA: dump_json(content)})
        self._writer.close()
        size = self._file.tell()
        self._file.close()
        self._temporary.replace(self._path)
        return size

    def abandon(self) -> None:
        """Remove what was written."""
        with suppress(OSError, ValueError):
            self._writer.close()
            self._file.close()
        self._temporary.unlink(missing_ok=True)


_NONE = np.zeros(1, np.int32)


def array_of(numbers: pa.Array, null: float = 0) -> np.ndarray:
    """Return numbers, or truth values, as an array; pyarrow's own way imports pandas.

    Args:
        null: what stands for null.
    """
    _, buffer = numbers.buffers()
    end = numbers.offset + len(numbers)
    if str(numbers.type) == "bool":
        found = _bits(buffer, end)[numbers.offset :]
    else:
        kind = {"double": "f8", "int64": "i8", "int32": "i4"}[str(numbers.type)]
        found = np.frombuffer(buffer or b"", kind)[numbers.offset : end]
    if numbers.null_count:
        found = np.where(known_in(numbers), found, null).astype(found.dtype)
    return found


def known_in(numbers: pa.Array) -> np.ndarray:
    """Return which numbers there are."""
    bitmap, end = numbers.buffers()[0], numbers.offset + len(numbers)
    return np.ones(len(numbers), bool) if bitmap is None else _bits(bitmap, end)[numbers.offset :]


def _bits(buffer: Any, count: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(buffer or b"", np.uint8), bitorder="little")
    return bits[:count].astype(bool)


def digest_of(table: pa.Table) -> str:
    """Return what tells the rows of a row group from any others, by the columns that are read."""
    state = xxhash.xxh3_64()
    for name, column in ((name, table.column(name)) for name in READ):
        for chunk in column.chunks:
            numbers = chunk
            if name in TEXTS:
                _, ends, texts = chunk.dictionary.buffers()
                ends = np.frombuffer(ends, np.int32, len(chunk.dictionary) + 1) if ends else _NONE
                state.update(ends.tobytes())
                state.update(memoryview(texts or b"")[: ends[-1]])
                numbers = chunk.indices
            if numbers.null_count:
                state.update(known_in(numbers).tobytes())
            state.update(array_of(numbers, 0).tobytes())
    return state.hexdigest()


def _arrays_of(columns: JournalColumns) -> dict[str, Any]:
    """Return the columns of a place; a row without a record for each entry that has none."""
    names, structures = columns.layout.names, columns.layout.structures
    counts = [max(1, len(structure.places)) for structure in structures]
    of_entries: dict[str, Sequence[Any]] = {
        "number": range(len(names)),
        "entry": names,
        **{of: [getattr(parts_of_name(n), of) for n in names] for of in _OF_NAME},
        "whole": [structure.whole for structure in structures],
    }
    of_entries |= dict(zip(HEADS, columns.heads))
    found: dict[str, Any] = {
        name: [value for value, count in zip(values, counts) for _ in range(count)]
        for name, values in of_entries.items()
    }
    at = zip(("phase", "step", "rank"), columns.at)
    found |= {name: [value] * sum(counts) for name, value in at}
    places = [place for structure in structures for place in structure.places or [("", "")]]
    found["part"] = [part or None for part, _ in places]
    found["path"] = [path if part else None for part, path in places]
    found["argument"] = [None] * len(places)
    if any("input_names" in line for line in columns.lines):
        found["argument"] = [
            columns.argument(number, IO_OF.get(part, ""), path) or None
            for number, (part, path) in zip(found["number"], places)
        ]
    values = _arrays_of_values(columns.values)
    if len(places) > len(columns.values):
        rows = iter(range(len(columns.values)))
        index = [next(rows) if part else None for part, _ in places]
        values = {
            name: [None if row is None else of[row] for row in index] for name, of in values.items()
        }
    return found | values


def _arrays_of_values(values: Values) -> dict[str, list[Any]]:
    """Return values as columns. What these do not say exactly stands in `more`, as JSON."""
    found = {name: [*values.field(name)] for name in OF_VALUE}
    parts = [(text or "").rpartition(":") for text in values.field("fingerprint")]
    found["algorithm"] = [head if colon else None for head, colon, _ in parts]
    known = values.field("fingerprint")
    found["fingerprint"] = [None if of is None else text for of, (*_, text) in zip(known, parts)]
    shapes = values.field("shape")
    found["shape"] = [None if shape is None else str(shape) for shape in shapes]
    for name, column in NUMBERS.items():
        found[column] = [_number(value) for value in values.field(name)]
    more: list[str | None] = [None] * len(values)
    for row in np.flatnonzero(~values.are_told).tolist():
        leaf = values.leaf(row)
        said = said_of(
            *(found[name][row] for name in OF_VALUE),
            known[row],
            shapes[row],
            *(found[column][row] for column in NUMBERS.values()),
        )
        left = {
            name: value
            for name, value in leaf.items()
            if name not in said or type(said[name]) is not type(value) or said[name] != value
        }
        if not said.keys() <= leaf.keys():
            left, found["type"][row] = dict(leaf), None
        if left or found["type"][row] is None:
            more[row] = dump_json(left).decode()
    return {**found, "more": more}


def _number(value: Any) -> float | None:
    value = number_from_json(value)
    if type(value) is int:
        return float(value) if abs(value) < bounds.NUMBER else None
    return value if type(value) is float else None


def said_of(
    kind: str | None,
    dtype: str | None,
    nan_count: int | None,
    inf_count: int | None,
    fingerprint: str | None,
    shape: list[int] | None,
    *statistics: float | None,
) -> dict[str, Any]:
    """Return the JSON of a value that its columns tell, but for what is in `more`."""
    if kind is None:
        return {}
    said: dict[str, Any] = {"type": kind}
    if shape is None:
        return said
    said |= {"dtype": dtype, "shape": shape}
    said |= {name: number_to_json(value) for name, value in zip(NUMBERS, statistics)}
    also = {"nan_count": nan_count, "inf_count": inf_count, "fingerprint": fingerprint}
    return said | {name: value for name, value in also.items() if value is not None}


@lru_cache(maxsize=1 << 12)
def shape_of(text: str | None) -> list[int] | None:
    """Return the shape that a text says."""
    return None if text is None else json.loads(text)
