"""The planner: which record of A meets which of B. Pure: it opens no file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.pairing import coverage
from mindrlhf_msprobe.comparison.pairing.alignment import Alignment, align, nearest_around
from mindrlhf_msprobe.comparison.pairing.frameworks.records import Across, bring_together
from mindrlhf_msprobe.comparison.pairing.names import NO_RULES, ROOT, NameRules
from mindrlhf_msprobe.comparison.pairing.timeline import (
    BEGIN,
    DATA,
    EventKey,
    made_before_updates,
    merge,
    order_of,
)
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.foreign.dialect import OWN, Dialect
from mindrlhf_msprobe.storage.layout import KEY_DATA_DIR
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.operators import is_operator, other_attributes
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry, Record, end_of

#: What of an entry is known when it begins.
BEGIN_IO = ("input", "parameters")


@dataclass(frozen=True)
class OwnNames:
    """What a run itself calls a step and rank of the comparison; None where both agree.

    Attributes:
        step, rank: its own numbers.
        phases, keys: the comparison's name of a phase, or key → its own.
        entries: (phase, name) of an entry of the comparison → its own name.
    """

    step: int | None = None
    rank: int | None = None
    phases: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)

    def translate(self, entry: Entry) -> Entry:
        """Return an entry of the other run as it would stand in this one."""
        if self.step is None and self.rank is None and not (self.phases or self.entries):
            return entry
        return replace(
            entry,
            name=self.entries.get((entry.phase, entry.name), entry.name),
            phase=self.phases.get(entry.phase, entry.phase),
            step=entry.step if self.step is None else self.step,
            rank=entry.rank if self.rank is None else self.rank,
        )


@dataclass(frozen=True)
class StepData:
    """What one run recorded in one step of one rank, under the names the comparison has for it.

    Attributes:
        unreadable: phase → why its records, or some of them, could not be read.
        unreadable_keys: key → why what was saved under it could not be read; None for all keys.
        coverage: what the run could not record in its mode, and why.
        dialect: what the files of the tool that wrote it say and never do.
        own: step and rank in the run itself, where it is another one than in the comparison.
        stop: where the run stopped, in its own numbers, if it did not finish.
        timeless: whether nothing tells when what happened, but the order phases usually run in.
        keys_of_run: the run's own keys, of all its steps; None where they are not known.
    """

    entries: Sequence[Entry]
    key_data: Sequence[KeyDatum]
    config: ProbeConfig | None = None
    unreadable: Mapping[str, Message] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)
    own: OwnNames = OwnNames()
    dialect: Dialect = OWN
    unreadable_keys: Mapping[str | None, Message] = field(default_factory=dict)
    stop: Stop | None = None
    timeless: bool = False
    keys_of_run: frozenset[str] | None = None


@dataclass(frozen=True)
class Pair:
    """Two records that are one value in both runs, or checkpoints; None where one side has none.

    Attributes:
        gap: why the missing side was not recorded by choice; None if it should be there.
        stopped: whether the gap is that the run had stopped by then.
        unreadable: why the missing side could not be read; None if it is simply not there.
        attributes: of a primitive, (name, value in A, value in B) of those that differ.
    """

    event: EventKey
    a: Record | None
    b: Record | None
    entry: Entry | None = None
    gap: Message | None = None
    unreadable: Message | None = None
    stopped: bool = False
    attributes: tuple[tuple[str, str, str], ...] = ()

    @property
    def record(self) -> Record:
        """The record of A, or of B where A has none."""
        found = self.a or self.b
        assert found is not None
        return found

    @property
    def records(self) -> list[Record]:
        """Those that there are, A's first."""
        return [record for record in (self.a, self.b) if record is not None]


@dataclass(frozen=True)
class StepPlan:
    """The pairs of one step and rank in causal order.

    Attributes:
        parents: (phase, entry id) → the name of the nearest entry that ran around it and that both
            runs recorded. An entry's id is the name in its pair's event.
        notes: how the names of the cells were brought together.
    """

    step: int
    rank: int
    pairs: tuple[Pair, ...]
    parents: dict[tuple[str, str], str | None] = field(default_factory=dict)
    notes: Messages = ()


#: A save, or an entry without a micro-step: the side, its key or name, and the micro-step.
Alone = tuple[int, str, "int | None"]


@dataclass(frozen=True)
class CutStep:
    """One step of a rank, the larger batches, or saves, of one side cut to the smaller.

    Of most steps nothing is cut: their batches are of one size.

    Attributes:
        data: both sides.
        notes: how the rows were brought together.
        extra: what one side alone has → why the other side has no such entry or save.
        cut: key, or None for the entries → which side's saves, or batches, were cut. Statistics
            are not cut.
        gradients: why only one side has an entry of a backward pass; None where nothing is known.
        rules: how cells of A are called in B.
        across: what only one of two frameworks has; None where both runs are of one.
        of_phase: phase → how its batches were cut, where each phase was by itself.
    """

    data: tuple[StepData, StepData]
    notes: Messages = ()
    extra: Mapping[Alone, Message] = field(default_factory=dict)
    cut: Mapping[str | None, int] = field(default_factory=dict)
    gradients: Message | None = None
    rules: NameRules = NO_RULES
    across: Across | None = None
    of_phase: Mapping[str, CutStep] = field(default_factory=dict)

    def is_cut(self, side: int, pair: Pair) -> bool:
        """Return whether a side has pieces where a whole run of it has other records.

        Parameters are of no batch.
        """
        what = pair.event.name if pair.entry is None else None
        return self.cut.get(what) == side and pair.record.io != "parameters"

    def why_alone(self, side: int, pair: Pair) -> Message | None:
        """Return why only one side has an entry or a save; None where this is not the reason."""
        if pair.entry is None:
            return self.extra.get((side, pair.event.name, pair.event.micro_step))
        if (of_phase := self.of_phase.get(pair.event.phase or "")) is not None:
            return of_phase.why_alone(side, pair)
        if self.gradients is not None and pair.entry.direction != "forward":
            return self.gradients
        return self.extra.get((side, pair.entry.name, None))


def plan_step(
    step: int,
    rank: int,
    a: StepData,
    b: StepData,
    rules: NameRules = NO_RULES,
    *,
    by_name: bool = False,
    across: Across | None = None,
) -> StepPlan:
    """Pair everything both runs recorded in one step of one rank.

    Args:
        rules: how cells of A are called in B.
        by_name: entries of one name are compared, and no others.
        across: what only one of two frameworks has; None where both runs are of one.
    """
    if by_name:
        ids, others = ({(e.phase, e.name): e.name for e in side.entries} for side in (a, b))
        alignment = Alignment(ids, others)
    else:
        chosen = [None if side.config is None else side.config.records_cell for side in (a, b)]
        alignment = align(
            a.entries,
            b.entries,
            rules,
            damaged={*a.unreadable, *b.unreadable},
            chosen=(chosen[0], chosen[1]),
            across=across is not None,
        )
    earlier = made_before_updates(a.key_data, b.key_data)
    orders = [
        order_of(a.entries, a.key_data, alignment.a, earlier),
        order_of(b.entries, b.key_data, alignment.b, earlier),
    ]
    order = merge(*(reversed(orders) if a.timeless and not b.timeless else orders))
    planner = Planner(step, rank, a, b, alignment, across)
    pairs = (
        *planner.unreadable_pairs(),
        *planner.not_reached([pair for event in order for pair in planner.pairs_of(event)]),
    )
    parents = _parents(a.entries, b.entries, alignment)
    return StepPlan(step, rank, pairs, parents, tuple(alignment.notes))


def _parents(
    a: Sequence[Entry], b: Sequence[Entry], alignment: Alignment
) -> dict[tuple[str, str], str | None]:
    parents: dict[tuple[str, str], str | None] = {}
    places = [{(phase, i) for (phase, _), i in ids.items()} for ids in (alignment.a, alignment.b)]
    shared = places[0] & places[1]
    for entries, ids in ((b, alignment.b), (a, alignment.a)):
        by_phase: dict[str, dict[str, Entry]] = defaultdict(dict)
        wanted: dict[str, set[str]] = defaultdict(set)
        for entry in entries:
            by_phase[entry.phase][entry.name] = entry
            if (entry.phase, ids[entry.phase, entry.name]) in shared:
                wanted[entry.phase].add(entry.name)
        for entry in entries:
            around = nearest_around(entry, by_phase[entry.phase], wanted[entry.phase])
            known = None if around is None else ids[entry.phase, around]
            parents[entry.phase, ids[entry.phase, entry.name]] = known
    return parents


class Planner:
    """Pairs the records of entries and key data that are compared, event by event."""

    def __init__(
        self,
        step: int,
        rank: int,
        a: StepData,
        b: StepData,
        alignment: Alignment,
        across: Across | None = None,
    ) -> None:
        self._sides = (a, b)
        self._across = across
        self._places = [
            tuple(x if own is None else own for x, own in ((step, s.own.step), (rank, s.own.rank)))
            for s in self._sides
        ]
        self._outside = alignment.outside
        self._no_root = tuple(
            None if why is None or any(entry.cell == ROOT for entry in side.entries) else why
            for side, why in ((a, a.dialect.no_root), (b, b.dialect.no_root))
        )
        self._may_number_single = a.dialect.numbers_single or b.dialect.numbers_single
        self._entries = tuple(
            {(e.phase, ids[e.phase, e.name]): e for e in side.entries}
            for side, ids in ((a, alignment.a), (b, alignment.b))
        )
        # Of each side: whether what it holds of a phase are operators.
        self._phases: tuple[dict[str, set[bool]], ...] = ({}, {})
        self._data = tuple({(d.key, d.micro_step): d for d in side.key_data} for side in (a, b))
        # The parameters each cell was last seen with: recorded again only when they changed.
        self._parameters: tuple[dict[str, Record], dict[str, Record]] = ({}, {})

    def unreadable_pairs(self) -> Iterator[Pair]:
        """Yield one pair for each phase or key of which something could not be read."""
        phases = [side.unreadable for side in self._sides]
        for phase in dict.fromkeys([*phases[0], *phases[1]]):
            yield _unreadable(EventKey(BEGIN, phase, phase), "input", phase, phases)
        listed = {key for side in self._data for key, _ in side}
        keys = [side.unreadable_keys for side in self._sides]
        for key in dict.fromkeys([*keys[0], *keys[1]]):
            if key not in listed and (key is not None or not listed):
                yield _unreadable(EventKey(DATA, None, key or KEY_DATA_DIR), "data", key, keys)

    def not_reached(self, pairs: list[Pair]) -> list[Pair]:
        """Return the pairs; what a run lacks because it had stopped says so.

        That is all of a later step, and of the step in which it stopped what came, in the other
        run's time, after the last thing that both have. What is missing before that is missing.
        """
        for i, side in enumerate(self._sides):
            stop, (step, _) = side.stop, self._places[i]
            if stop is None or step < stop.step:
                continue
            reached = -math.inf  # when, in the other run's time, the last of both was over
            if step == stop.step:
                both = (pair for pair in pairs if pair.a is not None and pair.b is not None)
                times = (self._time_of(pair, 1 - i) for pair in both)
                reached = max((at for at in times if at is not None), default=-math.inf)
            why = message("coverage.not_reached", step=stop.step)
            for index, pair in enumerate(pairs):
                missing = pair.b is None if i else pair.a is None
                if missing and pair.gap is None and pair.unreadable is None:
                    time = self._time_of(pair, 1 - i)
                    if time is None or time > reached:
                        pairs[index] = replace(pair, gap=why, stopped=True)
        return pairs

    def _time_of(self, pair: Pair, i: int) -> float | None:
        """Return when a pair's event was over in a run; None where that is not known.

        An entry stands in the journal when it has ended: one that both began, and one run ended,
        is in one of them only.
        """
        if pair.event.kind == DATA:
            datum = self._data[i].get((pair.event.name, pair.event.micro_step))
            return None if datum is None else datum.seq
        key = (pair.event.phase or "", pair.event.name)
        entry = self._entries[i].get(key)
        if entry is None:
            return None
        whole = pair.event.kind == BEGIN and self._entries[1 - i].get(key) is not None
        return entry.seq if whole else end_of(entry)

    def pairs_of(self, event: EventKey) -> Iterator[Pair]:
        """Yield the pairs of one event; events come in causal order, for what is carried on."""
        if event.kind == DATA:
            yield from self._data_pairs(event)
            return
        key = (event.phase or "", event.name)
        entries = [side.get(key) for side in self._entries]
        entry = entries[0] or entries[1]
        assert entry is not None
        if entries[1] is not None and entries[1].stack not in ((), entry.stack):
            entry = replace(entry, stack=entries[1].stack)  # of the run under test
        gaps = [  # why each run lacks an entry, or some of its records
            self._why_no_entry(i, entry, key)
            if side is None
            else coverage.why_not_compiled(self._sides[i].config, self._sides[i].coverage, side)
            for i, side in enumerate(entries)
        ]
        if None in entries and all(map(_is_no_gradient, entries)):
            gaps[0 if entries[0] is None else 1] = message("coverage.no_gradient_flowed")
        wanted = [_records_of(side, event, gap) for side, gap in zip(entries, gaps)]
        known = [None if side is None else side.attributes for side in entries]
        attributes = other_attributes(*known)
        if event.kind == BEGIN:
            self._carry_parameters(entries, wanted)
            if None in entries and not entry.records:  # one run alone has it: a record says so
                silent = Record(entry.name, "input", "", Leaf("NoneType"))
                wanted[1 if entries[0] is None else 0]["input", ""] = silent
        unlike: Mapping[tuple[str, str], Message] = {}
        if self._across is not None and None not in entries:
            mine, theirs, unlike = bring_together(entry, *wanted)
            wanted = [mine, theirs]
        for place in {**wanted[0], **wanted[1]}:
            a, b = (side.get(place) for side in wanted)
            gap = unlike.get(place)
            if a is not None and b is not None:
                if gap is None and a.leaf.dtype != b.leaf.dtype:
                    gap = next((why for why in gaps if coverage.casts_inputs(why)), None)
                gap = gap or coverage.why_no_gradient(entries, a, b)
                yield Pair(event, a, b, entry, gap, attributes=attributes)
                continue
            missing = 0 if a is None else 1
            side, found = self._sides[missing], (a, b)[1 - missing]
            gap = gaps[missing] or gap or coverage.why_no_part(side.config, place[0])
            if gap is None and found is not None and entry.direction == "backward":
                gap = side.dialect.no_absent_gradient if found.leaf.type == "NoneType" else None
            yield Pair(event, a, b, entry, gap, side.unreadable.get(entry.phase))

    def _why_no_entry(self, i: int, entry: Entry, place: tuple[str, str]) -> Message | None:
        if place in self._outside:
            return message("coverage.outside_network")
        if entry.cell == ROOT and self._no_root[i] is not None:
            return self._no_root[i]
        why = None if self._across is None else self._across.why_no_partner(1 - i, entry)
        if why is not None:
            return why
        side, other = self._sides[i], self._sides[1 - i]
        if entry.phase not in self._phases[i]:
            held = (other.name for other in side.entries if other.phase == entry.phase)
            self._phases[i][entry.phase] = {is_operator(name) for name in held}
        why = coverage.why_no_level(side.config, entry, self._phases[i][entry.phase])
        if why is not None:
            return why
        own = side.own.translate(entry)
        return coverage.why_no_entry(side.config, side.coverage, own, other.config)

    def _carry_parameters(
        self, entries: Sequence[Entry | None], wanted: Sequence[_Records]
    ) -> None:
        """Give a side that did not record its parameters again the ones it last recorded."""
        own = [[r for r in side.values() if r.io == "parameters"] for side in wanted]
        seen = [{record.path for record in records} for records in own]
        for i, entry in enumerate(entries):
            if entry is None:
                continue
            cell, last = f"{entry.phase} {entry.call_name}", self._parameters[i]
            last |= {f"{cell} {record.path}": record for record in own[i]}
            for path in seen[1 - i] - seen[i]:
                if (carried := last.get(f"{cell} {path}")) is not None:
                    name = f"{entry.name}.parameters.{path}"
                    wanted[i]["parameters", path] = replace(carried, name=name)

    def _data_pairs(self, event: EventKey) -> Iterator[Pair]:
        data = [side.get((event.name, event.micro_step)) for side in self._data]
        wanted = [_by_place(side.records) if side else {} for side in data]
        if {*map(tuple, wanted)} == {_ALONE, _FIRST} and self._may_number_single:
            wanted = [{("data", ""): record} for side in wanted for record in side.values()]
        for place in {**wanted[0], **wanted[1]}:
            a, b = (side.get(place) for side in wanted)
            gap = unreadable = None
            if a is None or b is None:
                missing = 0 if a is None else 1
                if data[missing] is None:
                    gap = self._why_no_key_data(missing, event.name)
                problems = self._sides[missing].unreadable_keys
                unreadable = problems.get(event.name, problems.get(None))
            yield Pair(event, a, b, None, gap, unreadable)

    def _why_no_key_data(self, i: int, name: str) -> Message | None:
        side, other = self._sides[i], self._sides[1 - i]
        key, keys = side.own.keys.get(name, name), side.keys_of_run
        if keys is not None and key not in keys and side.dialect != other.dialect:
            if side.dialect.no_other_keys is not None:
                return side.dialect.no_other_keys
            if not other.dialect.records_cells:
                return message("coverage.of_other_tool")
        return coverage.why_no_key_data(side.config, side.coverage, key, *self._places[i])


_ALONE, _FIRST = (("data", ""),), (("data", "0"),)

#: The records of one entry or of one save by their place in it: (io, path).
_Records = dict[tuple[str, str], Record]


def _unreadable(
    event: EventKey, io: str, what: str | None, problems: Sequence[Mapping[Any, Message]]
) -> Pair:
    """Return a pair of which neither side could be read, each with why."""
    a, b = (Record(event.name, io, "", Leaf("unreadable", why=why.get(what))) for why in problems)
    return Pair(event, a, b)


def _is_no_gradient(entry: Entry | None) -> bool:
    """Return whether an entry, if there is one, is of a backward pass without any gradient."""
    if entry is None:
        return True
    return entry.direction == "backward" and all(
        record.leaf.type == "NoneType" or (record.leaf.max == record.leaf.min == 0)
        for record in entry.records
    )


def _by_place(records: Iterable[Record]) -> _Records:
    found: _Records = {}
    for record in records:
        path = record.path
        while (record.io, path) in found:  # a damaged save holds one record more
            path += " "
        found[record.io, path] = record
    return found


def _records_of(entry: Entry | None, event: EventKey, gap: Message | None) -> _Records:
    """Return the records that are known at this event: inputs when it begins, the rest at its end.

    An entry that never ended has no end event, so what else it holds is known at its begin. Where
    there is a gap, unreadable records are left out.
    """
    if entry is None:
        return {}
    begins = event.kind == BEGIN
    found = _by_place(
        record
        for record in entry.records
        if (record.io in BEGIN_IO) == begins or (begins and entry.end is None)
    )
    if gap is None:
        return found
    return {place: record for place, record in found.items() if record.leaf.why is None}
