"""The operator to blame is named, with its cell and its line of code; nothing else is."""

from __future__ import annotations

import json
import random

import mindspore as ms
import numpy as np
import pytest
from helpers.operators import KERNELS, LAYERS, Extra, Plant, record_operators
from helpers.runs import MSPROBE_DATA
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import Cause, Outcome, Status
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.reading.estimate import estimate

FORWARD = [
    (LAYERS[0], "Mint.matmul", 0, "q = mint.matmul(x, self.weight)"),
    (LAYERS[0], "Mint.matmul", 1, "mixed = mint.matmul(shares, self.weight)"),
    (LAYERS[1], "Functional.softmax", 0, "shares = ops.softmax(scores, -1)"),
    (LAYERS[1], "Mint.tanh", 2, "shares = mint.tanh(shares)"),
    ("root", "Tensor.__add__", 1, "h = h + layer(h)"),
    ("", "Mint.log", 0, "log_probs = mint.log(probs)"),
    ("", "Tensor.__neg__", 0, "return -mint.mean(log_probs)"),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return a function that returns the run without a fault, and what ran in it."""
    made = {}

    def record(**settings):
        key = repr(sorted(settings.items()))
        if key not in made:
            path = tmp_path_factory.mktemp("plain") / "run"
            made[key] = path, record_operators(path, **settings)
        return made[key]

    return record


def entry_of(program, cell, operator, nth):
    """Return what the n-th call of an operator inside a cell is called."""
    return [name for at, what, name in program.called if (at, what) == (cell, operator)][nth]


@pytest.mark.parametrize(("cell", "operator", "nth", "text"), FORWARD)
@pytest.mark.parametrize("backward", [False, True])
def test_the_operator_with_the_wrong_kernel_is_named(
    plain, tmp_path, cell, operator, nth, text, backward
):
    """Forward, or a wrong gradient with a right forward; in cells, between them, in the loss."""
    a, program = plain()
    b = tmp_path / "b"
    record_operators(b, plants=[Plant(cell, operator, nth, backward=backward)])
    result = compare_runs(a, b)
    first = result.verdict.first_divergence
    name = entry_of(program, cell, operator, nth)
    if backward:
        name = name.replace(".forward", ".backward")
    assert (first.entry, first.cause) == (name, Cause.COMPUTATION)
    assert (first.operator, first.cell) == (operator, cell)
    assert text in first.source
    assert first.line == f"net.py:{10 + len(text)}"
    shown = render(result, lang="en")
    inside = f"{operator} inside {cell}, {first.line}" if cell else f"{operator} outside every cell"
    assert inside in shown
    said = "this operator computed a different result"
    assert said in shown


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("cells", [True, False])
def test_whatever_is_recorded_and_whatever_the_kernel_does(plain, tmp_path, kernel, task, cells):
    """With or without elements, with the cells or without: the same operator is named."""
    settings = {"task": task, "cells": cells, "stacks": False}
    a, program = plain(**settings)
    plant = Plant(LAYERS[1], "Mint.matmul", 1, KERNELS[kernel])
    record_operators(tmp_path / "b", plants=[plant], **settings)
    first = compare_runs(a, tmp_path / "b").verdict.first_divergence
    assert first.entry == entry_of(program, LAYERS[1], "Mint.matmul", 1)
    assert (first.operator, first.cell, first.line) == ("Mint.matmul", LAYERS[1], "")


@pytest.mark.parametrize("seed", range(12))
def test_drawn_faults_in_drawn_places(tmp_path, seed):
    """Another run, another operator, forward or backward: it is the one that is named."""
    draw = random.Random(seed)
    program = record_operators(tmp_path / "a", seed=seed)
    cell, operator, name = draw.choice(program.called)
    same = [n for at, what, n in program.called if (at, what) == (cell, operator)]
    backward = draw.random() < 0.5
    plant = Plant(cell, operator, same.index(name), backward=backward)
    record_operators(tmp_path / "b", seed=seed, plants=[plant])
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first.entry == (name.replace(".forward", ".backward") if backward else name)
    assert (first.cell, first.cause) == (cell, Cause.COMPUTATION)


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.parametrize("cells", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_operators_that_one_run_has_more_shift_nothing(tmp_path, seed, stacks, cells):
    """Operators that change nothing are put in anywhere: they alone are in one run only."""
    draw = random.Random(seed)
    places = [
        (cell, n) for cell, most in ((LAYERS[0], 8), (LAYERS[1], 8), ("", 4)) for n in range(most)
    ]
    extras = [
        Extra(*place, draw.choice(["Mint.add", "Mint.matmul", "Mint.tanh", "Mint.neg"]))
        for place in draw.sample(places, 3)
    ]
    settings = {"stacks": stacks, "cells": cells, "seed": seed}
    a = record_operators(tmp_path / "a", **settings)
    b = record_operators(tmp_path / "b", extras=extras, **settings)
    for one, other, only in (("a", "b", Status.ONLY_IN_B), ("b", "a", Status.ONLY_IN_A)):
        result = compare_runs(tmp_path / one, tmp_path / other)
        left = {f.entry for f in result.findings if not f.status.agrees}
        assert {f.status for f in result.findings if not f.status.agrees} == {only}
        assert len(left) == 2 * len(extras)  # forward and backward
        extra = {extra.operator for extra in extras}
        assert {parse_operator(name).operator for name in left} == extra
        assert sum(f.status is Status.IDENTICAL for f in result.findings) > 100
    assert len(b.called) == len(a.called) + len(extras)


@pytest.mark.parametrize("cells", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_where_all_values_differ_the_lines_of_code_tell_which_is_which(tmp_path, seed, cells):
    """Operators that change all that follows are put in: every other one meets its own."""
    draw = random.Random(seed)
    places = [(cell, n) for cell in LAYERS for n in range(8)]
    operators = ["Mint.add", "Mint.matmul", "Mint.tanh", "Functional.softmax"]
    extras = [Extra(*place, draw.choice(operators), factor=1.5) for place in draw.sample(places, 3)]
    settings = {"cells": cells, "seed": seed}
    a = record_operators(tmp_path / "a", **settings)
    b = record_operators(tmp_path / "b", extras=extras, **settings)
    own = [name for *_, name in b.called if name not in b.added]
    expected = dict(zip((name for *_, name in a.called), own))
    findings = compare_runs(tmp_path / "a", tmp_path / "b").findings
    paired = {
        f.a.name.partition(".forward")[0]: f.b.name.partition(".forward")[0]
        for f in findings
        if ".forward." in f.record and not f.entry.startswith("Cell.") and f.a.name and f.b.name
    }
    named = {x.removesuffix(".forward"): y.removesuffix(".forward") for x, y in expected.items()}
    assert paired == named


def test_a_longer_loop_leaves_its_last_round(tmp_path):
    """One line of code runs once more: all rounds before it agree."""
    record_operators(tmp_path / "a")
    extra = Extra(LAYERS[0], 3, "Mint.tanh", "")
    record_operators(tmp_path / "b", extras=[extra])
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    apart = {f.entry for f in result.findings if not f.status.agrees}
    assert len(apart) == 2
    assert result.verdict.first_divergence.cause is Cause.MISSING


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_msprobes_dumps_are_compared_with_the_same_words(level):
    """The kernel that rounds is named; where the cells are known, inside its cell."""
    data = MSPROBE_DATA / f"operators_{level}_plain"
    result = compare_runs(data, MSPROBE_DATA / f"operators_{level}_rounded")
    first = result.verdict.first_divergence
    assert first.entry == "Mint.matmul.0.forward"
    assert (first.operator, first.cause) == ("Mint.matmul", Cause.COMPUTATION)
    assert first.cell == ("layers.0" if level == "mix" else None)
    assert first.line.startswith("recorded_operators.py:")
    assert "scores = mint.matmul(q, x.transpose(0, 2, 1))" in first.source


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_one_operator_more_shifts_none_of_msprobes_numbers(level):
    """Mint.add.1 of one run is Mint.add.2 of the other: both agree."""
    data = MSPROBE_DATA / f"operators_{level}_plain"
    result = compare_runs(data, MSPROBE_DATA / f"operators_{level}_more")
    first = result.verdict.first_divergence
    assert (first.entry, first.cause) == ("Mint.add.1.forward", Cause.MISSING)
    assert first.cell == ("layers.1" if level == "mix" else None)
    apart = {f.entry for f in result.findings if not f.status.agrees}
    assert apart == {"Mint.add.1.forward", "Mint.add.1.backward"}
    shifted = next(f for f in result.findings if f.a.name == "Mint.add.1.forward.output.0")
    assert shifted.b.name == "Mint.add.2.forward.output.0"
    assert shifted.status is Status.WITHIN_TOLERANCE


def test_a_dump_of_operators_against_one_of_cells_and_operators():
    """What msprobe's L1 lacks is coverage; operators of both are compared."""
    a, b = (MSPROBE_DATA / f"operators_{level}_plain" for level in ("L1", "mix"))
    result = compare_runs(a, b)
    assert {str(gap.reason) for gap in result.verdict.coverage} == {
        "cells not recorded (level: L1)"
    }
    forward = [f for f in result.findings if f.entry.endswith(".forward")]
    assert forward
    assert all(f.status.agrees for f in forward)


def test_an_operator_of_b_alone_has_its_own_line_though_a_has_one_of_its_name(tmp_path):
    """The n-th call of A is another one: its cell and its line are not said."""
    record_operators(tmp_path / "a")
    record_operators(tmp_path / "b", extras=[Extra(LAYERS[0], 7, "Mint.matmul")])
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first.entry == "Mint.matmul.2.forward"
    assert (first.cell, first.cause) == (LAYERS[0], Cause.MISSING)
    assert "x = mint.add(x, 0.0)" in first.source


@pytest.mark.parametrize("cell", [LAYERS[1], ""])
def test_what_to_record_next_are_the_elements_of_that_operator(plain, tmp_path, cell):
    """Of its cell, or outside all, at the level that was recorded; none where they are at hand."""
    operator = "Mint.matmul" if cell else "Mint.log"
    a, _ = plain()
    record_operators(tmp_path / "b", plants=[Plant(cell, operator)])
    settings = compare_runs(a, tmp_path / "b").verdict.first_divergence.next_step
    assert (settings["task"], settings["level"]) == ("tensor", "mix")
    assert settings["entries"] == [f"{operator}."]
    config = ProbeConfig(**settings)
    assert config.records_cell(cell)
    assert not config.records_cell("root")
    assert not config.records_cell(LAYERS[0])
    a, _ = plain(task="tensor")
    record_operators(tmp_path / "c", plants=[Plant(cell, operator)], task="tensor")
    assert compare_runs(a, tmp_path / "c").verdict.first_divergence.next_step is None


def test_rooms_are_estimated_with_operators_and_without(plain, capsys):
    """As the run was recorded; with a configuration, what that says."""
    a, _ = plain()
    whole = estimate(open_run(a), ProbeConfig(task="tensor", level="mix"))
    cells = estimate(open_run(a), ProbeConfig(task="tensor"))
    inside = ProbeConfig(task="tensor", level="L1", include=[LAYERS[0]])
    counts = [sum(p.tensors for p in found.phases) for found in (whole, cells)]
    assert counts[0] > counts[1] > 0
    assert 0 < sum(p.tensors for p in estimate(open_run(a), inside).phases) < counts[0]
    assert main(["estimate", str(a), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total_bytes"] == whole.total


def test_batches_of_other_sizes_leave_operators_out(tmp_path):
    """Cells are compared row by row; of an operator's tensor it is not known where the rows lie."""
    settings = {"task": "tensor", "backward": False, "save_loss": False}
    record_operators(tmp_path / "a", batches=(8,), phase="actor_compute_log_prob", **settings)
    record_operators(tmp_path / "b", batches=(4, 4), **settings)
    phases = ("actor_compute_log_prob", "actor_update")
    result = compare_runs(tmp_path / "a", tmp_path / "b", phases=phases)
    assert result.verdict.status is not Outcome.DIVERGED
    assert {f.entry.split(".")[0] for f in result.findings} == {"Cell"}
    assert any(
        "operators, whose rows of a batch" in str(gap.reason) for gap in result.verdict.coverage
    )


def test_an_input_that_nothing_recorded_made_is_said_so(tmp_path):
    """The operators of one cell alone: what the first of them was given came from elsewhere."""
    settings = {"cells": False, "include": [LAYERS[1]], "backward": False, "save_loss": False}
    a = record_operators(tmp_path / "a", **settings)
    record_operators(tmp_path / "b", plants=[Plant(LAYERS[0], "Mint.add")], **settings)
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first.entry == next(name for cell, _, name in a.called if cell == LAYERS[1])
    assert (first.cell, first.cause) == (LAYERS[1], Cause.INPUT)
    assert "first recorded operator of actor_update" in first.explanation


def test_a_container_that_hands_an_operator_something_else_is_the_origin(tmp_path):
    """Its own code between the operators made it: the cell is named, and not the operator."""
    record_operators(tmp_path / "a")
    plant = Plant(LAYERS[1], "Mint.tanh", 1)
    record_operators(tmp_path / "b", plants=[plant], entries=())
    for name in ("a", "b"):
        journal = next((tmp_path / name).rglob("records.jsonl"))
        lines = journal.read_text().splitlines(keepends=True)
        left = [line for line in lines if '"Mint.tanh.' not in line]
        journal.write_text("".join(left))
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    first = result.verdict.first_divergence
    assert first.entry == f"Cell.{LAYERS[1]}.Attention.forward.0"
    assert (first.cause, first.operator) == (Cause.COMPUTATION, "")
    assert "passed this operator a different input" in first.explanation


class Product(nn.Cell):
    """A batch of products, of which the second factor may be transposed."""

    def __init__(self, transposes: bool):
        super().__init__()
        self.product = ops.BatchMatMul(transpose_b=transposes)

    def construct(self, x):
        return self.product(x, x)


def record_product(probe, transposes):
    """Record a forward and a backward pass of such a network."""
    network = Product(transposes)
    probe.watch(actor=network)
    x = Tensor(np.arange(18, dtype=np.float32).reshape(2, 3, 3))
    with probe.phase("actor_update"):
        ms.grad(lambda x: network(x).sum())(x)
    probe.step()
    probe.close()


def test_other_attributes_are_to_blame_before_the_operator(layer_probe, tmp_path):
    """What a primitive was made with differs: said before that it computed something else."""
    for name, transposes in (("a", False), ("b", True), ("c", False)):
        probe = layer_probe(level="mix", dump_path=str(tmp_path / name))
        record_product(probe, transposes)
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first.entry == "Primitive.product.BatchMatMul.0.forward"
    assert [message.code for message in first.reasons][1:3] == [
        "explanation.other_attributes",
        "explanation.operator_computed",
    ]
    assert "transpose_b is False in A and True in B" in str(first.reasons[1])
    same = compare_runs(tmp_path / "a", tmp_path / "c")
    assert same.verdict.status is Outcome.IDENTICAL
