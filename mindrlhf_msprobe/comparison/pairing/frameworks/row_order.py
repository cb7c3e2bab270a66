"""In which order the other framework has the rows of weights that are interleaved by head."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from mindrlhf_msprobe.comparison.mismatch.weights.fused import PRESETS, find_reordered, row_keys
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter

_FUSED = {name for names, _ in PRESETS for name in names}
_ROTATED = ("wq", "wk", "q_proj", "k_proj", "linear_q", "linear_k")
#: How rows are ordered: of a fused weight their places, of a rotated one the rows of a head and
#: which network turns halves; empty: both networks have them in one order.
_Kind = tuple[int, ...]
_AS_THEY_ARE: _Kind = ()


def orders_of(mine: Mapping[str, Record], theirs: Mapping[str, Record]) -> dict[str, np.ndarray]:
    """Return cell → which row of its weight each row of the other network's is.

    A network reads the rows of all its layers alike. So the order that most of them have counts
    for all: of one that has its rows otherwise, as a weight that was not converted, they differ.
    Where no order has more of them than the order of both being the same, that counts.

    Args:
        mine, theirs: parameters by common names.

    Returns:
        orders: of the cells whose rows are in another order, int64 [rows]; without those of which
            no elements were recorded.
    """
    fitting = {n: r for n, r in mine.items() if n in theirs and _is_matrix(r, theirs[n])}
    rows_of = {cell_of_parameter(n): (r.leaf.shape or (0,))[0] for n, r in fitting.items()}
    orders: dict[str, np.ndarray] = {}
    for kinds in _fused_kinds(fitting, theirs).values():
        kind = _of_most(kinds)
        orders |= dict.fromkeys(kinds if kind else (), np.array(kind))
    rotated = {
        cell_of_parameter(n): _rotary_kind(r, theirs[n])
        for n, r in fitting.items()
        if _last(n) in _ROTATED
    }
    kind = _of_most(rotated)
    for cell in rotated if kind else ():
        order = _rotary_order(kind, rows_of[cell])
        if order is not None:
            orders[cell] = order
    return orders


def _fused_kinds(
    fitting: Mapping[str, Record], theirs: Mapping[str, Record]
) -> dict[tuple[str, int], dict[str, _Kind | None]]:
    """Return how the rows of fused weights are ordered, by name and rows; None is not known."""
    fused = {n: r for n, r in fitting.items() if _last(n) in _FUSED}
    found = {cell: np.argsort(of.order) for cell, of in find_reordered(fused, theirs).items()}
    kinds: dict[tuple[str, int], dict[str, _Kind | None]] = defaultdict(dict)
    for name, record in fused.items():
        cell, rows = cell_of_parameter(name), (record.leaf.shape or (0,))[0]
        order = tuple(found[cell].tolist()) if cell in found else None
        kinds[_last(name), rows][cell] = _AS_THEY_ARE if order == tuple(range(rows)) else order
    return kinds


def _last(name: str) -> str:
    return cell_of_parameter(name).rpartition(".")[2]


def _is_matrix(mine: Record, theirs: Record) -> bool:
    return len(mine.leaf.shape or ()) == 2 and mine.leaf.shape == theirs.leaf.shape


def _of_most(kinds: Mapping[str, _Kind | None]) -> _Kind:
    counts = Counter(kind for kind in kinds.values() if kind is not None)
    return max(counts, key=lambda kind: (counts[kind], kind == _AS_THEY_ARE), default=_AS_THEY_ARE)


def _rotary_kind(mine: Record, theirs: Record) -> _Kind | None:
    """Return how the heads of a projection are interleaved; None where its elements do not tell.

    One rotary embedding turns the two halves of a head, the other every two neighbours: the rows
    of its projections are in another order. Any other order is an error in the weights.

    Returns:
        kind: the rows of a head, and which of the two networks turns halves; () for one order.
    """
    own, others = row_keys(mine), row_keys(theirs)
    if own is None or others is None:
        return None
    if np.array_equal(own, others):
        return _AS_THEY_ARE
    places = {key: number for number, key in enumerate(own.tolist())}
    order = np.array([places.get(key, -1) for key in others.tolist()])
    if len(places) != len(order) or (order < 0).any():
        return None
    for width in range(2, len(order) + 1, 2):
        for turned in (0, 1):
            usual = _rotary_order((width, turned), len(order))
            if usual is not None and np.array_equal(order, usual):
                return width, turned
    return None


def _rotary_order(kind: _Kind, rows: int) -> np.ndarray | None:
    """Return the order of the rows where heads are interleaved so; None if they do not fit."""
    width, turned = kind
    if rows % width:
        return None
    half = np.arange(width).reshape(2, -1).T.reshape(-1)
    of_head = np.argsort(half) if turned else half
    return (np.arange(0, rows, width)[:, None] + of_head).reshape(-1)
