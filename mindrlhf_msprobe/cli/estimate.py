"""`estimate`: how much room a recording would take."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import DIVERGED, SAME, answer
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands
    from mindrlhf_msprobe.config import ProbeConfig


def add_parser(commands: Commands) -> None:
    """Add the command."""
    estimate = commands.add_parser(
        "estimate",
        help=say("help.estimate"),
        description=say("help.estimate_describes"),
    )
    estimate.add_argument("path", metavar="RUN", help=say("help.estimate_path"))
    estimate.add_argument(
        "--config",
        metavar="FILE",
        help=say("help.estimate_config"),
    )
    estimate.add_argument(
        "--task", choices=("statistics", "tensor"), help=say("help.estimate_task")
    )
    for name in ("include", "exclude"):
        estimate.add_argument(
            f"--{name}", metavar="RE", action="append", help=say(f"help.estimate_{name}")
        )
    estimate.add_argument(
        "--directions",
        metavar="X,Y",
        help=say("help.estimate_directions"),
    )
    estimate.add_argument("--steps", type=int, help=say("help.estimate_steps"))
    estimate.add_argument("--ranks", type=int, help=say("help.estimate_ranks"))
    estimate.add_argument("--json", action="store_true", help=say("help.estimate_json"))
    estimate.set_defaults(run=_estimate)


def _estimate(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.console.estimate import render_estimate
    from mindrlhf_msprobe.report.messages import text_of
    from mindrlhf_msprobe.storage.reading.estimate import estimate
    from mindrlhf_msprobe.storage.reading.reader import open_run

    if not arguments.path:
        raise UsageError(message("cli.empty_path"))
    for option in ("steps", "ranks"):
        number = getattr(arguments, option)
        if number is not None and number < 1:
            raise UsageError(message("cli.at_least_1", option=option, number=number))
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
        raise UsageError(message("cli.beside_config", options=", --".join(given)))
    wanted = load_config(arguments.config)
    phases = [name for name, phase in wanted.phase_table().items() if wanted.records_phase(phase)]
    if wanted.msprobe and wanted.key_data_dump:
        phases.append(KEY_DATA)
    if not phases:
        raise UsageError(message("cli.nothing_on", file=arguments.config))
    return wanted, phases, wanted.recorded_steps or 1
