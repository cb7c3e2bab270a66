"""Beam search: between two calls the rows of the cache are put in another order."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

HIDDEN = 32
PROMPT = [1, 2, 3]
TOKENS = [[4, 5, 6], [7, 8, 6], [10, 11, 6]]  # of each beam before the new order
ORDER = [1, 2, 0]


class Layer(nn.Cell):
    """Adds to each token what all tokens up to it sum up to; a cache holds the sum so far."""

    def __init__(self):
        super().__init__()
        self.v, self.o = nn.Dense(HIDDEN, HIDDEN), nn.Dense(HIDDEN, HIDDEN)
        self.cache = None

    def construct(self, x):
        summed = ops.cumsum(self.v(x), 1)
        if self.cache is not None:
            summed = summed + ops.expand_dims(self.cache, 1)
            self.cache = summed[:, -1]
        return x + self.o(ops.tanh(summed))


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, HIDDEN, embedding_table="normal")
        self.layers = nn.CellList([Layer(), Layer()])
        self.head = nn.Dense(HIDDEN, 40)

    def construct(self, input_ids, position_ids):
        x = self.emb(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def beams(later, order=ORDER):
    """Return what each beam is given, and the responses: `later` behind the new order."""
    given = [[*tokens, *behind] for tokens, behind in zip(TOKENS, later)]
    responses = [[*TOKENS[of], *behind, 30] for of, behind in zip(order, later)]
    return given, responses


def recorded(path, later, *, order=ORDER, kept=(), apart=None, responses=None):
    """Record three beams of one prompt, whose cache has another order from their fourth token on.

    Args:
        later: the tokens of each beam behind it.
        kept: layers whose cache is left as it was.
        apart: how far the log-probabilities are apart; None: they are not saved.
        responses: what is saved and trained on; None: what the beams are.
    """
    given, made = beams(later, order)
    responses = made if responses is None else responses
    training, rollout = Network(), Network()
    for mine, theirs in zip(rollout.get_parameters(), training.get_parameters()):
        mine.set_data(Tensor(theirs.asnumpy()))
    section = {"msprobe": True, "dump_path": str(path), "task": "tensor", "step_end": 0}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 100}
    section |= {"key_data_dump": True, "configurations_dump": True}

    def run(network, ids, first):
        ids = np.array(ids, np.int32)
        places = np.tile(np.arange(ids.shape[1]) + first, (len(ids), 1)).astype(np.int32)
        network(Tensor(ids), Tensor(places))

    with Probe.from_config(section) as probe:
        probe.watch(actor=training)
        probe.save_configs({"generate": {"pad_token_id": 0}})
        with probe.phase(PHASES[0], model=rollout):
            for layer in rollout.layers:
                layer.cache = Tensor(np.zeros((3, HIDDEN), np.float32))
            run(rollout, [PROMPT] * 3, 0)
            for at, tokens in enumerate(np.array(given).T):
                if at == 3:
                    for number, layer in enumerate(rollout.layers):
                        if number not in kept:
                            layer.cache = Tensor(layer.cache.asnumpy()[order])
                run(rollout, tokens[:, None], 3 + at)
        with probe.phase(PHASES[1]):
            run(training, [PROMPT + response for response in responses], 0)
        held = {"prompts": np.array([PROMPT] * 3), "responses": np.array(responses)}
        if apart is not None:
            log_probs = -np.random.default_rng(0).random(held["responses"].shape)
            held |= {"rollout_log_prob": Tensor(log_probs.astype(np.float32))}
            held |= {"old_log_prob": Tensor((log_probs + apart).astype(np.float32))}
        probe.save_data(**held)
        probe.step()
    return path


ALIKE = [[20, 21], [20, 21], [20, 21]]
UNLIKE = [[20, 21], [22, 23], [24, 25]]


@pytest.mark.parametrize("later", [ALIKE, UNLIKE])
def test_rows_stand_behind_the_tokens_that_they_were_computed_behind(tmp_path, capsys, later):
    """The network is healthy: it agrees, whether the tokens themselves tell the order or not."""
    assert main(["mismatch", str(recorded(tmp_path / "run", later, apart=0))]) == 0
    out = capsys.readouterr().out
    assert "6 rows of the rollout continue other samples" in out
    assert "the first in call 4: row 0 of its batch continues sample 0" in out
    assert "24 of 24 rows of the rollout aligned" in out
    assert "continue differently" not in out


def test_hypotheses_that_were_dropped_are_no_tokens_of_a_sample(tmp_path, capsys):
    """All beams go on with the second one; what the others had is in no response."""
    run = recorded(tmp_path / "run", UNLIKE, order=[1, 1, 1], apart=0)
    assert main(["mismatch", str(run)]) == 0
    out = capsys.readouterr().out
    assert "only" not in out
    assert "4 rows of the rollout continue other samples" in out


def test_what_nothing_decides_is_said_to_be_undecided(tmp_path, capsys):
    """The tokens fit both ways, and no log-probabilities were saved: no place is named."""
    run = recorded(tmp_path / "run", ALIKE)
    assert main(["mismatch", str(run)]) == 2
    out = capsys.readouterr().out
    assert "as beam search does, or its rows may be mixed up" in out
    assert "the error arises in" not in out
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause, one.first, one.origins) == (Agreement.UNDECIDED, None, None, ())
    json.dumps(one.to_json())


def test_log_probabilities_that_differ_part_without_a_place(tmp_path):
    """Mixed up or put in order: the rollout's log-probabilities are not the training's."""
    one = find_mismatch(recorded(tmp_path / "run", ALIKE, apart=0.5)).found[0]
    assert (one.status, one.cause, one.first) == (Agreement.PARTED, None, None)
    assert [said.code for said in one.said] == ["mismatch.reordered_or_wrong"]


def test_a_layer_whose_cache_keeps_its_order_is_named(tmp_path):
    """The first layer says which rows they are, and the second one parts."""
    one = find_mismatch(recorded(tmp_path / "run", UNLIKE, kept=(1,), apart=0.5)).found[0]
    assert (one.cause, one.first.name) == (Cause.INPUT, "layers.1.o input.0")
    assert one.first.arising == 6
    assert "mismatch.reordered" in {note.code for note in one.notes}


def test_rows_that_keep_their_order_stay_where_they_are(tmp_path):
    """Of tokens that are alike in all samples, too; what is wrong in a layer is named."""
    plain = recorded(tmp_path / "plain", ALIKE, order=[0, 1, 2])
    one = find_mismatch(plain).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert not one.notes or "mismatch.reordered" not in {note.code for note in one.notes}
    # The last layer's cache alone is mixed up: no order of the rows explains it.
    wrong = recorded(
        tmp_path / "wrong", ALIKE, kept=(0,), responses=beams(ALIKE, [0, 1, 2])[1], apart=0.5
    )
    one = find_mismatch(wrong).found[0]
    assert (one.cause, one.first.name) == (Cause.INPUT, "layers.1.o input.0")
