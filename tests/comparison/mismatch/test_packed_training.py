"""Samples packed in one row without where they end are aligned, and leaks between are named."""

from __future__ import annotations

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

HIDDEN = 16
SAMPLES = [[5, 6, 7, 8, 9], [6, 3, 4], [7, 7, 2, 1, 8, 3]]


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Dense(HIDDEN, HIDDEN) for _ in range(4))

    def construct(self, x, mask):
        scores = ops.matmul(self.q(x), self.k(x).swapaxes(1, 2)) + mask[:, 0]
        return x + self.o(ops.matmul(ops.softmax(scores, -1), self.v(x)))


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, HIDDEN, embedding_table="normal")
        self.pos = nn.Embedding(40, HIDDEN, embedding_table="normal")
        self.layers = nn.CellList([Layer(), Layer()])
        self.head = nn.Dense(HIDDEN, 40)

    def construct(self, input_ids, position_ids, attention_mask):
        x = self.emb(input_ids) + self.pos(position_ids)
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.head(x)


def mask_of(sizes, leak):
    """Return the additive mask of samples that stand in one row."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    seen = np.tril(np.ones((len(of), len(of)), bool))
    if not leak:
        seen &= of[:, None] == of
    return Tensor(np.where(seen, 0, -1e4)[None, None].astype(np.float32))


def recorded(path, *, leak=False, base=0, told=True):
    """Record samples one by one, and packed in one row."""
    training, rollout = Network(), Network()
    for mine, theirs in zip(rollout.get_parameters(), training.get_parameters()):
        mine.set_data(Tensor(theirs.asnumpy()))
    section = {"msprobe": True, "dump_path": str(path), "task": "tensor", "step_end": 0}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 100}

    def run(network, parts, leak=False):
        ids = np.array([[token for part in parts for token in part]], np.int32)
        places = np.array([[at + base for part in parts for at in range(len(part))]], np.int32)
        network(Tensor(ids), Tensor(places), mask_of([*map(len, parts)], leak))

    with Probe.from_config(section) as probe:
        probe.watch(actor=training)
        with probe.phase(PHASES[0], model=rollout):
            for sample in SAMPLES:
                run(rollout, [sample])
        with probe.phase(PHASES[1]):
            run(training, SAMPLES, leak)
        probe.step()
    return path


@pytest.mark.parametrize("base", [0, 1])
def test_packed_samples_agree(tmp_path, base):
    """All of their rows, from whatever number positions begin."""
    one = find_mismatch(recorded(tmp_path / "run", base=base)).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING), one.said
    assert one.rows == one.tokens == sum(map(len, SAMPLES))
    assert not any(
        "input_ids" in name or name.startswith("root input.0") for name, _ in one.not_compared
    )


def test_samples_that_see_each_other_are_named(tmp_path):
    """Only the rows behind the first sample part, by the mask."""
    one = find_mismatch(recorded(tmp_path / "run", leak=True)).found[0]
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.INPUT)
    said = [(m.code, m.params.get("kind")) for m in one.said]
    assert ("mismatch.leak", None) in said or ("mismatch.lets_in", "others") in said, one.said
