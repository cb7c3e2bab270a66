"""What the real msprobe makes of our runs: no complaint, and the verdicts that we give."""

from __future__ import annotations

import math
import shutil
import sys

import pytest
from reference_tool import compare, compare_key_data, graph, interpreter, record

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.findings import Status

pytestmark = pytest.mark.slow

KINDS = [("statistics", "plain"), ("tensor", "plain"), ("statistics", "odd"), ("tensor", "odd")]
RANK = "actor_update/step0/rank0"
NO_DIFFERENCE = {"0", "0.0", "", "unsupported"}


@pytest.fixture(scope="module")
def reference():
    return interpreter("MSPROBE_REFERENCE_PYTHON")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, reference):
    """Return where our runs of each task and network lie, without and with a fault."""
    root = tmp_path_factory.mktemp("ours")
    plans = [
        {"tool": "ours", "task": task, "network": network, "fault": fault}
        | {"dump_path": str(root / f"{task}-{network}-{int(fault)}")}
        for task, network in KINDS
        for fault in (False, True)
    ]
    record(sys.executable, root, *plans)
    return root


def pair(runs, task, network):
    return runs / f"{task}-{network}-1", runs / f"{task}-{network}-0"


@pytest.mark.parametrize(("task", "network"), KINDS)
def test_every_record_gets_the_same_verdict(runs, reference, tmp_path, task, network):
    """What we call different has other numbers in msprobe's table, what agrees has none.

    What only one run has is `only_in_a` here and without a partner there. Equal infinities are NaN
    apart to msprobe.
    """
    a, b = pair(runs, task, network)
    rows = compare(reference, a / RANK / "dump.json", b / RANK / "dump.json", tmp_path / "theirs")
    theirs = {row["NPU Name"]: row for row in rows}
    differences = [c for c in rows[0] if c.endswith(" diff") or c == "MaxAbsErr"]
    ours = {
        (f.a.data_name or f"{f.record}.npy").removesuffix(".npy"): f
        for f in compare_runs(a, b).findings
        if f.entry and f.step == 0 and f.a.name
    }
    matched = ours.keys() & theirs.keys()
    # msprobe has neither gradients of keyword arguments nor our escapes for odd names.
    assert {n for n in ours if n not in theirs and "%" not in n and ".backward." not in n} == set()
    assert len(matched) > 0.85 * len(ours)
    unlike = []
    for name in matched:
        row, status = theirs[name], ours[name].status
        if status is Status.ONLY_IN_A:
            assert row["Bench Name"] == "N/A"
            continue
        same = row["Result"] == "pass" and {row[c] for c in differences} <= NO_DIFFERENCE
        same |= status is Status.IDENTICAL and not math.isfinite(ours[name].a.max or 0)
        if same != status.agrees:
            unlike.append((name, status, [row[c] for c in differences], row["Result"]))
    assert unlike == []
    assert any(not ours[name].status.agrees for name in matched)


def test_our_md5_is_theirs(reference, tmp_path):
    """The CRC-32 of what both recorded: msprobe's table and ours say the same of every record.

    But for the backward passes of the layer that is called twice: msprobe numbers them as they run.
    """
    plan = {"task": "md5", "network": "plain", "fault": False}
    for tool, python in (("ours", sys.executable), ("msprobe", reference)):
        record(python, tmp_path, {**plan, "tool": tool, "dump_path": str(tmp_path / tool)})
    (theirs,) = (tmp_path / "msprobe" / "step0").glob("proc*")
    mine = tmp_path / "ours" / RANK
    rows = compare(reference, mine / "dump.json", theirs / "dump.json", tmp_path / "table")
    results = {row["NPU Name"]: row["Result"] for row in rows if row["BENCH MD5"] != "N/A"}
    ours = {
        finding.record: finding.status
        for finding in compare_runs(mine, theirs).findings
        if finding.a.shape and finding.b.shape and finding.record in results
    }
    assert len(ours) > 20
    unlike = {
        name
        for name, status in ours.items()
        if (results[name] == "pass") != (status is Status.IDENTICAL)
        and not name.startswith("Cell.layers.0.Attention.backward.")
    }
    assert unlike == set()
    # What is computed backward may round otherwise in another process.
    assert list(ours.values()).count(Status.IDENTICAL) > 0.8 * len(ours)


def test_the_numbers_are_the_same(runs, reference, tmp_path):
    """Largest error, cosine and distance of full tensors agree with msprobe's own."""
    a, b = pair(runs, "tensor", "plain")
    rows = compare(reference, a / RANK / "dump.json", b / RANK / "dump.json", tmp_path / "theirs")
    theirs = {row["NPU Name"]: row for row in rows}
    compared = 0
    for finding in compare_runs(a, b).findings:
        row, metrics = theirs.get(finding.record), finding.metrics
        if finding.step != 0 or row is None or metrics is None or not finding.a.shape:
            continue
        compared += 1
        assert float(row["MaxAbsErr"]) == pytest.approx(metrics.max_abs_err, rel=1e-4, abs=1e-9)
        assert float(row["EucDist"]) == pytest.approx(metrics.euclidean, rel=1e-4, abs=1e-9)
        assert float(row["NPU l2norm"]) == pytest.approx(finding.a.norm, rel=1e-5)
    assert compared > 30


@pytest.mark.parametrize(("task", "network"), KINDS)
def test_the_graph_has_every_entry(runs, reference, tmp_path, task, network):
    """Each entry is a node of both runs, inside the cell that called it."""
    a, b = (path / "actor_update" for path in pair(runs, task, network))
    nodes = graph(reference, a, tmp_path / "graph", b)
    entries = open_run(a).entries()
    inside = {}
    for entry in entries:
        node = nodes["NPU", entry.step, entry.name]
        inside[entry.name] = node["up_node"]
        if entry.direction == "forward":
            assert node["up_node"] == (entry.parent or "DefaultModel")
    assert {n for source, _, n in nodes if source == "NPU"} == {*inside, "DefaultModel"}
    assert {source for source, _, _ in nodes} == {"NPU", "Bench"}
    grads = {name: up for name, up in inside.items() if ".parameters_grad." in name}
    assert grads
    assert all(
        up.startswith(f"{name.partition('.parameters_grad')[0]}.backward.")
        for name, up in grads.items()
    )


def test_ranks_and_steps_as_directories(runs, reference, tmp_path):
    """A step's directory of each run, as msprobe's users compare many ranks."""
    a, b = (p / "actor_update/step1" for p in pair(runs, "statistics", "plain"))
    assert len(compare(reference, a, b, tmp_path / "theirs")) > 50
    nodes = graph(reference, a, tmp_path / "graph")
    assert "Cell.head.Dense.forward.0" in {name for _, _, name in nodes}


def test_a_run_that_was_moved_is_still_read(runs, reference, tmp_path):
    """Full tensors are found beside dump.json, wherever the run was recorded."""
    a, b = (shutil.copytree(p, tmp_path / p.name) for p in pair(runs, "tensor", "plain"))
    for path in (a, b):
        dump = path / RANK / "dump.json"
        dump.write_text(dump.read_text().replace(str(runs), "/nowhere"))
    rows = compare(reference, a / RANK / "dump.json", b / RANK / "dump.json", tmp_path / "theirs")
    assert any(row["MaxAbsErr"] not in NO_DIFFERENCE for row in rows)


def test_key_data_are_compared(runs, reference, tmp_path):
    """SingleComparator makes a table of every key: tensors, lists, texts."""
    a, b = pair(runs, "statistics", "plain")
    keys = compare_key_data(reference, a, b, tmp_path / "keys")
    assert keys == {"loss", "lists", "prompts"}
