"""Findings → tables: one a key, one a phase, in causal order; tables → Excel files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mindrlhf_msprobe.findings import Finding
from mindrlhf_msprobe.report.colours import colour_of_finding
from mindrlhf_msprobe.report.columns import KEY_DATA_COLUMNS, Column, cell_columns
from mindrlhf_msprobe.report.names import Names
from mindrlhf_msprobe.report.sheets import Row, Sheet, Table
from mindrlhf_msprobe.report.xlsx import write_xlsx

SHEET = "Sheet1"
MAX_ROWS = 1_048_576 - 1  # what a sheet can hold, less the header
_NAME_WIDTH = 60


def tables_of(findings: Iterable[Finding]) -> list[Table]:
    """Return one table a key, then one a phase; their rows keep the findings' causal order."""
    keys: dict[str, list[Finding]] = {}
    phases: dict[str, list[Finding]] = {}
    for finding in findings:
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
