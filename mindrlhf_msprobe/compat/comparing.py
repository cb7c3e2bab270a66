"""compare, compare_distributed and GradComparator: msprobe's comparisons, by their arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe import log
from mindrlhf_msprobe.errors import RunError, UsageError, nearest_of
from mindrlhf_msprobe.log import logger, warn
from mindrlhf_msprobe.report.trends import location, write_csv
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest.run_file import TOOL
from mindrlhf_msprobe.storage.outputs import Output, written
from mindrlhf_msprobe.storage.reading.gradients import open_gradients
from mindrlhf_msprobe.trends.similarity import GradientTrend, Measure, compare_gradients

if TYPE_CHECKING:
    from mindrlhf_msprobe.findings import Comparison

_PathLike = str | os.PathLike[str]

#: What msprobe takes for its console and its tables, which differ here.
_OF_THE_OUTPUT = (
    *("is_print_compare_log", "fuzzy_match", "stack_mode", "auto_analyze", "highlight", "xlsx"),
    *("diff_analyze", "first_diff_analyze", "consistent_check", "backend", "config", "suffix"),
)
MAPPINGS = ("cell_mapping", "api_mapping", "data_mapping", "layer_mapping")
#: What versions of msprobe call the two dumps of `compare`.
_DUMPS = (("npu_json_path", "npu_path"), ("bench_json_path", "bench_path"))


def compare_distributed(
    dir1: _PathLike | None = None,
    dir2: _PathLike | None = None,
    output_path: _PathLike | None = None,
    **options: Any,
) -> None:
    """Compare the layer data of two runs, all ranks: what lies below one step of each, usually.

    Writes `compare_result_<time>.xlsx`, of several ranks `compare_result_rank<N>_<time>.xlsx` each,
    beside what earlier comparisons wrote.

    Args:
        dir1, dir2: directories `…/step<N>` with the ranks in them, or a phase's, or a whole run's;
            also by msprobe's names, npu_dump_dir and bench_dump_dir. The second is the baseline: A
            of the answer, Bench of the tables.
        output_path: where the tables are written.
        options: cell_mapping, api_mapping, data_mapping, layer_mapping: see `compare_runs`. Those
            of msprobe that concern its console and tables change nothing.

    Raises:
        UsageError: a directory is not given, or an option is unknown.
        ConfigError: a mapping's file is wrong.
        RunError: a directory is not a run, both are the same, they have nothing in common, or the
            output cannot be written.
    """
    dir1 = options.pop("npu_dump_dir", dir1)
    dir2 = options.pop("bench_dump_dir", dir2)
    if dir1 is None or dir2 is None or output_path is None:
        raise UsageError.saying(
            "error.compare_distributed", dir1=dir1, dir2=dir2, output_path=output_path
        )
    _compare("compare_distributed", dir2, dir1, output_path, options)


def compare(
    input_param: Mapping[str, Any], output_path: _PathLike = "./output", **options: Any
) -> None:
    """Compare the layer data of one rank of two runs.

    Writes `compare_result_<time>.xlsx` beside what earlier comparisons wrote.

    Args:
        input_param: `npu_json_path` (or `npu_path`) and `bench_json_path` (or `bench_path`), each a
            dump.json, or a directory as for `compare_distributed`, the second being the baseline;
            what else msprobe takes there changes nothing.
        output_path: where the tables are written.
        options: as for `compare_distributed`.

    Raises:
        As `compare_distributed`.
    """
    if not isinstance(input_param, Mapping):
        raise UsageError.saying(
            "error.compare_input", input_param=input_param, value=_DUMPS[0][0], value2=_DUMPS[1][0]
        )
    dumps = []
    for names in _DUMPS:
        dump = next((input_param[name] for name in names if input_param.get(name)), None)
        dumps.append(dump)
        if not isinstance(dump, (str, os.PathLike)):
            raise UsageError.saying("error.compare_dump", value=names[0], dump=dump)
    _compare("compare", dumps[1], dumps[0], output_path, options)


def _compare(call: str, a: Any, b: Any, output: _PathLike, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in (*_OF_THE_OUTPUT, *MAPPINGS):
            raise UsageError.saying(
                "error.unknown_option",
                call=call,
                name=name,
                value=value,
                nearest=nearest_of(name, (*_OF_THE_OUTPUT, *MAPPINGS)),
            )
    from mindrlhf_msprobe.api import compare_runs

    log.configure()
    mappings = {name: options[name] for name in MAPPINGS if options.get(name)}
    answer(compare_runs(Path(a), Path(b), output_path=Path(output), keep_earlier=True, **mappings))


def answer(comparison: Comparison) -> None:
    """Log the answer; a comparison of nothing is an error.

    Raises:
        RunError: nothing was compared.
    """
    from mindrlhf_msprobe.findings import Outcome
    from mindrlhf_msprobe.report.comparison import render

    text = render(comparison)
    if comparison.verdict.status is Outcome.INCOMPARABLE:
        raise RunError(text)
    (logger.info if comparison else logger.warning)("%s", text)


_TABLE, _PICTURES, _SUMMARY = "similarities.csv", "similarities_picture", "summary"


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
            RunError: the output cannot be written there.
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
    of_one_phase = len({one.phase for one in similarities}) == 1
    lines: dict[str, dict[tuple[int, int], float]] = {}  # by name and (step, update)
    for one in similarities:
        value = one.value if one.measure is not None else float("nan")
        name = one.parameter if of_one_phase else f"{one.phase}.{one.parameter}"
        lines.setdefault(name, {})[one.step, one.update] = value
    lines[_SUMMARY] = {(one.step, one.update): one.value for one in updates}
    # msprobe's steps are calls of the optimizer; a step here may have several.
    several = any(update for _, update in columns)
    head = [f"{step}.{update}" if several else str(step) for step, update in columns]
    rows = ([name, *(values.get(column) for column in columns)] for name, values in lines.items())
    draws = find_spec("matplotlib") is not None
    if not draws:
        warn("trend.no_pictures")
    outputs = [Output(output / _TABLE, _is_table)]
    for name in lines if draws else ():
        file = layout.file_name(f"{name}_similarities", ".png")
        outputs.append(Output(output / _PICTURES / file, _is_picture))
    with written(*outputs) as (table, *parts):
        write_csv(table, ["step", *head], rows)
        for part, (name, values) in zip(parts, lines.items()):
            from matplotlib.figure import Figure

            axes = (figure := Figure()).subplots()
            axes.plot(head, [values.get(column, np.nan) for column in columns])
            axes.set(xlabel="steps", ylabel="similarities", title=f"{name}_similarities")
            figure.savefig(part, format="png", metadata={"Software": TOOL})


def _is_table(path: Path) -> bool:
    """Return whether a file is such a table: a column a step, or a step's update."""
    with open(path, encoding="utf-8", newline="") as file:
        return re.fullmatch(r"step(,\d+(\.\d+)?)*\r\n", file.readline()) is not None


def _is_picture(path: Path) -> bool:
    with open(path, "rb") as file:
        return TOOL.encode() in file.read(1024)  # bytes of a picture, which say what made it
