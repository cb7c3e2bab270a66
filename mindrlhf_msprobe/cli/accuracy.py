"""`accuracy`: what a second computation in higher precision thinks of a run."""

from __future__ import annotations

import argparse

from mindrlhf_msprobe.cli.exit_codes import DIVERGED, SAME, UNDECIDED, answer
from mindrlhf_msprobe.cli.parsing import Command, Commands, collect_rarely
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    accuracy = Command.add(commands, "accuracy", _accuracy)
    accuracy.add_argument("path", metavar="RUN")
    accuracy.add_argument("-o", "--output_path", metavar="OUT")
    accuracy.add_argument("--json", action="store_true")


def _accuracy(arguments: argparse.Namespace) -> int:
    collect_rarely()

    from mindrlhf_msprobe.checks.accuracy import accuracy_of
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.findings.accuracy import Accuracy
    from mindrlhf_msprobe.report.console.accuracy import render
    from mindrlhf_msprobe.report.tables.accuracy import FILES, write_accuracy
    from mindrlhf_msprobe.storage.outputs import refuse

    if arguments.path == "":
        raise UsageError.saying("cli.empty_path_of_a_run")
    if arguments.output_path is not None:
        refuse(*FILES.outputs(arguments.output_path), runs=[arguments.path])
    found = accuracy_of(arguments.path)
    codes = {Accuracy.WRONG: DIVERGED, Accuracy.UNDECIDED: UNDECIDED, Accuracy.ORDINARY: SAME}
    written = []
    if arguments.output_path is not None:
        files = write_accuracy(found, arguments.output_path, arguments.lang)
        written = [say("accuracy.written", files=", ".join(map(str, files)))]
    if arguments.json:
        return answer(found.to_json(), codes[found.status])
    return answer("\n".join([render(found), *written]), codes[found.status])
