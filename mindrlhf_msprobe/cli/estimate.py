"""`estimate`: how much room a recording would take."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.answers import DIVERGED, SAME, answer

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    estimate = commands.add_parser(
        "estimate",
        help="say how much room a recording with full tensors would take",
        description="From a run of one step with task: statistics, say how many bytes a step of a "
        "rank would take with other settings, and whether they fit into the file system of RUN. "
        "Exit codes: 0 it fits, 1 it does not, 2 could not decide.",
    )
    estimate.add_argument("path", metavar="RUN", help="the dump_path of a run")
    estimate.add_argument(
        "--task", choices=("statistics", "tensor"), default="tensor", help="(default: %(default)s)"
    )
    for name in ("include", "exclude"):
        estimate.add_argument(
            f"--{name}", metavar="RE", action="append", default=[], help=f"as {name} (repeatable)"
        )
    estimate.add_argument(
        "--directions",
        metavar="X,Y",
        default="forward,backward",
        help="as directions, with commas between (default: %(default)s)",
    )
    estimate.add_argument("--steps", type=int, default=1, help="training steps (default: 1)")
    estimate.add_argument("--ranks", type=int, help="ranks (default: as many as recorded)")
    estimate.add_argument("--json", action="store_true", help="print JSON instead of text")
    estimate.set_defaults(run=_estimate)


def _estimate(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.config import ProbeConfig
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.estimate import render_estimate
    from mindrlhf_msprobe.storage.estimate import estimate
    from mindrlhf_msprobe.storage.reader import open_run

    if not arguments.path:
        raise UsageError("the path of the run is empty; expected the dump_path of a run")
    for option in ("steps", "ranks"):
        number = getattr(arguments, option)
        if number is not None and number < 1:
            raise UsageError(f"--{option} is {number}; expected a whole number, 1 or larger")
    wanted = ProbeConfig(
        task=arguments.task,
        include=arguments.include,
        exclude=arguments.exclude,
        directions=tuple(part.strip() for part in arguments.directions.split(",")),
    )
    found = estimate(open_run(arguments.path), wanted, steps=arguments.steps, ranks=arguments.ranks)
    content = json.dumps(found.to_json(), ensure_ascii=False, indent=1)
    code = SAME if found.fits else DIVERGED
    return answer(content if arguments.json else render_estimate(found), code)
