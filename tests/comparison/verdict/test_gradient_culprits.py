"""Culprits among the gradients: runs whose backward entries are written as the format has them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from helpers.runs import Fault, Recording, slightly_more

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Cause, CulpritCode
from mindrlhf_msprobe.storage.journal_line import JournalLine

PHASE = "actor_update"
ROOT, A, B = "Cell.root.Net", "Cell.a.Dense", "Cell.b.Dense"


def training(root, *faults, clip=None, **settings):
    """Record an update of root(b(a(x))): forward, backward, gradients of the parameters.

    Args:
        clip: by what the gradients are multiplied before they enter the optimizer, where they are
            recorded then, as in graph mode; None: they are recorded as they arise.
    """
    recording = Recording(root, faults=faults, **settings)
    random = np.random.default_rng(0)
    x, weight_a, weight_b, gradient = (random.normal(size=(4, 4)) for _ in range(4))
    clock = itertools.count()

    def write(name, seq, end, parent, at_optimizer=False, **values):
        describe = recording.opening.describe
        line = JournalLine(name, seq, end, parent)
        for part, value in values.items():
            io = "input" if part == "input_args" else part
            described = describe(value, f"{name}.{io}")
            if at_optimizer:
                described = [{**leaf, "at_optimizer": True} for leaf in described]
            if part == "weight":
                part, described = "parameters_grad", {part: described}
            line.values[part] = described
        recording.writer.sink(PHASE, recording.step).append(line)

    def ended(name, begin, parent, **values):
        write(name, begin, next(clock), parent, **values)

    late = []

    def gradient_of(entry, place, value):
        if clip is None:
            write(entry, next(clock), next(clock), None, weight=[touch(place, value)])
        else:
            late.append((entry, np.float32(clip) * touch(place, value)))

    def touch(place, value):
        return recording.touch(place, np.asarray(value, np.float32))

    with recording.phase(PHASE):
        start, begin = next(clock), next(clock)
        hidden, root = touch("a", x @ weight_a), f"{ROOT}.forward.0"
        given = {"input_args": [x], "parameters": {"weight": weight_a}}
        ended(f"{A}.forward.0", begin, root, **given, output=[hidden])
        begin = next(clock)
        out = touch("b", hidden @ weight_b)
        given = {"input_args": [hidden], "parameters": {"weight": weight_b}}
        ended(f"{B}.forward.0", begin, root, **given, output=[out])
        ended(root, start, None, input_args=[x], output=[out])

        start, root = next(clock), f"{ROOT}.backward.0"
        arrives = touch("loss", gradient)
        begin = next(clock)
        at_hidden = touch("b.backward", arrives @ weight_b.T)
        ended(f"{B}.backward.0", begin, root, input=[arrives], output=[at_hidden])
        gradient_of(f"{B}.parameters_grad.0", "b.weight", hidden.T @ arrives)
        begin = next(clock)
        handed = touch("between", at_hidden)
        at_x = touch("a.backward", handed @ weight_a.T)
        ended(f"{A}.backward.0", begin, root, input=[handed], output=[at_x])
        gradient_of(f"{A}.parameters_grad.0", "a.weight", x.T @ handed)
        ended(root, start, None, input=[arrives], output=[at_x])
        for entry, value in late:
            write(entry, next(clock), next(clock), None, at_optimizer=True, weight=[value])
    recording.end_step()
    return recording.close()


def leave_out(run, part):
    """Take the lines out of a run's journals whose entry has this part in its name."""
    for journal in run.rglob("records.jsonl"):
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join(x for x in lines if part not in json.loads(x)["entry"]))


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("place", "origin", "cause"),
    [
        ("a", f"{A}.forward.0", "computation"),
        ("loss", f"{ROOT}.backward.0", "input"),
        ("b.backward", f"{B}.backward.0", "computation"),
        ("b.weight", f"{B}.parameters_grad.0", "computation"),
        ("between", f"{ROOT}.backward.0", "computation"),
        ("a.backward", f"{A}.backward.0", "computation"),
        ("a.weight", f"{A}.parameters_grad.0", "computation"),
    ],
)
def test_the_origin_among_the_gradients(tmp_path, place, origin, cause, task):
    """Each cell's backward, the loss, and a container's own code are told apart."""
    a = training(tmp_path / "a", task=task)
    b = training(tmp_path / "b", Fault(place, PHASE, change=slightly_more), task=task)
    first = compare_runs(a, b).verdict.first_divergence
    assert (first.entry, str(first.cause)) == (origin, cause)


def test_a_gradient_that_arrives_otherwise_points_at_the_loss(tmp_path):
    """The explanation says that the forward pass agrees."""
    a = training(tmp_path / "a")
    b = training(tmp_path / "b", Fault("loss", PHASE))
    assert "the loss" in compare_runs(a, b).verdict.first_divergence.explanation


@pytest.mark.parametrize("backward", [True, False])
def test_gradients_that_all_part_before_the_optimizer_blame_no_cell(tmp_path, backward):
    """Clipped otherwise: what stands between the two is named; without the backward pass, both."""
    runs = [training(tmp_path / str(clip), clip=clip) for clip in (1.0, 0.5)]
    if not backward:
        for run in runs:
            leave_out(run, ".backward.")
    first = compare_runs(*runs).verdict.first_divergence
    assert first.entry == f"{B}.parameters_grad.0"
    if backward:
        assert (first.cause, first.culprit.code) == (Cause.DATA, CulpritCode.BEFORE_OPTIMIZER)
        assert first.culprit.details["gradients"] == 2
        assert first.next_step is None
        assert "clipping" in first.explanation
    else:
        assert (first.cause, first.culprit) == (Cause.COMPUTATION, None)
        assert "clipping, unscaling, accumulation" in first.explanation


def test_one_gradient_that_parts_before_the_optimizer_leaves_both_open(tmp_path):
    """The other one agrees, so it may be this cell's own."""
    runs = [training(tmp_path / "a", clip=1.0)]
    runs.append(training(tmp_path / "b", Fault("a.weight", PHASE), clip=1.0))
    first = compare_runs(*runs).verdict.first_divergence
    assert (first.entry, first.cause) == (f"{A}.parameters_grad.0", Cause.COMPUTATION)
    assert first.culprit is None
    assert "may be to blame as well" in first.explanation
