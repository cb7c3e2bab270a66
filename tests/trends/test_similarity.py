"""How alike gradients are: cosine or signs, by parameter and update, and where that falls."""

from __future__ import annotations

import csv
import sys

import numpy as np
import pytest
from helpers.gradients import probed_by_msprobe, record_gradients
from helpers.runs import record_training

from mindrlhf_msprobe import GradComparator, UsageError
from mindrlhf_msprobe.storage.reading.gradients import open_gradients
from mindrlhf_msprobe.trends.formulas import cosine
from mindrlhf_msprobe.trends.similarity import Measure, Suspicion, compare_gradients

CELLS = {"a": (40, 5), "layers.0.b": (7,), "head": (3, 3)}


def gradients(seed):
    random = np.random.default_rng(seed)
    return {cell: random.normal(size=shape).astype(np.float32) for cell, shape in CELLS.items()}


def flipped(step, share, seed=9):
    """Return the gradients of a step, of which a share of `a` has the other sign."""
    changed = {cell: np.array(values) for cell, values in gradients(step).items()}
    flat = changed["a"].reshape(-1)
    flat[: round(share * flat.size)] *= -1
    return changed


def compared(tmp_path, a, b, *, of_a=None, of_b=None, **options):
    settings = {"signs": True}
    one = record_gradients(tmp_path / "one", a, **(of_a or settings))
    other = record_gradients(tmp_path / "other", b, **(of_b or settings))
    return compare_gradients(open_gradients(one), open_gradients(other), **options)


TENSORS = {"signs": False, "task": "tensor"}


def test_equal_gradients_are_alike(tmp_path):
    """Every similarity is 1, nothing is suspicious."""
    steps = {step: gradients(step) for step in range(3)}
    found = compared(tmp_path, steps, steps)
    assert {one.value for one in found.similarities} == {1.0}
    assert found.suspicious == []
    assert [update.size for update in found.updates] == [216] * 3


@pytest.mark.parametrize(("of_a", "of_b", "measure"), [
    (None, None, Measure.SIGNS), (TENSORS, None, Measure.SIGNS), (TENSORS, TENSORS, Measure.COSINE),
])  # fmt: skip
def test_the_first_fall_is_named(tmp_path, of_a, of_b, measure):
    """At step 2 a tenth of one parameter turns around: that place, and weighted in the whole."""
    a = {step: gradients(step) for step in range(4)}
    b = {**a, 2: flipped(2, 0.1)}
    found = compared(tmp_path, a, b, of_a=of_a, of_b=of_b)
    (fall,) = found.suspicious
    assert (fall.step, fall.parameter, fall.suspicion) == (2, "a.weight", Suspicion.FALL)
    assert (fall.measure, fall.before) == (measure, pytest.approx(1))
    x, y = a[2]["a"].ravel(), b[2]["a"].ravel()
    expected = 0.9 if measure is Measure.SIGNS else x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    assert fall.value == pytest.approx(expected, rel=1e-6)
    assert found.updates[2].value == pytest.approx((expected * 200 + 16) / 216, rel=1e-6)


def test_a_first_similarity_may_be_too_low(tmp_path):
    """Below 0.97; the thresholds can be others, and what stays low is said once."""
    a = {step: gradients(step) for step in range(3)}
    b = {step: flipped(step, 0.05) for step in range(3)}
    found = compared(tmp_path, a, b)
    assert [(s.step, s.suspicion) for s in found.suspicious] == [(0, Suspicion.FIRST_LOW)]
    again = [open_gradients(tmp_path / side) for side in ("one", "other")]
    assert compare_gradients(*again, first=0.9).suspicious == []


def test_updates_of_a_step_follow_each_other(tmp_path):
    """The n-th call of the optimizer in a step is compared with the n-th."""
    a = {0: [gradients(n) for n in range(3)]}
    b = {0: [gradients(0), gradients(1), flipped(2, 0.5)]}
    (fall,) = compared(tmp_path, a, b).suspicious
    assert (fall.step, fall.update) == (0, 2)


def test_what_cannot_be_compared_is_never_alike(tmp_path):
    """A parameter of one side, another shape, statistics alone, NaN, steps of one side."""
    a = {0: gradients(0), 1: gradients(1), 5: gradients(5)}
    b = {0: {**gradients(0), "head": np.ones(4, np.float32)}, 1: gradients(1)}
    del b[1]["layers.0.b"]
    b[1]["a"][0, 0] = np.nan
    found = compared(tmp_path, a, b)
    assert [(s.step, s.parameter, s.suspicion) for s in found.suspicious] == [
        (0, "head.weight", Suspicion.NOT_COMPARED),
        (1, "a.weight", Suspicion.NOT_FINITE),
        (1, "layers.0.b.weight", Suspicion.NOT_COMPARED),
    ]
    assert found.alone == [("A", 5, 0)]
    statistics = record_gradients(tmp_path / "statistics", a, signs=False)
    with_statistics = compare_gradients(
        open_gradients(statistics), open_gradients(tmp_path / "one")
    )
    assert with_statistics.compared == []
    assert len(with_statistics.suspicious) == 9
    nothing = record_training(tmp_path / "nothing", steps=1, tokens=1)
    none = compare_gradients(open_gradients(nothing), open_gradients(nothing))
    assert (none.similarities, none.updates) == ([], [])


def test_cosine_of_zeros_and_of_what_is_not_finite():
    """Two zeros are alike, one is not; NaN stays NaN; a large float32 does not overflow."""
    zero, one = np.zeros(3, np.float32), np.array([1, 2, 3], np.float32)
    assert cosine(zero, zero) == 1
    assert cosine(zero, one) == 0
    assert cosine(one, -one) == -1
    assert np.isnan(cosine(one, np.array([np.inf, 0, 0])))
    assert cosine(one * np.float32(1e38), one, block=2) == pytest.approx(1)


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_grad_comparator_writes_msprobes_table(tmp_path):
    """What msprobe computes of its own dumps: equal signs over elements, a summary last."""
    a = {step: gradients(step) for step in range(3)}
    b = {step: flipped(step, 0.1 * step) for step in range(3)}
    one = probed_by_msprobe(tmp_path / "one", a)
    other = probed_by_msprobe(tmp_path / "other", b)
    GradComparator.compare_distributed(str(one), str(other), str(tmp_path / "out"))
    table = read(tmp_path / "out/rank0/similarities.csv")
    assert table[0] == ["step", "0", "1", "2"]
    equal = {c: [((a[s][c] > 0) == (b[s][c] > 0)) for s in range(3)] for c in CELLS}
    assert [row[0] for row in table[1:]] == [*CELLS, "summary"]
    for row in table[1:-1]:
        assert [float(v) for v in row[1:]] == [same.mean() for same in equal[row[0]]]
    summary = [np.concatenate([equal[c][s].ravel() for c in CELLS]).mean() for s in range(3)]
    np.testing.assert_allclose([float(v) for v in table[-1][1:]], summary)
    GradComparator.compare(one / "rank0", other / "rank0", tmp_path / "of_rank")
    assert read(tmp_path / "of_rank/similarities.csv") == table


def test_grad_comparator_says_what_is_left_out(tmp_path, warnings_of, monkeypatch):
    """Pictures without matplotlib, and a parameter that cannot be compared: NaN in its cell."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    one = probed_by_msprobe(tmp_path / "one", {0: gradients(0)})
    other = probed_by_msprobe(tmp_path / "other", {0: {**gradients(0), "head": np.ones(2)}})
    GradComparator.compare_distributed(one, other, tmp_path / "out")
    row = next(r for r in read(tmp_path / "out/rank0/similarities.csv") if r[0] == "head")
    assert row[1] == "NaN"
    assert any("head" in line and "shapes" in line for line in warnings_of())
    assert any("matplotlib" in line for line in warnings_of())


def test_grad_comparator_takes_our_runs(tmp_path):
    """Signs or elements; columns are steps, of several updates step.update."""
    a = {0: gradients(0), 2: gradients(2)}
    record_gradients(tmp_path / "one", a, ranks=(0, 1))
    record_gradients(tmp_path / "other", {0: a[0], 2: flipped(2, 0.1)}, ranks=(0, 1), **TENSORS)
    GradComparator.compare_distributed(tmp_path / "one", tmp_path / "other", tmp_path / "out")
    for rank in (0, 1):
        table = read(tmp_path / f"out/rank{rank}/similarities.csv")
        assert table[:2] == [["step", "0", "2"], ["a.weight", "1.0", "0.9"]]
    several = record_gradients(tmp_path / "several", {0: [a[0], a[2]]})
    same = record_gradients(tmp_path / "same", {0: [a[0], a[2]]})
    GradComparator.compare(several, same, tmp_path / "of_updates")
    assert read(tmp_path / "of_updates/similarities.csv")[0] == ["step", "0.0", "0.1"]
    with pytest.raises(UsageError, match="no gradients of the same steps"):
        GradComparator.compare(
            record_gradients(tmp_path / "later", {9: a[0]}), same, tmp_path / "x"
        )


def test_single_processes_of_msprobe_meet_whatever_their_ids(tmp_path):
    """msprobe names a rank by the process id there."""
    one = probed_by_msprobe(tmp_path / "one", {0: gradients(0)}, rank=4711)
    other = probed_by_msprobe(tmp_path / "other", {0: gradients(0)}, rank=4712)
    found = compare_gradients(open_gradients(one), open_gradients(other))
    assert {s.value for s in found.compared} == {1.0}
