"""The weights of each network when it was first entered, and what the process ran with then."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import TESTS, read_json, run_python
from helpers.small_networks import Policy, Scale, Twice, tensor
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.capture.settings.environment import initial_weights
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, to_host


def manifest(probe: Probe) -> dict[str, Any]:
    content: dict[str, Any] = read_json(Path(probe.config.dump_path) / "run.json")
    return content


def entered(probe: Probe, phase: str, network: nn.Cell | None = None, **given: Any) -> Probe:
    """Open a phase, in which a network runs if one is given."""
    with probe.phase(phase, **given):
        if network is not None:
            network(tensor(2))
    return probe


def one_step(probe: Probe, **networks: nn.Cell) -> dict[str, Any]:
    """Record a step of an update and close the probe; return what run.json says."""
    probe.watch(**networks)
    entered(probe, "actor_update", networks["actor"]).step()
    probe.close()
    return manifest(probe)


def weights_of(network: nn.Cell) -> dict[str, str]:
    return {name: fingerprint_of(to_host(p)) for name, p in network.parameters_and_names()}


def refuse(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


def test_the_weights_are_on_disk_when_the_network_was_entered(watched):
    """Names as the network gives them, fingerprints as in its records, without waiting."""
    probe, network = watched(Policy())
    expected = weights_of(network)
    assert "initial_weights" not in manifest(probe)
    with probe.phase("actor_update"):
        assert manifest(probe)["initial_weights"] == {"actor": expected}
        network(tensor(2))
    assert set(expected) == {"backbone.first.factor", "backbone.second.factor", "head.factor"}


def test_names_are_those_of_a_real_model(build_llama):
    """Every parameter of a Llama, each once, under the name MindSpore gives it."""
    llama = build_llama()
    found = initial_weights(llama, refuse)
    assert list(found) == [name for name, _ in llama.parameters_and_names()]
    assert None not in found.values()


def test_a_shared_parameter_stands_once() -> None:
    """Two cells with one parameter: its first name, as in parameters_and_names."""
    network = Policy()
    network.head.factor = network.backbone.first.factor
    assert list(initial_weights(network, refuse)) == [
        name for name, _ in network.parameters_and_names()
    ]


def test_the_first_network_and_its_first_weights_are_kept(layer_probe):
    """Neither a later update nor a network that replaces the first changes what is initial."""
    probe = layer_probe()
    network = Scale(2.0)
    probe.watch(actor=network, reference=network)
    expected = weights_of(network)
    entered(probe, "actor_compute_log_prob", network)
    network.factor.set_data(Tensor(np.float32(9)))
    entered(probe, "actor_update", network)
    probe.watch(actor=Twice())
    entered(probe, "actor_update")
    entered(probe, "reference_compute_log_prob", network).step()
    found = manifest(probe)["initial_weights"]
    assert found["actor"] == expected
    assert found["reference"] == weights_of(network) != expected


def test_a_network_outside_the_step_window_is_looked_at_too(watched, monkeypatch):
    """The first entry counts, whenever layer data begin; nobody looks again."""
    probe, network = watched(Scale(), step_start=5)
    entered(probe, "actor_update", network)
    assert manifest(probe)["initial_weights"] == {"actor": weights_of(network)}
    monkeypatch.setattr("mindrlhf_msprobe.capture.recording.run_settings.initial_weights", refuse)
    for _ in range(3):
        entered(probe, "actor_update", network).step()


def test_phases_that_are_switched_off_touch_no_network(make_probe, monkeypatch):
    """A role of which nothing is recorded is not looked at, nor one without a network."""
    monkeypatch.setattr("mindrlhf_msprobe.capture.recording.run_settings.initial_weights", refuse)
    probe = make_probe(actor_train_dump=True)
    probe.watch(actor=None, reference=Scale())
    entered(probe, "reference_compute_log_prob")
    entered(probe, "actor_update").step()
    assert "initial_weights" not in manifest(probe)
    assert manifest(probe)["lost"] == {}


def test_without_fingerprints_there_are_no_weights(layer_probe):
    """fingerprint: false leaves the settings and records no weight."""
    found = one_step(layer_probe(fingerprint=False), actor=Scale())
    assert "initial_weights" not in found
    assert found["taken"] == "first_phase"


def test_settings_are_those_the_trainer_set_before_its_first_phase(layer_probe):
    """Seeds are looked at again at the first network; how they stood at the start is kept."""
    seed = ms.get_seed()
    probe = layer_probe()
    try:
        ms.set_seed(4321)
        probe.watch(actor=Scale(), critic=Scale())
        entered(probe, "actor_update")
        ms.set_seed(99)
        entered(probe, "critic_update")
    finally:
        ms.common.seed._GLOBAL_SEED = seed
    found = manifest(probe)
    assert found["seeds"]["mindspore"] == 4321
    assert found["at_start"]["seeds"]["mindspore"] == seed
    assert found["taken"] == "first_phase"
    assert "device" not in found["at_start"]


def test_a_parameter_that_is_not_initialised_stays_so(layer_probe):
    """Looking would draw its numbers from the training's generator; it is None instead."""
    from mindspore.nn.utils import no_init_parameters

    with no_init_parameters():
        network = nn.Dense(3, 4)
    assert network.weight.has_init
    probe = layer_probe()
    probe.watch(actor=network)
    entered(probe, "actor_update").step()
    assert network.weight.has_init
    assert manifest(probe)["initial_weights"]["actor"] == {"weight": None, "bias": None}
    assert manifest(probe)["lost"] == {}


class BrokenNames(Scale):
    """A network whose parameters cannot be listed."""

    def parameters_and_names(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no names")


def test_a_weight_that_cannot_be_fetched_is_counted(layer_probe, monkeypatch):
    """One lost weight costs that weight; the training goes on."""
    network = Twice()

    def fetch(parameter: Any) -> Any:
        if parameter is network.second.factor:
            raise MemoryError("the device is gone")
        return to_host(parameter)

    monkeypatch.setattr("mindrlhf_msprobe.capture.settings.environment.to_host", fetch)
    found = one_step(layer_probe(), actor=network)
    weights = found["initial_weights"]["actor"]
    assert weights["second.factor"] is None
    assert weights["first.factor"].startswith("xxh3_128:")
    assert found["lost"] == {"an initial weight: MemoryError": 1}


def test_a_network_that_cannot_be_listed_is_counted_once(layer_probe):
    """It is not tried again at each phase, and the settings are there all the same."""
    probe = layer_probe(parameters=False)
    probe.watch(actor=BrokenNames())
    for _ in range(3):
        entered(probe, "actor_update")
    probe.step()
    assert manifest(probe)["lost"] == {"the initial weights of actor: RuntimeError": 1}
    assert "initial_weights" not in manifest(probe)


def test_strict_mode_raises_and_leaves_no_phase_open(layer_probe):
    """strict: true raises; the probe can go on afterwards."""
    probe = layer_probe(strict=True, parameters=False)
    probe.watch(actor=BrokenNames())
    with pytest.raises(RuntimeError, match="no names"), probe.phase("actor_update"):
        raise AssertionError("the phase was entered")
    probe.step()
    entered(probe, "actor_update")


def test_a_resumed_run_keeps_its_first_weights(layer_probe):
    """The weights a further attempt began with stand under its own entry, if they differ."""
    network = Scale(2.0)
    first = weights_of(network)
    for _ in range(2):
        found = one_step(layer_probe(existing="resume"), actor=network)
    assert found["initial_weights"] == {"actor": first}
    assert "initial_weights" not in found["attempts"][1]
    assert "versions" not in found["attempts"][1]

    network.factor.set_data(Tensor(np.float32(7)))
    probe = layer_probe(existing="resume")
    probe.watch(actor=network, critic=network)
    for phase in ("actor_update", "critic_update"):
        entered(probe, phase, network)
    probe.close()
    found = manifest(probe)
    assert found["initial_weights"] == {"actor": first}
    later = weights_of(network)
    assert found["attempts"][2]["initial_weights"] == {"actor": later, "critic": later}


def test_other_settings_of_a_further_attempt_stand_under_its_entry(layer_probe, monkeypatch):
    """What the first attempt ran with stays at the top."""
    for algorithm in ("ring", "mesh"):
        monkeypatch.setenv("HCCL_ALGO", algorithm)
        found = one_step(layer_probe(existing="resume"), actor=Scale())
    assert found["environment"]["HCCL_ALGO"] == "ring"
    assert found["attempts"][1]["environment"]["HCCL_ALGO"] == "mesh"
    assert "device" not in found["attempts"][1]


def test_an_attempt_that_entered_nothing_leaves_nothing(layer_probe, monkeypatch):
    """The next attempt counts as the first."""
    monkeypatch.setenv("HCCL_ALGO", "ring")
    layer_probe(existing="resume").close()
    monkeypatch.setenv("HCCL_ALGO", "mesh")
    network = Scale()
    found = one_step(layer_probe(existing="resume"), actor=network)
    assert found["environment"]["HCCL_ALGO"] == "mesh"
    assert found["initial_weights"] == {"actor": weights_of(network)}
    assert len(found["attempts"]) == 2


@pytest.mark.parametrize(
    "earlier", [{"initial_weights": 3, "attempts": 4, "versions": []}, {"taken": []}]
)
def test_a_strange_manifest_of_an_earlier_attempt_is_survived(layer_probe, tmp_path, earlier):
    """Whatever an earlier run.json holds, recording goes on and loses nothing of its own."""
    (tmp_path / "run").mkdir()
    ours = {"schema": 1, "attempts": [], "world": {}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(ours | earlier))
    network = Scale()
    found = one_step(layer_probe(existing="resume"), actor=network)
    weights = found["attempts"][-1].get("initial_weights", found["initial_weights"])
    assert weights == {"actor": weights_of(network)}
    assert found["lost"] == {}


def test_a_training_draws_the_same_numbers_with_and_without_it(tmp_path):
    """Random operators, initialisers and host generators go on as if nobody had looked."""
    program = """
import random, sys
sys.path.insert(0, sys.argv[1])
from helpers.small_networks import Policy, tensor
import mindspore as ms
import numpy as np
from mindspore import ops
from mindrlhf_msprobe import Probe

ms.set_seed(5); random.seed(5)
probe = Probe.from_config({"msprobe": sys.argv[2] == "on", "actor_train_dump": True})
network = Policy()
probe.watch(actor=network)
with probe.phase("actor_update"):
    y = network(tensor(3) * ops.uniform((3,), ms.Tensor(0.0), ms.Tensor(1.0)))
drawn = ops.uniform((2,), ms.Tensor(0.0), ms.Tensor(1.0)), ms.common.initializer.initializer(
    "normal", [2]).init_data()
print(y.asnumpy().tobytes().hex(), *(d.asnumpy().tobytes().hex() for d in drawn),
      np.random.rand(), random.random())
"""
    results = [run_python(program, tmp_path, str(TESTS), switch) for switch in ("off", "on")]
    assert results[0].returncode == 0, results[0].stderr
    assert results[0].stdout == results[1].stdout
    assert (tmp_path / "msprobe_dump" / "run.json").is_file()


@pytest.mark.parametrize("first", ["rollout", "trained"])
def test_a_network_that_generates_is_not_called_the_roles(layer_probe, first):
    """Each stands under what it is: the role's own when it is entered, the other by its phase.

    One that generates later is no initial one: the role's own may have been trained before.
    """
    probe = layer_probe(actor_infer_dump=True)
    trained, rollout = Policy(), Scale(2.0)
    probe.watch(actor=trained)
    generates = {"phase": "actor_generate_sequences", "network": rollout, "model": rollout}
    if first == "rollout":
        entered(probe, **generates)
        expected = {"actor_generate_sequences": weights_of(rollout)}
        assert manifest(probe)["initial_weights"] == expected
    entered(probe, "actor_update", trained)
    if first == "trained":
        entered(probe, **generates)
        expected = {}
    assert manifest(probe)["initial_weights"] == {**expected, "actor": weights_of(trained)}
