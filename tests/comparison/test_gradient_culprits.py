"""Culprits among the gradients: runs whose backward entries are written as the format has them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from runs import Fault, Recording, slightly_more

from mindrlhf_msprobe.comparison import compare_runs

PHASE = "actor_update"
ROOT, A, B = "Cell.root.Net", "Cell.a.Dense", "Cell.b.Dense"


def training(root, *faults, **settings):
    """Record an update of root(b(a(x))): forward, backward, gradients of the parameters."""
    recording = Recording(root, faults=faults, **settings)
    random = np.random.default_rng(0)
    x, weight_a, weight_b, gradient = (random.normal(size=(4, 4)) for _ in range(4))
    clock = itertools.count()

    def write(name, seq, end, parent, **values):
        describe = recording._describer().describe
        line = {"entry": name, "seq": seq, "end": end, "parent": parent, "opening": 0}
        for part, value in values.items():
            io = "input" if part == "input_args" else part
            line[part] = describe(value, f"{name}.{io}")
        recording.writer.append_entry(PHASE, recording.step, line, ())

    def touch(place, value):
        return recording.touch(place, np.asarray(value, np.float32))

    with recording.phase(PHASE):
        start = next(clock)
        begin_a = next(clock)
        hidden = touch("a", x @ weight_a)
        write(
            f"{A}.forward.0",
            begin_a,
            next(clock),
            f"{ROOT}.forward.0",
            input_args=[x],
            output=[hidden],
            parameters={"weight": weight_a},
        )
        begin_b = next(clock)
        out = touch("b", hidden @ weight_b)
        write(
            f"{B}.forward.0",
            begin_b,
            next(clock),
            f"{ROOT}.forward.0",
            input_args=[hidden],
            output=[out],
            parameters={"weight": weight_b},
        )
        write(f"{ROOT}.forward.0", start, next(clock), None, input_args=[x], output=[out])

        start = next(clock)
        arrives = touch("loss", gradient)
        begin_b = next(clock)
        at_hidden = touch("b.backward", arrives @ weight_b.T)
        write(
            f"{B}.backward.0",
            begin_b,
            next(clock),
            f"{ROOT}.backward.0",
            input=[arrives],
            output=[at_hidden],
        )
        write(
            f"{B}.parameters_grad.0",
            next(clock),
            next(clock),
            None,
            weight=[touch("b.weight", hidden.T @ arrives)],
        )
        begin_a = next(clock)
        handed = touch("between", at_hidden)
        at_x = touch("a.backward", handed @ weight_a.T)
        write(
            f"{A}.backward.0",
            begin_a,
            next(clock),
            f"{ROOT}.backward.0",
            input=[handed],
            output=[at_x],
        )
        write(
            f"{A}.parameters_grad.0",
            next(clock),
            next(clock),
            None,
            weight=[touch("a.weight", x.T @ handed)],
        )
        write(f"{ROOT}.backward.0", start, next(clock), None, input=[arrives], output=[at_x])
    recording.end_step()
    return recording.close()


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


def test_equal_gradients_are_identical(tmp_path):
    """All entries of both directions are compared, and agree."""
    a, b = training(tmp_path / "a"), training(tmp_path / "b")
    comparison = compare_runs(a, b)
    assert comparison
    assert {finding.entry.rsplit(".", 2)[1] for finding in comparison.findings} == {
        "forward",
        "backward",
        "parameters_grad",
    }


def test_a_gradient_that_arrives_otherwise_points_at_the_loss(tmp_path):
    """The explanation says that the forward pass agrees."""
    a = training(tmp_path / "a")
    b = training(tmp_path / "b", Fault("loss", PHASE))
    assert "the loss" in compare_runs(a, b).verdict.first_divergence.explanation
