"""`run`: a trainer's script with the probe, without an edit of it; `demo`: a small training."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Iterable, Sequence

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import LANG, Command, Commands
from mindrlhf_msprobe.errors import SAME, UNDECIDED, RunError, UsageError
from mindrlhf_msprobe.report.answer import texts
from mindrlhf_msprobe.report.messages import say

NAME = "run"


def add_parser(commands: Commands) -> None:
    """Add the command."""
    usage = "mindrlhf-msprobe run [-h] [--lang {en,zh}] SCRIPT ..."
    run = Command.add(commands, NAME, run_script, answers=False, usage=usage)
    run.add_argument("script", metavar="SCRIPT")
    run.set_defaults(arguments=[])


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what is for this command line, and what is for the script behind it."""
    own = list(arguments)
    if own[:1] == [NAME]:
        for index, argument in enumerate(own[1:], start=1):
            if own[index - 1] == LANG:
                continue
            if not argument.startswith("-"):
                return own[: index + 1], own[index + 1 :]
            if argument == "--":
                return own[: index + 2], own[index + 2 :]
    return own, []


def run_script(arguments: argparse.Namespace) -> int:
    """Run the script; what it raises is not caught."""
    from mindrlhf_msprobe.integrations.launcher import check_script, start

    try:
        check_script(arguments.script)
    except UsageError as error:
        complain("run", error)
        return UNDECIDED
    atexit.register(_sum_up, os.getpid())  # first, so that it runs when all runs have ended
    start(arguments.script, arguments.arguments)
    return SAME


def _sum_up(process: int) -> None:
    """Say on stderr what was recorded, or why nothing was.

    The script's exit code and what it raised stay, whatever happens here. A process forked of this
    one, and msrun's scheduler, which runs the script too, say nothing.
    """
    import logging

    from mindrlhf_msprobe.log import logger

    if os.getpid() != process or os.environ.get("MS_ROLE") == "MS_SCHED":
        return
    if sys.stderr is None or not logger.isEnabledFor(logging.INFO):
        return
    try:
        for line in _summary():
            complain(NAME, line, lines=True)
    except (Exception, KeyboardInterrupt) as error:
        logger.debug("%s", error)


def _summary() -> Iterable[str]:
    from mindrlhf_msprobe.common.current import CURRENT
    from mindrlhf_msprobe.integrations.patches import has_trainer
    from mindrlhf_msprobe.report.listing import render_summary
    from mindrlhf_msprobe.storage.reading.reader import open_run

    if not CURRENT.recorded and has_trainer():  # else that there is none is said
        why = CURRENT.why_not
        yield say("log.not_begun") if why is None else say("log.not_recorded", why=why)
    for path, rank in dict.fromkeys(CURRENT.recorded):
        try:
            yield "\n".join(texts(render_summary(open_run(path), rank)))
        except (RunError, OSError) as error:
            yield say("listing.not_summed_up", path=str(path), why=error)


def add_demo(commands: Commands) -> None:
    """Add `demo`."""
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
