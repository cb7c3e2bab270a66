"""`estimate`: how much room a recording would take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.parsing import Command, Commands, unexpected
from mindrlhf_msprobe.errors import DIVERGED, SAME, UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.config import ProbeConfig
    from mindrlhf_msprobe.storage.reading.reader import Run


def add_parser(commands: Commands) -> None:
    """Add the command."""
    estimate = Command.add(commands, "estimate", _estimate)
    estimate.add_argument("path", metavar="RUN")
    estimate.add_argument("--config", metavar="FILE")
    estimate.add_argument(
        "--task", choices=("statistics", "tensor", "overflow_check", "grad_probe", "sketch")
    )
    for name in ("include", "exclude"):
        as_setting = say("help.as_setting", name=name)
        estimate.add_argument(f"--{name}", metavar="RE", action="append", help=as_setting)
    estimate.add_argument("--directions", metavar="X,Y")
    estimate.add_argument("--steps", type=int)
    estimate.add_argument("--ranks", type=int)
    estimate.add_argument("--json", action="store_true")


def _estimate(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.report.listing import render_estimate
    from mindrlhf_msprobe.storage.reading.estimate import estimate
    from mindrlhf_msprobe.storage.reading.reader import open_run

    for option in ("steps", "ranks"):
        number = getattr(arguments, option)
        if number is not None and number < 1:
            raise unexpected(f"--{option}", number, "config.whole_number", least=1)
    run = open_run(arguments.path)
    wanted, phases, steps = _wanted(arguments, run)
    found = estimate(
        run,
        wanted,
        phases=phases,
        steps=arguments.steps or steps,
        ranks=arguments.ranks or len(wanted.ranks) or None,
    )
    whole = found.to_json()
    said = {"remarks": [*map(str, found.remarks)], "remark_codes": whole["remarks"]}
    code = SAME if found.fits else DIVERGED
    return Answer(code, lambda: render_estimate(found), lambda: {**whole, **said})


def _wanted(arguments: argparse.Namespace, run: Run) -> tuple[ProbeConfig, list[str] | None, int]:
    """Return the settings that are meant, the phases (None: all there are) and how many steps."""
    from mindrlhf_msprobe.config import NO_END, ProbeConfig, load_config
    from mindrlhf_msprobe.storage.reading.estimate import KEY_DATA

    given = {
        name: getattr(arguments, name)
        for name in ("task", "include", "exclude", "directions")
        if getattr(arguments, name) is not None
    }
    if arguments.config is None:
        if "directions" in given:
            given["directions"] = [part.strip() for part in given["directions"].split(",")]
        recorded = run.config()
        level = "mix" if recorded is None else recorded.level
        whole = {"task": "tensor", "token_range_end": NO_END, "level": level}
        return ProbeConfig(**{**whole, **given}), None, 1
    if given:
        raise UsageError.saying("cli.beside_config", options=", --".join(given))
    wanted = load_config(arguments.config)
    phases = [name for name, phase in wanted.phase_table().items() if wanted.records_phase(phase)]
    if wanted.msprobe and wanted.key_data_dump:
        phases.append(KEY_DATA)
    if not phases:
        raise UsageError.saying("cli.nothing_on", file=arguments.config)
    return wanted, phases, wanted.recorded_steps or 1
