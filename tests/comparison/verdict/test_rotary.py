"""Tables of rotary positions are recognised by their base, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe import Tolerance
from mindrlhf_msprobe.comparison.verdict.changes import rotary_bases


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


def test_the_bases_of_tables_in_unlike_dtypes_are_named(of_both):
    """A tolerance lets them be compared by value; half precision is exact enough for a base."""

    def record(recording, run):
        made = table(10000.0) if run == "a" else table(500.0).astype(np.float16)
        with recording.phase("actor_compute_log_prob"):
            recording.call("freqs", "Freqs", lambda _: made, np.arange(4))

    result = of_both(record, {"tolerance": Tolerance(rtol=1e-2, atol=1e-2)}, task="tensor")
    change = result.verdict.first_divergence.inside.change
    assert change.kind == "rotary_base"
    assert change.parameters == {"a": 10000.0, "b": 500.0}


@pytest.mark.parametrize("size", [8, 128])
def test_a_table_of_few_digits_has_the_base_of_one_of_many(size: int) -> None:
    """bfloat16 comes as float32 that was cut."""
    exact = table(10000.0, size)
    cut = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert rotary_bases(exact, cut) is None
    assert rotary_bases(exact, exact.astype(np.float16)) is None
    found = rotary_bases(table(500.0, size), cut)
    assert found is not None
    assert found.parameters["b"] == pytest.approx(10000.0, rel=5e-3)
