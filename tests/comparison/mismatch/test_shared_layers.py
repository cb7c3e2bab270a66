"""A layer that runs twice, tied weights, two outermost cells: the call that is wrong is named."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mindspore")
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

HIDDEN, VOCABULARY = 16, 20


class Mix(nn.Cell):
    """Adds to each token something of all tokens up to it."""

    def __init__(self, rng):
        super().__init__()
        self.proj = nn.Dense(HIDDEN, HIDDEN)
        weight = rng.normal(0, HIDDEN**-0.5, (HIDDEN, HIDDEN)).astype(np.float32)
        self.proj.weight.set_data(Tensor(weight))

    def construct(self, x):
        return x + ops.tanh(self.proj(ops.cumsum(x, 1)))


class Back(nn.Cell):
    """The first layer runs twice."""

    def __init__(self, rng):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, HIDDEN)
        table = rng.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
        self.emb.embedding_table.set_data(Tensor(table))
        self.mix, self.last = Mix(rng), Mix(rng)

    def construct(self, input_ids):
        return self.last(self.mix(self.mix(self.emb(input_ids))))


class Head(nn.Cell):
    """Its weight is the embedding's."""

    def __init__(self, emb):
        super().__init__()
        self.emb = emb

    def construct(self, x):
        return ops.matmul(x, self.emb.embedding_table.T)


class Policy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.back = Back(np.random.default_rng(0))
        self.head = Head(self.back.emb)


def found(path, task="tensor", wrong=None, calls=(0,)):
    """Record both phases without a cache, and samples in another order; of one cell, calls wrong.

    Args:
        wrong: the name of a cell whose output is a thousandth too large in the rollout.
        calls: of two calls each.
    """
    network = Policy()
    section = {"msprobe": True, "dump_path": str(path), "task": task, "token_range_end": 100}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "directions": ["forward"]}
    ids = np.random.default_rng(1).integers(1, VOCABULARY, (3, 7)).astype(np.int32)
    cell = dict(network.cells_and_names()).get(wrong)
    with Probe.from_config(section) as probe:
        probe.watch(actor=network)
        if cell is not None:
            right, count = cell.construct, iter(range(1000))
            cell.construct = lambda x: right(x) * (1.001 if next(count) % 2 in calls else 1)
        with probe.phase("actor_generate_sequences"):
            for length in range(3, 8):
                network.head(network.back(Tensor(ids[:, :length])))
        if cell is not None:
            cell.construct = right
        with probe.phase("actor_compute_log_prob"):
            network.head(network.back(Tensor(ids[::-1].copy())))
        probe.step()
    return find_mismatch(path).found[0]


@pytest.mark.parametrize("task", ["tensor", "sketch"])
def test_they_agree(tmp_path, task):
    """Rows that are computed once more are compared once more."""
    one = found(tmp_path / "run", task)
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows == one.tokens == 3 * (3 + 4 + 5 + 6 + 7)


@pytest.mark.parametrize("task", ["tensor", "sketch"])
@pytest.mark.parametrize(
    ("wrong", "calls", "named"),
    [
        ("back.mix.proj", (0,), "back.mix.proj output.0"),
        ("back.mix.proj", (1,), "back.mix.proj[1] output.0"),
        ("back.last.proj", (0, 1), "back.last.proj output.0"),
        ("head", (0, 1), "head output.0"),
    ],
)
def test_the_call_that_is_wrong_is_named(tmp_path, task, wrong, calls, named):
    """Not the one before, which agrees, and not the cell around it."""
    one = found(tmp_path / "run", task, wrong, calls)
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.COMPUTATION)
    assert one.first.name == named
