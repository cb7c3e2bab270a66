"""Where the elements of a cell are at hand, the next recording is of the operators in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn

from mindrlhf_msprobe import Probe, compare_runs
from mindrlhf_msprobe.findings import Cause, Divergence


class Inner(nn.Cell):
    """Two operators, of which the second may be wrong."""

    def construct(self, x: Tensor) -> Tensor:
        return mint.exp(mint.abs(x))


class Net(nn.Cell):
    """A cell around it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner = nn.Tanh(), Inner()

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x))


def first_divergence(root: Path, mode: int = ms.PYNATIVE_MODE, **settings: Any) -> Divergence:
    section = {"msprobe": True, "actor_train_dump": True, "key_data_dump": False, **settings}
    right = mint.exp

    def wrong(x: Tensor) -> Tensor:
        return right(x) * Tensor([1.01], ms.float32)

    for name, kernel in (("a", right), ("b", wrong)):
        ms.set_context(mode=mode)
        try:
            with (
                mock.patch.object(mint, "exp", kernel),
                Probe.from_config({**section, "dump_path": str(root / name)}) as probe,
            ):
                network = Net()
                probe.watch(actor=network)
                with probe.phase("actor_update"):
                    network(Tensor(np.linspace(-1, 1, 8, dtype=np.float32)))
                probe.step()
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE)
    found = compare_runs(root / "a", root / "b").verdict.first_divergence
    assert found is not None
    return found


def test_it_names_the_operator_in_the_next_round(tmp_path):
    """`level: mix` in that cell, phase and step; recorded so, there is nothing more to record."""
    first = first_divergence(tmp_path / "1", task="tensor")
    assert first.cell == "inner"
    wanted = first.next_step
    assert wanted is not None
    assert (wanted["level"], wanted["task"]) == ("mix", "tensor")
    assert (wanted["include"], wanted["step_start"], wanted["step_end"]) == (["^inner$"], 0, 0)
    second = first_divergence(tmp_path / "2", **wanted)
    assert (second.entry, second.cause) == ("Mint.exp.0.forward", Cause.COMPUTATION)
    assert second.next_step is None


def test_a_graph_has_no_operators_to_record(tmp_path):
    assert first_divergence(tmp_path, ms.GRAPH_MODE, task="tensor").next_step is None
