"""What `preflight collect` collected, compared with another collection or with a recorded run.

Random calls of two scripts are compared by function, place, number and seed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.comparison.preflight.preflight import (
    MAX_DIFFERENCES,
    WEIGHTS,
    compare_snapshots,
)
from mindrlhf_msprobe.comparison.preflight.values import (
    ABSENT,
    Found,
    Notes,
    Ranks,
    compare,
    differences_of,
)
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Difference, Preflight
from mindrlhf_msprobe.storage.foreign.config_pack import is_config_pack, read_config_pack
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.snapshot import KINDS, Snapshot, Trait, kinds_with

_STATISTICS = (("max", "Max"), ("min", "Min"), ("mean", "Mean"), ("norm", "Norm"))


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
    return compare_sides(_opened(a), _opened(b))


def _opened(path: str | Path) -> Snapshot:
    if not os.path.isdir(path):
        path = Path(path)
        return read_config_pack(path) if is_config_pack(path) else Snapshot.read(path)
    run = open_run(path)
    if not run.run_files:
        raise RunError.saying("collect.no_manifest", path=path)
    return Snapshot.of(run)


def compare_sides(a: Snapshot, b: Snapshot) -> Preflight:
    """Compare two sides that have been opened; see `compare_collected`."""
    notes = Notes()
    collections = sum(side.collected is not None for side in (a, b))
    if a.is_pack != b.is_pack:
        a, b = (_without_statistics(side, notes) for side in (a, b))
    elif collections == 2:
        # The only ones that are left over are the same, whatever they are called.
        for sections in (("configurations",), ("checkpoints", WEIGHTS)):
            names = _paired(*(side.section(sections[0]) or {} for side in (a, b)))
            renamed = {
                section: {names.get(name, name): value for name, value in content.items()}
                for section in sections
                if (content := b.section(section)) is not None
            }
            b = b.with_content({**(b.collected or {}), **renamed})
    not_expected: list[str] = []
    if collections:
        a, b = _with_common_configurations(a, b, notes)
        not_expected = [*kinds_with(Trait.OF_RUNS), "generation_settings"]
        not_expected += [WEIGHTS] * (collections == 2)
    found = compare_snapshots(a, b, Notes(not_expected))
    differences = [*found.differences]
    if collections == 2:
        differences += _own_sections(a, b, notes)

    def order(difference: Difference) -> tuple[bool, bool, int]:
        section = difference.section
        is_place = Trait.PATHS in KINDS[section] and difference.is_place
        return difference.is_of_recording, is_place, [*KINDS].index(section)

    differences.sort(key=order)
    if len(differences) > MAX_DIFFERENCES:
        left_out = len(differences) - MAX_DIFFERENCES
        last = differences[MAX_DIFFERENCES].section
        notes.add("more_differences", section=last, count=left_out)
    kept = tuple(differences[:MAX_DIFFERENCES])
    return Preflight(kept, found.weights, (*found.not_compared, *notes.messages()))


def _without_statistics(side: Snapshot, notes: Notes) -> Snapshot:
    """Return a side without what a pack says in another form than a collection."""
    if side.collected is None:
        return side
    left_out = kinds_with(Trait.OTHER_IN_PACKS)
    for section in left_out if side.is_pack else ():
        if section in side.collected:
            notes.about("of_pack", section)
    return side.with_content({n: of for n, of in side.collected.items() if n not in left_out})


def _with_common_configurations(
    a: Snapshot, b: Snapshot, notes: Notes
) -> tuple[Snapshot, Snapshot]:
    """Return both sides with the configurations that both have.

    What one side was not given is not known, whatever a run may have saved beside it.
    """
    left, right = a.configurations, b.configurations
    if left is None or right is None:
        return a, b
    for name in dict.fromkeys([*left, *right]):
        if name not in left or name not in right:
            notes.only_in("configurations", name in left, name)
    return (
        dataclasses.replace(a, configurations={n: of for n, of in left.items() if n in right}),
        dataclasses.replace(b, configurations={n: of for n, of in right.items() if n in left}),
    )


def _paired(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, str]:
    """Return which name of B is called by which of A: the only ones that are left over."""
    alone = [name for name in a if name not in b], [name for name in b if name not in a]
    return {alone[1][0]: alone[0][0]} if len(alone[0]) == len(alone[1]) == 1 else {}


def _own_sections(a: Snapshot, b: Snapshot, notes: Notes) -> Iterator[Difference]:
    """Yield what differs in the sections that only collections have."""
    versions = {name for side in (a, b) for name in side.section("versions") or {}}

    def packages(a: Any, b: Any, notes: Notes) -> Iterator[Found]:
        """Yield the packages that differ, without those which stand among the versions."""
        left, right = ({n: v for n, v in of.items() if n not in versions} for of in (a, b))
        yield from compare("packages", left, right, notes)

    yield from calls_apart(a, b, notes)
    comparing: dict[str, Callable[[Any, Any, Notes], Iterator[Found]]] = {
        "checkpoints": _checkpoints,
        "data": _data,
        "script": _script,
        "packages": packages,
    }
    for section, found in comparing.items():
        sides = a.section(section), b.section(section)
        if notes.both_know(section, *sides, neither=False):
            yield from differences_of(section, found(*sides, notes))


def _script(a: dict[str, Any], b: dict[str, Any], notes: Notes) -> Iterator[Found]:
    left, right = ({"command": side.get("command")} for side in (a, b))
    yield from compare("script", left, right, notes)
    codes = a.get("exit_code"), b.get("exit_code")
    if None not in codes and codes[0] != codes[1]:
        yield "exit_code", *codes


def _checkpoints(a: dict[str, Any], b: dict[str, Any], notes: Notes) -> Iterator[Found]:
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            notes.only_in("checkpoints", name in a, name)
            continue
        left, right = _files(a[name]), _files(b[name])
        if left is None or right is None:
            if left is not right:  # else their parameters were compared
                notes.about("parameters_of_one", name)
        elif sorted(left.values()) != sorted(right.values()):  # under whatever names
            own = _paired(left, right)
            right = {own.get(file, file): text for file, text in right.items()}
            for file in dict.fromkeys([*left, *right]):
                texts = left.get(file, ABSENT), right.get(file, ABSENT)
                if texts[0] != texts[1]:
                    yield name if file == name else f"{name}: {file}", *texts


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


def _data(a: dict[str, Any], b: dict[str, Any], notes: Notes) -> Iterator[Found]:
    batches = _batches(a), _batches(b)
    counts = len(batches[0]), len(batches[1])
    if counts[0] != counts[1]:
        fewer = a if counts[0] < counts[1] else b
        if fewer.get("exhausted") is True:
            yield "batches", *counts
        else:
            notes.add("batches", a=counts[0], b=counts[1])
    for number, (left, right) in enumerate(zip(*batches)):
        for path in dict.fromkeys([*left, *right]):
            name = f"batch {number}: {path}" if path else f"batch {number}"
            mine, other = left.get(path), right.get(path)
            shown = _described(mine), _described(other)
            if mine is None or other is None:
                yield name, *shown
            elif _is_compared(mine) and _is_compared(other):
                if _identity(mine) != _identity(other):
                    yield name, *shown
            # One type of which nothing else is known, and another one.
            elif (mine.get("opaque") or other.get("opaque")) and mine.get("type") != other.get(
                "type"
            ):
                yield name, *shown
            else:
                notes.about("opaque_data", name)


def _batches(data: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """Return what is known of the values of each batch, by their paths."""
    found = data.get("batches")
    return [
        {str(path): leaf for path, leaf in batch.items() if isinstance(leaf, dict)}
        for batch in (found if isinstance(found, list) else ())
        if isinstance(batch, dict)
    ]


def _is_compared(leaf: dict[str, Any]) -> bool:
    """Return whether something is known of a value that tells it from others."""
    return not leaf.get("opaque") and ("fingerprint" in leaf or "value" in leaf)


def _identity(leaf: dict[str, Any]) -> tuple[Any, ...]:
    """Return what is the same for equal values, whichever framework a tensor is of."""
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
    digits = str(leaf.get("fingerprint")).rpartition(":")[2][:8]
    return f"{leaf.get('dtype')}{leaf.get('shape')} {numbers} #{digits}"


_SEEDS, _CALLS = "seeds", "random_calls"

_Call = dict[str, Any]
_Pair = tuple[_Call | None, _Call | None]


def calls_apart(a: Snapshot, b: Snapshot, notes: Notes) -> Iterator[Difference]:
    """Yield where two scripts seed or draw differently.

    Lines may have moved: places are the same by file, function and code, else by file and function,
    else as the only one of the random function that is left over.
    """
    sides = [(side.collected or {}).get(_CALLS) for side in (a, b)]
    sides = [of if isinstance(of, list) else None for of in sides]
    if not notes.both_know(_CALLS, *sides, neither=False):
        return
    left, right = (_by_rank(side or []) for side in sides)
    stopped = [bool((side.section("script") or {}).get("stopped")) for side in (a, b)]
    for name, was in zip("AB", stopped):
        if was:
            notes.add("stopped_script", side=name)
    merged = Ranks(len({*left, *right}))
    # A script of which no process drew anything did so on every rank.
    left, right = left or {rank: [] for rank in right}, right or {rank: [] for rank in left}
    for rank in sorted({*left, *right}):
        if rank not in left or rank not in right:
            notes.add("calls_of_rank", side="A" if rank in left else "B", rank=rank)
            continue
        pairs = [*_calls_paired(left[rank], right[rank])]
        for pair in pairs:
            for section, name, *values in _pair_apart(pair, stopped, notes):
                merged.add(rank, Difference(section, name), *values)
        for generator, *places in _orders_apart(pairs, left[rank], right[rank]):
            what = Difference(_CALLS, f"order of calls ({generator})")
            merged.add(rank, what, *places)
    yield from merged.differences()


def _by_rank(calls: Sequence[Any]) -> dict[int, list[_Call]]:
    found: dict[int, list[_Call]] = {}
    for call in calls:
        if isinstance(call, dict):
            rank = call.get("rank")
            found.setdefault(rank if isinstance(rank, int) else 0, []).append(call)
    return found


def _function(call: _Call) -> str:
    return str(call.get("function"))


def _in_function(call: _Call) -> tuple[str, ...]:
    return _function(call), os.path.basename(str(call.get("file"))), str(call.get("in"))


_KEYS: tuple[Callable[[_Call], Any], ...] = (
    lambda call: (*_in_function(call), str(call.get("code"))),
    _in_function,
    _function,
)


def _calls_paired(a: list[_Call], b: list[_Call]) -> Iterator[_Pair]:
    """Yield the calls of either side, those of one place together, in the order of A."""
    of_a: dict[int, int] = {}  # the place in A → that in B
    for key in _KEYS:
        taken = {*of_a.values()}
        free: tuple[dict[Any, list[int]], ...] = ({}, {})
        for calls, known, places in ((a, of_a, free[0]), (b, taken, free[1])):
            for index, call in enumerate(calls):
                if index not in known:
                    places.setdefault(key(call), []).append(index)
        for name, mine in free[0].items():
            others = free[1].get(name, [])
            if key is not _function or len(mine) == len(others) == 1:
                of_a.update(zip(mine, others))
    for i, call in enumerate(a):
        yield call, b[of_a[i]] if i in of_a else None
    yield from ((None, b[j]) for j in range(len(b)) if j not in {*of_a.values()})


def _pair_apart(
    pair: _Pair, stopped: Sequence[bool], notes: Notes
) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield section, name and both values where a place seeds or draws differently."""
    a, b = pair
    if a is None or b is None:
        call = a or b or {}
        if not stopped[0 if a is None else 1]:  # the other may not have come so far
            section = _SEEDS if call.get("seeds") else _CALLS
            value = ", ".join(_seeds(call)) if section == _SEEDS else call.get("count")
            yield section, _place(call), *((ABSENT, value) if a is None else (value, ABSENT))
        return
    seeds = [  # those of several processes in no order
        sorted(_seeds(call)) if call.get("process", 0) is None else _seeds(call) for call in (a, b)
    ]
    if seeds[0] != seeds[1]:
        left, right = {*seeds[0]}, {*seeds[1]}
        # A process that was ended may have set those, too, that the other has.
        cut = [was or not call.get("complete") for call, was in zip((a, b), stopped)]
        if (cut[0] and left < right) or (cut[1] and right < left):
            notes.about("incomplete_seeds", _place(a))
        else:
            yield _SEEDS, _place(a), ", ".join(_seeds(a)), ", ".join(_seeds(b))
    elif any(stopped):
        return
    elif not (a.get("complete") and b.get("complete")):
        notes.about("incomplete_calls", _place(a))
    elif a.get("count") != b.get("count"):
        yield _CALLS, _place(a), a.get("count"), b.get("count")


def _orders_apart(
    pairs: Sequence[_Pair], calls_of_a: Sequence[_Call], calls_of_b: Sequence[_Call]
) -> Iterator[tuple[str, str, str]]:
    """Yield which generator's places were first called in another order, and from where on.

    Calls of several processes have no order.

    Args:
        pairs: in the order of A.
        calls_of_a, calls_of_b: all calls of either side, in their order.
    """
    for calls in (calls_of_a, calls_of_b):
        numbers = {n if type(n := call.get("process")) is int else None for call in calls}
        if len(numbers) != 1 or None in numbers:
            return
    places = {id(call): i for i, call in enumerate(calls_of_b)}
    both: dict[str, list[tuple[_Call, _Call]]] = {}
    for a, b in pairs:
        if a is not None and b is not None:
            function = _function(a)
            own = ".Generator." in function or function.endswith(("default_rng", "config.set_seed"))
            if not own:  # others draw from its generator, too
                both.setdefault(function.partition(".")[0], []).append((a, b))
    for generator, in_a in both.items():
        in_b = sorted(in_a, key=lambda pair: places[id(pair[1])])
        for left, right in zip(in_a, in_b):
            if left is not right:
                yield generator, _place(left[0]), _place(right[1])
                break


def _place(call: _Call) -> str:
    """Return what a place is called: the random function, the file, the line and its code."""
    code = str(call.get("code") or "")
    where = f"{call.get('function')} ({call.get('file')}:{call.get('line')})"
    return f"{where} {code}" if code else where


def _seeds(call: _Call) -> list[str]:
    seeds = call.get("seeds")
    return [*map(str, seeds)] if isinstance(seeds, list) else [str(seeds)]
