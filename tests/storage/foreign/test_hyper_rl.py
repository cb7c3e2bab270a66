"""The rollouts of hyper-parallel's RL trainer are key data of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.hyper_rl import rollout, write_rollout
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import check_run, compare_runs, open_run
from mindrlhf_msprobe.storage import layout

STEPS, RANKS = 3, 2


def record(root: Path, **options) -> Path:
    """Write the rollouts of a healthy training."""
    for step in range(STEPS):
        for rank in range(RANKS):
            write_rollout(root, step, rollout((step, rank)), rank=rank, **options)
    return root


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30))
def test_rows_are_those_that_were_sampled(tmp_path_factory, seed):
    """From the first sampled token of a sample to its last one, whatever stands between."""
    tmp_path, random = tmp_path_factory.mktemp("rows"), np.random.default_rng(seed)
    shape = [int(size) for size in random.integers(1, 7, 3)]
    given = rollout((seed,), *shape)
    if seed % 2:  # a tool's answer between two turns
        given["action_mask"] &= random.integers(0, 2, given["action_mask"].shape, np.int32)
    write_rollout(tmp_path, 4, given, rank=1)
    run = open_run(tmp_path)
    assert (run.steps, run.ranks, run.problems) == ([4], [1], [])
    read = {
        key: run.key_data(key, step=4, rank=1)[0].records[0].array()
        for key in ("rollout_prompts", "rollout_tokens", "rollout_log_prob", "action_mask")
    }
    for row, mask in enumerate(given["action_mask"]):
        sampled = np.flatnonzero(mask)
        first = sampled[0] if len(sampled) else len(mask)
        asked = given["sequences"][row][:first][given["attention_mask"][row][:first] != 0]
        prompt = read["rollout_prompts"][row]
        assert prompt[prompt >= 0].tolist() == asked.tolist()
        of_mask = read["action_mask"][row] != 0
        tokens, log_probs = (read[key][row] for key in ("rollout_tokens", "rollout_log_prob"))
        assert tokens[of_mask].tolist() == given["sequences"][row][sampled].tolist()
        assert np.array_equal(log_probs[of_mask], given["raw_logprobs"][row][sampled - 1])


def test_a_healthy_training_is_healthy_and_identical(tmp_path):
    a, b = record(tmp_path / "a"), record(tmp_path / "b", strategy="full_gather")
    assert check_run(a).findings == ()
    assert compare_runs(a, b).verdict.status == "identical"


def test_one_log_probability_is_named(tmp_path):
    a, b = record(tmp_path / "a"), record(tmp_path / "b")
    other = rollout((1, 0))
    other["raw_logprobs"][other["raw_logprobs"] != 0] *= np.float32(1.01)
    write_rollout(b, 1, other)
    first = compare_runs(a, b).verdict.first_divergence
    assert first is not None
    assert (first.key, first.step, first.rank) == ("rollout_log_prob", 1, 0)
    assert first.next_step is None, "no section of ours makes this trainer record more"


def test_a_rollout_of_older_weights_is_found(tmp_path):
    record(tmp_path)
    write_rollout(tmp_path, 2, rollout((2, 0)), worker=1)
    (found,) = check_run(tmp_path).findings
    assert (found.rule, found.place.step, found.place.rank) == ("rl.policy_version", 2, 0)


def test_commands_take_it(tmp_path, cli):
    run = str(record(tmp_path / "run"))
    assert "rollout_log_prob" in cli("show", run).out
    assert "3 values" in cli("trend", run, "--key", "rollout_log_prob").out
    assert "holds no data of layers" in cli("mismatch", run, code=2).err


def of_dtype(dtype, content):
    content["sequences"]["dtype"] = dtype


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["raw_logprobs"]["values"][0].__setitem__(0, -9.0), "sha256"),
        (lambda c: c["sequences"].pop("values"), "`sequences` is no tensor"),
        *(
            (partial(of_dtype, dtype), "`sequences` is no tensor")
            for dtype in ("O", "S1000000000", "(100000000,)i4", "(1,,)i4", "i4,(", "float32", 7)
        ),
        (lambda c: c.update(policy_version=7), "of another policy version and rank"),
        (lambda c: c.update(trainer_rank=None), "of another policy version and rank"),
        (lambda c: c["action_mask"].update(shape=[1, 1 << 40]), "`action_mask` is no tensor"),
        (lambda c: c.pop("attention_mask"), "`attention_mask` is no tensor"),
        (lambda c: c.update(raw_logprobs=c["attention_mask"]), "`raw_logprobs` is no tensor"),
        (lambda c: c.update(action_mask=c["sequences"] | {"shape": [2, 22]}), "not of one batch"),
    ],
)
def test_damage_is_said_and_costs_one_file(tmp_path, change, said):
    record(tmp_path / "a")
    broken = record(tmp_path / "b")
    write_rollout(broken, 1, rollout((1, 0)), change=change)
    run = open_run(broken)
    (datum,) = run.key_data("rollout_tokens", step=1, rank=0)
    assert said in str(datum.records[0].leaf.why)
    assert all(
        d.records[0].leaf.why is None for d in run.key_data("rollout_tokens", step=1, rank=1)
    )
    first = compare_runs(tmp_path / "a", broken).verdict.first_divergence
    assert first is not None
    assert (first.cause, first.step) == ("unreadable", 1)


def test_a_version_of_another_form_is_no_missing_key(tmp_path):
    a = record(tmp_path / "a")
    b = record(tmp_path / "b", change=lambda c: c.update(worker_policy_version=1.5))
    first = compare_runs(a, b).verdict.first_divergence
    assert first is not None
    assert (first.key, first.cause) == ("worker_policy_version", "unreadable")


def test_what_the_trainer_found_itself_is_a_finding(tmp_path):
    record(tmp_path)
    found = {"oracle_match": False, "oracle_mismatches": ["sequences", "raw_logprobs"]}
    path = write_rollout(tmp_path, 1, rollout((1, 0)), **found)
    path.rename(path.with_name(f"mismatch-{path.name}"))
    (finding,) = check_run(tmp_path).findings
    assert (finding.rule, finding.place.step) == ("rl.oracle", 1)
    assert "sequences, raw_logprobs" in str(finding.said)


def test_many_files_are_each_read_a_few_times(tmp_path, monkeypatch):
    """However many there are."""
    steps, reads = 40, []
    for step in range(steps):
        write_rollout(tmp_path, step, rollout((step,)))
    read = layout.read_json
    monkeypatch.setattr(layout, "read_json", lambda *of: reads.append(of[1]) or read(*of))
    assert check_run(tmp_path).findings == ()
    assert len(reads) <= 3 * steps


def test_two_files_of_one_place_are_not_taken_for_one(tmp_path):
    record(tmp_path)
    write_rollout(tmp_path, 0, rollout((9, 9)), strategy="full_gather")
    assert [problem.path.name for problem in open_run(tmp_path).problems] == [
        "full_gather-policy0-rank0.json"
    ]
