"""What is not finite in runs with operators: the operator that made it is named, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.operators import LAYERS, Extra, Plant, record_operators

from mindrlhf_msprobe import check_run
from mindrlhf_msprobe.common.message import in_words


def a_nan(array):
    changed = np.array(array)
    changed.reshape(-1)[0] = np.nan
    return changed


@pytest.mark.parametrize(
    ("cell", "operator", "backward"),
    [
        (LAYERS[0], "Mint.matmul", False),
        (LAYERS[1], "Functional.softmax", False),
        ("", "Mint.log", False),
        (LAYERS[1], "Mint.tanh", True),
        ("root", "Tensor.__add__", False),
    ],
)
@pytest.mark.parametrize("cells", [True, False])
def test_the_operator_that_made_it_is_named(tmp_path, cell, operator, backward, cells):
    """With its cell and its line of code."""
    plants = [Plant(cell, operator, change=a_nan, backward=backward)]
    program = record_operators(tmp_path / "run", plants=plants, cells=cells)
    name = next(n for at, what, n in program.called if (at, what) == (cell, operator))
    name = name.replace(".forward", ".backward") if backward else name
    first = next(f for f in check_run(tmp_path / "run").findings if f.rule == "non_finite.first")
    assert first.place.entry == name
    said = in_words(first.said, "en")
    where = f"{operator} inside {cell}" if cell else f"{operator} outside every cell"
    assert where in said
    if not backward:
        assert "net.py:" in said
    assert not in_words(first.said, "zh").isascii()


def test_operators_whose_numbers_shift_from_step_to_step_are_no_finding(tmp_path):
    """The n-th call is another operator in another run of the loop: nothing is compared by it."""
    extras = [Extra(LAYERS[0], 0, "Mint.matmul", factor=40.0)]
    record_operators(tmp_path / "run", steps=6, every_other=extras)
    assert [f.rule for f in check_run(tmp_path / "run").findings] == []


def test_ranks_may_call_other_operators(tmp_path):
    """One rank logs a mean: no rank ran its cells less often."""
    for rank in (0, 1):
        extras = [Extra("", 1, "Mint.mean")] if rank == 0 else []
        record_operators(tmp_path / "run", rank=rank, extras=extras)
    assert not [f for f in check_run(tmp_path / "run").findings if f.rule.startswith("ranks.")]
