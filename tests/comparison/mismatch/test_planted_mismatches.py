"""What is wrong in one of two ways through a network is named: layer, token and cause.

Real recordings of the demo's trainer, which generates through a cache and fused projections and
trains on whole sequences. Never may a place be named where nothing is wrong.
"""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mindformers")
from helpers import wrong_rollouts
from helpers.rollouts import recorded

from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.demo.fault import RolloutFault
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

ATTENTION, FEED_FORWARD = "model.layers.{}.attention", "model.layers.{}.feed_forward"
HANDED_ON = f"{ATTENTION}.wo input.0"

#: Kind → seed, layer, the value that must be named, the cause.
KINDS = {
    "projection": (1, 1, f"{ATTENTION}.w_qkv output.0", Cause.COMPUTATION),
    "output_projection": (2, 0, f"{ATTENTION}.wo output.0", Cause.COMPUTATION),
    "small_down_projection": (3, 1, f"{FEED_FORWARD}.w2 output.0", Cause.COMPUTATION),
    "training_projection": (4, 0, f"{ATTENTION}.w_qkv output.0", Cause.COMPUTATION),
    "gate_projection": (5, 1, f"{FEED_FORWARD}.w_gate_hidden output.0", Cause.COMPUTATION),
    "swapped_heads": (6, 0, HANDED_ON, Cause.INPUT),
    "stale_cache": (7, 1, HANDED_ON, Cause.INPUT),
    "lost_block": (8, 0, HANDED_ON, Cause.INPUT),
    "attention_scale": (9, 1, HANDED_ON, Cause.INPUT),
    "attention_window": (10, 0, HANDED_ON, Cause.INPUT),
    "repeated_heads": (11, 1, HANDED_ON, Cause.INPUT),
    "norm_epsilon": (12, 0, "model.layers.{}.ffn_norm output.0", Cause.COMPUTATION),
    "forgotten_bias": (13, 1, f"{ATTENTION}.w_qkv output.0", Cause.COMPUTATION),
    "skipped_layer": (14, 1, "model.layers.{} output.0", Cause.COMPUTATION),
    "wrong_residual": (15, 0, "model.layers.{}.ffn_norm input.0", Cause.INPUT),
    "dropout_in_training": (16, 0, f"{FEED_FORWARD} output.0", Cause.COMPUTATION),
    "other_expert": (17, 1, f"{FEED_FORWARD} output.0", Cause.COMPUTATION),
    "keys_not_rotated": (18, 0, f"{ATTENTION}.apply_rotary_emb output.1", Cause.COMPUTATION),
    "wrong_order_of_fused": (19, 1, f"{ATTENTION}.apply_rotary_emb input.0", Cause.INPUT),
    "weights_of_another_layer": (20, 1, f"{ATTENTION}.wo output.0", Cause.WEIGHTS),
    "projections_of_another_layer": (30, 1, f"{ATTENTION}.w_qkv output.0", Cause.WEIGHTS),
    "one_weight": (21, 0, f"{ATTENTION}.w_qkv output.0", Cause.WEIGHTS),
    "rounded_weights": (22, 0, "model.tok_embeddings output.0", Cause.WEIGHTS),
    "nan_in_one_row": (23, 1, f"{FEED_FORWARD}.w2 output.0", Cause.COMPUTATION),
    "training_mask": (29, 0, "model.casual_mask output.0", Cause.COMPUTATION),
    "training_positions": (24, 0, "model.freqs_mgr output.0", Cause.COMPUTATION),
    "layer_in_float16": (25, 0, f"{FEED_FORWARD}.w2 output.0", Cause.DTYPE),
    "hidden_rounded": (26, 1, "model.layers.{} output.0", Cause.DTYPE),
    "rollout_dtype": (27, 0, "model.freqs_mgr output.0", Cause.DTYPE),
    "one_column_of_the_head": (28, 0, "lm_head output.0", Cause.COMPUTATION),
}
#: What is seen of it by one sum for a row of 32 values: the cell, or the code around it.
BY_SKETCH = {
    "training_projection": (4, 0, f"{ATTENTION}.apply_rotary_emb input.1", Cause.INPUT),
    "swapped_heads": (6, 0, HANDED_ON, Cause.INPUT),
    "norm_epsilon": (12, 0, "model.layers.{}.ffn_norm output.0", Cause.COMPUTATION),
    "one_weight": (21, 0, f"{ATTENTION}.apply_rotary_emb input.0", Cause.WEIGHTS),
    "layer_in_float16": (0, 1, f"{FEED_FORWARD}.w2 output.0", Cause.DTYPE),
}


def found(path, kind, seed, layer, task="tensor"):
    plant = getattr(wrong_rollouts, kind)(layer)
    model = wrong_rollouts.MODELS.get(kind)
    run = recorded(path / "run", seed, plant, model=model, task=task, response_length=3)
    return find_mismatch(run).found[0]


@pytest.mark.parametrize(("kind", "named"), KINDS.items(), ids=KINDS)
def test_what_is_wrong_is_named(tmp_path, kind, named):
    """By the elements: the cell, what it was given or returned, and the cause; and nothing else."""
    seed, layer, value, cause = named
    one = found(tmp_path, kind, seed, layer)
    assert one.status is Agreement.PARTED
    assert one.first.name == value.format(layer)
    assert one.cause is cause
    assert one.first.worst
    codes = {said.code for said in one.said}
    given = f"{one.first.cell} input."
    assert not (
        "mismatch.computation" in codes
        and any(value.startswith(given) for value, _ in one.not_compared)
    )
    assert "mismatch.also" not in codes


@pytest.mark.parametrize(("kind", "named"), BY_SKETCH.items(), ids=BY_SKETCH)
def test_sketches_name_it_too(tmp_path, kind, named):
    """Parts of a fused cell that are interleaved are not compared: what they are made into is."""
    seed, layer, value, cause = named
    one = found(tmp_path, kind, seed, layer, "sketch")
    assert (one.status, one.cause) == (Agreement.PARTED, cause)
    assert one.first.name == value.format(layer)


@pytest.mark.parametrize(
    "kind",
    [
        *("padding_rows", "constant_positions", "positions_given_from_two", "forced_token"),
        "padding_hidden_elsewhere",
    ],
)
def test_what_nobody_sees_is_no_mismatch(tmp_path, kind):
    """Rows of padding; positions shifted alike; a token that the sampler was told to take."""
    one = found(tmp_path, kind, 30, 1)
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    said = [note.params for note in one.notes if note.code == "mismatch.other_count"]
    shifted = {"rollout": 2, "training": None, "sample": 0, "count": 8, "of": 8}
    assert said == ([shifted] if kind == "positions_given_from_two" else [])


def test_a_mask_that_changes_nothing_is_not_to_blame(tmp_path):
    """It differs in all layers; what attention makes of it does so from the faulty one on."""
    fault = wrong_rollouts.attention_scale(1)
    plant = wrong_rollouts.padding_hidden_elsewhere(0, fault)
    one = find_mismatch(recorded(tmp_path / "run", 9, plant, response_length=3)).found[0]
    assert (one.first.name, one.cause) == (HANDED_ON.format(1), Cause.INPUT)
    assert not any(stage.cell == "model.casual_mask" for stage in one.origins)


def test_both_in_one_lower_dtype_agree(tmp_path):
    """Within what that dtype rounds, which is more."""
    one = found(tmp_path, "both_in_float16", 31, 0)
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert {stage.dtypes for stage in one.stages if stage.cell == "lm_head"} == {
        ("Float16", "Float16")
    }


@pytest.mark.parametrize("rounded", ["rounded_weights", "rollout_dtype"])
@pytest.mark.parametrize("fault", [None, "attention_scale"])
def test_a_fault_below_a_lower_dtype_is_said_with_it(tmp_path, rounded, fault):
    """What rounding explains of no layer; of a healthy network that is nothing."""

    def plant(trainer):
        for kind in filter(None, (rounded, fault)):
            getattr(wrong_rollouts, kind)(1)(trainer)

    one = find_mismatch(recorded(tmp_path / "run", 9, plant, response_length=3)).found[0]
    assert one.status is Agreement.PARTED
    said = [text for text in one.said if text.code == "mismatch.beyond_rounding"]
    assert (one.first.name == HANDED_ON.format(1) or bool(said)) is (fault is not None)
    assert all(HANDED_ON.format(1) == text.params["name"] for text in said)


def test_a_penalty_of_the_sampler_lies_behind_the_network(tmp_path):
    """No cell is named."""
    one = found(tmp_path, "repetition_penalty", 32, 0)
    assert (one.status, one.cause, one.first) == (Agreement.PARTED, Cause.SAMPLING, None)


def test_tokens_that_are_not_those_of_the_rollout_are_an_input(tmp_path):
    """Not the sampler: the training was given others, from a position on that is named."""
    one = found(tmp_path, "other_tokens", 33, 0)
    assert (one.status, one.cause, one.first) == (Agreement.PARTED, Cause.INPUT, None)
    (said,) = one.said
    assert said.code == "mismatch.other_tokens"
    assert "nother tokenizer" in str(said)
    assert (said.params["sample"], said.params["position"]) == (0, 4)
    assert said.params["rollout"] % 12 + 1 == said.params["training"]
    assert (said.params["count"], said.params["of"]) == (8, 8)


@pytest.mark.parametrize("seed", range(4))
def test_healthy_networks_agree(tmp_path, seed):
    """To rounding of float32: nothing is born anywhere, all weights agree."""
    one = find_mismatch(recorded(tmp_path / "run", seed, response_length=2)).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert not one.origins
    assert one.weights_compared == 15
    assert not one.weights
    assert not one.weights_unknown
    assert one.rows == one.tokens == 8 * 5
    assert max(s.apart for s in one.stages if s.lasting) < 1e-5


@pytest.mark.parametrize(
    ("model", "rl"),
    [
        ({"num_layers": 8}, {"response_length": 2}),
        ({"num_heads": 4, "n_kv_heads": 1}, {"batch_size": 8, "response_length": 4}),
        ({"hidden_size": 256, "num_heads": 4}, {"batch_size": 1, "response_length": 2}),
    ],
    ids=["deep", "one key-value head, as many samples as tokens", "wide, one sample"],
)
def test_other_networks_without_a_fault_agree(tmp_path, model, rl):
    """Whatever their shapes look like."""
    one = find_mismatch(recorded(tmp_path / "run", 40, model=model, **rl)).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert not one.origins
    assert one.rows == one.tokens > 0


#: Fault of the demo → the value, the cause, what is said, and of how many of the tokens.
DEMO = {
    "not-synchronised": ("model.layers.1.attention_norm output.0", Cause.WEIGHTS, "weights"),
    "rotary-off-by-one": ("model.freqs_mgr output.0", Cause.COMPUTATION, "shifted"),
    "lm-head-dtype": ("lm_head output.0", Cause.DTYPE, "lower_dtype"),
    "mask-padding": ("model.casual_mask output.0", Cause.COMPUTATION, "lets_in"),
    "temperature": (None, Cause.SAMPLING, "temperature"),
}


@pytest.mark.parametrize(("name", "named"), DEMO.items(), ids=DEMO)
def test_the_faults_of_the_demo_are_named_from_their_step_on(tmp_path, name, named):
    """The step before agrees."""
    value, cause, code = named
    run = recorded(
        tmp_path / "run",
        51,
        RolloutFault(name, from_step=1, last_layer=1).plant,
        steps=2,
        response_length=3,
        minibatches=1,
    )
    result = find_mismatch(run)
    before, one = result.found
    assert before.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert result.first is one
    assert (one.step, one.cause) == (1, cause)
    assert (one.first and one.first.name) == value
    codes = [said.code for said in one.said]
    assert f"mismatch.{code}" in codes
    assert "mismatch.also" not in codes
    said = next(said for said in one.said if said.code == f"mismatch.{code}")
    if name == "not-synchronised":
        assert {weight.rollout.rpartition(".")[0] for weight in one.weights} <= {
            f"model.layers.1.{cell}"
            for cell in (
                *("attention_norm", "ffn_norm", "attention.w_qkv", "attention.wo"),
                *("feed_forward.w_gate_hidden", "feed_forward.w2"),
            )
        }
        assert {(w.since, w.stale) for w in one.weights} == {(1, 0)}
    if name == "rotary-off-by-one":
        assert said.params["by"] == 1
        assert {token.role for token in one.first.worst} <= {"first", "response"}
    if name == "temperature":
        assert math.isclose(said.params["rollout"], 0.8, rel_tol=1e-3)
        assert math.isclose(said.params["training"], 1.0, rel_tol=1e-3)
