"""The random calls of two scripts: which functions, where, how often, with which seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mindrlhf_msprobe.comparison.preflight.values import ABSENT, Notes, Ranks, is_known
from mindrlhf_msprobe.findings import Difference
from mindrlhf_msprobe.storage.preflight_file import PreflightFile

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
        pairs = [*_paired(left[rank], right[rank])]
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


def _paired(a: list[_Call], b: list[_Call]) -> Iterator[_Pair]:
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


def _at_code(call: _Call) -> Any:
    return (*_in_function(call), str(call.get("code")))


_KEYS: tuple[Callable[[_Call], Any], ...] = (_at_code, _in_function, _function)


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
