"""`prove`: which places explain the difference of two runs, by running B with A's tensors there."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from mindrlhf_msprobe.cli.parsing import (
    Command,
    Commands,
    add_tolerance,
    refuse_empty,
    tolerances_of,
)
from mindrlhf_msprobe.report.answer import Answer


def add_parser(commands: Commands) -> None:
    """Add the command."""
    prove = Command.add(commands, "prove", _prove, has_groups=True, usage=usage_of("prove", "A B"))
    prove.add_argument("runs", nargs=2, metavar="RUN")
    add_experiment(prove)
    prove.add_argument("--tensors", metavar="RUN")
    prove.add_argument("--again", type=int, default=1, metavar="N")
    prove.add_argument("--rounds", type=int, default=8, metavar="N")
    prove.add_argument("--gib", type=float, default=20.0, metavar="GIB")
    prove.add_argument("--html", metavar="FILE")


def usage_of(name: str, what: str) -> str:
    """Return the usage of a command that runs another one."""
    return f"mindrlhf-msprobe {name} {what} -o OUT [OPTION ...] -- COMMAND ..."


def add_experiment(command: Command) -> None:
    """Add the options of what runs a command again and again."""
    command.add_argument("-o", "--output_path", metavar="OUT", required=True)
    command.add_argument("--seconds", type=float, metavar="SECONDS")
    add_tolerance(command, noise=False)
    command.add_argument("--json", action="store_true")
    command.set_defaults(arguments=[""])


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does: with the command that it runs."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def _prove(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.cli.report import check_page, page_line
    from mindrlhf_msprobe.proof.prove import Experiment, prove
    from mindrlhf_msprobe.report.proof import proof_lines

    refuse_empty(*arguments.runs, arguments.output_path)
    check_page(arguments.html, arguments.runs)
    end_on_sigterm()
    a, b = map(Path, arguments.runs)
    tolerance = tolerances_of(arguments)
    found = prove(
        Experiment(
            *(a, b, Path(arguments.output_path), arguments.arguments),
            tensors=None if arguments.tensors is None else Path(arguments.tensors),
            again=max(0, arguments.again),
            rounds=max(1, arguments.rounds),
            seconds=arguments.seconds,
            gib=arguments.gib,
            tolerance=tolerance,
        )
    )
    page: list[str] = []
    if arguments.html is not None:
        from mindrlhf_msprobe.api import compare_runs

        compared = compare_runs(a, b, tolerance=tolerance)
        page = page_line(arguments.html, arguments.runs, compared, proof=found)
    exit_code = found.conclusion.exit_code
    return Answer(exit_code, lambda: [*proof_lines(found), *page], found.to_json)
