"""No line of Python calls a cell in a compiled graph: where its construct stands is noted."""

from __future__ import annotations

import inspect

import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Assembled, tensor
from mindspore import Tensor, nn

from mindrlhf_msprobe.cli import main


class Doubled(nn.Cell):
    """A cell of this file."""

    def construct(self, x: Tensor) -> Tensor:
        """Double."""
        return x * 2


class Network(Assembled, doubled=Doubled, head=lambda: nn.Dense(3, 2)):
    """Holds one of this file's and one of MindSpore's."""

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        """Both."""
        return self.head(self.doubled(x))


def test_the_construct_of_each_cell_is_said(run_phase, capsys):
    """File and line of the `def`, not of a decorator, and none of the probes' own files."""
    network = Network()
    run = run_phase(network, lambda: network(tensor(2, 3)))
    entries = {entry.name: entry for entry in run.entries()}
    for cell in (Network, Doubled):
        name = next(n for n in entries if f".{cell.__name__}.forward" in n)
        lines, first = inspect.getsourcelines(cell.construct)
        line = first + next(i for i, text in enumerate(lines) if "def construct" in text)
        (frame,) = entries[name].stack[:1]
        assert frame.startswith(f"File {__file__}, line ")
        if cell is Doubled:  # the outermost is called by Python
            assert f"line {line}, in construct" in frame
            assert "def construct(self, x: Tensor)" in frame
    head = next(entry for name, entry in entries.items() if ".Dense.forward" in name)
    assert head.stack[0].endswith("def construct(self, x):")
    name = next(n for n in entries if ".Doubled." in n)
    assert main(["show", str(run.path), name, "--code"]) == 0
    assert "return x * 2" in capsys.readouterr().out
