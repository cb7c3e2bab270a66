"""What the comparison of one pair of records says, and all findings of a comparison, by table."""

from __future__ import annotations

import math
import pickle
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from fractions import Fraction
from itertools import islice
from typing import Any, overload

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.findings.words import Status, words_of


def _by_slots(one: Any) -> tuple[Any, ...]:
    """Return how an object is made again: pickled so, it comes back in half the time."""
    return type(one), tuple(getattr(one, name) for name in one.__slots__)


@dataclass(frozen=True, slots=True)
class Side:
    """One run's record as a table shows it: dtype, shape and statistics, None where not there."""

    name: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    max: Any = None
    min: Any = None
    mean: Any = None
    norm: Any = None
    value: Any = None
    fingerprint: str | None = None
    data_name: str | None = None
    nan_count: int | None = None
    inf_count: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_slots(self)


@dataclass(frozen=True, slots=True)
class Metrics:
    """How far two arrays of one shape are apart, element by element.

    Attributes:
        equal_percent: share of equal elements; two NaNs are equal, −0.0 equals 0.0.
        first_mismatch: flat index of the first different element, None if there is none.
        max_abs_err: largest |a−b| over elements that are finite on both sides.
        max_rel_err: largest |a−b| / max(|a|, |b|) over the same elements, 0 where both are 0.
        within_1e3_percent, within_5e3_percent, within_1e2_percent: share of elements whose
            relative error is below 1/1000, 5/1000 and 1/100.
        cosine: cosine of the angle between the arrays over the same elements, None if one is zero.
        euclidean: L2 norm of a−b over the same elements.
        nan_a, nan_b, inf_a, inf_b: how many elements are NaN, infinite.
    """

    equal_percent: float
    first_mismatch: int | None
    max_abs_err: float | None
    max_rel_err: float | None
    within_1e3_percent: float
    within_5e3_percent: float
    within_1e2_percent: float
    cosine: float | None
    euclidean: float | None
    nan_a: int = 0
    nan_b: int = 0
    inf_a: int = 0
    inf_b: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_slots(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one pair of records.

    Attributes:
        step, rank, phase: where it stands; the phase of key data is the one whose result they are,
            or None.
        entry: the entry it belongs to; None for key data.
        key, micro_step: of key data; None for an entry's record.
        io: input, output, parameters, parameters_grad, or data.
        path: the place inside the structure of its entry or key.
        argument: of a positional input, what `construct` calls the argument; "" if not known.
        a, b: each side's `name`, `dtype`, `shape`, statistics, `value` and `fingerprint`.
        metrics: errors of the elements, such as `max_abs_err` and `cosine`; None without elements.
        notes: what to know about the status, e.g. that only statistics were compared.
        compared_by: the tolerance, its rule, and the noise of further runs; empty if bitwise.
        suspicions: why a record that agrees deserves a look.
    """

    record: str
    status: Status
    step: int
    rank: int
    phase: str | None
    io: str
    path: str
    a: Side
    b: Side
    entry: str | None = None
    key: str | None = None
    micro_step: int | None = None
    metrics: Metrics | None = None
    notes: Messages = ()
    compared_by: Messages = ()
    suspicions: Messages = ()
    stack: tuple[str, ...] = field(default=(), repr=False)
    argument: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_slots(self)

    @property
    def of_text(self) -> bool:
        """Whether text was compared; the distance of its bytes means nothing."""
        sides = (self.a, self.b)
        return any(isinstance(side.value, str) and side.shape is not None for side in sides)

    @property
    def distance(self) -> float | None:
        """‖a−b‖ / max(‖a‖, ‖b‖) of the elements, else of the recorded norms; None if unknown."""
        a, b = self.a.norm, self.b.norm
        if not (_is_finite(a) and _is_finite(b)) or self.of_text:
            return None
        larger = max(abs(a), abs(b))
        if not larger:
            return 0.0
        if self.metrics is not None and self.metrics.euclidean is not None:
            return self.metrics.euclidean / larger
        return float(abs(a - b) / larger)

    @property
    def note(self) -> str:
        """`notes` as text; in the language that was chosen, else the locale's."""
        return words_of(self.notes)

    @property
    def tolerance(self) -> str:
        """`compared_by` as text; likewise, "" if bitwise."""
        return words_of(self.compared_by)

    @property
    def suspicion(self) -> str:
        """`suspicions` as text; likewise, "" if there are none."""
        return words_of(self.suspicions)


def _is_finite(norm: Any) -> bool:
    """Return whether a norm is a number that is neither NaN nor infinite."""
    return isinstance(norm, (int, Fraction)) or (isinstance(norm, float) and math.isfinite(norm))


@dataclass(frozen=True, slots=True)
class Agreement:
    """The records of one phase, step and rank that agree, where they are not listed one by one.

    Attributes:
        identical, within_tolerance: how many there are.
        suspicious: how many of them deserve a look all the same.
        suspicion: which is the first of those, and why; None if there is none.
    """

    step: int
    rank: int
    phase: str
    identical: int
    within_tolerance: int = 0
    suspicious: int = 0
    suspicion: Message | None = None

    @property
    def records(self) -> int:
        """How many records agree."""
        return self.identical + self.within_tolerance


#: Which table a finding stands in: (key, True), or (phase, False).
TableName = tuple[str, bool]


def table_of(finding: Finding) -> TableName:
    """Return which table a finding stands in."""
    return (finding.phase or "", False) if finding.key is None else (finding.key, True)


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
        self.texts = {
            table
            for table, found in groups
            if any(isinstance(side.value, str) for f in found for side in (f.a, f.b))
        }

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
                yield place.place, (finding for finding in place if finding is not None)

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
