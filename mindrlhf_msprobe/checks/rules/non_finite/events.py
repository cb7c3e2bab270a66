"""What of one step and rank is not finite, in order of time.

Only -inf in a forward pass is soft: masks are made of it, and a softmax takes it. Everything else
(NaN, +inf, and whatever gradients and parameters hold) is hard. A hard event is one of these:

- output: an entry's output, while nothing it was given, and nothing inside it, was hard;
- input: what an entry was given, while nothing hard is known before;
- parameter, gradient: a parameter, or a gradient of one;
- data: key data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.reading.views import EntryView, RecordView, place_of
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.findings.health import Place
from mindrlhf_msprobe.phases import SCALE_KEYS, may_be_mask
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, non_finite, statistic
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Record, is_optimizer_state

#: Events of one kind that are kept of a phase; the first ones decide.
_MOST = 32

OUTPUT, INPUT, PARAMETER, GRADIENT, DATA = "output", "input", "parameter", "gradient", "data"


@dataclass(slots=True)
class Event:
    """Something hard.

    Attributes:
        kind: output, input, parameter, gradient, or data.
        time: its place in its process's time.
        records: the records that are hard.
        soft: what its entry was given that holds -inf.
    """

    kind: str
    time: float
    entry: EntryView | None
    records: Sequence[RecordView]
    datum: KeyDatum | None = None
    soft: Sequence[RecordView] = ()

    @property
    def place(self) -> Place:
        """Where it is."""
        io, path = self.records[0][:2]
        if self.entry is None:
            assert self.datum is not None
            return place_of(self.datum, path)
        return self.entry.place(io, path)

    @property
    def phase(self) -> str | None:
        """The phase it is in."""
        return self.entry.phase if self.entry else None

    @property
    def is_backward(self) -> bool:
        """Whether it is of gradients alone."""
        if self.entry is None:
            return self.datum is not None and self.datum.key in SCALE_KEYS
        return self.entry.direction != "forward"

    @property
    def is_birth(self) -> bool:
        """Whether its entry was given nothing hard."""
        return self.kind in (OUTPUT, DATA)

    @property
    def what(self) -> tuple[Any, ...]:
        """What it has in common with the same event in other steps and on other ranks."""
        return self.kind, self.phase, self.place.name

    @property
    def counts(self) -> tuple[int, int]:
        """How many NaN and infinities the first of its records holds."""
        return non_finite(self.records[0][2]) or (0, 0)


@dataclass
class Events:
    """What of one step and rank is not finite.

    Attributes:
        hard: the first events of each kind and phase.
        soft: entries whose output holds -inf while nothing they were given does.
        reached: how many records are hard, by phase.
        is_float16: whether a hard record is of float16.
    """

    hard: list[Event] = field(default_factory=list)
    soft: list[tuple[EntryView, list[RecordView]]] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    is_float16: bool = False
    _last: dict[str, int] = field(default_factory=dict)
    _last_soft: dict[str, int] = field(default_factory=dict)
    _bad_cells: set[tuple[str, str]] = field(default_factory=set)
    _bad_calls: set[tuple[str, str, int]] = field(default_factory=set)
    _given: set[tuple[str, str]] = field(default_factory=set)
    _kept: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, entry: EntryView) -> None:
        """Take an entry that may hold something that is not finite."""
        forward = entry.direction == "forward" and not is_optimizer_state(entry.cell)
        hard: list[RecordView] = []
        soft: list[RecordView] = []
        for record in entry.records:
            found = non_finite(record[2])
            if found is None:
                continue
            is_soft = forward and record[0] != "parameters" and is_masking(record)
            (soft if is_soft else hard).append(record)
        if hard:
            self._hard(entry, hard, soft)
        elif len(self.soft) < _MOST and self._is_soft_birth(entry, soft):
            self.soft.append((entry, soft))
        if soft:
            self._last_soft[entry.phase] = max(self._last_soft.get(entry.phase, -1), entry.end)

    def _is_soft_birth(self, entry: EntryView, soft: Sequence[RecordView]) -> bool:
        """Return whether its output alone holds -inf, and nothing inside it does."""
        inside = self._last_soft.get(entry.phase, -1) >= entry.seq
        return not inside and {io for io, *_ in soft} == {"output"}

    def _hard(self, entry: EntryView, hard: list[RecordView], soft: list[RecordView]) -> None:
        phase, forward = entry.phase, entry.direction == "forward"
        at = phase, entry.cell
        of_io: dict[str, list[RecordView]] = {}
        for record in hard:
            of_io.setdefault(record[0], []).append(record)
        self.reached[phase] += len(hard)
        self.is_float16 |= any(leaf.get("dtype") == "Float16" for *_, leaf in hard)
        given = [record for record in soft if record[0] == "input"]
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
            self._keep(Event(OUTPUT, entry.end, entry, of_io["output"], soft=given))
        if forward:
            self._bad_calls.add((phase, entry.cell, entry.call))
        self._last[phase] = max(self._last.get(phase, -1), entry.end)

    def add_data(self, datum: KeyDatum) -> None:
        """Take key data that may not be finite."""
        records = [
            ("data", record.path, leaf)
            for record in datum.records
            if record.leaf.why is None
            and not may_be_mask(record.name)
            and non_finite(leaf := _leaf_of(record)) is not None
        ]
        if records:
            self.reached[datum.key] += len(records)
            at = place_of(datum)
            time = math.inf if at.seq is None else at.seq
            self.hard.append(Event(DATA, time, None, records, datum))

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
        return sorted(self.hard, key=lambda event: (event.time, event.kind != DATA))


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


def is_masking(record: RecordView) -> bool:
    """Return whether all that is not finite in a record is -inf."""
    leaf = record[2]
    found = non_finite(leaf)
    largest = statistic(leaf, "Max")
    return found is not None and not found[0] and largest is not None and largest < math.inf
