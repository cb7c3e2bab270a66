"""Findings → tables: one a key, one a phase, in causal order; tables → Excel files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mindrlhf_msprobe.findings import Agreement, Finding, Side, Status, counted
from mindrlhf_msprobe.report.colours import colour_of_finding
from mindrlhf_msprobe.report.columns import KEY_DATA_COLUMNS, Column, cell_columns
from mindrlhf_msprobe.report.names import Names
from mindrlhf_msprobe.report.sheets import Row, Sheet, Table
from mindrlhf_msprobe.report.xlsx import write_xlsx

SHEET = "Sheet1"
MAX_ROWS = 1_048_576 - 1  # what a sheet can hold, less the header
_NAME_WIDTH = 60


def tables_of(findings: Iterable[Finding], agreements: Iterable[Agreement] = ()) -> list[Table]:
    """Return one table a key, then one a phase; their rows keep the findings' causal order.

    Args:
        agreements: what agrees and has no finding each; one row before those of its step and rank.
    """
    keys: dict[str, list[Finding]] = {}
    phases: dict[str, list[Finding]] = {}
    for finding in _with_agreements(findings, agreements):
        if finding.key is not None:
            keys.setdefault(finding.key, []).append(finding)
        else:
            phases.setdefault(finding.phase or "", []).append(finding)
    of_keys = [Table(key, (_sheet(KEY_DATA_COLUMNS, rows),), 2) for key, rows in keys.items()]
    of_phases = [
        Table(f"compare_result_{phase}", (_sheet(cell_columns(rows), rows),), 1)
        for phase, rows in phases.items()
    ]
    return of_keys + of_phases


def _with_agreements(
    findings: Iterable[Finding], agreements: Iterable[Agreement]
) -> Iterator[Finding]:
    """Yield the findings, before those of each step and rank what agrees there as one a phase."""
    folded = deque(agreements)
    for finding in findings:
        while folded and (folded[0].step, folded[0].rank) <= (finding.step, finding.rank):
            yield _as_finding(folded.popleft())
        yield finding
    yield from map(_as_finding, folded)


def _as_finding(agreement: Agreement) -> Finding:
    """Return what agrees as one row: its names say how many records it stands for."""
    close = agreement.within_tolerance
    said = f"{counted(agreement.records, 'record')} that agree" + "s" * (agreement.records == 1)
    note = f"{agreement.identical} identical, {close} within_tolerance" if close else ""
    suspicious = ""
    if agreement.suspicious:
        suspicious = f"{agreement.suspicious} of them, first {agreement.suspicion}"
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
        note=note,
        suspicion=suspicious,
    )


def write_workbooks(tables: Sequence[Table], output: Path) -> list[str]:
    """Write each table; more rows than a sheet can hold are split over files.

    Returns:
        The files' names, in the tables' order.

    Raises:
        OSError: one cannot be written.
    """
    names = Names()
    written: dict[int, list[str]] = {}
    for index, table in sorted(enumerate(tables), key=lambda item: item[1].precedence):
        written[index] = _write(table, output, names)
    return [name for index in range(len(tables)) for name in written[index]]


def _write(table: Table, output: Path, names: Names) -> list[str]:
    if len(table.sheets) > 1 or table.sheets[0].count <= MAX_ROWS:
        name = names.take(table.stem, ".xlsx")
        write_xlsx(output / name, [sheet.part(0, MAX_ROWS) for sheet in table.sheets])
        return [name]
    written: list[str] = []
    for start in range(0, table.sheets[0].count, MAX_ROWS):
        name = names.take(table.stem, f"_part{len(written) + 1}.xlsx")
        write_xlsx(output / name, [table.sheets[0].part(start, start + MAX_ROWS)])
        written.append(name)
    return written


def _sheet(columns: Sequence[Column], findings: Sequence[Finding]) -> Sheet:
    shown = [show for _, show in columns]

    def rows() -> Iterator[Row]:
        for finding in findings:
            yield colour_of_finding(finding), [show(finding) for show in shown]

    return Sheet(
        name=SHEET,
        header=tuple(header for header, _ in columns),
        rows=rows,
        count=len(findings),
        widths=tuple(_width(header) for header, _ in columns),
    )


def _width(header: str) -> int:
    if header.endswith("Name"):
        return _NAME_WIDTH
    return min(60, max(10, sum(1 if char.isascii() else 2 for char in header) + 2))
