"""Where a value stands in time that is several ones of the other network."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.small_transformers import Transformer, recorded, weights_of

from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Cause

NAMED = "blocks.{}.attn.qkv output.0"


@pytest.mark.parametrize("task", ["tensor", "sketch"])
@pytest.mark.parametrize(("part", "block"), [("q", 0), ("k", 2), ("v", 0), ("v", 2)])
def test_a_stale_part_of_a_fused_projection_is_named_before_its_uses(tmp_path, part, block, task):
    """The training rotates queries before it computes values: the projection still comes first."""
    weights = weights_of()
    weights[f"blocks.{block}.attn.{part}"] = weights[f"blocks.{block}.attn.{part}"] * np.float32(
        1.2
    )
    rollout = Transformer(weights, fused=True)
    run = recorded(tmp_path / "run", rollout, Transformer(weights_of()), task=task)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, NAMED.format(block))
    assert one.said[0].params["name"] == f"blocks.{block}.attn.qkv.weight"
    assert len(one.births) == 1


@pytest.mark.parametrize("part", ["q", "v"])
def test_a_part_that_computes_otherwise_is_named_before_its_uses(tmp_path, part):
    """Of the training, where all weights agree."""
    faults = {f"blocks.1.attn.{part}": lambda x: x * np.float32(1.1)}
    training = Transformer(weights_of(), faults=faults)
    run = recorded(tmp_path / "run", Transformer(weights_of(), fused=True), training)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, NAMED.format(1))


@pytest.mark.parametrize("part", ["q", "k"])
def test_what_rotates_a_part_is_named_behind_the_projection(tmp_path, part):
    """The projection agrees, and stands first."""
    faults = {f"blocks.1.attn.rotary_{part}": lambda x: x[:, :, ::-1]}
    rollout = Transformer(weights_of(), fused=True, faults=faults)
    run = recorded(tmp_path / "run", rollout, Transformer(weights_of()))
    one = find_mismatch(run).found[0]
    assert one.first.name == f"blocks.1.attn.rotary_{part} output.0"
