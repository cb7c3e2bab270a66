"""Outlines of sheets → a workbook with their headers and no rows, by openpyxl.

openpyxl takes as long to import as numpy: blank.py imports this module when a workbook is wanted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any
from zipfile import ZipFile

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Alignment, Font, PatternFill
from openpyxl.utils import get_column_letter
from openpyxl.worksheet import _writer as openpyxl_writer

from mindrlhf_msprobe.report.formats.outline import (
    FILLS,
    KINDS,
    LAST_ROW,
    LINK,
    PERCENT,
    PLAIN,
    WRAPPED,
    Blank,
    Outline,
    Styles,
)


def make(outlines: Sequence[Outline]) -> Blank:
    """Return the workbook's files with headers only, and the styles its rows can have."""
    workbook = Workbook(write_only=True)
    styles: Styles = {}
    for outline in outlines:
        target = workbook.create_sheet(outline.name)
        styles = styles or _styles(target)
        target.freeze_panes = f"{get_column_letter(outline.frozen + 1)}2"
        letters = [get_column_letter(index + 1) for index in range(len(outline.header))]
        for letter, width in zip(letters, outline.widths):
            target.column_dimensions[letter].width = width
        if outline.filtered:
            target.auto_filter.ref = f"A1:{letters[-1]}{LAST_ROW}"
    content = BytesIO()
    with _no_temporary_files(workbook):
        for outline, target in zip(outlines, workbook.worksheets):
            header: Any = _header_cells(target, outline.header)
            target.append(header)
        workbook.save(content)
    with ZipFile(content) as source:
        return Blank({name: source.read(name) for name in source.namelist()}, styles)


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


def _styles(sheet: Any) -> Styles:
    styles = {}
    for colour in (PLAIN, *FILLS):
        for kind in KINDS:
            cell = WriteOnlyCell(sheet)
            if colour:
                cell.fill = PatternFill("solid", fgColor=FILLS[colour])
            if kind == WRAPPED:
                cell.alignment = Alignment(wrap_text=True, vertical="top")
            elif kind == PERCENT:
                cell.number_format = "0.0###%"
            elif kind == LINK:
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
