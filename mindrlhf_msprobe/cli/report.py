"""`report`: one offline page of a run, or of two and how they compare."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.answering import refuse_files, write_page
from mindrlhf_msprobe.cli.parsing import Command, Commands, add_tolerance, tolerances_of
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.common.message import Message
    from mindrlhf_msprobe.findings.mismatch import Mismatches


def add_parser(commands: Commands) -> None:
    """Add the command."""
    report = Command.add(commands, "report", _report, has_groups=True)
    report.add_argument("runs", nargs="+", metavar="RUN")
    report.add_argument("-o", "--output_path", metavar="FILE", required=True)
    add_tolerance(report)
    report.add_argument("--mapping", metavar="FILE")
    report.add_argument("--tokenizer", metavar="FILE")
    report.add_argument("--rules", metavar="FILE")
    report.add_argument("--healthy", metavar="RUN", action="append", default=[])


def _report(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.api import check_runs, compare_runs
    from mindrlhf_msprobe.report.checks import run_headline
    from mindrlhf_msprobe.report.comparison import headline
    from mindrlhf_msprobe.report.terminal import progress_bar

    runs, file, tokenizer = arguments.runs, arguments.output_path, arguments.tokenizer
    if len(runs) > 2:
        raise UsageError.saying("report.one_or_two_runs", runs=", ".join(runs))
    began = time.perf_counter()
    refuse_files(None, file, runs)
    comparison = None
    if len(runs) == 2:
        with progress_bar(say("console.comparing"), say("console.unit_records")) as advance:
            comparison = compare_runs(
                *runs,
                tolerance=tolerances_of(arguments),
                noise=arguments.noise,
                mapping=arguments.mapping,
                tokenizer=tokenizer,
                progress=advance,
            )
    with progress_bar(say("checks.checking"), say("checks.unit_steps")) as advance:
        checks = check_runs(
            runs, rules=arguments.rules, healthy=arguments.healthy, progress=advance
        )
    mismatches = [mismatch_of(run, tokenizer) for run in dict.fromkeys(runs)]
    shown = {"runs": runs, "comparison": comparison, "checks": checks.runs, "tokenizer": tokenizer}
    size = write_page(file, lambda: {**shown, "mismatches": tuple(mismatches)}, runs)
    if comparison is not None:
        code, lines = comparison.verdict.status.exit_code, headline(comparison.verdict)
    else:
        code, lines = checks.status.exit_code, [run_headline(checks.runs[0])]
    seconds = time.perf_counter() - began
    written = say("report.written", file=file, bytes=size, seconds=seconds)
    return Answer(code, lambda: [*lines, written], lambda: None)


_STEPS = 4  # of which a report says where training and inference part


def mismatch_of(path: str, tokenizer: str | None = None) -> Mismatches | Message:
    """Return where training and inference part in some steps of a run, or why that is not known.

    The first step, the last, and some between: a command of its own looks at all.
    """
    from mindrlhf_msprobe.common.message import message
    from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
    from mindrlhf_msprobe.errors import MsprobeError
    from mindrlhf_msprobe.findings.mismatch import Agreement
    from mindrlhf_msprobe.storage.reading.reader import open_run

    run = open_run(path)
    if all((config := run.config(rank)) and not config.keeps_rows for rank in run.ranks):
        return message("report.mismatch_no_tokens")
    steps = sorted({at.step for at in run.places if {*PHASES} <= {*run.phases_at(at)}})
    if not steps:
        return message("report.mismatch_no_phases", rollout=PHASES[0], training=PHASES[1])
    last = len(steps) - 1
    some = {steps[round(n * last / (_STEPS - 1))] for n in range(_STEPS)}
    try:
        found = find_mismatch(run, steps=sorted(some), tokenizer=tokenizer)
    except MsprobeError as error:
        return error.said
    undecided = [one for one in found.found if one.status is Agreement.UNDECIDED]
    if len(undecided) == len(found.found) and undecided[0].said:
        return undecided[0].said[0]
    return found
