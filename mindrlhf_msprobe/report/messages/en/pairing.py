"""How two runs, and the tokens of their rows, were brought together, in English."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted
from mindrlhf_msprobe.report.messages.templates import Joined


def _some(names: Sequence[object], more: bool) -> str:
    shown = ", ".join(map(str, names))
    return f"{shown}, …" if more else shown


def _missing_ranks(count: int, ranks: Sequence[int], more: bool, side: str) -> str:
    return (
        f"{counted(count, 'rank')} of the job ({_some(ranks, more)}) recorded nothing in the "
        f"directory of run {side}; those of other nodes are put together with mindrlhf-msprobe "
        f"merge"
    )


def _left_out(side: str, dumps: Sequence[str], more: bool) -> str:
    return (
        f"dumps that stood in the directory of run {side} before it, and are none of it, are left "
        f"out: {_some(dumps, more)}"
    )


def _below(phase: str, a: str, b: str) -> str:
    a, b = (f"{prefix}.…" if prefix else "the network itself" for prefix in (a, b))
    return f"{phase}: the cells of A below {a} are compared with those of B below {b}"


def _noise_run(path: str, roles: Sequence[str], settings: Sequence[str], more: bool) -> str:
    what = [f"the initial weights of {', '.join(roles)}"] if roles else []
    what += [", ".join(settings) + (" and more" if more else "")] if settings else []
    return (
        f"the noise run {path} does not have A's configuration ({'; '.join(what)}): what it shows "
        f"may be more than noise"
    )


def _unused_names(mapping: str, first: str, more: int) -> str:
    return f"{mapping}: nothing in B is called {first}{f' and {more} more' if more else ''}"


_ALIKE = {
    "inputs": "that were given the same inputs",
    "bytes": "with the same bytes",
    "nearest": "that are nearest to each other, as none has the same bytes,",
}


def _rows(alike: str, moved: bool, matched: bool, assumed: bool) -> str:
    if not (matched or assumed):
        return "which rows belong together is not known"
    order = ", in another order" if moved else ", in the same order"
    same = f"rows {_ALIKE[alike]} are paired{order}"
    if not assumed:
        return same
    in_order = (
        "in the order of the micro-batches, which is assumed: it is wrong if the trainer shuffled "
        "them"
    )
    if not matched:
        return f"there are no rows {_ALIKE[alike]}, and rows are paired {in_order}"
    return f"{same}; other rows are paired {in_order}"


def _batch_sizes(
    a: str, b: str, a_rows: Sequence[int], b_rows: Sequence[int], how: str, updated: bool
) -> str:
    if list(a_rows) == list(b_rows):
        return f"{a} of A and {b} of B hold the same rows in other batches; {how}"
    sizes = [" or ".join(map(str, rows)) for rows in (a_rows, b_rows)]
    what = f"{a} ({sizes[0]} rows a batch) and {b} ({sizes[1]})"
    only = "; only those before the first update within the phase" if updated else ""
    return f"the batch sizes of {what} differ; {how}{only}"


TEXTS: Mapping[str, Any] = {
    "other_floats": Joined(
        "floats are {a} in A and {b} in B; those of unlike dtypes are "
        "compared by value with a tolerance only, e.g. --rtol 1e-2 --atol 1e-2",
        ", ",
    ),
    "rows": _rows,
    "batch_sizes": _batch_sizes,
    "no_common_phase": Joined(
        "no phase in common: A has {a}, B has {b}; hold one against another with --phases X,Y", ", "
    ),
    "missing_ranks": _missing_ranks,
    "left_out": _left_out,
    "below": _below,
    "noise_run": _noise_run,
    "unused_names": _unused_names,
}


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


def _joined(side: str, ranks: int, axes: str) -> str:
    if ranks == 1:
        return f"{side}: one rank ({axes}); its rows are looked for in the batches of the other run"
    return f"{side}: what {ranks} ranks hold ({axes}) was put together and is compared as rank 0"


#: What is said of runs whose ranks divide the work.
LAYOUT: Mapping[str, Any] = {
    "no_axes": _no_axes,
    "place": _place,
    "rule": _rule,
    "order": Joined("order: {axis}: {order} is not known; expected zigzag for one of {axes}", ", "),
    "joined": _joined,
}


TOKENS: Mapping[str, Any] = {
    "unknown_samples": lambda entry, count, saved: (
        f"{entry} was given tokens of {counted(count, 'sample')}, and nothing says which of the "
        f"samples before they continue: their rows are left out. "
        + (
            "Of the prompts and responses that were saved none fits, or more than one: "
            "`phase.tokens(ids, positions=...)` says which tokens a call is given"
            if saved
            else "Prompts and responses saved as token ids say it, or "
            "`phase.tokens(ids, positions=...)`"
        )
    ),
    "drafts": lambda count: (
        f"{counted(count, 'row')} of rejected drafts: by the responses that were saved, no tokens "
        f"of a sample"
    ),
    "padding_behind": lambda count: (
        f"{counted(count, 'row')} of the rollout behind the ends of samples: padding, left out"
    ),
    "refilled": lambda count: (
        f"{counted(count, 'sequence')} began again with the tokens so far: a cache was filled "
        f"again (preemption)"
    ),
}
