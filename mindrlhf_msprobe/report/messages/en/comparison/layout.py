"""What is said of runs whose ranks divide the work, in English."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text


def _no_axes(side: str) -> str:
    where = f"under `{side}`" if side else "at the top"
    return (
        f"{where} there is no rank grid; expected `axes`, the number of ranks along each axis, the "
        f"outermost first, e.g. axes: {{dp: 2, tp: 4}}"
    )


def _place(rank: str, axes: Sequence[str]) -> str:
    return (
        f"ranks: {rank} has no place on the grid; expected a rank and its place along each axis "
        f"({', '.join(axes)}), e.g. 3: {{{axes[0]}: 1}}, counted from 0"
    )


def _rule(rule: str, axes: Sequence[str]) -> str:
    return (
        f"shards: {rule} is no rule; expected a pattern of records' names, and for axes "
        f"({', '.join(axes)}) the dimension that is cut, or copy, partial or mean, "
        f"e.g. 'wo.*weight': {{{axes[-1]}: 1}}"
    )


def _order(axis: str, order: str, axes: Sequence[str]) -> str:
    return f"order: {axis}: {order} is not known; expected zigzag for one of {', '.join(axes)}"


def _joined(side: str, ranks: int, axes: str) -> str:
    if ranks == 1:
        return f"{side}: one rank ({axes}); its rows are looked for in the batches of the other run"
    return f"{side}: what {ranks} ranks hold ({axes}) was put together and is compared as rank 0"


TEXTS: dict[str, Text] = {
    "file": "a layout",
    "keys": "how ranks divide the work",
    "wrong": "{path}: {why}.",
    "no_axes": _no_axes,
    "axis": "axes: {axis} has the size {size}; expected a whole number of at least 1",
    "unknown_key": "{key} is not known; expected {known}",
    "fits_neither": (
        "a grid of {size} ranks is that of neither run, A has {a} and B has {b}; write the layouts "
        "of both below `a` and `b`, or correct the sizes of `axes`"
    ),
    "place": _place,
    "same_place": "ranks {ranks} are both at {place}; no two ranks can hold the same shard twice",
    "no_rank": "no rank is at {place}; name the rank that holds this shard",
    "rule": _rule,
    "pattern": "shards: the pattern {pattern} cannot be used: {why}",
    "order": _order,
    "scale": "scale: {scale} is no scale; expected a pattern of names and a number above 0",
    "shift": (
        "shift: {axis}: {shift} is no shift; expected the part of a name before the number, and "
        "what is added at each place of the axis, e.g. pp: {{layers: [0, 16]}}"
    ),
    "strategy": (
        "strategy: {given} is no strategy; expected the path of a strategy file of MindSpore, of a "
        "directory of them, or a list of paths"
    ),
    "micro_batches": (
        "micro_batches: {how} is not known; expected mean or sum: what the gradient of a batch is "
        "of those of its micro-batches"
    ),
    "strategy_file": "strategy: {why}",
    "strategy_ranks": (
        "strategy: it is of {sizes} ranks, the grid has {size}; expected the strategies of all "
        "stages of this run"
    ),
    "strategy_alone": (
        "a strategy file says how parameters are cut, and neither run recorded what its ranks are "
        "to each other; write a layout with both, e.g. b: {{axes: {{dp: 2, tp: 2}}, strategy: "
        "strategy.ckpt}}"
    ),
    "not_with": (
        "--layout puts the ranks of two runs together; it cannot be given with --ranks, --noise or "
        "one run alone."
    ),
    "no_replay": (
        "--replay does not go with a layout: what several ranks hold is no call that can be "
        "computed again; replay a rank."
    ),
    "no_layout": (
        "{side} has the ranks {ranks} and no layout; write how they divide the work below its "
        "letter, e.g. b: {{axes: {{tp: 2}}}}."
    ),
    "other_ranks": (
        "{side} has the ranks {ranks}, which its layout of {size} ranks does not name; correct the "
        "sizes of `axes`, or name each rank below `ranks`."
    ),
    "other_world": (
        "{side} ran on {world} ranks, its layout has {size}; correct the sizes of `axes`."
    ),
    "joined": _joined,
    "absent_ranks": (
        "{side}: nothing was recorded by rank {ranks} of its layout: what needs their part is not "
        "compared"
    ),
    "missing": "the part of rank {ranks} is missing",
    "unlike": "not all ranks hold a tensor as {name}",
    "dtypes": "rank {rank} holds {dtype}, rank {first} {other}",
    "dimension": (
        "its layout ({pattern!r}) cuts dimension {dim} over {axis}, which the shape {shape} that "
        "the ranks hold does not have"
    ),
    "shapes": "the parts do not fit together, by rank: {shapes}",
    "values_differ": (
        "ranks {ranks} have unlike numbers of their own samples; nothing tells that of the whole"
    ),
    "copies_differ": "rank {ranks} has another value than rank {first}, which should have the same",
    "partial_statistics": (
        "statistics of partial sums do not tell those of the sum; record it with task: tensor"
    ),
    "size_of_part": "{small} is a size of one rank's part, {large} that of the whole",
}
