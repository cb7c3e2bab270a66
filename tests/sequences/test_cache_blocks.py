"""The size of the blocks of a paged cache: from random tables, also where some slots are wrong."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mindrlhf_msprobe.sequences.sharing import BlockSize


def written(draw, size, tokens, samples=3):
    """Return tables [tokens, blocks], slots and positions of the tokens of some samples."""
    each = tokens // size + 1
    blocks = draw.sample(range(1, 500), each * samples)
    rows = []
    for sample in range(samples):
        table = blocks[sample * each : (sample + 1) * each]
        for at in range(draw.randrange(1, tokens + 1)):
            rows.append((table, table[at // size] * size + at % size, at))
    return tuple(np.array(column) for column in zip(*rows))


@pytest.mark.parametrize("seed", range(30))
def test_the_size_follows_from_where_tokens_are_written(seed):
    """Also of calls that fill less than one block, and with one slot in five wrong."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 4, 7, 16, 32, 128])
    found = BlockSize()
    for _ in range(draw.randrange(1, 4)):
        tables, slots, positions = written(draw, size, draw.choice([3, 40, 150]))
        found.add(tables, slots, positions)
    assert found.found() == size
    tables, slots, positions = written(draw, size, 60)
    wrong = np.arange(len(slots)) % 5 == 4
    other = BlockSize()
    other.add(tables, np.where(wrong, slots + 3, slots), positions)
    assert other.found() == size


def test_what_nothing_says_is_not_guessed():
    """No slots; a first block that any size puts at 0; slots of no block."""
    assert BlockSize().found() is None
    first = BlockSize()
    first.add(np.zeros((3, 2), np.int64), np.arange(3), np.arange(3))
    assert first.found() is None
    none = BlockSize()
    none.add(np.array([[5, 6]] * 4), np.array([900001, 3, 71, 999999]), np.arange(4))
    assert none.found() is None
