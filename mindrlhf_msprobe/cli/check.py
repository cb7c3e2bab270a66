"""`check`: is one run healthy, by itself?"""

from __future__ import annotations

import argparse
import time

from mindrlhf_msprobe.cli.parsing import Command, Commands, collect_rarely, refuse_empty
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    check = Command.add(commands, "check", _check)
    check.add_argument("runs", nargs="+", metavar="RUN")
    check.add_argument("--rules", metavar="FILE")
    check.add_argument("--rule", metavar="MODULE:FUNCTION", action="append", default=[])
    check.add_argument("--healthy", metavar="RUN", action="append", default=[])
    check.add_argument("-o", "--output_path", metavar="OUT")
    check.add_argument("--html", metavar="FILE")
    check.add_argument("--not-checked", action="store_true")
    check.add_argument("--json", action="store_true")


def _check(arguments: argparse.Namespace) -> Answer:
    collect_rarely()

    from mindrlhf_msprobe.api import check_runs
    from mindrlhf_msprobe.cli.report import check_page, page_line
    from mindrlhf_msprobe.report.checks import lines_of
    from mindrlhf_msprobe.report.terminal import progress_bar

    refuse_empty(*arguments.runs, *arguments.healthy)
    if arguments.html is not None and len(arguments.runs) > 1:
        raise UsageError.saying("report.of_one_run", runs=", ".join(arguments.runs))
    check_page(arguments.html, arguments.runs)
    began = time.perf_counter()
    with progress_bar(say("checks.checking"), say("checks.unit_steps")) as advance:
        results = check_runs(
            arguments.runs,
            rules=arguments.rules,
            extra=arguments.rule,
            healthy=arguments.healthy,
            output_path=arguments.output_path,
            progress=advance,
        )
    seconds = time.perf_counter() - began
    page = page_line(arguments.html, arguments.runs, None, results.runs)
    return Answer(
        results.status.exit_code,
        lambda: [*lines_of(results, seconds, not_checked=arguments.not_checked), *page],
        results.to_json,
    )
