"""Rollout against training: a gap that rounding does not explain is named, rounding is not."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.health_runs import HealthRun, steps_of, tensor

from mindrlhf_msprobe import check_run
from mindrlhf_msprobe.findings.health import Severity

RULE = "rl.rollout_gap"
SHAPE = (8, 16)


def record(root, apart, *, dtype=None, saved=np.float32, steps=3, keys=True, **saves):
    """Record steps whose log-probabilities differ by `apart(step, random)`.

    Args:
        dtype: of the training network's cells; None: key data alone.
        saved: dtype of the rollout's log-probabilities.
    """
    random = np.random.default_rng(0)
    for run, step, _ in steps_of(root, steps):
        if dtype is not None:
            with run.phase("actor_compute_log_prob"):
                parameters = {"weight": tensor(dtype=dtype)}
                run.call("model", tensor(), tensor(dtype=dtype), parameters=parameters)
        old = -random.gamma(1, 0.7, SHAPE).astype(np.float32)
        rollout = (old + apart(step, random)).astype(saved)
        of_step = {"rollout_log_prob": rollout, "old_log_prob": old, **saves}
        for key, value in of_step.items() if keys else ():
            run.data(key, value)
    return root


def gaps(result):
    return [one for one in result.all_findings if one.rule == RULE]


def noise(size, first=0):
    """Return differences of a mean size, from a step on."""
    return lambda step, random: random.normal(0, size * 1.25 if step >= first else 0, SHAPE)


@pytest.mark.parametrize("dtype", [None, "BFloat16", "Float16"])
@pytest.mark.parametrize("size", [0, 2e-5, 5e-3])
def test_what_16_bits_round_is_no_finding(tmp_path, dtype, size):
    """Matched engines are 2e-5 apart, others 5e-3 in probability."""
    result = check_run(record(tmp_path / "run", noise(size), dtype=dtype))
    assert gaps(result) == []
    assert RULE in result.checked


def test_float32_rounds_less(tmp_path):
    """What 16 bits would explain is a fault where the training network is known to be float32."""
    assert gaps(check_run(record(tmp_path / "a", noise(1e-5), dtype="Float32"))) == []
    (finding,) = gaps(check_run(record(tmp_path / "b", noise(5e-3), dtype="Float32")))
    assert finding.said.params["float32"] is True
    assert finding.said.params["limit"] == 1e-4


@pytest.mark.parametrize("dtype", [None, "BFloat16"])
def test_a_gap_is_one_warning_from_its_first_step_on(tmp_path, dtype):
    """With what to record next: both phases, and their parameters."""
    result = check_run(record(tmp_path / "run", noise(0.1, first=1), dtype=dtype, steps=4))
    (finding,) = gaps(result)
    assert finding.severity is Severity.WARNING
    assert (finding.place.step, finding.place.key) == (1, "rollout_log_prob")
    assert finding.times == 3
    assert 0.07 < finding.evidence[0].values["mean"] < 0.13
    assert finding.next_step["actor_infer_dump"] is finding.next_step["actor_train_dump"] is True
    assert finding.said.params["mean"] == pytest.approx(0.1, rel=0.3)


def test_the_threshold_is_that_of_the_rule_file(tmp_path):
    run = record(tmp_path / "run", noise(5e-3))
    rules = tmp_path / "rules.yaml"
    rules.write_text("rl.rollout_gap: {probability: 1.0e-4}\n")
    assert gaps(check_run(run)) == []
    assert len(gaps(check_run(run, rules=rules))) == 1


def test_what_is_behind_the_end_of_a_response_is_no_gap(tmp_path):
    """Engines give 0 there, the training network a log-probability of the padding."""

    ends = np.random.default_rng(0).integers(1, SHAPE[1], (SHAPE[0], 1))
    run = HealthRun(tmp_path / "run")
    old = -np.ones(SHAPE, np.float32)
    run.data("rollout_log_prob", np.where(np.arange(SHAPE[1]) < ends, old, 0))
    run.data("old_log_prob", old)
    run.end_step()
    run.close()
    result = check_run(tmp_path / "run")
    assert gaps(result) == []
    assert RULE in result.checked


def test_log_probabilities_that_were_saved_in_16_bits_are_as_coarse(tmp_path):
    """Whatever the network computes in."""
    root = tmp_path / "run"
    assert gaps(check_run(record(root, noise(0), dtype="Float32", saved=np.float16))) == []


def test_rows_that_are_not_known_to_belong_together_are_not_checked(tmp_path):
    run = record(tmp_path / "run", noise(1), old_log_prob=np.zeros((2, 3), np.float32))
    result = check_run(run)
    assert gaps(result) == []
    (said,) = [one for one in result.not_checked if one.rule == RULE]
    assert "belong together" in str(said.why)
    none = check_run(record(tmp_path / "none", noise(0), keys=False, dtype="Float32"))
    assert RULE in {one.rule for one in none.not_checked}
