"""One pass over a run: steps in order, all ranks of a step together, each journal once.

What is held at once is one journal, and the key data of one step as far as rules ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from types import NoneType
from typing import Any, Protocol

from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.phases import phase_order
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.journal_line import JournalLine, holds_gradients
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record


class Taker(Protocol):
    """Takes what a run's journals hold."""

    def journal(self, content: bytes | None) -> None:
        """Take the journal whose entries come next, as it is on disk; None if there is none."""

    def entry(self, entry: EntryView, raw: bytes | None) -> None:
        """Take an entry, and its line as it is on disk; None where there is no such line."""


_Stacks = dict[int | None, tuple[str, ...]]
#: The types of the fields of nearly every line, in the order of `_usual`.
_USUAL = {
    (str, int, end, parent, int, NoneType, stack, NoneType)
    for end in (int, NoneType)
    for parent in (str, NoneType)
    for stack in (int, NoneType)
}
_usual = itemgetter("entry", "seq", "end", "parent", "opening")


class Entries:
    """A taker of entries alone, by a function of the entry and its line."""

    def __init__(self, take: Callable[[EntryView, bytes | None], None]) -> None:
        self.entry = take

    def journal(self, content: bytes | None) -> None:
        """Take a journal: nothing is asked of it as a whole."""


def walk(run: Run, taker: Taker) -> Iterator[Step]:
    """Yield the steps of a run in order, each after its entries were given to `taker`.

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
                _give(run, phase, number, rank, taker)
        yield step


def _give(run: Run, phase: str, step: int, rank: int, taker: Taker) -> None:
    content = None if run.times_are_lost(step, rank) else run.journal(phase, step, rank)
    raw_lines = [] if content is None else content.split(b"\n")[:-1]
    contents = None if content is None else _read(raw_lines)
    stacks: _Stacks = {}
    if contents is None:  # damaged, cut off, or another tool's
        taker.journal(None)
        for entry in run.entries(phase, step, rank):
            taker.entry(EntryView.of_line(_line_of(entry), phase, step, rank), None)
        return
    taker.journal(content)
    for raw, line in zip(raw_lines, contents):
        if "frames" in line:
            stacks[line.get("stack")] = tuple(line["frames"] or ())
        taker.entry(EntryView(line, phase, step, rank, stacks), raw)


def read_again(run: Run, phase: str, step: int, rank: int) -> list[EntryView]:
    """Return the entries of one journal, for what a finding needs to be explained."""
    found: list[EntryView] = []

    if phase in run.phases_at(step, rank):
        _give(run, phase, step, rank, Entries(lambda entry, raw: found.append(entry)))
    return found


def _read(raw_lines: list[bytes]) -> list[dict[str, Any]] | None:
    """Return the lines of a journal; None if one is damaged, which `Run.entries` knows to say."""
    names: set[str] = set()
    contents = []
    try:
        for raw in raw_lines:
            content = loads(raw)
            if not _is_usual(content):
                JournalLine.from_json(content)  # says whether it is a line
            names.add(content["entry"])
            contents.append(content)
    except (ValueError, RecursionError):
        return None
    return contents if len(names) == len(contents) else None


def _is_usual(content: Any) -> bool:
    """Tell whether a line is a good one, as nearly all are, at a fraction of the full check."""
    try:
        entry, seq, end, parent, opening = _usual(content)
    except (KeyError, TypeError):
        return False
    get = content.get
    rest = type(get("token")), type(get("stack")), type(get("frames"))
    types = (type(entry), type(seq), type(end), type(parent), type(opening), *rest)
    good = types in _USUAL and len(entry) <= bounds.NAME
    return good and 0 <= seq < bounds.PLACE and (end is None or 0 <= end < bounds.PLACE)


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
