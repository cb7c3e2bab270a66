"""What became of disturbed computations → free_benchmark.csv, .xlsx and .json, the worst first."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.report.formats.cells import harmless
from mindrlhf_msprobe.report.formats.colours import PLAIN, SUSPICIOUS
from mindrlhf_msprobe.report.formats.sheets import Sheet
from mindrlhf_msprobe.report.formats.xlsx import write_xlsx
from mindrlhf_msprobe.report.staging import beside
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import cell_name
from mindrlhf_msprobe.storage.writing.benchmark_file import read_rows

STEM = "free_benchmark"

#: Those of msprobe's free_benchmark.csv, in its order, and then our own, with their widths.
_COLUMNS = (
    *(("rank", 6), ("pert_mode", 18), ("stage", 9), ("step", 6), ("api_name", 60)),
    *(("max_rel", 12), ("dtype", 10), ("shape", 16), ("output_index", 12)),
    *(("output", 24), ("consistent", 10), ("ratio", 12), ("disturbed_by", 12)),
    *(("threshold", 10), ("differing", 10), ("calls", 8), ("inconsistent", 12), ("phase", 26)),
    *(("first_step", 10), ("run", 30)),
)
_COPIED = {
    **{name: name for name in ("rank", "pert_mode", "stage", "step", "dtype", "shape")},
    **{name: name for name in ("output_index", "consistent", "ratio", "disturbed_by", "phase")},
    **{name: name for name in ("threshold", "differing")},
    "api_name": "entry",
    "max_rel": "change",
    "output": "path",
}


def write_benchmark(runs: Iterable[Run], output: Path) -> list[Path]:
    """Write the tables of all runs together, if any has such results; return their paths.

    Of the calls of one cell or operator, the one that changed most stands in the row.

    Args:
        output: the directory; a workbook's own name: the directory it is in.

    Raises:
        OutputError: one cannot be written.
    """
    directory = output.parent if output.suffix.lower() == ".xlsx" else output
    ranked = ranking(runs)
    if not ranked:
        return []
    paths = [directory / f"{STEM}{suffix}" for suffix in (".csv", ".xlsx", ".json")]
    with beside(*paths) as (table, workbook, data):
        names = [name for name, _ in _COLUMNS]
        with open(table, "w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([_text(row[name]) for name in names] for row in ranked)
        rows = [
            (PLAIN if row["consistent"] else SUSPICIOUS, [_shown(row[name]) for name in names])
            for row in ranked
        ]
        write_xlsx(workbook, [Sheet.from_rows(STEM, _COLUMNS, rows)])
        data.write_bytes(dump_json(ranked, indent=1) + b"\n")
    return paths


def ranking(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return a row for each output of each cell or operator, the largest change first.

    What changed too much stands before what did not; then the change over its threshold decides.
    """
    worst: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        for rank in sorted({rank for _, rank in run.places}):
            for found in read_rows(run.path, rank):
                if "why" not in found:
                    _take(worst, str(run.path), rank, found)
    return sorted(worst.values(), key=_order)


def _take(worst: dict[tuple[Any, ...], dict[str, Any]], run: str, rank: int, found: Any) -> None:
    where = (run, rank, found["phase"], found["stage"], found["pert_mode"])
    key = (*where, cell_name(found["entry"]), str(found.get("path")))
    row = {name: found.get(_COPIED[name]) for name, _ in _COLUMNS if name in _COPIED}
    row |= {"run": run, "rank": rank, "calls": 1, "inconsistent": int(not found["consistent"])}
    row["first_step"] = found["step"]
    known = worst.get(key)
    if known is not None:
        for name in ("calls", "inconsistent"):
            row[name] += known[name]
        row["first_step"] = known["first_step"]
        if _order(known) <= _order(row):
            counts = {name: row[name] for name in ("calls", "inconsistent")}
            row = {**known, **counts}
    worst[key] = row


def _order(row: dict[str, Any]) -> tuple[bool, float]:
    change, threshold = row["max_rel"], row["threshold"]
    size = math.inf if change is None else change / threshold if threshold else change
    return row["consistent"], -size


def _text(value: Any) -> Any:
    return harmless(value) if isinstance(value, str) else _shown(value)


def _shown(value: Any) -> Any:
    return str(tuple(value)) if isinstance(value, list) else value
