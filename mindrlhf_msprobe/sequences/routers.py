"""Which recorded values say the experts that a router chose for each token."""

from __future__ import annotations

import re

import numpy as np

#: More experts than any layer has.
MOST_EXPERTS = 4096

_ROUTER = re.compile(r"(?i)router|gate|gating|moe|topk|expert")
_PART_OF_ONE = re.compile(r"(?i)router|gate|gating|topk")
_MOVES_TOKENS = re.compile(r"(?i)dispatch|permut|combine|sort")
_TOPK = re.compile(r"(?i)top_?k")
_NONE = -1  # of a token that was dropped


def is_router(entry: str) -> bool:
    """Return whether an entry is that of a cell that may return which experts tokens go to."""
    kind = entry.rpartition(".")[0]
    return kind.endswith(".forward") and bool(_ROUTER.search(kind))


def returns_choice(entry: str) -> bool:
    """Return whether integers that a cell returns may be experts, and not places of tokens."""
    return is_router(entry) and not _MOVES_TOKENS.search(entry)


def is_part_of_router(cell: str) -> bool:
    """Return whether a cell is a router, or part of one, by its own name."""
    return bool(_PART_OF_ONE.search(cell.rpartition(".")[2]))


def is_topk(operator: str) -> bool:
    """Return whether an operator, e.g. `Mint.topk`, chooses the largest values."""
    return bool(_TOPK.search(operator))


def holds_scores(cell: str) -> bool:
    """Return whether floats that a cell returns are scores of all experts."""
    return "router" in cell.lower()


def are_integers(dtype: str | None) -> bool:
    """Return whether a dtype, by MindSpore's name, can be that of numbers of experts."""
    return (dtype or "").startswith(("Int", "UInt"))


def chosen_experts(rows: np.ndarray, largest: int | None = None) -> np.ndarray | None:
    """Return the numbers of the experts that tokens go to, rising; None if the rows say none.

    Args:
        rows: [tokens, k] numbers of experts, none twice for a token, -1 for none; or
            [tokens, experts], of which as many of each token are not 0 as it has experts.
        largest: how many of the largest scores in a row are the token's experts.

    Returns:
        [tokens, k]; of tokens of which equal scores leave it open, -1 alone.
    """
    if not rows.size:
        return None
    if largest is not None and 0 < largest < rows.shape[1]:
        order = np.argsort(-rows, axis=1, kind="stable")
        last = np.take_along_axis(rows, order[:, largest - 1 : largest + 1], axis=1)
        experts = np.sort(order[:, :largest], axis=1)
        return np.where((last[:, :1] > last[:, 1:]), experts, _NONE)
    if rows.dtype.kind in "iu":
        experts = np.sort(rows.astype(np.int64), axis=1)
        twice = (experts[:, 1:] == experts[:, :-1]) & (experts[:, 1:] != _NONE)
        if experts.min() >= _NONE and experts.max() < MOST_EXPERTS and not twice.any():
            return experts
    counts = np.count_nonzero(rows, axis=1)
    if counts[0] and 2 * counts[0] <= rows.shape[1] and (counts == counts[0]).all():
        return np.nonzero(rows)[1].reshape(len(rows), -1)
    return None
