"""`trend`: one quantity over the steps, of one run or of several."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import Command, Commands
from mindrlhf_msprobe.errors import DIVERGED, SAME, UNDECIDED, MsprobeError, UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mindrlhf_msprobe.storage.reading.problems import Problem
    from mindrlhf_msprobe.storage.reading.reader import Run
    from mindrlhf_msprobe.trends.reading import Choice, Trends

_MOST_PROBLEMS = 20


def add_parser(commands: Commands) -> None:
    """Add the command."""
    trend = Command.add(commands, "trend", _trend, has_groups=True)
    trend.add_argument("runs", nargs="+", metavar="RUN")
    trend.add_argument("--record", metavar="PATTERN")
    for name in ("key", "derived"):
        trend.add_argument(f"--{name}", metavar="NAME", action="append", default=[])
    trend.add_argument("--statistic", metavar="NAME")
    trend.add_argument("--phase", metavar="NAME")
    trend.add_argument("--rank", type=int, metavar="N")
    trend.add_argument("--csv", metavar="FILE")
    trend.add_argument("--tensorboard", metavar="DIR")
    trend.add_argument("--plots", type=int, default=12, metavar="N")
    trend.add_argument("--json", action="store_true")
    trend.add_argument("--gradients", action="store_true")
    for name, usual in (("first", 0.97), ("fall", 0.03)):
        trend.add_argument(f"--{name}", type=float, default=usual, metavar="X", group="gradients")
    trend.add_argument("--measure", choices=("cosine", "signs"), group="gradients")


def _trend(arguments: argparse.Namespace) -> Answer:
    if arguments.gradients:
        return _gradients(arguments)
    from mindrlhf_msprobe.report.trends import (
        SIDES,
        refuse_files,
        series_lines,
        sides_of,
        write_series,
    )
    from mindrlhf_msprobe.storage.reading.reader import open_run
    from mindrlhf_msprobe.trends.reading import Choice, missing_in_all

    if len(arguments.runs) > len(SIDES):
        raise UsageError.saying("trend.too_many_runs", count=len(arguments.runs), most=len(SIDES))
    wanted = {name: getattr(arguments, name) for name in ("record", "statistic", "phase", "rank")}
    choice = Choice(keys=tuple(arguments.key), derived=tuple(arguments.derived), **wanted)
    refuse_files(arguments.csv, arguments.tensorboard, arguments.runs)
    runs = [open_run(path) for path in arguments.runs]
    found = _read(runs, choice)
    sides = sides_of([trends.series for trends in found])
    damaged = _complain([problem for run in runs for problem in run.problems])
    write_series(sides, len(runs), arguments.csv, arguments.tensorboard)
    for run in runs:
        _say_incomplete(run)
    code = SAME if sides and not damaged else UNDECIDED
    missing, most = missing_in_all(found), max(0, arguments.plots)

    def content() -> dict[str, list[Any]]:
        shown: dict[str, list[Any]] = {"runs": [str(run.path) for run in runs]}
        for name in ("series", "missing"):
            shown[name] = [
                {"run": side, **one.to_json()}
                for side, trends in zip(SIDES, found)
                for one in getattr(trends, name)
            ]
        return shown

    return Answer(code, lambda: series_lines(sides, arguments.runs, missing, most), content)


def _read(runs: Sequence[Run], choice: Choice) -> list[Trends]:
    """Return what is chosen of each run; what one of them lacks, another may have.

    Raises:
        MsprobeError: no run has it.
    """
    from mindrlhf_msprobe.report.terminal import progress_bar
    from mindrlhf_msprobe.trends.reading import Trends, read_trends

    found: list[Trends] = []
    errors: list[MsprobeError] = []
    for run in runs:
        try:
            with progress_bar(say("trend.reading")) as advance:
                found.append(read_trends(run, choice, advance))
        except MsprobeError as error:
            errors.append(error)
            found.append(Trends([], []))
    if len(errors) == len(runs):
        raise errors[0]
    for lacking in errors:
        complain("trend", lacking.said)
    return found


def _say_incomplete(run: Run) -> None:
    """Say what a run does not hold by choice, which ranks are missing, and where others stopped."""
    from mindrlhf_msprobe.common.printable import spans
    from mindrlhf_msprobe.report.listing import render_stops
    from mindrlhf_msprobe.storage.reading.inventory import limits_of

    for limit in limits_of(run):
        complain("trend", say("trend.without", path=str(run.path), what=limit))
    if run.missing_ranks:
        said = say("listing.missing_ranks", ranks=spans(run.missing_ranks))
        complain("trend", say("unread.at", path=run.path, why=said))
    for line in render_stops(run.stops):
        complain("trend", say("unread.at", path=run.path, why=line))


def _gradients(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.report.terminal import progress_bar
    from mindrlhf_msprobe.report.trends import refuse_files, similarity_lines, write_similarity
    from mindrlhf_msprobe.storage.reading.gradients import open_gradients
    from mindrlhf_msprobe.trends.similarity import Measure, compare_gradients

    paths = arguments.runs
    if len(paths) != 2:
        raise UsageError.saying("trend.gradients_of_two")
    if os.path.exists(paths[0]) and os.path.exists(paths[1]) and os.path.samefile(*paths):
        raise UsageError.saying("trend.same_run", path=paths[0])
    if not (-1 <= arguments.first <= 1 and 0 <= arguments.fall <= 2):
        raise UsageError.saying("trend.bad_threshold", first=arguments.first, fall=arguments.fall)
    refuse_files(arguments.csv, arguments.tensorboard, paths, gradients=True)
    measure = None if arguments.measure is None else Measure(arguments.measure)
    a, b = map(open_gradients, paths)
    with progress_bar(say("trend.reading")) as advance:
        found = compare_gradients(
            a, b, first=arguments.first, fall=arguments.fall, measure=measure, progress=advance
        )
    _complain([*a.problems, *b.problems])
    write_similarity(found, arguments.csv, arguments.tensorboard)
    code = DIVERGED if found.suspicious else SAME
    runs = {"runs": [str(a.path), str(b.path)]}
    return Answer(
        code if found.compared else UNDECIDED,
        lambda: similarity_lines(found),
        lambda: {**runs, **found.to_json()},
    )


def _complain(problems: Sequence[Problem]) -> bool:
    """Say what could not be read; return whether there was anything."""
    for problem in problems[:_MOST_PROBLEMS]:
        complain("trend", problem)
    if len(problems) > _MOST_PROBLEMS:
        complain("trend", say("console.more", count=len(problems) - _MOST_PROBLEMS))
    return bool(problems)
