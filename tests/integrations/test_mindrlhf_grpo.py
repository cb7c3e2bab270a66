"""MindRLHF's GRPO, here a stand-in with its names and signatures, is recorded as it is."""

import importlib
import sys
from pathlib import Path

import mindspore as ms
import pytest
import yaml

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.integrations import mindrlhf

STAND_IN = Path(__file__).parent / "stand_in"
ALL = {
    "msprobe": True,
    "key_data_dump": True,
    "configurations_dump": True,
    "actor_infer_dump": True,
    "actor_train_dump": True,
    "reference_dump": True,
    "step_end": 9,
    "token_range_end": 9,
}
PHASES = {
    "actor_generate_sequences",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "actor_update",
}
KEYS = {
    "prompts",
    "responses",
    "rewards",
    "advantages",
    "ref_log_prob",
    "old_log_prob",
    "loss",
}
PYNATIVE, GRAPH = ms.PYNATIVE_MODE, ms.GRAPH_MODE


def forget():
    """Leave no module of the stand-in, and nothing that waits for one."""
    for name in [n for n in sys.modules if n == "main" or n.partition(".")[0] == "mindrlhf"]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "_Watch"]
    mindrlhf._install.cache_clear()
    mindrlhf._prepared.clear()


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    monkeypatch.syspath_prepend(str(STAND_IN))
    forget()
    before = ms.get_context("mode")
    yield
    ms.set_context(mode=before)
    forget()


@pytest.fixture
def configure(tmp_path):
    """Return a function that writes a trainer's file; None stands for no section."""

    def write(section=None, *, mode=PYNATIVE, name="run", **rl_config):
        content = {"context": {"mode": mode}, "actor_config": {"learning_rate": 0.1}}
        if rl_config:
            content["rl_config"] = rl_config
        if isinstance(section, dict):
            section = {"dump_path": str(tmp_path / name), **section}
        if section is not None:
            content["msprobe_config"] = section
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


def module(name):
    return importlib.import_module(name)


def train(path, **arguments):
    """Train; return the losses and the trained weights, as bytes."""
    return module("main").train(path, **arguments)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """Return what comes of the training without the package."""
    sys.path.insert(0, str(STAND_IN))
    forget()
    path = tmp_path_factory.mktemp("untouched") / "grpo.yaml"
    results = {}
    for mode in (PYNATIVE, GRAPH):
        path.write_text(f"context: {{mode: {mode}}}\n")
        results[mode] = train(path)
    sys.path.remove(str(STAND_IN))
    return results


@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
def test_a_training_is_recorded_and_stays_as_it_is(tmp_path, configure, untouched, mode):
    mindrlhf.install()
    assert train(configure(ALL, mode=mode)) == untouched[mode]
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2, 3]  # two epochs of two steps
    assert all(run.completed(step) for step in run.steps)
    assert run.finished
    assert set(run.phases) == PHASES
    keys = KEYS | ({"log_prob", "kl_loss"} if mode == PYNATIVE else set())
    assert {key for key in run.keys} == keys
    assert not run.lost
    configurations = run.configurations()
    assert configurations["actor_config"] == {"learning_rate": 0.1}
    assert configurations["rl_config"]["beta"] == 0.1  # a section the file leaves out
    assert configurations["generate_config"]["sampling_config"]["max_tokens"] == 3


@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
def test_a_cell_of_the_actor_has_one_name_in_all_phases(tmp_path, configure, mode):
    mindrlhf.install()
    train(configure(ALL, mode=mode, epochs=1))
    run = open_run(tmp_path / "run")

    def names(phase):
        entries = run.entries(phase=phase, step=1)
        return {f"{e.cell}.{e.name.split('.')[-3]}" for e in entries if e.direction == "forward"}

    inside = {
        "model.model.Backbone",
        "model.model.tok_embeddings.Dense",
        "model.model.layers.0.Dense",
        "model.model.layers.1.Dense",
        "model.lm_head.Dense",
    }
    assert names("actor_generate_sequences") == inside | {"model.LanguageModel"}
    scored = inside | {"root.CausalLMHybrid"}
    assert names("actor_compute_log_prob") == names("reference_compute_log_prob") == scored
    assert names("actor_update") == scored | {"outer.GRPOModel"}
    gradients = {
        e.cell for e in run.entries(phase="actor_update") if e.direction == "parameters_grad"
    }
    assert gradients == {name.rpartition(".")[0] for name in inside if name.endswith("Dense")}


def test_key_data_are_what_the_trainer_computed(tmp_path, configure):
    mindrlhf.install()
    losses, _ = train(configure({"msprobe": True, "key_data_dump": True}))
    run = open_run(tmp_path / "run")
    assert run.phases == []
    saved = [data.arrays[0].tobytes() for data in run.key_data("loss")]
    assert saved == losses
    assert [(d.step, d.micro_step) for d in run.key_data("loss")][:3] == [(0, 0), (0, 1), (1, 0)]
    kl = run.key_data("kl_loss")[0].arrays[0]
    loss = run.key_data("loss")[0].arrays[0]
    assert kl.dtype == "float32"
    assert abs(float(loss)) > 0
