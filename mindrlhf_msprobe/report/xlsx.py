"""Sheets → an Excel file.

openpyxl needs 15 µs a cell, which made the tables the largest cost of a comparison. So it makes
the workbook with its styles, widths and headers only; the rows are put into it as text.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Alignment, Font, PatternFill
from openpyxl.utils import get_column_letter
from openpyxl.worksheet import _writer as openpyxl_writer

from mindrlhf_msprobe.report.cells import clean, plain
from mindrlhf_msprobe.report.colours import FILLS, PLAIN
from mindrlhf_msprobe.report.sheets import Cell, Percent, Sheet

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

#: The number of a style in the file, by (colour, how its value is shown).
_Styles = Mapping[tuple[str, str], int]
_AS_IT_IS, _WRAPPED, _PERCENT, _LINK = "", "wrapped", "percent", "link"


def write_xlsx(path: Path, sheets: Sequence[Sheet]) -> None:
    """Write the sheets as one workbook.

    Raises:
        OSError: it cannot be written.
    """
    outlines = tuple(
        _Outline(
            *(s.name, tuple(s.header), tuple(s.widths), s.filtered),
            *(frozenset(s.wrapped), s.count, s.frozen),
        )
        for s in sheets
    )
    empty, styles = _empty_workbook(outlines)
    large = any(sheet.count > _MANY_ROWS for sheet in sheets)
    try:
        _fill(path, empty, sheets, styles, large=large)
    except RuntimeError:  # larger than it looked
        if large:
            raise
        _fill(path, empty, sheets, styles, large=True)


class _Outline(NamedTuple):
    """What of a sheet openpyxl writes."""

    name: str
    header: tuple[str, ...]
    widths: tuple[float, ...]
    filtered: bool
    wrapped: frozenset[int]
    rows: int
    frozen: int


@lru_cache(maxsize=8)  # the tables of most keys have the same outline
def _empty_workbook(sheets: tuple[_Outline, ...]) -> tuple[dict[str, bytes], _Styles]:
    """Return the workbook's files with headers only, and the styles its rows can have."""
    workbook = Workbook(write_only=True)
    styles: _Styles = {}
    for sheet in sheets:
        target = workbook.create_sheet(sheet.name)
        styles = styles or _styles(target)
        target.freeze_panes = f"{get_column_letter(sheet.frozen + 1)}2"
        letters = [get_column_letter(index + 1) for index in range(len(sheet.header))]
        for letter, width in zip(letters, sheet.widths):
            target.column_dimensions[letter].width = width
        if sheet.filtered:
            target.auto_filter.ref = f"A1:{letters[-1]}{sheet.rows + 1}"
    content = BytesIO()
    with _no_temporary_files(workbook):
        for sheet, target in zip(sheets, workbook.worksheets):
            header: Any = _header_cells(target, sheet.header)
            target.append(header)
        workbook.save(content)
    with ZipFile(content) as source:
        return {name: source.read(name) for name in source.namelist()}, styles


@contextlib.contextmanager
def _no_temporary_files(workbook: Workbook) -> Iterator[None]:
    """Remove openpyxl's temporary files where it is interrupted, not at the end of the process."""
    files: list[str] = getattr(openpyxl_writer, "ALL_TEMP_FILES", [])
    before = set(files)
    try:
        yield
    except BaseException:
        for sheet in workbook.worksheets:  # or it complains on stderr when they are collected
            with contextlib.suppress(Exception):
                sheet.close()
        for name in set(files) - before:
            with contextlib.suppress(OSError):
                os.remove(name)
        raise


def _styles(sheet: Any) -> _Styles:
    styles = {}
    for colour in (PLAIN, *FILLS):
        for kind in (_AS_IT_IS, _WRAPPED, _PERCENT, _LINK):
            cell = WriteOnlyCell(sheet)
            if colour:
                cell.fill = PatternFill("solid", fgColor=FILLS[colour])
            if kind == _WRAPPED:
                cell.alignment = Alignment(wrap_text=True, vertical="top")
            elif kind == _PERCENT:
                cell.number_format = "0.0###%"
            elif kind == _LINK:
                cell.font = Font(color="0563C1", underline="single")
            styles[colour, kind] = cell.style_id
    return styles


def _header_cells(sheet: Any, headers: Sequence[str]) -> Iterator[Any]:
    """Yield one cell again and again: openpyxl writes each as it comes, and styles are dear."""
    cell = WriteOnlyCell(sheet)
    cell.font = Font(bold=True)
    for header in headers:
        cell.value = header
        cell.data_type = "s"
        yield cell


def _fill(
    path: Path,
    empty: Mapping[str, bytes],
    sheets: Sequence[Sheet],
    styles: _Styles,
    *,
    large: bool,
) -> None:
    """Write the workbook with the rows in it."""
    places = {f"xl/worksheets/sheet{i}.xml": sheet for i, sheet in enumerate(sheets, start=1)}
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=_LEVEL) as target:
        for name, content in empty.items():
            sheet = places.pop(name, None)
            member = _member(name)
            if sheet is None:
                target.writestr(member, _TIMES.sub(b"", content))
                continue
            head, end, tail = content.rpartition(b"</sheetData>")
            assert end, "openpyxl wrote a sheet without its header"
            with target.open(member, "w", force_zip64=large) as file, _beside(file) as write:
                write(head)
                for chunk in _rows(sheet, styles):
                    write(chunk)
                write(end + tail)
    assert not places, f"openpyxl did not write {', '.join(places)}"


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


def _rows(sheet: Sheet, styles: _Styles) -> Iterator[bytes]:
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


def _cell_starts(sheet: Sheet, styles: _Styles, colour: str) -> list[tuple[str, str]]:
    """Return, for each column, what stands in a cell's tag before and after the row's number."""
    numbers = [
        styles[colour, _WRAPPED if index in sheet.wrapped else _AS_IT_IS]
        for index in range(len(sheet.header))
    ]
    return [
        (f'<c r="{get_column_letter(index + 1)}', f'" s="{number}"' if number else '"')
        for index, number in enumerate(numbers)
    ]


def _special(value: Cell | Percent, colour: str, styles: _Styles) -> str:
    """Return the rest of a cell that has a style of its own."""
    if isinstance(value, Percent):
        if not math.isfinite(value.share):
            return f'" s="{styles[colour, _AS_IT_IS]}"{_text(str(value))}'
        return f'" s="{styles[colour, _PERCENT]}"><v>{value.share!r}</v></c>'
    colour = value.colour or colour
    if not value.link or len(value.link) > _LONGEST_LINK:
        return f'" s="{styles[colour, _AS_IT_IS]}"{_other(value.value)}'
    number = isinstance(value.value, int)
    shown = value.value if number else _quoted(str(value.value))
    formula = _escaped(f"HYPERLINK({_quoted(value.link)},{shown})")
    kind = "" if number else ' t="str"'  # of the result, for readers that compute nothing
    result = _escaped(str(value.value))
    return f'" s="{styles[colour, _LINK]}"{kind}><f>{formula}</f><v>{result}</v></c>'


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
