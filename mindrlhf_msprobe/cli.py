"""mindrlhf-msprobe: the command line.

Results go to stdout, messages to stderr. Exit codes: 0 the same, 1 diverged, 2 could not decide.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.errors import MsprobeError

if TYPE_CHECKING:
    from mindrlhf_msprobe.findings import Comparison

SAME = 0
DIVERGED = 1
UNDECIDED = 2

_OBJECTS_BETWEEN_COLLECTIONS = 200_000
_TWO_RANKS = "two rank numbers with a comma between them, e.g. 0,1"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8
    parser = _parser()
    arguments = parser.parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        return int(arguments.run(arguments))
    except MsprobeError as error:
        print(f"mindrlhf-msprobe {arguments.command}: {error}", file=sys.stderr)
        return UNDECIDED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _close_stdout()
        return UNDECIDED
    except OSError as error:
        print(f"mindrlhf-msprobe {arguments.command}: {error}", file=sys.stderr)
        return UNDECIDED


class _Parser(argparse.ArgumentParser):
    """A parser whose errors say what to do; argparse already exits with 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(UNDECIDED, f"{self.prog}: {message}. See {self.prog} --help.\n")


class _Command(_Parser):
    """The parser of a command: what is no option may stand anywhere between the options."""

    _intermixed = False

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        if self._intermixed:  # which it calls for the options, then for the rest
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False


def _joined(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--option -1…` as `--option=-1…`: no option begins with a digit."""
    joined: list[str] = []
    for index, argument in enumerate(arguments):
        before = arguments[index - 1] if index else ""
        takes = before.startswith("--") and before != "--" and "=" not in before
        if takes and re.match(r"-\d", argument) and "--" not in arguments[:index]:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _answer(text: str, code: int) -> int:
    """Print what was found and return the exit code, also where nobody reads to the end."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _close_stdout()
    return code


def _close_stdout() -> None:
    """Let go what stdout still holds: it would raise once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mindrlhf-msprobe",
        description="Find where two trainings on MindSpore first part, and why.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Command
    )
    _add_compare(commands)
    _add_show(commands)
    _add_estimate(commands)
    _add_demo(commands)
    return parser


def _add_compare(commands: argparse._SubParsersAction[_Command]) -> None:
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
    compare.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json, to show token ids as text"
    )
    compare.add_argument(
        "--phases", metavar="X,Y", help="hold phase X of A against phase Y of B, or of A itself"
    )
    compare.add_argument(
        "--ranks", metavar="M,N", help="hold rank M of A against rank N of B, or of A itself"
    )
    compare.add_argument("--csv", action="store_true", help="write the tables as CSV as well")
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

    from mindrlhf_msprobe.comparison import compare_runs
    from mindrlhf_msprobe.findings import Outcome
    from mindrlhf_msprobe.report import OutputError
    from mindrlhf_msprobe.report.console import render
    from mindrlhf_msprobe.report.progress import progress_bar

    options = _compare_options(arguments)
    unwritable = False

    def compare(output: str | None) -> Comparison:
        with progress_bar("Comparing", "records") as advance:
            return compare_runs(output_path=output, progress=advance, **options)

    began = time.perf_counter()
    try:
        result = compare(arguments.output_path)
    except OutputError as error:
        unwritable = True
        print(
            f"mindrlhf-msprobe compare: no tables were written: {error} "
            f"The answer is printed here.",
            file=sys.stderr,
        )
        result = compare(None) if error.comparison is None else error.comparison
    undecided = unwritable or result.verdict.status is Outcome.INCOMPARABLE
    code = UNDECIDED if undecided else SAME if result else DIVERGED
    if arguments.json:
        return _answer(json.dumps(result.to_json(), ensure_ascii=False, indent=1), code)
    return _answer(render(result, time.perf_counter() - began), code)


def _compare_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the command line's choices as compare_runs takes them.

    Raises:
        UsageError: one of them is wrong.
    """
    from mindrlhf_msprobe.comparison import Tolerance
    from mindrlhf_msprobe.comparison.tolerance import Tolerances, load_rules
    from mindrlhf_msprobe.errors import UsageError

    runs = [*arguments.runs, arguments.target_path, arguments.golden_path]
    runs = [run for run in runs if run is not None]
    if "" in runs:
        raise UsageError("the path of a run is empty; expected the dump_path of a run")
    within_one = len(runs) == 1 and (arguments.phases or arguments.ranks)
    if len(runs) != 2 and not within_one:
        hint = "; one run is enough with --phases or --ranks" if len(runs) == 1 else ""
        raise UsageError(f"expected two runs to compare, got {len(runs)}: {' '.join(runs)}{hint}")
    try:
        default = Tolerance(arguments.rtol, arguments.atol)
    except ValueError as error:
        raise UsageError(str(error)) from None
    rules = load_rules(arguments.tolerance) if arguments.tolerance is not None else ()
    phases = _two("--phases", arguments.phases, "two names with a comma between them")
    ranks = _two("--ranks", arguments.ranks, _TWO_RANKS)
    if ranks is not None and not all(re.fullmatch("[0-9]{1,9}", rank) for rank in ranks):
        raise UsageError(f"--ranks is {arguments.ranks!r}; expected {_TWO_RANKS}")
    if arguments.address is not None and arguments.engine != "ray":
        raise UsageError("--address is of a Ray cluster; give --engine ray with it")
    return {
        "a": runs[0],
        "b": runs[1] if len(runs) == 2 else None,
        "tolerance": Tolerances(default, rules),
        "noise": arguments.noise,
        "mapping": arguments.mapping,
        "tokenizer": arguments.tokenizer,
        "phases": phases,
        "ranks": None if ranks is None else (int(ranks[0]), int(ranks[1])),
        "engine": arguments.engine,
        "address": arguments.address,
        "workers": arguments.workers,
        "csv": arguments.csv,
    }


def _two(option: str, value: str | None, expected: str) -> tuple[str, str] | None:
    """Split the two values of an option."""
    from mindrlhf_msprobe.errors import UsageError

    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if len(parts) != 2 or not all(parts):
        raise UsageError(f"{option} is {value!r}; expected {expected}")
    return parts[0], parts[1]


def _add_show(commands: argparse._SubParsersAction[_Command]) -> None:
    show = commands.add_parser(
        "show",
        help="list what a run holds, or show one record",
        description="List a run's phases, steps, ranks, keys and sizes; with a name, show that "
        "record's statistics and first values. An entry's or a key's name shows all its records.",
    )
    show.add_argument("path", metavar="RUN", help="the dump_path of a run")
    show.add_argument("name", nargs="?", metavar="NAME", help="a record, an entry or a key")
    show.add_argument("--json", action="store_true", help="print JSON instead of text")
    show.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.listing import render_holdings, render_records
    from mindrlhf_msprobe.storage.inventory import find_records, inventory
    from mindrlhf_msprobe.storage.reader import open_run

    if not arguments.path:
        raise UsageError("the path of the run is empty; expected the dump_path of a run")
    run = open_run(arguments.path)
    if arguments.name is None:
        holdings = inventory(run)
        content = [holding.to_json() for holding in holdings]
        problems = [*map(str, run.problems), *run.lost]
        text = render_holdings(run.path, run.state, holdings, problems, run.cost)
    else:
        records = find_records(run, arguments.name)
        content = [record.to_json() for record in records]
        text = render_records(records)
    answer = json.dumps(content, ensure_ascii=False, indent=1) if arguments.json else text
    return _answer(answer, SAME)


def _add_estimate(commands: argparse._SubParsersAction[_Command]) -> None:
    estimate = commands.add_parser(
        "estimate",
        help="say how much room a recording with full tensors would take",
        description="From a run of one step with task: statistics, say how many bytes a step of a "
        "rank would take with other settings, and whether they fit into the file system of RUN. "
        "Exit codes: 0 it fits, 1 it does not, 2 could not decide.",
    )
    estimate.add_argument("path", metavar="RUN", help="the dump_path of a run")
    estimate.add_argument(
        "--task", choices=("statistics", "tensor"), default="tensor", help="(default: %(default)s)"
    )
    for name in ("include", "exclude"):
        estimate.add_argument(
            f"--{name}", metavar="RE", action="append", default=[], help=f"as {name} (repeatable)"
        )
    estimate.add_argument(
        "--directions",
        metavar="X,Y",
        default="forward,backward",
        help="as directions, with commas between (default: %(default)s)",
    )
    estimate.add_argument("--steps", type=int, default=1, help="training steps (default: 1)")
    estimate.add_argument("--ranks", type=int, help="ranks (default: as many as recorded)")
    estimate.add_argument("--json", action="store_true", help="print JSON instead of text")
    estimate.set_defaults(run=_estimate)


def _estimate(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.config import ProbeConfig
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.estimate import render_estimate
    from mindrlhf_msprobe.storage.estimate import estimate
    from mindrlhf_msprobe.storage.reader import open_run

    if not arguments.path:
        raise UsageError("the path of the run is empty; expected the dump_path of a run")
    for option in ("steps", "ranks"):
        number = getattr(arguments, option)
        if number is not None and number < 1:
            raise UsageError(f"--{option} is {number}; expected a whole number, 1 or larger")
    wanted = ProbeConfig(
        task=arguments.task,
        include=arguments.include,
        exclude=arguments.exclude,
        directions=tuple(part.strip() for part in arguments.directions.split(",")),
    )
    found = estimate(open_run(arguments.path), wanted, steps=arguments.steps, ranks=arguments.ranks)
    content = json.dumps(found.to_json(), ensure_ascii=False, indent=1)
    code = SAME if found.fits else DIVERGED
    return _answer(content if arguments.json else render_estimate(found), code)


def _add_demo(commands: argparse._SubParsersAction[_Command]) -> None:
    demo = commands.add_parser(
        "demo",
        help="run a real PPO training twice, plant a fault in the second, and find it",
        description="Run a small PPO training on CPU twice, with a small error planted in one cell "
        "of the second run, compare the two and name the cell. Exit codes: 0 the verdict is what "
        "was planted, 1 it is not, 2 could not decide.",
    )
    demo.add_argument(
        "--output", metavar="DIR", required=True, help="directory for runs and tables"
    )
    demo.add_argument("--steps", type=int, default=3, help="training steps (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=1234, help="seed (default: %(default)s)")
    fault = demo.add_mutually_exclusive_group()
    fault.add_argument(
        "--fault",
        metavar="PHASE:CELL",
        help="where the error is planted, e.g. actor_update:lm_head (default: one linear layer of "
        "the reference's second block)",
    )
    fault.add_argument("--no-fault", action="store_true", help="plant nothing: both runs agree")
    demo.add_argument(
        "--fault-step",
        type=int,
        metavar="N",
        help="the step from which on the error is there (default: 1, or 0 with --steps 1)",
    )
    demo.add_argument(
        "--config", metavar="FILE", help="the trainer's YAML (default: yaml_examples/ppo_demo.yaml)"
    )
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.demo.command import run_demo

    return run_demo(arguments)
