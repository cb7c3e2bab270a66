"""The lines of call stacks: which of them is the user's, and what stands there.

With it the user's code behind the entries of a run, as far as it is at hand (`FoundCode`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.operators import Attributes, is_operator
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

_FRAME = re.compile(
    r"File (?P<file>.+?), line (?P<line>[0-9]{1,9})(?:, in (?P<function>[^\n]*?))?,?\s*"
    r"(?:\n\s*(?P<text>.*?)\s*)?",
    re.DOTALL,
)
#: Packages that lie between an operator and the code that calls it, where they are installed.
_BETWEEN = re.compile(r"(?:site|dist)-packages[/\\](?:mindspore|msprobe|torch|torch_npu)[/\\]")


@dataclass(frozen=True)
class CodeLine:
    """One frame of a call stack.

    Attributes:
        function: in which it stands; "" if not known.
        text: the line itself; "" if not known.
    """

    file: str
    line: int
    function: str = ""
    text: str = ""

    @property
    def place(self) -> str:
        """The file's own name and the line, e.g. `attention.py:88`."""
        return f"{os.path.basename(self.file.replace(chr(92), '/'))}:{self.line}"

    @property
    def key(self) -> tuple[object, ...]:
        """What it has in common with the same line of an edited file, or of one at another path."""
        name = self.place.rpartition(":")[0]
        return name, self.function, self.text or self.line


@lru_cache(maxsize=1 << 16)
def code_line(frame: str) -> CodeLine | None:
    """Return what a frame says, ours or msprobe's; None if it is none."""
    match = _FRAME.fullmatch(frame.strip())
    if match is None:
        return None
    return CodeLine(match["file"], int(match["line"]), match["function"] or "", match["text"] or "")


def is_users(frame: str) -> bool:
    """Return whether a frame is not one of the framework's, or of what records."""
    return not _BETWEEN.search(frame.partition(", line ")[0])


def users_frame(stack: Iterable[str]) -> str | None:
    """Return the innermost frame of a stack that is not the framework's; None of an empty one.

    Our own stacks hold no other. Where there is nothing else, it is the innermost.
    """
    frames = tuple(stack)
    return next(filter(is_users, frames), frames[0] if frames else None)


def users_line(stack: Iterable[str]) -> CodeLine | None:
    """Return the line of the user's code of a stack; None where it is not known."""
    frame = users_frame(stack)
    return None if frame is None else code_line(frame)


_AROUND = 4  # lines before and after


@dataclass(frozen=True)
class FoundCode:
    """Where an entry was called; in a compiled graph, where the construct of its cell stands.

    Attributes:
        entry: its name.
        steps, ranks, phases: where it was called so.
        cell: of an operator, the cell around it: "" outside every cell; None for a cell, and if
            not known.
        attributes: of a primitive, what it was made with; None for all else, and if not known.
        callers: the line that called it, and those that called that, the innermost first.
        source: number → text of lines around the first of them; {} where they are not at hand.
        why: why they are not, or None.
    """

    entry: str
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    cell: str | None
    attributes: Attributes | None
    callers: tuple[CodeLine, ...]
    source: dict[int, str]
    why: Message | None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "entry": self.entry,
            "steps": list(self.steps),
            "ranks": list(self.ranks),
            "phases": list(self.phases),
            "cell": self.cell,
            "attributes": None if self.attributes is None else dict(self.attributes),
            "callers": [
                {"file": c.file, "line": c.line, "function": c.function, "text": c.text}
                for c in self.callers
            ],
            "source": {str(number): text for number, text in self.source.items()},
            "why": None if self.why is None else str(self.why),
        }


def find_code(
    run: Run, name: str, step: int | None = None, rank: int | None = None
) -> list[FoundCode]:
    """Return where the entry `name`, or that of the record `name`, was called; [] if none is so.

    A backward entry has no call of its own in the user's code: that of its forward entry counts; of
    gradients of parameters, which need not be of one call, the first call of their cell.
    """
    entries = run.entries(step=step, rank=rank)
    wanted = [e for e in entries if e.name == name or any(r.name == name for r in e.records)]
    forward = {_forward_of(entry.name) for entry in wanted if not entry.stack}
    called = {(e.name, e.phase, e.step, e.rank): e for e in entries if e.name in forward}
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    attributes: dict[tuple[Any, ...], Attributes | None] = {}
    for entry in wanted:
        stack, around, known = entry.stack, entry.around, entry.attributes
        if not stack:
            at = _forward_of(entry.name), entry.phase, entry.step, entry.rank
            if (other := called.get(at)) is not None:
                stack, known = other.stack, other.attributes if known is None else known
                around = other.around if around is None else around
        group = entry.name, around, repr(known), stack
        groups.setdefault(group, []).append(entry)
        attributes[group] = known
    found = []
    for group, held in groups.items():
        of_entry, around, _, stack = group
        own = [frame for frame in stack if is_users(frame)] or stack[:1]
        lines = tuple(line for frame in own if (line := code_line(frame)) is not None)
        source, why = source_of(lines[0]) if lines else ({}, message("listing.code_unknown"))
        steps, ranks = ({one.step for one in held}, {one.rank for one in held})
        found.append(
            FoundCode(
                of_entry,
                tuple(sorted(steps)),
                tuple(sorted(ranks)),
                tuple(dict.fromkeys(one.phase for one in held)),
                around,
                attributes[group],
                lines,
                source,
                why,
            )
        )
    return found


def _forward_of(name: str) -> str:
    if is_operator(name):
        return f"{name.removesuffix('.backward').removesuffix('.forward')}.forward"
    head, gradient, call = name.rpartition(f".{PARAMETERS_GRAD}.")
    if gradient and call.isdigit():
        return f"{head}.forward.0"
    return ".forward.".join(name.rsplit(".backward.", 1))


def source_of(line: CodeLine) -> tuple[dict[int, str], Message | None]:
    """Return the lines around one, number → text, and why they are not at hand, or None.

    A dump of others is data: its path is read only if it is a file of Python that has the
    very line that was recorded.
    """
    path = Path(line.file)
    if not line.text or not path.is_absolute() or path.suffix != ".py":
        return {}, message("listing.code_missing", file=line.file)
    try:
        content = layout.read_inside(Path("/"), Path(line.file), 1 << 22)
    except (OSError, ValueError):
        return {}, message("listing.code_missing", file=line.file)
    lines = content.decode("utf-8", errors="replace").splitlines()
    if not (line.line <= len(lines) and lines[line.line - 1].strip() == line.text):
        return {}, message("listing.code_changed", file=line.file, line=line.line)
    first, last = max(1, line.line - _AROUND), min(len(lines), line.line + _AROUND)
    return {number: lines[number - 1] for number in range(first, last + 1)}, None
