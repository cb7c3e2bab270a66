"""`accuracy`: what a second computation in higher precision thinks of a run."""

from __future__ import annotations

import argparse
from functools import partial

from mindrlhf_msprobe.cli.parsing import Command, Commands, collect_rarely, refuse_empty
from mindrlhf_msprobe.report.answer import Answer


def add_parser(commands: Commands) -> None:
    """Add the command."""
    accuracy = Command.add(commands, "accuracy", _accuracy)
    accuracy.add_argument("path", metavar="RUN")
    accuracy.add_argument("-o", "--output_path", metavar="OUT")
    accuracy.add_argument("--json", action="store_true")


def _accuracy(arguments: argparse.Namespace) -> Answer:
    collect_rarely()

    from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of
    from mindrlhf_msprobe.report.accuracy import FILES, lines_of, sheets_of

    def find() -> Answer:
        found = accuracy_of(arguments.path)
        sheets = partial(sheets_of, found)
        return Answer(found.status.exit_code, partial(lines_of, found), found.to_json, sheets)

    refuse_empty(arguments.path)
    return FILES.answer(arguments.output_path, [arguments.path], find)
