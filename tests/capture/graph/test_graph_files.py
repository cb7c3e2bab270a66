"""The path for Ascend in GRAPH_MODE, with TensorDump stood in for on CPU."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ms = pytest.importorskip("mindspore")

from graph_files_job import FOLDER, jitted, kinds, same, size_of
from helpers.small_networks import in_mode

from mindrlhf_msprobe import Probe, compare_runs, open_run

JOB = Path(__file__).with_name("graph_files_job.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run the job in a process of its own; return its directory and what it saw."""
    path = tmp_path_factory.mktemp("job")
    environment = {**os.environ, "MSPROBE_GRAPH_FILES": "1", "MSPROBE_LOG_LEVEL": "3"}
    ended = subprocess.run(
        [sys.executable, str(JOB), str(path)], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return path, json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture
def graph_mode() -> Iterator[None]:
    """Run a test in GRAPH_MODE."""
    with in_mode(ms.GRAPH_MODE):
        yield


def entries(journal: Path) -> list[tuple[str, str | None]]:
    """Return the entries of a journal in their order, each with the one around it."""
    lines = map(json.loads, journal.read_text().splitlines())
    return [(line["entry"], line["parent"]) for line in lines]


def test_files_say_what_host_functions_say(job, tmp_path, graph_mode):
    """Every record, its place and the key data are the same, and so are the weights."""
    path, seen = job
    assert same(tmp_path / "same", task="tensor") == seen["same"]
    result = compare_runs(path / "same", tmp_path / "same", output_path=tmp_path / "out")
    assert result.verdict.status.value == "identical"
    journals = sorted((path / "same").rglob("records.jsonl"))
    assert journals
    for journal in journals:
        assert entries(journal) == entries(tmp_path / journal.relative_to(path))
    assert json.loads((path / "same" / "run.json").read_text())["lost"] == {}


def test_a_jitted_cell_stands_in_its_place(job, tmp_path, graph_mode):
    """Among cells that PyNative runs, its children stand inside it, and it stands there once."""
    path, _ = job
    jitted(tmp_path / "jitted")
    journal = Path("jitted", "actor_generate_sequences", "step0", "rank0", "records.jsonl")
    assert entries(path / journal) == entries(tmp_path / journal)


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tensors in what JSON holds."""
    if isinstance(content, dict) and "dtype" in content:
        yield path, content
    elif isinstance(content, (dict, list)):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, item in items:
            yield from leaves(item, f"{path}.{key}")


def recorded(run: Path) -> dict[str, dict[str, Any]]:
    """Return what a run says of each tensor in its journals."""
    found = {}
    for journal in sorted(run.rglob("records.jsonl")):
        for line in journal.read_text().splitlines():
            entry = json.loads(line)
            found |= dict(leaves(entry, f"{journal.relative_to(run)}:{entry['entry']}"))
    return found


def test_statistics_are_those_of_the_host(job, tmp_path, graph_mode):
    """max, min and counts are the same, mean and norm to 1e-6; some bytes a tensor were written."""
    path, seen = job
    header = 128  # of a .npy file
    assert header < seen["kinds"] <= header + 6 * 8
    kinds(tmp_path / "kinds")
    ours, theirs = recorded(path / "kinds"), recorded(tmp_path / "kinds")
    assert ours.keys() == theirs.keys()
    assert len(ours) > 30
    of = {str(leaf["dtype"]) for leaf in ours.values()}
    assert {"Float32", "Float16", "BFloat16", "Float64", "Int64", "UInt64", "Bool"} <= of
    for name, leaf in ours.items():
        host = dict(theirs[name])
        empty = 0 in leaf["shape"]
        assert ("fingerprint" in leaf) == empty, name  # nothing else says that bits are the same
        host.pop("fingerprint")
        leaf.pop("fingerprint", None)
        size = max([abs(v) for v in (host["Max"], host["Min"]) if isinstance(v, float)], default=0)
        for statistic, scale in (("Mean", size), ("Norm", host.get("Norm"))):
            value, expected = leaf.pop(statistic), host.pop(statistic)
            if isinstance(expected, float):
                assert value == pytest.approx(expected, rel=1e-6, abs=1e-6 * scale), name
            else:
                assert value == expected, name
        assert leaf == host, name


def test_statistics_alone_never_prove_that_tensors_are_the_same(job, tmp_path):
    """Training is as it is without; a parameter stands in its first call of a phase and step."""
    path, seen = job
    assert seen["reduced"] == seen["same"]
    whole, reduced = recorded(path / "same"), recorded(path / "reduced")
    assert {name for name in whole if ".parameters." not in name} == {
        name for name in reduced if ".parameters." not in name
    }
    shutil.copytree(path / "reduced", tmp_path / "copy")
    result = compare_runs(path / "reduced", tmp_path / "copy", output_path=tmp_path / "out")
    assert result.verdict.status.value == "within_tolerance"


def test_a_long_job_with_a_short_window_leaves_nothing(job):
    """500 steps of which 2 are recorded: the folder stays small, and goes with the run."""
    path, seen = job
    one_step = 8 * (64 * 64 * 4 + 128)
    assert 0 < seen["long"]["most"] < 20 * one_step  # of 500
    assert not seen["long"]["left"]
    assert open_run(path / "long").steps == [*range(500)]
    run = json.loads((path / "long" / "run.json").read_text())
    assert (run["state"], run["lost"]) == ("finished", {})


def test_above_the_bound_training_goes_on_and_losses_are_counted(job):
    """Some 25 MB are written, of which 1 MB may wait; the weights are those without a probe."""
    path, seen = job
    assert seen["full"]["equal"]
    assert seen["full"]["most"] < 8 << 20  # what is written between two looks comes on top
    lost = json.loads((path / "full" / "run.json").read_text())["lost"]
    assert list(lost) == ["a file that a graph wrote: FolderFullError"]
    assert lost["a file that a graph wrote: FolderFullError"] > 0


def test_a_network_that_is_compiled_is_recorded_by_a_second_run(job):
    """What its graphs write is the second run's; one that wants more than they have is refused."""
    path, seen = job
    assert not seen["twice"]
    assert recorded(path / "first")
    assert recorded(path / "first") == recorded(path / "second")
    assert "has been compiled already" in seen["third"]


def test_what_a_killed_job_left_goes_with_the_next_start(job):
    """The run is readable with the files beside it, and the next one there removes them."""
    path, _ = job
    root = path / "killed"
    assert size_of(root / FOLDER)
    (root / ".msprobe_graph.rank7").mkdir()  # of a larger world
    assert open_run(root).phases == []
    Probe.from_config(
        {"msprobe": True, "dump_path": str(root), "existing": "resume", "key_data_dump": True}
    ).close()
    assert not list(root.glob(".msprobe_graph*"))
