"""Runs of other data-parallel sizes that also cut a batch into other micro-batches."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from helpers.runs import Recording
from mindspore import Tensor, nn

from mindrlhf_msprobe import ConfigError, Probe, Tolerance, compare_runs
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


def train(root, batches, *, loss="mean", task="tensor", fault=None, update=False):
    """Pass eight rows forward and backward in so many micro-batches, by MindSpore.

    Args:
        fault: the micro-batch of which a row is doubled behind the network, in the loss.
        update: train behind each micro-batch.
    """
    ms.set_context(mode=ms.PYNATIVE_MODE)
    drawn = np.random.default_rng(1)
    network = nn.Dense(4, 3)
    for parameter in network.get_parameters():
        values = drawn.normal(size=parameter.shape).astype(np.float32)
        parameter.set_data(Tensor(values))
    root_cell = nn.SequentialCell(network)
    rows = drawn.normal(size=(ROWS, 4)).astype(np.float32)

    def loss_of(x, times):
        squares = (root_cell(x) ** 2).sum(axis=-1) * times
        return squares.mean() if loss == "mean" else squares.sum()

    weights = root_cell.trainable_params()
    gradients_of = ms.value_and_grad(loss_of, None, weights)
    optimizer = nn.SGD(weights, 0.1)
    config = {"msprobe": True, "actor_train_dump": True, "task": task, "dump_path": str(root)}
    with Probe.from_config(config) as probe:
        probe.watch(actor=root_cell)
        with probe.phase(PHASE):
            for number, own in enumerate(np.split(rows, batches)):
                times = np.ones(len(own), np.float32)
                times[0] += number == fault
                _, gradients = gradients_of(Tensor(own), Tensor(times))
                if update:
                    optimizer(gradients)
        probe.step()
    return root


def of_parameters(tmp_path, a, b, how="mean", **b_options):
    """Return what is said of gradients of parameters, by their names."""
    options = {"loss": "sum"} if how == "sum" else {}
    runs = train(tmp_path / "a", a, **options), train(tmp_path / "b", b, **options, **b_options)
    side = {"axes": {"dp": 1}, **({"micro_batches": how} if how else {})}
    sides = {"a": side, "b": side} if how else {"a": side}  # two that are alike say nothing
    (tmp_path / "l.yaml").write_text(json.dumps(sides))
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)
    result = compare_runs(*runs, layout=tmp_path / "l.yaml", tolerance=tolerance, workers=1)
    return {f.record: f.status for f in result.findings if ".parameters_grad." in f.entry}, result


NAMES = {f"Cell.0.Dense.parameters_grad.0.{name}" for name in ("weight", "bias")}


@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize(("a", "b"), [(1, 4), (4, 2)])
def test_gradients_of_micro_batches_are_those_of_the_batch(tmp_path, a, b, how):
    found, result = of_parameters(tmp_path, a, b, how)
    assert found.keys() == NAMES
    assert all(status.agrees for status in found.values()), result.verdict
    assert not [f.record for f in result.findings if not f.status.agrees]


def test_a_gradient_that_is_wrong_in_one_micro_batch_differs(tmp_path):
    found, result = of_parameters(tmp_path, 4, 2, fault=1)
    assert {*found.values()} == {Status.DIFFERENT}
    assert found.keys() == NAMES
    notes = [n for f in result.findings for n in f.notes if "ranks" in n.params]
    assert not notes  # micro-batches are no ranks


@pytest.mark.parametrize(
    "options",
    [{"how": None}, {"update": True}, {"task": "statistics"}],
    ids=["not said", "updated in between", "statistics"],
)
def test_gradients_of_micro_batches_that_are_not_known_are_not_compared(tmp_path, options):
    found, result = of_parameters(tmp_path, 4, 2, **{"how": "mean", **options})
    assert not found
    assert any(
        "gradient" in str(gap.reason) or "sum" in str(gap.reason) for gap in result.verdict.coverage
    )


def test_another_reduction_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected mean or sum"):
        of_parameters(tmp_path, 1, 2, how="median")
