"""Series and similarities → files: CSV, and event files of TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.report.trends.event_files import EventFiles
from mindrlhf_msprobe.report.trends.table import header, rows, write_csv
from mindrlhf_msprobe.storage.reading.series import Series
from mindrlhf_msprobe.trends.similarity import GradientTrend

_SECTIONS = {"key": "key_data", "derived": "derived"}  # of what belongs to no phase
_OF_SIMILARITY = (
    *("step", "rank", "phase", "update", "parameter", "size", "measure", "similarity", "before"),
    "suspicion",
)


def write_series(
    sides: Sequence[Sequence[Series | None]], runs: int, csv: str | None, events: str | None
) -> None:
    """Write the files that were asked for.

    Args:
        runs: how many there are; of two, each has a folder of event files, A and B.
        csv, events: the file, the directory; None: not asked for.

    Raises:
        UsageError: tensorboardX is not installed.
        OSError: something cannot be written.
    """
    if csv is not None:
        write_csv(Path(csv), header(runs), rows(sides))
    if events is None:
        return
    with EventFiles(Path(events)) as files:
        for of_runs in sides:
            for side, series in zip("AB", of_runs):
                if series is not None:
                    write_events(files, f"{side}/" if runs > 1 else "", series)


def write_events(files: EventFiles, side: str, series: Series) -> None:
    """Write a series; where a step has several values, the n-th of each are a curve.

    Args:
        side: stands before the folder of the rank; "" or a folder with a slash behind.
    """
    name = series.name.replace("[", "/").removesuffix("]") if series.kind == "derived" else ""
    section = series.phase or _SECTIONS.get(series.kind, series.kind)
    tag = "/".join(filter(None, (section, name or series.name, series.statistic)))
    several = bool(series.micro_steps.any())
    columns = (column.tolist() for column in (series.steps, series.micro_steps, series.values))
    for step, micro_step, value in zip(*columns):
        own = f"{tag}/{micro_step}" if several else tag
        files.scalar(f"{side}rank{series.rank}", own, value, step)


def write_similarity(found: GradientTrend, csv: str | None, events: str | None) -> None:
    """Write the files that were asked for; see `write_series`."""
    if csv is not None:
        write_csv(Path(csv), _OF_SIMILARITY, map(_row, found.similarities))
    if events is None:
        return
    with EventFiles(Path(events)) as files:
        for update in found.updates:
            tag = f"similarity/{update.phase}/{update.update}"
            files.scalar(f"rank{update.rank}", tag, update.value, update.step)
        for one in found.compared:
            tag = f"similarity_{one.phase}/{one.parameter}/{one.update}"
            files.scalar(f"rank{one.rank}", tag, one.value, one.step)


def _row(found: Any) -> list[Any]:
    at = [found.step, found.rank, found.phase, found.update, found.parameter, found.size]
    value = found.value if found.measure is not None else None
    named = [None if item is None else item.value for item in (found.measure, found.suspicion)]
    return [*at, named[0], value, found.before, named[1]]
