"""`hunt`: which differences between a good and a bad setup make the runs differ."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.cli.parsing import Command, Commands, refuse_empty, tolerances_of
from mindrlhf_msprobe.cli.prove import add_experiment, end_on_sigterm, usage_of
from mindrlhf_msprobe.errors import SAME, UNDECIDED
from mindrlhf_msprobe.report.answer import Answer


def add_parser(commands: Commands) -> None:
    """Add the command."""
    usage = usage_of("hunt", "--between GOOD BAD")
    hunt = Command.add(commands, "hunt", _hunt, has_groups=True, usage=usage)
    several: Any = {"nargs": "+", "action": "append", "metavar": ("GOOD", "BAD")}
    hunt.add_argument("--between", required=True, **several)
    hunt.add_argument("--good", metavar="RUN")
    add_experiment(hunt)


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
