"""Where most tokens could not be aligned, nothing is said to agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mindformers")
from helpers import wrong_rollouts
from helpers.rollouts import recorded, sequences

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Mismatches


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Return a run whose training was given other tokens than were generated; no key data."""
    plant = wrong_rollouts.other_tokens(0)
    section = {"key_data_dump": False}
    path = tmp_path_factory.mktemp("few") / "run"
    return recorded(path, 33, plant, response_length=6, section=section)


def test_most_tokens_not_aligned_is_not_agreed(few, capsys):
    """What could be compared agrees; the first lines say of how many tokens that is."""
    one = find_mismatch(few).found[0]
    assert one.status is Agreement.UNDECIDED
    assert one.rows < one.tokens / 2
    assert max(stage.apart for stage in one.stages if stage.lasting) < 1e-5
    assert main(["mismatch", str(few)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert f"only {one.rows} of {one.tokens} tokens of the rollout" in lines[1]


def test_log_probabilities_that_differ_do_not_say_that_the_logits_agree(tmp_path, monkeypatch):
    """Of few aligned tokens it is not known."""
    monkeypatch.setattr("mindrlhf_msprobe.comparison.mismatch.find.other_tokens", lambda walk: None)
    plant = wrong_rollouts.other_tokens(0)
    one = find_mismatch(recorded(tmp_path / "run", 33, plant, response_length=6)).found[0]
    assert (one.status, one.cause, one.first) == (Agreement.PARTED, None, None)
    assert [said.code for said in one.said] == ["mismatch.log_probs_apart", "mismatch.few_aligned"]


PROMPTS, RESPONSES = [[1, 2, 3], [4, 5]], [[4, 5, 6, 7, 8], [9, 9, 3, 8, 8]]


def saving(trainer):
    """Save prompts and responses as token ids."""
    ids = [[np.array(row) for row in rows] for rows in (PROMPTS, RESPONSES)]
    trainer.probe.save_data(dict(zip(("prompts", "responses"), ids)))


@pytest.mark.parametrize(("last", "tokens"), [(0, 5), (2, 9), (1000, 13)])
def test_what_was_asked_for_is_what_counts(tmp_path, last, tokens):
    """Of a window of tokens those outside it are not missed."""
    section = {"token_range_end": last, "key_data_dump": True}
    run = sequences(tmp_path / "run", PROMPTS, RESPONSES, change=saving, **section)
    one = find_mismatch(run).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert (one.rows, one.tokens, one.saved_aligned, one.saved) == (tokens,) * 4
    assert not one.said
    all_passes = max(map(len, RESPONSES)) - 1
    assert ("mismatch.window" in {note.code for note in one.notes}) is (last < all_passes)


def test_other_ids_than_were_saved_are_not_agreed(tmp_path):
    """Both networks were given the same; what was saved, and trained on, is something else."""

    def change(trainer):
        other = [RESPONSES[0], [9, 9, 4, 8, 8]]
        ids = [[np.array(row) for row in rows] for rows in (PROMPTS, other)]
        trainer.probe.save_data(dict(zip(("prompts", "responses"), ids)))

    section = {"key_data_dump": True}
    run = sequences(tmp_path / "run", PROMPTS, RESPONSES, change=change, **section)
    one = find_mismatch(run).found[0]
    assert one.status is Agreement.UNDECIDED
    assert one.said[0].code == "mismatch.other_response"
    assert (one.said[0].params["sample"], one.said[0].params["saved"]) == (1, 4)


def test_a_step_that_is_undecided_does_not_agree(few):
    """One that agrees does not speak for the others; one that parts does."""
    undecided = find_mismatch(few).found[0]
    agreed = replace(undecided, status=Agreement.IDENTICAL)
    parted = replace(undecided, status=Agreement.PARTED)
    for found, status in (
        ((undecided, undecided, agreed), Agreement.UNDECIDED),
        ((undecided, agreed), Agreement.UNDECIDED),
        ((agreed, agreed, undecided), Agreement.UNDECIDED),
        ((agreed, agreed), Agreement.IDENTICAL),
        ((undecided, undecided, parted), Agreement.PARTED),
    ):
        assert Mismatches(("run",), found).status is status
