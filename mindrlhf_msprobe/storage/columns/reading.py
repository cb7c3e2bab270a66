"""Reads a phase, step and rank of a run into columns: from the copy, the journal, or entries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.columns.columns import HEADS, Columns, Heads, Values
from mindrlhf_msprobe.storage.columns.layouts import Layouts, Structure
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson
from mindrlhf_msprobe.storage.journal_line import (
    HEAD,
    JournalLine,
    argument_of,
    read_lines,
    stacks_of,
)
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run, entry_of
from mindrlhf_msprobe.storage.records import Entry, Locator


class JournalColumns(Columns):
    """The records of a whole journal.

    Args:
        lines: the entries as JSON.
        run: its directory.
        raw: the lines as they are on disk.
        like: other columns of which the names and the values are the same.
        locator: returns what finds the files that the entries of a place name; None: nobody wants
            their records.
    """

    def __init__(
        self,
        at: LayerPlace,
        lines: list[dict[str, Any]],
        layouts: Layouts,
        run: Path,
        raw: list[bytes],
        like: Columns | None = None,
        locator: Callable[[LayerPlace], Locator] | None = None,
    ) -> None:
        self.lines, self._raw, self._locator = lines, raw, locator
        cells = [cell if type(cell := line.get("cell")) is str else None for line in lines]
        said = ([line.get(name) for line in lines] for name in HEADS[:-1])
        self.heads = Heads._make([*said, cells])
        if like is not None:
            super().__init__(at, like.layout, like.values)
            return
        leaves: list[LeafJson] = []
        structures = [layouts.structure(line, leaves) for line in lines]
        names: list[str] = [line["entry"] for line in lines]
        values = Values(leaves)
        if not values.are_whole:
            raise ValueError(at)
        known = layouts.layout(at.phase, (run, at.rank), names, structures)
        super().__init__(at, known, values)

    def argument(self, number: int, io: str, path: str) -> str:
        """See `Columns.argument`."""
        names = self.lines[number].get("input_names")
        return argument_of(names if type(names) is list else (), io, path)

    def frames(self, number: int) -> tuple[str, ...]:
        """See `Columns.frames`."""
        return self._stacks.get(self.lines[number].get("stack"), ())

    @cached_property
    def _stacks(self) -> dict[int | None, tuple[str, ...]]:
        return stacks_of(self.lines)

    @cached_property
    def _tails(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Of each line what stands behind its head: the values, as they are on disk and as JSON."""
        tails = []
        for line, raw in zip(self.lines, self._raw):
            names = [*line]
            first = next((n for n, name in enumerate(names) if name not in HEAD), len(names))
            begin = -1
            if first < len(names):
                # In a text a quotation mark has a backslash before it: this is the member's name.
                begin = raw.find(b', "%s": ' % names[first].encode(errors="replace"))
            values = {name: line[name] for name in names[first:]}
            tails.append((raw[begin:] if begin > 0 else raw[-1:], values))
        return tails

    def lines_of(self, raw: list[bytes]) -> list[dict[str, Any]] | None:
        """Return the lines of another journal without reading values that are the same bytes.

        None where some are not, or one is damaged: then the journal has to be read.
        """
        if len(self._raw) != len(raw):
            return None
        heads = []
        for other, (tail, _) in zip(raw, self._tails):
            if not other.endswith(tail):
                return None
            heads.append(other[: -len(tail)] + b"}")
        found = read_lines(heads).lines
        if [head["entry"] for head in found] != self.layout.names:
            return None
        if not all(head.keys() <= HEAD for head in found):
            return None
        return [head | values for head, (_, values) in zip(found, self._tails)]

    def marked(self, marks: tuple[bytes, ...]) -> list[int]:
        """See `Columns.marked`."""
        return [n for n, line in enumerate(self._raw) if any(mark in line for mark in marks)]

    def made(self, number: int) -> Entry:
        """See `Columns.made`."""
        (line,) = read_lines([self._raw[number]], json.loads).lines  # whole numbers of any size
        return entry_of(JournalLine.from_json(line, self._stacks), self._files, self.at)

    @cached_property
    def _files(self) -> Locator:
        assert self._locator is not None
        return self._locator(self.at)


class EntryColumns(Columns):
    """The records of a place without a whole journal: another tool's, or what is left of one."""

    objects: list[Entry]

    def __init__(self, run: Run, at: LayerPlace, layouts: Layouts) -> None:
        self.objects = entries = run.entries(*at)
        places = (tuple((r.io, r.path) for r in entry.records) for entry in entries)
        structures = [Structure(of, whole=False) for of in places]
        names = [entry.name for entry in entries]
        self.heads = Heads(*([getattr(entry, head) for entry in entries] for head in HEADS))
        super().__init__(
            at,
            layouts.layout(at.phase, (run.path, at.rank), names, structures),
            Values([record.leaf.to_json() for entry in entries for record in entry.records]),
        )

    def frames(self, number: int) -> tuple[str, ...]:
        """See `Columns.frames`."""
        return self.objects[number].stack

    def argument(self, number: int, io: str, path: str) -> str:
        """See `Columns.argument`."""
        return self.objects[number].argument(io, path)

    def marked(self, marks: tuple[bytes, ...]) -> list[int]:
        """See `Columns.marked`."""
        return [*range(len(self))]

    def made(self, number: int) -> Entry:
        """See `Columns.made`."""
        return self.objects[number]


def columns_of_journal(
    content: bytes,
    root: Path,
    at: LayerPlace,
    layouts: Layouts,
    marks: tuple[bytes, ...] = (),
    like: Columns | None = None,
    locator: Callable[[LayerPlace], Locator] | None = None,
) -> JournalColumns | None:
    """Return the columns of a journal; None where a line is damaged.

    Args:
        root: the run's directory.
        locator: see `JournalColumns`.
    """
    raw = content.split(b"\n")[:-1]
    if marks:
        raw = [line for line in raw if any(mark in line for mark in marks)]
    try:
        same = like.lines_of(raw) if isinstance(like, JournalColumns) else None
        if same is not None:
            return JournalColumns(at, same, layouts, root, raw, like, locator)
        found = read_lines(raw)
        if found.damaged or len(found.lines) < len(raw):
            return None
        return JournalColumns(at, found.lines, layouts, root, raw, locator=locator)
    except ValueError:
        return None


def columns_of(
    run: Run, at: LayerPlace, layouts: Layouts | None = None, marks: tuple[bytes, ...] = ()
) -> Columns:
    """Read one place, whichever tool wrote it; what cannot be read is in `run.problems` then.

    Args:
        layouts: those of the places before, so that what they share is computed once.
        marks: other entries than those in whose lines one of these texts stands may be left out.
    """
    known = Layouts() if layouts is None else layouts
    found = whole_columns(run, at, known, marks)
    # Of another tool, or damaged: reading entries says what is not there.
    return EntryColumns(run, at, known) if found is None else found


def whole_columns(
    run: Run,
    at: LayerPlace,
    layouts: Layouts,
    marks: tuple[bytes, ...] = (),
    like: Columns | None = None,
) -> Columns | None:
    """Read one place of which there is a whole journal of this package; None of any other.

    Args:
        like: the same place of another run, most of which may be the same.
    """
    if run.times_are_lost(at):
        return None

    def of_journal(
        marks: tuple[bytes, ...] = (), like: Columns | None = None
    ) -> JournalColumns | None:
        content = run.journal(at)
        if content is None:
            return None
        return columns_of_journal(content, run.path, at, layouts, marks, like, run.locator)

    if at.rank in run.copies or os.path.lexists(run.path / layout.columns_name(at.rank)):
        from mindrlhf_msprobe.storage.columns.copies import copied_columns

        if found := copied_columns(run, at, layouts, of_journal):
            return found
    return of_journal(marks, like)
