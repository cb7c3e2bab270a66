"""`preflight`: what a training would run with, collected and compared without a run."""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import Command, Commands, unexpected
from mindrlhf_msprobe.errors import DIVERGED, SAME
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say

NAME = "preflight"
_COLLECT = "collect"


def add_parser(commands: Commands) -> None:
    """Add the command and its two own ones."""
    own = Command.add_group(commands, NAME)
    collect = Command.add(own, _COLLECT, _collect, of=NAME)
    collect.usage = (
        "mindrlhf-msprobe preflight collect [-h] [--lang {en,zh}] [--markdown FILE] -o FILE "
        "[--config F] [--checkpoint C] [--data MODULE:FUNCTION] [--batches N] "
        "[--seconds S] [--overwrite] [--json] [-- COMMAND ...]"
    )
    collect.add_argument("-o", "--output", metavar="FILE", required=True)
    collect.add_argument("--config", metavar="F", action="append", default=[])
    collect.add_argument("--checkpoint", metavar="C", action="append", default=[])
    collect.add_argument("--data", metavar="MODULE:FUNCTION")
    collect.add_argument("--batches", metavar="N", default="3")
    collect.add_argument("--seconds", metavar="S")
    collect.add_argument("--overwrite", action="store_true")
    collect.add_argument("--json", action="store_true")
    collect.set_defaults(arguments=[])
    compare = Command.add(own, "compare", _compare, of=NAME)
    compare.add_argument("a", metavar="A")
    compare.add_argument("b", metavar="B")
    compare.add_argument("-o", "--output_path", metavar="DIR")
    compare.add_argument("--json", action="store_true")


def _collect(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.common.message import read_message
    from mindrlhf_msprobe.preflight.collect import collect
    from mindrlhf_msprobe.report.preflight import collected_lines

    batches, text, seconds = arguments.batches, arguments.seconds, None
    if not (batches.isascii() and batches.isdecimal() and int(batches[:9]) and len(batches) < 7):
        raise unexpected("--batches", batches, "collect.a_number")
    if text is not None:
        with suppress(ValueError):
            seconds = float(text)
        if seconds is None or not 0 < seconds < 1e9:
            raise unexpected("--seconds", text, "collect.a_time")
    content = collect(
        arguments.output,
        configurations=arguments.config,
        checkpoints=arguments.checkpoint,
        data=arguments.data,
        batches=int(batches),
        command=arguments.arguments,
        seconds=seconds,
        overwrite=arguments.overwrite,
    )
    script = content.get("script") or {}
    code = DIVERGED if script.get("exit_code") else SAME
    if code:
        complain(NAME, say("collect.script_failed", code=script["exit_code"]))
    for name, one in content.get("checkpoints", {}).items():
        if "why" in one:
            why = read_message(one["why"])
            complain(NAME, say("collect.checkpoint_as_files", name=name, why=why))
    if script and "random_calls" not in content:
        complain(NAME, say("collect.nothing_noted"))
    file = arguments.output
    return Answer(code, lambda: collected_lines(content, file), lambda: {"file": file, **content})


def _compare(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.comparison.preflight.collected import compare_collected
    from mindrlhf_msprobe.report.preflight import compared_lines
    from mindrlhf_msprobe.report.summary import PREFLIGHT_FILES, preflight_sheet

    sides = arguments.a, arguments.b

    def find() -> Answer:
        found = compare_collected(*sides)
        return Answer(
            DIVERGED if found.differ else SAME,
            partial(compared_lines, found, sides),
            partial(found.as_result, *sides),
            lambda: [preflight_sheet(found)],
        )

    return PREFLIGHT_FILES.answer(arguments.output_path, [], find)
