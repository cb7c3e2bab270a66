"""`report`: one offline page of a run, or of two and how they compare."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import answer, of_checks, of_comparison
from mindrlhf_msprobe.cli.parsing import (
    Command,
    Commands,
    add_tolerance,
    collect_rarely,
    tolerances_of,
)
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.findings.health import CheckResults


def add_parser(commands: Commands) -> None:
    """Add the command."""
    report = Command.add(commands, "report", _report, has_groups=True)
    report.add_argument("runs", nargs="+", metavar="RUN")
    report.add_argument("-o", "--output_path", metavar="FILE", required=True)
    add_tolerance(report)
    report.add_argument("--mapping", metavar="FILE")
    report.add_argument("--tokenizer", metavar="FILE")
    report.add_argument("--rules", metavar="FILE")
    report.add_argument("--healthy", metavar="RUN", action="append", default=[])


def _report(arguments: argparse.Namespace) -> int:
    collect_rarely()

    from mindrlhf_msprobe.cli.pages import check_page, mismatch_of, write_page
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.console.checks import run_headline
    from mindrlhf_msprobe.report.console.comparison import headline

    runs, file = arguments.runs, arguments.output_path
    if len(runs) > 2:
        raise UsageError.saying("report.one_or_two_runs", runs=", ".join(runs))
    if "" in (*runs, *arguments.healthy):
        raise UsageError.saying("cli.empty_path_of_a_run")
    began = time.perf_counter()
    check_page(file, runs)
    comparison = _comparison(arguments) if len(runs) == 2 else None
    checks = _checks(arguments)
    tokenizer = arguments.tokenizer
    mismatches = [mismatch_of(run, tokenizer) for run in dict.fromkeys(runs)]
    size = write_page(
        file, runs, comparison, checks.runs, tokenizer, arguments.lang, mismatches=mismatches
    )
    if comparison is not None:
        code, lines = of_comparison(comparison), headline(comparison.verdict)
    else:
        code, lines = of_checks(checks), [run_headline(checks.runs[0])]
    seconds = time.perf_counter() - began
    lines.append(say("report.written", file=file, bytes=size, seconds=seconds))
    return answer("\n".join(lines), code)


def _comparison(arguments: argparse.Namespace) -> Comparison:
    from mindrlhf_msprobe.api import compare_runs
    from mindrlhf_msprobe.report.console.terminal import progress_bar

    with progress_bar(say("console.comparing"), say("console.unit_records")) as advance:
        return compare_runs(
            *arguments.runs,
            tolerance=tolerances_of(arguments),
            noise=arguments.noise,
            mapping=arguments.mapping,
            tokenizer=arguments.tokenizer,
            progress=advance,
        )


def _checks(arguments: argparse.Namespace) -> CheckResults:
    from mindrlhf_msprobe.api import check_runs
    from mindrlhf_msprobe.report.console.terminal import progress_bar

    with progress_bar(say("checks.checking"), say("checks.unit_steps")) as advance:
        return check_runs(
            arguments.runs, rules=arguments.rules, healthy=arguments.healthy, progress=advance
        )
