"""`compare`: two runs, two sides of one, or two checkpoints."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import (
    SUGGEST,
    Command,
    Commands,
    add_tolerance,
    tolerances_of,
    two_of,
    unexpected,
)
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import DIVERGED, SAME, UNDECIDED, MsprobeError, UsageError
from mindrlhf_msprobe.report.answer import Answer, Code, Lines
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.pairing.frameworks.suggest import Suggestion
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.replay.offline.replaying import Replayed

_T = TypeVar("_T")

#: What ends a comparison with exit code 1; each includes those before it.
FAIL_ON = ("diverged", "suspicious")
#: What `compare_runs` takes as the command line has it.
_MAPPINGS = ("mapping", "cell_mapping", "api_mapping", "data_mapping", "layer_mapping")
_SELECTION = ("steps", "include", "exclude", "first_only", "common", "after")
_AS_GIVEN = (
    *("noise", "tokenizer", "layout", "engine", "address", "workers", "csv", "all_rows"),
    *_MAPPINGS,
    *_SELECTION,
)
#: What `compare_checkpoints` takes so.
_OF_CHECKPOINTS = (
    *("output_path", "noise", "mapping", "include", "exclude", "common", "workers", "csv"),
)
#: Options that say something of runs alone.
_OF_RUNS = (
    *("cell_mapping", "api_mapping", "data_mapping", "layer_mapping", "tokenizer", "phases"),
    *("ranks", "keys", "after", "address", "html", "shard", "first_only", "replay", "all_rows"),
    *("network", "engine"),
)
#: Options that say how shards are compared, and what becomes of all of them.
_OF_A_SHARD = (
    *("noise", "tokenizer", "layout", "engine", "address", "workers", "all_rows", "shard"),
    *("tolerance", "rtol", "atol", "phases", "ranks", "keys", "golden_path", "target_path"),
    *_MAPPINGS,
    *_SELECTION,
)
_OF_A_REDUCTION = ("csv", "html", "replay", "network", "fail_on")
_SUFFIXES = (".ckpt", ".safetensors", ".safetensors.index.json")


def add_parser(commands: Commands) -> None:
    """Add the command."""
    compare = Command.add(commands, "compare", _compare, has_groups=True)
    add = compare.add_argument
    add("runs", nargs="*", metavar="A B")
    add("-o", "--output_path", metavar="OUT", default="./msprobe_compare_output")
    add_tolerance(compare)
    add("--mapping", metavar="FILE|suggest")
    add("--steps", metavar="STEPS")
    add("--phases", metavar="X,Y")
    add("--common", action="store_true")
    add("--after", metavar="OUT")
    add("--html", metavar="FILE")
    add("--json", action="store_true", help=say("help.json_of", file="verdict.json"))

    for option in ("include", "exclude"):
        names: Any = {"metavar": "RE", "action": "append", "default": [], "group": "selection"}
        add(f"--{option}", help=say("help.names", excluded=option == "exclude"), **names)
    add("--keys", metavar="X,Y", group="selection")
    add("--ranks", metavar="M,N", group="selection")
    add("--first-only", action="store_true", group="selection")
    add("--layout", metavar="FILE", group="layout")
    add("--csv", action="store_true", group="output")
    add("--all-rows", action="store_true", group="output")
    add("--tokenizer", metavar="FILE", group="output")
    add("--fail-on", choices=FAIL_ON, default=FAIL_ON[0], group="output")
    add("--bisect", action="store_true", group="output")
    add("--replay", action="store_true", group="replay")
    add("--network", metavar="MODULE:FUNCTION|FILE", group="replay")
    add("--workers", type=int, metavar="N", group="processes")
    add("--engine", choices=("local", "ray"), default="local", group="processes")
    add("--address", metavar="ADDRESS", group="processes")
    add("--shard", metavar="I/N", group="processes")
    add("--reduce", nargs="+", metavar="PART", group="processes")
    add("-tp", "--target_path", metavar="B", group="msprobe")
    add("-gp", "--golden_path", metavar="A", group="msprobe")
    for short, option in (("-cm", "cell"), ("-am", "api"), ("-lm", "layer")):
        what = say("help.compare_of_msprobe", what=say(f"help.compare_{option}_mapping"))
        flags = (short, f"--{option}_mapping")
        add(*flags, nargs="?", const=True, metavar="FILE", help=what, group="msprobe")
    add("-dm", "--data_mapping", metavar="FILE", group="msprobe")


def _compare(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.api import compare_runs, reduce_shards
    from mindrlhf_msprobe.report.comparison import lines_of
    from mindrlhf_msprobe.report.staging import OutputError

    if arguments.reduce:
        _refuse_options(arguments, _OF_A_SHARD, "cli.reduce_option")
        if len(arguments.runs) > 2:
            _runs(arguments)
        parts = arguments.reduce, *arguments.runs
        compare = partial(reduce_shards, *parts, csv=arguments.csv)
    else:
        if _are_checkpoints(paths := _runs(arguments)):
            return _compare_checkpoints(arguments, paths)
        if arguments.shard is not None:
            return _shard(arguments)
        if arguments.mapping == SUGGEST:
            return _suggest(arguments)
        compare = partial(_with_bar, compare_runs, **_compare_options(arguments))
    unwritable = False
    began = time.perf_counter()
    try:
        result = compare(output_path=arguments.output_path)
    except OutputError as error:
        unwritable = True
        complain("compare", say("cli.no_tables", error=error.said))
        result = compare(output_path=None) if error.comparison is None else error.comparison
    verdict = result.verdict
    code = _strictly(verdict.status.exit_code, verdict.suspicious.records, arguments.fail_on)
    seconds = time.perf_counter() - began
    replayed = _replayed(arguments, result)

    def lines() -> Lines:
        command = "" if arguments.replay else _command_for(arguments, result)
        again = [] if replayed is None else replayed.text.split("\n")
        return [*lines_of(result, seconds, command), *again]

    runs = {"runs": [result.run_a, result.run_b], "comparison": result}
    return Answer(
        UNDECIDED if unwritable else code,
        lines,
        lambda: result.to_json() | ({} if replayed is None else {"replay": replayed.to_json()}),
        page=lambda: {**runs, "tokenizer": arguments.tokenizer},
    )


def _with_bar(compare: Callable[..., _T], **options: Any) -> _T:
    """Return what a function finds of two runs, while a bar shows how far it is."""
    from mindrlhf_msprobe.report.terminal import progress_bar

    with progress_bar(say("console.comparing"), say("console.unit_records")) as advance:
        return compare(progress=advance, **options)


def _strictly(code: int, suspicious: int, fail_on: str) -> int:
    """Return the exit code of what is the same, where what is suspicious may fail, too."""
    return DIVERGED if code == SAME and fail_on == "suspicious" and suspicious else code


def _shard(arguments: argparse.Namespace) -> Answer:
    """Compare one shard and write its part; the exit code says that it was compared.

    Raises:
        MsprobeError: an option is wrong, the runs cannot be read, or the part cannot be written.
    """
    from mindrlhf_msprobe.api import compare_shard

    _refuse_options(arguments, _OF_A_REDUCTION, "cli.shard_option")
    if arguments.mapping == SUGGEST:
        raise UsageError.saying("cli.shard_option", option=f"--mapping {SUGGEST}")
    number = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", arguments.shard)
    if number is None:
        raise unexpected("--shard", arguments.shard, "cli.shard_form")
    options = _compare_options(arguments)
    del options["csv"]
    shard = int(number[1]), int(number[2])
    output = arguments.output_path
    found = _with_bar(compare_shard, shard=shard, output_path=output, **options)
    counts = {name: getattr(found, name) for name in ("number", "of", "ranks", "steps", "records")}
    lines = [say("cli.shard", **counts, different=found.different)]
    if found.first is not None:
        at = {"step": found.first.step, "rank": found.first.rank}
        lines.append(say("cli.shard_first", record=found.first.record, **at))
    if not found.steps:
        lines.append(say("cli.shard_nothing"))
    lines.append(say("cli.shard_part", path=found.path, of=found.of))
    return Answer(SAME, lambda: lines, found.to_json)


def _refuse_options(arguments: argparse.Namespace, names: Iterable[str], code: str) -> None:
    """Refuse options that were given and say nothing here."""
    for name in names:
        if getattr(arguments, name) not in (None, False, [], "local", FAIL_ON[0]):
            raise UsageError.saying(code, option=f"--{name.replace('_', '-')}")


def _command_for(arguments: argparse.Namespace, result: Comparison) -> str:
    """Return the command that replays the entry to blame; "" where none is, or it cannot be."""
    first = result.verdict.first_divergence
    if first is None or first.entry is None or _is_joined(result):
        return ""
    from mindrlhf_msprobe.replay.offline.recorded_call import command_for

    return command_for(result, os.path.join(arguments.output_path, "replay"))


def _is_joined(result: Comparison) -> bool:
    """Return whether entries of several ranks were joined, so that none was recorded as it is."""
    return any(note.code == "layout.joined" for note in result.remarks)


def _suggest(arguments: argparse.Namespace) -> Answer:
    """Write a proposal of a mapping instead of comparing.

    Raises:
        UsageError: there is only one run, or the file is already there.
        RunError: a run cannot be read, or nothing is there to go by.
    """
    from mindrlhf_msprobe.comparison.pairing.frameworks.suggest import suggest_mapping

    options = _compare_options(arguments)
    a, b = options["a"], options["b"]
    if b is None:
        raise UsageError.saying("cli.two_runs", runs=[a], hint="")
    found = suggest_mapping(a, b, arguments.output_path, options["phases"], options["ranks"])
    return _suggested(found, a, b)


def _suggested(found: Suggestion, a: str, b: str) -> Answer:
    path = str(found.path)
    lines = {line.source: [line.target, round(line.confidence, 3)] for line in found.lines}
    content = {"mapping": path, "lines": lines, "alone": [list(each) for each in found.alone]}
    if not found.lines:
        return Answer(UNDECIDED, lambda: [say("suggest.nothing", path=path)], lambda: content)
    said = say("suggest.written", path=path, count=len(found.lines))
    command = Code(shlex.join(["mindrlhf-msprobe", "compare", a, b, "--mapping", path]))
    return Answer(SAME, lambda: [said, [command]], lambda: content)


def _replayed(arguments: argparse.Namespace, result: Comparison) -> Replayed | None:
    """Compute the entry that is to blame again, where that is wanted and can be done."""
    if not arguments.replay or result.verdict.first_divergence is None:
        return None
    if _is_joined(result):
        complain("compare", message("layout.no_replay"))
        return None
    from mindrlhf_msprobe.replay.offline.recorded_call import request_of
    from mindrlhf_msprobe.replay.offline.replaying import replay_entry

    try:
        return replay_entry(
            request_of(result, os.path.join(arguments.output_path, "replay"), arguments.network)
        )
    except MsprobeError as error:
        complain("compare", error.said)
        return None


def _runs(arguments: argparse.Namespace) -> list[str]:
    """Return the paths of the two runs, or of the one inside which is compared.

    Raises:
        UsageError: they are not so many, or one is empty.
    """
    runs = [arguments.golden_path, *arguments.runs, arguments.target_path]
    runs = [run for run in runs if run is not None]
    within_one = len(runs) == 1 and (
        arguments.phases or arguments.ranks or "=" in (arguments.keys or "")
    )
    if len(runs) != 2 and not within_one:
        hint = message("cli.one_run_hint") if len(runs) == 1 else ""
        raise UsageError.saying("cli.two_runs", runs=runs, hint=hint)
    return runs


def _compare_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the command line's choices as compare_runs takes them.

    Raises:
        UsageError: one of them is wrong.
    """
    runs = _runs(arguments)
    phases = two_of("--phases", arguments.phases, "cli.two_names")
    ranks = two_of("--ranks", arguments.ranks, "cli.two_ranks")
    if ranks is not None and not all(re.fullmatch("[0-9]{1,9}", rank) for rank in ranks):
        raise unexpected("--ranks", arguments.ranks, "cli.two_ranks")
    if arguments.address is not None and arguments.engine != "ray":
        raise UsageError.saying("cli.address")
    return {
        "a": runs[0],
        "b": runs[1] if len(runs) == 2 else None,
        "tolerance": tolerances_of(arguments),
        "phases": phases,
        "ranks": None if ranks is None else (int(ranks[0]), int(ranks[1])),
        "keys": () if arguments.keys is None else arguments.keys,
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
    }


def _are_checkpoints(paths: list[str]) -> bool:
    """Return whether two paths are to be compared as checkpoints: one is, or is called so."""
    from mindrlhf_msprobe.storage.layout import holds_run

    if len(paths) != 2:
        return False
    if any(path.endswith(_SUFFIXES) and not Path(path).is_dir() for path in paths):
        return True
    try:
        if all(Path(path).is_dir() and holds_run(Path(path)) for path in paths):
            return False
        from mindrlhf_msprobe.storage.foreign.checkpoints.opening import is_checkpoint

        return any(is_checkpoint(Path(path)) for path in paths)
    except (OSError, ValueError):  # compare_runs says what is wrong with them
        return False


def _compare_checkpoints(arguments: argparse.Namespace, paths: list[str]) -> Answer:
    """Compare two checkpoints as the command line wants it.

    Raises:
        MsprobeError: a side cannot be read, an option is wrong, or the output cannot be written.
    """
    from mindrlhf_msprobe.api import compare_checkpoints
    from mindrlhf_msprobe.report.checkpoints import lines_of
    from mindrlhf_msprobe.report.terminal import progress_bar

    _refuse_options(arguments, _OF_RUNS, "checkpoint.option")
    if arguments.steps is not None and not re.fullmatch("[0-9]{1,9}", arguments.steps):
        raise UsageError.saying("checkpoint.one_step", value=arguments.steps)
    step = None if arguments.steps is None else int(arguments.steps)
    if arguments.mapping == SUGGEST:
        from mindrlhf_msprobe.comparison.checkpoints import suggest_for_checkpoints

        a, b = paths
        proposed = suggest_for_checkpoints(a, b, arguments.output_path, step)
        return _suggested(proposed, a, b)
    began = time.perf_counter()
    with progress_bar(say("console.comparing")) as advance:
        found = compare_checkpoints(
            *paths,
            **{name: getattr(arguments, name) for name in _OF_CHECKPOINTS},
            tolerance=tolerances_of(arguments),
            step=step,
            progress=advance,
        )
    seconds = time.perf_counter() - began
    code = _strictly(found.status.exit_code, found.suspicious, arguments.fail_on)
    return Answer(code, lambda: lines_of(found, seconds), found.to_json)
