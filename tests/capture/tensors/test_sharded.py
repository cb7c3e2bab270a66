"""Tensors that are spread over ranks: the part of this rank, and where it belongs."""

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from helpers.sharded import DTensor, Mesh, Partial, Placement, Replicate, Shard
from helpers.small_networks import tensor
from mindspore import Parameter, Tensor, nn

from mindrlhf_msprobe import Probe, compare_runs, open_run
from mindrlhf_msprobe.capture.recording import phases
from mindrlhf_msprobe.capture.settings.generation import cell_attributes
from mindrlhf_msprobe.capture.tensors.summary import mesh_of
from mindrlhf_msprobe.storage.leaves import Leaf, leaf_from_json

PHASE = "actor_update"
MESH = Mesh(3, dp=2, tp=2)


class Sharded(nn.Cell):
    """Takes and returns parts of tensors, as a cell of a network that fully_shard replaced."""

    def __init__(self, *placements: Placement) -> None:
        super().__init__()
        self.placements = (placements,)
        self.weight = Parameter(tensor(4, start=1.0), name="weight")

    def construct(self, x: DTensor) -> DTensor:
        return DTensor(x.to_local() * self.weight, MESH, *self.placements[0])


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = Sharded(Replicate(), Shard(1))
        self.second = Sharded(Shard(0), Partial())

    def construct(self, x: Tensor) -> Tensor:
        given = DTensor(x, MESH, Replicate(), Shard(1))
        return self.second(self.first(given)).to_local().sum()


def train(root: Path, on: bool, **settings: Any) -> list[bytes]:
    network = Network()
    section = {"msprobe": on, "dump_path": str(root), "actor_train_dump": True, "strict": True}
    with Probe.from_config({**section, **settings}) as probe:
        probe.watch(actor=network)
        gradient = ms.value_and_grad(network, None, network.trainable_params())
        with probe.phase(PHASE):
            loss, gradients = gradient(tensor(3, 4, start=0.5))
        probe.step()
    return [value.asnumpy().tobytes() for value in (loss, *gradients)]


@pytest.fixture(params=["host", "device"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tensors are summarised."""
    if request.param == "device":
        monkeypatch.setattr(phases, "device_target", lambda: "Ascend")
        if not phases.reduces_on_device(False):
            pytest.skip("this MindSpore does not reduce there")
    return request.param


@pytest.mark.parametrize("task", ["statistics", "tensor", "overflow_check"])
def test_the_part_of_this_rank_is_recorded(tmp_path, place, task):
    plain = train(tmp_path / "off", False)
    assert train(tmp_path / "on", True, task=task, fingerprint=False) == plain
    if task == "overflow_check":
        return
    run = open_run(tmp_path / "on")
    assert not run.lost
    found = {r.name: r.leaf for e in run.entries(PHASE, 0, 0) for r in e.records}
    x = tensor(3, 4, start=0.5).asnumpy()
    first = x * tensor(4, start=1.0).asnumpy()
    leaf = found["Cell.first.Sharded.forward.0.output.0"]
    assert leaf.shape == (3, 4)
    assert np.allclose((leaf.max, leaf.min), (first.max(), first.min()))
    assert leaf.shard is not None
    assert leaf.shard.shape == (3, 8)
    assert {name: (a.size, a.place, a.how) for name, a in leaf.shard.axes.items()} == {
        "dp": (2, 1, "copy"),
        "tp": (2, 1, 1),
    }
    assert found["Cell.first.Sharded.forward.0.input.0"].shard == leaf.shard
    summed = found["Cell.second.Sharded.forward.0.output.0"].shard
    assert summed is not None
    assert (summed.shape, summed.axes["tp"].how) == ((6, 4), "partial")
    gradients = [name for name in found if "parameters_grad" in name]
    assert len(gradients) == 2
    assert all(found[name].shard is None for name in gradients)


def test_what_a_part_holds_is_compared(tmp_path):
    train(tmp_path / "a", True, task="tensor")
    train(tmp_path / "b", True, task="tensor")
    assert compare_runs(tmp_path / "a", tmp_path / "b").verdict.status.value == "identical"


def saved(root: Path, value: DTensor) -> Leaf:
    """Save a part of a tensor as key data, and return what is read of it."""
    section = {"msprobe": True, "dump_path": str(root), "key_data_dump": True, "strict": True}
    with Probe.from_config(section) as probe:
        probe.save_data(advantages=value)
        probe.step()
    (datum,) = open_run(root).key_data("advantages")
    return datum.records[0].leaf


def test_parts_of_key_data(tmp_path, place):
    shard = saved(tmp_path, DTensor(tensor(2, 3), MESH, Shard(0), Partial("max"))).shard
    assert shard is not None
    assert (shard.shape, [a.how for a in shard.axes.values()]) == ((4, 3), [0, "partial max"])


def test_the_mesh_is_the_largest_over_which_parameters_are_spread() -> None:
    experts = DTensor(tensor(2), Mesh(3, ep=4), Shard(0))
    dense = DTensor(tensor(2, 2), Mesh(5, dp=4, tp=2), Replicate(), Shard(1))
    plain = Parameter(tensor(2), name="plain")
    assert mesh_of([plain]) == {}
    assert mesh_of([plain, experts, dense, experts]) == {
        "dp": {"size": 4, "place": 2},
        "tp": {"size": 2, "place": 1},
    }


def test_a_table_that_is_spread_is_an_attribute_by_the_part_that_is_here() -> None:
    network = Network()
    network.table = DTensor(Tensor([3, 1, 0], ms.int32), MESH, Replicate(), Shard(0))
    network.large = DTensor(tensor(3, 4), MESH, Replicate(), Shard(0))
    attributes = cell_attributes(network)
    assert attributes["table"] == [3, 1, 0]
    assert "large" not in attributes


class Silent(Mesh):
    """Of a version that says its place in another way."""

    def get_coordinate(self) -> list[int]:
        raise AttributeError


def test_a_part_that_does_not_say_where_it_belongs(tmp_path):
    leaf = saved(tmp_path, DTensor(tensor(2, 3), Silent(0, tp=2), Shard(0)))
    assert leaf.shape == (2, 3)
    assert leaf.shard is None


@pytest.mark.parametrize(
    "shard",
    [
        None,
        [],
        {"shape": [2], "axes": []},
        {"shape": [-1], "axes": {}},
        {"shape": [2], "axes": {"tp": {"size": True, "place": 0, "how": 0}}},
        {"shape": [2], "axes": {"tp": {"size": 2, "place": 0, "how": [0]}}},
        {"shape": [2], "axes": {"t" * 65: {"size": 2, "place": 0, "how": 0}}},
        {"shape": [2], "axes": {str(n): {"size": 2, "place": 0, "how": 0} for n in range(17)}},
    ],
)
def test_a_part_that_is_written_in_another_way_is_refused(shard):
    content = {**Leaf("mindspore.Tensor", "Float32", (2,)).to_json(), "shard": shard}
    with pytest.raises(ValueError, match="device mesh"):
        leaf_from_json(content)
