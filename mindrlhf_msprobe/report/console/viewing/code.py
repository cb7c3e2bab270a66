"""The user's code behind an entry, as text for the console."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.common.text.numbers import spans
from mindrlhf_msprobe.common.text.printable import printable
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.attributes import in_words
from mindrlhf_msprobe.storage.code_lines import CodeLine
from mindrlhf_msprobe.storage.reading.holdings.code import FoundCode

_CALLERS = 8


def render_code(found: Sequence[FoundCode]) -> str:
    """Return where an entry was called, with the lines around where they are at hand."""
    lines: list[str] = []
    for one in found:
        lines += _place(one)
        lines += [f"  {line}" for line in _attributes(one)]
        lines += _source(one)
        callers = one.callers[1 : _CALLERS + 1]
        lines += [f"  {say('listing.code_caller', line=_in_words(line))}" for line in callers]
    return "\n".join(map(printable, lines))


def called_from(found: Sequence[FoundCode]) -> list[str]:
    """Return where an entry was called, in one line for each of the places."""
    lines = []
    for one in found:
        if one.callers:
            line = say("listing.code_called", line=_in_words(one.callers[0]), cell=one.cell)
            lines.append(printable(line))
        elif one.cell is not None:
            lines.append(printable(say("listing.code_inside", cell=one.cell)))
        lines += map(printable, _attributes(one))
    return list(dict.fromkeys(lines))


def _attributes(one: FoundCode) -> list[str]:
    if not one.attributes:
        return []
    given = ", ".join(f"{name}={in_words(value)}" for name, value in one.attributes.items())
    return [say("listing.attributes", attributes=given)]


def _place(one: FoundCode) -> list[str]:
    where = say(
        "listing.code_of",
        entry=one.entry,
        cell=one.cell,
        phases=", ".join(one.phases),
        steps=spans(list(one.steps)),
        ranks=spans(list(one.ranks)),
    )
    return [where, *(f"  {_in_words(line, text=False)}" for line in one.callers[:1])]


def _source(one: FoundCode) -> list[str]:
    lines = []
    width = len(str(max(one.source, default=0)))
    for number, text in one.source.items():
        mark = ">" if number == one.callers[0].line else " "
        lines.append(f"  {mark} {number:>{width}}  {text.expandtabs(4)}".rstrip())
    if not one.source and one.callers and one.callers[0].text:
        lines.append(f"  > {one.callers[0].line}  {one.callers[0].text}")
    if one.why is not None:
        lines.append(f"  {one.why}")
    return lines


def _in_words(line: CodeLine, *, text: bool = True) -> str:
    """Return a line of code as one line: `net.py:42 in construct: h = f(h)`."""
    shown = f"{line.file}:{line.line}"
    if line.function:
        shown = say("listing.code_in", place=shown, function=line.function)
    return f"{shown}: {line.text}" if text and line.text else shown
