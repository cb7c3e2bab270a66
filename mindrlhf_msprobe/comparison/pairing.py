"""The planner: which record of A meets which of B. Pure: it opens no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mindrlhf_msprobe.comparison.coverage import why_no_entry, why_no_key_data, why_no_parameters
from mindrlhf_msprobe.comparison.timeline import BEGIN, DATA, EventKey, merge, order_of
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry, Leaf, Record

_BEGIN_IO = ("input", "parameters")


@dataclass(frozen=True)
class StepData:
    """What one run recorded in one step of one rank.

    Attributes:
        unreadable: phase → why its records, or some of them, could not be read.
        coverage: what the run could not record in its mode, and why.
    """

    entries: Sequence[Entry]
    key_data: Sequence[KeyDatum]
    config: ProbeConfig | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    coverage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """Two records that stand in the same place; None where one run has none.

    Attributes:
        gap: why the missing side was not recorded by choice; None if it should be there.
        unreadable: why the missing side could not be read; None if it is simply not there.
    """

    event: EventKey
    a: Record | None
    b: Record | None
    entry: Entry | None = None
    gap: str | None = None
    unreadable: str | None = None

    @property
    def record(self) -> Record:
        """The record of A, or of B where A has none."""
        found = self.a or self.b
        assert found is not None
        return found


@dataclass(frozen=True)
class StepPlan:
    """The pairs of one step and rank in causal order.

    Attributes:
        parents: (phase, entry name) → the name of the nearest entry that ran around it and that
            both runs recorded.
    """

    step: int
    rank: int
    pairs: tuple[Pair, ...]
    parents: dict[tuple[str, str], str | None] = field(default_factory=dict)


def plan_step(step: int, rank: int, a: StepData, b: StepData) -> StepPlan:
    """Pair everything both runs recorded in one step of one rank."""
    order = merge(order_of(a.entries, a.key_data), order_of(b.entries, b.key_data))
    planner = _Planner(rank, a, b)
    pairs = (
        *planner.unreadable_pairs(),
        *(pair for event in order for pair in planner.pairs_of(event)),
    )
    return StepPlan(step, rank, pairs, _parents(a.entries, b.entries))


def _parents(a: Sequence[Entry], b: Sequence[Entry]) -> dict[tuple[str, str], str | None]:
    recorded = [{(e.phase, e.name) for e in side} for side in (a, b)]
    common = recorded[0] & recorded[1]
    parents = {(e.phase, e.name): e.parent for e in (*b, *a)}

    def nearest(phase: str, name: str) -> str | None:
        seen = {name}  # a dump from elsewhere may go in circles
        parent = parents[phase, name]
        while parent is not None and (phase, parent) not in common:
            seen.add(parent)
            parent = parents.get((phase, parent))
            if parent in seen:
                return None
        return parent

    return {(phase, name): nearest(phase, name) for phase, name in parents}


class _Planner:
    def __init__(self, rank: int, a: StepData, b: StepData) -> None:
        self._rank = rank
        self._configs = (a.config, b.config)
        self._unreadable = (a.unreadable, b.unreadable)
        self._coverage = (a.coverage, b.coverage)
        self._entries = tuple({(e.phase, e.name): e for e in side.entries} for side in (a, b))
        self._data = tuple({(d.key, d.micro_step): d for d in side.key_data} for side in (a, b))
        # The parameters each cell was last seen with: recorded again only when they changed.
        self._parameters: tuple[dict[str, Record], dict[str, Record]] = ({}, {})

    def unreadable_pairs(self) -> Iterator[Pair]:
        """Yield one pair for each phase of which something could not be read, on either side."""
        for phase in dict.fromkeys([*self._unreadable[0], *self._unreadable[1]]):
            sides = [
                Record(phase, "input", "", Leaf("unreadable", error=problems.get(phase)))
                for problems in self._unreadable
            ]
            yield Pair(EventKey(BEGIN, phase, phase), sides[0], sides[1])

    def pairs_of(self, event: EventKey) -> Iterator[Pair]:
        if event.kind == DATA:
            yield from self._data_pairs(event)
            return
        key = (event.phase or "", event.name)
        entries = [side.get(key) for side in self._entries]
        entry = entries[0] or entries[1]
        assert entry is not None
        gaps = [
            why_no_entry(config, coverage, entry) if side is None else None
            for side, config, coverage in zip(entries, self._configs, self._coverage)
        ]
        wanted = [_records_of(side, event) for side in entries]
        if event.kind == BEGIN:
            self._carry_parameters(entries, wanted)
            if None in entries and not entry.records:  # it ran in one run only, and silently
                silent = Record(entry.name, "input", "", Leaf("NoneType"))
                side = 1 if entries[0] is None else 0
                wanted[side][silent.name] = silent
        no_parameters = [why_no_parameters(config) for config in self._configs]
        for name in _merged_names(*wanted):
            a, b = (side.get(name) for side in wanted)
            missing = 0 if a is None else 1
            gap = unreadable = None
            if a is None or b is None:
                gap = gaps[missing]
                unreadable = self._unreadable[missing].get(entry.phase)
                found = a or b
                if gap is None and found is not None and found.io == "parameters":
                    gap = no_parameters[missing]
            yield Pair(event, a, b, entry, gap, unreadable)

    def _carry_parameters(
        self, entries: Sequence[Entry | None], wanted: Sequence[dict[str, Record]]
    ) -> None:
        """Give a side that did not record its parameters again the ones it last recorded."""
        seen: list[set[str]] = [set(), set()]
        for i, entry in enumerate(entries):
            if entry is None:
                continue
            for record in list(wanted[i].values()):
                if record.io == "parameters":
                    place = f"{entry.phase} {entry.call_name} {record.path}"
                    self._parameters[i][place] = record
                    seen[i].add(record.path)
        for i, entry in enumerate(entries):
            if entry is None:
                continue
            for path in seen[1 - i] - seen[i]:
                place = f"{entry.phase} {entry.call_name} {path}"
                last = self._parameters[i].get(place)
                if last is not None:
                    name = f"{entry.name}.parameters.{path}"
                    wanted[i][name] = replace(last, name=name)

    def _data_pairs(self, event: EventKey) -> Iterator[Pair]:
        data = [side.get((event.name, event.micro_step)) for side in self._data]
        wanted = [{r.name: r for r in side.records} if side else {} for side in data]
        for side, records in zip(data, wanted):
            if side is not None and not records and None in data:  # an empty list, say
                records[event.name] = Record(event.name, "data", "", Leaf("empty"))
        gaps = [
            why_no_key_data(config, self._rank) if side is None else None
            for side, config in zip(data, self._configs)
        ]
        for name in _merged_names(*wanted):
            a, b = (side.get(name) for side in wanted)
            gap = gaps[0] if a is None else gaps[1] if b is None else None
            yield Pair(event, a, b, None, gap)


def _records_of(entry: Entry | None, event: EventKey) -> dict[str, Record]:
    """Return the records that are known at this event: inputs when it begins, the rest at its end.

    An entry that never ended has no end event, so what else it holds is known at its begin.
    """
    if entry is None:
        return {}
    begins = event.kind == BEGIN
    return {
        record.name: record
        for record in entry.records
        if (record.io in _BEGIN_IO) == begins or (begins and entry.end is None)
    }


def _merged_names(a: dict[str, Record], b: dict[str, Record]) -> list[str]:
    return list(dict.fromkeys([*a, *b]))
