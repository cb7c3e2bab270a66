"""Which row of the call before each row goes on with, where the network is given it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.causal_phase import CausalPhase, count_named, values

from mindrlhf_msprobe.sequences.calls import read_tokens


@pytest.mark.parametrize("name", ["beam_idx", "reorder_index"])
@pytest.mark.parametrize("seed", range(10))
def test_rows_go_on_with_the_row_that_the_index_names(tmp_path, seed, name):
    """Of any order, and where several go on with one: as the beams were made by hand."""
    draw = random.Random(seed)
    count = draw.randrange(2, 6)
    beams = [[n + 1, *[draw.randrange(1, 9) for _ in range(2)]] for n in range(count)]
    phase = CausalPhase(tmp_path / "phase")
    phase.call(beams, values([1] * count), position_ids=[[0, 1, 2]] * count)
    expected = [[beam[: at + 1] for beam in beams for at in range(3)]]
    for at in range(3, 8):
        parents = [draw.randrange(count) for _ in range(count)]
        beams = [[*beams[parent], draw.randrange(1, 9)] for parent in parents]
        ids, positions = [[beam[-1]] for beam in beams], [[at]] * count
        index = np.array(parents, np.int32)
        phase.call(ids, values([1] * count), position_ids=positions, **{name: index})
        expected.append(beams)
    found = read_tokens(phase.entries)
    assert not found.notes
    assert count_named(found, expected) == sum(map(len, expected))
