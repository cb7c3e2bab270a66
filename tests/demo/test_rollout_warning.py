"""Rollout against training in the demo: rounding is no finding, a planted fault is one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mindformers")

from helpers.rollouts import recorded

from mindrlhf_msprobe import check_run, open_run
from mindrlhf_msprobe.demo.fault import PLANTERS


@pytest.mark.parametrize("fault", PLANTERS)
def test_a_gap_that_rounding_does_not_explain_is_found(tmp_path, fault):
    """In the step in which it begins; also a float16 head, the smallest, and what no cell shows."""

    def plant(trainer):
        PLANTERS[fault].plant(trainer, lambda: trainer.global_step >= 1)

    run = open_run(recorded(tmp_path / "run", 1234, plant, steps=2, task="statistics"))
    healthy, broken = run.trend(derived="rollout_corr/log_prob_diff_mean")[0].values
    assert healthy < 1e-6 < 1e-4 < broken
    found = [one for one in check_run(run).all_findings if one.rule == "rl.rollout_gap"]
    assert [(one.place.step, one.times) for one in found] == [(1, 1)]
