"""Findings → tables: one a key, one a phase, in causal order; tables → Excel files."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
from mindrlhf_msprobe.report.formats.cells import clean
from mindrlhf_msprobe.report.formats.colours import colour_of_finding
from mindrlhf_msprobe.report.formats.names import take_name
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet, Table
from mindrlhf_msprobe.report.formats.xlsx import write_xlsx
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.report.tables.columns import (
    KEY_DATA_COLUMNS,
    SINGLE_COMPARATOR_COLUMNS,
    TEXT_COLUMNS,
    Column,
    cell_columns,
    in_language,
)

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
    shown = in_language(columns, lang)

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
