"""Masks of bools and integers, three or four axes, recorded with sketches: what they let in."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("mindspore")
import mindspore as ms
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

HIDDEN, VOCABULARY, RESPONSE = 512, 40, 4
DTYPES = {"bool": ms.bool_, "uint8": ms.uint8, "int32": ms.int32}


class Mask(nn.Cell):
    """Makes the mask of new tokens and all before, bool or integers, 1 letting in.

    Args:
        axes: 3, [b, s, k]; 4, [b, 1, s, k].
        wrong: "padding" or "later": what it lets in; None: nothing.
    """

    def __init__(self, dtype, axes, wrong):
        super().__init__()
        self.dtype, self.axes, self.wrong = dtype, axes, wrong

    def construct(self, valid, new):
        held = valid.shape[1]
        rows = np.arange(held - new, held)[:, None]
        later = np.arange(held) > rows + (self.wrong == "later")
        allowed = Tensor(~later)[None]
        if self.wrong != "padding":
            itself = Tensor(np.arange(held) == rows)[None]
            allowed = ops.logical_or(ops.logical_and(allowed, valid[:, None] > 0), itself)
        allowed = ops.logical_and(allowed, ops.ones_like(valid[:, None]).astype(ms.bool_))
        return (allowed if self.axes == 3 else allowed[:, None]).astype(self.dtype)


class Attention(nn.Cell):
    def construct(self, x, held, mask):
        mask = mask.reshape(mask.shape[0], *mask.shape[-2:])
        scores = ops.where(mask > 0, ops.bmm(x, held.swapaxes(1, 2)) / HIDDEN, -1e9)
        return ops.bmm(ops.softmax(scores), held)


class Policy(nn.Cell):
    """Embeds tokens, and puts together what those up to each hold."""

    def __init__(self, rng, *mask):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, HIDDEN)
        self.emb.embedding_table.set_data(Tensor(rng.normal(size=(VOCABULARY, HIDDEN)), ms.float32))
        self.mask, self.attention, self.head = (
            Mask(*mask),
            Attention(),
            nn.Dense(HIDDEN, 48, has_bias=False),
        )
        weight = rng.normal(size=(48, HIDDEN)) / HIDDEN**0.5
        self.head.weight.set_data(Tensor(weight, ms.float32))
        self.past = None

    def construct(self, input_ids, attention_mask, position_ids):
        x = self.emb(input_ids)
        held = x if self.past is None else ops.cat([self.past, x], 1)
        self.past = held
        return self.head(self.attention(x, held, self.mask(attention_mask, x.shape[1])))


def positions_of(valid):
    return np.maximum(np.cumsum(valid, 1) - 1, 0).astype(np.int32)


def recorded(path, seed, dtype, axes, rollout=None, training=None):
    """Record a rollout with a cache, prompts padded on the left, and a training of whole rows."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(12, 25, 3)
    width = int(lengths.max()) + 2
    ids = draw.integers(1, VOCABULARY, (3, width + RESPONSE)).astype(np.int32)
    valid = (np.arange(width + RESPONSE) >= width - lengths[:, None]).astype(np.int32)
    ids *= valid
    networks = [
        Policy(np.random.default_rng(seed), DTYPES[dtype], axes, wrong)
        for wrong in (rollout, training)
    ]
    section = {"msprobe": True, "dump_path": str(path), "task": "sketch", "token_range_end": 100}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "directions": ["forward"]}
    section |= {"key_data_dump": True}
    with Probe.from_config(section) as probe:
        probe.watch(actor=networks[1])
        probe.save_data({"prompts": ids[:, :width], "responses": ids[:, width:]})
        with probe.phase("actor_generate_sequences", model=networks[0]):
            for start, stop in [(0, width), *((n, n + 1) for n in range(width, ids.shape[1]))]:
                positions = positions_of(valid)[:, start:stop]
                given = ids[:, start:stop], valid[:, :stop], positions
                networks[0](*(Tensor(np.ascontiguousarray(one)) for one in given))
        with probe.phase("actor_compute_log_prob"):
            order = draw.permutation(3)
            networks[1](*(Tensor(one[order]) for one in (ids, valid, positions_of(valid))))
        probe.step()
    return find_mismatch(path).found[0]


CASES = [(dtype, axes) for dtype in DTYPES for axes in (3, 4)]


@pytest.mark.parametrize(("dtype", "axes"), CASES)
def test_healthy_masks_are_compared(tmp_path, dtype, axes):
    """And agree."""
    one = recorded(tmp_path / "run", random.Random(dtype).randrange(99), dtype, axes)
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    (stage,) = (stage for stage in one.stages if stage.name == "mask output.0")
    assert stage.apart == 0
    assert "attention input.2" not in dict(one.not_compared)


@pytest.mark.parametrize("wrong", ["padding", "later"])
@pytest.mark.parametrize(("dtype", "axes"), CASES)
def test_what_a_mask_lets_in_is_named(tmp_path, dtype, axes, wrong):
    """The mask, not what attention makes of it."""
    draw = random.Random(f"{dtype}{axes}{wrong}")
    seed, side = draw.randrange(99), draw.choice(["rollout", "training"])
    one = recorded(tmp_path / "run", seed, dtype, axes, **{side: wrong})
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.COMPUTATION)
    assert one.first.name == "mask output.0"
    (said,) = (said for said in one.said if said.code == "mismatch.lets_in")
    assert said.params["side"] == side
    assert said.params["kind"] == wrong


class Experts(nn.Cell):
    """Returns bools of the shape of a mask, others at each call."""

    def construct(self, x):
        return ops.logical_xor(ops.zeros((2, 512, 512), ms.bool_), (x > 0)[:, :1])


def test_what_is_no_mask_takes_no_more_room_than_one(tmp_path):
    """Of what follows there are fingerprints; an equal one costs nothing."""
    network = Experts()
    section = {"msprobe": True, "dump_path": str(tmp_path / "run"), "task": "sketch"}
    drawn = np.random.default_rng(0).normal(size=(3, 2, 512, 512)).astype(np.float32)
    with Probe.from_config(section | {"actor_train_dump": True}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_compute_log_prob"):
            for number in (0, 1, 0, 2):
                network(Tensor(drawn[number]))
        probe.step()
    outputs = [
        record
        for entry in open_run(tmp_path / "run").entries("actor_compute_log_prob")
        for record in entry.records
        if record.io == "output"
    ]
    assert [record.file is not None for record in outputs] == [True, False, True, False]
    assert [record.leaf.sketch is None for record in outputs] == [True, False, True, False]
