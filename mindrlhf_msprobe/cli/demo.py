"""`demo`: a real training, probed twice and compared."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    demo = commands.add_parser(
        "demo",
        help="run a real PPO training twice, plant a fault in the second, and find it",
        description="Run a small PPO training on CPU twice, with a small error planted in one cell "
        "of the second run, compare the two and name the cell. Exit codes: 0 the verdict is what "
        "was planted, 1 it is not, 2 could not decide.",
    )
    demo.add_argument(
        "--output", metavar="DIR", required=True, help="directory for runs and tables"
    )
    demo.add_argument("--steps", type=int, default=3, help="training steps (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=1234, help="seed (default: %(default)s)")
    fault = demo.add_mutually_exclusive_group()
    fault.add_argument(
        "--fault",
        metavar="PHASE:CELL",
        help="where the error is planted, e.g. actor_update:lm_head (default: one linear layer of "
        "the reference's second block)",
    )
    fault.add_argument("--no-fault", action="store_true", help="plant nothing: both runs agree")
    demo.add_argument(
        "--fault-step",
        type=int,
        metavar="N",
        help="the step from which on the error is there (default: 1, or 0 with --steps 1)",
    )
    demo.add_argument(
        "--config", metavar="FILE", help="the trainer's YAML (default: yaml_examples/ppo_demo.yaml)"
    )
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.demo.command import run_demo

    return run_demo(arguments)
