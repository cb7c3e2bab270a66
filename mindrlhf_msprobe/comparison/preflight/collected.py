"""What `preflight collect` collected, compared with another collection or with a recorded run.

Random calls of two scripts are compared by function, place, number and seed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.preflight.preflight import MAX_DIFFERENCES, Given, preflight
from mindrlhf_msprobe.comparison.preflight.values import (
    ABSENT,
    Found,
    Notes,
    Ranks,
    compare,
    difference_of,
    is_known,
)
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Difference, Preflight
from mindrlhf_msprobe.storage.foreign.config_pack import (
    ConfigPack,
    is_config_pack,
    read_config_pack,
)
from mindrlhf_msprobe.storage.manifest.run_file import RunFile
from mindrlhf_msprobe.storage.preflight_file import PreflightFile
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

#: What changes numbers comes first; a section that is not named comes last.
_ORDER = (
    *("seeds", "random_calls", "determinism", "modes", "cells", "optimizers", "generation"),
    *("versions", "configurations", "checkpoints", "data", "script", "device", "world"),
    *("packages", "environment", "msprobe_config"),
)
_OF_PLACES = ("environment", "configurations", "script")
# What a collection never has.
_OF_RUNS = ("msprobe_config", "networks", "world", "generation_settings")
_WEIGHTS = "initial_weights"
# Statistics instead of fingerprints, and counts of other functions.
_OTHERWISE_IN_PACKS = ("random_calls", "data", _WEIGHTS)
_STATISTICS = (("max", "Max"), ("min", "Min"), ("mean", "Mean"), ("norm", "Norm"))
_SHOWN = 8  # digits of a fingerprint


def compare_collected(a: str | Path, b: str | Path) -> Preflight:
    """Compare two collections, or a collection and a run, as far as both say something.

    Args:
        a, b: files that `preflight collect` wrote, packs of a configuration check, or directories
            of runs.

    Returns:
        What differs, what changes numbers first.

    Raises:
        RunError: one cannot be read, or says nothing of what it ran with.
        UsageError: a path is empty, or both are the same.
    """
    if "" in (str(a), str(b)):
        raise UsageError.saying("collect.empty_path")
    if os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b):
        raise UsageError.saying("collect.same_file", path=a)
    left, right = _opened(a), _opened(b)
    return compare_sides(left, right)


def _opened(path: str | Path) -> Run | PreflightFile:
    if not os.path.isdir(path):
        path = Path(path)
        return read_config_pack(path) if is_config_pack(path) else PreflightFile.read(path)
    run = open_run(path)
    if not run.run_files:
        raise RunError.saying("collect.no_manifest", path=path)
    return run


def compare_sides(a: Run | PreflightFile, b: Run | PreflightFile) -> Preflight:
    """Compare two sides that have been opened; see `compare_collected`."""
    notes = Notes()
    if isinstance(a, ConfigPack) != isinstance(b, ConfigPack):
        a, b = (_without_statistics(side, notes) for side in (a, b))
    elif isinstance(a, PreflightFile) and isinstance(b, PreflightFile):
        b = _with_names_of(a, b)
    if isinstance(a, Run) and isinstance(b, Run):
        found = preflight(a, b)
        known = found.not_compared
    else:
        found = preflight(*_with_common(a, b, notes))
        files = isinstance(a, PreflightFile) and isinstance(b, PreflightFile)
        of_runs = (*_OF_RUNS, _WEIGHTS) if files else _OF_RUNS
        left = (_of_collection(note, of_runs) for note in found.not_compared)
        known = tuple(filter(None, left))
    differences = [*found.differences]
    if isinstance(a, PreflightFile) and isinstance(b, PreflightFile):
        differences += _own_sections(a, b, notes)
    differences.sort(key=_order)
    if len(differences) > MAX_DIFFERENCES:
        left_out = len(differences) - MAX_DIFFERENCES
        last = differences[MAX_DIFFERENCES].section
        notes.add("more_differences", section=last, count=left_out)
    kept = tuple(differences[:MAX_DIFFERENCES])
    return Preflight(kept, found.weights, (*known, *notes.messages()))


def _without_statistics(side: Run | PreflightFile, notes: Notes) -> Run | PreflightFile:
    """Return a side without what a pack says otherwise than a collection."""
    if not isinstance(side, PreflightFile):
        return side
    if isinstance(side, ConfigPack):
        for section in filter(side.has, _OTHERWISE_IN_PACKS):
            notes.about("of_pack", section)
    return side.without(_OTHERWISE_IN_PACKS)


def _order(difference: Difference) -> tuple[bool, bool, int]:
    section = difference.section
    is_place = section in _OF_PLACES and difference.is_place
    order = _ORDER.index(section) if section in _ORDER else len(_ORDER)
    return difference.is_of_recording, is_place, order


def _of_collection(note: Message, of_runs: Sequence[str]) -> Message | None:
    """Return a note without what a collection never has; None if nothing is left of it.

    Args:
        of_runs: sections that are not asked of a collection, or of which it is said elsewhere.
    """
    if note.code == "preflight.neither":
        return None
    if note.code == "preflight.weights_only_in" and _WEIGHTS in of_runs:
        return None
    names = note.params.get("names")
    if note.code != "preflight.only_one_side" or not isinstance(names, list):
        return note
    left = [name for name in names if name not in of_runs]
    return Message(note.code, {**note.params, "names": left}) if left else None


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """A side with some of its configurations."""

    own: Given
    chosen: dict[str, Any] | None

    @property
    def path(self) -> Path:
        return self.own.path

    @property
    def run_files(self) -> Sequence[RunFile]:
        return self.own.run_files

    def configurations(self) -> dict[str, Any] | None:
        return self.chosen


def _with_common(a: Given, b: Given, notes: Notes) -> tuple[Given, Given]:
    """Return both sides with the configurations that both have, by the names of A.

    What one side was not given is not known, whatever a run may have saved beside it.
    """
    left, right = _configurations(a), _configurations(b)
    if left is None or right is None:
        return a, b
    for name in dict.fromkeys([*left, *right]):
        if name not in left or name not in right:
            notes.only_in("configurations", name in left, name)
    return (
        _Chosen(a, {name: value for name, value in left.items() if name in right}),
        _Chosen(b, {name: value for name, value in right.items() if name in left}),
    )


def _configurations(side: Given) -> dict[str, Any] | None:
    try:
        return side.configurations()
    except OSError:  # which is said where it is compared
        return None


def _with_names_of(a: PreflightFile, b: PreflightFile) -> PreflightFile:
    """Return B with the names that A has for the same things."""
    for sections in (("configurations",), ("checkpoints", _WEIGHTS)):
        names = _paired(*(side.section(sections[0]) or {} for side in (a, b)))
        b = b.renamed(names, *sections)
    return b


def _paired(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, str]:
    """Return which name of B is called by which of A: the only ones that are left over."""
    alone = [name for name in a if name not in b], [name for name in b if name not in a]
    return {alone[1][0]: alone[0][0]} if len(alone[0]) == len(alone[1]) == 1 else {}


def _own_sections(a: PreflightFile, b: PreflightFile, notes: Notes) -> Iterator[Difference]:
    yield from calls_apart(a, b, notes)
    found: dict[str, Iterator[Found]] = {
        "checkpoints": _checkpoints(a.section("checkpoints"), b.section("checkpoints"), notes),
        "data": _data(a.section("data"), b.section("data"), notes),
        "script": _script(a.section("script"), b.section("script"), notes),
        "packages": _packages(a, b, notes),
    }
    for section, pairs in found.items():
        for name, left, right in pairs:
            yield difference_of(Difference(section, name, None, None), left, right)


_Section = dict[str, Any] | None


def _known(section: str, a: _Section, b: _Section, notes: Notes) -> bool:
    return is_known(section, a, b, notes, neither=False)


def _packages(a: PreflightFile, b: PreflightFile, notes: Notes) -> Iterator[Found]:
    sides = a.section("packages"), b.section("packages")
    if _known("packages", *sides, notes):
        versions = [(side.section("versions") or {}) for side in (a, b)]
        left, right = (
            {name: v for name, v in (side or {}).items() if not any(name in of for of in versions)}
            for side in sides
        )
        yield from compare("packages", left, right, notes)


def _script(a: _Section, b: _Section, notes: Notes) -> Iterator[Found]:
    if not (_known("script", a, b, notes) and a and b):
        return
    commands = [{"command": side.get("command")} for side in (a, b)]
    yield from compare("script", commands[0], commands[1], notes)
    codes = a.get("exit_code"), b.get("exit_code")
    if None not in codes and codes[0] != codes[1]:
        yield "exit_code", codes[0], codes[1]


def _checkpoints(a: _Section, b: _Section, notes: Notes) -> Iterator[Found]:
    if not (_known("checkpoints", a, b, notes) and a is not None and b is not None):
        return
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            notes.only_in("checkpoints", name in a, name)
            continue
        left, right = _files(a[name]), _files(b[name])
        if left is None or right is None:
            if left is not right:  # else their parameters were compared
                notes.about("parameters_of_one", name)
        elif sorted(left.values()) != sorted(right.values()):  # under whatever names
            yield from _files_apart(name, left, right)


def _files_apart(name: str, a: dict[str, str], b: dict[str, str]) -> Iterator[Found]:
    own = _paired(a, b)
    renamed = {own.get(file, file): text for file, text in b.items()}
    for file in dict.fromkeys([*a, *renamed]):
        left, right = a.get(file, ABSENT), renamed.get(file, ABSENT)
        if left != right:
            yield name if file == name else f"{name}: {file}", left, right


def _files(checkpoint: Any) -> dict[str, str] | None:
    """Return what is known of each file, as a text; None where the parameters are known."""
    files = checkpoint.get("files") if isinstance(checkpoint, dict) else None
    if not isinstance(files, dict):
        return None
    return {
        str(name): f"{one.get('size')} bytes, {one.get('fingerprint')}"
        for name, one in files.items()
        if isinstance(one, dict)
    }


def _data(a: _Section, b: _Section, notes: Notes) -> Iterator[Found]:
    if not (_known("data", a, b, notes) and a is not None and b is not None):
        return
    batches = [_batches(side) for side in (a, b)]
    counts = len(batches[0]), len(batches[1])
    ended = [side.get("exhausted") is True for side in (a, b)]
    fewer = counts.index(min(counts))
    if counts[0] != counts[1] and ended[fewer]:
        yield "batches", counts[0], counts[1]
    elif counts[0] != counts[1]:
        notes.add("batches", a=counts[0], b=counts[1])
    for number, (left, right) in enumerate(zip(*batches)):
        yield from _values_apart(f"batch {number}", left, right, notes)


#: Path → what is known of the value.
_Batch = dict[str, dict[str, Any]]


def _values_apart(batch: str, a: _Batch, b: _Batch, notes: Notes) -> Iterator[Found]:
    """Yield the values of a batch that differ, or that one side alone has."""
    for path in dict.fromkeys([*a, *b]):
        name = f"{batch}: {path}" if path else batch
        left, right = a.get(path), b.get(path)
        # One type of which nothing else is known, and another one.
        opaque = left and right and (left.get("opaque") or right.get("opaque"))
        if left is None or right is None or (opaque and left.get("type") != right.get("type")):
            yield name, _described(left), _described(right)
        elif not (_is_compared(left) and _is_compared(right)):
            notes.about("opaque_data", name)
        elif _identity(left) != _identity(right):
            yield name, _described(left), _described(right)


def _batches(data: dict[str, Any]) -> list[_Batch]:
    found = data.get("batches")
    batches = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [
        {str(path): leaf for path, leaf in batch.items() if isinstance(leaf, dict)}
        for batch in batches
    ]


def _is_compared(leaf: dict[str, Any]) -> bool:
    """Return whether something is known of a value that tells it from others."""
    return not leaf.get("opaque") and ("fingerprint" in leaf or "value" in leaf)


def _identity(leaf: dict[str, Any]) -> tuple[Any, ...]:
    """Return what two equal values have alike: a tensor of either framework is one."""
    if "fingerprint" not in leaf:
        return leaf.get("type"), str(leaf.get("value"))
    return leaf.get("dtype"), str(leaf.get("shape")), leaf["fingerprint"]


def _described(leaf: dict[str, Any] | None) -> Any:
    """Return a value as a text: dtype, shape, statistics, the first digits of the fingerprint."""
    if leaf is None:
        return ABSENT
    if "shape" not in leaf:
        return str(leaf.get("type") if leaf.get("opaque") else leaf.get("value", leaf.get("type")))
    numbers = " ".join(f"{name} {leaf.get(key)}" for name, key in _STATISTICS)
    digits = str(leaf.get("fingerprint")).rpartition(":")[2][:_SHOWN]
    return f"{leaf.get('dtype')}{leaf.get('shape')} {numbers} #{digits}"


_SEEDS, _CALLS = "seeds", "random_calls"

_Call = dict[str, Any]
_Pair = tuple[_Call | None, _Call | None]


def calls_apart(a: PreflightFile, b: PreflightFile, notes: Notes) -> Iterator[Difference]:
    """Yield where two scripts seed or draw otherwise.

    Lines may have moved: places are the same by file, function and code, else by file and function,
    else as the only one of the random function that is left over.
    """
    sides = a.listed(_CALLS), b.listed(_CALLS)
    if not is_known(_CALLS, *sides, notes, neither=False):
        return
    left, right = (_by_rank(side or []) for side in sides)
    stopped = _stopped(a, b, notes)
    merged = Ranks(len({*left, *right}))
    # A script of which no process drew anything did so on every rank.
    left, right = left or {rank: [] for rank in right}, right or {rank: [] for rank in left}
    for rank in sorted({*left, *right}):
        if rank not in left or rank not in right:
            notes.add("calls_of_rank", side="A" if rank in left else "B", rank=rank)
            continue
        pairs = [*_calls_paired(left[rank], right[rank])]
        for pair in pairs:
            _judge(pair, rank, stopped, merged, notes)
        for what, *places in _orders_apart(pairs, left[rank], right[rank]):
            merged.add_one(what, rank, *places)
    yield from merged.differences()


def _stopped(a: PreflightFile, b: PreflightFile, notes: Notes) -> list[bool]:
    """Return whether each script was stopped before its end, which is noted."""
    stopped = [bool((side.section("script") or {}).get("stopped")) for side in (a, b)]
    for name, was in zip("AB", stopped):
        if was:
            notes.add("stopped_script", side=name)
    return stopped


def _by_rank(calls: Sequence[_Call]) -> dict[int, list[_Call]]:
    found: dict[int, list[_Call]] = {}
    for call in calls:
        rank = call.get("rank")
        found.setdefault(rank if isinstance(rank, int) else 0, []).append(call)
    return found


def _calls_paired(a: list[_Call], b: list[_Call]) -> Iterator[_Pair]:
    """Yield the calls of either side, those of one place together, in the order of A."""
    of_a: dict[int, int] = {}  # the place in A → that in B
    free_a, free_b = [*range(len(a))], [*range(len(b))]
    for key in _KEYS:
        places = [_places(key, a, free_a), _places(key, b, free_b)]
        for name, mine in places[0].items():
            others = places[1].get(name, [])
            if key is not _function or len(mine) == len(others) == 1:
                of_a.update(zip(mine, others))
        free_a = [i for i in free_a if i not in of_a]
        taken = {*of_a.values()}
        free_b = [j for j in free_b if j not in taken]
    for i, call in enumerate(a):
        yield call, b[of_a[i]] if i in of_a else None
    yield from ((None, b[j]) for j in free_b)


def _places(
    key: Callable[[_Call], Any], calls: list[_Call], free: Sequence[int]
) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for index in free:
        found.setdefault(key(calls[index]), []).append(index)
    return found


def _function(call: _Call) -> Any:
    return str(call.get("function"))


def _in_function(call: _Call) -> Any:
    file = os.path.basename(str(call.get("file")))
    return _function(call), file, str(call.get("in"))


_KEYS: tuple[Callable[[_Call], Any], ...] = (
    lambda call: (*_in_function(call), str(call.get("code"))),
    _in_function,
    _function,
)


def _judge(pair: _Pair, rank: int, stopped: Sequence[bool], merged: Ranks, notes: Notes) -> None:
    a, b = pair
    name = _place(a or b or {})
    if a is None or b is None:
        if not stopped[0 if a is None else 1]:  # the other may not have come so far
            merged.add_one(*_alone(a or b or {}, rank, in_a=a is not None))
    elif _may_have_seeded_more(a, b, stopped):
        notes.about("incomplete_seeds", name)
    elif _known_seeds(a) != _known_seeds(b):
        merged.add_one(Difference(_SEEDS, name, None, None), rank, _seeds(a), _seeds(b))
    elif any(stopped):
        return
    elif not (a.get("complete") and b.get("complete")):
        notes.about("incomplete_calls", name)
    elif a.get("count") != b.get("count"):
        what = Difference(_CALLS, name, None, None)
        merged.add_one(what, rank, a.get("count"), b.get("count"))


def _known_seeds(call: _Call) -> list[str]:
    """Return the seeds of a place, those of several processes in no order."""
    seeds = call.get("seeds")
    found = [str(seed) for seed in seeds] if isinstance(seeds, list) else [str(seeds)]
    several = "process" in call and call["process"] is None
    return sorted(found) if several else found


def _may_have_seeded_more(a: _Call, b: _Call, stopped: Sequence[bool]) -> bool:
    """Return whether seeds differ only by some that a process that was ended may have set too."""
    seeds = {*_known_seeds(a)}, {*_known_seeds(b)}
    cut = [was or not call.get("complete") for call, was in zip((a, b), stopped)]
    return seeds[0] != seeds[1] and (
        (cut[0] and seeds[0] < seeds[1]) or (cut[1] and seeds[1] < seeds[0])
    )


def _of_one_process(calls: Sequence[_Call]) -> bool:
    """Return whether calls are known to be of one process, which made the first ones in order."""
    numbers = {call.get("process") if type(call.get("process")) is int else None for call in calls}
    return len(numbers) == 1 and None not in numbers


def _orders_apart(
    pairs: Sequence[_Pair], calls_of_a: Sequence[_Call], calls_of_b: Sequence[_Call]
) -> Iterator[tuple[Difference, str, str]]:
    """Yield which generator's places were first called in another order, and from where on.

    Calls of several processes have no order.

    Args:
        pairs: in the order of A.
        calls_of_a, calls_of_b: all calls of either side, in their order.
    """
    if not (_of_one_process(calls_of_a) and _of_one_process(calls_of_b)):
        return
    places = {id(call): i for i, call in enumerate(calls_of_b)}
    both: dict[str, list[tuple[_Call, _Call]]] = {}
    for a, b in pairs:
        if a is not None and b is not None and _of_global(_function(a)):
            both.setdefault(_function(a).partition(".")[0], []).append((a, b))
    for generator, in_a in both.items():
        in_b = sorted(in_a, key=lambda pair: places[id(pair[1])])
        parted = next((i for i, pair in enumerate(in_a) if pair is not in_b[i]), None)
        if parted is not None:
            what = Difference(_CALLS, f"order of calls ({generator})", None, None)
            yield what, _place(in_a[parted][0]), _place(in_b[parted][1])


def _of_global(function: str) -> bool:
    """Return whether a function draws from, or seeds, a generator that others draw from, too."""
    return ".Generator." not in function and not function.endswith(
        ("default_rng", "config.set_seed")
    )


def _alone(call: _Call, rank: int, *, in_a: bool) -> tuple[Difference, int, Any, Any]:
    """Return what is to be said of a place that one side alone has."""
    is_seed = bool(call.get("seeds"))
    value = _seeds(call) if is_seed else call.get("count")
    what = Difference(_SEEDS if is_seed else _CALLS, _place(call), None, None)
    return (what, rank, value, ABSENT) if in_a else (what, rank, ABSENT, value)


def _place(call: _Call) -> str:
    """Return what a place is called: the random function, the file, the line and its code."""
    code = str(call.get("code") or "")
    where = f"{call.get('function')} ({call.get('file')}:{call.get('line')})"
    return f"{where} {code}" if code else where


def _seeds(call: _Call) -> str:
    seeds = call.get("seeds")
    return ", ".join(map(str, seeds)) if isinstance(seeds, list) else str(seeds)
