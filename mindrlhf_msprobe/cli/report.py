"""`report`: one offline page of a run, or of two and how they compare."""

from __future__ import annotations

import argparse
import gc
import time
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import DIVERGED, SAME, UNDECIDED, answer
from mindrlhf_msprobe.cli.parsing import Command, Commands
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.health import CheckResults

_OBJECTS_BETWEEN_COLLECTIONS = 200_000


def add_parser(commands: Commands) -> None:
    """Add the command."""
    report = Command.add(commands, "report", _report)
    report.add_argument("runs", nargs="+", metavar="RUN")
    report.add_argument("-o", "--output_path", metavar="FILE", required=True)
    report.add_argument("--rtol", type=float, default=0.0)
    report.add_argument("--atol", type=float, default=0.0)
    report.add_argument("--tolerance", metavar="FILE")
    report.add_argument("--noise", metavar="RUN", action="append", default=[])
    report.add_argument("--mapping", metavar="FILE")
    report.add_argument("--tokenizer", metavar="FILE")
    report.add_argument("--rules", metavar="FILE")
    report.add_argument("--healthy", metavar="RUN", action="append", default=[])


def _report(arguments: argparse.Namespace) -> int:
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)  # as in compare: lines of JSON hold no circles

    from mindrlhf_msprobe.cli.pages import check_page, write_page
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.findings import Outcome
    from mindrlhf_msprobe.health import Health
    from mindrlhf_msprobe.report.console.checks import run_headline
    from mindrlhf_msprobe.report.console.console import headline

    runs, file = arguments.runs, arguments.output_path
    if len(runs) > 2:
        raise UsageError.saying("report.one_or_two_runs", runs=", ".join(runs))
    if "" in (*runs, *arguments.healthy):
        raise UsageError.saying("cli.empty_path_of_a_run")
    began = time.perf_counter()
    check_page(file, runs)
    comparison = _comparison(arguments) if len(runs) == 2 else None
    checks = _checks(arguments)
    size = write_page(file, runs, comparison, checks.runs, arguments.tokenizer, arguments.lang)
    if comparison is not None:
        undecided = comparison.verdict.status is Outcome.INCOMPARABLE
        code = UNDECIDED if undecided else SAME if comparison else DIVERGED
        lines = headline(comparison.verdict)
    else:
        codes = {Health.HEALTHY: SAME, Health.UNHEALTHY: DIVERGED, Health.NOT_CHECKED: UNDECIDED}
        code = codes[checks.status]
        lines = [run_headline(checks.runs[0])]
    seconds = time.perf_counter() - began
    lines.append(say("report.written", file=file, bytes=size, seconds=seconds))
    return answer("\n".join(lines), code)


def _comparison(arguments: argparse.Namespace) -> Comparison:
    from mindrlhf_msprobe.comparison import Tolerance, compare_runs
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances, load_rules
    from mindrlhf_msprobe.report.console.progress import progress_bar

    given = arguments.tolerance
    default = Tolerance(arguments.rtol, arguments.atol)
    tolerances = Tolerances(default, load_rules(given) if given is not None else ())
    with progress_bar(say("console.comparing"), say("console.unit_records")) as advance:
        return compare_runs(
            *arguments.runs,
            tolerance=tolerances,
            noise=arguments.noise,
            mapping=arguments.mapping,
            tokenizer=arguments.tokenizer,
            progress=advance,
        )


def _checks(arguments: argparse.Namespace) -> CheckResults:
    from mindrlhf_msprobe.checks import check_runs
    from mindrlhf_msprobe.report.console.progress import progress_bar

    with progress_bar(say("checks.checking"), say("checks.unit_steps")) as advance:
        return check_runs(
            arguments.runs, rules=arguments.rules, healthy=arguments.healthy, progress=advance
        )
