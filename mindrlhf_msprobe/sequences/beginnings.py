"""Sequences of tokens that begin with the same ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

_ODD = np.uint64(0x9E3779B97F4A7C15)  # its powers weigh the tokens of a name


def prefix_names(sequence: np.ndarray) -> np.ndarray:
    """Return a number for the tokens up to each one, uint64 [tokens]: equal for equal tokens."""
    size = len(sequence)
    weights = np.cumprod(np.full(size, _ODD))
    with np.errstate(over="ignore"):
        mixed = (sequence.astype(np.uint64) + np.uint64(2)) * np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
        summed = np.cumsum(mixed * weights, dtype=np.uint64)
        names: np.ndarray = summed ^ (np.arange(1, size + 1, dtype=np.uint64) * _ODD)
    return names


def longest_common(
    mine: Sequence[np.ndarray], other: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each sequence the one that begins with the most of its tokens, and how many.

    Of several that share as many, each has one of its own as far as there are as many, the shortest
    first.

    Returns:
        int64 [of mine], the number of the other one, -1 without one; and how many tokens both begin
        with.
    """
    partner = np.full(len(mine), -1, np.int64)
    common = np.zeros(len(mine), np.int64)
    if not other:
        return partner, common
    keys = [sequence.tolist() for sequence in other]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    used = np.zeros(len(other), np.int64)
    for number, sequence in enumerate(mine):
        # In the order of their tokens, it stands beside where the sequence would stand.
        place = bisect_left(order, sequence.tolist(), key=keys.__getitem__)
        beside = [order[i] for i in (place - 1, place) if 0 <= i < len(order)]
        most = max(shared_length(sequence, other[i]) for i in beside)
        if not most:
            continue
        equals = []  # all that share as many tokens; they stand together around the place
        for steps in (range(place - 1, -1, -1), range(place, len(order))):
            for i in steps:
                if shared_length(sequence, other[order[i]]) < most:
                    break
                equals.append(order[i])
        partner[number] = min(equals, key=lambda i: (used[i], len(other[i]), i))
        used[partner[number]] += 1
        common[number] = most
    return partner, common


def shared_length(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many tokens two sequences both begin with."""
    length = min(len(a), len(b))
    unlike = a[:length] != b[:length]
    return int(unlike.argmax()) if unlike.any() else length


def run_at_start(ids: np.ndarray, fill: int | None) -> int:
    """Return how many times an id stands at the start of a row; None, no id, does so nowhere."""
    others = np.flatnonzero(ids != fill)
    return int(others[0]) if len(others) else len(ids)


def run_at_end(ids: np.ndarray, fill: int | None) -> int:
    """Return how many times an id stands at the end of a row; None, no id, does so nowhere."""
    return run_at_start(ids[::-1], fill)


def holds(sequence: bytes, row: np.ndarray) -> bool:
    """Return whether the ids of a row, int64, stand in a sequence of such ids one by one."""
    wanted, start = row.tobytes(), -1
    while (start := sequence.find(wanted, start + 1)) >= 0:
        if start % row.itemsize == 0:
            return True
    return False
