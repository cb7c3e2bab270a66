"""PyTorch's tensors in SingleSave: saved as they are, compared with MindSpore's and numpy's."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.programs import read_json, run_python

from mindrlhf_msprobe import SingleSave, compare_runs, open_run
from mindrlhf_msprobe.findings import Outcome

pytestmark = pytest.mark.usefixtures("older_tools")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def read(run: Path) -> dict[str, tuple[str | None, np.ndarray]]:
    return {d.key: (d.records[0].leaf.dtype, np.asarray(d.value)) for d in open_run(run).key_data()}


def test_each_dtype_is_kept(torch, tmp_path):
    """The dtype is the tensor's own; what numpy has no name for is stored wider, exactly."""
    base = torch.arange(6).reshape(2, 3)
    dtypes = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"]
    dtypes += ["uint8", "bool", "complex64", "complex128"]
    dtypes += [name for name in ("float8_e4m3fn", "uint16") if hasattr(torch, name)]
    SingleSave(str(tmp_path / "run"), fmk="pytorch")
    SingleSave.save({name: base.to(getattr(torch, name)) for name in dtypes})
    SingleSave.step()
    found = read(tmp_path / "run")
    for name in dtypes:
        dtype, values = found[name]
        assert dtype.lower() == name
        np.testing.assert_array_equal(values, base.to(torch.bool) if name == "bool" else base)
    assert found["bfloat16"][0] == "BFloat16"
    assert found["uint8"][0] == "UInt8"


def test_what_a_trainer_hands_over(torch, tmp_path):
    """With a gradient, not contiguous, conjugated, sparse, empty, 0-d, a parameter, nested."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    loss = (weight * 2).sum()
    given = {
        "weight": weight,
        "loss": loss,
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "sparse": torch.eye(2).to_sparse(),
        "empty": torch.empty(0, 4),
        "nested": [weight[0], {"mask": torch.tensor([True, False])}, None, "text"],
    }
    SingleSave(tmp_path / "run")
    SingleSave.save(given)
    SingleSave.step()
    loss.backward()
    assert weight.grad.sum() == 12  # the graph of gradients was left alone
    found = {d.key: d.value for d in open_run(tmp_path / "run").key_data()}
    np.testing.assert_array_equal(found["turned"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(found["conjugated"], [1 - 2j])
    np.testing.assert_array_equal(found["sparse"], np.eye(2))
    assert (found["loss"], found["empty"].shape) == (12.0, (0, 4))
    np.testing.assert_array_equal(found["nested"][1]["mask"], [True, False])
    assert found["nested"][2:] == [None, "text"]


def test_one_that_cannot_be_had_costs_nothing_else(torch, tmp_path):
    """A meta tensor has no elements: counted and said, the others of the call are saved."""
    SingleSave(tmp_path / "run")
    SingleSave.save({"meta": torch.empty(2, device="meta"), "good": torch.ones(2)})
    SingleSave.step()
    assert read_json(tmp_path / "run/run.json")["lost"]
    np.testing.assert_array_equal(read(tmp_path / "run")["good"][1], [1, 1])


def test_frameworks_are_compared(torch, tmp_path):
    """A run of PyTorch's tensors and one of MindSpore's, of the same elements, are identical."""
    mindspore = pytest.importorskip("mindspore")
    values = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    for name, tensor in (("a", torch.tensor(values)), ("b", mindspore.Tensor(values))):
        SingleSave(tmp_path / name)
        SingleSave.save({"x": tensor, "low": tensor.bfloat16()})
        SingleSave.step()
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert (result.verdict.status, result.verdict.compared) == (Outcome.IDENTICAL, 2)


def test_it_is_changed_in_place_afterwards(torch, tmp_path):
    """What was saved is what the tensor held then."""
    SingleSave(tmp_path / "run")
    tensor = torch.zeros(100_000)
    for _ in range(5):
        SingleSave.save({"x": tensor})
        tensor += 1
        SingleSave.step()
    data = open_run(tmp_path / "run").key_data("x")
    assert [np.unique(d.value).tolist() for d in data] == [[float(n)] for n in range(5)]


def test_pytorch_is_not_imported(tmp_path):
    """Not by SingleSave(fmk="pytorch"); what only looks like a tensor of PyTorch is none."""
    program = """
        import sys, types, numpy
        from mindrlhf_msprobe import SingleSave
        SingleSave("run", fmk="pytorch")
        SingleSave.save({"x": numpy.ones(2)})
        assert "torch" not in sys.modules
        sys.modules["torch"] = types.ModuleType("torch")
        SingleSave.save({"x": numpy.ones(2)})
        SingleSave.step()
    """
    done = run_python(dedent(program), tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(open_run(tmp_path / "run").key_data("x")) == 2


class StandIn:
    """What is needed of PyTorch's tensors, as its oldest versions have it."""

    def __init__(self, array: np.ndarray, dtype: str) -> None:
        self.array, self.dtype = array, f"torch.{dtype}"

    def detach(self) -> StandIn:
        return self

    def cpu(self) -> StandIn:
        return StandIn(self.array.copy(), self.dtype.removeprefix("torch."))

    def numpy(self) -> np.ndarray:
        return self.array


def test_where_pytorch_is_not_installed(tmp_path, monkeypatch):
    """A stand-in is saved as PyTorch's tensors are: as itself, and in structures."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=StandIn))
    tensor = StandIn(np.arange(6.0).reshape(2, 3).T, "float64")
    SingleSave(tmp_path / "run", fmk="pytorch")
    SingleSave.save({"x": tensor, "nested": {"mask": StandIn(np.ones(2, np.uint8), "uint8")}})
    SingleSave.step()
    found = read(tmp_path / "run")
    assert found["x"][0] == "Float64"
    np.testing.assert_array_equal(found["x"][1], tensor.array)
    (record,) = open_run(tmp_path / "run").key_data("nested")[0].records
    assert (record.path, record.leaf.dtype, record.leaf.type) == ("mask", "UInt8", "torch.Tensor")


WITHOUT_MINDSPORE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mindspore":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import importlib.util
importlib.util.find_spec = lambda name, package=None: None
import torch
from mindrlhf_msprobe import SingleComparator, SingleSave, seed_all
drawn = []
for run in ("a", "b"):
    seed_all(seed=7, mode=True)
    SingleSave(run)
    SingleSave.save({"x": torch.rand(3)})
    SingleSave.step()
SingleComparator.compare("a", "b", "out")
"""


def test_without_mindspore(torch, tmp_path):
    """A script of PyTorch alone: seeds, saves and comparing work, and give the same twice."""
    done = run_python(WITHOUT_MINDSPORE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "out/verdict.json")["status"] == "identical"
