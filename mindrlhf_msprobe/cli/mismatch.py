"""`mismatch`: training against inference, token by token."""

from __future__ import annotations

import argparse
import re

from mindrlhf_msprobe.cli.exit_codes import answer, of_mismatches
from mindrlhf_msprobe.cli.parsing import (
    Command,
    Commands,
    collect_rarely,
    two_of,
    unexpected,
)
from mindrlhf_msprobe.report.messages import say


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


def _mismatch(arguments: argparse.Namespace) -> int:
    collect_rarely()

    from mindrlhf_msprobe.cli.pages import check_page, write_page
    from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
    from mindrlhf_msprobe.report.console.mismatch import render
    from mindrlhf_msprobe.report.tables.mismatch import FILES, write_mismatch
    from mindrlhf_msprobe.storage.outputs import refuse

    runs = _runs(arguments)
    if arguments.output_path is not None:
        refuse(*FILES.outputs(arguments.output_path), runs=runs)
    if arguments.html is not None:
        check_page(arguments.html, runs)
    found = find_mismatch(
        runs[0],
        runs[1] if len(runs) == 2 else None,
        steps=_steps(arguments),
        phases=_phases(arguments),
        mapping=arguments.mapping,
        tokenizer=arguments.tokenizer,
        exact=arguments.exact,
    )
    code = of_mismatches(found)
    written = []
    if arguments.output_path is not None:
        files = write_mismatch(found, arguments.output_path, arguments.lang)
        written = [say("mismatch.written", files=", ".join(map(str, files)))]
    if arguments.html is not None:
        page = {"tokenizer": arguments.tokenizer, "lang": arguments.lang}
        write_page(arguments.html, runs[:1], mismatches=[found], **page)
        written.append(say("report.file", file=arguments.html))
    if arguments.json:
        return answer(found.to_json(), code)
    return answer("\n".join([render(found), *written]), code)


def _runs(arguments: argparse.Namespace) -> list[str]:
    """Return the paths of one run or of two.

    Raises:
        UsageError: there are more, or one is empty.
    """
    from mindrlhf_msprobe.errors import UsageError

    runs: list[str] = arguments.runs
    if len(runs) > 2:
        raise UsageError.saying("mismatch.one_or_two_runs", runs=", ".join(runs))
    if "" in runs:
        raise UsageError.saying("cli.empty_path_of_a_run")
    return runs


def _phases(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the phases of rollout and training.

    Raises:
        UsageError: they are not two names.
    """
    from mindrlhf_msprobe.comparison.mismatch.find import PHASES

    return two_of("--phases", arguments.phases, "cli.two_names") or PHASES


def _steps(arguments: argparse.Namespace) -> list[int] | None:
    """Return the numbers of steps that were asked for; None: all.

    Raises:
        UsageError: one is no number.
    """
    texts = [text.strip() for given in arguments.step for text in given.split(",")]
    for text in texts:
        if not re.fullmatch("[0-9]{1,9}", text):
            raise unexpected("--step", text, "mismatch.a_step")
    return [*map(int, texts)] or None
