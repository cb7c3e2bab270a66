"""Each fault of the demo's rollout: what it changes, from its step on, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mindformers")
from helpers.command_line import CommandLine
from helpers.ppo import log_prob_gap, ppo_trainer
from mindspore import Tensor

from mindrlhf_msprobe.demo.command import ROLLOUT_FAULTS
from mindrlhf_msprobe.demo.fault import PLANTERS, TEMPERATURE, RolloutFault
from mindrlhf_msprobe.demo.rollout import fused
from mindrlhf_msprobe.demo.trainer import PPOTrainer
from mindrlhf_msprobe.storage.records import cell_name

GENERATE = "actor_generate_sequences"
ROUNDING = 1e-6  # of log-probabilities in float32, on average


def with_fault(name: str) -> PPOTrainer:
    """Return a trainer with a fault from step 1 on, after it wrote and scored that step's answers.

    Until then it computes the same bits as one without a fault, its actor for one step more.
    """
    healthy, faulty = ppo_trainer(11), ppo_trainer(11)
    RolloutFault(name, from_step=1, last_layer=1).plant(faulty)
    for trainer in (healthy, faulty):
        trainer.train_step()
    assert healthy.probe.data["responses"] == faulty.probe.data["responses"]
    for key in ("rollout_log_prob", "old_log_prob", "loss"):
        ours, theirs = (np.asarray(t.probe.data[key]) for t in (healthy, faulty))
        assert np.array_equal(ours, theirs), key
    assert log_prob_gap(faulty).mean() < ROUNDING
    for trainer in (healthy, faulty):
        trainer.make_experience()
    actors = [trainer.networks["actor"].get_parameters() for trainer in (healthy, faulty)]
    for ours, theirs in zip(*actors, strict=True):
        assert np.array_equal(ours.asnumpy(), theirs.asnumpy())
    assert log_prob_gap(healthy).mean() < ROUNDING
    assert log_prob_gap(faulty).mean() > 10 * ROUNDING
    return faulty


def stale(trainer: PPOTrainer) -> set[str]:
    """Return the parameters of the rollout network that are not the actor's."""
    actor = trainer.networks["actor"]
    weights = {p.name: p.asnumpy() for p in actor.get_parameters()}
    return {
        p.name
        for p in trainer.rollout.get_parameters()
        if not np.array_equal(p.asnumpy(), fused(p.name, weights, actor.config.num_heads))
    }


def test_one_layer_is_not_synchronised():
    """The last layer has the weights of before the update, every one of them."""
    trainer = with_fault("not-synchronised")
    layer = "model.layers.1."
    names = {p.name for p in trainer.rollout.get_parameters() if p.name.startswith(layer)}
    assert stale(trainer) == names
    assert len(names) == 6


def test_positions_are_off_by_one_in_decode_only():
    """The first token comes out of the prompts and is right; those behind it are not."""
    trainer = with_fault("rotary-off-by-one")
    by_token = log_prob_gap(trainer).max(axis=0)
    assert by_token[0] < 10 * ROUNDING
    assert (by_token[1:] > 1e-3).all()
    assert stale(trainer) == set()


def test_the_logits_are_those_of_float16():
    """Wrong by its rounding, everywhere; hidden states and what is returned stay float32."""
    trainer = with_fault("lm-head-dtype")
    gap = log_prob_gap(trainer)
    assert (gap.max(axis=0) > 10 * ROUNDING).all()
    assert gap.max() < 1e-2
    assert trainer.probe.data["rollout_log_prob"].dtype == np.float32
    assert stale(trainer) == set()


def test_the_mask_lets_the_padding_in():
    """What a token sees changes from the first on."""
    trainer = with_fault("mask-padding")
    assert (log_prob_gap(trainer).max(axis=0) > 1e-2).all()
    assert stale(trainer) == set()


def test_the_temperature_is_the_samplers_alone():
    """With it, training computes what the sampler says of its tokens."""
    trainer = with_fault("temperature")
    tokens, rollout = trainer.generate(["1+2="] * 8)
    trainer.rl["temperature"] = TEMPERATURE
    trained = trainer.compute_log_prob(trainer.networks["actor"], Tensor(tokens)).asnumpy()
    assert np.abs(rollout - trained).mean() < ROUNDING
    assert stale(trainer) == set()


def test_the_command_line_knows_every_fault():
    """And no other one."""
    assert set(ROLLOUT_FAULTS) == set(PLANTERS)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trainer's YAML: few updates, and of the layers generation alone is recorded."""
    path = tmp_path_factory.mktemp("config") / "trainer.yaml"
    path.write_text(
        "msprobe_config: {msprobe: true, key_data_dump: true, actor_infer_dump: true, "
        "token_range_end: 3, step_end: 9}\nrl_config: {minibatches: 1}\n"
    )
    return path


@pytest.mark.parametrize(
    ("name", "cell", "cause"),
    [
        ("not-synchronised", "model.layers.1.attention_norm", "parameter"),
        ("rotary-off-by-one", "model.freqs_mgr", "computation"),
        ("lm-head-dtype", "lm_head", "computation"),
        ("mask-padding", "model.casual_mask", "computation"),
        ("temperature", "root", "input"),
    ],
)
def test_the_demo_names_what_was_planted(tmp_path, command_line, config, name, cell, cause):
    """Two real trainings, and a verdict with the cell, the step and the cause."""
    options = ["--fault", name, "--steps", "2", "--config", str(config)]
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "out" / "comparison" / "verdict.json").read_text())
    first = verdict["first_divergence"]
    assert (first["phase"], first["step"], first["cause"]) == (GENERATE, 1, cause)
    assert cell_name(first["entry"]) == cell
    assert f"Planted: {name} from step 1 on" in done.stdout
    assert "not what was planted" not in done.stdout


def test_with_full_tensors_the_demo_leads_to_the_mismatch(tmp_path, command_line):
    """The command that it shows finds in run B what was planted, and nothing in run A."""
    path = tmp_path / "trainer.yaml"
    path.write_text(
        "msprobe_config: {msprobe: true, key_data_dump: true, actor_infer_dump: true, "
        "actor_train_dump: true, directions: [forward], token_range_end: 3, task: tensor}\n"
        "rl_config: {minibatches: 1}\n"
    )
    options = ["--fault", "lm-head-dtype", "--steps", "1", "--config", str(path)]
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mindrlhf-msprobe mismatch out/run_b" in done.stdout
    found = command_line.run(tmp_path, "mismatch", "out/run_b")
    assert found.returncode == 1
    assert "lm_head" in found.stdout.splitlines()[1]
    assert command_line.run(tmp_path, "mismatch", "out/run_a").returncode == 0


def test_with_key_data_only_the_verdict_points_to_generation(tmp_path, command_line):
    """The demo says that the cell was not recorded."""
    path = tmp_path / "trainer.yaml"
    path.write_text("msprobe_config: {msprobe: true, key_data_dump: true}\n")
    options = ["--fault", "mask-padding", "--steps", "1", "--config", str(path)]
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not record the planted cell" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "not-synchronized"], "Did you mean 'not-synchronised'?"),
        (["--fault", "not-synchronised", "--steps", "1"], "no update precedes it"),
        (["--fault", "rotary-off-by-one", "--config", "one.yaml"], "response_length: 1"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(
    tmp_path: Path, command_line: CommandLine, options: list[str], said: str
):
    """In one message, before anything is trained."""
    (tmp_path / "one.yaml").write_text("rl_config: {response_length: 1}\n")
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()
