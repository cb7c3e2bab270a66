"""`demo`: a real training, probed twice and compared."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    demo = commands.add_parser(
        "demo",
        help=say("help.demo"),
        description=say("help.demo_describes"),
    )
    demo.add_argument("--output", metavar="DIR", required=True, help=say("help.demo_output"))
    demo.add_argument("--steps", type=int, default=3, help=say("help.demo_steps"))
    demo.add_argument("--seed", type=int, default=1234, help=say("help.demo_seed"))
    fault = demo.add_mutually_exclusive_group()
    fault.add_argument(
        "--fault",
        metavar="PHASE:CELL",
        help=say("help.demo_fault"),
    )
    fault.add_argument("--no-fault", action="store_true", help=say("help.demo_no_fault"))
    demo.add_argument(
        "--fault-step",
        type=int,
        metavar="N",
        help=say("help.demo_fault_step"),
    )
    demo.add_argument("--config", metavar="FILE", help=say("help.demo_config"))
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.demo.command import run_demo

    return run_demo(arguments)
