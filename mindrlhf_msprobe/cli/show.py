"""`show`: what a run holds."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import Command, Commands
from mindrlhf_msprobe.errors import SAME, UNDECIDED, RunError, UsageError
from mindrlhf_msprobe.report.answer import Answer, Lines
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.place import StepPlace

if TYPE_CHECKING:
    from mindrlhf_msprobe.storage.reading.problems import Problem
    from mindrlhf_msprobe.storage.reading.reader import Run
    from mindrlhf_msprobe.storage.step_lines import StepTimes

_At = dict[str, "int | None"]  # step and rank: None for all
_MOST_NAMED = 20  # things that cannot be read
_MOST_TIMED = 1000  # steps of which a mean is made


def add_parser(commands: Commands) -> None:
    """Add the command."""
    show = Command.add(commands, "show", _show)
    show.add_argument("path", metavar="RUN")
    show.add_argument("name", nargs="?", metavar="NAME")
    show.add_argument("--step", type=int, metavar="N")
    show.add_argument("--rank", type=int, metavar="N")
    show.add_argument("--code", action="store_true")
    show.add_argument("--json", action="store_true")


#: What is shown: it for machines, and for people; what of it could not be read, where the content
#: does not say so; and whether anything could not be read.
_Shown = tuple[list[dict[str, Any]], Lines, list[str], bool]


def _show(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.storage.reading.reader import open_run

    run, name = open_run(arguments.path), arguments.name
    at = {"step": arguments.step, "rank": arguments.rank}
    for what, number, held in (("step", at["step"], run.steps), ("rank", at["rank"], run.ranks)):
        if number is not None and number not in held:
            raise UsageError.saying(
                "listing.holds_none", path=str(run.path), what=what, number=number, held=held
            )
    if arguments.code:
        content, lines, unreadable, damaged = _code(run, name, at)
    elif name is None:
        content, lines, unreadable, damaged = _run(run, at)
    elif name in run.phases:
        content, lines, unreadable, damaged = _phase(run, name, at)
    else:
        content, lines, unreadable, damaged = _records(run, name, at)
    if arguments.json or arguments.code or name is not None:  # else the lines say all of that
        for problem in unreadable:
            complain("show", problem)
    return Answer(UNDECIDED if damaged else SAME, lambda: lines, lambda: content)


def _run(run: Run, at: _At) -> _Shown:
    from mindrlhf_msprobe.report import listing
    from mindrlhf_msprobe.storage.reading.inventory import inventory, limits_of

    holdings = inventory(run, **at)
    run.configurations()
    # Of one step, or of the last ones, of one rank: the first that has any.
    times: list[StepTimes] = []
    for rank in run.ranks if at["rank"] is None else [at["rank"]]:
        steps = run.timed_steps(rank)[-_MOST_TIMED:] if at["step"] is None else [at["step"]]
        times = [of for step in steps if (of := run.timeline(step, rank)) is not None]
        if times:
            break
    unreadable = [*map(str, _problems(run, at))]
    unreadable += [
        why if why.startswith(held.name) else say("unread.at", path=held.name, why=why)
        for held in holdings
        for why in held.unreadable
    ]
    problems = [*unreadable, *run.lost]
    if run.missing_ranks:
        problems.append(say("listing.missing_ranks", ranks=run.missing_ranks))
    lines = [
        *listing.render_holdings(run.path, run.state, holdings, problems, run.cost),
        *listing.render_times(times),
        *listing.render_generation(run.run_files, at["rank"]),
        *(say("listing.without", what=limit) for limit in limits_of(run)),
        *listing.render_left_out(run.left_out),
        *listing.render_stops(run.stops),
    ]
    content = [holding.to_json() for holding in holdings]
    return content, lines, unreadable, bool(unreadable)


def _phase(run: Run, name: str, at: _At) -> _Shown:
    from mindrlhf_msprobe.report import listing

    entries = run.entries(name, **at)
    content: list[dict[str, Any]] = [
        {
            **{"step": entry.step, "rank": entry.rank, "phase": entry.phase},
            **{"entry": entry.name, "token": entry.token, "parent": entry.parent},
            "records": [record.name for record in entry.records],
        }
        for entry in entries
    ]
    unreadable = [str(problem) for problem in _problems(run, at) if problem.phase == name]
    unreadable += [
        say("unread.at", path=record.name, why=record.leaf.why)
        for entry in entries
        for record in entry.records
        if record.leaf.why is not None
    ][:_MOST_NAMED]
    return content, listing.render_entries(entries), unreadable, bool(unreadable)


def _records(run: Run, name: str, at: _At) -> _Shown:
    from mindrlhf_msprobe.report import listing
    from mindrlhf_msprobe.storage.code_lines import find_code
    from mindrlhf_msprobe.storage.reading.inventory import find_records

    try:
        records = find_records(run, name, **at)
    except RunError:
        for problem in _problems(run, at)[:_MOST_NAMED]:  # it may be there
            complain("show", problem)
        raise
    saves = run.key_data(name, **at) if at["step"] is None else []
    lines = listing.render_saves(saves, records) if saves else listing.render_records(records)
    of_key = name in run.keys
    if not of_key:
        lines = [*lines, *listing.called_from(find_code(run, name, **at))]
    problems = [
        str(problem)
        for problem in _problems(run, at)
        if (problem.key_data and problem.key in (None, name))
        or (not of_key and problem.phase is not None)
    ]
    damaged = bool(problems) or any(found.unreadable is not None for found in records)
    content = [record.to_json() for record in records]
    return content, lines, problems[:_MOST_NAMED], damaged


def _code(run: Run, name: str | None, at: _At) -> _Shown:
    """Return the user's code that called an entry."""
    from mindrlhf_msprobe.report.listing import render_code
    from mindrlhf_msprobe.storage.code_lines import find_code
    from mindrlhf_msprobe.storage.reading.inventory import find_records

    if name is None or name in run.phases or name in run.keys:
        raise UsageError.saying("cli.code_of_entry", name=name or "")
    found = find_code(run, name, **at)
    if not found:
        find_records(run, name, **at)  # says that there is none, and the nearest
    problems = [str(problem) for problem in _problems(run, at) if not problem.key_data]
    content = [one.to_json() for one in found]
    return content, render_code(found), problems[:_MOST_NAMED], bool(problems)


def _problems(run: Run, at: _At) -> list[Problem]:
    """Return what could not be read so far, as far as it concerns a step and a rank."""
    step, rank = at["step"], at["rank"]
    return [
        problem
        for problem in run.problems
        if (
            step is None
            or problem.step is None
            or problem.is_at(StepPlace(step, problem.rank or 0))
        )
        and (rank is None or problem.rank in (None, rank))
    ]
