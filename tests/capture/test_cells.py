"""Cells have the same names wherever their network runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import pytest
from helpers.small_networks import MODES, Assembled, Block, Decoder, Scale, tensor
from helpers.wrappers import CheckpointWrapper, SwapWrapper
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.capture.cells import name_as_seen_from, named_cells
from mindrlhf_msprobe.capture.settings.environment import initial_weights


class Policy(Assembled, first=lambda: Scale(2.0), outer=lambda: Scale(3.0)):
    def construct(self, x):
        return self.outer(self.first(x))


class Loss(nn.Cell):
    """Holds a cell of the policy before the policy itself, and one of its own."""

    def __init__(self, policy):
        super().__init__(auto_prefix=False)
        self.shortcut = policy.first
        self.policy = policy
        self.weigh = Scale(0.5)

    def construct(self, x):
        return ops.sum(self.weigh(self.policy(x)))


def test_a_policy_keeps_its_names_inside_the_cells_that_train_it():
    policy = Policy()
    alone = dict(named_cells(policy))
    loss = Loss(policy)
    assert "shortcut" in named_cells(loss)
    name_as_seen_from(policy, loss)
    names = named_cells(loss)
    assert {name: names[name] for name in alone} == alone
    assert set(names) - set(alone) == {"outer~", "outer.weigh"}
    assert names["outer~"] is loss
    assert named_cells(policy) == alone
    assert set(initial_weights(loss, pytest.fail)) == {
        "first.factor",
        "outer.factor",
        "outer.weigh.factor",
    }


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_entries_have_these_names(run_phase, mode):
    policy = Policy()
    loss = Loss(policy)
    name_as_seen_from(policy, loss)
    run = run_phase(loss, lambda: loss(tensor(2, 3)), mode=mode)
    assert {entry.name for entry in run.entries()} == {
        "Cell.outer~.Loss.forward.0",
        "Cell.root.Policy.forward.0",
        "Cell.first.Scale.forward.0",
        "Cell.outer.Scale.forward.0",
        "Cell.outer.weigh.Scale.forward.0",
    }


def wrapped(network: Decoder) -> Decoder:
    """Wrap the blocks, one of them twice, and the head."""
    first, second = network.blocks
    network.blocks = nn.CellList([SwapWrapper(CheckpointWrapper(first)), CheckpointWrapper(second)])
    network.head = SwapWrapper(network.head)
    return network


def loss(network: nn.Cell) -> Tensor:
    tokens = Tensor([[1, 2, 3], [4, 5, 6]], ms.int32)
    return -(ops.log_softmax(network(tokens), -1) * tensor(2, 3, 11, start=-1.0)).mean()


def kinds(network: nn.Cell) -> dict[str, str]:
    return {name: type(cell).__name__ for name, cell in named_cells(network).items()}


@pytest.mark.parametrize("leaf", [nn.ReLU, Scale])
def test_what_has_no_cells_of_its_own(leaf):
    network = nn.SequentialCell(CheckpointWrapper(leaf()), Block(4))
    assert kinds(network)["0"] == leaf.__name__
    assert not any("_ckpt" in name for name in named_cells(network))


def test_what_keeps_its_own_part_of_the_names_is_a_cell_like_others() -> None:
    class Keeps(nn.Cell):
        """Asks for its names another way, and changes none."""

        def __init__(self, cell: nn.Cell) -> None:
            super().__init__()
            self.inside = cell

        def cells_and_names(self, *args, **kwargs):
            yield from super().cells_and_names(*args, **kwargs)

    assert kinds(Keeps(Block(4))).keys() == {
        "root",
        "inside",
        *(f"inside.{name}" for name in kinds(Block(4)) if name != "root"),
    }
    assert kinds(Keeps(nn.ReLU())) == {"root": "Keeps", "inside": "ReLU"}


def test_the_names_of_a_wrapped_network_inside_the_cells_that_train_it() -> None:
    class Trains(nn.Cell):
        def __init__(self, network: nn.Cell) -> None:
            super().__init__(auto_prefix=False)
            self.network = network

    policy = CheckpointWrapper(Block(4))
    around = Trains(policy)
    name_as_seen_from(policy, around)
    assert set(named_cells(around)) == {*named_cells(policy), "outer"}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_run_with_recomputing_wrappers_agrees_with_one_without(run_phase, task):
    def trains(network: nn.Cell) -> Callable[[], Any]:
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        gradient = ms.value_and_grad(lambda: loss(network), None, optimizer.parameters)
        return optimizer, lambda: optimizer(gradient()[1])

    runs, weights = [], []
    for network in (Decoder(), wrapped(Decoder())):
        optimizer, body = trains(network)
        given = {"optimizer": optimizer, "steps": 2, "strict": True, "task": task}
        runs.append(run_phase(network, body, **given))
        weights.append([p.asnumpy().tobytes() for p in network.get_parameters()])
    unprobed = wrapped(Decoder())
    _, body = trains(unprobed)
    body()
    body()
    assert weights[1] == [p.asnumpy().tobytes() for p in unprobed.get_parameters()]
    result = compare_runs(*(run.path for run in runs))
    assert result.verdict.status.value in ("identical", "within_tolerance"), result
    assert {finding.status.value for finding in result.findings} <= {
        "identical",
        "within_tolerance",
    }
