"""`check`: is one run healthy, by itself?"""

from __future__ import annotations

import argparse
import time

from mindrlhf_msprobe.cli.exit_codes import answer, of_checks
from mindrlhf_msprobe.cli.parsing import Command, Commands, collect_rarely
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


def _check(arguments: argparse.Namespace) -> int:
    collect_rarely()

    from mindrlhf_msprobe.api import check_runs
    from mindrlhf_msprobe.cli.pages import check_page, write_page
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.console.checks import render
    from mindrlhf_msprobe.report.console.terminal import progress_bar

    if "" in (*arguments.runs, *arguments.healthy):
        raise UsageError.saying("cli.empty_path_of_a_run")
    if arguments.html is not None:
        if len(arguments.runs) > 1:
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
            lang=arguments.lang,
            progress=advance,
        )
    code = of_checks(results)
    seconds = time.perf_counter() - began
    if arguments.html is not None:
        write_page(arguments.html, arguments.runs, None, results.runs, lang=arguments.lang)
    if arguments.json:
        return answer(results.to_json(), code)
    page = [] if arguments.html is None else [say("report.file", file=arguments.html)]
    said = render(results, seconds, not_checked=arguments.not_checked)
    return answer("\n".join([said, *page]), code)
