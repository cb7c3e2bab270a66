"""Where error begins, and where it only comes from the tokens before."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe.comparison.mismatch.growth import ErrorGrowth
from mindrlhf_msprobe.comparison.mismatch.rows import Aligned, Distances
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.findings.mismatch import Token
from mindrlhf_msprobe.sequences.calls import TokenRows

#: Two sequences of four tokens, token by token as a decode has them.
SEQUENCE, POSITION = np.tile([0, 1], 4), np.repeat(np.arange(4), 2)
ALLOWED = 1e-6


@pytest.fixture
def growth():
    rows = TokenRows(np.arange(9), np.arange(8), SEQUENCE, POSITION)
    return ErrorGrowth(rows, lambda row, apart: Token(0, row, 0, 0, "", apart))


def value(cell, io, apart):
    """Return a value whose rows are so far apart."""
    apart = np.asarray(apart, np.float64)
    distances = Distances(apart**2, np.ones(8), apart > 0)
    return Aligned(Name(cell, 0, io, "0"), np.arange(8), distances, ("Float32",) * 2, 64)


def test_attention_brings_error_from_tokens_before(growth):
    """Of a token whose own row agreed, that is no new error; of another sequence it is."""
    first = np.where((SEQUENCE == 0) & (POSITION == 1), 0.1, 0)
    behind = np.where((SEQUENCE == 0) & (POSITION >= 1), 0.05, 0)
    other = np.where((SEQUENCE == 1) & (POSITION == 3), 0.05, 0)
    growth.add(value("up", "output", first), ALLOWED)
    growth.add(value("attention", "input", first), ALLOWED)
    growth.add(value("attention", "output", behind + other), ALLOWED)
    born = {
        name.cell: stage.arising for name, stage in growth.stages().items() if name.io == "output"
    }
    assert born == {"up": 1, "attention": 1}


def test_tokens_before_the_first_that_is_apart_bring_nothing(growth):
    """A causal network does not look ahead."""
    first = np.where(POSITION == 2, 0.1, 0)
    growth.add(value("up", "output", first), ALLOWED)
    growth.add(value("attention", "input", first), ALLOWED)
    growth.add(value("attention", "output", np.full(8, 0.05)), ALLOWED)
    assert [stage.arising for stage in growth.stages().values()] == [2, 0, 4]
