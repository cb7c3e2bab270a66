"""MindFormers' own incremental inference against its own training class, with the same weights.

Both classes are MindFormers'; operators that no CPU computes are stood in for (helpers/paged.py).
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mindformers")
from helpers import paged
from mindspore import Tensor

from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

ATTENTION = "model.layers.{}.attention"
ROTARY = f"{ATTENTION}.apply_rotary_emb"


def networks(*, concat=True):
    training, inference = paged.training_network(), paged.inference_network(concat=concat)
    paged.synchronise(inference, training)
    return inference, training


@pytest.fixture
def core(monkeypatch):
    """Return networks of which the one that generates is of MindFormers' parallel core."""
    training = paged.training_network()
    monkeypatch.setenv("RUN_MODE", "predict")
    monkeypatch.setenv("ENFORCE_EAGER", "true")
    inference = paged.core_network()
    paged.synchronise_core(inference, training)
    return inference, training


def found(path, inference, training, **changed):
    return find_mismatch(paged.recorded(path / "run", inference, training, **changed)).found[0]


@pytest.mark.parametrize("task", ["tensor", "sketch"])
@pytest.mark.parametrize("concat", [True, False])
def test_paged_generation_agrees_with_training(tmp_path, concat, task):
    """Without a mapping: fused projections, the rotary cells, and rows of the cache by block."""
    one = found(tmp_path, *networks(concat=concat), task=task)
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows == one.tokens == 10 + 3 * 6
    assert (len(one.weights), one.weights_compared) == (0, 15 if concat else 21)
    assert not one.origins
    if task == "tensor":
        names = {stage.name for stage in one.stages}
        assert {f"{ROTARY.format(1)} {io}.0" for io in ("input", "output")} <= names
        fused = "w_gate_hidden" if concat else "w3"
        (gate,) = (
            s for s in one.stages if s.name == f"model.layers.0.feed_forward.{fused} output.0"
        )
        assert gate.apart < 1e-5


def test_generation_of_the_parallel_core_agrees_with_training(tmp_path, core):
    """Other names, other fused weights, all tokens of a call in one row."""
    one = found(tmp_path, *core, calls=paged.generate_packed)
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows == one.tokens == 10 + 3 * 6
    assert (len(one.weights), one.weights_compared, one.weights_unknown) == (0, 15, ())
    assert not one.origins
    names = {stage.name for stage in one.stages}
    for layer in (0, 1):
        assert f"{ROTARY.format(layer)} output.1" in names
        assert f"{ATTENTION.format(layer)}.linear_qkv output.0" in names
        assert f"model.layers.{layer}.feed_forward.linear_fc1 output.0" in names
        assert f"model.layers.{layer}.feed_forward.w2 output.0" in names
    assert {"model.tok_embeddings output.0", "model.norm_out output.0", "lm_head output.0"} <= names


def test_faults_of_the_parallel_core_are_named_as_the_training_calls_them(tmp_path, core):
    """A weight of one layer; then, with the weight mended, positions in decode."""
    inference = core[0]
    weight = inference.model.decoder.layers[1].mlp.linear_fc1.weight
    right = weight.asnumpy()
    weight.set_data(Tensor(np.concatenate([right[:100], right[100:] * np.float32(0.9)])))
    one = found(tmp_path, *core, calls=paged.generate_packed)
    where = "model.layers.1.feed_forward"
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, f"{where}.linear_fc1 output.0")
    assert one.weights[0].training == (f"{where}.w1.weight", f"{where}.w3.weight")
    weight.set_data(Tensor(right))
    positions = inference.model.rotary_pos_emb
    decode = positions.get_cos_sin_for_decode
    positions.get_cos_sin_for_decode = lambda given: decode(given + 1)
    one = found(tmp_path / "decode", *core, calls=paged.generate_packed)
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, f"{ROTARY.format(0)} output.0")
    assert "prompt" not in {token.role for token in one.first.worst}


def test_a_layer_that_was_not_synchronised_is_named(tmp_path):
    """By its fused weight, and what that is made of."""
    inference, training = networks()
    weight = inference.model.layers[1].attention.w_qkv.weight
    weight.set_data(Tensor(weight.asnumpy() * np.float32(1.01)))
    one = found(tmp_path, inference, training)
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, f"{ATTENTION.format(1)}.w_qkv output.0")
    (differing,) = one.weights
    assert differing.training == tuple(
        f"{ATTENTION.format(1)}.{part}.weight" for part in ("wq", "wk", "wv")
    )


def test_rotary_positions_that_are_off_by_one_in_decode_are_named(tmp_path):
    """They are made between the cells: the first layer is given those of the next position."""
    inference, training = networks()
    manager = inference.model.freqs_mgr
    right = manager.increment
    manager.increment = lambda lengths: right(lengths + 1)
    one = found(tmp_path, inference, training)
    assert (one.cause, one.first.name) == (Cause.INPUT, "model.layers.0 input.1.0")
    said = {said.code: said.params for said in one.said}
    assert said["mismatch.shifted"]["by"] == 1
    assert said["mismatch.rows"]["where"] == "decode"


def test_a_rotary_cell_that_computes_otherwise_is_named(tmp_path):
    """The inference's, under the training's name."""
    inference, training = networks()
    cell = inference.model.layers[1].attention.infer_attention.rotary_embedding
    cell.rotary_embedding_op = lambda query, key, *freqs: (paged.rotate(query, key, *freqs)[0], key)
    one = found(tmp_path, inference, training)
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, f"{ROTARY.format(1)} output.1")


def other_block(step, tables):
    """From the third step on the second block of sample 1 is another one."""
    made = tables.copy()
    if step >= 2:
        made[1, 1] = 63
    return made


def first_block(step, tables):
    """The first block of sample 1 is another one; so are all tokens before, in the cache."""
    made = tables.copy()
    if step >= 2:
        made[1, 0] = 63
    return made


def block_of_another(step, tables):
    """Sample 1 is given the first block of sample 0."""
    made = tables.copy()
    if step >= 2:
        made[1, 0] = made[0, 0]
    return made


def lost_slots(step, slots):
    """The key of the second step's token is written nowhere."""
    return np.full_like(slots, -1) if step == 1 else slots


@pytest.mark.parametrize(
    ("changed", "samples"),
    [
        ({"tables": other_block}, {1}),
        ({"tables": first_block}, {1}),
        ({"tables": block_of_another}, {1}),
        ({"slots": lost_slots}, {0, 1, 2}),
    ],
)
def test_what_is_read_from_a_wrong_block_is_what_attention_hands_on(tmp_path, changed, samples):
    """In the first layer, in decode, of the samples whose blocks they are."""
    one = found(tmp_path, *networks(), **changed)
    assert (one.cause, one.first.name) == (Cause.INPUT, f"{ATTENTION.format(0)}.wo input.0")
    assert {token.sample for token in one.first.worst} <= samples
    assert "prompt" not in {token.role for token in one.first.worst}
    assert one.rows == one.tokens == 28
    blocks = [note for note in one.notes if note.code == "tokens.other_block"]
    assert {note.params["sample"] for note in blocks} <= {1}
    assert bool(blocks) == (changed.get("tables") in (first_block, block_of_another))


def third_block(step, tables):
    """The third block of sample 1 is read elsewhere than it is written."""
    made = tables.copy()
    made[1, 2] = 63
    return made


def test_a_block_that_is_read_elsewhere_shows_from_its_first_token_on(tmp_path):
    """The size of blocks follows from tables and slots."""
    one = found(tmp_path, *networks(), tables=third_block)
    assert one.first.name == f"{ATTENTION.format(0)}.wo input.0"
    said = {said.code: said.params for said in one.said}
    assert said["mismatch.from_borders_on"]["size"] == paged.BLOCK
    roles = {token.position: token.role for token in one.first.worst[:3]}
    assert roles == {8: "block", 9: "response", 10: "response"}
    other = found(tmp_path / "slots", *networks(), slots=lost_slots)
    assert "mismatch.from_borders_on" not in [said.code for said in other.said]
