"""Findings → Excel tables: one a key, one a phase, in the columns msprobe's users know."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE
from openpyxl.styles import Font, PatternFill
from openpyxl.utils import get_column_letter

from mindrlhf_msprobe.findings import Finding, Side, Status
from mindrlhf_msprobe.storage.atomic import write_atomic
from mindrlhf_msprobe.storage.layout import file_name

SHEET = "Sheet1"
MAX_ROWS = 1_048_576 - 1  # what a sheet can hold, less the header
_MAX_TEXT = 32_767
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")

#: A column: its header and what it shows of a finding.
Column = tuple[str, Callable[[Finding], Any]]


def write_tables(findings: Iterable[Finding], output: Path) -> list[str]:
    """Write one workbook a key and one a phase; return their names.

    Rows keep the findings' causal order. More rows than a sheet can hold are split over files.
    """
    keys: dict[str, list[Finding]] = {}
    phases: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.key is not None:
            keys.setdefault(finding.key, []).append(finding)
        else:
            phases.setdefault(finding.phase or "", []).append(finding)
    names: list[str] = []
    for phase, rows in phases.items():
        names += _write(output, f"compare_result_{phase}", cell_columns(rows), rows, names)
    of_phases = len(names)
    for key, rows in keys.items():
        names += _write(output, key, KEY_DATA_COLUMNS, rows, names)
    return names[of_phases:] + names[:of_phases]


def _metric(name: str) -> Callable[[Finding], Any]:
    def show(finding: Finding) -> Any:
        if finding.metrics is not None:
            return getattr(finding.metrics, name)
        return _IDENTICAL.get(name) if finding.status is Status.IDENTICAL else None

    return show


#: What identical records show without being read element by element.
_IDENTICAL = {
    "equal_percent": 100.0,
    "max_abs_err": 0.0,
    "max_rel_err": 0.0,
    "within_1e3_percent": 100.0,
    "within_5e3_percent": 100.0,
    "within_1e2_percent": 100.0,
    "cosine": 1.0,
    "euclidean": 0.0,
}


def _share(name: str) -> Callable[[Finding], Any]:
    show = _metric(name)

    def share(finding: Finding) -> Any:
        percent = show(finding)
        return None if percent is None else percent / 100

    return share


def _side(side: str, name: str) -> Callable[[Finding], Any]:
    def show(finding: Finding) -> Any:
        value = getattr(getattr(finding, side), name)
        return str(list(value)) if isinstance(value, tuple) else value

    return show


def _statistic(side: str, name: str) -> Callable[[Finding], Any]:
    """Show a statistic; max of a scalar argument is its value."""

    def show(finding: Finding) -> Any:
        record: Side = getattr(finding, side)
        return getattr(record, name) if record.shape is not None else record.value

    return show


def _difference(name: str) -> Callable[[Finding], Any]:
    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        return a - b if _is_number(a) and _is_number(b) else None

    return show


def _relative_difference(name: str) -> Callable[[Finding], Any]:
    """Return |a−b| / |b| in percent, as msprobe writes it: '50.0%'."""

    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        if not (_is_number(a) and _is_number(b) and math.isfinite(a) and math.isfinite(b)):
            return None
        if a == b:
            return "0.0%"
        return f"{abs((a - b) / b) * 100}%" if b else None

    return show


def _is_number(value: Any) -> bool:
    """Tell whether `value` is a number that can be computed with."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 64
    return isinstance(value, float)


def _id(finding: Finding) -> Any:
    return int(finding.path) if _INDEX.fullmatch(finding.path) else finding.path or 0


KEY_DATA_COLUMNS: tuple[Column, ...] = (
    ("step", lambda f: f.step),
    ("rank", lambda f: f.rank),
    ("micro_step", lambda f: f.micro_step),
    ("id", _id),
    ("shape1", _side("a", "shape")),
    ("shape2", _side("b", "shape")),
    ("相同元素百分比(%)", _metric("equal_percent")),
    ("首个不匹配元素索引", _metric("first_mismatch")),
    ("最大绝对误差", _metric("max_abs_err")),
    ("最大相对误差", _metric("max_rel_err")),
    ("误差在千分之一内元素占比(%)", _metric("within_1e3_percent")),
    ("误差在百分之一内元素占比(%)", _metric("within_1e2_percent")),
    ("status", lambda f: f.status.value),
    ("note", lambda f: f.note),
    ("dtype1", _side("a", "dtype")),
    ("dtype2", _side("b", "dtype")),
    ("max1", _statistic("a", "max")),
    ("max2", _statistic("b", "max")),
    ("min1", _side("a", "min")),
    ("min2", _side("b", "min")),
    ("mean1", _side("a", "mean")),
    ("mean2", _side("b", "mean")),
    ("norm1", _side("a", "norm")),
    ("norm2", _side("b", "norm")),
)

_PLACE: tuple[Column, ...] = (
    ("NPU Name", _side("a", "name")),
    ("Bench Name", _side("b", "name")),
    ("NPU Dtype", _side("a", "dtype")),
    ("Bench Dtype", _side("b", "dtype")),
    ("NPU Tensor Shape", _side("a", "shape")),
    ("Bench Tensor Shape", _side("b", "shape")),
)
_ELEMENTS: tuple[Column, ...] = (
    ("Cosine", _metric("cosine")),
    ("EucDist", _metric("euclidean")),
    ("MaxAbsErr", _metric("max_abs_err")),
    ("MaxRelativeErr", _metric("max_rel_err")),
    ("One Thousandth Err Ratio", _share("within_1e3_percent")),
    ("Five Thousandths Err Ratio", _share("within_5e3_percent")),
)
_DIFFERENCES: tuple[Column, ...] = (
    ("Max diff", _difference("max")),
    ("Min diff", _difference("min")),
    ("Mean diff", _difference("mean")),
    ("L2norm diff", _difference("norm")),
    ("MaxRelativeErr", _relative_difference("max")),
    ("MinRelativeErr", _relative_difference("min")),
    ("MeanRelativeErr", _relative_difference("mean")),
    ("NormRelativeErr", _relative_difference("norm")),
)
_STATISTICS: tuple[Column, ...] = (
    ("NPU max", _statistic("a", "max")),
    ("NPU min", _side("a", "min")),
    ("NPU mean", _side("a", "mean")),
    ("NPU l2norm", _side("a", "norm")),
    ("Bench max", _statistic("b", "max")),
    ("Bench min", _side("b", "min")),
    ("Bench mean", _side("b", "mean")),
    ("Bench l2norm", _side("b", "norm")),
)
_RESULT: tuple[Column, ...] = (
    ("Result", lambda f: "pass" if f.status.agrees else "error"),
    ("Err_message", lambda f: "" if f.status is Status.IDENTICAL else _message(f)),
    ("NPU_Stack_Info", lambda f: "\n".join(f.stack)),
    ("step", lambda f: f.step),
    ("rank", lambda f: f.rank),
    ("status", lambda f: f.status.value),
    ("NPU fingerprint", _side("a", "fingerprint")),
    ("Bench fingerprint", _side("b", "fingerprint")),
)


def _message(finding: Finding) -> str:
    return f"{finding.status}: {finding.note}" if finding.note else str(finding.status)


def cell_columns(findings: Sequence[Finding]) -> tuple[Column, ...]:
    """Return msprobe's columns for tensor dumps if any record was compared by its elements."""
    by_elements = any(finding.metrics is not None for finding in findings)
    return _PLACE + (_ELEMENTS if by_elements else _DIFFERENCES) + _STATISTICS + _RESULT


_BAD = PatternFill("solid", fgColor="FFC7CE")
_NOTED = PatternFill("solid", fgColor="FFEB9C")
_BOLD = Font(bold=True)


def _write(
    output: Path,
    stem: str,
    columns: Sequence[Column],
    rows: Sequence[Finding],
    taken: Sequence[str],
) -> list[str]:
    names: list[str] = []
    for part, start in enumerate(range(0, len(rows), MAX_ROWS)):
        suffix = f"_part{part + 1}.xlsx" if len(rows) > MAX_ROWS else ".xlsx"
        name = file_name(stem, suffix)
        while name in taken:  # a key that is called like a phase's table
            suffix = "~" + suffix
            name = file_name(stem, suffix)
        workbook = _workbook(columns, rows[start : start + MAX_ROWS])
        write_atomic(output / name, workbook.save)
        names.append(name)
    return names


def _workbook(columns: Sequence[Column], rows: Sequence[Finding]) -> Workbook:
    workbook = Workbook(write_only=True)
    sheet = workbook.create_sheet(SHEET)
    sheet.freeze_panes = "A2"
    for index, (header, _) in enumerate(columns, start=1):
        width = min(60, max(10, len(header.encode("gbk", errors="replace")) + 2))
        is_name = header.endswith("Name")
        sheet.column_dimensions[get_column_letter(index)].width = 60 if is_name else width
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{len(rows) + 1}"
    sheet.append([_cell(sheet, header, font=_BOLD) for header, _ in columns])
    for finding in rows:
        fill = None
        if not finding.status.agrees:
            fill = _BAD
        elif finding.status is Status.WITHIN_TOLERANCE:
            fill = _NOTED
        sheet.append([_cell(sheet, show(finding), fill=fill) for _, show in columns])
    return workbook


def _cell(
    sheet: Any, value: Any, *, fill: PatternFill | None = None, font: Font | None = None
) -> Any:
    """Return a cell that holds a number as a number and any text as text, never as a formula."""
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        value = str(value)  # Excel would round it
    elif not isinstance(value, (int, float, str, type(None))):
        value = str(value)
    if isinstance(value, str):
        value = ILLEGAL_CHARACTERS_RE.sub("�", value)[:_MAX_TEXT]
        value = re.sub(r"[\ud800-\udfff]", "�", value)
    cell = WriteOnlyCell(sheet, value)
    if isinstance(value, str):
        cell.data_type = "s"
    if fill is not None:
        cell.fill = fill
    if font is not None:
        cell.font = font
    return cell
