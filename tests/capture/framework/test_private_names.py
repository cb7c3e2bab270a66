"""MindSpore's private names: each in one place, and nothing breaks where one is not there."""

from __future__ import annotations

import functools
import json

import mindspore as ms
import numpy as np
import pytest
from helpers.programs import run_python
from helpers.small_networks import Cubed, tensor

from mindrlhf_msprobe.capture.framework import private
from mindrlhf_msprobe.capture.framework.hooks import CellHooks

pytestmark = pytest.mark.slow

#: What a version does not have; nothing of it is missed.
_OF_2_10 = {"mindspore.common.recompute._RecomputeHandle.recompute"}
ABSENT = {"2.7": _OF_2_10, "2.8": _OF_2_10, "2.9": _OF_2_10, "2.10": set()}


def test_this_version_has_every_name_that_is_used():
    """What a new version lacks is seen here first."""
    version = ".".join(ms.__version__.split(".")[:2])
    absent = {f"{name.where}.{name.name}" for name in private.NAMES if not name.found}
    assert absent == ABSENT.get(version, set())
    assert private.missing() == {}


@pytest.mark.parametrize("own", [False, True], ids=["the class's", "its own"])
@pytest.mark.parametrize("first_closes_first", [False, True])
def test_what_stood_in_a_cell_comes_back(own, first_closes_first):
    """Two who watch a cell with its own bprop, in any order, leave it as it was."""
    cell = Cubed()
    if own:
        vars(cell)["_run_construct"] = lambda *args: type(cell)._run_construct(cell, *args)
    cell(tensor(2))  # makes what a cell makes when it first runs
    attributes = dict(vars(cell))
    seen = []
    hooks = [
        CellHooks(lambda *_, n=n: seen.append(n), lambda *_, n=n: seen.append(-n)) for n in (1, 2)
    ]
    for one in hooks:
        one.add(cell)
    cell(tensor(2))
    assert seen == [1, 2, -2, -1]
    for one in hooks if first_closes_first else reversed(hooks):
        one.remove()
        cell(tensor(2))
    assert len(seen) == 6  # the one that was still there
    now = dict(vars(cell))
    changed = {n for n in {*attributes, *now} if attributes.get(n) is not now.get(n)}
    assert not {n for n in changed if "hook" in n or n == "_run_construct" or "reduce" in n}


HIDDEN = """
import importlib, sys
import mindspore
real, hidden = importlib.import_module, sys.argv[1]

class Without:
    def __init__(self, module):
        self.__dict__["module"] = module
    def __getattr__(self, name):
        if name == hidden:
            raise AttributeError(name)
        return getattr(self.module, name)
    def __setattr__(self, name, value):
        setattr(self.module, name, value)

importlib.import_module = lambda name, *rest: (
    Without(real(name, *rest)) if name.startswith("mindspore.") else real(name, *rest)
)
from mindrlhf_msprobe.capture.framework import private
importlib.import_module = real

import json
import numpy as np
from mindspore import Tensor, nn
from mindrlhf_msprobe import Probe, open_run

mindspore.set_context(mode=int(sys.argv[2]))
network = nn.SequentialCell(
    *(nn.Dense(2, 2, weight_init="ones", has_bias=False) for _ in range(2))
)
optimizer = nn.SGD(network.trainable_params(), 0.1)
step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer)
section = {"msprobe": True, "dump_path": "run", "actor_train_dump": True, "step_end": 0}
probe = Probe.from_config(section)
probe.watch(actor=network, optimizers={"actor": optimizer})
x = Tensor(np.ones((2, 2), np.float32))
with probe.phase("actor_update"):
    loss = step(x, x * 2)
probe.step()
probe.close()
run = open_run("run")
print(json.dumps({
    "loss": float(loss.asnumpy()),
    "entries": sorted(entry.name for entry in run.entries()),
    "lost": run.manifests[0].get("lost"),
    "missing": sorted(private.missing()),
    "coverage": sorted(run.manifests[0]["coverage"].get("mindspore", {})),
}))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that trains without a name and returns what was recorded, once each."""

    @functools.cache
    def train(hidden, mode):
        done = run_python(HIDDEN, tmp_path_factory.mktemp("without"), hidden, str(mode))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return train


@pytest.mark.parametrize(
    ("hidden", "mode"),
    [
        ("MixedPrecisionType", ms.PYNATIVE_MODE),
        ("_RecomputeCell", ms.PYNATIVE_MODE),
        ("_CellGraphExecutor", ms.GRAPH_MODE),
        ("_Vmap", ms.GRAPH_MODE),
    ],
)
def test_without_a_name_the_rest_is_recorded(hidden, mode, trained):
    """The training runs on, nothing counts as a fault, and what is lost is said."""
    without, whole = trained(hidden, mode), trained("no such name", mode)
    assert any(hidden in name for name in without["missing"])
    assert whole["missing"] == whole["coverage"] == []
    assert without["coverage"] == without["missing"]
    assert without["loss"] == whole["loss"]
    assert without["entries"] == whole["entries"]
    assert not without["lost"]
    assert np.isfinite(whole["loss"])
