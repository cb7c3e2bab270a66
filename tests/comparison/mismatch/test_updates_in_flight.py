"""Weights that change while the rollout generates: from which token on they are which."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import Recording
from helpers.small_transformers import Transformer, generate, recorded, samples, train, weights_of

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

CELL = "blocks.1.attn.{}"


def other(weights, cell, factor=1.2):
    return {**weights, cell: weights[cell] * np.float32(factor)}


def exchanged(at, weights):
    """Return what gives a network other weights before a call."""

    def before(call, network):
        if call == at:
            network.weights = weights

    return before


@pytest.mark.parametrize("task", ["tensor", "sketch"])
@pytest.mark.parametrize(
    ("fused", "at", "cached"), [(False, 3, True), (True, 6, True), (False, 5, False)]
)
def test_an_update_that_comes_while_the_rollout_generates(
    tmp_path, capsys, fused, at, cached, task
):
    """Step 0's values until then, the training's behind: the token says which is which."""
    first = weights_of()
    cell = CELL.format("q")
    now = other(first, cell)
    recording = Recording(tmp_path / "run", task=task, directions=["forward"])
    rollout = Transformer(first, fused=fused)
    for weights, moment in ((first, None), (now, at)):
        generate(recording, rollout, samples(), exchanged(moment, now), cached=cached)
        train(recording, Transformer(weights), samples())
        recording.end_step()
    run = recording.close()
    one = find_mismatch(run, steps=[1]).found[0]
    named = CELL.format("qkv" if fused else "q")
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, f"{named} output.0")
    (weight,) = one.weights
    assert weight.stale == 0
    assert (weight.in_flight.call, weight.in_flight.token) == (at, at - 1)
    assert weight.in_flight.brought
    main(["mismatch", str(run), "--step", "1"])
    out = capsys.readouterr().out
    assert f"from call {at} of the rollout (given token {at - 1} of the responses) on it has" in out
    assert "it still has the values of step 0 until then" in out


def test_an_update_that_comes_too_early_is_no_computation(tmp_path):
    """At first the weights are the training's: the rows part from the update on."""
    weights = weights_of()
    rollout = Transformer(weights)
    before = exchanged(4, other(weights, CELL.format("k")))
    run = recorded(tmp_path / "run", rollout, Transformer(weights), before=before)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, "blocks.1.attn.k output.0")
    (weight,) = one.weights
    assert (weight.in_flight.call, weight.in_flight.brought) == (4, False)
    assert one.to_json()["weights"]["different"][0]["in_flight"]["token"] == 3
    assert "from call 4 of the rollout (given token 3 of the responses) on" in str(one.said[0])


def test_weights_that_are_recorded_again_alike_are_no_update(tmp_path):
    """The same values in another array."""
    weights = weights_of()
    same = {name: values.copy() for name, values in weights.items()}
    run = recorded(
        tmp_path / "run", Transformer(weights), Transformer(weights), before=exchanged(4, same)
    )
    one = find_mismatch(run).found[0]
    assert one.status is Agreement.WITHIN_ROUNDING
    assert one.weights == ()


def test_a_weight_that_differs_all_the_time_has_no_such_token(tmp_path):
    """It changes, and stays another one: nothing is said of a token."""
    weights = weights_of()
    cell = CELL.format("v")
    rollout = Transformer(other(weights, cell, 1.1))
    before = exchanged(4, other(weights, cell, 1.3))
    run = recorded(tmp_path / "run", rollout, Transformer(weights), before=before)
    (weight,) = find_mismatch(run).found[0].weights
    assert weight.in_flight is None
    assert "in_flight" not in weight.to_json()
