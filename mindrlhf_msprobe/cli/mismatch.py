"""`mismatch`: training against inference, token by token."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

from mindrlhf_msprobe.cli.parsing import Command, Commands, two_of, unexpected
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.report.answer import Answer


def add_parser(commands: Commands) -> None:
    """Add the command."""
    mismatch = Command.add(commands, "mismatch", _mismatch)
    mismatch.add_argument("runs", nargs="+", metavar="RUN")
    mismatch.add_argument("--step", metavar="N", action="append", default=[])
    mismatch.add_argument("--phases", metavar="X,Y")
    mismatch.add_argument("--mapping", metavar="FILE")
    mismatch.add_argument("--tokenizer", metavar="FILE")
    mismatch.add_argument("--exact", action="store_true")
    mismatch.add_argument("-o", "--output_path", metavar="OUT")
    mismatch.add_argument("--html", metavar="FILE")
    mismatch.add_argument("--json", action="store_true")


def _mismatch(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
    from mindrlhf_msprobe.report.mismatch import FILES, answer_of

    runs: list[str] = arguments.runs
    if len(runs) > 2:
        raise UsageError.saying("mismatch.one_or_two_runs", runs=", ".join(runs))
    steps = [text.strip() for given in arguments.step for text in given.split(",")]
    for text in steps:
        if not re.fullmatch("[0-9]{1,9}", text):
            raise unexpected("--step", text, "mismatch.a_step")

    def find() -> Answer:
        found = find_mismatch(
            runs[0],
            runs[1] if len(runs) == 2 else None,
            steps=[*map(int, steps)] or None,
            phases=two_of("--phases", arguments.phases, "cli.two_names") or PHASES,
            mapping=arguments.mapping,
            tokenizer=arguments.tokenizer,
            exact=arguments.exact,
        )
        page = {"runs": runs[:1], "tokenizer": arguments.tokenizer, "mismatches": (found,)}
        return replace(answer_of(found), page=lambda: page)

    return FILES.answer(arguments.output_path, runs, find)
