"""Runs of other data-parallel sizes that also cut a batch into other micro-batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Outcome, Status

PHASE = "actor_update"
ROWS = 8


def record(root, ranks, batches, *, order=range(ROWS), fault=None, task="tensor"):
    """Record one step over eight rows, those of each rank in so many micro-batches.

    Args:
        order: in which the ranks have the rows.
        fault: (rank, micro-batch): what `head` returns there is another value in its first row.
    """
    random = np.random.default_rng(1)
    ids = random.integers(0, 99, (ROWS, 5)).astype(np.int32)
    table = random.normal(size=(99, 4)).astype(np.float32)
    weight = random.normal(size=(3, 4)).astype(np.float32)
    for rank, rows in enumerate(np.split(np.array(order), ranks)):
        recording = Recording(root, rank=rank, task=task)

        def call(given, place, recording=recording):
            def head(x):
                y = x @ weight.T
                y[0, 0, 0] += place == fault
                return y

            def network(given):
                weights = {"weight": table}
                x = recording.call(
                    "embed", "Embedding", lambda i: table[i], given, parameters=weights
                )
                return recording.call("head", "Dense", head, x, parameters={"weight": weight})

            recording.call("network", "Network", network, given)

        with recording.phase(PHASE):
            for number, own in enumerate(np.split(rows, batches)):
                call(ids[own], (rank, number))
                recording.data("rewards", own * np.float32(1.5))
                recording.data("loss", float(own.sum()))
        recording.end_step()
        recording.close()
    return root


def compared(path, a, b, **of_b):
    """Compare two recordings of (ranks, micro-batches)."""
    runs = record(path / "a", *a), record(path / "b", *b, **of_b)
    sides = {"a": {"axes": {"dp": a[0]}}}  # of one rank, too: it says that rows are to be found
    if b[0] > 1:
        sides["b"] = {"axes": {"dp": b[0]}}
    (path / "l.yaml").write_text(json.dumps(sides))
    return compare_runs(*runs, layout=path / "l.yaml", workers=1)


CUTS = [
    ((1, 2), (1, 4)),
    ((1, 1), (2, 2)),
    ((1, 2), (2, 2)),
    ((1, 4), (2, 1)),
    ((2, 1), (1, 4)),
    ((2, 4), (4, 1)),
]


@pytest.mark.parametrize(("a", "b"), CUTS, ids=str)
def test_rows_are_compared_wherever_they_are(tmp_path, a, b):
    result = compared(tmp_path, a, b, order=(3, 1, 0, 2, 7, 5, 6, 4))
    assert result.verdict.status is Outcome.IDENTICAL, [
        f.record for f in result.findings if not f.status.agrees
    ]
    cells = {f.entry.split(".")[1] for f in result.findings if f.io == "output"}
    assert cells == {"network", "embed", "head"}
    assert sum(f.io == "parameters" for f in result.findings) == 2
    rewards = [f for f in result.findings if f.key == "rewards"]
    assert sum(f.a.shape[0] for f in rewards) == ROWS
    codes = {gap.message.code for gap in result.verdict.coverage}
    assert codes == ({"layout.values_differ"} if a[1] == b[1] else {"coverage.of_micro_batch"})


@pytest.mark.parametrize(("a", "b"), CUTS, ids=str)
def test_what_differs_in_one_micro_batch_is_named_with_its_rank(tmp_path, a, b):
    rank, batch = b[0] - 1, b[1] - 1
    result = compared(tmp_path, a, b, fault=(rank, batch))
    wrong = [f for f in result.findings if not f.status.agrees]
    assert {f.record.split(".")[1] for f in wrong} == {"head", "network"}
    assert all(f.status is Status.DIFFERENT for f in wrong)
    if b[0] > 1:
        for finding in wrong:
            named = [n.params["ranks"] for n in finding.notes if n.params.get("side") == "B"]
            assert named == [[rank]]


def test_statistics_of_other_micro_batches_are_not_compared(tmp_path):
    runs = (
        record(tmp_path / "a", 1, 1, task="statistics"),
        record(tmp_path / "b", 2, 2, task="statistics", fault=(1, 1)),
    )
    (tmp_path / "l.yaml").write_text(json.dumps({"b": {"axes": {"dp": 2}}}))
    result = compare_runs(*runs, layout=tmp_path / "l.yaml", workers=1)
    assert {f.io for f in result.findings} == {"parameters", "data"}
    assert result.verdict.coverage
