"""Tables of rotary positions are recognised by their base, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe.comparison.verdict.rotary import rotary_bases


def table(base: float, size: int = 32) -> np.ndarray:
    powers = base ** (-np.arange(size // 2) / (size // 2))
    return np.tile(np.cos(np.outer(np.arange(20), powers)), 2).astype(np.float32)


def test_two_bases_are_named() -> None:
    found = rotary_bases(table(10000.0), table(500.0))
    assert found is not None
    assert found.parameters == {"a": 10000.0, "b": 500.0}


@pytest.mark.parametrize("angle", [1e-30, 1e-8, 0.0, float("nan"), 2.0])
@pytest.mark.parametrize("size", [4, 512])
def test_wide_tensors_of_any_values_are_none(angle: float, size: int) -> None:
    """The power that a base is computed by is beyond float64 for small angles of wide tensors."""
    any_values = np.full((3, size), np.sin(angle))
    assert rotary_bases(any_values, table(500.0, size)) is None
    assert rotary_bases(np.cos(any_values), any_values) is None
