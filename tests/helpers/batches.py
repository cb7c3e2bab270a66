"""Ways to generate with the demo's network: batches that stand still, are merged, or are packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.demo.command import EXAMPLE, example_path
from mindrlhf_msprobe.demo.task import PROMPT_LENGTH
from mindrlhf_msprobe.demo.trainer import PPOTrainer

Pairs = list[tuple[list[int], list[int]]]


def recorded(
    path: Path,
    generate: Callable[[PPOTrainer], None],
    train: Callable[[PPOTrainer], None],
    *,
    total: int,
    data: dict[str, Any] | None = None,
    configs: dict[str, Any] | None = None,
    change: Callable[[PPOTrainer], object] | None = None,
    section: dict[str, Any] | None = None,
    **model: Any,
) -> Path:
    """Record what generates and what trains; return the run.

    Args:
        total: how many tokens the longest sample has.
        data, configs: what the trainer saves.
        change: changes it before.
        section: more keys of msprobe_config.
    """
    given = {"msprobe": True, "dump_path": str(path), "task": "tensor", "actor_infer_dump": True}
    given |= {"actor_train_dump": True, "token_range_end": 1000, "directions": ["forward"]}
    given |= {"key_data_dump": True, "configurations_dump": True}
    config = read_yaml(example_path(EXAMPLE))
    config["rl_config"]["response_length"] = max(1, total - PROMPT_LENGTH)
    config["actor_config"]["model_config"].update(model)
    with Probe.from_config({**given, **(section or {})}) as probe:
        trainer = PPOTrainer(config, probe, 0)
        if change is not None:
            change(trainer)
        if configs is not None:
            probe.save_configs(configs)
        probe.save_data(data or {})
        with probe.phase("actor_generate_sequences", model=trainer.rollout):
            trainer.rollout.clear_cache()
            generate(trainer)
        with probe.phase("actor_compute_log_prob"):
            train(trainer)
        probe.step()
    return path


def call(trainer: PPOTrainer, *inputs: Any) -> None:
    """Call the network that generates."""
    trainer.rollout(*(Tensor(np.array(value, np.int32)) for value in inputs))


def whole(pairs: Pairs) -> Callable[[PPOTrainer], None]:
    """Return what gives the training network all samples, padded behind."""

    def train(trainer: PPOTrainer) -> None:
        size = trainer.networks["actor"].config.seq_length
        rows = [([*p, *r] + [0] * size)[:size] for p, r in pairs]
        trainer.networks["actor"](Tensor(np.array(rows, np.int32)))

    return train


class Batch:
    """Requests that run together, each with a cache of its own that is put beside the others'."""

    def __init__(self, trainer: PPOTrainer) -> None:
        self.trainer = trainer
        self.layers = [layer.attention for layer in trainer.rollout.model.layers]
        self.mask = trainer.rollout.model.casual_mask
        self.held: list[tuple[list[Any], int]] = []  # caches by layer, and tokens, of each request

    def prefill(self, tokens: list[int], start: int = 0) -> None:
        """Run a prompt alone; of a cached one what stands before `start` is not recorded."""
        self.trainer.rollout.clear_cache()
        if start:
            self._quiet(tokens[:start])
        places = [[*range(start, len(tokens))]]
        call(self.trainer, [tokens[start:]], places, [len(tokens)])
        self.held.append(([layer.cache for layer in self.layers], len(tokens)))

    def _quiet(self, tokens: list[int]) -> None:
        """Fill the cache while no probe sees it."""
        with _WithoutHooks(self.trainer.rollout):
            call(self.trainer, [tokens], [[*range(len(tokens))]], [len(tokens)])

    def decode(self, ids: list[int], wrong_layer: int | None = None) -> None:
        """Run one token of each request."""
        width = max(size for _, size in self.held)
        for nth, layer in enumerate(self.layers):
            of = nth if wrong_layer is None else wrong_layer
            both = []
            for part in (0, 1):
                rows = [caches[of][part].asnumpy() for caches, _ in self.held]
                padded = [
                    np.pad(row, [(0, 0), (0, 0), (width - row.shape[2], 0), (0, 0)]) for row in rows
                ]
                both.append(Tensor(np.concatenate(padded)))
            layer.cache = tuple(both)
        sizes = [size for _, size in self.held]
        first = Tensor(np.array([[width - size] for size in sizes], np.int32))
        self.mask.past = (first, width)
        call(self.trainer, [[one] for one in ids], [[s] for s in sizes], [s + 1 for s in sizes])
        self.held = [
            (
                [
                    tuple(Tensor(p.asnumpy()[n : n + 1, :, width - size :]) for p in layer.cache)
                    for layer in self.layers
                ],
                size + 1,
            )
            for n, size in enumerate(sizes)
        ]

    def leave(self, number: int) -> None:
        """Let a request leave the batch."""
        del self.held[number]


class _WithoutHooks:
    """Lets a network run without the hooks of its cells."""

    def __init__(self, network: Any) -> None:
        self._cells = [cell for _, cell in network.cells_and_names()]

    def __enter__(self) -> None:
        names = ("_forward_hook", "_forward_pre_hook")
        self._kept = [{n: dict(getattr(c, n)) for n in names} for c in self._cells]
        for cell in self._cells:
            for name in names:
                getattr(cell, name).clear()

    def __exit__(self, *_: object) -> None:
        for cell, kept in zip(self._cells, self._kept):
            for name, hooks in kept.items():
                getattr(cell, name).update(hooks)
