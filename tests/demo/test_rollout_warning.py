"""Rollout against training in the demo: rounding is no finding, a planted fault is one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mindformers")

from mindrlhf_msprobe import Probe, check_run, open_run
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.demo.command import EXAMPLE, example_path
from mindrlhf_msprobe.demo.fault import PLANTERS
from mindrlhf_msprobe.demo.trainer import PPOTrainer

RECORDED = {"msprobe": True, "key_data_dump": True, "actor_train_dump": True, "step_end": 9}


@pytest.mark.parametrize("fault", PLANTERS)
def test_a_gap_that_rounding_does_not_explain_is_found(tmp_path, fault):
    """In the step in which it begins; also a float16 head, the smallest, and what no cell shows."""
    config = {name: dict(part) for name, part in read_yaml(example_path(EXAMPLE)).items()}
    del config[SECTION]
    with Probe.from_config({**RECORDED, "dump_path": str(tmp_path / "run")}) as probe:
        trainer = PPOTrainer(config, probe, 1234)
        PLANTERS[fault].plant(trainer, lambda: trainer.global_step >= 1)
        for _ in range(2):
            trainer.train_step()
    run = open_run(tmp_path / "run")
    healthy, broken = run.trend(derived="rollout_corr/log_prob_diff_mean")[0].values
    assert healthy < 1e-6 < 1e-4 < broken
    found = [one for one in check_run(run).all_findings if one.rule == "rl.rollout_gap"]
    assert [(one.place.step, one.times) for one in found] == [(1, 1)]
