"""Which tokens go to other experts in the rollout than in the training, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.mismatch.conclude import gradual_limit
from mindrlhf_msprobe.comparison.mismatch.rows import NotAligned, Source, row_pairs
from mindrlhf_msprobe.comparison.mismatch.sides import Side
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.comparison.preflight.networks import attributes_of, role_of
from mindrlhf_msprobe.findings.mismatch import Experts
from mindrlhf_msprobe.sequences.routers import (
    MOST_EXPERTS,
    are_integers,
    chosen_experts,
    holds_scores,
    is_part_of_router,
    is_router,
    returns_choice,
)
from mindrlhf_msprobe.storage.records import is_around

#: What cells call how many experts each token has; and what routers, and cells around these, do.
_CHOSEN = frozenset(
    {
        *("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
        *("num_experts_chosen", "num_selected_experts"),
        *("moe_top_k", "moe_topk", "moe_router_topk", "router_topk", "router_top_k"),
    }
)
_CHOSEN_BY_ROUTERS = _CHOSEN | {"top_k", "topk", "k"}


def _block(cell: str) -> str:
    """Return the cell in which a router is, of the router or a part of it."""
    while is_part_of_router(cell):
        cell = cell.rpartition(".")[0]
    return cell


def other_experts(walk: Walk) -> tuple[Experts, ...]:
    """Return for each router whose choices both phases recorded how many tokens differ in them."""
    found: list[tuple[int, Experts]] = []
    # Numbers of experts before scores, and outer cells before inner ones.
    choices = sorted(
        _choices(walk), key=lambda of: (not _are_integers(of[1]), of[0].cell.count("."))
    )
    for name, rollout, training in choices:
        same = (  # what is known of the same router
            is_around(name.cell, known.cell)
            or is_around(known.cell, name.cell)
            or _block(name.cell) == _block(known.cell)
            for _, known in found
            if known.nth == name.nth
        )
        if any(same):
            continue
        largest = None
        if not _are_integers(rollout):
            own = {_chosen_of(walk.rollout, rollout), _chosen_of(walk.training, training)} - {None}
            if len(own) > 1:
                continue
            largest = next(iter(own), None)
        experts = _compared(walk, name, rollout, training, largest)
        if experts is not None:
            found.append((training.values[0].time, experts))
    return tuple(experts for _, experts in sorted(found, key=lambda one: one[0]))


def said_of_experts(experts: tuple[Experts, ...]) -> Message | None:
    """Say where tokens go to other experts first; None where none does."""
    apart = [one for one in experts if one.others]
    if not apart:
        return None
    routers = {"routers": len(experts), "apart": len(apart)}
    return message("mismatch.experts", **routers, **apart[0].counts)


def _choices(walk: Walk) -> Iterator[tuple[Name, Source, Source]]:
    """Yield values of both sides that may hold choices: of cells, and of operators in them."""
    for name in walk.stages:
        mine, theirs = walk.sources[name]
        sides = [source.values[0] for source in (mine, theirs)]
        if name.io != "output" or not all(returns_choice(value.entry) for value in sides):
            continue
        whole = {_are_integers(mine), _are_integers(theirs)}
        if whole == {True} or (whole == {False} and holds_scores(name.cell.rpartition(".")[2])):
            yield name, mine, theirs
    mine_of = {
        name._replace(cell=cell): value
        for name, value in walk.rollout.choices.items()
        if (cell := walk.names.common_a(name.cell)) is not None
    }
    for name, value in walk.training.choices.items():
        cell = walk.names.common_b(name.cell)
        own = None if cell is None else mine_of.get(name._replace(cell=cell))
        cells = walk.training.cells
        kind = f"Cell.{name.cell}.{cells.get(name.cell, '')}.forward.0"
        inside = (c for c in cells if (c.rpartition(".")[0] or "root") == name.cell)
        routes = is_router(kind) or any(map(is_part_of_router, inside))
        if own is not None and routes:
            yield name, Source(walk.rollout, own), Source(walk.training, value)


def _are_integers(source: Source) -> bool:
    return all(are_integers(leaf.dtype) for value in source.values for leaf in value.leaves())


def _chosen_of(side: Side, source: Source) -> int | None:
    """Return how many experts a token has, as a router or what is around it was built."""
    cell = source.values[0].entry.partition(".")[2].rpartition(".forward.")[0].rpartition(".")[0]
    around = attributes_of(side.run, role_of(side.run, side.rank, side.phase), cell)
    found = [
        own[name]
        for outer, own in enumerate(around)
        for name in own
        if name in (_CHOSEN_BY_ROUTERS if outer < 2 else _CHOSEN)
    ]
    return next((k for k in found if type(k) is int and 0 < k < MOST_EXPERTS), None)


def _compared(
    walk: Walk, name: Name, rollout: Source, training: Source, largest: int | None
) -> Experts | None:
    """Compare the choices of the aligned tokens; None where they were not stored, or are none."""
    if not (rollout.has_elements and training.has_elements):
        return None
    entered = _entered(walk, name)
    tokens = others = before = by = size = 0
    try:
        for pair in row_pairs(rollout, training, walk.matched):
            both = (
                chosen_experts(np.asarray(values[rows]), largest)
                for values, rows in (
                    (rollout.rows(pair.mine).values, pair.rows),
                    (training.rows(pair.other).values, pair.partners),
                )
            )
            a, b = both
            if a is None or b is None or a.shape != b.shape:
                return None
            size = a.shape[1]
            known = (a >= 0).any(axis=1) & (b >= 0).any(axis=1)
            apart = known & (a != b).any(axis=1)
            rows = pair.tokens[apart]
            tokens, others = tokens + int(known.sum()), others + len(rows)
            if entered is not None:
                far, limit = entered
                before += int((far[rows] > limit).sum())
                by += int((far[rows] <= limit).sum())
    except NotAligned:
        return None
    finally:
        rollout.close()
        training.close()
    return Experts(name.cell, name.nth, size, tokens, others, before, by) if tokens else None


def _entered(walk: Walk, name: Name) -> tuple[np.ndarray, float] | None:
    """Return how far what the router of a choice was given is apart in each token, and a limit.

    Up to the limit the roundings of all cells before explain it. None where it was not compared.
    The router is the cell itself, or what stands beside it or around it under a router's name.
    """
    cell = name.cell
    around = cell.rpartition(".")[0]
    cells = [cell]
    if is_part_of_router(cell):
        beside = (c for c in walk.training.cells if c.rpartition(".")[0] == around)
        cells += [c for c in beside if is_part_of_router(c)]
        cells += [around] if is_part_of_router(around) else []
    for before, (other, stage) in enumerate(walk.stages.items()):
        if other.io == "input" and other.nth == name.nth and other.cell in cells:
            return walk.growth.apart(other), gradual_limit(stage, before)
    return None
