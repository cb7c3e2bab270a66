"""Tokens by layers: what is shown one by one, and what is summed up, when there are too many."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mindrlhf_msprobe.comparison.mismatch.find import token_map
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.findings.mismatch import Token

SAMPLES, LENGTH = 5, 10


def walked(**cells: np.ndarray) -> SimpleNamespace:
    """Return what a walk over some cells gives; a row each token, sample by sample."""
    sequence = np.repeat(np.arange(SAMPLES), LENGTH)
    position = np.tile(np.arange(LENGTH), SAMPLES)
    of_layers = {Name(cell, 0, "output", "0"): rows for cell, rows in cells.items()}
    return SimpleNamespace(
        tokens=SimpleNamespace(sequence=sequence, position=position),
        samples=lambda rows: sequence[rows],
        growth=SimpleNamespace(of_layers=of_layers),
        stages=dict.fromkeys([Name("other", 0, "input", "0"), *of_layers]),
        token=lambda row, apart: Token(row // LENGTH, row % LENGTH, 7, 0, "prompt", apart),
    )


@pytest.fixture
def rows() -> np.ndarray:
    """Return small distances, all of sample 3 larger, and one token of sample 1 the largest."""
    found = np.linspace(1e-7, 2e-7, SAMPLES * LENGTH, dtype=np.float32)
    found[3 * LENGTH : 4 * LENGTH] = 0.25
    found[3 * LENGTH + 2] = 0.75
    found[1 * LENGTH + 4] = 0.5
    return found


def test_few_tokens_are_all_shown_in_their_order(rows):
    """By sample and position, with the distances as they were measured."""
    found = token_map(walked(layer=rows))
    assert [(t.sample, t.position) for t in found.tokens] == [
        (sample, position) for sample in range(SAMPLES) for position in range(LENGTH)
    ]
    assert (found.apart[:, 0] == rows).all()
    assert not found.others
    assert found.columns == (1,)


def test_of_many_tokens_the_worst_sample_is_whole_and_nothing_large_is_lost(rows):
    """The rest says of each sample how many tokens are not shown, and the largest of them."""
    found = token_map(walked(layer=rows), most=24)
    shown = {(t.sample, t.position) for t in found.tokens}
    assert len(shown) == 24
    assert {(3, position) for position in range(LENGTH)} <= shown
    assert (1, 4) in shown
    assert sum(count for _, count, _ in found.others) == SAMPLES * LENGTH - 24
    for sample, count, largest in found.others:
        left = [p for p in range(LENGTH) if (sample, p) not in shown]
        assert count == len(left)
        assert largest[0] == rows[[sample * LENGTH + p for p in left]].max()


def test_what_was_not_compared_is_no_distance(rows):
    """A token that a layer did not have is NaN there; one that no layer had has no row."""
    other = rows.copy()
    rows[:3], other[:2] = np.nan, np.nan
    found = token_map(walked(a=rows, b=other))
    assert len(found.tokens) == SAMPLES * LENGTH - 2
    assert np.isnan(found.apart[0, 0])
    assert found.apart[0, 1] == other[2]


def test_a_frame_around_layers_is_no_column(rows):
    """It returns what the last cell in it returns."""
    found = token_map(walked(**{"model.layers.0": rows, "model.layers": rows, "model": rows}))
    assert found.columns == (1,)


def test_there_is_no_map_of_nothing(rows):
    """No layer was compared, or none of their tokens was."""
    assert token_map(walked()) is None
    assert token_map(walked(layer=np.full_like(rows, np.nan))) is None
