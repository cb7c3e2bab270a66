"""The rows of a sheet → XML."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from mindrlhf_msprobe.report.formats.cells import clean, plain
from mindrlhf_msprobe.report.formats.colours import FILLS, PLAIN
from mindrlhf_msprobe.report.formats.sheets import Cell, Percent, Sheet

#: How a cell's value is shown.
SHOWN = AS_IT_IS, WRAPPED, PERCENT, LINK = "", "wrapped", "percent", "link"
#: The number of each style in a workbook, by (colour, how a value is shown).
STYLES = {
    (c, s): i * len(SHOWN) + j for i, c in enumerate(("", *FILLS)) for j, s in enumerate(SHOWN)
}
HEADER_STYLE = len(STYLES)

CHUNK = 256  # rows that are yielded at a time
_MAX_TEXT = 32_767  # characters in a cell
_MAX_EXACT = 2**53  # Excel rounds larger numbers
_LONG_TEXT = 2_048  # is not kept for the next cell
_LONGEST_LINK = 200  # characters; a formula cannot hold longer texts


def rows_of(sheet: Sheet) -> Iterator[bytes]:
    """Yield the header and the rows as XML, some at a time."""
    header = _starts([HEADER_STYLE] * len(sheet.header))
    cells = "".join(f"{start}1{style}{_text(t)}" for (start, style), t in zip(header, sheet.header))
    parts = [f'<row r="1">{cells}</row>']
    shown = [WRAPPED if i in sheet.wrapped else AS_IT_IS for i in range(len(sheet.header))]
    starts = {c: _starts([STYLES[c, how] for how in shown]) for c in (PLAIN, *FILLS)}
    for number, (colour, values) in enumerate(sheet.rows(), start=2):
        parts.append(_row(number, colour, starts[colour], values))
        if number % CHUNK == 0:
            yield "".join(parts).encode()
            parts.clear()
    yield "".join(parts).encode()


def _row(number: int, colour: str, starts: Sequence[tuple[str, str]], values: Sequence[Any]) -> str:
    cells = [f'<row r="{number}">']
    for (start, style), value in zip(starts, values):
        kind = type(value)
        if kind is float and math.isfinite(value):
            cells.append(f"{start}{number}{style}><v>{value!r}</v></c>")
        elif value is None or value == "":
            if colour:
                cells.append(f"{start}{number}{style}/>")
        elif kind is str:
            text = _known_text if len(value) <= _LONG_TEXT else _text
            cells.append(f"{start}{number}{style}{text(value)}")
        elif kind is Cell or kind is Percent:
            cells.append(f"{start}{number}{_special(value, colour)}")
        else:
            cells.append(f"{start}{number}{style}{_other(value)}")
    cells.append("</row>")
    return "".join(cells)


def _starts(styles: Sequence[int]) -> list[tuple[str, str]]:
    """Return, for each column, what stands in a cell's tag before and after the row's number."""
    return [
        (f'<c r="{letters(index)}', f'" s="{style}"' if style else '"')
        for index, style in enumerate(styles, start=1)
    ]


def letters(number: int) -> str:
    """Return what a column is called: A, …, Z, AA, …; the first is number 1."""
    name = ""
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def _special(value: Cell | Percent, colour: str) -> str:
    """Return the rest of a cell that has a style of its own."""
    if isinstance(value, Percent):
        if not math.isfinite(value.share):
            return f'" s="{STYLES[colour, AS_IT_IS]}"{_text(str(value))}'
        return f'" s="{STYLES[colour, PERCENT]}"><v>{value.share!r}</v></c>'
    colour = value.colour or colour
    if not value.link or len(value.link) > _LONGEST_LINK:
        return f'" s="{STYLES[colour, AS_IT_IS]}"{_other(value.value)}'
    number = isinstance(value.value, int)
    shown = value.value if number else _quoted(str(value.value))
    formula = escaped(f"HYPERLINK({_quoted(value.link)},{shown})")
    kind = "" if number else ' t="str"'  # of the result, for readers that compute nothing
    result = escaped(str(value.value))
    return f'" s="{STYLES[colour, LINK]}"{kind}><f>{formula}</f><v>{result}</v></c>'


def _quoted(text: str) -> str:
    """Return a text as formulas hold it."""
    quoted = text[:_LONGEST_LINK].replace('"', '""')
    return f'"{quoted}"'


def _other(value: Any) -> str:
    """Return the rest of a cell of any value: what Excel cannot hold as a number is text."""
    value = plain(value)
    if isinstance(value, bool):
        return f' t="b"><v>{int(value)}</v></c>'
    exact = (isinstance(value, float) and math.isfinite(value)) or (
        isinstance(value, int) and abs(value) <= _MAX_EXACT
    )
    return f"><v>{value!r}</v></c>" if exact else _text(str(value))


def escaped(text: str) -> str:
    """Return a text as XML holds it, as much as a cell can hold."""
    text = clean(text[:_MAX_TEXT])
    if "&" in text or "<" in text or ">" in text or "\r" in text:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        text = text.replace("\r", "&#13;")
    return text


def _text(text: str) -> str:
    """Return the rest of a cell that holds text; never a formula, whatever it begins with."""
    space = ' xml:space="preserve"' if text != text.strip() or "\n" in text else ""
    return f' t="inlineStr"><is><t{space}>{escaped(text)}</t></is></c>'


#: The same for texts that may well come again.
_known_text = lru_cache(maxsize=4_096)(_text)
