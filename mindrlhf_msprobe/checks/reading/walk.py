"""One pass over a run: steps in order, all ranks of a step together, each journal once.

What is held at once is one journal, and the key data of one step as far as rules ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.phases import phase_order
from mindrlhf_msprobe.storage.journal_line import JournalLine, holds_gradients
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

#: Takes an entry, and its line as it is on disk; None where there is no such line.
OnEntry = Callable[[EntryView, bytes | None], None]

_Stacks = dict[int | None, tuple[str, ...]]


def walk(run: Run, on_entry: OnEntry) -> Iterator[Step]:
    """Yield the steps of a run in order, each after its entries were given to `on_entry`.

    Of each rank in turn the phases as a step usually runs them, of each phase the entries as they
    ended. What cannot be read is in `run.problems` afterwards.
    """
    places: dict[int, list[int]] = {}
    for at_step, rank in sorted(run.places):
        places.setdefault(at_step, []).append(rank)
    last = max(places, default=None)
    for number, ranks in places.items():
        step = Step(run, number, ranks, last=number == last)
        for rank in ranks:
            for phase in sorted(step.phases(rank), key=lambda name: (phase_order(name), name)):
                _give(run, phase, number, rank, on_entry)
        yield step


def _give(run: Run, phase: str, step: int, rank: int, on_entry: OnEntry) -> None:
    raw_lines = None if run.times_are_lost(step, rank) else run.journal_lines(phase, step, rank)
    lines = None if raw_lines is None else _read(raw_lines)
    stacks: _Stacks = {}
    if raw_lines is None or lines is None:  # damaged, cut off, or another tool's
        for entry in run.entries(phase, step, rank):
            on_entry(EntryView(_line_of(entry), phase, step, rank, stacks), None)
        return
    for raw, line in zip(raw_lines, lines):
        if line.frames:
            stacks[line.stack] = line.frames
        on_entry(EntryView(line, phase, step, rank, stacks), raw)


def _read(raw_lines: list[bytes]) -> list[JournalLine] | None:
    """Return the lines of a journal; None if one is damaged, which `Run.entries` knows to say."""
    try:
        lines = [JournalLine.from_json(loads(raw)) for raw in raw_lines]
    except (ValueError, RecursionError):
        return None
    return lines if len({line.entry for line in lines}) == len(lines) else None


def _line_of(entry: Entry) -> JournalLine:
    """Return an entry of which there is no readable line as one."""
    line = JournalLine(entry.name, entry.seq, entry.end, entry.parent, entry.opening, entry.token)
    line.frames = entry.stack
    values: dict[str, dict[str, object]] = {}
    for record in entry.records:
        values.setdefault(record.io, {})[record.path] = _leaf_json(record)
    line.values = values.get(PARAMETERS_GRAD, {}) if holds_gradients(entry.name) else values
    if PARAMETERS_GRAD in values:
        line.values = {PARAMETERS_GRAD: line.values}
    return line


def _leaf_json(record: Record) -> dict[str, object]:
    return record.leaf.to_json()
