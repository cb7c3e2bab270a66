"""The demo's trainer without a recording: what it saves is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.demo.command import EXAMPLE, example_path
from mindrlhf_msprobe.demo.trainer import PPOTrainer


class Saved(Probe):
    """A probe that keeps what a trainer saves last of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.data: dict[str, Any] = {}

    def save_data(self, name: Any = None, data: Any = None, /, **named: Any) -> None:
        """Keep it."""
        self.data.update(name if isinstance(name, dict) else {name: data})


def ppo_trainer(seed: int, **rl: Any) -> PPOTrainer:
    """Build the demo's trainer with a probe that keeps key data.

    Args:
        rl: what differs from the example's rl_config.
    """
    config = read_yaml(example_path(EXAMPLE))
    config = {name: dict(part) for name, part in config.items() if name != SECTION}
    config["rl_config"].update(rl)
    return PPOTrainer(config, Saved(), seed)


def log_prob_gap(trainer: PPOTrainer) -> np.ndarray:
    """Return how far the log-probabilities of rollout and training are apart, by token."""
    data = trainer.probe.data
    return np.abs(data["rollout_log_prob"] - data["old_log_prob"].asnumpy())
