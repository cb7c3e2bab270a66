"""What a cell is given or returns of scores, with the tokens of a cache as columns, is compared."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mindspore")
import mindspore as ms
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

HIDDEN, HEADS, VOCABULARY = 16, 2, 12
SIZE = HIDDEN // HEADS


class Mask(nn.Cell):
    """False where a token may be seen."""

    def construct(self, seen):
        return ops.logical_not(seen)


class Attention(nn.Cell):
    def __init__(self, rng):
        super().__init__()
        self.qkv, self.out = nn.Dense(HIDDEN, 3 * HIDDEN), nn.Dense(HIDDEN, HIDDEN)
        for cell in (self.qkv, self.out):
            cell.weight.set_data(Tensor(rng.normal(0, 0.3, cell.weight.shape).astype(np.float32)))
        self.softmax = nn.Softmax(-1)
        self.cache = None

    def construct(self, x, mask):
        batch, length, _ = x.shape
        made = self.qkv(x).reshape(batch, length, HEADS, 3 * SIZE).swapaxes(1, 2)
        query, key, value = ops.split(made, [SIZE] * 3, 3)
        if self.cache is not None:
            key, value = (ops.cat(both, 2) for both in zip(self.cache, (key, value)))
            self.cache = key, value
        scores = ops.matmul(query, key.swapaxes(2, 3)) / SIZE**0.5
        weights = self.softmax(scores.masked_fill(mask, -1e9))
        return self.out(ops.matmul(weights, value).swapaxes(1, 2).reshape(batch, length, -1))


class Policy(nn.Cell):
    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.emb = nn.Embedding(VOCABULARY, HIDDEN)
        table = rng.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
        self.emb.embedding_table.set_data(Tensor(table))
        self.mask = Mask()
        self.layers = nn.CellList([Attention(rng), Attention(rng)])

    def construct(self, input_ids, attention_mask, seen):
        x, mask = self.emb(input_ids), self.mask(seen)
        for layer in self.layers:
            x = x + layer(x, mask)
        return x

    def begin(self):
        """Hold nothing; from now on tokens are kept."""
        empty = Tensor(np.zeros((3, HEADS, 0, SIZE), np.float32))
        for layer in self.layers:
            layer.cache = empty, empty


def tensors(ids, valid, rows):
    """Return what the network is given of the last rows of whole sequences."""
    seen = np.tril(np.ones(valid.shape[1:] * 2, bool)) & valid[:, None]
    now = valid if rows == valid.shape[1] else np.ones((len(valid), rows), bool)
    return (
        Tensor(ids[:, -rows:], ms.int32),
        Tensor(now.astype(np.int32)),
        Tensor(seen[:, None, -rows:]),
    )


def found(path, wrong=None, cell="layers.1.softmax"):
    """Record both phases, one of the rollout's cells changed; return what is concluded."""
    network = Policy()
    section = {"msprobe": True, "dump_path": str(path), "task": "tensor", "token_range_end": 100}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "directions": ["forward"]}
    ids = np.random.default_rng(1).integers(1, VOCABULARY, (3, 9))
    valid = np.ones((3, 9), bool)
    for sample, padding in enumerate((0, 2, 1)):
        ids[sample, :padding], valid[sample, :padding] = 0, False
    changed = dict(network.cells_and_names())[cell]
    with Probe.from_config(section) as probe:
        probe.watch(actor=network)
        right = changed.construct
        if wrong is not None:
            changed.construct = lambda x: wrong(right, x)
        with probe.phase("actor_generate_sequences"):
            network.begin()
            network(*tensors(ids[:, :5], valid[:, :5], 5))
            for length in range(6, 10):
                network(*tensors(ids[:, :length], valid[:, :length], 1))
        changed.construct = right
        for layer in network.layers:
            layer.cache = None
        whole = np.zeros((3, 11), np.int64)
        for sample in range(3):
            tokens = ids[2 - sample, valid[2 - sample]]
            whole[sample, : len(tokens)] = tokens
        with probe.phase("actor_compute_log_prob"):
            network(*tensors(whole, whole > 0, 11))
        probe.step()
    return find_mismatch(path).found[0]


def test_scores_and_masks_of_the_same_network_agree(tmp_path):
    """All of them are compared, one column for each token before."""
    one = found(tmp_path / "run")
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    names = {stage.name for stage in one.stages}
    for layer in "01":
        assert f"layers.{layer} input.1" in names
        assert {f"layers.{layer}.softmax {io}.0" for io in ("input", "output")} <= names
    assert "mask output.0" in names
    assert one.rows == one.tokens == 9 + 7 + 8


def other_head(right, x):
    """Return weights of which one head's are those of other scores."""
    made = right(x).asnumpy().copy()
    made[:, 1] = right(x * 1.01).asnumpy()[:, 1]
    return Tensor(made)


def window(right, seen):
    """Let decode see the last three tokens alone."""
    made = right(seen).asnumpy().copy()
    if made.shape[-2] == 1:
        made[..., :-3] = True
    return Tensor(made)


def test_weights_that_differ_are_named_where_they_are_made(tmp_path):
    """The softmax, and no cell behind it."""
    one = found(tmp_path / "run", other_head)
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.COMPUTATION)
    assert one.first.name == "layers.1.softmax output.0"


def test_a_mask_that_hides_tokens_before_is_named(tmp_path):
    """With what it hides, and in how many rows."""
    one = found(tmp_path / "run", window, "mask")
    assert one.first.name == "mask output.0"
    said = {said.code: said.params for said in one.said}
    assert said["mismatch.lets_in"]["kind"] == "hidden"
    assert (said["mismatch.lets_in"]["side"], said["mismatch.lets_in"]["rows"]) == ("rollout", 12)
    assert said["mismatch.rows"]["where"] == "decode"
    assert [stage.name for stage in one.origins] == ["mask output.0"]
