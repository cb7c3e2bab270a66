"""MindRLHF's older PPO, here a stand-in with its names and signatures, is recorded as it is."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.slow

ms = pytest.importorskip("mindspore")

from drivers.launching import EVERYTHING, OF_PPO
from drivers.standing_in import forget, stand_in
from helpers.programs import run_python
from helpers.runs import PHASES
from helpers.small_networks import hook_count
from mindspore import Tensor, nn

from mindrlhf_msprobe import ConfigError, RunError, open_run
from mindrlhf_msprobe.integrations import mindrlhf

PPO = ("ppo", "mindrlhf")
MODES = {"PyNative": ms.PYNATIVE_MODE, "graph": ms.GRAPH_MODE}
ALL = {**EVERYTHING, "critic_train_dump": True}
KEYS = OF_PPO
OF_THE_LOSS = {"log_prob", "ratio", "kl_loss", "actor_loss", "value_loss", "loss_inputs"}


@pytest.fixture(autouse=True)
def _stand_in():
    with stand_in(*PPO):
        yield


def trainer_module():
    """Import the stand-in's trainer."""
    return importlib.import_module("mindrlhf.trainer.ppo_trainer")


@pytest.fixture
def configure(tmp_path):
    """Return a function that makes a PPOConfig whose actor's file holds a section, or none."""

    def make(section=None, name="run", **settings):
        content = {"model": {"model_config": {"type": "LlamaConfig"}}}
        if section is not None:
            content["msprobe_config"] = {"dump_path": str(tmp_path / name), **section}
        path = tmp_path / "actor.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return trainer_module().PPOConfig(sft_model_path=str(path), **settings)

    return make


def build(config):
    """Build the trainer."""
    model_config = SimpleNamespace(to_dict=lambda: {"hidden_size": 4})
    return trainer_module().PPOTrainer(config, model_config, rm_model_config=model_config)


def train_step(trainer):
    """Build the cell that trains."""
    optimizer = nn.Adam(trainer.ppo_model.trainable_params(), 0.05)
    return trainer_module().TrainOneStepWithLossScaleCell(trainer.ppo_model, optimizer)


def batches(trainer, size=2):
    """Return what the store holds in batches."""
    names = ("response_tensors", "logprobs", "advantages", "returns")
    columns = [np.stack([getattr(e, name) for e in trainer.store]) for name in names]
    count = len(trainer.store)
    return [[Tensor(c[i : i + size]) for c in columns] for i in range(0, count, size)]


def train(config, mode=ms.PYNATIVE_MODE):
    """Train two steps; return the bits of every loss and, at the end, weight."""
    ms.set_context(mode=mode)
    trainer = build(config)
    step = train_step(trainer)
    for _ in range(2):
        trainer.make_experience(num_rollouts=config.num_rollouts)
        trainer.train(step, batches(trainer))
        assert hook_count(trainer.ppo_model) == 0
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return trainer.losses + [p.asnumpy().tobytes() for p in trainer.ppo_model.get_parameters()]


def end():
    """End the recording, as building another trainer does: nothing tells when a training ends."""
    build(trainer_module().PPOConfig())


def names(path, phase):
    """Return the names of a phase's entries in step 1."""
    return {entry.name for entry in open_run(path).entries(phase=phase, step=1)}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_training_is_recorded_by_role_and_stays_as_it_is(mode, configure, tmp_path):
    """Every phase, two openings each; the joint update stands under both roles."""
    expected = train(configure(), mode)
    forget(PPO[1:])
    mindrlhf.install()
    config = configure(ALL)
    assert train(config, mode) == expected
    end()
    run = open_run(tmp_path / "run")
    assert run.finished
    assert run.steps == [0, 1]
    assert all(run.completed(step) for step in run.steps)
    assert not run.lost
    assert run.phases == PHASES
    for phase in PHASES:
        assert {e.opening for e in run.entries(phase=phase, step=1)} == {0, 1}
    assert set(run.keys) == KEYS | OF_THE_LOSS
    actor, critic = names(run.path, "actor_update"), names(run.path, "critic_update")
    assert "Cell.root.CausalLMHydraWithValueHead.backward.1" in actor
    assert "Cell.root.CriticModel.backward.1" in critic
    assert not [n for n in critic if ".root.Causal" in n]
    for found in (actor, critic):
        assert "Cell.model.layer.Dense.parameters_grad.1" in found
    assert "Cell.model.layer.Dense.forward.1" in names(run.path, "actor_generate_sequences")
    assert run.configurations()["rm_model_config"] == {"hidden_size": 4}
    assert run.configurations()["ppo_config"]["chunk_size"] == 2


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_key_data_are_what_the_trainer_saw(mode, configure, tmp_path):
    """Experience in chunks, what is made of it once, the losses of each update."""
    ms.set_context(mode=mode)
    mindrlhf.install()
    config = configure(ALL)
    trainer = build(config)
    trainer.make_experience()
    rewards = np.stack([element.rewards for element in trainer.store])
    trainer.train(train_step(trainer), batches(trainer))
    end()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    run = open_run(tmp_path / "run")
    saved = {key: [d.value for d in run.key_data(key)] for key in run.keys}
    assert {key for key, values in saved.items() if len(values) == 1} == {
        *("rewards", "advantages", "returns")
    }
    np.testing.assert_array_equal(saved["rewards"][0], rewards)
    assert [loss.tobytes() for loss in saved["loss"]] == trainer.losses
    total = saved["actor_loss"][1] + saved["value_loss"][1]
    np.testing.assert_allclose(total, saved["loss"][1], rtol=1e-6)
    assert saved["prompts"][0].shape == (2, 3)
    assert saved["responses"][0].shape == (2, 2)
    assert saved["log_prob"][0].shape == saved["ratio"][0].shape == (2, 2)
    assert saved["loss_inputs"][1]["tokens"].shape == (2, 5)
    of_rollout = zip(*(saved[f"rollout_{key}"] for key in ("prompts", "tokens")), strict=True)
    for (prompts, tokens), prompt, response, of_old in zip(
        of_rollout, saved["prompts"], saved["responses"], saved["old_log_prob_tokens"]
    ):
        np.testing.assert_array_equal(prompts, prompt)
        np.testing.assert_array_equal(tokens, response)
        np.testing.assert_array_equal(of_old, np.concatenate([prompt, response], axis=1))
    series = run.trend(derived="rollout_corr/log_prob_diff_mean")[0]
    apart = [
        np.abs(old[:, 3:].astype(np.float64) - rollout)
        for old, rollout in zip(saved["old_log_prob"], saved["rollout_log_prob"])
    ]
    assert series.values.tolist() == [pytest.approx(np.mean(apart), rel=1e-6)]
    assert [note.code for note in series.notes] == ["trend.rows_by_old_tokens"]


def test_without_a_critic_its_phases_are_left_out(configure, tmp_path, warnings_of):
    """A shared backbone: the values are recorded, and it is said why the layers are not."""
    expected = train(configure(is_shared_backbone=True))
    forget(PPO[1:])
    mindrlhf.install()
    config = configure(ALL, is_shared_backbone=True)
    assert train(config) == expected
    end()
    run = open_run(tmp_path / "run")
    assert run.phases == [phase for phase in PHASES if "critic" not in phase]
    assert len(list(run.key_data("values"))) == 4
    assert len([w for w in warnings_of() if "there is no critic" in w]) == 2


def test_a_critic_that_is_none_is_said(configure, monkeypatch, warnings_of):
    """The name is there, the network is not: the others are recorded."""
    mindrlhf.install()
    config = configure({**ALL, "dump_path": "unused"})
    monkeypatch.setattr(trainer_module(), "CriticModel", lambda: None)
    monkeypatch.chdir(Path(config.sft_model_path).parent)
    build(config)
    end()
    assert [w for w in warnings_of() if "critic_model is None" in w]


def test_rewards_are_a_phase_where_it_is_declared(configure, tmp_path):
    """phases: {reward_compute: reward}."""
    mindrlhf.install()
    config = configure({"msprobe": True, "phases": {"reward_compute": "reward"}, "step_end": 9})
    train(config)
    end()
    assert names(tmp_path / "run", "reward_compute") == {
        f"Cell.{cell}.forward.{call}"
        for cell in ("root.RewardFn", "reward_model.Dense")
        for call in range(2)
    }


@pytest.mark.parametrize(
    ("missing", "lost", "kept"),
    [
        ("generate", "actor_generate_sequences", "actor_update"),
        ("train", "actor_update", "reference_compute_log_prob"),
        ("make_experience", "reference_compute_log_prob", "actor_update"),
    ],
)
def test_a_renamed_method_is_named_and_the_rest_recorded(
    missing, lost, kept, configure, tmp_path, warnings_of
):
    """The training does not notice."""
    expected = train(configure())
    forget(PPO[1:])
    kind = trainer_module().PPOTrainer
    method = vars(kind)[missing]
    delattr(kind, missing)
    mindrlhf.install()  # which does not find it; the stand-in itself still uses the name
    setattr(kind, missing, method)
    assert train(configure(ALL)) == expected
    end()
    said = [w for w in warnings_of() if f"PPOTrainer.{missing} is missing" in w]
    assert len(said) == 1
    run = open_run(tmp_path / "run")
    assert lost not in run.phases
    assert kept in run.phases


def test_experience_alone_makes_steps_too(configure, tmp_path):
    """A script that only makes experience, as MindRLHF's make_experience.py."""
    mindrlhf.install()
    config = configure(ALL)
    trainer = build(config)
    for _ in range(3):
        trainer.make_experience()
    end()
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    assert all(run.completed(step) for step in run.steps)
    assert run.phases == PHASES[:4]


def test_a_script_is_recorded_to_its_end(configure, tmp_path):
    """`mindrlhf-msprobe run`: at exit the last experience is a whole step, and the run finished."""
    path = configure(ALL).sft_model_path
    script = tmp_path / "make_experience.py"
    script.write_text(
        "import sys\n"
        "from mindrlhf.trainer.ppo_trainer import PPOConfig, PPOTrainer\n"
        "trainer = PPOTrainer(PPOConfig(sft_model_path=sys.argv[1]))\n"
        "trainer.make_experience()\n"
    )
    program = "import sys; from mindrlhf_msprobe.cli import main; sys.exit(main())"
    done = run_python(program, tmp_path, "run", str(script), path)
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")
    assert run.finished
    assert run.completed(0)
    assert run.phases == PHASES[:4]


def test_installed_twice_nothing_is_recorded_twice(configure, tmp_path):
    """Neither by the call nor by the module that is prepared again."""
    mindrlhf.install()
    mindrlhf.install()
    from mindrlhf_msprobe.integrations.mindrlhf.ppo import install_ppo

    install_ppo(trainer_module())
    config = configure(ALL)
    train(config)
    end()
    run = open_run(tmp_path / "run")
    assert [d.micro_step for d in run.key_data("loss")] == [0, 1, 0, 1]
    assert not run.lost


@pytest.mark.parametrize("section", [None, {"msprobe": False}])
def test_without_the_section_nothing_happens(section, configure, tmp_path):
    """No directory, no hook, no phase."""
    mindrlhf.install()
    trainer = build(configure(section))
    trainer.make_experience()
    assert not (tmp_path / "run").exists()
    assert "__call__" not in vars(type(trainer.ref_model))


def test_a_wrong_section_is_refused_when_the_trainer_is_built(configure, tmp_path):
    """With the file's name; so is a dump_path that holds another run."""
    mindrlhf.install()
    with pytest.raises(ConfigError, match=r"actor\.yaml: msprobe_config\.key_data_dump is 'on'"):
        build(configure({"msprobe": True, "key_data_dump": "on"}))
    config = configure({"msprobe": True, "key_data_dump": True})
    build(config)
    end()
    with pytest.raises(RunError, match="already holds a run"):
        build(configure({"msprobe": True, "key_data_dump": True}))


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("in_file", [True, False])
def test_unknown_keys_stop_no_training(on, in_file, configure, tmp_path, caplog):
    """They are named once, wherever the section stands; the known ones count."""
    mindrlhf.install()
    section = {"msprobe": on, "key_data_dump": True, "key_data_dmp": True, "levels": "L1"}
    config = configure(section if in_file else None)
    if not in_file:
        config.msprobe_config = {**section, "dump_path": str(tmp_path / "run")}
    build(config).make_experience()
    end()
    (said,) = [r.getMessage() for r in caplog.records if "unknown key" in r.getMessage()]
    assert "'key_data_dmp' (value True). Did you mean 'key_data_dump'?" in said
    assert "'levels' (value 'L1')" in said
    assert (tmp_path / "run").exists() == on
    if on:
        assert "rewards" in open_run(tmp_path / "run").keys


def test_an_exception_of_the_training_is_its_own(configure, tmp_path):
    """It passes through as it is; no hook stays, and what was recorded is readable."""
    mindrlhf.install()
    config = configure(ALL)
    trainer = build(config)
    trainer.make_experience()

    def breaks():
        yield batches(trainer)[0]
        raise ConnectionError("the data stopped")

    with pytest.raises(ConnectionError, match="the data stopped"):
        trainer.train(train_step(trainer), breaks())
    assert hook_count(trainer.ppo_model) == 0
    end()
    run = open_run(tmp_path / "run")
    assert "actor_update" in run.phases
    assert not run.completed(0)
    assert len(list(run.key_data("loss"))) == 1
    assert not run.lost
