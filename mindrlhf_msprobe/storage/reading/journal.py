"""The journal of a phase, read back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.journal_line import JournalLine

_NAMED = re.compile(rb'\{"entry": "([^"\\]+)"')


@dataclass
class JournalContent:
    """The readable lines of a journal, in the order in which the entries ended.

    Attributes:
        lines: one an entry, each with its call stack.
        damaged: the lines that cannot be read: number, from 1 on, → entry, "" if that is lost, too.
        torn: the last line in the same way where it was cut short, as in the journal of a killed
            process.
    """

    lines: list[JournalLine] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    torn: dict[int, str] = field(default_factory=dict)


def read_journal(root: Path, path: Path) -> JournalContent:
    """Read a journal of the run in `root`; damaged lines are listed and left out.

    Raises:
        OSError, ValueError: the file cannot be read, or leaves the run.
    """
    content = JournalContent()
    stacks: dict[int | None, tuple[str, ...]] = {}
    entries: set[str] = set()
    for number, raw in enumerate(_lines(root, path), 1):
        if raw is None:  # where the next one begins is not looked for
            content.damaged[number] = ""
            break
        if not raw.endswith(b"\n"):
            content.torn[number] = _entry_in(raw)
            break
        if raw == b"\n":
            continue
        try:
            line = JournalLine.read(raw)
            if line.entry in entries:
                raise ValueError(line.entry)
        except (ValueError, RecursionError):
            content.damaged[number] = _entry_in(raw)
            continue
        if line.frames:
            stacks[line.stack] = line.frames
        else:
            line.frames = stacks.get(line.stack, ())
        entries.add(line.entry)
        content.lines.append(line)
    return content


def _entry_in(raw: bytes) -> str:
    """Return the entry that a line names at its begin; "" where that is damaged as well."""
    name = _NAMED.match(raw[: bounds.NAME])
    return "" if name is None else name[1].decode("utf-8", errors="replace")


def _lines(root: Path, path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a journal, each with its end; None for one that is too long."""
    with layout.open_inside(root, path, bounds.JOURNAL) as file:
        while raw := file.readline(bounds.LINE):
            yield raw if len(raw) < bounds.LINE or raw.endswith(b"\n") else None
