"""Series → rows: side by side where there are two runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.report.formats.cells import clean, harmless
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json, write_atomic
from mindrlhf_msprobe.storage.reading.series import Series

HEADER = ("series", "statistic", "phase", "rank", "step", "micro_step")


def sides_of(runs: Sequence[Sequence[Series]]) -> list[list[Series | None]]:
    """Return each quantity with its series in every run, None where a run has none."""
    found: dict[Any, list[Series | None]] = {}
    for number, of_run in enumerate(runs):
        for series in of_run:
            found.setdefault(series.identity, [None] * len(runs))[number] = series
    return list(found.values())


def header(runs: int) -> list[str]:
    """Return the header of a table of one run or of two."""
    return [*HEADER, *(["value"] if runs == 1 else ["value_a", "value_b"])]


def rows(sides: Iterable[Sequence[Series | None]]) -> Iterator[list[Any]]:
    """Yield a row for each value, those of both runs at one step in one row."""
    for of_runs in sides:
        at: dict[tuple[int, int], list[float | None]] = {}
        some = next(series for series in of_runs if series is not None)
        for number, series in enumerate(of_runs):
            if series is not None:
                steps, micro_steps = series.steps.tolist(), series.micro_steps.tolist()
                for step, micro_step, value in zip(steps, micro_steps, series.values.tolist()):
                    at.setdefault((step, micro_step), [None] * len(of_runs))[number] = value
        head = [some.name, some.statistic, some.phase, some.rank]
        for place in sorted(at):
            yield [*head, *place, *at[place]]


def write_csv(path: Path, names: Sequence[str], table: Iterable[Sequence[Any]]) -> int:
    """Write a CSV file, whole or not at all, and return how many rows it has beside the header.

    UTF-8 without a mark, for scripts; NaN and infinities by these names; texts that a spreadsheet
    would compute have an apostrophe before them.

    Raises:
        OSError: it cannot be written.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(names)
    count = 0
    for row in table:
        count += 1
        writer.writerow([_cell(value) for value in row])
    write_atomic(path, [stream.getvalue().encode("utf-8")])
    return count


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return harmless(clean(value))
    return number_to_json(value) if isinstance(value, float) else value
