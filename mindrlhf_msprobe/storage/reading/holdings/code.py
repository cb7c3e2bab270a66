"""The user's code behind the entries of a run, as far as it is at hand."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.attributes import Attributes
from mindrlhf_msprobe.storage.code_lines import CodeLine, code_line, is_users
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

_AROUND = 4  # lines before and after
_LARGEST = 1 << 22  # bytes of a file of code


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
    return [_found(held, group[1], attributes[group], group[3]) for group, held in groups.items()]


def _forward_of(name: str) -> str:
    if is_operator(name):
        return f"{name.removesuffix('.backward').removesuffix('.forward')}.forward"
    head, gradient, call = name.rpartition(f".{PARAMETERS_GRAD}.")
    if gradient and call.isdigit():
        return f"{head}.forward.0"
    return ".forward.".join(name.rsplit(".backward.", 1))


def _found(
    entries: Iterable[Entry],
    around: str | None,
    attributes: Attributes | None,
    stack: tuple[str, ...],
) -> FoundCode:
    held = list(entries)
    lines = tuple(_users_lines(stack))
    source: dict[int, str] = {}
    why: Message | None = message("listing.code_unknown")
    if lines:
        source, why = source_of(lines[0])
    return FoundCode(
        held[0].name,
        tuple(sorted({entry.step for entry in held})),
        tuple(sorted({entry.rank for entry in held})),
        tuple(dict.fromkeys(entry.phase for entry in held)),
        around,
        attributes,
        lines,
        source,
        why,
    )


def _users_lines(stack: tuple[str, ...]) -> Iterator[CodeLine]:
    """Yield the frames of the user's code; where there is none, the innermost of all."""
    own = [frame for frame in stack if is_users(frame)] or list(stack[:1])
    yield from (line for frame in own if (line := code_line(frame)) is not None)


def source_of(line: CodeLine) -> tuple[dict[int, str], Message | None]:
    """Return the lines around one, number → text, and why they are not at hand, or None.

    A dump from elsewhere is data: its path is read only if it is a file of Python that has the
    very line that was recorded.
    """
    path = PurePath(line.file)
    if not line.text or not path.is_absolute() or path.suffix != ".py":
        return {}, message("listing.code_missing", file=line.file)
    lines = _lines_of(line.file)
    if lines is None:
        return {}, message("listing.code_missing", file=line.file)
    if not (line.line <= len(lines) and lines[line.line - 1].strip() == line.text):
        return {}, message("listing.code_changed", file=line.file, line=line.line)
    first, last = max(1, line.line - _AROUND), min(len(lines), line.line + _AROUND)
    return {number: lines[number - 1] for number in range(first, last + 1)}, None


def _lines_of(file: str) -> list[str] | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return None
        with open(descriptor, "rb", closefd=False) as opened:
            content = opened.read(_LARGEST)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content.decode("utf-8", errors="replace").splitlines()
