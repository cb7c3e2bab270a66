"""Modules that are made while a training runs leave nothing behind, however the process ends."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from mindrlhf_msprobe.capture.framework.generated_modules import GENERATED, load

SOURCE = '''
def construct(self, x):
    """Return it twice."""
    return x / self
'''


def test_its_source_is_found_without_a_file(tmp_path, monkeypatch):
    """By `inspect`, which MindSpore asks, and in tracebacks; nothing is written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = load(SOURCE), load(SOURCE.replace("x / self", "x"))
    assert first.construct(2, 6) == 3
    linecache.checkcache()
    assert inspect.getsource(first.construct) == SOURCE.lstrip("\n")
    lines, at = inspect.getsourcelines(second.construct)
    assert (lines[0], at) == ("def construct(self, x):\n", second.construct.__code__.co_firstlineno)
    assert inspect.getmodule(first.construct) is first
    assert inspect.getmodule(second.construct) is second
    assert "return x\n" in inspect.getsource(second.construct)
    try:
        first.construct(0, 1)
    except ZeroDivisionError:
        assert "return x / self" in traceback.format_exc()
    assert not [*tmp_path.iterdir()]


TRAINING = """
import sys
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindrlhf_msprobe import Probe

class Loss(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        return (self.network(x) * 2).mean()

way = sys.argv[1]
ms.set_context(mode=ms.GRAPH_MODE if way == "graph" else ms.PYNATIVE_MODE)
network = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 1))
if way == "jit":
    network.construct = ms.jit(network.construct)
loss = Loss(network)
optimizer = nn.AdamWeightDecay(loss.trainable_params(), 0.1)
probe = Probe.from_config(
    {"msprobe": True, "dump_path": sys.argv[2], "actor_train_dump": True, "step_end": 1}
)
probe.watch(actor=loss, optimizers={"actor": optimizer})
step = nn.TrainOneStepCell(loss, optimizer)
for _ in range(2):
    with probe.phase("actor_update"):
        step(Tensor(np.ones((2, 4), np.float32)))
    probe.step()
probe.close()
"""


@pytest.mark.parametrize("way", ["pynative", "jit", "graph"])
def test_mindspore_misses_no_file(tmp_path, way):
    """It opens what a compiled function stands in, and logs an error where it cannot."""
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    call = [sys.executable, program, way, tmp_path / "run"]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "GLOG_v": "2"}
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=True)
    for words in ("realpath", "may not exist", "Failed to open", "generated"):
        assert words not in done.stdout + done.stderr
    assert [*(tmp_path / "run").rglob("records.jsonl")]


def test_who_opens_the_file_is_told_what_it_is():
    """It is the one that MindSpore quotes beside an error in a wrapper."""
    assert ast.get_docstring(ast.parse(Path(GENERATED).read_text()))
