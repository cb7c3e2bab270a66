"""`demo`: a real training, probed twice and compared."""

from __future__ import annotations

import argparse

from mindrlhf_msprobe.cli.parsing import Command, Commands
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    demo = Command.add(commands, "demo", _demo, answers=False)
    demo.add_argument("--output", metavar="DIR", required=True)
    demo.add_argument("--steps", type=int, default=3)
    demo.add_argument("--seed", type=int, default=1234)
    fault = demo.add_mutually_exclusive_group()
    fault.add_argument("--fault", metavar="PHASE:CELL|NAME", help=say("help.demo_fault"))
    fault.add_argument("--no-fault", action="store_true", help=say("help.demo_no_fault"))
    demo.add_argument("--fault-step", type=int, metavar="N")
    demo.add_argument("--config", metavar="FILE")
    demo.add_argument("--only", choices=("a", "b"))


def _demo(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.demo.command import run_demo

    return run_demo(arguments)
