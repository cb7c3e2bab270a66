"""Log-probabilities that differ where the logits do not: which, and by what."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mindformers")
from helpers.rollouts import recorded, sequences
from mindspore import Tensor

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.comparison.mismatch.sampling import LogProbTable, not_finite
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause
from mindrlhf_msprobe.sequences.log_probs import RolloutRows

LIMIT = 1e-4


def table(rollout, training, mask=None, first=0):
    return LogProbTable(RolloutRows(None, rollout, training, mask, ()), first)


@pytest.fixture
def both():
    """Return log-probabilities of 6 responses that differ by rounding."""
    rng = np.random.default_rng(3)
    training = -rng.exponential(2, (6, 8)).astype(np.float32)
    return training + rng.normal(0, 1e-6, training.shape).astype(np.float32), training


def test_what_differs_by_rounding_is_in_its_place(both):
    """Nothing is said."""
    one = table(*both)
    assert one.exchanged(LIMIT) is None
    assert one.shifted(LIMIT) is None
    assert not_finite([one]) is None


@pytest.mark.parametrize("order", [[2, 1, 0, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
def test_rows_in_another_order_are_said(both, order):
    """Which row is which, and how many are."""
    rollout, training = both
    said = table(rollout[order], training, first=10).exchanged(LIMIT)
    row = next(n for n, other in enumerate(order) if n != other)
    assert said.params == {
        "count": sum(n != other for n, other in enumerate(order)),
        **{"row": 10 + row, "other": 10 + order[row]},
    }


@pytest.mark.parametrize("by", [-1, 1])
def test_a_shift_by_one_token_is_said(both, by):
    """The side on which it is not known; the direction is."""
    rollout, training = both
    said = table(np.roll(rollout, -by, axis=1), training).shifted(LIMIT)
    assert said.params == {"by": by}


def test_tokens_alike_are_no_shift():
    """One token that is apart among many of one probability is that token."""
    rollout, training = np.full((2, 6, 8), -1.0)
    rollout[5, 7] = -0.5
    assert table(rollout, training).shifted(LIMIT) is None


def test_another_temperature_is_neither(both):
    """All rows are apart, and none is another one."""
    rollout, training = both
    one = table(rollout * 0.7, training)
    assert one.exchanged(LIMIT) is None
    assert one.shifted(LIMIT) is None


def test_the_worst_tokens_are_listed(both):
    """Those that are not finite first; tokens that do not count are none."""
    rollout, training = both
    mask = np.ones(rollout.shape)
    mask[5, 7] = 0
    rollout[1, 3] += 0.5
    rollout[2, 4] = np.nan
    rollout[5, 7] = 9
    worst = [*table(rollout, training, mask).worst()]
    assert [(t.row, t.place) for t in worst[:2]] == [(2, 4), (1, 3)]
    assert len(worst) == 5


def test_both_not_finite_alike_is_no_difference(both):
    """Neither NaN on both sides, nor a probability of 0 on both."""
    rollout, training = both
    for value in (np.nan, -np.inf):
        rollout[0, 0] = training[0, 0] = value
        assert not_finite([table(rollout, training)]) is None
    training[0, 0] = -1
    assert not_finite([table(rollout, training)]).params["count"] == 1


def saving(change):
    """Let a trainer save other log-probabilities of the rollout."""

    def plant(trainer):
        right = trainer.generate

        def generate(prompts):
            tokens, log_probs = right(prompts)
            return tokens, change(log_probs.copy())

        trainer.generate = generate

    return plant


def one_nan(log_probs):
    log_probs[3, 0] = np.nan
    return log_probs


def test_a_log_probability_that_is_nan_parts(tmp_path, capsys):
    """However well all others agree; the token is named."""
    run = recorded(tmp_path / "run", 5, saving(one_nan), response_length=3)
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause, one.first) == (Agreement.PARTED, Cause.SAMPLING, None)
    assert [said.code for said in one.said] == ["mismatch.log_prob_not_finite"]
    assert (one.said[0].params["row"], one.said[0].params["place"]) == (3, 0)
    assert one.to_json()["sampled"][0]["rollout"] == "NaN"
    assert main(["mismatch", str(run)]) == 1
    assert "response 3, token 0: nan in the rollout" in capsys.readouterr().out


def test_rows_that_were_exchanged_are_named(tmp_path):
    """Not a temperature, not a penalty."""
    plant = saving(lambda log_probs: log_probs[[2, 1, 0, *range(3, len(log_probs))]])
    run = recorded(tmp_path / "run", 6, plant, response_length=3)
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.SAMPLING)
    assert [said.code for said in one.said] == ["mismatch.rows_exchanged"]
    assert {token.row for token in one.sampled} <= {0, 2}


def test_a_last_token_that_only_the_training_was_given_is_named(tmp_path):
    """No row shows it: the last token of a response is given to no call of the rollout."""
    prompts, responses = [[1, 2, 3], [4, 5]], [[4, 5, 6], [9, 9, 3]]
    saved = [[4, 5, 6], [9, 9, 8]]

    def save(trainer):
        ids = [[np.array(row) for row in rows] for rows in (prompts, saved)]
        apart = np.zeros((2, 3), np.float32)
        trainer.probe.save_data(dict(zip(("prompts", "responses"), ids)))
        trainer.probe.save_data("old_log_prob", Tensor(apart - 1))
        apart[1, 2] = 0.5
        trainer.probe.save_data("rollout_log_prob", Tensor(apart - 1))

    run = sequences(tmp_path / "run", prompts, responses, change=save, key_data_dump=True)
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.INPUT)
    assert [said.code for said in one.said] == ["mismatch.other_response"]
    place = {"sample": 1, "position": 4, "saved": 8, "training": 3}
    assert place.items() <= one.said[0].params.items()


def test_samples_are_rows_of_what_was_saved(tmp_path):
    """Also behind a cache that was filled again: what was generated before is no prompt."""
    from helpers import wrong_rollouts

    prompts, responses = [[1, 2, 3], [4, 5]], [[4, 5, 6, 7, 8], [9, 9, 9, 8, 8]]

    def plant(trainer):
        ids = [[np.array(row) for row in rows[::-1]] for rows in (prompts, responses)]
        trainer.probe.save_data(dict(zip(("prompts", "responses"), ids)))
        wrong_rollouts.keys_not_rotated(1)(trainer)

    given = {"refill_at": 3, "change": plant, "key_data_dump": True}
    one = find_mismatch(sequences(tmp_path / "run", prompts, responses, **given)).found[0]
    assert {token.sample for token in one.token_map.tokens} == {0, 1}
    tokens = {t.sample: {} for t in one.token_map.tokens}
    for token in one.token_map.tokens:
        tokens[token.sample].setdefault(token.position, (token.id, token.role))
    for sample, (prompt, response) in enumerate(zip(prompts[::-1], responses[::-1])):
        padded = len(prompt) < max(map(len, prompts))
        expected = [(prompt[0], "padding" if padded else "prompt")]  # the token behind padding
        expected += [(t, "prompt") for t in prompt[1:]] + [(response[0], "first")]
        expected += [(t, "response") for t in response[1:-1]]
        assert [tokens[sample][at] for at in range(len(expected))] == expected
