"""The checks of runs → checks.xlsx; disturbed computations → free_benchmark.csv, .xlsx, .json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.findings.health import CheckFinding, CheckResults, Severity
from mindrlhf_msprobe.report.console.checks import values_in_words
from mindrlhf_msprobe.report.console.comparison import settings_in_one_line
from mindrlhf_msprobe.report.sheets import (
    CLOSE,
    DIFFERS,
    PLAIN,
    SUSPICIOUS,
    Row,
    Sheet,
    write_csv,
)
from mindrlhf_msprobe.report.xlsx import workbook_of, write_xlsx
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.layout import benchmark_name
from mindrlhf_msprobe.storage.outputs import (
    Output,
    csv_of,
    json_of,
    refuse,
    refuse_directory,
    written,
)
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import cell_name
from mindrlhf_msprobe.storage.step_lines import benchmark_lines

_WORKBOOK = ".xlsx"
FILE = f"checks{_WORKBOOK}"

_COLUMNS = (
    ("run", 24),
    ("level", 6),
    ("severity", 9),
    ("step", 7),
    ("last_step", 9),
    ("times", 7),
    ("rank", 8),
    ("phase", 26),
    ("record", 60),
    ("finding", 70),
    ("evidence", 70),
    ("causes", 70),
    ("look closer", 60),
    ("stack", 60),
    ("rule", 24),
)
_REST = (("run", 24), ("what", 14), ("rule", 30), ("why", 100))
_COLOURS = {Severity.ERROR: DIFFERS, Severity.WARNING: SUSPICIOUS, Severity.NOTE: CLOSE}


def refuse_tables(output: str | Path, runs: Sequence[Run], healthy: Sequence[Run]) -> None:
    """Refuse, before the runs are checked, what their tables could not be written to.

    Raises:
        RunError: it lies inside a run, or is not what this tool wrote.
    """
    found = any((run.path / benchmark_name(rank)).exists() for run in runs for rank in run.ranks)
    tables = _tables(output)
    read = [run.path for run in (*runs, *healthy)]
    refuse(*(tables if found else tables[:1]), runs=read)


def _tables(output: str | Path) -> list[Output]:
    """Return the workbook, and the tables of disturbed computations beside it."""
    path = refuse_directory(output, _WORKBOOK)
    is_file = path.suffix.lower() == _WORKBOOK and not path.is_dir()
    workbook = Output(path if is_file else path / FILE, workbook_of(_COLUMNS))
    names = [name for name, _ in _BENCHMARK_COLUMNS]
    kinds = (csv_of(names), workbook_of(_BENCHMARK_COLUMNS), json_of(*names, many=True))
    files = (workbook.path.with_name(f"{STEM}{suffix}") for suffix in (".csv", _WORKBOOK, ".json"))
    return [workbook, *map(Output, files, kinds)]


def write_checks(
    results: CheckResults,
    output: str | Path,
    lang: str | None = None,
    runs: Sequence[Run] = (),
) -> list[Path]:
    """Write all tables together and return their paths.

    Args:
        output: the file where it ends in .xlsx; else the directory, in which it is checks.xlsx.
        lang: `en` or `zh`; None: the locale's.
        runs: whose disturbed computations have tables of their own, if any has such.

    Raises:
        RunError: they cannot be written there.
    """
    with speaking(lang):
        sheets = check_sheets(results)
    ranked = ranking(runs)
    tables = _tables(output) if ranked else _tables(output)[:1]
    with written(*tables, runs=[run.path for run in results.runs]) as (workbook, *of_benchmark):
        write_xlsx(workbook, sheets)
        if ranked:
            _write_benchmark(ranked, *of_benchmark)
    return [table.path for table in tables]


def check_sheets(results: CheckResults) -> list[Sheet]:
    """Return the sheet of findings, and the one of what was not checked, in the language spoken."""
    found = [
        row
        for run in results.runs
        for finding in run.findings
        for row in _rows(run.path, finding, 0)
    ]
    rest: list[Row] = []
    for run in results.runs:
        rest += [
            (PLAIN, (run.path, "not checked", one.rule, in_words(one.why)))
            for one in run.not_checked
        ]
        rest += [(PLAIN, (run.path, "not read", "", in_words(one))) for one in run.problems]
        rest += [(PLAIN, (run.path, "checked", name, "")) for name in run.checked]
    return [Sheet.ours("checks", _COLUMNS, found), Sheet.ours("not checked", _REST, rest)]


def _rows(run: str, finding: CheckFinding, level: int) -> Iterator[Row]:
    place = finding.place
    ranks = finding.ranks or (() if place.rank is None else (place.rank,))
    evidence = [
        f"{'' if one.note is None else in_words(one.note) + ': '}{one.place.name}: "
        f"{values_in_words(one)}"
        for one in finding.evidence
    ]
    causes = [f"{n}) {in_words(cause)}" for n, cause in enumerate(finding.causes, start=1)]
    settings = finding.next_step
    yield (
        _COLOURS[finding.severity],
        (
            *(run, level, finding.severity.value, place.step, finding.last_step, finding.times),
            *(", ".join(map(str, ranks)), place.phase, place.name, in_words(finding.said)),
            *("\n".join(evidence), "\n".join(causes)),
            None if settings is None else settings_in_one_line(settings),
            *("\n".join(finding.stack[:20]), finding.rule),
        ),
    )
    for follower in finding.followed_by:
        yield from _rows(run, follower, level + 1)


STEM = "free_benchmark"

#: Those of msprobe's free_benchmark.csv, in its order, and then our own, with their widths.
_BENCHMARK_COLUMNS = (
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


def _write_benchmark(ranked: list[dict[str, Any]], table: Path, workbook: Path, data: Path) -> None:
    """Write a row of each call: of those of one cell or operator, of the one that changed most."""
    rows = [
        (
            PLAIN if row["consistent"] else SUSPICIOUS,
            [_shown(row[name]) for name, _ in _BENCHMARK_COLUMNS],
        )
        for row in ranked
    ]
    sheet = Sheet.from_rows(STEM, _BENCHMARK_COLUMNS, rows)
    write_csv(table, sheet)
    write_xlsx(workbook, [sheet])
    data.write_bytes(dump_json(ranked, indent=1) + b"\n")


def ranking(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return a row for each output of each cell or operator, the largest change first.

    What changed too much stands before what did not; then the change over its threshold decides.
    """
    worst: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        for rank in sorted({rank for _, rank in run.places}):
            for found in benchmark_lines(run.path, rank).read():
                if "why" not in found:
                    _take(worst, str(run.path), rank, found)
    return sorted(worst.values(), key=_order)


def _take(worst: dict[tuple[Any, ...], dict[str, Any]], run: str, rank: int, found: Any) -> None:
    where = (run, rank, found["phase"], found["stage"], found["pert_mode"])
    key = (*where, cell_name(found["entry"]), str(found.get("path")))
    row = {name: found.get(_COPIED[name]) for name, _ in _BENCHMARK_COLUMNS if name in _COPIED}
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


def _shown(value: Any) -> Any:
    return str(tuple(value)) if isinstance(value, list) else value
