"""Sheets → an Excel file, written as text: a library that makes cells needs 15 µs for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from mindrlhf_msprobe.report.cells import clean, plain
from mindrlhf_msprobe.report.colours import FILLS, PLAIN
from mindrlhf_msprobe.report.sheets import Sheet
from mindrlhf_msprobe.report.xlsx_parts import (
    STYLES,
    column_letters,
    common_parts,
    sheet_head,
    sheet_part,
    sheet_tail,
)

_MAX_TEXT = 32_767  # characters in a cell
_MAX_EXACT = 2**53  # Excel rounds larger numbers
_LONG_TEXT = 2_048  # is not kept for the next cell
_MANY_ROWS = 100_000  # may need more than a zip file holds without its extension
_CHUNK = 256  # rows written at a time
_LEVEL = 3  # of compression: half the time of the usual 6, a tenth larger


def write_xlsx(path: Path, sheets: Sequence[Sheet]) -> None:
    """Write the sheets as one workbook.

    Raises:
        OSError: it cannot be written.
    """
    large = any(sheet.count > _MANY_ROWS for sheet in sheets)
    try:
        _write(path, sheets, large=large)
    except RuntimeError:  # larger than it looked
        if large:
            raise
        _write(path, sheets, large=True)


def _write(path: Path, sheets: Sequence[Sheet], *, large: bool) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=_LEVEL) as target:
        for name, content in common_parts(sheets).items():
            target.writestr(name, content)
        for number, sheet in enumerate(sheets, start=1):
            with target.open(sheet_part(number), "w", force_zip64=large) as file:
                file.write(sheet_head(sheet))
                for chunk in _rows(sheet):
                    file.write(chunk)
                file.write(sheet_tail(sheet))


def _rows(sheet: Sheet) -> Iterator[bytes]:
    """Return the rows as XML."""
    cells = {colour: _cell_starts(sheet, colour) for colour in (PLAIN, *FILLS)}
    parts: list[str] = []
    for number, (colour, values) in enumerate(sheet.rows(), start=2):
        parts.append(f'<row r="{number}">')
        for (start, style), value in zip(cells[colour], values):
            kind = type(value)
            if value is None or value == "":
                if colour:
                    parts.append(f"{start}{number}{style}/>")
            elif kind is str:
                text = _known_text if len(value) <= _LONG_TEXT else _text
                parts.append(f"{start}{number}{style}{text(value)}")
            elif (kind is float and math.isfinite(value)) or (
                kind is int and -_MAX_EXACT <= value <= _MAX_EXACT
            ):
                parts.append(f"{start}{number}{style}><v>{value!r}</v></c>")
            else:
                parts.append(f"{start}{number}{style}{_other(value)}")
        parts.append("</row>")
        if number % _CHUNK == 0:
            yield "".join(parts).encode()
            parts.clear()
    yield "".join(parts).encode()


def _cell_starts(sheet: Sheet, colour: str) -> list[tuple[str, str]]:
    """Return, for each column, what stands in a cell's tag before and after the row's number."""
    numbers = [STYLES[colour, index in sheet.wrapped] for index in range(len(sheet.header))]
    return [
        (f'<c r="{column_letters(index)}', f'" s="{number}"' if number else '"')
        for index, number in enumerate(numbers)
    ]


def _other(value: Any) -> str:
    """Return the rest of a cell of any value: what Excel cannot hold as a number is text."""
    value = plain(value)
    if isinstance(value, bool):
        return f' t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int) and abs(value) <= _MAX_EXACT:
        return f"><v>{value}</v></c>"
    if isinstance(value, float) and math.isfinite(value):
        return f"><v>{value!r}</v></c>"
    return _text(str(value))


def _text(text: str) -> str:
    """Return the rest of a cell that holds text; never a formula, whatever it begins with."""
    text = clean(text[:_MAX_TEXT])
    space = ' xml:space="preserve"' if text != text.strip() or "\n" in text else ""
    if "&" in text or "<" in text or ">" in text or "\r" in text:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        text = text.replace("\r", "&#13;")
    return f' t="inlineStr"><is><t{space}>{text}</t></is></c>'


#: The same for texts that may well come again.
_known_text = lru_cache(maxsize=4_096)(_text)
