"""compare and compare_distributed: msprobe's comparisons of layer data, by their arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe import log
from mindrlhf_msprobe.errors import RunError, UsageError, nearest_of
from mindrlhf_msprobe.log import logger

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
    from mindrlhf_msprobe.comparison import compare_runs

    log.configure()
    mappings = {name: options[name] for name in MAPPINGS if options.get(name)}
    answer(compare_runs(Path(a), Path(b), output_path=Path(output), keep_earlier=True, **mappings))


def answer(comparison: Comparison) -> None:
    """Log the answer; a comparison of nothing is an error.

    Raises:
        RunError: nothing was compared.
    """
    from mindrlhf_msprobe.findings import Outcome
    from mindrlhf_msprobe.report.console.analysis.comparison import render

    text = render(comparison)
    if comparison.verdict.status is Outcome.INCOMPARABLE:
        raise RunError(text)
    (logger.info if comparison else logger.warning)("%s", text)
