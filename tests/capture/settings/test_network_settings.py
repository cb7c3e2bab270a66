"""What networks and optimizers are set to: modes, attributes, learning rates, and when they change.

Recorded whatever is switched on, so that a first round of key data holds it.
"""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import read_json
from helpers.small_networks import hook_count, in_mode, tensor
from mindspore import Tensor, mint, nn

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.capture.settings import networks as network_settings
from mindrlhf_msprobe.capture.settings.generation import cell_attributes, optimizer_settings
from mindrlhf_msprobe.storage.layout import WITHHELD

MakeProbe = Callable[..., Probe]


class PolicyLoss(nn.Cell):
    """A loss with the usual constants around a policy with a dropout and a norm."""

    def __init__(self, beta: float = 0.1, epsilon: float = 0.2, rate: float = 0.25) -> None:
        super().__init__()
        self.beta = beta
        self.epsilon = Tensor(epsilon, ms.float32)
        self.policy = nn.SequentialCell(nn.Dense(2, 2), nn.Dropout(p=rate), nn.LayerNorm((2,)))

    def construct(self, x: Tensor) -> Tensor:
        """Return a number that every constant has a part in."""
        y = self.policy(x)
        return (y * y).mean() + self.beta * y.mean() + self.epsilon


class Plain(nn.Cell):
    """A cell of a trainer's own, without anything in it."""


def entered(probe: Probe, phase: str = "actor_update", **given: Any) -> Probe:
    """Open a phase in which nothing runs."""
    with probe.phase(phase, **given):
        return probe


def sections(probe: Probe) -> dict[str, Any]:
    content: dict[str, Any] = read_json(Path(probe.config.dump_path) / "run.json")
    return content


def cells_of(network: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        name: (group["class"], group["attributes"])
        for group in network["cells"]
        for name in group["cells"]
    }


@pytest.fixture
def key_data_probe(make_probe: MakeProbe) -> MakeProbe:
    """Return a function that makes a probe of a first round: key data alone."""

    def make(**settings: Any) -> Probe:
        return make_probe(**{"key_data_dump": True, **settings})

    return make


@pytest.fixture
def watching(key_data_probe: MakeProbe) -> MakeProbe:
    """Return a function that makes such a probe, which watches an actor."""

    def make(actor: nn.Cell, optimizer: nn.Cell | None = None, **settings: Any) -> Probe:
        probe = key_data_probe(**settings)
        probe.watch(actor=actor, optimizers=None if optimizer is None else {"actor": optimizer})
        return probe

    return make


def test_a_first_round_of_key_data_holds_them(watching: MakeProbe) -> None:
    """Attributes of every cell, the mode of the phase, the optimizer nobody named; no hook."""
    network = PolicyLoss()
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 3e-4, weight_decay=0.01)
    probe = watching(network)
    network.set_train()
    network.policy[1].set_train(False)
    with probe.phase("actor_update"):
        assert hook_count(network) == 0
        network(tensor(2, 2))
    probe.step()
    found = sections(probe)
    (actor,) = found["networks"]
    assert (actor["role"], actor["class"]) == ("actor", "PolicyLoss")
    assert actor["phases"] == ["actor_update"]
    cells = cells_of(actor)
    assert cells["root"] == ("PolicyLoss", {"beta": 0.1, "epsilon": 0.2})
    assert cells["policy.1"][1]["p"] == 0.25
    of_norm = {"begin_norm_axis": -1, "begin_params_axis": -1, "epsilon": 1e-07}
    assert cells["policy.2"] == ("LayerNorm", {"normalized_shape": [2], **of_norm})
    assert found["modes"] == {
        "actor_update": [{"step": 0, "training": True, "others": {"policy.1": False}}]
    }
    settings = found["optimizers"]["actor"]
    assert settings["class"] == "AdamWeightDecay"
    wanted = {"learning_rate": 3e-4, "weight_decay": 0.01, "beta1": 0.9, "eps": 1e-6}
    assert wanted.items() <= settings["settings"].items()
    assert found["lost"] == {}
    assert optimizer is not None


def test_they_are_there_without_a_phase(watching: MakeProbe) -> None:
    """A trainer that only watches and saves: the mode when it was watched, and the optimizer."""
    network = PolicyLoss()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    probe = watching(network.set_train())
    probe.step()
    found = sections(probe)
    assert found["networks"][0]["training"] is True
    assert found["optimizers"]["actor"]["settings"]["momentum"] == 0.9
    assert optimizer is not None


def test_what_changes_is_noted_with_its_step(watching: MakeProbe) -> None:
    """A beta, a learning rate, a mode within a step; what stays is not noted again."""
    network = PolicyLoss()
    optimizer = nn.SGD(network.trainable_params(), 0.5)
    probe = watching(network, optimizer)
    for step in range(4):
        if step == 2:
            network.beta = 0.3
            network.policy[1].keep_prob = network.policy[1].keep_prob + 0.0  # the same value
            optimizer.learning_rate.set_data(Tensor(0.25, ms.float32))
        for micro_step in range(2):
            network.set_train(micro_step == 1 and step == 3)
            entered(probe)
        probe.step()
    found = sections(probe)
    assert found["networks"][0]["changes"] == [
        {"step": 2, "phase": "actor_update", "cell": "root", "name": "beta", "value": 0.3}
    ]
    assert found["optimizers"]["actor"]["changes"] == [
        {"step": 2, "name": "learning_rate", "value": 0.25}
    ]
    assert found["modes"]["actor_update"] == [
        {"step": 0, "training": False},
        {"step": 3, "training": True},
    ]


def test_an_attribute_that_becomes_a_tensor_hides_no_change(watching: MakeProbe) -> None:
    """None when the network first runs, later a tensor of many elements: a key-value cache, say."""
    network = PolicyLoss()
    network.cache = None
    probe = watching(network, strict=True)
    for step in range(4):
        network.beta = 0.3 if step == 3 else 0.1
        with probe.phase("actor_update"):
            network.cache = tensor(2, 3 + step)
        probe.step()
    found = sections(probe)
    changes = [(c["step"], c["name"], c["value"]) for c in found["networks"][0]["changes"]]
    assert changes == [(1, "cache", None), (3, "beta", 0.3)]
    assert found["lost"] == {}


def test_a_learning_rate_is_noted_in_the_step_it_was_set_in(watching: MakeProbe) -> None:
    """Set after another phase of the role, or between two micro-steps: not one step later."""
    network = PolicyLoss()
    optimizer = nn.SGD(network.trainable_params(), 0.5)
    probe = watching(network, optimizer)
    rates = {(1, 0): 0.25, (2, 0): 0.125, (2, 1): 0.0625}
    for step in range(4):
        entered(probe, "actor_compute_log_prob")
        for micro_step in range(2):
            if (step, micro_step) in rates:
                rate = Tensor(rates[step, micro_step], ms.float32)
                optimizer.learning_rate.set_data(rate)
            entered(probe)
        probe.step()
    assert sections(probe)["optimizers"]["actor"]["changes"] == [
        {"step": step, "name": "learning_rate", "value": value}
        for (step, _), value in rates.items()
    ]


def test_weights_of_one_element_are_no_settings_of_the_optimizer(key_data_probe: MakeProbe) -> None:
    """Neither the parameter that is trained nor the moments that are kept for it."""
    network = nn.Dense(3, 1)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    adam = nn.AdamWeightDecay(network.trainable_params(), 0.1)
    probe = key_data_probe()
    probe.watch(actor=network, optimizers={"actor": optimizer, "critic": adam})
    probe.step()
    for found in sections(probe)["optimizers"].values():
        assert found["settings"]["learning_rate"] == 0.1
        assert not [name for name in found["settings"] if "bias" in name]


def test_a_counter_does_not_fill_the_file(watching: MakeProbe) -> None:
    """What is another value in every step is noted a few times, and what else changes still is."""
    network = PolicyLoss()
    network.calls = 0
    probe = watching(network)
    for step in range(30):
        network.calls += 1
        network.beta = 0.1 if step < 25 else 0.2
        entered(probe).step()
    changes = sections(probe)["networks"][0]["changes"]
    assert [c["step"] for c in changes if c["name"] == "calls"] == list(range(1, 9))
    assert [c["step"] for c in changes if c["name"] == "beta"] == [25]


def test_off_means_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that is switched off looks at nothing."""

    def refuse(*_: object) -> None:
        raise AssertionError("it was looked at")

    monkeypatch.setattr(network_settings, "NetworkSettings", refuse)
    network = PolicyLoss()
    probe = Probe.from_config({"msprobe": False, "dump_path": str(tmp_path / "run")})
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        network(tensor(2, 2))
    probe.step()
    probe.close()
    assert not (tmp_path / "run").exists()


def test_a_network_is_not_kept_alive(key_data_probe: MakeProbe) -> None:
    """A network given to one phase alone can be freed afterwards."""
    probe = key_data_probe()
    network = PolicyLoss()
    gone = weakref.ref(network.policy[0])
    entered(probe, model=network)
    del network
    gc.collect()
    assert gone() is None
    entered(probe, model=PolicyLoss(beta=0.7)).step()
    betas = [cells_of(n)["root"][1]["beta"] for n in sections(probe)["networks"]]
    assert betas == [0.1, 0.7]


@pytest.mark.parametrize("given", [True, False])
def test_optimizers_inside_a_cell_that_trains(watching: MakeProbe, given: bool) -> None:
    """Found in the watched cell under its role, whether it was named too or not."""
    loss = PolicyLoss()
    optimizer = nn.Adam(loss.trainable_params(), nn.CosineDecayLR(0.0, 1e-3, 10), loss_scale=8.0)
    train = nn.TrainOneStepWithLossScaleCell(loss, optimizer, Tensor(1024.0, ms.float32))
    probe = watching(train, optimizer if given else None)
    entered(probe).step()
    found = sections(probe)
    assert list(found["optimizers"]) == ["actor"]
    settings = found["optimizers"]["actor"]["settings"]
    wanted = {
        "learning_rate": "CosineDecayLR",
        "learning_rate.max_lr": 1e-3,
        "learning_rate.decay_steps": 10,
        "loss_scale": 8.0,
        "beta2": 0.999,
    }
    assert {name: settings.get(name) for name in wanted} == wanted
    cells = cells_of(found["networks"][0])
    assert cells["root"][1]["scale_sense"] == 1024
    assert not any(name.startswith("optimizer") for name in cells)


def test_groups_of_parameters_and_lists_of_rates() -> None:
    """One value for each group, one if they are all equal; a list of rates by its ends."""
    network = nn.Dense(2, 2)
    weight, bias = network.trainable_params()
    groups = [{"params": [weight], "lr": 0.5, "weight_decay": 0.25}, {"params": [bias]}]
    found = optimizer_settings(nn.SGD(groups, 0.125))
    assert (found["learning_rate"], found["weight_decay"]) == ([0.5, 0.125], [0.25, 0])
    found = optimizer_settings(nn.SGD([weight, bias], [0.5, 0.25, 0.125]))
    assert found["learning_rate.learning_rate"].startswith("3 rates from 0.5 to 0.125, xxh3_128:")
    found = optimizer_settings(mint.optim.AdamW([weight, bias], lr=0.01, weight_decay=0.1))
    assert (found["lr"], found["betas"], found["weight_decay"]) == (0.01, [0.9, 0.999], 0.1)


def test_only_what_can_be_a_setting_is_taken() -> None:
    """Scalars, dtypes and short tuples; no secret, no structure, nothing MindSpore put there."""
    plain = nn.Cell()
    plain.current_phase = "train.1763784000"  # MindSpore's, of a cell that is compiled
    assert cell_attributes(plain) == {}
    cell = Plain()
    cell.rate, cell.name_, cell.on, cell.none = 0.5, "gelu", True, None
    cell.dtype, cell.shape = ms.float16, (2, 3)
    cell.numpy, cell._private = np.float32(0.1), 3
    taken = cell_attributes(cell)
    assert taken == {
        "rate": 0.5,
        "name_": "gelu",
        "on": True,
        "none": None,
        "dtype": "Float16",
        "shape": [2, 3],
        "numpy": 0.1,
        "_private": 3,
    }
    cell.api_key, cell.hub_token = "plain", "plain"
    cell.url = "https://bob:hunter2@example.com"
    cell.config, cell.long, cell.table = {"a": 1}, "x" * 999, list(range(99))
    cell.weights, cell.huge = tensor(2, 2), 10**400
    assert cell_attributes(cell) == {**taken, "url": WITHHELD}
    cell.infinite = float("inf")
    assert cell_attributes(cell)["infinite"] == "Infinity"
    cell.to_float(ms.float16)
    assert cell_attributes(cell)["to_float"] == "fp16"


def test_tables_that_are_no_parameters_are_taken() -> None:
    """A short one by its elements, others by their fingerprint; floats, and what is large, not."""
    table = np.arange(48, dtype=np.int32).reshape(6, 8)
    found = []
    for change in (0, 1):
        cell = Plain()
        cell.short = Tensor([3, 1 + change, 2])
        cell.mask = Tensor([[True, False], [bool(change), True]])
        cell.table = Tensor(np.where(table == 47, table + change, table))
        cell.frequencies = Tensor(np.ones(4, np.float32))
        cell.none = Tensor(np.ones((0, 2), np.int32))
        cell.large = Tensor(np.zeros((1025, 1024), np.int8))
        if hasattr(cell, "register_buffer"):
            cell.register_buffer("order", Tensor([0, 2, 1 + change]))
        found.append(cell_attributes(cell))
    a, b = found
    assert (a["short"], b["short"]) == ([3, 1, 2], [3, 2, 2])
    assert a["table"].startswith("int32 [6, 8], xxh3_128:")
    assert a["table"] != b["table"]
    assert a["mask"].startswith("bool [2, 2], xxh3_128:")
    assert a["mask"] != b["mask"]
    assert a["large"] == b["large"] == "int8 [1025, 1024], elements not read"
    assert "frequencies" not in a
    if hasattr(nn.Cell, "register_buffer"):
        assert (a["order"], b["order"]) == ([0, 2, 1], [0, 2, 2])


def test_a_further_attempt_notes_what_is_other(make_probe: MakeProbe) -> None:
    """The first attempt's settings stay; a further one has its own where they differ."""
    for beta, existing in ((0.1, "refuse"), (0.1, "resume"), (0.4, "resume")):
        probe = make_probe(key_data_dump=True, existing=existing)
        network = PolicyLoss(beta=beta)
        probe.watch(actor=network)
        entered(probe)
        probe.save_data(loss=1.0)
        probe.step()
        probe.close()
    found = sections(probe)
    first, second, third = found["attempts"]
    assert cells_of(found["networks"][0])["root"][1]["beta"] == 0.1
    assert "networks" not in {**first, **second}
    assert cells_of(third["networks"][0])["root"][1]["beta"] == 0.4


def test_it_changes_no_bit_in_graph_mode_and_is_there(watching: MakeProbe) -> None:
    """Compiled networks are read like others, before and after they were compiled."""
    with in_mode(ms.GRAPH_MODE):
        network = PolicyLoss(rate=0.0)
        expected = network(tensor(2, 2)).asnumpy()
        probe = watching(network)
        with probe.phase("actor_update"):
            result = network(tensor(2, 2)).asnumpy()
        probe.step()
    assert result.tobytes() == expected.tobytes()
    assert cells_of(sections(probe)["networks"][0])["root"][1]["beta"] == 0.1


def test_a_first_round_knows_the_seeds_that_the_trainer_set(key_data_probe: MakeProbe) -> None:
    """What the process runs with is looked at in the first phase, whatever is switched on."""
    probe = key_data_probe()
    network = PolicyLoss()
    probe.watch(actor=network)
    before = ms.get_seed()
    try:
        ms.set_seed(977)
        entered(probe, "actor_generate_sequences")
    finally:
        ms.set_seed(before) if before is not None else None
    probe.step()
    found = sections(probe)
    assert (found["taken"], found["taken_in"]) == ("first_phase", "actor_generate_sequences")
    assert found["seeds"]["mindspore"] == 977
    assert "initial_weights" not in found


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_parameters_that_are_not_trained_are_noted_where_others_are(tmp_path, frozen):
    """By the names of the records; of a network that is not trained at all, none."""
    network = nn.SequentialCell(nn.Dense(3, 3, has_bias=False), nn.Dense(3, 3, has_bias=False))
    for cell in [*network][:frozen]:
        cell.weight.requires_grad = False
    with Probe.from_config({"msprobe": True, "dump_path": str(tmp_path / "run")}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            network(Tensor(np.ones((2, 3), np.float32)))
        probe.step()
    (noted,) = read_json(tmp_path / "run" / "run.json")["networks"]
    assert noted.get("untrained") == (["0.weight"] if frozen == 1 else None)
