"""msprobe's grad_probe and ours, of one training: the same signs, shares and similarities."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reference_tool import interpreter

from mindrlhf_msprobe import GradComparator
from mindrlhf_msprobe.storage.reading.gradients import open_gradients

pytestmark = pytest.mark.slow

STEPS = 3
TRAINING = """
import importlib, json, sys
import mindspore as ms, numpy as np
from mindspore import Tensor, nn
tool, dump_path, flipped_from = sys.argv[1:]
ms.set_seed(1)
rng = np.random.default_rng(0)
settings = {"grad_level": "L2", "param_list": [], "bounds": [-0.5, 0, 0.01]}
config = {"task": "grad_probe", "dump_path": dump_path, "rank": [], "step": [], "level": "L1"}
with open(dump_path + ".json", "w") as file:
    json.dump({**config, "grad_probe": settings}, file)
network = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
optimizer = nn.Adam(network.trainable_params(), 1e-2)
debugger = importlib.import_module(tool).PrecisionDebugger(dump_path + ".json")
debugger.monitor(optimizer)
def loss(x, y):
    return ((network(x) - y) ** 2).mean()
differentiate = ms.value_and_grad(loss, None, optimizer.parameters)
for step in range(3):
    x, y = (Tensor(rng.normal(size=(4, n)), ms.float32) for n in (8, 4))
    gradients = differentiate(x, y)[1]
    sign = -1.0 if step >= int(flipped_from) else 1.0
    optimizer(tuple(g * sign if n == 2 else g for n, g in enumerate(gradients)))
debugger.stop()
"""


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """Return where each tool recorded the training: (msprobe's, with a fault; ours)."""
    root = tmp_path_factory.mktemp("probed")
    python = interpreter("MSPROBE_REFERENCE_8_PYTHON")
    plans = {
        "theirs": (python, "msprobe.mindspore", "9"),
        "faulty": (python, "msprobe.mindspore", "1"),
    }
    plans["ours"] = sys.executable, "mindrlhf_msprobe", "9"
    for name, (program, tool, flipped_from) in plans.items():
        command = [program, "-c", TRAINING, tool, str(root / name), flipped_from]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, done.stderr
    return python, root


def test_signs_shares_and_extremes_are_msprobes(probed):
    """Bit for bit; the norm up to rounding."""
    _, root = probed
    ours, theirs = open_gradients(root / "ours"), open_gradients(root / "theirs")
    assert [step for step, _ in ours.places()] == [step for step, _ in theirs.places()] == [0, 1, 2]
    for (step, rank), (_, their_rank) in zip(ours.places(), theirs.places()):
        summary = root / "theirs" / f"rank{their_rank}" / f"grad_summary_{step}.csv"
        with open(summary, encoding="utf-8-sig", newline="") as file:
            rows = {row["param_name"]: row for row in csv.DictReader(file)}
        found = {gradient.parameter: gradient for gradient in ours.at(step, rank)}
        assert list(found) == [g.parameter for g in theirs.at(step, their_rank)] == list(rows)
        for other in theirs.at(step, their_rank):
            gradient, row = found[other.parameter], rows[other.parameter]
            np.testing.assert_array_equal(gradient.packed(), other.packed())
            leaf = gradient.record.leaf
            assert leaf.shares is not None
            assert list(leaf.shares) == [float(value) for value in [*row.values()][1:6]]
            assert (leaf.max, leaf.min) == (float(row["max"]), float(row["min"]))
            assert leaf.norm == pytest.approx(float(row["norm"]), rel=1e-5)


def test_similarities_are_msprobes(probed, cli):
    """GradComparator's table, of its directories; and ours beside its own."""
    python, root = probed
    compare = "from msprobe.core.grad_probe.grad_compare import GradComparator as G; import sys; "
    compare += "G.compare_distributed(*sys.argv[1:])"
    paths = [str(root / name) for name in ("theirs", "faulty", "table")]
    subprocess.run([python, "-c", compare, *paths], cwd=root, check=True, capture_output=True)
    GradComparator.compare_distributed(*paths[:2], str(root / "own"))
    (theirs,), (own,) = (
        [*Path(root / name).rglob("similarities.csv")] for name in ("table", "own")
    )
    assert own.read_text().split() == theirs.read_text(encoding="utf-8-sig").split()
    assert (
        "step 1, rank 0, dump, update 0, 2.weight"
        in cli("trend", "--gradients", root / "ours", root / "faulty", code=1).out
    )
    cli("trend", "--gradients", root / "ours", root / "theirs")
