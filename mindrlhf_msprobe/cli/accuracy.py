"""`accuracy`: what a second computation in higher precision thinks of a run."""

from __future__ import annotations

import argparse

from mindrlhf_msprobe.cli.parsing import Command, Commands, collect_rarely, refuse_empty
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    accuracy = Command.add(commands, "accuracy", _accuracy)
    accuracy.add_argument("path", metavar="RUN")
    accuracy.add_argument("-o", "--output_path", metavar="OUT")
    accuracy.add_argument("--json", action="store_true")


def _accuracy(arguments: argparse.Namespace) -> Answer:
    collect_rarely()

    from mindrlhf_msprobe.checks.accuracy import accuracy_of
    from mindrlhf_msprobe.report.accuracy import FILES, lines_of, sheets_of
    from mindrlhf_msprobe.storage.outputs import refuse

    refuse_empty(arguments.path)
    output = arguments.output_path
    if output is not None:
        refuse(*FILES.outputs(output), runs=[arguments.path])
    found = accuracy_of(arguments.path)
    written = []
    if output is not None:
        files = FILES.write(output, sheets_of(found), found.to_json(), [found.path])
        written.append(say("accuracy.written", files=", ".join(map(str, files))))
    return Answer(found.status.exit_code, lambda: [*lines_of(found), *written], found.to_json)
