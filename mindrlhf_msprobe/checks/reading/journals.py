"""One journal, read: its entries as rules see them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from operator import itemgetter
from types import NoneType
from typing import Any

from mindrlhf_msprobe.checks.reading.entries import EntryView
from mindrlhf_msprobe.checks.reading.records import Layout, Layouts, Records
from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.journal_line import JournalLine, holds_gradients
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

#: The types of the fields of nearly every line, in the order of `_usual`.
_USUAL = {
    (str, int, end, parent, int, NoneType, stack, NoneType)
    for end in (int, NoneType)
    for parent in (str, NoneType)
    for stack in (int, NoneType)
}
_usual = itemgetter("entry", "seq", "end", "parent", "opening")


class Journal:
    """The entries of one phase of one step and rank, in the order in which they ended.

    Attributes:
        phase, step, rank: where it is.
        content: it as it is on disk; None where there is none, it is damaged, or another tool's.
        raw_lines: the lines of `content`, as many as there are entries.
    """

    def __init__(
        self, run: Run, phase: str, step: int, rank: int, layouts: Layouts | None = None
    ) -> None:
        at = self.phase, self.step, self.rank = phase, step, rank
        content = None if run.times_are_lost(step, rank) else run.journal(phase, step, rank)
        self.raw_lines = [] if content is None else content.split(b"\n")[:-1]
        lines = None if content is None else _read(self.raw_lines)
        self.content = None if lines is None else content
        self._entries: dict[int, EntryView] = {}
        if lines is None:
            views = [EntryView.from_line(_line_of(one), *at) for one in run.entries(*at)]
            self._entries = dict(enumerate(views))
            lines = [dict(view.content) for view in views]
        self._lines = lines
        self._layouts = Layouts() if layouts is None else layouts
        self._records: dict[tuple[str, ...], Records] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def entry(self, number: int) -> EntryView:
        """Return an entry."""
        found = self._entries.get(number)
        if found is None:
            at = self.phase, self.step, self.rank
            found = self._entries[number] = EntryView(self._lines[number], *at, self._stacks)
        return found

    def entries(self) -> Iterator[EntryView]:
        """Yield the entries."""
        return map(self.entry, range(len(self)))

    @cached_property
    def _stacks(self) -> dict[int | None, tuple[str, ...]]:
        return {
            line.get("stack"): tuple(line["frames"] or ())
            for line in self._lines
            if "frames" in line
        }

    @cached_property
    def times(self) -> list[tuple[int, int | None]]:
        """When each entry began, and when it ended, or None."""
        return [(line["seq"], line.get("end")) for line in self._lines]

    @cached_property
    def parents(self) -> set[str]:
        """The names of the entries that others ran in."""
        return {line["parent"] for line in self._lines if line.get("parent")}

    @cached_property
    def _leaves(self) -> tuple[Layout, list[LeafJson]]:
        leaves: list[LeafJson] = []
        names: list[str] = [line["entry"] for line in self._lines]
        structures = [self._layouts.structure(line, leaves) for line in self._lines]
        return self._layouts.layout(self.phase, self.rank, names, structures), leaves

    @property
    def layout(self) -> Layout:
        """What it has in common with other journals."""
        return self._leaves[0]

    def records(self, *parts: str) -> Records:
        """Return the records of some parts (`output`, `parameters_grad`, …) as columns."""
        if parts not in self._records:
            layout, leaves = self._leaves
            rows = layout.rows(*parts)
            of = [leaves[index] for index in rows.index]
            times = self.times
            at = self.phase, self.step, self.rank
            self._records[parts] = Records(at, rows, of, [times[line] for line in rows.lines])
        return self._records[parts]

    def holds(self, name: str) -> bool:
        """Return whether a record of it has a field of this name that is not None."""
        return any(leaf.get(name) is not None for leaf in self._leaves[1])


def _read(raw_lines: list[bytes]) -> list[dict[str, Any]] | None:
    """Return the lines of a journal; None if one is damaged, which `Run.entries` knows to say."""
    contents = []
    try:
        for raw in raw_lines:
            content = loads(raw)
            if not _is_usual(content):
                JournalLine.from_json(content)  # says whether it is a line
            contents.append(content)
    except (ValueError, RecursionError):
        return None
    names = {content["entry"] for content in contents}
    return contents if len(names) == len(contents) else None


def _is_usual(content: Any) -> bool:
    """Return whether a line is a good one, as nearly all are, at a fraction of the full check."""
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
    line.frames, line.around = entry.stack, entry.around
    line.attributes = entry.attributes
    values: dict[str, dict[str, object]] = {}
    for record in entry.records:
        values.setdefault(record.io, {})[record.path] = record.leaf.to_json()
    line.values = values.get(PARAMETERS_GRAD, {}) if holds_gradients(entry.name) else values
    if PARAMETERS_GRAD in values:
        line.values = {PARAMETERS_GRAD: line.values}
    return line
