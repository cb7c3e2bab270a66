"""What of one step and rank is not finite, in order of time.

Only -inf in a forward pass is soft: masks are made of it, and a softmax takes it. Everything else
(NaN, +inf, and whatever gradients and parameters hold) is hard. A hard event is one of these:

- output: an entry's output, while nothing it was given, and nothing inside it, was hard;
- input: what an entry was given, while nothing hard is known before;
- parameter, gradient: a parameter, or a gradient of one;
- data: key data.

Which of the first events of several ranks came from another rank is told by order, and by what
carries. Ranks count time each for itself: an event of one rank is placed in another's time by the
last entry before it that both recorded; stages of a pipeline, which share none, follow each other.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.checks.views import place_of
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.phases import SCALE_KEYS, key_order, may_be_mask, phase_order, usual_place
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, non_finite, statistic
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.place import LayerPlace, Place
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import (
    PARAMETERS_GRAD,
    Entry,
    EntryValue,
    Record,
    is_optimizer_state,
)

#: Events of one kind that are kept of a phase; the first ones decide.
_MOST = 32

OUTPUT, INPUT, PARAMETER, GRADIENT, DATA = "output", "input", "parameter", "gradient", "data"
#: Of what was given nothing hard.
OF_ITSELF = (OUTPUT, DATA)


@dataclass(slots=True)
class Event:
    """Something hard.

    Attributes:
        kind: output, input, parameter, gradient, or data.
        time: its place in its process's time.
        values: those that are hard.
        soft: what its entry was given that holds -inf.
    """

    kind: str
    time: float
    entry: Entry | None
    values: Sequence[EntryValue]
    datum: KeyDatum | None = None
    soft: Sequence[EntryValue] = ()

    @property
    def place(self) -> Place:
        """Where the first of its values is."""
        return self.place_of(self.values[0])

    def place_of(self, value: EntryValue) -> Place:
        """Return where a value of its entry, or of its key data, is."""
        io, path, _ = value
        if self.entry is None:
            assert self.datum is not None
            return place_of(self.datum, path)
        return self.entry.place(io, path)

    @property
    def phase(self) -> str | None:
        """The phase it is in."""
        return self.entry.phase if self.entry else None

    @property
    def order(self) -> int:
        """Of key data of one place: which usually comes first."""
        return 0 if self.datum is None else key_order(self.datum.key)

    @property
    def is_backward(self) -> bool:
        """Whether it is of gradients alone."""
        if self.entry is None:
            return self.datum is not None and self.datum.key in SCALE_KEYS
        return self.entry.direction != "forward"

    @property
    def what(self) -> tuple[Any, ...]:
        """What it has in common with the same event in other steps and on other ranks."""
        return self.kind, self.phase, self.place.name

    @property
    def counts(self) -> tuple[int, int]:
        """How many NaN and infinities the first of its values holds."""
        return non_finite(self.values[0][2]) or (0, 0)


@dataclass
class Events:
    """What of one step and rank is not finite.

    Attributes:
        hard: the first events of each kind and phase.
        soft: entries whose output holds -inf while nothing they were given does.
        reached: how many values are hard, by phase.
        is_float16: whether a hard value is of float16.
    """

    hard: list[Event] = field(default_factory=list)
    soft: list[tuple[Entry, list[EntryValue]]] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    is_float16: bool = False
    _last: dict[str, int] = field(default_factory=dict)
    _last_soft: dict[str, int] = field(default_factory=dict)
    _bad_cells: set[tuple[str, str]] = field(default_factory=set)
    _bad_calls: set[tuple[str, str, int]] = field(default_factory=set)
    _given: set[tuple[str, str]] = field(default_factory=set)
    _kept: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, entry: Entry) -> None:
        """Take an entry that may hold something that is not finite."""
        forward = entry.direction == "forward" and not is_optimizer_state(entry.cell)
        hard: list[EntryValue] = []
        soft: list[EntryValue] = []
        for value in entry.values:
            io, _, leaf = value
            if non_finite(leaf) is None:
                continue
            is_soft = forward and io != "parameters" and is_masking(leaf)
            (soft if is_soft else hard).append(value)
        inside = self._last_soft.get(entry.phase, -1) >= entry.seq
        if hard:
            self._hard(entry, hard, soft)
        elif len(self.soft) < _MOST and not inside and {io for io, *_ in soft} == {"output"}:
            self.soft.append((entry, soft))
        if soft:
            self._last_soft[entry.phase] = max(self._last_soft.get(entry.phase, -1), entry.time)

    def _hard(self, entry: Entry, hard: list[EntryValue], soft: list[EntryValue]) -> None:
        phase, forward = entry.phase, entry.direction == "forward"
        at = phase, entry.cell
        of_io: dict[str, list[EntryValue]] = {}
        for value in hard:
            of_io.setdefault(value[0], []).append(value)
        self.reached[phase] += len(hard)
        self.is_float16 |= any(leaf.get("dtype") == "Float16" for *_, leaf in hard)
        given = [value for value in soft if value[0] == "input"]
        if entry.direction == PARAMETERS_GRAD:
            self._keep(Event(GRADIENT, entry.seq, entry, hard))
        if "parameters" in of_io:
            self._bad_cells.add(at)
            self._keep(Event(PARAMETER, entry.seq, entry, of_io["parameters"]))
        if "input" in of_io:
            self._given.add((phase, entry.name))
            self._keep(Event(INPUT, entry.seq, entry, of_io["input"]))
        inside = self._last.get(phase, -1) >= entry.seq
        of_forward = not forward and (phase, entry.cell, entry.call) in self._bad_calls
        was_given = "input" in of_io or at in self._bad_cells or of_forward
        if "output" in of_io and not was_given and not inside:
            self._keep(Event(OUTPUT, entry.time, entry, of_io["output"], soft=given))
        if forward:
            self._bad_calls.add((phase, entry.cell, entry.call))
        self._last[phase] = max(self._last.get(phase, -1), entry.time)

    def add_data(self, datum: KeyDatum) -> None:
        """Take key data that may not be finite."""
        values = [
            ("data", record.path, leaf)
            for record in datum.records
            if record.leaf.why is None
            and not may_be_mask(record.name)
            and non_finite(leaf := _leaf_of(record)) is not None
        ]
        if values:
            self.reached[datum.key] += len(values)
            at = place_of(datum)
            time = math.inf if at.seq is None else at.seq
            self.hard.append(Event(DATA, time, None, values, datum))

    def _keep(self, event: Event) -> None:
        at = event.kind, event.phase or ""
        if self._kept[at] < _MOST:
            self._kept[at] += 1
            self.hard.append(event)

    def was_given(self, phase: str, entry: str | None) -> bool:
        """Return whether an entry was given something hard."""
        return (phase, entry) in self._given

    def in_time(self) -> list[Event]:
        """Return the events in order of time."""
        return sorted(self.hard, key=lambda event: (event.time, event.kind != DATA, event.order))


def _leaf_of(record: Record) -> LeafJson:
    """Return the leaf of a record of key data; where it has no statistics, with its counts."""
    leaf = record.leaf.to_json()
    if not record.leaf.is_tensor or record.leaf.max is not None or record.location is None:
        return leaf
    try:
        array = record.array()
    except (ArrayFileError, OSError, ValueError):
        return leaf
    if array.dtype.kind not in "fc":
        return leaf
    nan, inf = int(np.isnan(array).sum()), int(np.isinf(array).sum())
    return {**leaf, "nan_count": nan, "inf_count": inf}


def is_masking(leaf: LeafJson) -> bool:
    """Return whether all that is not finite in a leaf is -inf."""
    found = non_finite(leaf)
    largest = statistic(leaf, "Max")
    return found is not None and not found[0] and largest is not None and largest < math.inf


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
        self._entries: dict[tuple[str, str, int, int], Entry | None] = {}

    def independent(self, groups: Sequence[Group]) -> tuple[list[Group], list[tuple[Group, Group]]]:
        """Return where it arose, the first first, and the others, each with where it came from."""
        if len(groups) == 1:
            return [*groups], []
        origins = [
            group
            for group in groups
            if not any(
                self._precedes(one, group) and self._carries(one, group)
                for one in groups
                if one is not group
            )
        ]
        origins = origins or [
            min(groups, key=lambda one: (one.event.kind not in OF_ITSELF, one.rank))
        ]
        origins.sort(key=lambda own: (sum(self._precedes(o, own) for o in origins), own.rank))
        carried = [
            (group, next((one for one in origins if self._precedes(one, group)), origins[0]))
            for group in groups
            if group not in origins
        ]
        return origins, carried

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

    def _entry(self, event: Event, step: int | None, rank: int) -> Entry | None:
        """Return the entry of an event, as it was in some step and rank."""
        entry = event.entry
        if entry is None or step is None:
            return None
        key = entry.phase, entry.name, step, rank
        if key not in self._entries:
            found = None
            at = LayerPlace(entry.phase, step, rank)
            if at in self._run.layer_places(step, rank):
                entries = columns_of(self._run, at).entries()
                found = next((one for one in entries if one.name == entry.name), None)
            self._entries[key] = found
        return self._entries[key]

    def _precedes(self, one: Group, other: Group) -> bool:
        """Return whether an event of one rank comes before one of another."""
        if self._no_common(one, other):
            return True
        here, there = self._marks(one.rank), self._marks(other.rank)
        entry = other.event.entry
        if entry is not None:
            own = entry.phase, entry.name, other.event.kind == OUTPUT
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
            for at in self._run.layer_places(self._step, rank):
                for entry in columns_of(self._run, at).entries():
                    found[at.phase, entry.name, False] = entry.seq
                    found[at.phase, entry.name, True] = entry.time
        return self._times[rank]


def _usual(event: Event) -> float:
    if event.entry is not None:
        return phase_order(event.entry.phase)
    assert event.datum is not None
    return usual_place(event.datum.key)


def _leaves(entry: Entry, io: str) -> list[LeafJson]:
    return [leaf for own, _, leaf in entry.values if own == io and "shape" in leaf]


def _identity(entry: Entry, io: str) -> tuple[Any, ...] | None:
    """Return what tells values apart, where that is known: not of statistics that are NaN."""
    found: list[Any] = []
    for leaf in _leaves(entry, io):
        fingerprint = leaf.get("fingerprint") or leaf.get("md5")
        if fingerprint is None and non_finite(leaf) is not None:
            return None
        found.append(fingerprint or tuple(leaf.get(n) for n in ("Max", "Min", "Mean", "Norm")))
    return tuple(found) or None
