"""`check`: is one run healthy, by itself?"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import DIVERGED, SAME, UNDECIDED, answer
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands

_OBJECTS_BETWEEN_COLLECTIONS = 200_000


def add_parser(commands: Commands) -> None:
    """Add the command."""
    check = commands.add_parser(
        "check", help=say("help.check"), description=say("help.check_describes")
    )
    check.add_argument("runs", nargs="+", metavar="RUN", help=say("help.check_runs"))
    check.add_argument("--rules", metavar="FILE", help=say("help.check_rules"))
    check.add_argument(
        "--rule",
        metavar="MODULE:FUNCTION",
        action="append",
        default=[],
        help=say("help.check_rule"),
    )
    check.add_argument("-o", "--output_path", metavar="OUT", help=say("help.check_output_path"))
    check.add_argument("--json", action="store_true", help=say("help.check_json"))
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)  # as in compare: lines of JSON hold no circles

    from mindrlhf_msprobe.checks import check_runs
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.health import Health
    from mindrlhf_msprobe.report.console.checks import render
    from mindrlhf_msprobe.report.console.progress import progress_bar

    if "" in arguments.runs:
        raise UsageError(message("cli.empty_path_of_a_run"))
    began = time.perf_counter()
    with progress_bar(say("checks.checking"), say("checks.unit_steps")) as advance:
        results = check_runs(
            arguments.runs,
            rules=arguments.rules,
            extra=arguments.rule,
            output_path=arguments.output_path,
            lang=arguments.lang,
            progress=advance,
        )
    codes = {Health.HEALTHY: SAME, Health.UNHEALTHY: DIVERGED, Health.NOT_CHECKED: UNDECIDED}
    code = codes[results.status]
    if arguments.json:
        text = json.dumps(results.to_json(), ensure_ascii=False, indent=1)
        return answer(text, code, as_json=True)
    return answer(render(results, time.perf_counter() - began), code)
