"""Places of two runs with the same entries: what agrees in them is counted on columns.

Nearly all records of two runs are tensors with one fingerprint and finite statistics on both sides.
They are identical whatever the comparison allows, so no object, pair or finding is made of them.
All other entries, and key data, are paired and compared as ever. A step of which both sides do not
have the same entries, or in which anything is unusual, is paired as a whole by the planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances
from mindrlhf_msprobe.comparison.pairing.alignment import Alignment
from mindrlhf_msprobe.comparison.pairing.planner import BEGIN_IO, Pair, Planner, StepData, StepPlan
from mindrlhf_msprobe.comparison.pairing.timeline import (
    BEGIN,
    END,
    EventKey,
    Spans,
    made_before_updates,
    placed_key_data,
)
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.steps.tally import Counted
from mindrlhf_msprobe.storage.code_lines import users_line
from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.columns.layouts import Layout, Layouts, record_names
from mindrlhf_msprobe.storage.columns.reading import whole_columns
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.place import LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, has_plain_call


@dataclass(frozen=True)
class Wholesale:
    """A step of which what agrees was counted.

    Attributes:
        plan: all other pairs, in causal order; its `parents` are left out.
        positions: for each of these pairs what `StepResult.positions` holds.
        data: what both runs recorded there; one entry of each phase stands for all.
    """

    plan: StepPlan
    data: tuple[StepData, StepData]
    positions: list[tuple[int, int]]
    counted: Counted


def count_wholesale(
    sides: tuple[View, View], tolerances: Tolerances, place: StepPlace, layouts: Layouts
) -> Wholesale | None:
    """Count what agrees in one step; None where it has to be paired as a whole.

    Args:
        layouts: those of the steps before.
    """
    rank_steps = [view.own(*place) for view in sides]
    if any(view.phases or view.key_data_only or not view.run.dialect.timed for view in sides):
        return None
    phases = [view.run.phases_at(at) for view, at in zip(sides, rank_steps)]
    if phases[0] != phases[1]:
        return None
    both_have = []
    for phase in phases[0]:
        read: Columns | None = None
        both = [
            read := whole_columns(view.run, LayerPlace(phase, *at), layouts, like=read)
            for view, at in zip(sides, rank_steps)
        ]
        found = _common_phase(phase, both[0], both[1])
        if found is None or not found.make_special():
            return None
        both_have.append(found)
    events = [_Events([phase.sides[i] for phase in both_have]) for i in (0, 1)]
    if not events[0].begin_in_order_of(events[1]):
        return None
    data = [view.load(*place, layers=False) for view in sides]
    if any(side.unreadable or side.unreadable_keys for side in data):
        return None
    return _Counting(place, both_have, (events[0], events[1]), (data[0], data[1])).result(
        tolerances
    )


class _Side:
    """The entries of one phase of one run, in the order that both have.

    Attributes:
        order: which of the columns' entries each is.
        seqs, ends: when they began and ended; -1 of one that never did.
        first: the number of the first row of each.
    """

    def __init__(self, columns: Columns, order: np.ndarray) -> None:
        self.columns, self.order = columns, order
        self.seqs, self.ends = (times[order] for times in columns.times)
        self.first = columns.layout.first[:-1][order]

    def frames(self, number: int) -> tuple[str, ...]:
        """Return the call stack of an entry."""
        return self.columns.frames(int(self.order[number]))

    def openings(self) -> list[int]:
        """Return how often the phase had been opened before each entry."""
        openings = self.columns.heads.openings
        return [openings[number] for number in self.order.tolist()]


@dataclass
class _CommonPhase:
    """A phase that both runs recorded with the same entries.

    Attributes:
        names: of its entries.
        is_counted: (entries,) whether all records of an entry are identical on both sides.
        special: name → the entries of both sides that are compared by their records.
    """

    phase: str
    sides: tuple[_Side, _Side]
    is_counted: np.ndarray
    special: dict[str, tuple[Entry, Entry]]

    @property
    def layout(self) -> Layout:
        """That of A."""
        return self.sides[0].columns.layout

    @property
    def names(self) -> list[str]:
        """Those of its entries."""
        return self.layout.names

    def make_special(self) -> bool:
        """Make the entries that differ; return whether they can be counted so.

        Parameters that one side alone recorded again are compared with earlier ones, and files of
        elements are shared among workers: both is the planner's.
        """
        numbers = np.flatnonzero(~self.is_counted).tolist()
        if not numbers:
            return True
        made = []
        for side in self.sides:
            try:
                found = [side.columns.made(int(side.order[number])) for number in numbers]
            except ValueError:
                return False
            leaves = (record.leaf for entry in found for record in entry.records)
            if any(leaf.why is not None or leaf.data_name for leaf in leaves):
                return False
            made.append(found)
        for number, *both in zip(numbers, *made):
            if _parameters(both[0]) != _parameters(both[1]):
                return False
            self.special[self.names[number]] = both[0], both[1]
        return True


def _parameters(entry: Entry) -> set[str]:
    return {record.path for record in entry.records if record.io == "parameters"}


def _common_phase(phase: str, a: Columns | None, b: Columns | None) -> _CommonPhase | None:
    """Hold one phase of both runs against each other; None where it has to be paired."""
    if a is None or b is None or len(a) != len(b) or not a.layout.once(_are_plain):
        return None
    order = np.arange(len(a))
    own = _Side(a, order)
    if a.layout is not b.layout and a.layout.names != b.layout.names:
        there = {name: number for number, name in enumerate(b.layout.names)}
        if there.keys() != {*a.layout.names}:
            return None
        order = np.array([there[name] for name in a.layout.names], np.intp)
    other = _Side(b, order)
    # Entries have the same place among the others, but for their time.
    if not a.stand_as(b, order) or not ((own.ends < 0) == (other.ends < 0)).all():
        return None
    if _operators_differ(own, other):
        return None
    return _CommonPhase(phase, (own, other), _are_identical(own, other), {})


def _are_plain(layout: Layout) -> bool:
    return all(map(has_plain_call, layout.names))


def _operators_differ(a: _Side, b: _Side) -> bool:
    """Return whether an operator was called from two lines of code: they tell which is which."""
    numbers = a.columns.layout.once(_operators)
    stacks = {(a.frames(number), b.frames(number)) for number in numbers}
    for both in stacks:
        users = [users_line(frames) for frames in both] if both[0] != both[1] else []
        if len({None if line is None else line.key for line in users}) > 1:
            return True
    return False


def _operators(layout: Layout) -> list[int]:
    return [number for number, name in enumerate(layout.names) if is_operator(name)]


def _are_identical(a: _Side, b: _Side) -> np.ndarray:
    """Return of which entries every record is identical to the one of the other run.

    And deserves no look: a tensor has a fingerprint and finite statistics, any other value is at
    hand and finite.
    """
    layouts = a.columns.layout, b.columns.layout
    found = layouts[0].once(_are_whole)
    if layouts[0] is not layouts[1]:
        known = layouts[1].structures
        pairs = zip(layouts[0].structures, b.order.tolist())
        found = found & np.array([own == known[n] for own, n in pairs], bool)
    counts = np.diff(layouts[0].first)
    rows = np.flatnonzero(np.repeat(found, counts))  # of A
    there = rows + np.repeat(b.first - a.first, counts)[rows]
    differ = rows[~a.columns.values.are_identical(rows, b.columns.values, there)]
    found = found.copy()
    found[np.searchsorted(layouts[0].first, differ, side="right") - 1] = False
    return found


def _are_whole(layout: Layout) -> np.ndarray:
    return np.array([one.whole for one in layout.structures], bool)


def _known_at_begin(layout: Layout) -> np.ndarray:
    """Return (entries,) how many records of each entry are known when it begins."""
    found = [
        sum(part != PARAMETERS_GRAD and part.partition("_")[0] in BEGIN_IO for part, _ in of.places)
        for of in layout.structures
    ]
    return np.array(found, np.intp)


class _Events:
    """When the entries of all phases of one run began and ended.

    An event has a number: n is the begin of the n-th entry, and n + the number of entries its end.

    Attributes:
        seqs, ends: (entries,) when they began and ended; -1 of one that never did.
    """

    def __init__(self, phases: Sequence[_Side]) -> None:
        self.phases = phases
        self.seqs = _joined([side.seqs for side in phases])
        self.ends = _joined([side.ends for side in phases])

    @cached_property
    def order(self) -> np.ndarray:
        """The number of the event at each place in time."""
        times = np.concatenate([self.seqs, self.ends])
        there = np.flatnonzero(np.r_[np.full(len(self.seqs), True), self.ends >= 0])
        found = there[np.argsort(times[there], kind="stable")]
        if _are_distinct(times[found]):
            return found
        # Of those at one time the name decides.
        names = [side.columns.layout.names[n] for side in self.phases for n in side.order.tolist()]
        of = {name: number for number, name in enumerate(sorted({*names}))}
        numbers = np.array([of[name] for name in names] * 2, np.intp)
        return there[np.lexsort([numbers[there], times[there]])]

    @cached_property
    def times(self) -> np.ndarray:
        """When the events were, in order."""
        return np.concatenate([self.seqs, self.ends])[self.order]

    @cached_property
    def places(self) -> np.ndarray:
        """Of each event its place in time; -1 where an entry never ended."""
        found = np.full(2 * len(self.seqs), -1)
        found[self.order] = np.arange(len(self.order))
        return found

    def begin_in_order_of(self, other: _Events) -> bool:
        """Return whether the entries of both runs began in one order."""
        order, theirs = (np.argsort(one.seqs, kind="stable") for one in (self, other))
        if not (_are_distinct(self.seqs[order]) and _are_distinct(other.seqs[theirs])):
            return False
        return bool((order == theirs).all())

    @cached_property
    def spans(self) -> Spans:
        """When the openings of phases began and ended."""
        return Spans(side.columns.entry(n) for side in self.phases for n in side.order.tolist())

    def placed(
        self, saves: Sequence[KeyDatum], earlier: frozenset[str]
    ) -> list[tuple[int, EventKey]]:
        """Return key data in causal order, and how many events of entries come before each."""
        found = placed_key_data(self.spans, saves, earlier) if saves else []
        return [
            (int(np.searchsorted(self.times, time, "left" if side < 0 else "right")), event)
            for (time, side, *_), event in found
        ]


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _are_distinct(ordered: np.ndarray) -> bool:
    return bool((ordered[1:] != ordered[:-1]).all())


class _Shown(NamedTuple):
    """An event of which pairs are made.

    Attributes:
        order: sorts it among those of A: (place, 1) of an entry, (place, 0, n) of the n-th key data
            before that; what only B has stands behind one of them.
        before: how many events of entries come before it in A.
        is_entry: whether it is one of an entry itself.
    """

    order: tuple[int, ...]
    before: int
    is_entry: bool
    event: EventKey


class _Counting:
    """Counts what agrees in a step, and puts the pairs that are left into causal order."""

    def __init__(
        self,
        place: StepPlace,
        phases: list[_CommonPhase],
        events: tuple[_Events, _Events],
        data: tuple[StepData, StepData],
    ) -> None:
        self._place, self._phases = place, phases
        self._events, self._data = events, data
        #: Of each event in time the number of its phase.
        self._phase = self._of_events(
            [np.full(len(one.names), number) for number, one in enumerate(phases)]
        )

    def _of_events(self, of_entries: Sequence[np.ndarray]) -> np.ndarray:
        """Return what holds of the entries of each phase for each event in time."""
        own = self._events[0]
        return _joined(of_entries)[own.order % max(len(own.seqs), 1)]

    def result(self, tolerances: Tolerances) -> Wholesale:
        """Return all of it."""
        records = self._records()
        # What pairs the entries that are left, and key data.
        special = [(one.phase, *item) for one in self._phases for item in one.special.items()]
        ids = {(phase, name): name for phase, name, _ in special}
        left = [
            replace(side, entries=[both[i] for *_, both in special])
            for i, side in enumerate(self._data)
        ]
        planner = Planner(*self._place, left[0], left[1], Alignment(ids, dict(ids)))
        active = records > 0
        shown: list[tuple[_Shown, list[Pair]]] = []
        for one in self._shown():
            if found := [*planner.pairs_of(one.event)]:
                shown.append((one, found))
                if one.is_entry:
                    active[one.before] = True
        pairs = tuple(pair for _, found in shown for pair in found)
        entries = [
            Entry(of.names[0], of.phase, *self._place, 0, None) for of in self._phases if of.names
        ]
        data = [replace(side, entries=entries) for side in self._data]
        return Wholesale(
            StepPlan(*self._place, pairs),
            (data[0], data[1]),
            self._positions(active, shown),
            self._counted(records, shown, tolerances),
        )

    def _records(self) -> np.ndarray:
        """Return how many records were counted at each event in time."""
        ended = self._events[0].ends >= 0
        whole = _joined([np.diff(one.layout.first) for one in self._phases])
        begin = _joined([one.layout.once(_known_at_begin) for one in self._phases])
        begin = np.where(ended, begin, whole)
        is_counted = _joined([one.is_counted for one in self._phases])
        of_events = np.concatenate([begin * is_counted, (whole - begin) * is_counted])
        return of_events[self._events[0].order]

    def _shown(self) -> list[_Shown]:
        """Return the events of which pairs are made, in causal order."""
        own, other = self._events
        saves = [side.key_data for side in self._data]
        earlier = made_before_updates(*saves)
        placed = own.placed(saves[0], earlier)
        found = [
            _Shown((before, 0, n), before, False, event) for n, (before, event) in enumerate(placed)
        ]
        keys = [{(datum.key, datum.micro_step) for datum in of} for of in saves]
        if not keys[1] <= keys[0]:
            known = {one.event: one for one in found}
            behind: tuple[int, ...] = (-1,)
            at, last = 0, -1
            for number, (before, event) in enumerate(other.placed(saves[1], earlier)):
                if before and before != last:  # an event of an entry comes before it
                    place = int(own.places[other.order[before - 1]])
                    behind, at = (place, 1), place + 1
                last = before
                if event in known:
                    behind, at = known[event].order, known[event].before
                else:
                    found.append(_Shown((*behind, number), at, False, event))
        found += [_Shown((place, 1), place, True, event) for place, event in self._special()]
        return sorted(found, key=lambda one: one.order)

    def _special(self) -> Iterator[tuple[int, EventKey]]:
        """Yield the events of entries that were not counted, and their places in time."""
        places, count, start = self._events[0].places, len(self._events[0].seqs), 0
        for one in self._phases:
            for number in (start + np.flatnonzero(~one.is_counted)).tolist():
                for kind, place in ((BEGIN, places[number]), (END, places[number + count])):
                    if place >= 0:
                        yield int(place), EventKey(kind, one.phase, one.names[number - start])
            start += len(one.names)

    def _positions(
        self, active: np.ndarray, shown: Sequence[tuple[_Shown, list[Pair]]]
    ) -> list[tuple[int, int]]:
        """Return what `StepResult.positions` holds."""
        if not shown:
            return []
        seen = np.r_[0, np.cumsum(active)]
        places = np.flatnonzero(active)
        openings = [np.array(one.sides[0].openings(), np.int64) for one in self._phases]
        both = np.stack([self._phase[places], self._of_events(openings)[places]])
        opened = np.sort(places[np.unique(both, axis=1, return_index=True)[1]])
        return [
            (int(np.searchsorted(opened, one.before + one.is_entry)), int(seen[one.before]))
            for one, found in shown
            for _ in found
        ]

    def _counted(
        self,
        records: np.ndarray,
        shown: Sequence[tuple[_Shown, list[Pair]]],
        tolerances: Tolerances,
    ) -> Counted:
        names = [one.phase for one in self._phases]
        places = np.flatnonzero(records)
        numbers, first = np.unique(self._phase[places], return_index=True)
        counts = np.bincount(self._phase, records, len(names)).astype(int).tolist()
        before = [
            (sum(len(found) for of, found in shown if of.before + of.is_entry <= place), names[n])
            for place, n in sorted(zip(places[first].tolist(), numbers.tolist()))
        ]
        identical = {names[number]: counts[number] for number in numbers.tolist()}
        return Counted(identical, tuple(before), self._rules(tolerances, sum(counts)))

    def _rules(self, tolerances: Tolerances, total: int) -> dict[Messages, int]:
        if not tolerances.rules:
            by = tolerances.matching("")[1]
            return {by: total} if by and total else {}
        used: Counter[Messages] = Counter()
        for one in self._phases:
            counts = np.diff(one.layout.first)
            for row in np.flatnonzero(np.repeat(one.is_counted, counts)).tolist():
                used[_said(tolerances, one.layout.once(record_names)[row])] += 1
        del used[()]
        return dict(used)


@lru_cache(maxsize=1 << 16)
def _said(tolerances: Tolerances, name: str) -> Messages:
    return tolerances.matching(name, name)[1]
