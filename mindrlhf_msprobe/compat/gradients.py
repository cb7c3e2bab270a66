"""GradComparator: msprobe's comparison of gradients, by its arguments, with its files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.log import logger, warn
from mindrlhf_msprobe.report.trends.console import location
from mindrlhf_msprobe.report.trends.table import write_csv
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.reading.gradients import open_gradients
from mindrlhf_msprobe.trends.similarity import (
    GradientTrend,
    Measure,
    Similarity,
    compare_gradients,
)

_PathLike = str | os.PathLike[str]

_TABLE, _PICTURES, _SUMMARY = "similarities.csv", "similarities_picture", "summary"

#: (step, update), as a column of the table.
_Update = tuple[int, int]


class GradComparator:
    """Compares the signs of two runs' gradients, of this tool's runs and of msprobe's grad_probe.

    A similarity is the share of elements whose signs agree; `summary` weights the parameters by
    their numbers of elements.
    """

    @classmethod
    def compare(cls, path1: _PathLike, path2: _PathLike, output_dir: _PathLike) -> None:
        """Compare one rank: `similarities.csv`, and a picture a parameter if matplotlib is there.

        Args:
            path1, path2: directories `rank<R>` of grad_probe, or runs of this tool; of several
                ranks, each has a directory `rank<R>` in the output.

        Raises:
            UsageError: they have no gradients of the same steps.
            RunError: one of them holds neither.
            OSError: the output cannot be written.
        """
        found = _compared(path1, path2)
        ranks = sorted({one.rank for one in found.similarities})
        for rank in ranks:
            below = Path(output_dir) / f"rank{rank}" if len(ranks) > 1 else Path(output_dir)
            _write(found, rank, below)

    @classmethod
    def compare_distributed(cls, path1: _PathLike, path2: _PathLike, output_dir: _PathLike) -> None:
        """Compare all ranks: `rank<R>/similarities.csv` and pictures; see `compare`.

        Args:
            path1, path2: what `dump_path` was, of grad_probe or of this tool.
        """
        found = _compared(path1, path2)
        for rank in sorted({one.rank for one in found.similarities}):
            _write(found, rank, Path(output_dir) / f"rank{rank}")


def _compared(path1: _PathLike, path2: _PathLike) -> GradientTrend:
    a, b = open_gradients(Path(path1)), open_gradients(Path(path2))
    found = compare_gradients(a, b, measure=Measure.SIGNS)
    for problem in (*a.problems, *b.problems):
        logger.warning("%s", problem)
    for one in found.similarities:
        if one.measure is None:
            warn("unread.at", path=location(one), why=one.why)
    if not found.compared:
        raise UsageError.saying("trend.no_matched", a=str(path1), b=str(path2))
    return found


def _write(found: GradientTrend, rank: int, output: Path) -> None:
    similarities = [one for one in found.similarities if one.rank == rank]
    updates = [one for one in found.updates if one.rank == rank]
    columns = sorted({(one.step, one.update) for one in similarities})
    lines: dict[str, dict[_Update, float]] = {}
    for one in similarities:
        value = one.value if one.measure is not None else float("nan")
        lines.setdefault(_name(one, similarities), {})[one.step, one.update] = value
    lines[_SUMMARY] = {(one.step, one.update): one.value for one in updates}
    # msprobe's steps are calls of the optimizer; a step here may have several.
    several = any(update for _, update in columns)
    head = [f"{step}.{update}" if several else str(step) for step, update in columns]
    output.mkdir(parents=True, exist_ok=True)
    rows = ([name, *(values.get(column) for column in columns)] for name, values in lines.items())
    write_csv(output / _TABLE, ["step", *head], rows)
    _draw(lines, columns, head, output / _PICTURES)


def _name(one: Similarity, all_of_rank: Sequence[Similarity]) -> str:
    """Return a parameter's name; of several phases, its phase's before it."""
    phases = {other.phase for other in all_of_rank}
    return one.parameter if len(phases) == 1 else f"{one.phase}.{one.parameter}"


def _draw(
    lines: Mapping[str, Mapping[_Update, float]],
    columns: Sequence[_Update],
    head: Sequence[str],
    directory: Path,
) -> None:
    """Draw a picture a parameter, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        warn("trend.no_pictures")
        return
    directory.mkdir(exist_ok=True)
    for name, values in lines.items():
        axes = (figure := Figure()).subplots()
        axes.plot(head, [values.get(column, np.nan) for column in columns])
        axes.set(xlabel="steps", ylabel="similarities", title=f"{name}_similarities")
        figure.savefig(directory / layout.file_name(f"{name}_similarities", ".png"))
