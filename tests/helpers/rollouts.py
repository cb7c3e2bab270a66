"""Recordings of the demo's trainer: what generates and what trains, with or without a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.demo.command import EXAMPLE, example_path
from mindrlhf_msprobe.demo.trainer import PPOTrainer

Plant = Callable[[PPOTrainer], object]


def recorded(
    path: Path,
    seed: int = 0,
    plant: Plant | None = None,
    *,
    steps: int = 1,
    task: str = "tensor",
    model: dict[str, Any] | None = None,
    section: dict[str, Any] | None = None,
    **rl: Any,
) -> Path:
    """Record both phases of a training of the demo; return the run.

    Args:
        plant: changes the trainer before it begins.
        steps: of one, answers are written and scored, but nothing is updated.
        task: what is recorded of a tensor.
        model: what differs from the example's network.
        section: more keys of msprobe_config.
        rl: what differs from the example's rl_config.
    """
    config = read_yaml(example_path(EXAMPLE))
    config["rl_config"].update(rl)
    config["actor_config"]["model_config"].update(model or {})
    given = {"msprobe": True, "dump_path": str(path), "task": task, "key_data_dump": True}
    given |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 1000}
    given |= {"step_end": 1000, "directions": ["forward"], **(section or {})}
    probe = Probe.from_config(given)
    config.pop(SECTION)
    trainer = PPOTrainer(config, probe, seed)
    if plant is not None:
        plant(trainer)
    try:
        if steps == 1:
            trainer.make_experience()
            probe.step()
        else:
            trainer.train(steps)
    finally:
        probe.close()
    return path
