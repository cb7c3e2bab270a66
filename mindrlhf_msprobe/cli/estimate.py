"""`estimate`: how much room a recording would take."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import DIVERGED, SAME, answer
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands
    from mindrlhf_msprobe.config import ProbeConfig


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
        "--config",
        metavar="FILE",
        help="the YAML file of the recording that is meant: its msprobe_config says all of the "
        "following",
    )
    estimate.add_argument(
        "--task", choices=("statistics", "tensor"), help="as task (default: tensor)"
    )
    for name in ("include", "exclude"):
        estimate.add_argument(
            f"--{name}", metavar="RE", action="append", help=f"as {name} (repeatable)"
        )
    estimate.add_argument(
        "--directions",
        metavar="X,Y",
        help="as directions, with commas between (default: forward,backward)",
    )
    estimate.add_argument(
        "--steps", type=int, help="training steps (default: 1, or as many as FILE names)"
    )
    estimate.add_argument(
        "--ranks", type=int, help="ranks (default: as many as recorded, or as FILE names)"
    )
    estimate.add_argument("--json", action="store_true", help="print JSON instead of text")
    estimate.set_defaults(run=_estimate)


def _estimate(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.console.estimate import render_estimate
    from mindrlhf_msprobe.report.messages import text_of
    from mindrlhf_msprobe.storage.reading.estimate import estimate
    from mindrlhf_msprobe.storage.reading.reader import open_run

    if not arguments.path:
        raise UsageError(say("cli.empty_path"))
    for option in ("steps", "ranks"):
        number = getattr(arguments, option)
        if number is not None and number < 1:
            raise UsageError(say("cli.at_least_1", option=option, number=number))
    wanted, phases, steps = _wanted(arguments)
    found = estimate(
        open_run(arguments.path),
        wanted,
        phases=phases,
        steps=arguments.steps or steps,
        ranks=arguments.ranks or len(wanted.ranks) or None,
    )
    said = [text_of(remark) for remark in found.remarks]
    whole = found.to_json()
    whole = {**whole, "remarks": said, "remark_codes": whole["remarks"]}
    content = json.dumps(whole, ensure_ascii=False, indent=1)
    code = SAME if found.fits else DIVERGED
    return answer(
        content if arguments.json else render_estimate(found), code, as_json=arguments.json
    )


def _wanted(arguments: argparse.Namespace) -> tuple[ProbeConfig, list[str] | None, int]:
    """Return the settings that are meant, the phases (None: all there are) and how many steps."""
    from mindrlhf_msprobe.config import NO_END, ProbeConfig, load_config
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.storage.reading.estimate import KEY_DATA

    given = {
        name: getattr(arguments, name)
        for name in ("task", "include", "exclude", "directions")
        if getattr(arguments, name) is not None
    }
    if arguments.config is None:
        if "directions" in given:
            given["directions"] = [part.strip() for part in given["directions"].split(",")]
        wanted = ProbeConfig(**{"task": "tensor", "token_range_end": NO_END, **given})
        return wanted, None, 1
    if given:
        raise UsageError(say("cli.beside_config", options=", --".join(given)))
    wanted = load_config(arguments.config)
    phases = [name for name, phase in wanted.phase_table().items() if wanted.records_phase(phase)]
    if wanted.msprobe and wanted.key_data_dump:
        phases.append(KEY_DATA)
    if not phases:
        raise UsageError(say("cli.nothing_on", file=arguments.config))
    return wanted, phases, wanted.recorded_steps or 1
