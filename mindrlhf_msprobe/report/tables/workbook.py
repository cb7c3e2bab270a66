"""Findings → tables: one a key, one a phase, in causal order; tables → Excel files.

Columns are those that msprobe's users know, then our own. msprobe's NPU is the run under test, B;
its Bench, or golden, is the baseline, A.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings import (
    Agreement,
    Finding,
    FindingsByTable,
    KeptFindings,
    Side,
    Status,
    TableName,
)
from mindrlhf_msprobe.report.messages import text_of, texts_of
from mindrlhf_msprobe.report.sheets import (
    Percent,
    Row,
    Sheet,
    Table,
    clean,
    colour_of_finding,
    take_name,
)
from mindrlhf_msprobe.report.xlsx import write_xlsx

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
BITWISE = "bitwise"

#: A column: its header and what it shows of a finding.
Column = tuple[str, Callable[[Finding], Any]]


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
    """Return b−a, which is NPU less Bench."""

    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        return b - a if _is_number(a) and _is_number(b) else None

    return show


def _relative_difference(name: str) -> Callable[[Finding], Any]:
    """Return |b−a| / |a|, relative to Bench and shown in percent, as msprobe does: 50.0%."""

    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        if not (_is_number(a) and _is_number(b) and math.isfinite(a) and math.isfinite(b)):
            return None
        if a == b:
            return Percent(0.0)
        return Percent(abs((b - a) / a)) if a else None

    return show


def _is_number(value: Any) -> bool:
    """Return whether `value` is a number that can be computed with."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 64
    return isinstance(value, float)


def _id(finding: Finding) -> Any:
    return int(finding.path) if _INDEX.fullmatch(finding.path) else finding.path or 0


def _text_of(side: str) -> Callable[[Finding], Any]:
    def show(finding: Finding) -> Any:
        value = getattr(finding, side).value
        return value if isinstance(value, str) else None

    return show


def _both(name: str, show: Callable[[str, str], Callable[[Finding], Any]]) -> tuple[Column, ...]:
    """Return a column for each side: of A with a 1 behind its name, of B with a 2."""
    return (f"{name}1", show("a", name)), (f"{name}2", show("b", name))


#: Texts that were saved, e.g. prompts and responses.
TEXT_COLUMNS: tuple[Column, ...] = (("text1", _text_of("a")), ("text2", _text_of("b")))


def _note(finding: Finding, lang: str = "en") -> str:
    return texts_of(finding.notes, lang)


def _tolerance(finding: Finding, lang: str = "en") -> str:
    return texts_of(finding.compared_by, lang) or BITWISE


def _suspicion(finding: Finding, lang: str = "en") -> str:
    return texts_of(finding.suspicions, lang)


def _message(finding: Finding, lang: str = "en") -> str:
    if finding.status is Status.IDENTICAL:
        return ""
    note = texts_of(finding.notes, lang)
    return f"{finding.status}: {note}" if note else str(finding.status)


#: What has words in it: these are made when a row is written.
_IN_WORDS = (_note, _tolerance, _suspicion, _message)


def cells_in_language(columns: Sequence[Column], lang: str) -> list[Callable[[Finding], Any]]:
    """Return what the columns show of a finding, words in `lang`."""
    return [partial(show, lang=lang) if show in _IN_WORDS else show for _, show in columns]


#: How a record compares: beside what it is called, where it stays in sight.
_OUTCOME: tuple[Column, ...] = (
    ("status", lambda f: f.status.value),
    ("suspicion", _suspicion),
)
#: By what it was compared; last in every table.
_COMPARED_BY: tuple[Column, ...] = (("tolerance", _tolerance),)

_SAVE: tuple[Column, ...] = (
    ("step", lambda f: f.step),
    ("rank", lambda f: f.rank),
    ("micro_step", lambda f: f.micro_step),
    ("id", _id),
)
_COMPARED_KEYS: tuple[Column, ...] = (
    *_both("shape", _side),
    ("相同元素百分比(%)", _metric("equal_percent")),
    ("首个不匹配元素索引", _metric("first_mismatch")),
    ("最大绝对误差", _metric("max_abs_err")),
    ("最大相对误差", _metric("max_rel_err")),
    ("误差在千分之一内元素占比(%)", _metric("within_1e3_percent")),
    ("误差在百分之一内元素占比(%)", _metric("within_1e2_percent")),
)
_OF_KEYS: tuple[Column, ...] = (
    ("note", _note),
    *_both("dtype", _side),
    *_both("max", _statistic),
    *_both("min", _side),
    *_both("mean", _side),
    *_both("norm", _side),
    *_COMPARED_BY,
)
KEY_DATA_COLUMNS = _SAVE + _OUTCOME + _COMPARED_KEYS + _OF_KEYS
#: The same with the twelve of msprobe's SingleComparator first: its scripts may count columns.
SINGLE_COMPARATOR_COLUMNS = _SAVE + _COMPARED_KEYS + _OUTCOME + _OF_KEYS

_PLACE: tuple[Column, ...] = (
    ("NPU Name", _side("b", "name")),
    *_OUTCOME,
    ("Bench Name", _side("a", "name")),
    ("NPU Dtype", _side("b", "dtype")),
    ("Bench Dtype", _side("a", "dtype")),
    ("NPU Tensor Shape", _side("b", "shape")),
    ("Bench Tensor Shape", _side("a", "shape")),
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
    ("NPU max", _statistic("b", "max")),
    ("NPU min", _side("b", "min")),
    ("NPU mean", _side("b", "mean")),
    ("NPU l2norm", _side("b", "norm")),
    ("Bench max", _statistic("a", "max")),
    ("Bench min", _side("a", "min")),
    ("Bench mean", _side("a", "mean")),
    ("Bench l2norm", _side("a", "norm")),
)
_RESULT: tuple[Column, ...] = (
    ("Result", lambda f: "pass" if f.status.agrees else "error"),
    ("Err_message", _message),
    ("NPU_Stack_Info", lambda f: "\n".join(_stack(f))),
    ("step", lambda f: f.step),
    ("rank", lambda f: f.rank),
    ("NPU fingerprint", _side("b", "fingerprint")),
    ("Bench fingerprint", _side("a", "fingerprint")),
    ("argument", lambda f: f.argument),
    *_COMPARED_BY,
)


def _stack(finding: Finding) -> tuple[str, ...]:
    """Return where the cell was called: in whole beside what went into it, as msprobe, and red.

    Beside an output that agrees stands the line alone; where B has no record, nothing of A's.
    """
    if finding.b.name is None:
        return ()
    goes_in = finding.io in ("input", "parameters")
    return finding.stack if goes_in or not finding.status.agrees else finding.stack[:1]


def cell_columns(by_elements: bool) -> tuple[Column, ...]:
    """Return msprobe's columns for tensor dumps if any record was compared by its elements."""
    return _PLACE + (_ELEMENTS if by_elements else _DIFFERENCES) + _STATISTICS + _RESULT


MAX_ROWS = 1_048_576 - 1  # what a sheet can hold, less the header
_NAME_WIDTH = 60
_TEXT_WIDTH = 60
#: As long as what they usually say. Bench Name is mostly NPU Name; all that is frozen must fit.
_WIDTHS = {"status": 17, "suspicion": 26, "Bench Name": 30}
_SENTENCES = ("note", "Err_message", "NPU_Stack_Info")
_KEY_SHEET = "Sheet1"  # as SingleComparator's, which scripts ask for by this name
_LONGEST_SHEET_NAME = 31
_NOT_IN_SHEET_NAMES = re.compile(r"[\[\]:*?/\\\x00-\x1f]")


def tables_of(
    findings: Iterable[Finding],
    agreements: Iterable[Agreement] = (),
    *,
    file_of_a_rank: Callable[[str, int | None], str] | None = None,
    key_data_only: bool = False,
    lang: str = "en",
) -> list[Table]:
    """Return one table a key, then one a phase; their rows keep the findings' causal order.

    Args:
        agreements: what agrees and has no finding each; one row before those of its step and rank.
        file_of_a_rank: if each rank of a phase has a table of its own, what that is called: given
            the phase, and the rank, None where the phase has only one.
        key_data_only: whether the tables of keys have the columns of msprobe's SingleComparator
            first, for its scripts.
        lang: `en` or `zh`, for notes; headers and statuses are msprobe's, and keywords.
    """
    kept = findings if isinstance(findings, KeptFindings) else FindingsByTable(findings)
    folded: dict[TableName, list[Agreement]] = {}
    for agreement in agreements:
        folded.setdefault((agreement.phase, False), []).append(agreement)
    names = sorted(dict.fromkeys([*kept.ranks, *folded]), key=lambda name: not name[1])
    tables: list[Table] = []
    for name in names:
        agreeing = folded.get(name, [])
        if file_of_a_rank is None or name[1]:
            tables.append(_table(kept, name, agreeing, lang, key_data_only=key_data_only))
            continue
        ranks = sorted({*kept.ranks.get(name, ()), *(agreement.rank for agreement in agreeing)})
        for rank in ranks:
            own = [agreement for agreement in agreeing if agreement.rank == rank]
            stem = file_of_a_rank(name[0], rank if len(ranks) > 1 else None)
            tables.append(replace(_table(kept, name, own, lang, rank), stem=stem))
    return tables


def _table(
    kept: KeptFindings | FindingsByTable,
    name: TableName,
    agreements: Sequence[Agreement],
    lang: str,
    rank: int | None = None,
    *,
    key_data_only: bool = False,
) -> Table:
    stem, is_key = name

    def findings() -> Iterator[Finding]:
        return _with_agreements(kept.in_table(name, rank), agreements, lang)

    ranks = kept.ranks.get(name, Counter())
    count = len(agreements) + (ranks.total() if rank is None else ranks[rank])
    if is_key:
        columns = SINGLE_COMPARATOR_COLUMNS if key_data_only else KEY_DATA_COLUMNS
        columns += TEXT_COLUMNS if name in kept.texts else ()
        frozen = 4 if key_data_only else 6
        sheet = _sheet(_KEY_SHEET, columns, findings, count, frozen=frozen, lang=lang)
        return Table(stem, (sheet,), 2, ("key", stem))
    columns = cell_columns(name in kept.by_elements)
    sheet = _sheet(stem, columns, findings, count, frozen=4, lang=lang)
    return Table(f"compare_result_{stem}", (sheet,), 1, ("phase", stem))


def _with_agreements(
    findings: Iterable[Finding], agreements: Iterable[Agreement], lang: str
) -> Iterator[Finding]:
    """Yield the findings of a table, before those of each step and rank what agrees there."""
    folded = deque(agreements)
    for finding in findings:
        while folded and (folded[0].step, folded[0].rank) <= (finding.step, finding.rank):
            yield _as_finding(folded.popleft(), lang)
        yield finding
    for agreement in folded:
        yield _as_finding(agreement, lang)


def _as_finding(agreement: Agreement, lang: str) -> Finding:
    """Return what agrees as one row: its names say how many records it stands for."""
    close = agreement.within_tolerance
    said = text_of(message("note.records_agree", records=agreement.records), lang)
    counts = {"identical": agreement.identical, "within_tolerance": close}
    return Finding(
        record=said,
        status=Status.WITHIN_TOLERANCE if close else Status.IDENTICAL,
        step=agreement.step,
        rank=agreement.rank,
        phase=agreement.phase,
        io="",
        path="",
        a=Side(name=said),
        b=Side(name=said),
        notes=(message("note.agreeing", **counts),) if close else (),
        suspicions=() if agreement.suspicion is None else (agreement.suspicion,),
    )


def file_names(tables: Sequence[Table]) -> list[list[str]]:
    """Return what the files of each table are called; one whose rows fill several has several."""
    names: set[str] = set()
    taken: dict[int, list[str]] = {}
    for index, table in sorted(enumerate(tables), key=lambda item: item[1].precedence):
        parts = 1 if len(table.sheets) != 1 else -(-max(1, table.sheets[0].count) // MAX_ROWS)
        suffixes = [f"_part{n + 1}.xlsx" for n in range(parts)] if parts > 1 else [".xlsx"]
        taken[index] = [take_name(names, table.stem, suffix) for suffix in suffixes]
    return [taken[index] for index in range(len(tables))]


def write_workbooks(tables: Sequence[Table], output: Path) -> list[str]:
    """Write each table; more rows than a sheet can hold are split over files.

    Returns:
        The files' names, in the tables' order.

    Raises:
        OSError: one cannot be written.
    """
    names = file_names(tables)
    for table, own in zip(tables, names):
        for part, name in enumerate(own):
            start = part * MAX_ROWS
            sheets = [sheet.part(start, start + MAX_ROWS) for sheet in table.sheets]
            write_xlsx(output / name, sheets)
    return [name for own in names for name in own]


def _sheet_name(name: str) -> str:
    """Return what a sheet may be called: Excel allows 31 characters, and not all of them."""
    allowed = _NOT_IN_SHEET_NAMES.sub("_", clean(name))[:_LONGEST_SHEET_NAME].strip("'")
    return allowed or _KEY_SHEET


def _sheet(
    name: str,
    columns: Sequence[Column],
    findings: Callable[[], Iterable[Finding]],
    count: int,
    *,
    frozen: int,
    lang: str = "en",
) -> Sheet:
    shown = cells_in_language(columns, lang)

    def rows() -> Iterator[Row]:
        for finding in findings():
            yield colour_of_finding(finding), [show(finding) for show in shown]

    return Sheet(
        name=_sheet_name(name),
        header=tuple(header for header, _ in columns),
        rows=rows,
        count=count,
        widths=tuple(_width(header) for header, _ in columns),
        frozen=frozen,
    )


def _width(header: str) -> int:
    if header in _WIDTHS:
        return _WIDTHS[header]
    if header.endswith("Name"):
        return _NAME_WIDTH
    if header.startswith("text") or header in _SENTENCES:
        return _TEXT_WIDTH
    return min(60, max(10, sum(1 if char.isascii() else 2 for char in header) + 2))
