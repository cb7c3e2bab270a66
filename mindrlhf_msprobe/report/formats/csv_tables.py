"""Tables → CSV files, for scripts and for those who have no Excel."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.report.formats.cells import clean, harmless, plain
from mindrlhf_msprobe.report.formats.names import take_name
from mindrlhf_msprobe.report.formats.sheets import Cell, Percent, Sheet, Table

# Excel takes a file without the byte order mark for one in the machine's own encoding.
_ENCODING = "utf-8-sig"


def write_csv_files(tables: Sequence[Table], output: Path) -> list[str]:
    """Write one file a sheet, whole however long; return their names in the tables' order.

    Raises:
        OSError: one cannot be written.
    """
    names: set[str] = set()
    written: dict[int, list[str]] = {}
    for index, table in sorted(enumerate(tables), key=lambda item: item[1].precedence):
        # Also where each sheet has a file of its own, so that no key takes it.
        own = take_name(names, table.stem, ".csv")
        stems = [f"{table.stem}_{sheet.stem or sheet.name}" for sheet in table.sheets]
        several = len(stems) > 1
        written[index] = [take_name(names, stem, ".csv") if several else own for stem in stems]
        for name, sheet in zip(written[index], table.sheets):
            _write(output / name, sheet)
    return [name for index in range(len(tables)) for name in written[index]]


def _write(path: Path, sheet: Sheet) -> None:
    with open(path, "w", encoding=_ENCODING, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(sheet.header)
        writer.writerows(_rows(sheet))


def _rows(sheet: Sheet) -> Iterator[list[Any]]:
    for _, values in sheet.rows():
        yield [_cell(value) for value in values]


def _cell(value: Any) -> Any:
    """Return what the csv module writes as it should stand: numbers by their repr."""
    if isinstance(value, Cell):
        value = value.value
    elif isinstance(value, Percent):
        return str(value)
    kind = type(value)
    if kind is str:
        return harmless(clean(value))
    if value is None or (kind is float and math.isfinite(value)):
        return value
    value = plain(value)
    return harmless(value) if isinstance(value, str) else value
