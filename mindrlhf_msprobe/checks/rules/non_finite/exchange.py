"""Which of the first events of several ranks came from another rank: by order, and by what carries.

Ranks count time each for itself. An event of one rank is placed in another's time by the last entry
before it that both recorded; stages of a pipeline, which share none, follow each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mindrlhf_msprobe.checks.reading.entries import EntryView
from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.rules.non_finite.events import (
    DATA,
    GRADIENT,
    INPUT,
    OUTPUT,
    PARAMETER,
    Event,
)
from mindrlhf_msprobe.phases import phase_order, usual_place
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, non_finite
from mindrlhf_msprobe.storage.reading.reader import Run

#: Begin (False) or end (True) of an entry: phase, name, which.
_Mark = tuple[str, str, bool]

#: Key data that each rank computes of its own samples; losses, norms and advantages are reduced.
_OWN_DATA = re.compile("log_prob|values|ratio")
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|isend|irecv|send_?recv"
    r"|row_?parallel|column_?parallel|vocab_?parallel|parallel_?cross_?entropy|grad_?reducer"
    r"|\bhccl|\bgloo",
    re.IGNORECASE,
)
_FRAMES = 3  # of a call stack in which a collective is looked for


def collective_of(event: Event) -> str | None:
    """Return the name of the collective by which an event may have come from another rank.

    A cell says so by its class or name, a call by its innermost frames. Gradients of parameters
    are reduced over ranks before they enter the optimizer.
    """
    entry = event.entry
    if entry is None:
        return None
    for name in (entry.class_name, entry.cell.rpartition(".")[2], *entry.stack[:_FRAMES]):
        found = _COLLECTIVE.search(name)
        if found is not None:
            return name if name == entry.class_name else found.group()
    return None


class Group(NamedTuple):
    """Ranks whose first event is the same."""

    event: Event
    ranks: list[int]

    @property
    def rank(self) -> int:
        """The rank of `event`, the lowest of them."""
        return self.ranks[0]


class Exchange:
    """What ranks may have had from each other in one step.

    Args:
        before: the step before.
        is_own: whether key data are known to arise on their rank.
    """

    def __init__(
        self, run: Run, step: int, before: int | None, is_own: Callable[[Event], bool]
    ) -> None:
        self._run, self._step, self._before, self._is_own = run, step, before, is_own
        self._times: dict[int, dict[_Mark, int]] = {}
        self._entries: dict[tuple[str, str, int, int], EntryView | None] = {}

    def independent(self, groups: Sequence[Group]) -> tuple[list[Group], list[tuple[Group, Group]]]:
        """Return where it arose, the first first, and the others, each with where it came from."""
        if len(groups) == 1:
            return [*groups], []
        origins = [
            group
            for group in groups
            if not any(self._reaches(one, group) for one in groups if one is not group)
        ]
        origins = origins or [min(groups, key=lambda one: (not one.event.is_birth, one.rank))]
        origins.sort(key=lambda own: (sum(self._precedes(o, own) for o in origins), own.rank))
        carried = [
            (group, next((one for one in origins if self._precedes(one, group)), origins[0]))
            for group in groups
            if group not in origins
        ]
        return origins, carried

    def _reaches(self, origin: Group, group: Group) -> bool:
        return self._precedes(origin, group) and self._carries(origin, group)

    def _carries(self, origin: Group, group: Group) -> bool:
        """Return whether a group's event is of something that ranks exchange."""
        event = group.event
        if event.kind in (PARAMETER, GRADIENT):
            return event.kind != origin.event.kind  # each is reduced with its like
        if event.kind == DATA:
            assert event.datum is not None
            return not _OWN_DATA.search(event.datum.key) and not self._is_own(event)
        if event.kind == INPUT and (
            event.phase != origin.event.phase or self._no_common(origin, group)
        ):
            return True  # the trainer moves data between phases, a pipeline between its stages
        return collective_of(event) is not None or self._is_exchanged(origin, group)

    def _is_exchanged(self, origin: Group, group: Group) -> bool:
        """Return whether two ranks hold the same where what they were given is not the same.

        So it is behind a collective, whatever it is called: in this step, or the one before it.
        What came from the origin's rank is not finite there, either.
        """
        io = group.event.kind
        for step in (self._step, self._before):
            one = self._entry(group.event, step, origin.rank)
            other = self._entry(group.event, step, group.rank)
            if one is None or other is None:
                return False
            if step == self._step and all(non_finite(leaf) is None for leaf in _leaves(one, io)):
                return False
            held = _identity(one, io)
            if held is not None and held == _identity(other, io):
                return io == INPUT or _identity(one, INPUT) != _identity(other, INPUT)
        return False

    def _entry(self, event: Event, step: int | None, rank: int) -> EntryView | None:
        """Return the entry of an event, as it was in some step and rank."""
        entry = event.entry
        if entry is None or step is None:
            return None
        key = entry.phase, entry.name, step, rank
        if key not in self._entries:
            self._entries[key] = self._read_entry(*key)
        return self._entries[key]

    def _read_entry(self, phase: str, name: str, step: int, rank: int) -> EntryView | None:
        if phase not in self._run.phases_at(step, rank):
            return None
        journal = Journal(self._run, phase, step, rank)
        names = journal.layout.names
        return journal.entry(names.index(name)) if name in names else None

    def _precedes(self, one: Group, other: Group) -> bool:
        """Return whether an event of one rank comes before one of another."""
        if self._no_common(one, other):
            return True
        here, there = self._marks(one.rank), self._marks(other.rank)
        own = _mark(other.event)
        if own in here:
            return one.event.time < here[own]
        common = [mark for mark in there if mark in here and there[mark] <= other.event.time]
        if common:
            return one.event.time <= here[max(common, key=there.__getitem__)]
        return _usual(one.event) <= _usual(other.event)

    def _no_common(self, one: Group, other: Group) -> bool:
        """Return whether two ranks share no entry of the phase of both: stages of a pipeline."""
        phase = one.event.phase
        if phase is None or phase != other.event.phase:
            return False
        here, there = self._marks(one.rank), self._marks(other.rank)
        return not any(mark[0] == phase and mark in there for mark in here)

    def _marks(self, rank: int) -> dict[_Mark, int]:
        if rank not in self._times:
            found = self._times[rank] = {}
            for phase in self._run.phases_at(self._step, rank):
                journal = Journal(self._run, phase, self._step, rank)
                for name, (seq, end) in zip(journal.layout.names, journal.times):
                    found[phase, name, False] = seq
                    found[phase, name, True] = seq if end is None else end
        return self._times[rank]


def _mark(event: Event) -> _Mark | None:
    entry = event.entry
    return None if entry is None else (entry.phase, entry.name, event.kind == OUTPUT)


def _usual(event: Event) -> float:
    if event.entry is not None:
        return phase_order(event.entry.phase)
    assert event.datum is not None
    return usual_place(event.datum.key)


def _leaves(entry: EntryView, io: str) -> list[LeafJson]:
    return [leaf for own, _, leaf in entry.records if own == io and "shape" in leaf]


def _identity(entry: EntryView, io: str) -> tuple[Any, ...] | None:
    """Return what tells values apart, where that is known: not of statistics that are NaN."""
    found: list[Any] = []
    for leaf in _leaves(entry, io):
        fingerprint = leaf.get("fingerprint") or leaf.get("md5")
        if fingerprint is None and non_finite(leaf) is not None:
            return None
        found.append(fingerprint or tuple(leaf.get(n) for n in ("Max", "Min", "Mean", "Norm")))
    return tuple(found) or None
