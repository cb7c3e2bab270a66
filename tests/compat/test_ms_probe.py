"""MsProbe: trainers written for MindRLHF's and MindSpeed-RL's class keep running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.programs import ALL_LAYERS, HEAVY, read_json, run_python

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Policy, Scale, Twice, hook_count, tensor

from mindrlhf_msprobe import ConfigError, MsProbe, RunError, UsageError, compare_runs, open_run

pytestmark = pytest.mark.usefixtures("older_tools")


class MsprobeConfig:
    """MindSpeed-RL's configuration object."""

    def __init__(self, config_dict: dict[str, Any], role: str = "") -> None:
        self.role = role
        self.msprobe = False
        self.dump_path = "./msprobe_dump"
        self.key_data_dump = self.configurations_dump = False
        self.actor_train_dump = self.actor_infer_dump = False
        self.token_range_start = self.token_range_end = 0
        self.reference_dump = self.critic_train_dump = False
        self.step_start = self.step_end = 0
        self.update(config_dict)

    def update(self, config_dict: dict[str, Any]) -> None:
        for key, value in config_dict.items():
            setattr(self, key, value)


def settings(path: Path, **more: Any) -> dict[str, Any]:
    on = {"msprobe": True, "key_data_dump": True, "configurations_dump": True, **ALL_LAYERS}
    return {**on, "dump_path": str(path), "step_end": 9, **more}


@pytest.fixture
def graph_mode() -> Iterator[None]:
    """Run a test in GRAPH_MODE."""
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def loss_of(network: Any) -> Any:
    """Return a loss that MindSpore can compile."""

    def loss(x: Any) -> Any:
        return network(x).sum()

    return loss


def train(steps: int = 2) -> list[bytes]:
    """Train as MindSpeed-RL's workers do and return the bits of every loss and weight."""
    actor, reference, critic = Policy(), Policy(), Twice()
    bits = []
    for _ in range(steps):
        x = tensor(2, 3)
        MsProbe.debugger_start(actor.backbone, tag="actor_generate_sequences")
        responses = actor.backbone(actor.backbone(x))
        MsProbe.debugger_stop("actor_generate_sequences")
        MsProbe.save_data(data={"responses": responses, "prompts": [x, x]})
        MsProbe.save_string_list("generated_text", ["一", "two"])
        MsProbe.debugger_start(model=reference, tag="reference_compute_log_prob")
        reference(x)
        MsProbe.debugger_stop("reference_compute_log_prob")
        MsProbe.debugger_start(actor, tag="actor_image_embeds")  # MindSpeed-RL's multimodal one
        MsProbe.debugger_stop("actor_image_embeds")
        MsProbe.debugger_start([critic], tag="critic_compute_values")
        MsProbe.save_data(name="values", data=critic(x))
        MsProbe.debugger_stop("critic_compute_values")
        MsProbe.debugger_start(actor, tag="actor_update")
        loss, grads = ms.value_and_grad(lambda x: actor(x).sum(), None, actor.trainable_params())(x)
        MsProbe.debugger_stop(tag="actor_update")
        MsProbe.save_data("loss", loss)
        MsProbe.step()
        bits += [r.asnumpy().tobytes() for r in (loss, *grads)]
    return bits


def test_a_trainers_calls_record_a_run(tmp_path, warnings_of):
    """Phases, key data, texts and configurations land where Probe puts them; training is as is."""
    plain = train()
    MsProbe.config_init(MsprobeConfig(settings(tmp_path / "run"), role="actor"))
    assert MsProbe.enabled
    MsProbe.save_configs({"actor": {"lr": 0.1}})
    assert train() == plain
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1]
    assert run.phases == [
        *("actor_generate_sequences", "reference_compute_log_prob", "critic_compute_values"),
        "actor_update",
    ]
    assert run.keys == ["generated_text", "loss", "prompts", "responses", "values"]
    assert [d.value for d in run.key_data("generated_text")] == [["一", "two"]] * 2
    assert {e.token for e in run.entries("actor_generate_sequences")} == {0}
    values = {e.name for e in run.entries("critic_compute_values", step=0)}
    assert values == {
        *("Cell.0.first.Scale.forward.0", "Cell.0.first.Scale.forward.1"),
        *("Cell.0.second.Scale.forward.0", "Cell.0.Twice.forward.0"),
    }
    update = {e.name for e in run.entries("actor_update", step=1)}
    assert {"Cell.head.Scale.backward.0", "Cell.head.Scale.parameters_grad.0"} <= update
    assert run.configurations() == {"actor": {"lr": 0.1}}
    (unknown,) = [text for text in warnings_of() if "actor_image_embeds" in text]
    assert "not a phase" in unknown


def test_a_phase_of_ones_own_is_recorded(tmp_path):
    """A tag that is declared in phases is a phase; it opens as often as it likes in a step."""
    phases = {"actor_image_embeds": "actor"}
    MsProbe.config_init(settings(tmp_path / "run", phases=phases, actor_train_dump=False))
    network = Twice()
    for _ in range(2):
        MsProbe.debugger_start(network, "actor_image_embeds")
        network(tensor(2))
        MsProbe.debugger_stop()
    MsProbe.debugger_start("no cell", "actor_update")  # switched off: not even looked at
    MsProbe.step()
    entries = open_run(tmp_path / "run").entries("actor_image_embeds")
    assert [e.name for e in entries if e.cell == "root"] == [
        "Cell.root.Twice.forward.0",
        "Cell.root.Twice.forward.1",
    ]


def test_switched_off_nothing_happens(tmp_path):
    """With msprobe: false, or without config_init, every call does and imports nothing."""
    program = f"""
import sys
from types import SimpleNamespace
from mindrlhf_msprobe import MsProbe
for config in (None, {{"msprobe": False, "key_data_dump": True}}, SimpleNamespace(msprobe=False)):
    if config is not None:
        MsProbe.config_init(config)
    MsProbe.save_configs(3)
    MsProbe.save_data("../evil", 1)
    MsProbe.save_data({{"a": object()}})
    MsProbe.save_string_list("texts", 5)
    MsProbe.debugger_start("no cell", tag="no phase")
    MsProbe.debugger_start()
    MsProbe.debugger_stop(tag="no phase")
    MsProbe.debugger_stop()
    MsProbe.step()
    assert MsProbe.enabled is False
print([m for m in {HEAVY} if m in sys.modules])
"""
    result = run_python(program, tmp_path)
    assert result.stdout.strip() == "[]", result.stderr
    assert list(tmp_path.iterdir()) == []


def test_key_data_alone_need_no_mindspore(tmp_path):
    """A trainer's process that records key data only starts no framework for it."""
    program = """
import sys, numpy as np
from mindrlhf_msprobe import MsProbe
MsProbe.config_init({"msprobe": True, "dump_path": "run", "key_data_dump": True})
MsProbe.save_data("loss", np.float32(1))
MsProbe.debugger_start("not looked at", tag="actor_update")
MsProbe.step()
print("mindspore" in sys.modules)
"""
    result = run_python(program, tmp_path)
    assert result.stdout.strip() == "False", result.stderr
    assert open_run(tmp_path / "run").finished


def test_config_init_again(tmp_path, warnings_of):
    """An equal configuration, or a switched-off one, changes nothing; another one begins anew."""
    MsProbe.config_init(settings(tmp_path / "a"))
    MsProbe.save_data("loss", 1.0)
    MsProbe.config_init(settings(tmp_path / "a"))
    MsProbe.config_init({"msprobe": False})
    MsProbe.save_data("loss", 2.0)
    MsProbe.step()
    assert not warnings_of()
    MsProbe.config_init(settings(tmp_path / "b"))
    MsProbe.save_data("loss", 3.0)
    MsProbe.step()
    assert open_run(tmp_path / "a").finished
    assert [d.micro_step for d in open_run(tmp_path / "a").key_data()] == [0, 1]
    assert [d.step for d in open_run(tmp_path / "b").key_data()] == [0]
    with pytest.raises(RunError, match="already holds a run"):
        MsProbe.config_init(settings(tmp_path / "a"))
    assert not MsProbe.enabled


def test_starts_and_stops_that_do_not_match(tmp_path, warnings_of):
    """What the older class takes silently is taken, with one warning a kind; nothing is lost."""
    MsProbe.config_init(settings(tmp_path / "run"))
    network = Scale()
    MsProbe.debugger_stop("actor_update")  # nothing is open
    for _ in range(2):
        MsProbe.debugger_start(network, "actor_compute_log_prob")
        network(tensor(2))
        MsProbe.debugger_start(network, "actor_update")  # without a stop
        network(tensor(2))
        MsProbe.debugger_stop("actor_compute_log_prob")  # not this one
        network(tensor(2))
        MsProbe.step()  # inside the phase
    assert hook_count(network) == 0
    run = open_run(tmp_path / "run")
    calls = {phase: len(run.entries(phase, step=1)) for phase in run.phases}
    assert calls == {"actor_compute_log_prob": 1, "actor_update": 2}
    assert len([text for text in warnings_of() if "still open" in text]) == 2


def test_misuse_and_wrong_configurations_are_refused(tmp_path):
    """A wrong configuration, no network, no cell, no list of texts, a name that leaves."""
    with pytest.raises(ConfigError, match=r"'step_strat'.*step_start"):
        MsProbe.config_init(MsprobeConfig({"msprobe": True, "step_strat": 1}))
    assert not MsProbe.enabled
    MsProbe.config_init(settings(tmp_path / "run"))
    for model, said in (
        (None, "without a model"),
        ("actor", "not a cell"),
        ([Scale(), 3], r"model\[1\] is a int"),
        ([], "empty list"),
    ):
        with pytest.raises(UsageError, match=said):
            MsProbe.debugger_start(model, tag="actor_update")
    with pytest.raises(UsageError, match="expected a list of texts"):
        MsProbe.save_string_list("text", "abc")
    with pytest.raises(UsageError, match="evil"):
        MsProbe.save_data("../../evil", 1)


@pytest.mark.usefixtures("graph_mode")
def test_graph_mode_records_what_pynative_does(tmp_path):
    """A network that is first given outside the step window is still recorded inside it."""
    for name, mode in [("graph", ms.GRAPH_MODE), ("pynative", ms.PYNATIVE_MODE)]:
        ms.set_context(mode=mode)
        MsProbe.config_init(settings(tmp_path / name, step_start=1))
        network = Policy()
        step = ms.value_and_grad(loss_of(network), None, network.trainable_params())
        for _ in range(2):
            MsProbe.debugger_start(network, tag="actor_update")
            step(tensor(2, 3))
            MsProbe.debugger_stop(tag="actor_update")
            MsProbe.step()
    names = []
    for name in ("graph", "pynative"):
        entries = open_run(tmp_path / name).entries()
        assert {e.step for e in entries} == {1}
        names.append({e.name for e in entries if e.direction != "parameters_grad"})
    assert names[0] == names[1]
    result = compare_runs(tmp_path / "graph", tmp_path / "pynative")
    assert result.verdict.first_divergence is None


@pytest.mark.usefixtures("graph_mode")
def test_a_compiled_network_is_refused(tmp_path):
    """A network that was compiled before its first debugger_start cannot be given probes."""
    MsProbe.config_init(settings(tmp_path / "run"))
    network = Scale()
    network(tensor(2))
    with pytest.raises(UsageError, match="compiled already"):
        MsProbe.debugger_start(network, tag="actor_update")


def test_star_import_gives_every_name():
    """`from msprobe.pytorch import *` becomes `from mindrlhf_msprobe import *`."""
    names: dict[str, Any] = {}
    exec("from mindrlhf_msprobe import *", names)
    assert names["MsProbe"] is MsProbe
    assert {"compare_distributed", "SingleSave", "PrecisionDebugger", "seed_all"} <= set(names)


def test_configurations_of_enums_and_dtypes_are_saved(tmp_path):
    """save_configs takes a trainer's __dict__ as it is."""
    MsProbe.config_init(settings(tmp_path / "run"))
    MsProbe.save_configs({"actor": {"dtype": ms.float16, "n": np.int64(3)}})
    content = read_json(tmp_path / "run/configurations.json")
    assert content == {"actor": {"dtype": "Float16", "n": 3}}
