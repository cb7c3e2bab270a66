"""`run`: a trainer's script with the probe, without an edit of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mindrlhf_msprobe.cli.shared.exit_codes import SAME, UNDECIDED, complain
from mindrlhf_msprobe.cli.shared.parsing import LANG, Command, Commands

NAME = "run"


def add_parser(commands: Commands) -> None:
    """Add the command."""
    run = Command.add(
        commands, NAME, run_script, usage="mindrlhf-msprobe run [-h] [--lang {en,zh}] SCRIPT ..."
    )
    run.add_argument("script", metavar="SCRIPT")
    run.set_defaults(arguments=[])


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what is for this command line, and what is for the script behind it."""
    own = list(arguments)
    if own[:1] == [NAME]:
        for index, argument in enumerate(own[1:], start=1):
            if own[index - 1] == LANG:
                continue
            if not argument.startswith("-"):
                return own[: index + 1], own[index + 1 :]
            if argument == "--":
                return own[: index + 2], own[index + 2 :]
    return own, []


def run_script(arguments: argparse.Namespace) -> int:
    """Run the script; what it raises is not caught."""
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.integrations.launcher import check_script, start

    try:
        check_script(arguments.script)
    except UsageError as error:
        complain("run", error)
        return UNDECIDED
    start(arguments.script, arguments.arguments)
    return SAME
