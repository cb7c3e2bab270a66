"""How two runs were brought together, in English."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages.en.words import counted


def _some(names: Sequence[object], more: bool) -> str:
    shown = ", ".join(map(str, names))
    return f"{shown}, …" if more else shown


def _no_common_phase(a: Sequence[str], b: Sequence[str]) -> str:
    return (
        f"no phase in common: A has {', '.join(a)}, B has {', '.join(b)}; hold one against another "
        f"with --phases X,Y"
    )


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


def _other_floats(a: Sequence[str], b: Sequence[str]) -> str:
    return (
        f"floats are {', '.join(a)} in A and {', '.join(b)} in B; those of unlike dtypes are "
        "compared by value with a tolerance only, e.g. --rtol 1e-2 --atol 1e-2"
    )


TEXTS = {
    "other_floats": _other_floats,
    "of_run": "{run}: {what}",
    "repetition": "noise run {path}",
    "rows": _rows,
    "batch_sizes": _batch_sizes,
    "batch_statistics": (
        "the statistics of a whole batch say nothing of its micro-batches, so that only parameters "
        "and what holds no rows were compared. To compare the rest, record both with task: tensor, "
        "or let both see whole batches"
    ),
    "key_rows": "{a} of A and {b} of B were saved in other numbers of rows; {how}",
    "against": "{a} of A is compared with {b} of B",
    "rank": "rank {a} of A is compared with rank {b} of B",
    "step": "step {a} of A is compared with step {b} of B",
    "no_common_rank": "no rank in common: ranks {a} of A are compared with {b} of B",
    "no_common_phase": _no_common_phase,
    "dump_of_graphs": (
        "{side} is a dump of MindSpore (MINDSPORE_DUMP_CONFIG): its operators have the names of "
        "the compiled graph, which nothing else records. Dump both sides with MindSpore, or record "
        "both with this tool or msprobe, and compare those"
    ),
    "missing_ranks": _missing_ranks,
    "left_out": _left_out,
    "pattern": (
        "run {side} was recorded with {setting}: {pattern!r}, which is not matched any more "
        "({why}): what run {side} left out by it counts as missing"
    ),
    "unlike_names": (
        "{phase}: most cells of A and B have no name in common; if it is one network under other "
        "names, say so with --mapping"
    ),
    "preset": "MindSpore against PyTorch: names by a preset ({count} rules, such as {rules})",
    "activations": (
        "{count} activation(s) beside a gate are taken as part of it, as the other network has them"
    ),
    "fused": "{count} cell(s) of one network do what several of the other do: {shown}",
    "same_weight": (
        "{count} cell(s) are called otherwise in the other network, by the elements of their "
        "weights: {shown}"
    ),
    "interleaved": (
        "rows of {count} weight(s) are in another order by head, as in {shown}; they are compared "
        "row by row. If both networks read them alike, these weights were loaded wrongly"
    ),
    "below": _below,
    "key_data_only": "key data only: layer data were left out",
    "noise_run": _noise_run,
    "unused_names": _unused_names,
    "mapping_not_used": "{mapping} is not used: {used} is given, too, and goes before it",
}
