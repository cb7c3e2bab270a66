"""A network whose own call gives no logits, as MindRLHF's: its parts are called in turn."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

VOCABULARY, PAD, PROMPT, RESPONSE = 12, 11, 3, 4


class Backbone(nn.Cell):
    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(7)
        table = draw.normal(size=(VOCABULARY, 8)).astype(np.float32)
        self.embedding = nn.Embedding(VOCABULARY, 8, embedding_table=Tensor(table))
        self.dense = nn.Dense(8, 8, Tensor(draw.normal(size=(8, 8)).astype(np.float32)))

    def construct(self, ids):
        hidden = ops.cumsum(self.embedding(ids), 1)  # no token sees one behind it
        return ops.tanh(self.dense(hidden))


class Model(nn.Cell):
    """What generates."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        weight = np.random.default_rng(8).normal(size=(VOCABULARY, 8)).astype(np.float32)
        self.lm_head = nn.Dense(8, VOCABULARY, Tensor(weight), has_bias=False)

    def construct(self, ids):
        return self.lm_head(self.backbone(ids))


class Policy(nn.Cell):
    """What trains: it returns log-probabilities."""

    def __init__(self):
        super().__init__()
        self.model = Model()

    def construct(self, ids):
        logits = self.model.lm_head(self.model.backbone(ids))[:, :-1]
        return ops.gather_d(ops.log_softmax(logits, -1), 2, ids[:, 1:, None])[:, :, 0]


def log_softmax(logits):
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def record(path, prompts, temperature):
    """Record a rollout without a cache: each call has all tokens so far, and padding behind."""
    policy, draw = Policy(), np.random.default_rng(1)
    given = {"msprobe": True, "dump_path": str(path), "task": "tensor", "key_data_dump": True}
    given |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 99}
    rows = np.full((len(prompts), PROMPT + RESPONSE), PAD, np.int32)
    rows[:, :PROMPT] = prompts
    found = np.zeros((len(prompts), RESPONSE), np.float32)
    with Probe.from_config({**given, "directions": ["forward"]}) as probe:
        probe.watch(actor=policy)
        with probe.phase("actor_generate_sequences"):
            for row, of_row in zip(rows, found):
                for at in range(RESPONSE):
                    logits = policy.model(Tensor(row[None])).asnumpy()[0, PROMPT + at - 1]
                    chances = log_softmax(logits.astype(np.float64) / temperature)
                    token = int(np.argmax(chances[:-1] + draw.gumbel(size=VOCABULARY - 1)))
                    row[PROMPT + at], of_row[at] = token, chances[token]
        with probe.phase("actor_compute_log_prob"):
            scored = policy(Tensor(rows)).asnumpy()[:, PROMPT - 1 :]
        probe.save_data(prompts=rows[:, :PROMPT], responses=rows[:, PROMPT:])
        probe.save_data(rollout_log_prob=found, old_log_prob=scored)
        probe.step()
    return find_mismatch(path).found[0]


@pytest.mark.parametrize("alike", [False, True])
def test_both_temperatures_are_named(tmp_path, alike):
    """The head's logits count where the cell around it runs in one of both alone."""
    prompts = np.array([[1, 2, 3], [1, 2, 3] if alike else [4, 2, 6]])
    one = record(tmp_path / "run", prompts, 0.7)
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.SAMPLING)
    (said,) = one.said
    assert said.code == "mismatch.temperature"
    assert (said.params["rollout"], said.params["training"]) == (0.7, 1.0)


def test_without_a_temperature_it_agrees(tmp_path):
    """And the logits of all tokens are known to."""
    one = record(tmp_path / "run", np.array([[1, 2, 3], [4, 2, 6]]), 1.0)
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
