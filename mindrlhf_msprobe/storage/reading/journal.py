"""The journal of a phase, read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.journal_line import JournalLine


@dataclass
class JournalContent:
    """The readable lines of a journal, in the order in which the entries ended.

    Attributes:
        lines: one an entry, each with its call stack.
        damaged: how many lines cannot be read.
        torn: whether the last line was cut short, as in the journal of a killed process.
    """

    lines: list[JournalLine] = field(default_factory=list)
    damaged: int = 0
    torn: bool = False


def read_journal(root: Path, path: Path) -> JournalContent:
    """Read a journal of the run in `root`; damaged lines are counted and left out.

    Raises:
        OSError, ValueError: the file cannot be read, or leaves the run.
    """
    content = JournalContent()
    stacks: dict[int | None, tuple[str, ...]] = {}
    entries: set[str] = set()
    for raw in _lines(root, path):
        if raw is None:  # where the next one begins is not looked for
            content.damaged += 1
            break
        if not raw.endswith(b"\n"):
            content.torn = True
            break
        if raw == b"\n":
            continue
        try:
            line = JournalLine.read(raw)
            if line.entry in entries:
                raise ValueError("an entry that was recorded already")
        except (ValueError, RecursionError):
            content.damaged += 1
            continue
        if line.frames:
            stacks[line.stack] = line.frames
        else:
            line.frames = stacks.get(line.stack, ())
        entries.add(line.entry)
        content.lines.append(line)
    return content


def _lines(root: Path, path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a journal, each with its end; None for one that is too long."""
    with layout.open_inside(root, path, bounds.JOURNAL) as file:
        while raw := file.readline(bounds.LINE):
            yield raw if len(raw) < bounds.LINE or raw.endswith(b"\n") else None
