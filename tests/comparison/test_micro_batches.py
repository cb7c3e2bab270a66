"""Two phases of which one sees the whole batch and the other one micro-batches of it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from helpers.runs import Recording, record_data

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.findings import Cause, Outcome, Status

LOG_PROB, UPDATE = "actor_compute_log_prob", "actor_update"
CELLS = ("embed", "layers.0.mlp", "head")


def record(
    path,
    *,
    whole=((0, 1, 2, 3, 4, 5, 6, 7),),
    parts=((0, 1, 2, 3), (4, 5, 6, 7)),
    update=False,
    fault=None,
    layout="rows first",
    task="tensor",
    rows=None,
    change_given=None,
    twice=False,
    **settings,
):
    """Record a step that runs a network on batches of rows, once as `whole`, once as `parts`.

    Args:
        update: weights change after each of the parts.
        fault: (phase, batch, cell): its output is a little more in its last row.
        layout: of what cells hand on: `rows first`, `rows second`, `flat`.
        rows: what each row holds; default: something of its own.
        change_given: what is made of the batch that the second part is given.
        twice: the first cell runs twice for each batch.
    """
    recording = Recording(path, task=task, **settings)
    if rows is None:
        rows = np.random.default_rng(3).normal(size=(8, 5)).astype(np.float32)
    weights = {cell: np.float32(1.5 + i) for i, cell in enumerate(CELLS)}

    def inside(x):
        x = x[..., None] * np.arange(1, 4, dtype=np.float32)
        if layout == "rows second":
            return np.ascontiguousarray(x.swapaxes(0, 1))
        return x.reshape(-1, 3) if layout == "flat" else x

    def cell(name, x, phase, number):
        def compute(x):
            y = x * weights[name]
            if fault == (phase, number, name):
                place = (slice(None), -1) if layout == "rows second" else -1
                y[place] += np.float32(0.01)
            return y

        return recording.call(name, "Dense", compute, x, parameters={"weight": weights[name]})

    def root(batch, phase, number):
        mask = np.tril(np.ones((5, 5), np.float32))
        x = recording.call("mask", "Mask", lambda x: mask, batch)
        x = inside(batch)
        for name in (*CELLS[:1] * (2 if twice else 1), *CELLS[1:]):
            x = cell(name, x, phase, number)
        return x, np.float32(x.mean()), len(batch)

    for phase, batches in ((LOG_PROB, whole), (UPDATE, parts)):
        for number, batch in enumerate(batches):
            given = rows[list(batch)]
            if change_given is not None and (phase, number) == (UPDATE, 1):
                given = change_given(given)
            with recording.phase(phase):
                recording.call("root", "Net", lambda x, p=phase, n=number: root(x, p, n), given)
            if update and phase == UPDATE:
                weights = {name: weight * np.float32(1.01) for name, weight in weights.items()}
    recording.end_step()
    return recording.close()


def gaps(result):
    return {gap.reason.split(",")[0]: gap.records for gap in result.verdict.coverage}


def compared(run, *, turned=False):
    return compare_runs(run, phases=(UPDATE, LOG_PROB) if turned else (LOG_PROB, UPDATE))


@pytest.mark.parametrize("layout", ["rows first", "rows second", "flat"])
@pytest.mark.parametrize("turned", [False, True])
def test_micro_batches_agree_with_the_batch_they_are_pieces_of(tmp_path, layout, turned):
    """Every row is compared, in whatever axis it lies; what says nothing of rows is coverage."""
    result = compared(record(tmp_path / "a", layout=layout), turned=turned)
    assert result.verdict.status is Outcome.IDENTICAL
    shapes = [
        f.a.shape for f in result.findings if f.record.endswith("head.Dense.forward.1.output.0")
    ]
    assert shapes == [{"rows first": (4, 5, 3), "rows second": (5, 4, 3), "flat": (20, 3)}[layout]]
    assert gaps(result) == {"values without rows": 4}  # the mean and the number of rows, twice
    assert any("in the same order" in note for note in result.notes)


def test_shuffled_micro_batches_are_brought_together_by_what_they_were_given(tmp_path):
    result = compared(record(tmp_path / "a", parts=((6, 1, 3, 0), (2, 7, 5, 4))))
    assert result.verdict.status is Outcome.IDENTICAL
    assert any("same inputs are paired, in another order" in n for n in result.notes)


def test_faults_in_pieces_are_named_where_they_are(tmp_path):
    """Random batch sizes, orders, epochs: cell and micro-batch are those of the fault."""
    draw = random.Random(16)
    for number in range(40):
        order = list(range(8))
        shuffled = draw.random() < 0.5
        if shuffled:
            draw.shuffle(order)
        size, chunk = draw.choice([1, 2, 4]), draw.choice([4, 8])
        epochs = draw.choice([1, 1, 2])
        parts = [tuple(order[i : i + size]) for i in range(0, 8, size)] * epochs
        if chunk == 8 and draw.random() < 0.2:
            parts = [tuple(order[:3]), tuple(order[3:])]
        whole = [tuple(range(i, i + chunk)) for i in range(0, 8, chunk)]
        where = (UPDATE, draw.randrange(len(parts)), draw.choice(CELLS))
        options = {
            "whole": whole,
            "parts": parts,
            "layout": draw.choice(["rows first", "rows second", "flat"]),
        }
        case = f"{where} with {options}"
        turned = draw.random() < 0.5
        if [len(w) for w in whole] == [len(p) for p in parts[: len(whole)]]:
            continue  # batches of one size, which stand against each other as they are
        agreeing = compared(record(tmp_path / f"a{number}", **options), turned=turned)
        assert agreeing.verdict.status is Outcome.IDENTICAL, case
        result = compared(record(tmp_path / f"b{number}", fault=where, **options), turned=turned)
        found = result.verdict.first_divergence
        assert found is not None, case
        assert found.entry == f"Cell.{where[2]}.Dense.forward.{where[1]}", case
        assert found.cause is Cause.COMPUTATION, case


def test_a_fault_in_the_whole_batch_is_named_in_the_piece_that_holds_its_row(tmp_path):
    run = record(tmp_path / "a", fault=(LOG_PROB, 0, "layers.0.mlp"))
    found = compared(run).verdict.first_divergence
    assert found.entry == "Cell.layers.0.mlp.Dense.forward.1"
    assert found.inside.where[0].spans == ((3, 3),)


def test_pieces_end_where_the_weights_are_updated(tmp_path):
    """A micro-batch after an update has other weights: it is counted, not compared."""
    run = record(tmp_path / "a", update=True, fault=(UPDATE, 1, "head"))
    result = compared(run)
    assert result.verdict.status is Outcome.IDENTICAL
    assert any("before the first update" in note for note in result.notes)
    left = [gap for gap in result.verdict.coverage if "after the weights were" in gap.reason]
    assert [gap.only_in for gap in left] == ["B"]
    faulty = record(tmp_path / "b", update=True, fault=(UPDATE, 0, "head"))
    assert compared(faulty).verdict.first_divergence.entry == "Cell.head.Dense.forward.0"


def test_without_parameters_later_openings_of_an_update_are_not_compared(tmp_path):
    """What is not recorded is not taken for granted: the optimizer may have run between."""
    result = compared(record(tmp_path / "a", update=True, parameters=False))
    assert result.verdict.status is Outcome.IDENTICAL
    assert any("may have been, updated" in gap.reason for gap in result.verdict.coverage)


def test_statistics_of_unlike_batches_are_coverage(tmp_path):
    """Nothing is called different for its batch size; parameters are compared; advice is given."""
    run = record(tmp_path / "a", task="statistics", fault=(UPDATE, 1, "head"))
    for turned in (False, True):
        result = compared(run, turned=turned)
        assert result.verdict.status is Outcome.IDENTICAL
        assert {f.io for f in result.findings} == {"parameters", "output"}
        masks = [f.record for f in result.findings if f.io == "output"]
        assert masks == ["Cell.mask.Mask.forward.0.output.0"]
        assert any("record both with task: tensor" in note for note in result.notes)
        assert "tensors of batches of different sizes" in gaps(result)
    other = record(tmp_path / "b", task="statistics", parts=((0, 1), (2, 3), (4, 5), (6, 7)))
    assert compare_runs(run, other, phases=(LOG_PROB, UPDATE)).verdict.status is Outcome.IDENTICAL


def test_pieces_of_two_runs(tmp_path):
    a = record(tmp_path / "a")
    b = record(tmp_path / "b", fault=(UPDATE, 1, "embed"))
    found = compare_runs(a, b, phases=(LOG_PROB, UPDATE)).verdict.first_divergence
    assert found.entry == "Cell.embed.Dense.forward.1"
    assert compare_runs(b, a, phases=(LOG_PROB, UPDATE)).verdict.status is Outcome.IDENTICAL


def test_another_input_of_a_row_is_a_divergence_and_the_order_is_said_to_be_assumed(tmp_path):
    def change(batch):
        batch = batch.copy()
        batch[2, 3] += 1
        return batch

    result = compared(record(tmp_path / "a", change_given=change))
    found = result.verdict.first_divergence
    assert (found.record, found.cause) == ("Cell.root.Net.forward.1.input.0", Cause.INPUT)
    assert found.inside.where[0].spans == ((2, 2),)
    assert any("which is assumed: it is wrong if the trainer shuffled" in n for n in result.notes)


def test_rows_that_the_whole_batch_does_not_hold_are_not_compared(tmp_path):
    """Of micro-batches that do not make up the whole, only rows with the same inputs stand."""
    result = compared(record(tmp_path / "a", parts=((0, 1, 2), (3, 4, 5))))
    assert result.verdict.status is Outcome.IDENTICAL
    result = compared(
        record(tmp_path / "b", parts=((0, 1, 2), (3, 4, 5)), change_given=lambda x: x + 1)
    )
    assert result.verdict.status is Outcome.IDENTICAL
    assert "micro-batches with rows that the other phase was not given" in gaps(result)


def test_equal_rows_stand_in_their_order(tmp_path):
    """Rows that nothing tells apart: each is compared once."""
    rows = np.ones((8, 5), np.float32)
    found = compared(record(tmp_path / "a", rows=rows, fault=(UPDATE, 1, "head")))
    assert found.verdict.first_divergence.entry == "Cell.head.Dense.forward.1"


def test_a_cell_that_runs_twice_for_each_batch_is_cut_call_by_call(tmp_path):
    result = compared(record(tmp_path / "a", twice=True))
    assert result.verdict.status is Outcome.IDENTICAL
    names = {f.record for f in result.findings if f.record.startswith("Cell.embed")}
    assert {f"Cell.embed.Dense.forward.{n}.output.0" for n in range(4)} <= names


def test_a_file_that_cannot_be_read_is_not_agreement(tmp_path):
    run = record(tmp_path / "a")
    files = sorted((run / LOG_PROB).rglob("Cell.head.Dense.forward.0.output.0.npy"))
    files[0].unlink()
    files[0].write_bytes(b"damage")
    result = compared(run)
    assert result.verdict.status is Outcome.DIVERGED
    statuses = {f.status for f in result.findings if "head.Dense" in f.record and f.io == "output"}
    assert statuses == {Status.UNREADABLE}


def test_batches_of_one_size_stand_as_they_are(tmp_path):
    result = compared(record(tmp_path / "a", parts=((0, 1, 2, 3, 4, 5, 6, 7),)))
    assert result.verdict.status is Outcome.IDENTICAL
    assert len(result.notes) == 1
    assert gaps(result) == {}


def save_keys(path, parts, change=None, whole=(tuple(range(8)),)):
    """Save one key for whole batches and another for micro-batches of them."""
    rows = np.random.default_rng(5).normal(size=(8, 3)).astype(np.float32)
    saves = [("old_log_prob", rows[list(batch)]) for batch in whole]
    for number, batch in enumerate(parts):
        own = rows[list(batch)]
        saves.append(("log_prob", own if change is None else change(own, number)))
    return record_data(path, saves)


@pytest.mark.parametrize("turned", [False, True])
def test_a_key_saved_in_micro_batches_stands_against_the_whole(tmp_path, turned):
    keys = "log_prob=old_log_prob" if turned else "old_log_prob=log_prob"
    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    for name, parts, order in (
        ("a", halves, "in the same order"),
        ("b", ((3, 7, 0, 1), (2, 6, 5, 4)), "in another order"),
        ("c", ((0, 1, 2, 3, 4), (5, 6, 7)), "in the same order"),
    ):
        result = compare_runs(save_keys(tmp_path / name, parts), keys=keys)
        assert result.verdict.status is Outcome.IDENTICAL, name
        assert result.verdict.compared == 2
        assert any(order in note for note in result.notes)


def test_a_row_of_a_key_that_differs_is_named(tmp_path):
    def change(rows, number):
        rows = rows.copy()
        rows[2] += number
        return rows

    run = save_keys(tmp_path / "a", ((0, 1, 2, 3), (4, 5, 6, 7)), change)
    found = compare_runs(run, keys="old_log_prob=log_prob").verdict.first_divergence
    assert (found.record, found.occasion.number) == ("old_log_prob", 1)
    assert found.inside.where[0].spans == ((2, 2),)


def test_rows_of_a_key_are_not_guessed(tmp_path):
    """In another order, a row that changed is not compared; with none the same, that is said."""
    shuffled = ((6, 1, 3, 0), (2, 7, 5, 4))
    run = save_keys(tmp_path / "a", shuffled, lambda rows, number: rows + number)
    result = compare_runs(run, keys="old_log_prob=log_prob")
    assert result.verdict.status is Outcome.IDENTICAL
    assert [gap.records for gap in result.verdict.coverage] == [1]
    draw = np.random.default_rng(7)
    other = save_keys(tmp_path / "b", shuffled, lambda rows, _: draw.normal(size=(4, 3)))
    result = compare_runs(run, other, keys="old_log_prob=log_prob")
    assert result.verdict.status is Outcome.DIVERGED


def test_rows_of_a_key_that_all_differ_a_little_are_brought_together(tmp_path):
    """Kernels round otherwise for other batch sizes: shuffled rows are found all the same."""
    draw = np.random.default_rng(7)

    def rounded(rows, number):
        return (rows + draw.normal(size=rows.shape) * 1e-6).astype(np.float32)

    run = save_keys(tmp_path / "a", ((6, 1, 3, 0), (2, 7, 5, 4)), rounded)
    result = compare_runs(run, keys="old_log_prob=log_prob")
    assert result.verdict.first_divergence.max_abs_err < 1e-5
    assert any("nearest to each other" in n and "another order" in n for n in result.notes)
    close = compare_runs(run, keys="old_log_prob=log_prob", tolerance=Tolerance(atol=1e-4))
    assert close.verdict.status is Outcome.WITHIN_TOLERANCE
    far = save_keys(tmp_path / "b", ((6, 1, 3, 0), (2, 7, 5, 4)), lambda rows, _: rows * 0)
    result = compare_runs(far, keys="old_log_prob=log_prob")
    assert any("which is assumed" in note for note in result.notes)


def test_a_wrapper_that_runs_in_one_phase_only_is_left_out(tmp_path):
    """The update runs the network inside a loss; one under other names is not compared."""
    batch = np.arange(8, dtype=np.float32).reshape(4, 2)

    def run(path, name="net", factor=2):
        recording = Recording(path, task="tensor")

        def network(x, by=2, name="net"):
            return recording.call(name, "Net", lambda x: x * np.float32(by), x)

        def loss(x):
            y = network(x, factor, name)
            return recording.call("crit", "Loss", lambda y: y.sum(), y)

        with recording.phase(LOG_PROB):
            network(batch)
        with recording.phase(UPDATE):
            recording.call("outer", "WithLoss", loss, batch)
        recording.end_step()
        return compare_runs(path, phases=(LOG_PROB, UPDATE))

    same = run(tmp_path / "same")
    assert same.verdict.status is Outcome.IDENTICAL
    assert {gap.reason for gap in same.verdict.coverage} == {
        "cells that do not run in the other phase"
    }
    assert (
        run(tmp_path / "other", factor=3).verdict.first_divergence.entry == "Cell.net.Net.forward.0"
    )
    assert run(tmp_path / "unnamed", name="elsewhere").verdict.status is Outcome.INCOMPARABLE


@pytest.mark.parametrize(
    ("whole", "part"), [((tuple(range(8)),), 0), (((0, 1, 2, 3), (4, 5, 6, 7)), 1)]
)
def test_repetitions_that_are_whole_excuse_nothing_of_a_piece(tmp_path, whole, part):
    """Neither that a batch has another shape than its piece, nor the noise of other rows."""
    parts = [tuple(range(i, i + 2)) for i in range(0, 8, 2)]
    fault = (UPDATE, part, "layers.0.mlp")
    run = record(tmp_path / "a", whole=whole, parts=parts, fault=fault)
    rows = np.random.default_rng(4).normal(size=(8, 5)).astype(np.float32)
    noise = [record(tmp_path / "r", whole=whole, parts=parts, rows=rows)]
    result = compare_runs(run, phases=(LOG_PROB, UPDATE), noise=noise)
    assert result.verdict.status is Outcome.DIVERGED
    assert result.verdict.first_divergence.entry == f"Cell.layers.0.mlp.Dense.forward.{part}"
    plain = compare_runs(run, phases=(LOG_PROB, UPDATE))
    statuses = [{f.record: f.status for f in r.findings} for r in (plain, result)]
    assert statuses[0] == statuses[1]
    noted = {f.note for f in result.findings if f.status is Status.DIFFERENT}
    assert all("no repetition of A recorded it" in note for note in noted)


def test_repetitions_of_micro_batches_excuse_noise_of_a_whole_batch_that_is_cut(tmp_path):
    """What A recorded stands as it is then, and so do its repetitions."""
    fault = (LOG_PROB, 0, "layers.0.mlp")
    run = record(tmp_path / "a", fault=fault)
    rows = np.random.default_rng(4).normal(size=(8, 5)).astype(np.float32)
    noise = [record(tmp_path / "r", rows=rows)]
    result = compare_runs(run, phases=(UPDATE, LOG_PROB), noise=noise)
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE


@pytest.mark.parametrize("whole", [(tuple(range(8)),), ((0, 1, 2, 3), (4, 5, 6, 7))])
def test_repetitions_that_are_whole_excuse_no_piece_of_a_key(tmp_path, whole):
    def change(rows, number):
        return rows + np.float32(0.01) * np.eye(len(rows), 3, dtype=np.float32)

    parts = [tuple(range(i, i + 2)) for i in range(0, 8, 2)]
    run = save_keys(tmp_path / "a", parts, change, whole)
    noise = [save_keys(tmp_path / "r", parts, whole=whole[::-1])]
    result = compare_runs(run, keys="old_log_prob=log_prob", noise=noise)
    assert result.verdict.status is Outcome.DIVERGED
    assert {f.status for f in result.findings} == {Status.DIFFERENT}


@pytest.mark.parametrize("broken", [0, 1])
def test_a_piece_of_a_batch_that_was_lost_is_no_coverage(tmp_path, broken):
    """Also where only a later one of the batches that it spans was lost."""
    order = (0, 1, 2, 4), (3, 5, 6), (7,)  # the first one spans both
    run = record(tmp_path / "a", whole=((0, 1, 2, 3), (4, 5, 6, 7)), parts=order)
    journal = next((run / LOG_PROB).rglob("records.jsonl"))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["entry"] == f"Cell.head.Dense.forward.{broken}":
            del line["output"][0]["data_name"]
            line["output"][0]["error"] = "the disk was full"
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = compared(run)
    assert result.verdict.status is Outcome.DIVERGED
    found = {f.record: f for f in result.findings if f.status is Status.UNREADABLE}
    assert found["Cell.head.Dense.forward.0.output.0"].note.endswith("the disk was full")
    assert set(gaps(result)) == {"values without rows"}
