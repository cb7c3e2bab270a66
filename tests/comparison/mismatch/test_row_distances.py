"""How far rows are apart; and what is kept of a million records."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.comparison.mismatch.rows import distances
from mindrlhf_msprobe.comparison.mismatch.sides import read_side


@pytest.mark.parametrize("columns", [1, 4, 31, 64, 1000, 4096, 4100])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_distances_of_chosen_rows(columns, dtype):
    """Against float64, row by row."""
    random = np.random.default_rng(columns)
    a, b = (random.standard_normal((9, columns)).astype(dtype) for _ in range(2))
    rows = np.array([8, 0, 3, 3]), np.array([1, 0, 8, 2])
    b[0] = a[0]
    found = distances(a, b, rows)
    x, y = a[rows[0]].astype(np.float64), b[rows[1]].astype(np.float64)
    assert found.squared == pytest.approx(((x - y) ** 2).sum(axis=1), rel=2e-5)
    assert found.norms == pytest.approx((y**2).sum(axis=1), rel=2e-5)
    assert found.unequal.tolist() == [True, False, True, True]


def test_what_is_too_small_to_be_squared_differs():
    """Rows that float32 cannot tell apart by their distance are not called equal."""
    a, b = np.zeros((2, 40), np.float32), np.zeros((2, 40), np.float32)
    a[0, 39] = 1e-30
    found = distances(a, b)
    assert found.squared.tolist() == [0, 0]
    assert found.unequal.tolist() == [True, False]


def test_numbers_that_are_not_finite():
    """NaN is equal to NaN; beside a number it is further apart than anything."""
    inf, nan = np.inf, np.nan
    a = np.array([[nan, 1], [nan, 1], [inf, 1], [inf, 1], [1, 1]], np.float32)
    b = np.array([[nan, 1], [1, 1], [inf, 1], [-inf, 1], [nan, 1]], np.float32)
    found = distances(a, b)
    assert found.unequal.tolist() == [False, True, False, True, True]
    assert found.relative().tolist() == [0, inf, 0, inf, inf]


def test_rows_that_are_not_there_are_refused():
    """Nothing beside the tensors is read."""
    a = np.zeros((3, 8), np.float32)
    for rows in ([0, 3], [0, -4], [3], [2, 3]):
        wrong = np.array(rows)
        for pair in ((wrong, np.zeros_like(wrong)), (np.zeros_like(wrong), wrong)):
            with pytest.raises(IndexError):
                distances(a, a, pair)


def test_of_each_record_few_bytes_are_kept(tmp_path):
    """Calls of a cell share what they have in common: a step may have a million of them."""
    mindspore = pytest.importorskip("mindspore")

    class Network(mindspore.nn.Cell):
        def __init__(self):
            super().__init__()
            self.layer = mindspore.nn.Dense(4, 4)

        def construct(self, input_ids):
            return self.layer(input_ids.astype(mindspore.float32))

    network = Network()
    on = {"msprobe": True, "dump_path": str(tmp_path / "run"), "task": "tensor"}
    with Probe.from_config({**on, "actor_train_dump": True, "step_end": 9}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_compute_log_prob"):
            for _ in range(20):
                network(mindspore.Tensor(np.ones((2, 4), np.int32)))
        probe.step()
    side = read_side(open_run(tmp_path / "run"), "actor_compute_log_prob", 0, 0)
    assert side.values
    for value in side.values.values():
        assert len(value.calls) == 20
        assert len(value.leaves()) == 1
        assert value.record(19).array().shape == value.shape(19)
        assert ".forward.19." in value.record(19).location
