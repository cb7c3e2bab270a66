"""`prove` and `hunt`: what runs a command again and again, to find what makes two runs differ.

`prove` runs B with A's tensors at places, `hunt` with some of the settings of a good setup.
"""

from __future__ import annotations

import argparse
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.cli.parsing import (
    Command,
    Commands,
    add_tolerance,
    refuse_empty,
    tolerances_of,
)
from mindrlhf_msprobe.errors import SAME, UNDECIDED
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    prove = Command.add(commands, "prove", _prove, has_groups=True, usage=usage_of("prove", "A B"))
    prove.add_argument("runs", nargs=2, metavar="RUN")
    add_experiment(prove, "proof.json")
    prove.add_argument("--tensors", metavar="RUN")
    prove.add_argument("--again", type=int, default=1, metavar="N")
    prove.add_argument("--rounds", type=int, default=8, metavar="N")
    prove.add_argument("--gib", type=float, default=20.0, metavar="GIB")
    prove.add_argument("--html", metavar="FILE")


def usage_of(name: str, what: str) -> str:
    """Return the usage of a command that runs another one."""
    return f"mindrlhf-msprobe {name} {what} -o OUT [OPTION ...] -- COMMAND ..."


def add_experiment(command: Command, result: str) -> None:
    """Add the options of what runs a command again and again, and writes a file of its result."""
    command.add_argument("-o", "--output_path", metavar="OUT", required=True)
    command.add_argument("--seconds", type=float, metavar="SECONDS")
    add_tolerance(command, noise=False)
    told = say("help.json_of", file=result)
    command.add_argument("--json", action="store_true", help=told)
    command.set_defaults(arguments=[""])


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does: with the command that it runs."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def _prove(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.proof.prove import Experiment, prove
    from mindrlhf_msprobe.report.proof import proof_lines

    refuse_empty(arguments.output_path)
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

    def page() -> dict[str, Any]:
        from mindrlhf_msprobe.api import compare_runs

        compared = compare_runs(a, b, tolerance=tolerance)
        return {"runs": arguments.runs, "comparison": compared, "proof": found}

    lines = partial(proof_lines, found)
    return Answer(found.conclusion.exit_code, lines, found.to_json, page=page)


def add_hunt(commands: Commands) -> None:
    """Add `hunt`."""
    usage = usage_of("hunt", "--between GOOD BAD")
    hunt = Command.add(commands, "hunt", _hunt, has_groups=True, usage=usage)
    several: Any = {"nargs": "+", "action": "append", "metavar": ("GOOD", "BAD")}
    hunt.add_argument("--between", required=True, **several)
    hunt.add_argument("--good", metavar="RUN")
    add_experiment(hunt, "hunt.json")


def _hunt(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.proof.hunt import Search, hunt
    from mindrlhf_msprobe.report.proof import hunt_lines

    refuse_empty(arguments.output_path, arguments.good)
    end_on_sigterm()
    found = hunt(
        Search(
            arguments.between,
            Path(arguments.output_path),
            arguments.arguments,
            good=None if arguments.good is None else Path(arguments.good),
            seconds=arguments.seconds,
            tolerance=tolerances_of(arguments),
        )
    )
    return Answer(SAME if found.found else UNDECIDED, lambda: hunt_lines(found), found.to_json)
