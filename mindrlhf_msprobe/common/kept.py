"""The findings of very many records, small enough to be held until their tables are written."""

from __future__ import annotations

import pickle
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

from mindrlhf_msprobe.findings import Finding

#: Which table a finding stands in: (key, True), or (phase, False).
TableName = tuple[str, bool]


def table_of(finding: Finding) -> TableName:
    """Return which table a finding stands in."""
    return (finding.phase or "", False) if finding.key is None else (finding.key, True)


def holds_text(finding: Finding) -> bool:
    """Tell whether a finding is of a text on either side."""
    return isinstance(finding.a.value, str) or isinstance(finding.b.value, str)


class PackedFindings(Sequence["Finding | None"]):
    """The findings of one place, compressed: a fifteenth of what they take as objects.

    Attributes:
        counts: how many of them stand in each table.
        by_elements, texts: the tables in which elements were compared, or texts.
        ranks: which of them stand in each table, with their numbers of findings.
    """

    def __init__(self, findings: Iterable[Finding | None]) -> None:
        groups: dict[TableName, list[Finding]] = {}
        numbers: dict[TableName, int] = {}
        self._order = array("l")  # of each finding the number of its table, -1 for None
        for finding in findings:
            if finding is None:
                self._order.append(-1)
                continue
            table = table_of(finding)
            groups.setdefault(table, []).append(finding)
            self._order.append(numbers.setdefault(table, len(numbers)))
        self.counts = {table: len(found) for table, found in groups.items()}
        self.by_elements = {
            table
            for table, found in groups.items()
            if any(finding.metrics is not None for finding in found)
        }
        self.texts = {table for table, found in groups.items() if any(map(holds_text, found))}
        self.ranks = {
            table: Counter(finding.rank for finding in found) for table, found in groups.items()
        }
        self._packed = {
            table: zlib.compress(pickle.dumps(found, pickle.HIGHEST_PROTOCOL), 1)
            for table, found in groups.items()
        }

    def of(self, table: TableName) -> list[Finding]:
        """Return the findings of one table."""
        packed = self._packed.get(table)
        return [] if packed is None else list(pickle.loads(zlib.decompress(packed)))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Finding | None]:
        groups = [iter(self.of(table)) for table in self._packed]
        return (None if number < 0 else next(groups[number]) for number in self._order)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class KeptFindings(Sequence[Finding]):
    """The findings of all places, one after another, unpacked as they are looked at."""

    def __init__(self, places: Iterable[Iterable[Finding | None]]) -> None:
        self._places = [
            place if isinstance(place, PackedFindings) else PackedFindings(place)
            for place in places
        ]

    @property
    def tables(self) -> dict[TableName, int]:
        """How many findings stand in each table, in the order of their first ones."""
        counts: dict[TableName, int] = {}
        for place in self._places:
            for table, count in place.counts.items():
                counts[table] = counts.get(table, 0) + count
        return counts

    def by_elements(self, table: TableName) -> bool:
        """Tell whether elements were compared in a table."""
        return any(table in place.by_elements for place in self._places)

    def texts(self, table: TableName) -> bool:
        """Tell whether texts were compared in a table."""
        return any(table in place.texts for place in self._places)

    def ranks(self, table: TableName) -> Counter[int]:
        """Return how many findings each rank has in a table."""
        counts: Counter[int] = Counter()
        for place in self._places:
            counts.update(place.ranks.get(table, {}))
        return counts

    def of(self, table: TableName, rank: int | None = None) -> Iterator[Finding]:
        """Yield the findings of one table, those of one rank if one is given."""
        for place in self._places:
            if rank is None:
                yield from place.of(table)
            elif rank in place.ranks.get(table, {}):
                yield from (finding for finding in place.of(table) if finding.rank == rank)

    def __len__(self) -> int:
        return sum(self.tables.values())

    def __iter__(self) -> Iterator[Finding]:
        return (finding for place in self._places for finding in place if finding is not None)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        index += len(self) if index < 0 else 0
        found = next(islice(self, index, None), None) if index >= 0 else None
        if found is None:
            raise IndexError("there is no such finding")
        return found
