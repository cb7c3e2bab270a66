"""MindRLHF's GRPO, here a stand-in with its names and signatures, is recorded as it is."""

import importlib
import os
import shutil
import sys
import tempfile
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import yaml
from drivers.launching import EVERYTHING, OF_GENERATION, ROLLOUT
from drivers.standing_in import STAND_INS, stand_in

from mindrlhf_msprobe import ConfigError, RunError, compare_runs, open_run
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.integrations import mindrlhf
from mindrlhf_msprobe.probe import recording_probes
from mindrlhf_msprobe.report.messages import text_of

pytestmark = pytest.mark.slow

GRPO = ("grpo", "main", "mindrlhf")
EXAMPLE = Path(__file__).parents[2] / "yaml_examples" / "mindrlhf_grpo.yaml"
ALL = EVERYTHING
KEY_DATA = {"msprobe": True, "key_data_dump": True}
PHASES = {
    "actor_generate_sequences",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "actor_update",
}
OF_LOSS = {"log_prob", "ratio", "kl", "kl_loss", "actor_loss"}
OF_TRAIN_STEP = {"loss", "overflow", "loss_scale", "lr"}  # its gradient norm is None
KEYS = {
    *ROLLOUT,
    *OF_GENERATION,
    *("prompts", "responses", "advantages", "ref_log_prob", "old_log_prob", "loss_inputs"),
    *("rewards", "rewards.share_of_solution", "rewards.number_of_sample"),
    *OF_LOSS,
    *OF_TRAIN_STEP,
}
PYNATIVE, GRAPH = ms.PYNATIVE_MODE, ms.GRAPH_MODE


@pytest.fixture(autouse=True)
def _stand_in():
    with stand_in(*GRPO):
        yield
        for probe in recording_probes():  # where nothing tells it of the training's end
            probe.close()


def write(root, section=None, *, mode=PYNATIVE, name="run", **rl_config):
    """Write a trainer's file; None stands for no section."""
    content = {"context": {"mode": mode}, "actor_config": {"learning_rate": 0.1}}
    if rl_config:
        content["rl_config"] = rl_config
    if isinstance(section, dict):
        section = {"dump_path": str(root / name), **section}
    if section is not None:
        content["msprobe_config"] = section
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def module(name):
    return importlib.import_module(name)


def train(path, **arguments):
    """Train; return the losses and the trained weights, as bytes."""
    return module("main").train(path, **arguments)


@pytest.fixture
def configure(tmp_path):
    """Return a function that writes a trainer's file into the test's directory."""
    return partial(write, tmp_path)


@pytest.fixture
def record(tmp_path, configure):
    """Return a function that trains with a section, and opens what was recorded."""

    def recorded(section=KEY_DATA, *, name="run", resume_training=False, **settings):
        mindrlhf.install()
        path = configure(section, name=name, **settings)
        train(path, resume_training=resume_training)
        return open_run(tmp_path / name)

    return recorded


def once(root, section=None, *, modes=(PYNATIVE, GRAPH), **settings):
    """Train in each mode; return by mode what came of it, and the run if there is a section."""
    results = {}
    for mode in modes:
        with stand_in(*GRPO):
            if section is not None:
                mindrlhf.install()
            path = write(root, section, mode=mode, name=f"mode{mode}", **settings)
            results[mode] = train(path)
    return results, {mode: open_run(root / f"mode{mode}") for mode in modes if section}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """Return what comes of the training without the package."""
    return once(tmp_path_factory.mktemp("untouched"))[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return what comes of it where everything is recorded, and the runs; no test changes them."""
    return once(tmp_path_factory.mktemp("whole"), ALL)


@pytest.fixture(scope="module")
def key_data(tmp_path_factory):
    """Return the same of key data alone."""
    return once(tmp_path_factory.mktemp("key_data"), KEY_DATA)


@pytest.fixture(scope="module")
def first_round(tmp_path_factory):
    """Return the directory of a run of key data alone, of one epoch."""
    root = tmp_path_factory.mktemp("first_round")
    return once(root, KEY_DATA, modes=[PYNATIVE], epochs=1)[1][PYNATIVE].path


@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
def test_a_training_is_recorded_and_stays_as_it_is(whole, untouched, mode):
    results, runs = whole
    assert results == untouched
    run = runs[mode]
    assert run.steps == [0, 1, 2, 3]  # two epochs of two steps
    assert all(run.completed(step) for step in run.steps)
    assert run.finished
    assert set(run.phases) == PHASES
    assert set(run.keys) == KEYS
    assert not run.lost
    configurations = run.configurations()
    assert configurations["actor_config"] == {"learning_rate": 0.1}
    assert configurations["rl_config"]["beta"] == 0.1  # a section the file leaves out
    assert configurations["generate_config"]["sampling_config"]["max_tokens"] == 3


def test_a_recorded_rollout_is_played_without_an_edit(
    tmp_path, configure, untouched, whole, monkeypatch
):
    """Nothing is generated, and all that follows is the same to the bit."""
    recorded = whole[1][PYNATIVE].path
    mindrlhf.install()
    monkeypatch.setattr(module(HOMES["InferWorker"]).InferWorker, "generate", None)
    assert train(configure({**ALL, "rollout_from": str(recorded)})) == untouched[PYNATIVE]
    result = compare_runs(recorded, tmp_path / "run", output_path=tmp_path / "out")
    assert result.verdict.status.value == "identical"
    assert "were played instead" in " ".join(gap.reason for gap in result.verdict.coverage)


@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
def test_a_cell_of_the_actor_has_one_name_in_all_phases(whole, mode):
    run = whole[1][mode]

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


@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
def test_key_data_are_what_the_trainer_computed(key_data, mode):
    (losses, _), run = (of[mode] for of in key_data)
    assert run.phases == []
    saved = run.key_data("loss")
    assert [np.asarray(datum.value).tobytes() for datum in saved] == losses
    places = [(s, m) for s in range(4) for m in (0, 1)]
    for key in OF_LOSS | OF_TRAIN_STEP | {"loss_inputs"}:
        assert [(d.step, d.micro_step) for d in run.key_data(key)] == places
    first = {key: np.asarray(run.key_data(key, step=0)[0].value) for key in run.keys}
    assert first["prompts"].tolist() == [[1, 2]] * 4
    assert first["responses"].shape == (4, 3)
    assert (first["rollout_tokens"] == first["responses"][:2]).all()  # of a call
    assert (first["rollout_prompts"] == first["prompts"][:2]).all()
    rollout = np.concatenate([d.value for d in run.key_data("rollout_log_prob", step=0)])
    assert rollout == pytest.approx(first["old_log_prob"][:, 1:], abs=1e-5)
    each = first["rewards.share_of_solution"], first["rewards.number_of_sample"]
    assert (sum(each) == first["rewards"]).all()
    assert each[1].tolist() == [0, 1, 2, 3]
    kl = np.exp(first["ref_log_prob"][:2] - first["log_prob"]) - 1
    kl = kl - first["ref_log_prob"][:2] + first["log_prob"]
    assert first["kl"] == pytest.approx(kl, abs=1e-6)
    assert first["kl_loss"] == pytest.approx(kl.mean(axis=1).sum() / 2, abs=1e-7)
    assert first["ratio"] == pytest.approx(np.exp(first["log_prob"] - first["old_log_prob"][:2]))
    assert first["loss"] == pytest.approx(first["actor_loss"] + 0.1 * first["kl_loss"], rel=1e-6)
    inputs = run.key_data("loss_inputs", step=0)[1].value
    assert inputs["ref_log_prob"].tolist() == first["ref_log_prob"][2:].tolist()
    assert inputs["mask"].shape == inputs["advantages"].shape == (2, 4)
    last = run.key_data("kl_loss")[-1].value
    assert last > 1e-4  # the policy has left the reference


@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
def test_a_mindrlhf_that_ships_msprobe_is_recorded(
    tmp_path, configure, untouched, monkeypatch, mode
):
    """It has a section, an MsProbe and calls of msprobe's `save` in the loss of its own."""
    monkeypatch.setenv("STAND_IN_SHIPS_MSPROBE", "1")
    mindrlhf.install()
    assert train(configure({**ALL, "msprobe": False}, mode=mode)) == untouched[mode]
    assert train(configure(mode=mode, name="without")) == untouched[mode]
    assert not (tmp_path / "run").exists()
    assert train(configure(ALL, mode=mode)) == untouched[mode]
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2, 3]
    assert run.finished
    assert set(run.keys) == KEYS | {"of_its_own"}
    for key in OF_LOSS | {"loss"}:  # once each, whoever saves it
        assert [d.micro_step for d in run.key_data(key, step=2)] == [0, 1]
    assert [d.value.shape for d in run.key_data("responses")] == [(4, 3)] * 4
    assert not run.lost
    assert run.configurations()["own"] == 1
    assert "actor" not in run.configurations()  # it is actor_config


def test_an_imported_mindrlhf_that_ships_msprobe_compiles(record, monkeypatch):
    """Without msprobe it finds no `save`, and no graph compiles."""
    monkeypatch.setenv("STAND_IN_SHIPS_MSPROBE", "1")
    module("main")
    assert set(record(mode=GRAPH, epochs=1).keys) == KEYS | {"of_its_own"}


def test_steps_that_its_msprobe_does_not_end(tmp_path, configure, monkeypatch, caplog):
    monkeypatch.setenv("STAND_IN_SHIPS_MSPROBE", "1")
    mindrlhf.install()
    trainer = module("mindrlhf.trainer.spmd.grpo_trainer")

    class Silent(trainer.MsProbe):
        step = classmethod(lambda cls: None)

    monkeypatch.setattr(trainer, "MsProbe", Silent)
    train(configure(KEY_DATA))
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2, 3]
    assert all(run.completed(step) for step in run.steps)
    assert caplog.text.count("MsProbe.step() is not called") == 1


def test_a_key_of_mindrlhfs_own_section_is_left_to_it(tmp_path, configure, monkeypatch, caplog):
    """A later version may know keys that this package does not; others are still mistakes."""
    monkeypatch.setenv("STAND_IN_SHIPS_MSPROBE", "1")
    configs = module("mindrlhf.configs.grpo_configs")
    known = configs.GRPOConfig.msprobe_config
    fields = [("own_dump", bool, False), ("own_level", int, 2)]
    configs.GRPOConfig.msprobe_config = make_dataclass("MsprobeConfig", fields, bases=(known,))
    mindrlhf.install()
    section = KEY_DATA
    path = configure({**section, "own_dump": True}, epochs=1)
    train(path)
    assert open_run(tmp_path / "run").finished
    assert caplog.text.count("own_dump of msprobe_config is known to MindRLHF") == 1
    read = configs.GRPOConfig(path).msprobe_config
    assert (read.own_dump, read.own_level) == (True, 2)
    caplog.clear()
    read = configs.GRPOConfig(configure({**section, "own_dump": True, "key_data_dumb": True}))
    assert read.msprobe_config.own_dump
    assert caplog.text.count("unknown key 'key_data_dumb'") == 1


@pytest.mark.parametrize("section", [None, {**ALL, "msprobe": False}])
def test_without_the_switch_nothing_happens(tmp_path, configure, untouched, section):
    mindrlhf.install()
    assert train(configure(section)) == untouched[PYNATIVE]
    assert not (tmp_path / "run").exists()


def test_the_example_records_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mindrlhf.install()
    train(EXAMPLE)  # in graph mode
    run = open_run("msprobe_dump")
    assert set(run.keys) == KEYS
    assert {(e.phase, e.step) for e in run.entries()} == {(p, s) for p in PHASES for s in (0, 1)}
    generated = run.entries(phase="actor_generate_sequences")
    assert {entry.token for entry in generated} == {0, 1}
    assert {"rl_config", "args"} <= set(run.configurations())


def test_installed_twice_is_installed_once(record, tmp_path):
    mindrlhf.install()
    record(ALL, epochs=1)
    mindrlhf.install()
    run = open_run(tmp_path / "run")
    assert len(run.key_data("rewards", step=0)) == 1
    assert run.steps == [0, 1]


def test_a_resumed_training_counts_on(record):
    run = record(ALL, resume_training=True)  # at step 1 of epoch 1, of two steps each
    assert run.steps == [3]
    assert run.config().initial_step == 3


def test_an_old_policy_that_is_switched_off(whole, record, caplog):
    run = record(ALL, enable_oldpolicy=False)
    assert set(run.phases) == PHASES - {"actor_compute_log_prob"}
    assert "old_log_prob" not in run.keys
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    left_out = run.coverage()
    why = (message("trainer.no_old_policy"),)
    assert left_out["phases"]["actor_compute_log_prob"] == why
    compared = compare_runs(whole[1][PYNATIVE].path, run.path)
    assert not any(f.status.value.startswith("only_in") for f in compared.findings)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"msprobe": True, "strict": True, "actor_dump": True}, "unknown key 'actor_dump'"),
        ({"msprobe": False, 3: True}, r"keys of msprobe_config must be texts, found \[3\]"),
        ({"msprobe": "yes"}, "msprobe_config.msprobe is 'yes'"),
        ([1], r"the section msprobe_config is \[1\]"),
        ("", "the section msprobe_config is ''"),
    ],
)
def test_a_mistake_in_the_section_is_explained(configure, section, said):
    mindrlhf.install()
    with pytest.raises(ConfigError, match=said):
        train(configure(section))


@pytest.mark.parametrize("ships_msprobe", ["0", "1"])
@pytest.mark.parametrize("on", [True, False])
def test_unknown_keys_stop_no_training(
    tmp_path, configure, untouched, monkeypatch, caplog, on, ships_msprobe
):
    """All of them are named, once; the known ones count."""
    monkeypatch.setenv("STAND_IN_SHIPS_MSPROBE", ships_msprobe)
    mindrlhf.install()
    unknown = {"reference_dumb": True, "kind": 3, "levels": "L1", "strict": not on}
    section = {"msprobe": on, "key_data_dump": True, **unknown}
    assert train(configure(section)) == untouched[PYNATIVE]
    (said,) = [r.getMessage() for r in caplog.records if "unknown key" in r.getMessage()]
    assert "'reference_dumb' (value True). Did you mean 'reference_dump'?" in said
    assert "'kind' (value 3)" in said
    assert "'levels' (value 'L1')" in said
    assert "training goes on" in said
    assert (tmp_path / "run").exists() == on
    if on:
        run = open_run(tmp_path / "run")
        assert run.finished
        assert set(run.keys) >= KEYS


def test_what_is_wrong_with_the_rest_is_mindrlhfs_to_say(tmp_path):
    mindrlhf.install()
    with pytest.raises(FileNotFoundError):
        train(tmp_path / "nowhere.yaml")
    path = tmp_path / "grpo.yaml"
    path.write_text("actor_configuration: {}\n")
    with pytest.raises(AttributeError, match="actor_configuration"):
        train(path)


def test_a_taken_dump_path_is_refused_before_networks_are_built(record, configure):
    record(ALL, epochs=1)
    with pytest.raises(RunError, match="already holds a run") as caught:
        train(configure(ALL, epochs=1))
    assert "InferWorker" not in "".join(str(frame) for frame in caught.traceback)


#: Methods that are missing together, and what is not recorded without them.
RENAMED = [
    (
        ["InferWorker.generate", "GRPOExperienceMaker.compute_rewards"],
        {"actor_generate_sequences", *OF_GENERATION, "rewards"},  # and each function's, unnamed
    ),
    (
        [
            "GRPOTrainer._init_grpo_configs",
            "RefWorker.compute_ref_log_prob",
            "GRPOExperienceMaker.compute_ref_log_probs",
            "GRPOExperienceMaker._generate_old_logps",
        ],
        {"reference_compute_log_prob", "ref_log_prob", "old_log_prob"},
    ),
    (
        [
            "GRPOExperienceMaker.generate_sequence",
            "GRPOExperienceMaker.compute_advantages",
            "OldPolicyWorker.compute_old_log_prob",
            "TrainWorker.train",
        ],
        {"prompts", "responses", "advantages", "actor_compute_log_prob", "actor_update"},
    ),
    (["GRPOTrainer.run_grpo_train", "GRPOExperienceMaker.make_experience"], {"configurations"}),
]
HOMES = {
    "GRPOTrainer": "mindrlhf.trainer.spmd.grpo_trainer",
    "GRPOExperienceMaker": "mindrlhf.trainer.spmd.grpo_experience_maker",
    "InferWorker": "mindrlhf.worker.infer_worker",
    "RefWorker": "mindrlhf.worker.ref_worker",
    "OldPolicyWorker": "mindrlhf.worker.old_policy_worker",
    "TrainWorker": "mindrlhf.worker.train_worker",
}


@pytest.mark.parametrize(("names", "lost"), RENAMED)
def test_a_renamed_method_is_named_and_the_rest_recorded(
    tmp_path, configure, untouched, caplog, names, lost
):
    main = module("main")
    kinds = {name: getattr(module(home), name) for name, home in HOMES.items()}
    hidden = {name: vars(kinds[name.split(".")[0]])[name.split(".")[1]] for name in names}
    for name in names:
        delattr(kinds[name.split(".")[0]], name.split(".")[1])
    mindrlhf.install()  # which does not find them; the stand-in itself still uses these names
    for name, method in hidden.items():
        setattr(kinds[name.split(".")[0]], name.split(".")[1], method)
    assert main.train(configure(ALL)) == untouched[PYNATIVE]
    (message,) = [m for m in caplog.messages if "is not the version" in m]
    assert all(f"{name} is missing: " in message for name in names)
    run = open_run(tmp_path / "run")
    assert set(run.phases) == PHASES - lost
    each = {key for key in KEYS if key.startswith("rewards.")} if "rewards" in lost else set()
    played = ROLLOUT if "responses" in lost else set()
    assert set(run.keys) == KEYS - lost - each - played
    assert run.steps == [0, 1, 2, 3]
    assert (run.configurations() is None) == ("configurations" in lost)
    coverage = run.coverage()
    said = {*coverage.get("phases", {}), *coverage.get("key_data", {})} - {"grad_norm"}
    assert said == lost - {"configurations"}


def test_a_class_that_is_gone_is_named(configure, untouched, caplog):
    main = module("main")
    worker = module(HOMES["RefWorker"])
    kind, trainer = worker.RefWorker, module(HOMES["GRPOTrainer"])
    del worker.RefWorker, trainer.RefWorker
    mindrlhf.install()
    worker.RefWorker = trainer.RefWorker = kind
    assert main.train(configure(ALL)) == untouched[PYNATIVE]
    assert caplog.text.count("RefWorker is missing: the layers of reference_compute") == 1


def test_a_network_in_another_place_is_named(tmp_path, configure, untouched, caplog):
    main = module("main")
    worker = module(HOMES["RefWorker"]).RefWorker
    before = worker.__init__

    def renamed(self, *args, **kwargs):
        before(self, *args, **kwargs)
        self.reference, self.ref_model = self.ref_model, None

    worker.__init__ = renamed
    worker.compute_ref_log_prob = lambda self, ids, mask, samples, actual_sequence_length: (
        self.reference(ids, samples)
    )
    mindrlhf.install()
    assert main.train(configure(ALL)) == untouched[PYNATIVE]
    assert "reference_compute_log_prob are not recorded: RefWorker.ref_model" in caplog.text
    assert set(open_run(tmp_path / "run").phases) == PHASES - {"reference_compute_log_prob"}


@pytest.mark.parametrize("use_vllm", [1, 2])
def test_where_vllm_generates_it_is_said(tmp_path, configure, caplog, use_vllm):
    """vLLM's own network is not recorded; one that vLLM has compiled cannot be."""
    main = module("main")
    module("mindrlhf.configs.grpo_configs").GenerateConfig.use_vllm = use_vllm
    worker = module(HOMES["InferWorker"]).InferWorker
    before = worker.__init__

    def warmed_up(self, *args, **kwargs):
        before(self, *args, **kwargs)
        self.policy_model.model(ms.Tensor([[1, 2]], ms.int32))

    worker.__init__ = warmed_up
    mindrlhf.install()
    ms.set_context(mode=GRAPH)
    main.train(configure(ALL, mode=GRAPH, epochs=1))
    assert "the layers of actor_generate_sequences are not recorded" in caplog.text
    assert ("vLLM" if use_vllm == 1 else "compiled already") in caplog.text
    run = open_run(tmp_path / "run")
    assert set(run.phases) == PHASES - {"actor_generate_sequences"}
    assert set(run.keys) == (KEYS if use_vllm == 2 else KEYS - OF_GENERATION)


def test_a_reward_phase_without_a_network_is_coverage(tmp_path, configure, caplog):
    """Rewards come from functions, whose results are key data."""
    mindrlhf.install()
    section = {"msprobe": True, "key_data_dump": True, "phases": {"reward_compute": "reward"}}
    train(configure(section, epochs=1))
    run = open_run(tmp_path / "run")
    assert "reward_compute" in run.coverage()["phases"]
    assert {"rewards", "rewards.share_of_solution", "rewards.number_of_sample"} <= set(run.keys)
    assert "rewards.<function>" in caplog.text


def test_a_training_that_fails_is_marked(tmp_path, configure):
    mindrlhf.install()
    main = module("main")
    trainer = module(HOMES["GRPOTrainer"]).GRPOTrainer

    def fails(self):
        raise RuntimeError("no memory")

    trainer._reshard_train_to_infer = fails
    with pytest.raises(RuntimeError, match="no memory"):
        main.train(configure(ALL))
    run = open_run(tmp_path / "run")
    assert run.state == "failed"
    assert run.completed(0)


def test_offloaded_weights_are_looked_at_when_they_are_back(record, monkeypatch):
    """MindRLHF loads a network just before it runs; no weight is read before that."""
    module("main")
    worker = module(HOMES["InferWorker"]).InferWorker
    seen = []
    monkeypatch.setattr(
        "mindrlhf_msprobe.capture.recording.run_settings.initial_weights",
        lambda network, fault: seen.append(trainers[0].infer.on_device) or {},
    )
    trainers = []
    before = worker.__init__

    def offloaded(self, *args, **kwargs):
        before(self, *args, **kwargs)
        self.offload()
        trainers.append(type("Trainer", (), {"infer": self}))

    worker.__init__ = offloaded
    record({"msprobe": True, "actor_infer_dump": True}, epochs=1)
    assert seen == [True]


def test_a_loss_that_computes_in_another_way_is_named(tmp_path, configure, untouched, caplog):
    main = module("main")
    model = module("mindrlhf.models.grpo_models").GRPOModel
    construct = model.construct
    model.construct = lambda self, *args: construct(self, *args)
    mindrlhf.install()
    assert main.train(configure(ALL)) == untouched[PYNATIVE]
    said = [r.getMessage() for r in caplog.records if "as key data" in r.getMessage()]
    assert len(said) == 1
    assert all(key in said[0] for key in OF_LOSS)
    run = open_run(tmp_path / "run")
    assert set(run.keys) == KEYS - OF_LOSS
    assert set(run.coverage()["key_data"]) == OF_LOSS | {"grad_norm"}


def test_a_loss_that_fails_leaves_what_it_had_computed(tmp_path, configure):
    main = module("main")
    kind = module("mindrlhf.models.grpo_models").GRPOModel
    masked_mean = kind.masked_mean

    def fails_later(self, data, *args, **kwargs):
        if fails_later.calls == 5:  # not while gradients are taken
            raise ZeroDivisionError("no sample")
        fails_later.calls += 1
        return masked_mean(self, data, *args, **kwargs)

    fails_later.calls = 0
    kind.masked_mean = fails_later
    mindrlhf.install()
    with pytest.raises(ZeroDivisionError):
        main.train(configure(KEY_DATA))
    run = open_run(tmp_path / "run")
    assert {"log_prob", "kl", "loss_inputs"} <= set(run.keys)


def test_a_train_cell_that_cuts_the_batch_runs_its_loss_for_each_part(record):
    """Each part is a save of its own: none may be taken for a repetition of another."""
    module("main")
    models = module("mindrlhf.models.grpo_models")

    class MicroBatchInterleaved(ms.nn.Cell):
        def __init__(self, network):
            super().__init__(auto_prefix=False)
            self.network = network

        def construct(self, *inputs):
            halves = [[x[i : i + 1] for x in inputs] for i in range(2)]
            return (self.network(*halves[0]) + self.network(*halves[1])) / 2

    one_step = models.TrainOneStepWithLossScaleGRPO
    worker = module("mindrlhf.worker.train_worker")

    def with_parts(network, optimizer):
        cell = one_step(MicroBatchInterleaved(network), optimizer)
        cell.grad = ms.ops.GradOperation(get_by_list=True)
        return cell

    worker.TrainOneStepWithLossScaleGRPO = with_parts
    run = record(epochs=1)
    saved = [d.value.shape for d in run.key_data("log_prob", step=0)]
    assert set(saved) == {(1, 4)}
    assert len(saved) >= 4


def test_roles_in_ray_actors_are_kept_apart(tmp_path, configure):
    """Each actor believes to be rank 0; none is refused, and none writes into another's run."""
    ray = pytest.importorskip("ray")
    path = configure(ALL, epochs=1)

    class Role:
        def __init__(self, name):
            from mindrlhf_msprobe.integrations import mindrlhf

            mindrlhf.install()
            import mindspore as ms
            from mindrlhf.configs.grpo_configs import GRPOConfig
            from mindrlhf.trainer.spmd import grpo_trainer

            ms.set_context(mode=ms.PYNATIVE_MODE)
            kind = getattr(grpo_trainer, name)
            self.worker = kind(grpo_config=GRPOConfig(str(path)), args=None)

        def score(self):
            import mindspore as ms

            ids = ms.Tensor([[1, 2, 3]], ms.int32)
            self.worker.compute_ref_log_prob(ids, None, ids, None)

        def train(self):
            self.worker.train()

    environment = {
        "PYTHONPATH": os.pathsep.join([str(STAND_INS / "grpo"), *(p for p in sys.path if p)])
    }
    files = tempfile.mkdtemp(prefix="ray_", dir="/tmp")  # its sockets need a short path
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": environment},
        _temp_dir=files,
    )
    try:
        actor = ray.remote(num_cpus=0.5)(Role)
        references = [actor.remote("RefWorker") for _ in range(2)]
        trainer = actor.options(name="../the/trainer").remote("TrainWorker")
        ray.get([*(r.score.remote() for r in references), trainer.train.remote()])
    finally:
        ray.shutdown()
        shutil.rmtree(files, ignore_errors=True)
    for of_reference in ("RefWorker", "RefWorker-1"):
        entries = open_run(tmp_path / "run" / of_reference).entries()
        assert {entry.phase for entry in entries} == {"reference_compute_log_prob"}
    assert open_run(tmp_path / "run" / "_the_trainer").completed(0)


@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
def test_a_first_round_of_key_data_holds_what_the_networks_are_set_to(key_data, untouched, mode):
    """Without a switch for layers: the loss's constants, the modes, the optimizer; no other bit."""
    results, runs = key_data
    assert results == untouched
    run = runs[mode]
    assert run.phases == []
    (manifest,) = run.manifests
    assert set(manifest["modes"]) == PHASES
    attributes = {
        phase: {
            name: value for group in network["cells"] for name, value in group["attributes"].items()
        }
        for network in manifest["networks"]
        for phase in network["phases"]
    }
    assert attributes["actor_update"]["beta"] == 0.1
    assert manifest["optimizers"]["actor"]["settings"]["learning_rate"] == 0.1
    left_out = run.coverage()["key_data"]
    assert set(left_out) == {"grad_norm"}
    (why,) = left_out["grad_norm"]
    assert text_of(why, "en") == "TrainOneStepWithLossScaleGRPO returns no grad_norm"
    assert not run.lost


def plant(home, owner, name, made):
    """Return what lets a function of the trainer compute something else."""

    def planted():
        place = module(f"mindrlhf.{home}")
        place = getattr(place, owner) if owner else place
        right = getattr(place, name)
        wrong = made(right)
        wrong.__name__ = name  # which names a reward
        setattr(place, name, wrong)

    return planted


def wrong_where_trained(construct):
    def of_the_trained_one(self, tokens, samples=None):
        log_prob = construct(self, tokens, samples)
        return log_prob * 1.001 if self.training else log_prob

    return of_the_trained_one


def without_the_first_token(push):
    def push_to_store(self, data):
        for columns in data:
            columns[1] = columns[1] * np.array([0, 1, 1, 1], np.float32)
        push(self, data)

    return push_to_store


MODELS, REWARDS = "models.grpo_models", "trainer.spmd.grpo_experience_maker"
ONE_SAMPLE = np.array([1, 1, 1, 1.5])
#: What is wrong: the function and how it computes, the record it is seen in, the culprit.
PLANTED = [
    (MODELS, "GRPOModel", "compute_approx_kl", lambda f: lambda *a: f(*a) * 1.01, "kl", "loss"),
    (MODELS, "CausalLMHybrid", "construct", wrong_where_trained, "log_prob", None),
    (
        *(REWARDS, "", "number_of_sample", lambda f: lambda *a: f(*a) * ONE_SAMPLE),
        *("rewards.number_of_sample", None),
    ),
    (  # a constant: advantages do not change
        *(REWARDS, "", "share_of_solution", lambda f: lambda *a: f(*a) + 2),
        *("rewards.share_of_solution", None),
    ),
    (
        *("worker.train_worker", "TrainWorker", "push_to_store", without_the_first_token),
        *("loss_inputs.mask", None),
    ),
    (
        *(MODELS, "GRPOModel", "masked_mean", lambda f: lambda *a, dim=None: f(*a, dim=dim) / 2),
        *("actor_loss or kl_loss", "aggregation"),
    ),
]


@pytest.mark.parametrize(
    ("planted", "settings", "named", "culprit"),
    [
        *((plant(*how), {}, named, culprit) for *how, named, culprit in PLANTED),
        (lambda: None, {"beta": 0.2}, "loss", "aggregation"),
    ],
)
def test_a_first_round_tells_apart_where_two_trainings_part(
    record, first_round, planted, settings, named, culprit
):
    """Key data alone: the KL term, the actor's forward pass, a reward, a mask, a coefficient."""
    planted()
    result = compare_runs(first_round, record(epochs=1, **settings).path)
    first = result.verdict.first_divergence
    assert first.step == 0
    assert first.record in named.split(" or ")  # rounding decides whether a KL loss is exactly 0
    assert (first.culprit and first.culprit.code) == culprit
    assert (first.next_step is None) == (named != "log_prob")
    if settings:
        names = [check.what.name for check in first.check_first]
        assert names == ["actor.outer.beta in actor_update"]


def test_rewards_of_functions_that_cannot_be_had_are_no_divergence(record, tmp_path, first_round):
    """A compute_rewards of another kind: run.json says which rewards it does not give."""
    kind = module("mindrlhf.trainer.spmd.grpo_experience_maker").GRPOExperienceMaker
    compute = kind.compute_rewards
    kind.compute_rewards = lambda self, *args: compute(self, *args)
    left_out = record(epochs=1).coverage()["key_data"]
    each = {"rewards.share_of_solution", "rewards.number_of_sample"}
    assert set(left_out) == each | {"grad_norm"}
    assert compare_runs(first_round, tmp_path / "run").verdict.status == "identical"


@pytest.fixture
def installed_msprobe(tmp_path, monkeypatch):
    """Install an msprobe whose `save` cannot run, as on a CPU; return the module of the loss."""
    package = tmp_path / "installed" / "msprobe"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "mindspore.py").write_text("def save(*_):\n    raise RuntimeError('TensorDump')\n")
    for name in [n for n in sys.modules if n.partition(".")[0] == "msprobe"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("STAND_IN_SHIPS_MSPROBE", "1")
    mindrlhf.install()
    yield module("mindrlhf.models.grpo_models")
    for name in [n for n in sys.modules if n.partition(".")[0] == "msprobe"]:
        del sys.modules[name]


def test_an_installed_msprobe_is_replaced_while_the_probe_is_on(
    tmp_path, configure, untouched, installed_msprobe
):
    own = installed_msprobe.save
    assert own.__module__ == "msprobe.mindspore"
    assert train(configure(KEY_DATA)) == untouched[PYNATIVE]
    assert set(open_run(tmp_path / "run").keys) == KEYS | {"of_its_own"}
    assert installed_msprobe.save is own


def test_an_installed_msprobe_saves_nothing_on_a_rank_that_is_not_recorded(
    tmp_path, configure, untouched, installed_msprobe
):
    """Its section says `msprobe: true` there, too; it would write into the other ranks' run."""
    section = {"msprobe": True, "key_data_dump": True, "ranks": [1]}
    assert train(configure(section)) == untouched[PYNATIVE]
    assert not (tmp_path / "run").exists()
