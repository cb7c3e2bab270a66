"""Sheets → an Excel file.

openpyxl needs 15 µs a cell, which made the tables the largest cost of a comparison. So it makes
the blank workbook (blank.py); the rows are put into it as text.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mindrlhf_msprobe.report.formats.blank import blank
from mindrlhf_msprobe.report.formats.cells import clean, plain
from mindrlhf_msprobe.report.formats.outline import (
    AS_IT_IS,
    FILLS,
    LAST_ROW,
    LINK,
    PERCENT,
    PLAIN,
    WRAPPED,
    Blank,
    Outline,
    Styles,
)
from mindrlhf_msprobe.report.formats.sheets import Cell, Percent, Sheet

_MAX_TEXT = 32_767  # characters in a cell
_MAX_EXACT = 2**53  # Excel rounds larger numbers
_LONG_TEXT = 2_048  # is not kept for the next cell
_MANY_ROWS = 100_000  # may need more than a zip file holds without its extension
_CHUNK = 256  # rows written at a time
_MOST_WAITING = 4  # chunks that wait to be compressed
#: When openpyxl made a workbook, as it notes it.
_TIMES = re.compile(rb"<dcterms:(created|modified)[^>]*>[^<]*</dcterms:\1>")
_LEVEL = 3  # of compression: half the time of the usual 6, a tenth larger

_LONGEST_LINK = 200  # characters; a formula cannot hold longer texts
#: Where a blank workbook says in which row the filter of a sheet ends.
_FILTER_END = re.compile(rb'localSheetId="(\d+)"([^>]*>[^<]*\$)%d<' % LAST_ROW)


def outlines_of(sheets: Sequence[Sheet]) -> tuple[Outline, ...]:
    """Return what the blank workbook of these sheets is made from."""
    return tuple(
        Outline(s.name, tuple(s.header), tuple(s.widths), s.filtered, s.frozen) for s in sheets
    )


def write_xlsx(path: Path, sheets: Sequence[Sheet]) -> None:
    """Write the sheets as one workbook.

    Raises:
        OSError: it cannot be written.
    """
    empty = blank(outlines_of(sheets))
    large = any(sheet.count > _MANY_ROWS for sheet in sheets)
    try:
        _fill(path, empty, sheets, large=large)
    except RuntimeError:  # larger than it looked
        if large:
            raise
        _fill(path, empty, sheets, large=True)


def _fill(path: Path, empty: Blank, sheets: Sequence[Sheet], *, large: bool) -> None:
    """Write the workbook with the rows in it."""
    places = {f"xl/worksheets/sheet{i}.xml": sheet for i, sheet in enumerate(sheets, start=1)}
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=_LEVEL) as target:
        for name, content in empty.files.items():
            sheet = places.pop(name, None)
            member = _member(name)
            if sheet is None:
                target.writestr(member, _of_these(sheets, _TIMES.sub(b"", content)))
                continue
            head, end, tail = content.rpartition(b"</sheetData>")
            assert end, "openpyxl wrote a sheet without its header"
            tail = end + tail.replace(b'%d"' % LAST_ROW, b'%d"' % (sheet.count + 1))
            rows = _rows(sheet, empty.styles)
            if sheet.count < _CHUNK:  # not worth a thread
                target.writestr(member, b"".join((head, *rows, tail)))
                continue
            with target.open(member, "w", force_zip64=large) as file, _beside(file) as write:
                write(head)
                for chunk in rows:
                    write(chunk)
                write(tail)
    assert not places, f"openpyxl did not write {', '.join(places)}"


def _of_these(sheets: Sequence[Sheet], content: bytes) -> bytes:
    """Return a file of the blank workbook with the filters as long as the sheets are."""

    def end(found: re.Match[bytes]) -> bytes:
        number, between = found.groups()
        return b'localSheetId="%b"%b%d<' % (number, between, sheets[int(number)].count + 1)

    return _FILTER_END.sub(end, content)


def _member(name: str) -> ZipInfo:
    """Return a file of the workbook, of no time: the same rows are the same bytes."""
    member = ZipInfo(name)
    member.compress_type = ZIP_DEFLATED
    member.external_attr = 0o600 << 16
    level = "compress_level" if hasattr(member, "compress_level") else "_compresslevel"
    setattr(member, level, _LEVEL)
    return member


@contextlib.contextmanager
def _beside(file: IO[bytes]) -> Iterator[Callable[[bytes], object]]:
    """Yield what writes into a file in a thread: compressing leaves Python to the next rows.

    Raises:
        OSError, RuntimeError: what writing raised.
    """
    chunks: SimpleQueue[bytes | None] = SimpleQueue()
    room = threading.Semaphore(_MOST_WAITING)
    raised: list[BaseException] = []

    def work() -> None:
        while (chunk := chunks.get()) is not None:
            try:
                if not raised:
                    file.write(chunk)
            except BaseException as error:
                raised.append(error)
            finally:
                room.release()

    def write(chunk: bytes) -> None:
        room.acquire()
        if raised:
            raise raised[0]
        chunks.put(chunk)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield write
    finally:
        chunks.put(None)
        thread.join()
    if raised:
        raise raised[0]


def _rows(sheet: Sheet, styles: Styles) -> Iterator[bytes]:
    """Return the rows as XML."""
    cells = {colour: _cell_starts(sheet, styles, colour) for colour in (PLAIN, *FILLS)}
    parts: list[str] = []
    for number, (colour, values) in enumerate(sheet.rows(), start=2):
        parts.append(f'<row r="{number}">')
        for (start, style), value in zip(cells[colour], values):
            kind = type(value)
            if kind is Cell or kind is Percent:
                parts.append(f"{start}{number}{_special(value, colour, styles)}")
                continue
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


def _cell_starts(sheet: Sheet, styles: Styles, colour: str) -> list[tuple[str, str]]:
    """Return, for each column, what stands in a cell's tag before and after the row's number."""
    numbers = [
        styles[colour, WRAPPED if index in sheet.wrapped else AS_IT_IS]
        for index in range(len(sheet.header))
    ]
    return [
        (f'<c r="{_letters(index + 1)}', f'" s="{number}"' if number else '"')
        for index, number in enumerate(numbers)
    ]


def _letters(number: int) -> str:
    """Return what a column is called: A, …, Z, AA, …"""
    letters = ""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _special(value: Cell | Percent, colour: str, styles: Styles) -> str:
    """Return the rest of a cell that has a style of its own."""
    if isinstance(value, Percent):
        if not math.isfinite(value.share):
            return f'" s="{styles[colour, AS_IT_IS]}"{_text(str(value))}'
        return f'" s="{styles[colour, PERCENT]}"><v>{value.share!r}</v></c>'
    colour = value.colour or colour
    if not value.link or len(value.link) > _LONGEST_LINK:
        return f'" s="{styles[colour, AS_IT_IS]}"{_other(value.value)}'
    number = isinstance(value.value, int)
    shown = value.value if number else _quoted(str(value.value))
    formula = _escaped(f"HYPERLINK({_quoted(value.link)},{shown})")
    kind = "" if number else ' t="str"'  # of the result, for readers that compute nothing
    result = _escaped(str(value.value))
    return f'" s="{styles[colour, LINK]}"{kind}><f>{formula}</f><v>{result}</v></c>'


def _escaped(text: str) -> str:
    text = clean(text[:_MAX_TEXT])
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(text: str) -> str:
    """Return a text as formulas hold it."""
    quoted = text[:_LONGEST_LINK].replace('"', '""')
    return f'"{quoted}"'


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
