"""`compare`: two runs, or two sides of one."""

from __future__ import annotations

import argparse
import gc
import os
import re
import time
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.cli.exit_codes import DIVERGED, SAME, UNDECIDED, answer, complain
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
        help="compare two runs and say where they first part",
        description="Compare two runs, write tables and verdict.json, and name the first "
        "divergence and its cause. Exit codes: 0 the same, 1 diverged, 2 could not decide.",
    )
    compare.add_argument("runs", nargs="*", metavar="A B", help="the dump_path of two runs")
    compare.add_argument("-tp", "--target_path", metavar="A", help="run A, as msprobe calls it")
    compare.add_argument("-gp", "--golden_path", metavar="B", help="run B, as msprobe calls it")
    compare.add_argument(
        "-o",
        "--output_path",
        metavar="OUT",
        default="./msprobe_compare_output",
        help="directory for tables and verdict.json (default: %(default)s)",
    )
    compare.add_argument("--rtol", type=float, default=0.0, help="relative tolerance (default: 0)")
    compare.add_argument("--atol", type=float, default=0.0, help="absolute tolerance (default: 0)")
    compare.add_argument(
        "--tolerance",
        metavar="FILE",
        help="YAML with tolerance rules: a regular expression on record names → {rtol, atol}; the "
        "first that matches counts, --rtol and --atol hold for the rest",
    )
    compare.add_argument(
        "--noise",
        metavar="RUN",
        action="append",
        default=[],
        help="a further run of A's configuration, to learn the natural spread from (repeatable)",
    )
    compare.add_argument(
        "--mapping", metavar="FILE", help="YAML: name pattern of A's cells → their name in B"
    )
    for short, option, what in (
        ("-cm", "--cell_mapping", "name and class of A's cells → of B's"),
        ("-am", "--api_mapping", "APIs of A → of B"),
        ("-lm", "--layer_mapping", "class of a layer of A → what is inside it, in A → in B"),
    ):
        compare.add_argument(
            *(short, option),
            nargs="?",
            const=True,
            metavar="FILE",
            help=f"msprobe's mapping, YAML: {what}; without FILE the names that need none",
        )
    compare.add_argument(
        *("-dm", "--data_mapping"),
        metavar="FILE",
        help="msprobe's mapping, YAML: record of A → record of B",
    )
    compare.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json, to show token ids as text"
    )
    compare.add_argument(
        "--phases", metavar="X,Y", help="hold phase X of A against phase Y of B, or of A itself"
    )
    compare.add_argument(
        "--ranks", metavar="M,N", help="hold rank M of A against rank N of B, or of A itself"
    )
    compare.add_argument(
        "--steps", metavar="STEPS", help="compare these steps only, e.g. 2-5 or 2,4-6"
    )
    for option, what in (("include", "only records"), ("exclude", "no record")):
        compare.add_argument(
            f"--{option}",
            metavar="RE",
            action="append",
            default=[],
            help=f"compare {what} in whose name this regular expression is found (repeatable)",
        )
    compare.add_argument(
        "--keys",
        metavar="X,Y",
        help="compare these key data only; X=Y holds X of A against Y of B, or of A itself",
    )
    compare.add_argument(
        "--first-only",
        action="store_true",
        help="end at the first divergence, and write the tables of its place alone",
    )
    compare.add_argument(
        "--common",
        action="store_true",
        help="what one run alone has (steps, ranks, phases, keys, cells) is no divergence",
    )
    compare.add_argument(
        "--after",
        metavar="OUT",
        help="the output of the comparison that proposed this recording: what it found is used",
    )
    compare.add_argument("--csv", action="store_true", help="write the tables as CSV as well")
    compare.add_argument(
        "--all-rows",
        action="store_true",
        help="list every record in the tables; else, of more than 50 000, those of cells that "
        "agree are one row a phase, step and rank",
    )
    compare.add_argument(
        "--workers", type=int, metavar="N", help="processes that compare (default: one a core)"
    )
    compare.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="(default: %(default)s)"
    )
    compare.add_argument(
        "--address", metavar="ADDRESS", help="of a Ray cluster (default: one on this machine)"
    )
    compare.add_argument("--json", action="store_true", help="print verdict.json instead of text")
    compare.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    # Records are many and hold no circles: looking for some after every 700 objects takes 6 % of
    # a comparison of 2 000 records.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # Read when numpy is imported. No sum is long enough for OpenBLAS's threads, which would spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    import numpy  # noqa: F401  # openpyxl imports it, too: so once for both processes

    from mindrlhf_msprobe.report.formats.blank import made_beside

    with made_beside():
        from mindrlhf_msprobe.report.tables.workbook import expect_tables

        expect_tables()
        return _compared(arguments)


def _compared(arguments: argparse.Namespace) -> int:
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
        complain("compare", say("cli.no_tables", error=str(error)))
        result = compare(None) if error.comparison is None else error.comparison
    undecided = unwritable or result.verdict.status is Outcome.INCOMPARABLE
    code = UNDECIDED if undecided else SAME if result else DIVERGED
    if arguments.json:
        import json

        return answer(
            json.dumps(result.to_json(), ensure_ascii=False, indent=1), code, as_json=True
        )
    return answer(render(result, time.perf_counter() - began), code)


def _compare_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the command line's choices as compare_runs takes them.

    Raises:
        UsageError: one of them is wrong.
    """
    from mindrlhf_msprobe.comparison import Tolerance
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances, load_rules
    from mindrlhf_msprobe.errors import UsageError

    runs = [*arguments.runs, arguments.target_path, arguments.golden_path]
    runs = [run for run in runs if run is not None]
    if "" in runs:
        raise UsageError(say("cli.empty_path_of_a_run"))
    within_one = len(runs) == 1 and (
        arguments.phases or arguments.ranks or "=" in (arguments.keys or "")
    )
    if len(runs) != 2 and not within_one:
        hint = say("cli.one_run_hint") if len(runs) == 1 else ""
        given = " ".join(runs)
        raise UsageError(say("cli.two_runs", number=len(runs), runs=given, hint=hint))
    try:
        default = Tolerance(arguments.rtol, arguments.atol)
    except ValueError as error:
        raise UsageError(str(error)) from None
    rules = load_rules(arguments.tolerance) if arguments.tolerance is not None else ()
    phases = _two("--phases", arguments.phases, "cli.two_names")
    ranks = _two("--ranks", arguments.ranks, "cli.two_ranks")
    if ranks is not None and not all(re.fullmatch("[0-9]{1,9}", rank) for rank in ranks):
        raise _unexpected("--ranks", arguments.ranks, "cli.two_ranks")
    if arguments.address is not None and arguments.engine != "ray":
        raise UsageError(say("cli.address"))
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

    return UsageError(say("cli.option", option=option, value=repr(value), expected=say(expected)))
