"""What writing a phase's table costs: ours against XlsxWriter's constant-memory mode.

    pip install XlsxWriter && python benchmarks/table_rows.py [--rows N]

One table of statistics, each writer in a process of its own; without XlsxWriter ours alone. The
workbooks hold the same cells and colours.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mindrlhf_msprobe.findings import Finding, Side, Status
from mindrlhf_msprobe.report.sheets import FILLS, Percent, Sheet
from mindrlhf_msprobe.report.workbook import tables_of
from mindrlhf_msprobe.report.xlsx import write_xlsx


def findings(rows: int) -> Iterator[Finding]:
    """Yield records of a phase of which every fifth differs."""
    generator = random.Random(1)
    for number in range(rows):
        name = f"Cell.model.layers.{number % 32}.wq.Linear.forward.{number // 32}.output.0"
        value = generator.random()
        sides = [
            Side(name, "Float32", (8, 128, 256), top, -value, value / 3, value * 100)
            for top in (value, value + 1e-6)
        ]
        status = Status.WITHIN_TOLERANCE if number % 5 else Status.DIFFERENT
        place = {"step": number % 3, "rank": 0, "phase": "actor_update", "io": "output"}
        yield Finding(name, status, path="0", a=sides[0], b=sides[1], entry=name, **place)


@dataclass
class Peer:
    """Writes a sheet with XlsxWriter as `write_xlsx` does."""

    path: Path

    def write(self, sheet: Sheet) -> None:
        import xlsxwriter

        options = {"constant_memory": True, "tmpdir": str(self.path.parent)}
        with xlsxwriter.Workbook(str(self.path), options) as book:
            fills = {colour: {"bg_color": f"#{fill}"} for colour, fill in FILLS.items()}
            formats = {colour: book.add_format(look) for colour, look in fills.items()}
            percent = {
                colour: book.add_format({"num_format": "0.0###%", **fills.get(colour, {})})
                for colour in ("", *fills)
            }
            target = book.add_worksheet(sheet.name)
            target.freeze_panes(1, sheet.frozen)
            target.autofilter(0, 0, sheet.count, len(sheet.header) - 1)
            for column, (header, width) in enumerate(zip(sheet.header, sheet.widths)):
                target.set_column(column, column, width)
                target.write_string(0, column, header)
            for row, (colour, values) in enumerate(sheet.rows(), start=1):
                look = formats.get(colour)
                for column, value in enumerate(values):
                    if isinstance(value, Percent):
                        target.write_number(row, column, value.share, percent[colour])
                    elif value is None or value == "":
                        target.write_blank(row, column, None, look)
                    elif isinstance(value, (int, float)) and math.isfinite(value):
                        target.write_number(row, column, value, look)
                    else:
                        target.write_string(row, column, str(value), look)


def measure(writer: str, rows: int) -> None:
    """Write one table in this process and print what that took."""
    (table,) = tables_of(list(findings(rows)))
    (sheet,) = table.sheets
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "table.xlsx"
        if writer == "XlsxWriter":
            Peer(path).write(sheet)
        else:
            write_xlsx(path, [sheet])
        size = path.stat().st_size
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{writer:10} {rows} rows of {len(sheet.header)} cells: {wall:.2f} s, CPU {cpu:.2f} s "
        f"({cpu / rows / len(sheet.header) * 1e6:.1f} µs a cell), "
        f"memory +{(after.ru_maxrss - before.ru_maxrss) / 1024:.0f} MB, file {size / 1e6:.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--writer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        return measure(options.writer, options.rows)
    for writer in ("ours", *(["XlsxWriter"] if find_spec("xlsxwriter") else [])):
        line = [sys.executable, __file__, "--rows", str(options.rows), "--writer", writer]
        subprocess.run(line, check=True)
    return None


if __name__ == "__main__":
    main()
