"""`replay`: a recorded operator or cell computed again."""

from __future__ import annotations

import argparse

from mindrlhf_msprobe.cli.parsing import Command, Commands
from mindrlhf_msprobe.errors import SAME, UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    replay = Command.add(commands, "replay", _replay)
    replay.add_argument("what", nargs="+", metavar="RUN ENTRY")
    replay.add_argument("-o", "--output", metavar="DIR", required=True)
    replay.add_argument("--network", metavar="MODULE:FUNCTION|FILE")
    replay.add_argument("--phase", metavar="PHASE")
    replay.add_argument("--step", type=int, metavar="N")
    replay.add_argument("--rank", type=int, metavar="N")
    replay.add_argument("--device", metavar="DEVICE")
    replay.add_argument("--compute-dtype", metavar="DTYPE")
    replay.add_argument("--seed", type=int, metavar="N", default=0)
    replay.add_argument("--no-run", action="store_true")
    replay.add_argument("--json", action="store_true")


def _replay(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.findings.accuracy import exit_code_of
    from mindrlhf_msprobe.replay.offline.recorded_call import CallPlace, ReplayRequest
    from mindrlhf_msprobe.replay.offline.replaying import replay_entry, replay_operators

    # RUN, RUN ENTRY or RUN_A RUN_B ENTRY
    what = arguments.what
    entry = what[-1] if len(what) > 1 and _is_entry(what) else None
    runs = what if entry is None else what[:-1]
    if len(runs) > 2 or (len(what) > 1 and entry is None) or "" in runs:
        raise UsageError.saying("replay.runs_and_entry", given=" ".join(what))
    place = CallPlace(arguments.phase, arguments.step, arguments.rank)
    given = {name: getattr(arguments, name) for name in ("network", "device", "compute_dtype")}
    request = ReplayRequest(tuple(runs), entry, arguments.output, place, **given)
    if entry is None:
        from mindrlhf_msprobe.report.accuracy import replayed_lines
        from mindrlhf_msprobe.report.terminal import progress_bar

        with progress_bar(say("replay.computing"), say("replay.unit")) as advance:
            table = replay_operators(request, seed=arguments.seed, progress=advance)
        code = exit_code_of(table.verdicts)
        return Answer(code, lambda: replayed_lines(table), table.to_json)
    found = replay_entry(request, run=not arguments.no_run)
    code = SAME if arguments.no_run else exit_code_of(found.verdicts)
    return Answer(code, lambda: found.text.split("\n"), found.to_json)


def _is_entry(what: list[str]) -> bool:
    """Return whether the last of what is given is to be an entry: by its name, or as no run is."""
    from pathlib import Path

    from mindrlhf_msprobe.storage.records import direction_of

    *runs, last = what
    if direction_of(last):
        return True
    return bool(last) and all(Path(run).is_dir() for run in runs) and not Path(last).exists()
