"""One step of one rank as events in causal order.

An entry makes two events: it begins (its inputs and parameters are known) and it ends (its output
is known); what ran inside it lies between. Key data stand where they belong in the step, whenever
they were saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindrlhf_msprobe.phases import (
    PHASES,
    UPDATE_PHASES,
    key_data_home,
    key_order,
    phase_order,
)
from mindrlhf_msprobe.storage.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry

BEGIN = "begin"
END = "end"
DATA = "data"

_STEP_START = -math.inf
_STEP_END = math.inf


@dataclass(frozen=True)
class EventKey:
    """What identifies an event in both runs.

    Attributes:
        kind: begin or end of an entry, or data.
        phase: of the entry; for key data the phase whose result they are, or None.
        name: the entry's name, or the key.
        micro_step: of key data, else 0.
    """

    kind: str
    phase: str | None
    name: str
    micro_step: int = 0


def order_of(entries: Sequence[Entry], key_data: Sequence[KeyDatum]) -> list[EventKey]:
    """Return the events of one step of one rank of one run, in causal order."""
    placed: list[tuple[tuple[float, ...], EventKey]] = []
    for entry in entries:
        begin = EventKey(BEGIN, entry.phase, entry.name)
        placed.append(((entry.seq, 0.0), begin))
        if entry.end is not None:
            placed.append(((entry.end, 0.0), EventKey(END, entry.phase, entry.name)))
    spans = _Spans(entries)
    saves: dict[str, list[KeyDatum]] = {}
    for datum in key_data:
        saves.setdefault(datum.key, []).append(datum)
    for key, data in saves.items():
        home = key_data_home(key)
        for index, datum in enumerate(data):
            place = spans.place(datum, index, len(data))
            order = (*place, float(key_order(key)), float(datum.micro_step))
            event = EventKey(DATA, home.phase if home else None, key, datum.micro_step)
            placed.append((order, event))
    placed.sort(key=lambda item: (item[0], item[1].name))
    return [event for _, event in placed]


class _Spans:
    """When each opening of each phase began and ended."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._spans: dict[str, dict[int, list[int]]] = {}
        for entry in entries:
            openings = self._spans.setdefault(entry.phase, {})
            end = entry.seq if entry.end is None else entry.end
            span = openings.setdefault(entry.opening, [entry.seq, end])
            span[0], span[1] = min(span[0], entry.seq), max(span[1], end)

    def place(self, datum: KeyDatum, index: int, saves: int) -> tuple[float, float, float]:
        """Return where the `index`-th of `saves` saves of a key stands: (time, side, phase)."""
        home = key_data_home(datum.key)
        if home is None:
            return (_STEP_END if datum.seq is None else datum.seq), 1.0, 0.0
        if home.before_update:
            begins = [span[0] for p in UPDATE_PHASES for span in self._of(p)]
            if begins:
                return min(begins), -1.0, 0.0
            return self._after_last_before(phase_order(UPDATE_PHASES[0]) - 0.5)
        assert home.phase is not None
        spans = self._of(home.phase)
        if not spans:
            return self._after_last_before(phase_order(home.phase))
        if len(spans) == saves:
            return spans[index][1], 1.0, 0.0
        ended = [end for _, end in spans if datum.seq is not None and end < datum.seq]
        return (ended[-1] if ended else spans[-1][1]), 1.0, 0.0

    def _of(self, phase: str) -> list[list[int]]:
        return sorted(self._spans.get(phase, {}).values())

    def _after_last_before(self, order: float) -> tuple[float, float, float]:
        """Place what a phase that was not recorded gave: after the phase that comes before it."""
        for phase in reversed(PHASES):
            if phase_order(phase.name) < order and self._of(phase.name):
                return self._of(phase.name)[-1][1], 2.0, order
        return _STEP_START, 2.0, order


def merge(a: Sequence[EventKey], b: Sequence[EventKey]) -> list[EventKey]:
    """Return the events of both runs: A's order; what only B has follows what precedes it there."""
    position = {event: index for index, event in enumerate(a)}
    order = [((index, -1), event) for index, event in enumerate(a)]
    last = -1
    for index, event in enumerate(b):
        if event in position:
            last = position[event]
        else:
            order.append(((last, index), event))
    return [event for _, event in sorted(order, key=lambda item: item[0])]
