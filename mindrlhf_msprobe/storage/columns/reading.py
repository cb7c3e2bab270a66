"""Reads a phase, step and rank of a run into columns: from the copy, the journal, or entries."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.columns.copies import copied_columns
from mindrlhf_msprobe.storage.columns.journals import JournalColumns, columns_of_journal
from mindrlhf_msprobe.storage.columns.layouts import Layouts
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry


def columns_of(
    run: Run, at: LayerPlace, layouts: Layouts | None = None, marks: tuple[bytes, ...] = ()
) -> Columns:
    """Read one place, whichever tool wrote it; what cannot be read is in `run.problems` then.

    Args:
        layouts: those of the places before, so that what is alike is computed once.
        marks: other entries than those in whose lines one of these texts stands may be left out.
    """
    known = Layouts() if layouts is None else layouts
    found = whole_columns(run, at, known, marks)
    if found is None:  # another tool's, or damaged: reading entries says what is not there
        found = columns_of_entries(run, at, run.entries(*at), known)
    return found


def columns_of_entries(
    run: Run, at: LayerPlace, entries: list[Entry], layouts: Layouts | None = None
) -> Columns:
    """Return entries that were read already, of which there may be no line, as columns."""
    lines = []
    for number, entry in enumerate(entries):
        values: dict[str, dict[str, object]] = {}
        for record in entry.records:
            values.setdefault(record.io, {})[record.path] = record.leaf.to_json()
        line: dict[str, Any] = {"entry": entry.name, "seq": entry.seq, "end": entry.end}
        line |= {"parent": entry.parent, "opening": entry.opening, "token": entry.token}
        line |= {"stack": number, "frames": list(entry.stack), "cell": entry.around}
        lines.append({**values, **line})
    known = Layouts() if layouts is None else layouts
    return JournalColumns(at, lines, known, run.path, objects=entries)


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
    if run.times_are_lost(at.step, at.rank):
        return None
    if found := copied_columns(run, at, layouts):
        return found
    content = run.journal(at)
    if content is None:
        return None
    return columns_of_journal(content, run.path, at, layouts, marks, like)
