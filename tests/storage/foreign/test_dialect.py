"""A run knows which tool wrote it, whatever is left of it."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers.msadapter import DUMPS, of_msadapter
from helpers.runs import MSPROBE_DATA, Recording

from mindrlhf_msprobe import RunError, check_run, compare_runs, open_run
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.pairing.planner import StepData, plan_step
from mindrlhf_msprobe.storage.foreign.dialect import MSPROBE, OWN, Dialect
from mindrlhf_msprobe.storage.layout import JOURNAL_FILE
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry, Record

PHASE = "actor_update"
TENSOR = Leaf("mindspore.Tensor", "Float32", (2,), 1.0, 1.0, 1.0, math.sqrt(2), 0, 0, "own:1")
NONE = Leaf("NoneType")
OTHER = Dialect(
    numbers_single=True,
    no_root=message("text", text="roots"),
    no_absent_gradient=message("text", text="gradients"),
    no_other_keys=message("text", text="keys"),
)


def entry(name, seq, leaf):
    records = (Record(f"{name}.output.0", "output", "0", leaf),)
    return Entry(name, PHASE, 0, 0, seq, seq + 1, records=records)


def saved(key, path=""):
    record = Record(f"{key}.{path}" if path else key, "data", path, TENSOR)
    return KeyDatum(key, 0, 0, 0, 9, (record,))


def gaps(dialect, keys):
    """Pair a run of ours with one of a dialect, which lacks what a dialect may lack."""
    shared = entry("Cell.a.Dense.forward.0", 2, TENSOR)
    back = entry("Cell.a.Dense.backward.0", 4, TENSOR)
    none = Record(f"{back.name}.output.1", "output", "1", NONE)
    whole = Entry(back.name, PHASE, 0, 0, 4, 5, records=(*back.records, none))
    root = entry("Cell.root.Net.forward.0", 0, TENSOR)
    ours = StepData([root, shared, whole], [saved("loss"), saved("ratio")])
    other = StepData([shared, back], [saved("loss", "0")], dialect=dialect, keys_of_run=keys)
    pairs = plan_step(0, 0, ours, other).pairs
    return {pair.record.name: pair.gap for pair in pairs if pair.a is None or pair.b is None}


def test_what_a_tool_never_records_is_said_in_its_dialects_words():
    """Of a dialect that no reader knows, pairing says what the dialect says, and nothing else."""
    assert gaps(OTHER, frozenset({"loss"})) == {
        "Cell.root.Net.forward.0.output.0": OTHER.no_root,
        "Cell.a.Dense.backward.0.output.1": OTHER.no_absent_gradient,
        "ratio": OTHER.no_other_keys,
    }


@pytest.fixture
def run(tmp_path):
    """Return the directory of a run with a cell and a loss."""
    recording = Recording(tmp_path / "run")
    with recording.phase(PHASE):
        recording.call("a", "Dense", lambda x: x, np.float32(1))
    recording.data("loss", np.float32(1))
    recording.end_step()
    return recording.close()


def test_a_run_keeps_its_dialect_on_its_way_to_a_worker(run):
    for path, foreign in ((run, False), (MSPROBE_DATA / "statistics_a", True)):
        opened = open_run(path)
        assert opened.foreign is foreign
        assert pickle.loads(pickle.dumps(opened)).foreign is foreign


@pytest.mark.parametrize("journal", [True, False])
def test_a_run_has_the_dialect_of_the_tool_that_wrote_it(run, journal):
    """A run of ours that lost its journals is one of ours, and no dump of another tool's."""
    for path in [] if journal else run.rglob(JOURNAL_FILE):
        path.unlink()
    ours, theirs = open_run(run), open_run(MSPROBE_DATA / "statistics_a")
    assert (ours.dialect, ours.foreign) == (OWN, False)
    assert (theirs.dialect, theirs.foreign) == (MSPROBE, True)


def test_statistics_are_of_the_dialect_that_their_reader_says(run):
    """Also where a leaf counts nothing itself, and where dump.json is all that is left of a run."""
    for journal in run.rglob(JOURNAL_FILE):
        text = journal.read_text()
        journal.write_text(text.replace('"nan_count": 0, "inf_count": 0, ', ""))
        assert journal.read_text() != text
    assert dialects(run) == {""}
    for gone in [*run.rglob(JOURNAL_FILE), run / "run.json"]:
        gone.unlink()
    assert dialects(run) == {""}
    for name in ("statistics_a", "statistics_8x_a", "key_data_a"):
        assert dialects(MSPROBE_DATA / name) == {"msprobe"}


def dialects(path):
    """Return whose the tensors of a run are, as each leaf says."""
    run = open_run(path)
    found = [record for of in (*run.entries(), *run.key_data()) for record in of.records]
    return {record.leaf.dialect for record in found if record.leaf.is_tensor}


CHANGED = "Module.model.layers.1.mlp.LlamaMLP.forward.0"


@pytest.mark.parametrize("framework", ["mindtorch", "msadapter", "MSAdapter"])
@pytest.mark.parametrize("dump", ["mix_8x", "L1", "perceptron"])
def test_it_has_the_entries_of_the_same_dump_of_pytorch(tmp_path, framework, dump) -> None:
    run, pytorch = open_run(of_msadapter(dump, tmp_path, framework)), open_run(DUMPS / dump)
    names = [[e.name for phase in r.phases for e in r.entries(phase, 0, 0)] for r in (run, pytorch)]
    assert names[0] == names[1] != []
    assert not run.problems
    assert check_run(tmp_path).findings == check_run(DUMPS / dump).findings


def test_it_is_compared_with_pytorch_and_with_its_like(tmp_path: Path) -> None:
    mine = of_msadapter("mix_8x", tmp_path / "a", "mindtorch")
    other = of_msadapter("mix_8x", tmp_path / "b", "mindtorch", CHANGED)
    assert compare_runs(mine, DUMPS / "mix_8x", workers=1)
    for first in (mine, DUMPS / "mix_8x"):
        found = compare_runs(first, other, workers=1).verdict.first_divergence
        assert found is not None
        assert found.entry == CHANGED


def write_dump(root, **head):
    directory = root / "step0" / "rank0"
    directory.mkdir(parents=True)
    content = {"task": "statistics", "dump_data_dir": None, **head, "data": {"a": {}}}
    (directory / "dump.json").write_text(json.dumps(content, indent=1))
    return root


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"level": "L2", "framework": "mindspore"}, "a dump of kernels (level L2)"),
        ({"level": "L2", "framework": "pytorch"}, "Dump with level L0, L1 or mix"),
    ],
)
def test_dumps_of_msprobe_that_are_not_of_networks(tmp_path, head, said):
    with pytest.raises(RunError) as error:
        open_run(write_dump(tmp_path, **head))
    assert said in str(error.value)


def test_what_stands_among_the_entries_decides_nothing(tmp_path):
    write_dump(tmp_path, level="L0", framework="mindspore")
    path = tmp_path / "step0" / "rank0" / "dump.json"
    path.write_text(path.read_text().replace('"a": {}', '"a": {"level": "L2"}'))
    assert open_run(tmp_path).steps == [0]


@pytest.mark.parametrize(
    "name",
    [
        "Add.Default_network-Net_Add-op1.5.7.1623124369613540",
        "MatMul.MatMul_1.2.3.1623124369613540.bin",
        "Add.Add-op1.5.7.1623124369613540.output.0.ND.bin",
    ],
)
def test_acl_dumps(tmp_path, name):
    directory = tmp_path / "20260101" / "0" / "net" / "1" / "0"
    directory.mkdir(parents=True)
    (directory / name).write_bytes(b"\x08\x01")
    with pytest.raises(RunError, match="ACL dump of kernels") as error:
        open_run(tmp_path)
    assert name in str(error.value)
    assert "MINDSPORE_DUMP_CONFIG" in str(error.value)


def test_other_directories_are_refused_as_before(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(RunError, match="holds neither"):
        open_run(tmp_path)
