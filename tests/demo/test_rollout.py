"""The demo's rollout network: another way through the actor's weights, and what is kept of it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mindformers")
import mindspore as ms
from helpers.rollouts import recorded
from mindspore import Tensor

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.demo.networks import build_networks
from mindrlhf_msprobe.demo.rollout import BUCKET, RolloutNetwork
from mindrlhf_msprobe.demo.trainer import left_padded

GENERATE = "actor_generate_sequences"
ROUNDING = 1e-6  # of log-probabilities in float32, on average


def test_rollout_and_training_agree_to_rounding(tmp_path):
    """Of every token, before and after an update, at any temperature, also behind an early end."""
    how = {"temperature": 0.7, "response_length": 6, "batch_size": 32, "minibatches": 2}
    run = open_run(recorded(tmp_path / "run", 3, steps=2, task="statistics", **how))
    for step in run.steps:
        rollout, trained, responses = (
            run.key_data(key, step=step)[0].value
            for key in ("rollout_log_prob", "old_log_prob", "responses")
        )
        assert (rollout.dtype, rollout.shape) == (np.float32, (32, 6))
        assert np.abs(rollout - trained).mean() < ROUNDING
        assert {len(text) for text in responses} > {6}


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_decoding_with_the_cache_equals_the_full_pass_row_by_row(kv_heads):
    """Prompts of different lengths, padded on the left, also where heads share keys and values."""
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "n_kv_heads": kv_heads}
    sizes = {**sizes, "multiple_of": 8, "qkv_has_bias": True}
    actor = build_networks(sizes, sizes, vocab_size=17, seq_length=10, seed=5)["actor"]
    rng = np.random.default_rng(0)
    for parameter in actor.get_parameters():
        if parameter.name.endswith("bias"):
            parameter.set_data(Tensor(rng.normal(size=parameter.shape), ms.float32))
    rollout = RolloutNetwork(actor.config)
    rollout.synchronise(actor)
    lengths = np.array([1, 3, 5])
    tokens = rng.integers(1, 17, (3, 10)).astype(np.int32)
    whole = actor(Tensor(tokens))[0].asnumpy()
    for _ in range(2):  # again, with a cache that holds other sequences
        rollout.clear_cache()
        prompts, positions = np.zeros((3, 5), np.int32), np.zeros((3, 5), np.int32)
        for row, length in enumerate(lengths):
            prompts[row, 5 - length :] = tokens[row, :length]
            positions[row, 5 - length :] = np.arange(length)
        logits = rollout(Tensor(prompts), Tensor(positions), Tensor(lengths, ms.int32)).asnumpy()
        for row, length in enumerate(lengths):
            assert logits[row, 5 - length :] == pytest.approx(whole[row, :length], abs=1e-5)
        for step in range(5):
            at = lengths + step
            new, rows = tokens[np.arange(3), at], np.arange(3)
            positions, valid = Tensor(at[:, None], ms.int32), Tensor(at + 1, ms.int32)
            logits = rollout(Tensor(new[:, None]), positions, valid).asnumpy()
            assert logits[:, 0] == pytest.approx(whole[rows, at], abs=1e-5)


def test_prompts_are_padded_on_the_left():
    """To whole buckets; positions count from the first token on."""
    tokens, positions = left_padded(np.array([[5, 6, 7], [8, 9, 1]], np.int32))
    assert tokens.shape == positions.shape == (2, BUCKET)
    assert tokens[:, -3:].tolist() == [[5, 6, 7], [8, 9, 1]]
    assert not tokens[:, :-3].any()
    assert positions[:, -3:].tolist() == [[0, 1, 2], [0, 1, 2]]
    whole, _ = left_padded(np.ones((1, BUCKET), np.int32))
    assert whole.shape == (1, BUCKET)


def test_generation_is_recorded_token_by_token(demo):
    """Token 0 is the pass over the prompts, each later one a pass over one token of each."""
    output, _ = demo
    run = open_run(output / "run_a")
    entries = run.entries(GENERATE, step=1)
    root = [entry for entry in entries if entry.cell == "root"]
    assert [entry.token for entry in root] == [0, 1, 2, 3]
    inputs = [
        {record.path: record.leaf.shape for record in entry.records if record.io == "input"}
        for entry in root
    ]
    assert inputs[0] == {"0": (8, BUCKET), "1": (8, BUCKET), "2": (8,)}
    assert inputs[1:] == [{"0": (8, 1), "1": (8, 1), "2": (8,)}] * 3
    cells = {entry.cell for entry in entries}
    assert {"model.layers.1.attention.w_qkv", "model.layers.0.feed_forward.w_gate_hidden"} <= cells
    trained = {entry.cell for entry in run.entries("actor_compute_log_prob", step=1)}
    fused_ones = ("attention.w_qkv", "feed_forward.w_gate_hidden", "feed_forward.activate")
    assert {c for c in cells - trained if not c.endswith(fused_ones)} == set()
