"""Recordings of the demo's trainer: what generates and what trains, with or without a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import batches
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


def sequences(
    path: Path,
    prompts: list[list[int]],
    responses: list[list[int]],
    *,
    refill_at: int | None = None,
    change: Plant | None = None,
    **section: Any,
) -> Path:
    """Record both ways of given sequences, of any lengths; return the run.

    The rollout is given prompts that end in one column, then a token of each; 0 behind a response
    that has ended. The training is given prompts and responses from the first column on.

    Args:
        refill_at: before the token of this number of the responses the cache is lost, and filled
            again with all tokens so far.
        change: changes the trainer before.
    """
    total = max(map(len, prompts)) + max(map(len, responses))

    def generate(trainer: PPOTrainer) -> None:
        _prefill(trainer, prompts)
        for at in range(max(map(len, responses)) - 1):
            if refill_at == at + 1:
                trainer.rollout.clear_cache()
                _prefill(trainer, [p + r[: at + 1] for p, r in zip(prompts, responses)])
                continue
            tokens = [r[at] if at < len(r) else 0 for r in responses]
            places = [len(p) + at for p in prompts]
            seen = [len(p) + min(at + 1, len(r)) for p, r in zip(prompts, responses)]
            batches.call(trainer, [[token] for token in tokens], [[at] for at in places], seen)

    train = batches.whole([*zip(prompts, responses)])
    return batches.recorded(path, generate, train, total=total, change=change, section=section)


def _prefill(trainer: PPOTrainer, prompts: list[list[int]]) -> None:
    width = max(map(len, prompts))
    ids = [[0] * (width - len(p)) + p for p in prompts]
    positions = [[0] * (width - len(p)) + [*range(len(p))] for p in prompts]
    batches.call(trainer, ids, positions, [*map(len, prompts)])
