"""Recompute: gradients belong to the second run of a cell, whose inputs random numbers change."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.replay.offline.replaying import replay_operators
from mindrlhf_msprobe.replay.offline.script.recorded import Probed


class Block(nn.Cell):
    """An operator behind dropout."""

    def __init__(self, drops: float) -> None:
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.dropout = nn.Dropout(p=drops)
        self.second = nn.Dense(8, 8)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(mint.nn.functional.silu(self.dropout(self.first(x))))


class Network(nn.Cell):
    """A block that is recomputed, and one layer."""

    def __init__(self, drops: float) -> None:
        super().__init__()
        self.block = Block(drops)
        self.block.recompute()
        self.last = nn.Dense(8, 1)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.block(x))


def recorded(root: Path, drops: float) -> Path:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    network = Network(drops).set_train()
    network(Tensor(np.ones((4, 8), np.float32)))  # so that the first mask is not drawn twice
    settings = {"msprobe": True, "actor_train_dump": True, "level": "mix", "task": "tensor"}
    with Probe.from_config({**settings, "dump_path": str(root)}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            inputs = Tensor(np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32))
            ms.value_and_grad(lambda x: network(x).sum(), None, network.trainable_params())(inputs)
        probe.step()
    return root


@pytest.mark.parametrize("drops", [0.5, 0.0])
def test_no_operator_is_accused_of_the_gradient_of_another_run(tmp_path, drops):
    """Behind dropout forward is judged alone, and that is said; without it both are."""
    run = recorded(tmp_path / "run", drops)
    found = replay_operators(Probed((str(run),), None, str(tmp_path / "out"))).operators
    assert "wrong" not in {one.verdict for one in found}, found
    silu = next(one for one in found if one.entry.startswith("MintFunctional.silu"))
    assert silu.verdict == "ordinary"
    assert any("recompute" in note for note in silu.notes) == bool(drops)
    assert open_run(run).phases  # and the record is read as any other
