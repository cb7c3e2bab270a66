"""Rollouts whose batches are put together anew, or stand still: what is concluded from which."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mindformers")
from helpers import wrong_rollouts
from helpers.batches import Batch, call, recorded, whole
from helpers.wrong_rollouts import change_output

from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch, own_padding
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

PAIRS = [([1, 2, 3], [4, 5, 6, 7]), ([5, 3], [9, 9, 3, 8, 8]), ([7, 8, 9, 2], [6, 1, 4])]
AGREED = (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)


def saved(pairs=PAIRS):
    """Return prompts and responses as a trainer saves them."""
    prompts, responses = ([np.array(one) for one in of] for of in zip(*pairs))
    return {"prompts": prompts, "responses": responses}


def served(wrong_layer=None, cached=0):
    """Return what prefills each request alone, and decodes all that run."""

    def generate(trainer):
        batch, running = Batch(trainer), []
        for prompt, response in PAIRS:
            batch.prefill(prompt, min(cached, len(prompt) - 1))
            running.append([response, 0])
        while running:
            for n in reversed(range(len(running))):
                if running[n][1] == len(running[n][0]) - 1:
                    batch.leave(n)
                    del running[n]
            if running:
                batch.decode([r[at] for r, at in running], wrong_layer)
            for one in running:
                one[1] += 1

    return generate


def test_merged_requests_agree_in_all_rows(tmp_path):
    """Those of the prompts, and those of the tokens that were generated."""
    run = recorded(tmp_path / "run", served(), whole(PAIRS), total=9, data=saved())
    one = find_mismatch(run).found[0]
    assert one.status in AGREED, one.said
    assert one.rows == one.tokens == 9 + 3 + 4 + 2
    assert one.sampled_aligned == one.sampled_rows == 4 + 5 + 3


def test_without_saved_samples_the_rows_that_matter_are_missing(tmp_path):
    """Nothing agrees of which no generated token was aligned."""
    pairs = [(p[:2], r) for p, r in PAIRS]

    def generate(trainer):
        batch = Batch(trainer)
        for prompt, _ in pairs:
            batch.prefill(prompt)
        for at in range(2):
            batch.decode([r[at] for _, r in pairs])

    one = find_mismatch(recorded(tmp_path / "run", generate, whole(pairs), total=7)).found[0]
    assert one.status is Agreement.UNDECIDED
    assert one.said[0].code in ("mismatch.few_sampled", "mismatch.few_aligned")


def test_a_cache_of_the_wrong_layer_is_found(tmp_path):
    """In the attention of decode, not behind the network."""
    log_probs = {"rollout_log_prob": np.zeros((3, 5), np.float32)}
    log_probs["old_log_prob"] = log_probs["rollout_log_prob"] - 0.1
    run = recorded(
        tmp_path / "run", served(0), whole(PAIRS), total=9, data={**saved(), **log_probs}
    )
    one = find_mismatch(run).found[0]
    assert one.status is Agreement.PARTED
    assert one.cause is not Cause.SAMPLING
    assert one.first.name.startswith("model.layers.1.attention")
    assert {token.role for token in one.first.worst} <= {"first", "response"}


@pytest.mark.parametrize("fault", [None, wrong_rollouts.one_column_of_the_head(0)])
def test_a_prefix_cache_leaves_what_was_recorded(tmp_path, fault):
    """The rows of cached tokens are missing, which is said; the others decide."""
    run = recorded(
        tmp_path / "run", served(cached=9), whole(PAIRS), total=9, data=saved(), change=fault
    )
    one = find_mismatch(run).found[0]
    assert (one.status in AGREED) is (fault is None), one.said
    assert one.rows == one.tokens == one.sampled_rows == 4 + 5 + 3
    codes = [note.code for note in (*one.notes, *one.said)]
    assert "tokens.cached" in codes
    assert not any("gap" in code for code in codes)


def test_samples_that_share_a_pass_over_their_prompt_have_its_logits(tmp_path):
    """Its last row gave the first token of each of them."""
    pairs = [([1, 2, 3], response) for response in ([4, 5, 2], [9, 8, 3], [7])]

    def generate(trainer):
        batch = Batch(trainer)
        batch.prefill(pairs[0][0])
        batch.held.append(batch.held[0])
        for at in range(2):
            batch.decode([response[at] for _, response in pairs[:2]])

    log_probs = {"rollout_log_prob": np.array([[-1.0, -1, -1], [-1, -1, -1], [-1, 0, 0]])}
    log_probs["old_log_prob"] = log_probs["rollout_log_prob"] * 2
    run = recorded(
        tmp_path / "run", generate, whole(pairs), total=6, data={**saved(pairs), **log_probs}
    )
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.SAMPLING), one.said
    assert one.sampled_aligned == one.sampled_rows == 7
    assert "tokens.cached" not in [note.code for note in one.notes]


PACKED, EITHER = (1, None), (None, 1)


@pytest.mark.parametrize(
    ("rollout", "training", "wanted"),
    [
        (PACKED, PACKED, 1),
        (PACKED, (None, 0), 1),  # a mask made of `ids != pad` hides it
        ((None, 3), (0, None), None),  # a mask lets padding in
        (EITHER, EITHER, 1),
        (EITHER, (None, 0), None),
        (EITHER, (None, None), None),
        ((None, 0), (None, 0), None),
    ],
)
def test_padding_is_a_prompts_own_where_nothing_speaks_against_it(rollout, training, wanted):
    """Packed samples have none; masks may be what is wrong."""
    sides = [SimpleNamespace(tokens=SimpleNamespace(own={b"": of})) for of in (rollout, training)]
    assert own_padding(*sides).get(b"") == wanted


def standing(filler, stops=True):
    """Return what decodes all to the end of the longest; positions of others stand still."""

    def generate(trainer):
        width = max(len(p) for p, _ in ENDS)
        ids = [[0] * (width - len(p)) + p for p, _ in ENDS]
        places = [[0] * (width - len(p)) + [*range(len(p))] for p, _ in ENDS]
        call(trainer, ids, places, [len(p) for p, _ in ENDS])
        for at in range(max(len(r) for _, r in ENDS) - 1):
            tokens = [[r[at] if at < len(r) else filler or r[-1]] for _, r in ENDS]
            ats = [len(p) + (min(at, len(r) - 1) if stops else at) for p, r in ENDS]
            call(trainer, tokens, [[one] for one in ats], [one + 1 for one in ats])

    return generate


ENDS = [([1, 2, 3], [9]), ([5, 3], [9, 9, 3, 8, 8, 2]), ([4, 4], [3, 5])]


@pytest.mark.parametrize(("filler", "data"), [(0, saved(ENDS)), (11, None), (0, None)])
def test_rows_behind_an_end_decide_nothing(tmp_path, filler, data):
    """Only the head's weights differ; positions of samples that ended stand still."""

    def change(trainer):
        weight = trainer.rollout.lm_head.weight
        weight.set_data(wrong_rollouts.Tensor(weight.asnumpy() + 1e-2))

    for fault in (None, change):
        path = tmp_path / ("bad" if fault else "good")
        run = recorded(path, standing(filler), whole(ENDS), total=9, data=data, change=fault)
        one = find_mismatch(run).found[0]
        assert one.rows <= one.tokens
        if fault is None:
            assert one.status in AGREED, one.said
            continue
        assert (one.status, one.cause) == (Agreement.PARTED, Cause.WEIGHTS)
        assert one.first.cell == "lm_head"
        rows = [said.params for said in one.said if said.code == "mismatch.rows"]
        assert all(of["of_samples"] <= 3 for of in rows)
        assert not any(said.code == "mismatch.positions" for said in (*one.said, *one.notes))


IDS = [[0] * (4 - len(p)) + p for p, _ in PAIRS]


def left_padded(trainer):
    """Run samples whose prompts begin with padding of which nothing is said."""
    trainer.rollout.construct = _ids_alone(trainer)
    call(trainer, IDS)


def _ids_alone(trainer):
    """Return a network that makes positions and lengths of its ids, as many do."""

    def construct(tokens):
        found = tokens.asnumpy()
        valid = (found != 0).sum(axis=1)
        places = np.maximum(np.cumsum(found != 0, axis=1) - 1, 0)
        lengths = wrong_rollouts.Tensor(valid.astype(np.int32))
        hidden = trainer.rollout.model(
            tokens, wrong_rollouts.Tensor(places.astype(np.int32)), lengths
        )
        return trainer.rollout.lm_head(hidden)

    return construct


@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.parametrize("told", ["nothing", "saved prompts", "configuration"])
def test_padding_of_which_nothing_says_the_id(tmp_path, told, fault):
    """A fault behind it is named all the same; what it would decide is not decided."""
    ids = np.array(IDS)
    data = {"prompts": ids, "responses": np.array([[3]] * 3)} if told == "saved prompts" else {}
    configs = {"actor": {"pad_token_id": 0}} if told == "configuration" else None

    def change(trainer):
        if fault:
            change_output(trainer.rollout.model.layers[1].attention.wo, lambda x: x * 1.5)

    given = {"data": data, "configs": configs, "change": change}
    whole_rows = whole([(row, []) for row in IDS])
    run = recorded(tmp_path / "run", left_padded, whole_rows, total=5, **given)
    one = find_mismatch(run).found[0]
    if fault:
        assert (one.status, one.first.cell) == (Agreement.PARTED, "model.layers.1.attention.wo")
    elif told == "nothing":
        assert one.status is Agreement.UNDECIDED
        assert one.said[0].code == "mismatch.pad_unknown"
    else:
        assert one.status in AGREED, one.said
