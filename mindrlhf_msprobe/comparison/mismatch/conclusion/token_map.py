"""Tokens by layers, of limited size: the tokens furthest apart one by one, the others summed up."""

from __future__ import annotations

import numpy as np

from mindrlhf_msprobe.comparison.mismatch.names import Name
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.findings.mismatch import TokenMap

_MOST_TOKENS = 2048
_MOST_VALUES = 100_000  # tokens times columns
_MOST_SAMPLES = 256  # of which the tokens that are left out have a row each


def token_map(walk: Walk, most: int = _MOST_TOKENS) -> TokenMap | None:
    """Return how far each token is apart in what layers return; None where nothing was compared.

    Args:
        most: how many tokens are shown one by one. Half of them are all tokens of the samples
            that are furthest apart, the rest the tokens furthest apart of the others.
    """
    names = [name for name in walk.of_layers if not _is_around_others(name, walk)]
    if not names:
        return None
    apart = np.stack([walk.of_layers[name] for name in names], axis=1)
    known = ~np.isnan(apart)
    rows = np.flatnonzero(known.any(axis=1) & (walk.tokens.sequence >= 0))
    if not rows.size:
        return None
    apart, sample = apart[rows], walk.samples(rows)
    largest = np.where(known[rows], apart, -1).max(axis=1)
    chosen = _chosen(sample, largest, max(1, min(most, _MOST_VALUES // len(names))))
    order = np.lexsort((walk.tokens.position[rows], sample))
    shown = order[chosen[order]]
    numbers = {name: number for number, name in enumerate(walk.stages)}
    return TokenMap(
        tuple(numbers[name] for name in names),
        tuple(walk.token(int(rows[at]), float(largest[at])) for at in shown),
        apart[shown],
        _others(sample[~chosen], apart[~chosen]),
    )


def _is_around_others(name: Name, walk: Walk) -> bool:
    """Return whether a cell is only a frame around others that are columns."""
    inside = f"{name.cell}."
    return any(other.cell.startswith(inside) for other in walk.of_layers)


def _chosen(sample: np.ndarray, largest: np.ndarray, most: int) -> np.ndarray:
    """Return which rows are shown one by one, bool [rows]."""
    chosen = np.zeros(len(sample), bool)
    if len(sample) <= most:
        return ~chosen
    worst_first = np.argsort(-largest, kind="stable")
    sizes = np.bincount(sample)
    room = most // 2
    for one in dict.fromkeys(sample[worst_first].tolist()):
        if sizes[one] > room:
            break
        chosen |= sample == one
        room -= int(sizes[one])
    left = worst_first[~chosen[worst_first]]
    chosen[left[: most - int(chosen.sum())]] = True
    return chosen


def _others(
    sample: np.ndarray, apart: np.ndarray
) -> tuple[tuple[int | None, int, np.ndarray], ...]:
    """Return what is left out, by sample, and as one what is left out of too many samples."""
    found: list[tuple[int | None, int, np.ndarray]] = []
    numbers = np.unique(sample)
    for one in numbers[:_MOST_SAMPLES].tolist():
        found.append((one, int((sample == one).sum()), _largest(apart[sample == one])))
    rest = np.isin(sample, numbers[_MOST_SAMPLES:])
    if rest.any():
        found.append((None, int(rest.sum()), _largest(apart[rest])))
    return tuple(found)


def _largest(apart: np.ndarray) -> np.ndarray:
    return np.fmax.reduce(apart, axis=0)
