"""`check`: is one run healthy, by itself? `accuracy`: what a second computation thinks of it."""

from __future__ import annotations

import argparse
import time
from functools import partial

from mindrlhf_msprobe.cli.parsing import Command, Commands
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
    from mindrlhf_msprobe.api import check_runs
    from mindrlhf_msprobe.report.checks import lines_of
    from mindrlhf_msprobe.report.terminal import progress_bar

    if arguments.html is not None and len(arguments.runs) > 1:
        raise UsageError.saying("report.of_one_run", runs=", ".join(arguments.runs))
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
    return Answer(
        results.status.exit_code,
        lambda: lines_of(results, seconds, not_checked=arguments.not_checked),
        results.to_json,
        page=lambda: {"runs": arguments.runs, "checks": results.runs},
    )


def add_accuracy(commands: Commands) -> None:
    """Add `accuracy`."""
    accuracy = Command.add(commands, "accuracy", _accuracy)
    accuracy.add_argument("path", metavar="RUN")
    accuracy.add_argument("-o", "--output_path", metavar="OUT")
    accuracy.add_argument("--json", action="store_true")


def _accuracy(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of
    from mindrlhf_msprobe.report.accuracy import FILES, lines_of, sheets_of

    def find() -> Answer:
        found = accuracy_of(arguments.path)
        sheets = partial(sheets_of, found)
        return Answer(found.status.exit_code, partial(lines_of, found), found.to_json, sheets)

    return FILES.answer(arguments.output_path, [arguments.path], find)
