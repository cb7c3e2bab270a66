"""Two runs of a tiny real network, recorded by the real probe; one cell of B differs at step 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STEPS = 2


def record_pair(root: Path, task: str = "statistics") -> tuple[Path, Path]:
    """Record A and B: forward, backward, weights and key data of a decoder with two blocks."""
    return _record(root / "a", task, 0.0), _record(root / "b", task, 0.01)


def _record(root: Path, task: str, fault: float) -> Path:
    import mindspore as ms
    import numpy as np

    from helpers.programs import ALL_LAYERS
    from helpers.small_networks import Decoder
    from mindrlhf_msprobe import Probe

    network = Decoder()
    settings = {"dump_path": str(root), "key_data_dump": True, "step_end": 9, "task": task}
    probe = Probe.from_config({"msprobe": True, **ALL_LAYERS, **settings})
    probe.watch(actor=network)
    tokens = ms.Tensor(np.arange(6).reshape(2, 3) % 11, ms.int32)
    down = network.blocks[1].down

    def loss_of(given: Any) -> Any:
        return network(given).square().mean()

    step = ms.value_and_grad(loss_of, None, network.trainable_params())
    for number in range(STEPS):
        if number == 1 and fault:
            down.register_forward_hook(lambda cell, inputs, output: output * (1 + fault))
        probe.save_data(prompts=["one", "two"], responses=["1 2 3", f"4 5 {number}"])
        with probe.phase("actor_update"):
            loss, _ = step(tokens)
        probe.save_data(loss=loss, rewards=[0.5, 1.0 + number])
        probe.step()
    probe.close()
    return root
