"""Log-probabilities of what MindFormers' own `generate` returns, of its own class, on a CPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("mindformers")
from helpers import paged
from mindformers.generation import logits_process
from mindformers.models.llama import LlamaForCausalLM
from mindspore import ops

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.integrations.mindrlhf.generation import MindFormersGeneration
from mindrlhf_msprobe.integrations.patches import Patches
from mindrlhf_msprobe.integrations.session import Session

PROMPTS = np.array([[3, 5, 7, 0], [4, 9, 2, 11], [8, 0, 0, 0]], np.int32)
WIDTH, END = 4, 1


@pytest.fixture(scope="module")
def network():
    """Return a network that chooses its tokens in numpy; a CPU lacks kernels for that."""
    made = paged.training_network()
    made.argmax = ops.argmax
    with patch.object(logits_process, "run_using_numpy", lambda: True):
        yield made


def generated(path, network, *, prompts=PROMPTS, probed=True, **given):
    """Generate, with a training around it or without; return the tokens and the logits.

    The logits are taken where the network returns them, [passes] of [samples * length, vocabulary].
    """
    network.__class__ = type("Policy", (LlamaForCausalLM,), {})  # methods of it alone are wrapped
    logits = []
    hook = network.register_forward_hook(
        lambda cell, inputs, output: logits.append(output[0].asnumpy().copy())
    )
    settings = {"msprobe": True, "key_data_dump": True, "dump_path": str(path)}
    session = Session(Probe.from_config(settings)) if probed else None
    patches = Patches("test")
    patches.record(session)
    watcher = MindFormersGeneration(patches)
    if session is not None:
        watcher.watch(session, network, (WIDTH, prompts.shape[1]))
    around = watcher.generating() if probed else nullcontext()
    np.random.seed(7)
    try:
        with around:
            tokens = network.generate(
                prompts, max_new_tokens=WIDTH, eos_token_id=[END], pad_token_id=0, **given
            )
    finally:
        hook.remove()
        watcher.end()
        if session is not None:
            session.probe.step()
            session.probe.close()
    return tokens, logits


def expected(tokens, logits, temperature=1.0):
    """Return ids and log-probabilities of the responses, computed in float64 of the logits."""
    lengths = (PROMPTS != 0).sum(axis=1)
    ids = np.full((len(PROMPTS), WIDTH), -1)
    log_probs = np.zeros(ids.shape)
    for row, (length, of_row) in enumerate(zip(lengths, tokens)):
        for place, token in enumerate(of_row[length:]):
            values = logits[place].reshape(len(PROMPTS), -1, paged.VOCABULARY)
            values = values[row, length + place - 1].astype(np.float64) / temperature
            ids[row, place] = token
            top = values.max()
            log_probs[row, place] = values[token] - top - np.log(np.exp(values - top).sum())
    return ids, log_probs


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ({"do_sample": False}, 1.0),
        ({"do_sample": True, "top_k": 3, "top_p": 0.9, "temperature": 0.7}, 0.7),
        ({"do_sample": True, "top_k": 0, "repetition_penalty": 1.5, "min_new_tokens": 3}, 1.0),
    ],
    ids=["greedy", "temperature", "penalty and least length"],
)
def test_log_probabilities_are_those_of_the_networks_logits(tmp_path, network, given, temperature):
    """At the temperature of the drawing; the tokens are those that it draws without the probe."""
    plain, logits = generated(tmp_path / "off", network, probed=False, **given)
    tokens, _ = generated(tmp_path / "run", network, **given)
    assert [row.tolist() for row in tokens] == [row.tolist() for row in plain]
    assert not (tmp_path / "off").exists()
    run = open_run(tmp_path / "run")
    assert not run.lost
    (log_probs,), (ids,), (given,) = (
        [data.value for data in run.key_data(f"rollout_{key}")]
        for key in ("log_prob", "tokens", "prompts")
    )
    wanted_ids, wanted = expected(plain, logits, temperature)
    assert ids.tolist() == wanted_ids.tolist()
    assert given.tolist() == np.where(PROMPTS == 0, -1, PROMPTS).tolist()
    assert (log_probs.dtype, ids.dtype) == (np.float32, np.int32)
    np.testing.assert_allclose(log_probs, wanted, atol=2e-6)
    assert not log_probs[ids < 0].any()


def test_tokens_that_are_chosen_by_others_are_coverage(tmp_path, network):
    """Beam search."""
    generated(tmp_path / "run", network, num_beams=2, do_sample=False)
    run = open_run(tmp_path / "run")
    assert not [key for key in run.keys if key.startswith("rollout")]
    assert run.coverage()["key_data"]["rollout_log_prob"] == (message("trainer.no_postprocess"),)


def test_a_network_of_another_training_is_not_looked_at(tmp_path, network):
    """Nor is what is generated outside a rollout."""
    settings = {"msprobe": True, "key_data_dump": True, "dump_path": str(tmp_path / "run")}
    session = Session(Probe.from_config(settings))
    patches = Patches("test")
    patches.record(session)
    watcher = MindFormersGeneration(patches)
    network.__class__ = type("Policy", (LlamaForCausalLM,), {})
    watcher.watch(session, network, (0, 0))
    network.generate(PROMPTS, max_new_tokens=1, do_sample=False)  # outside
    watcher._model = SimpleNamespace()
    with watcher.generating():
        network.generate(PROMPTS, max_new_tokens=1, do_sample=False)
    session.probe.step()
    session.probe.close()
    assert not open_run(tmp_path / "run").keys
