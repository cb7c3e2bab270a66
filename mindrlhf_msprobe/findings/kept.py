"""The findings of a whole comparison, by table and in little memory."""

from __future__ import annotations

import pickle
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.record import Finding

#: Which table a finding stands in: (key, True), or (phase, False).
TableName = tuple[str, bool]


def table_of(finding: Finding) -> TableName:
    """Return which table a finding stands in."""
    return (finding.phase or "", False) if finding.key is None else (finding.key, True)


def _holds_text(finding: Finding) -> bool:
    """Return whether a finding is of a text on either side."""
    return isinstance(finding.a.value, str) or isinstance(finding.b.value, str)


class FindingsByTable:
    """The findings of one place, by their tables.

    Attributes:
        ranks: which of them stand in each table, with their numbers of findings.
        by_elements, texts: the tables in which elements were compared, or texts.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._groups: dict[TableName, list[Finding]] = {}
        for finding in findings:
            self._groups.setdefault(table_of(finding), []).append(finding)
        groups = self._groups.items()
        self.ranks = {table: Counter(f.rank for f in found) for table, found in groups}
        self.by_elements = {t for t, found in groups if any(f.metrics is not None for f in found)}
        self.texts = {table for table, found in groups if any(map(_holds_text, found))}

    def in_table(self, table: TableName, rank: int | None = None) -> Iterable[Finding]:
        """Return the findings of one table, those of one rank if one is given."""
        if rank is None:
            return self._held(table)
        held = rank in self.ranks.get(table, ())
        return (finding for finding in self._held(table) if finding.rank == rank) if held else ()

    def _held(self, table: TableName) -> list[Finding]:
        return self._groups.get(table, [])


class PackedFindings(FindingsByTable, Sequence["Finding | None"]):
    """The findings of one place, compressed: a fifteenth of what they take as objects."""

    def __init__(self, findings: Iterable[Finding | None]) -> None:
        findings = list(findings)
        super().__init__(finding for finding in findings if finding is not None)
        #: The step and rank they are of.
        self.place = next(((f.step, f.rank) for f in findings if f is not None), None)
        numbers = {table: number for number, table in enumerate(self._groups)}
        #: Of each finding the number of its table, -1 for None.
        self._order = array("l", (-1 if f is None else numbers[table_of(f)] for f in findings))
        self._packed = {
            table: zlib.compress(pickle.dumps(found, pickle.HIGHEST_PROTOCOL), 1)
            for table, found in self._groups.items()
        }
        self._groups.clear()

    def _held(self, table: TableName) -> list[Finding]:
        packed = self._packed.get(table)
        return [] if packed is None else list(pickle.loads(zlib.decompress(packed)))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Finding | None]:
        groups = [iter(self._held(table)) for table in self._packed]
        return (None if number < 0 else next(groups[number]) for number in self._order)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def _unpacked(place: PackedFindings) -> Iterator[Finding]:
    for finding in place:
        if finding is not None:
            yield finding


class KeptFindings(Sequence[Finding]):
    """The findings of all places, one after another, unpacked as they are looked at.

    Attributes:
        ranks, by_elements, texts: of all places, as `FindingsByTable` has them of one.
    """

    def __init__(self, places: Iterable[Iterable[Finding | None]]) -> None:
        self._places = [
            place if isinstance(place, PackedFindings) else PackedFindings(place)
            for place in places
        ]
        self.ranks: dict[TableName, Counter[int]] = {}
        for place in self._places:
            for table, ranks in place.ranks.items():
                self.ranks.setdefault(table, Counter()).update(ranks)
        self.by_elements = {table for place in self._places for table in place.by_elements}
        self.texts = {table for place in self._places for table in place.texts}

    def by_place(self) -> Iterator[tuple[tuple[int, int], Iterator[Finding]]]:
        """Yield each step and rank, and its findings, which are unpacked when they are taken."""
        for place in self._places:
            if place.place is not None:
                yield place.place, _unpacked(place)

    def in_table(self, table: TableName, rank: int | None = None) -> Iterator[Finding]:
        """Yield the findings of one table, those of one rank if one is given."""
        for place in self._places:
            yield from place.in_table(table, rank)

    def __len__(self) -> int:
        return sum(ranks.total() for ranks in self.ranks.values())

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
            raise IndexError(message("error.no_finding"))
        return found
