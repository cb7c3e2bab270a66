"""Items of two sequences are paired in order, and the pairs are worth as much as they can be."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest

from mindrlhf_msprobe.comparison.pairing import operators
from mindrlhf_msprobe.comparison.pairing.operators import align_sequences


def worths(a, b):
    """Return what pairs of items are worth: of one kind 5, of one letter 2, more for one value."""

    def worth(i, j):
        (letter, line, value), (other, other_line, other_value) = a[i], b[j]
        if letter != other:
            return 0
        most = 5 if line == other_line else 2
        return most * 100 + (value == other_value)

    def same(i, j):
        return int(a[i] == b[j])

    return [item[:2] for item in a], [item[:2] for item in b], worth, same


def best(a, b, worth):
    """Return what the best way to pair two short sequences is worth: every way is tried."""

    @cache
    def of(i, j):
        if i == len(a) or j == len(b):
            return 0
        apart = max(of(i + 1, j), of(i, j + 1))
        return max(apart, worth(i, j) + of(i + 1, j + 1)) if worth(i, j) else apart

    return of(0, 0)


def drawn(draw, length):
    return [(draw.choice("ab"), draw.choice("12"), draw.choice("xy")) for _ in range(length)]


def changed(draw, items):
    """Return items of which some are taken out, put in, or have another value."""
    made = []
    for item in items:
        fate = draw.random()
        if fate < 0.15:
            continue
        if fate < 0.3:
            made.append((draw.choice("ab"), draw.choice("123"), draw.choice("xy")))
        made.append((*item[:2], "z") if 0.3 < fate < 0.4 else item)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_pairs_are_worth_as_much_as_any_way_to_pair(seed):
    """Of many drawn pairs of sequences; in order, and none twice."""
    draw = random.Random(seed)
    for _ in range(100):
        a = drawn(draw, draw.randrange(8))
        b = changed(draw, a) if draw.random() < 0.7 else drawn(draw, draw.randrange(8))
        kinds_a, kinds_b, worth, same = worths(a, b)
        pairs = align_sequences(kinds_a, kinds_b, worth, same)
        assert all(x[0] < y[0] and x[1] < y[1] for x, y in itertools.pairwise(pairs)), (a, b)
        assert all(worth(i, j) for i, j in pairs), (a, b)
        if kinds_a == kinds_b:
            assert pairs == [(i, i) for i in range(len(a))]
        else:
            assert sum(worth(i, j) for i, j in pairs) == best(a, b, worth), (a, b, pairs)


@pytest.mark.parametrize("few", [True, False])
def test_long_sequences_leave_as_few_items_as_can_be(monkeypatch, few):
    """Too long to look at every pair of items: what was put in is what is left.

    Where even the search for the fewest insertions takes too long, no pair is of two kinds.
    """
    monkeypatch.setattr(operators, "_EXACT", 16)
    if not few:
        monkeypatch.setattr(operators, "_INSERTED", 0)
    draw = random.Random(1)
    for _ in range(60):
        a = [("a", str(i), "x") for i in range(draw.randrange(10, 40))]
        b = list(a)
        for _ in range(draw.randrange(1, 5)):
            b.insert(draw.randrange(len(b) + 1), ("b", str(draw.randrange(99)), "x"))
        kinds_a, kinds_b, worth, _ = worths(a, b)
        pairs = align_sequences(kinds_a, kinds_b, worth, lambda i, j: 0)
        assert [(a[i], a[i]) for i, _ in pairs] == [(a[i], b[j]) for i, j in pairs]
        assert len(pairs) == len(a)
