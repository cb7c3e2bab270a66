"""`compare`: two runs, or two sides of one."""

from __future__ import annotations

import argparse
import gc
import os
import re
import time
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.cli.exit_codes import DIVERGED, SAME, UNDECIDED, answer, complain
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.findings import Comparison

_OBJECTS_BETWEEN_COLLECTIONS = 200_000


def add_parser(commands: Commands) -> None:
    """Add the command."""
    compare = commands.add_parser(
        "compare",
        help=say("help.compare"),
        description=say("help.compare_describes"),
    )
    compare.add_argument("runs", nargs="*", metavar="A B", help=say("help.compare_runs"))
    compare.add_argument("-tp", "--target_path", metavar="B", help=say("help.compare_target_path"))
    compare.add_argument("-gp", "--golden_path", metavar="A", help=say("help.compare_golden_path"))
    compare.add_argument(
        "-o",
        "--output_path",
        metavar="OUT",
        default="./msprobe_compare_output",
        help=say("help.compare_output_path"),
    )
    compare.add_argument("--rtol", type=float, default=0.0, help=say("help.compare_rtol"))
    compare.add_argument("--atol", type=float, default=0.0, help=say("help.compare_atol"))
    compare.add_argument(
        "--tolerance",
        metavar="FILE",
        help=say("help.compare_tolerance"),
    )
    compare.add_argument(
        "--noise",
        metavar="RUN",
        action="append",
        default=[],
        help=say("help.compare_noise"),
    )
    compare.add_argument("--mapping", metavar="FILE", help=say("help.compare_mapping"))
    for short, option in (("-cm", "cell"), ("-am", "api"), ("-lm", "layer")):
        what = say(f"help.compare_{option}_mapping")
        compare.add_argument(
            *(short, f"--{option}_mapping"),
            nargs="?",
            const=True,
            metavar="FILE",
            help=say("help.compare_of_msprobe", what=what),
        )
    compare.add_argument(
        *("-dm", "--data_mapping"),
        metavar="FILE",
        help=say("help.compare_data_mapping"),
    )
    compare.add_argument("--tokenizer", metavar="FILE", help=say("help.compare_tokenizer"))
    compare.add_argument("--phases", metavar="X,Y", help=say("help.compare_phases"))
    compare.add_argument("--ranks", metavar="M,N", help=say("help.compare_ranks"))
    compare.add_argument("--steps", metavar="STEPS", help=say("help.compare_steps"))
    for option in ("include", "exclude"):
        compare.add_argument(
            f"--{option}",
            metavar="RE",
            action="append",
            default=[],
            help=say(f"help.compare_{option}"),
        )
    compare.add_argument(
        "--keys",
        metavar="X,Y",
        help=say("help.compare_keys"),
    )
    compare.add_argument(
        "--first-only",
        action="store_true",
        help=say("help.compare_first_only"),
    )
    compare.add_argument(
        "--common",
        action="store_true",
        help=say("help.compare_common"),
    )
    compare.add_argument(
        "--after",
        metavar="OUT",
        help=say("help.compare_after"),
    )
    compare.add_argument("--csv", action="store_true", help=say("help.compare_csv"))
    compare.add_argument(
        "--all-rows",
        action="store_true",
        help=say("help.compare_all_rows"),
    )
    compare.add_argument("--workers", type=int, metavar="N", help=say("help.compare_workers"))
    compare.add_argument(
        "--engine", choices=("local", "ray"), default="local", help=say("help.compare_engine")
    )
    compare.add_argument("--address", metavar="ADDRESS", help=say("help.compare_address"))
    compare.add_argument("--json", action="store_true", help=say("help.compare_json"))
    compare.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    # Records are many and hold no circles: looking for some after every 700 objects takes 6 % of
    # a comparison of 2 000 records.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # Read when numpy is imported. No sum is long enough for OpenBLAS's threads, which would spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from mindrlhf_msprobe.comparison import compare_runs
    from mindrlhf_msprobe.findings import Outcome
    from mindrlhf_msprobe.report import OutputError
    from mindrlhf_msprobe.report.console.console import render
    from mindrlhf_msprobe.report.console.progress import progress_bar

    options = _compare_options(arguments)
    unwritable = False

    def compare(output: str | None) -> Comparison:
        with progress_bar(say("console.comparing"), say("console.unit_records")) as advance:
            return compare_runs(output_path=output, progress=advance, **options)

    began = time.perf_counter()
    try:
        result = compare(arguments.output_path)
    except OutputError as error:
        unwritable = True
        complain("compare", say("cli.no_tables", error=error.said))
        result = compare(None) if error.comparison is None else error.comparison
    undecided = unwritable or result.verdict.status is Outcome.INCOMPARABLE
    code = UNDECIDED if undecided else SAME if result else DIVERGED
    if arguments.json:
        import json

        return answer(
            json.dumps(result.to_json(), ensure_ascii=False, indent=1), code, as_json=True
        )
    return answer(render(result, time.perf_counter() - began), code)


def _runs(arguments: argparse.Namespace) -> list[str]:
    """Return the paths of the two runs, or of the one inside which is compared.

    Raises:
        UsageError: they are not so many, or one is empty.
    """
    from mindrlhf_msprobe.errors import UsageError

    runs = [arguments.golden_path, *arguments.runs, arguments.target_path]
    runs = [run for run in runs if run is not None]
    if "" in runs:
        raise UsageError(message("cli.empty_path_of_a_run"))
    within_one = len(runs) == 1 and (
        arguments.phases or arguments.ranks or "=" in (arguments.keys or "")
    )
    if len(runs) != 2 and not within_one:
        hint = message("cli.one_run_hint") if len(runs) == 1 else ""
        raise UsageError(message("cli.two_runs", runs=runs, hint=hint))
    return runs


def _compare_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the command line's choices as compare_runs takes them.

    Raises:
        UsageError: one of them is wrong.
    """
    from mindrlhf_msprobe.comparison import Tolerance
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances, load_rules
    from mindrlhf_msprobe.errors import UsageError

    runs = _runs(arguments)
    default = Tolerance(arguments.rtol, arguments.atol)
    rules = load_rules(arguments.tolerance) if arguments.tolerance is not None else ()
    phases = _two("--phases", arguments.phases, "cli.two_names")
    ranks = _two("--ranks", arguments.ranks, "cli.two_ranks")
    if ranks is not None and not all(re.fullmatch("[0-9]{1,9}", rank) for rank in ranks):
        raise _unexpected("--ranks", arguments.ranks, "cli.two_ranks")
    if arguments.address is not None and arguments.engine != "ray":
        raise UsageError(message("cli.address"))
    return {
        "a": runs[0],
        "b": runs[1] if len(runs) == 2 else None,
        "tolerance": Tolerances(default, rules),
        "noise": arguments.noise,
        "mapping": arguments.mapping,
        "cell_mapping": arguments.cell_mapping,
        "api_mapping": arguments.api_mapping,
        "data_mapping": arguments.data_mapping,
        "layer_mapping": arguments.layer_mapping,
        "tokenizer": arguments.tokenizer,
        "phases": phases,
        "ranks": None if ranks is None else (int(ranks[0]), int(ranks[1])),
        "steps": arguments.steps,
        "include": arguments.include,
        "exclude": arguments.exclude,
        "keys": () if arguments.keys is None else arguments.keys,
        "first_only": arguments.first_only,
        "common": arguments.common,
        "after": arguments.after,
        "engine": arguments.engine,
        "address": arguments.address,
        "workers": arguments.workers,
        "csv": arguments.csv,
        "lang": arguments.lang,
        "all_rows": arguments.all_rows,
    }


def _two(option: str, value: str | None, expected: str) -> tuple[str, str] | None:
    """Split the two values of an option."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if len(parts) != 2 or not all(parts):
        raise _unexpected(option, value, expected)
    return parts[0], parts[1]


def _unexpected(option: str, value: str, expected: str) -> UsageError:
    """Return the error of an option; `expected` is the code of what was expected."""
    from mindrlhf_msprobe.errors import UsageError

    wanted = message(expected)
    return UsageError(message("cli.option", option=option, value=repr(value), expected=wanted))
