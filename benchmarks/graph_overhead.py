"""A training step in GRAPH_MODE with the probe, against the same step without it.

The model, batch and optimizer of step_overhead.py; loss, gradients and update are compiled. Every
kind of step has its own network, for probes are compiled into it, and the kinds alternate in one
process, so that whatever else the machine does hits all.

    python benchmarks/graph_overhead.py [--rounds N] [--dir DIR] [--only KIND]

DIR is best on tmpfs, so that the disk does not decide (default: /dev/shm).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from step_overhead import BATCH, SEQUENCE, VOCABULARY, Decoder

from mindrlhf_msprobe import Probe

ON = {"msprobe": True, "actor_train_dump": True, "step_end": 10**6}
KINDS: dict[str, dict[str, Any] | None] = {
    "no probe": None,
    "phase switched off": {"msprobe": True},
    "outside the step window": {**ON, "step_start": 10**6},
    "statistics": ON,
    "statistics, forward only": {**ON, "directions": ["forward"]},
    "full tensors": {**ON, "task": "tensor"},
}


class Loss(nn.Cell):
    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, tokens: Tensor) -> Tensor:
        return ops.cross_entropy(self.network(tokens).reshape(-1, VOCABULARY), tokens.reshape(-1))


class TrainingStep:
    """One kind of training step.

    Attributes:
        compiling: seconds the first step took.
        seconds: of the steps after the first ones.
    """

    def __init__(self, section: dict[str, Any] | None, path: Path) -> None:
        ms.set_seed(0)
        network = Decoder()
        optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-4)
        self._probe = None
        if section is not None:
            self._probe = Probe.from_config({**section, "dump_path": str(path)})
            self._probe.watch(actor=network, optimizers={"actor": optimizer})
        gradients = ms.value_and_grad(Loss(network), None, optimizer.parameters)
        self._run: Callable[[Tensor], Any] = lambda tokens: self._update(
            gradients, optimizer, tokens
        )
        self.compiling = 0.0
        self.seconds: list[float] = []

    @staticmethod
    def _update(gradients: Any, optimizer: nn.Cell, tokens: Tensor) -> np.ndarray:
        loss, grads = gradients(tokens)
        optimizer(grads)
        return loss.asnumpy()

    def step(self, tokens: Tensor) -> tuple[float, np.ndarray]:
        """Run one step and return the seconds it took and its loss."""
        began = time.perf_counter()
        with self._probe.phase("actor_update") if self._probe else nullcontext():
            loss = self._run(tokens)
        if self._probe:
            self._probe.step()
        return time.perf_counter() - began, loss

    def close(self) -> None:
        if self._probe:
            self._probe.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--only", action="append", help="a kind beside `no probe`")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    tokens = Tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, SEQUENCE)), ms.int32)
    steps = {
        name: TrainingStep(section, root / str(i))
        for i, (name, section) in enumerate(KINDS.items())
        if section is None or name in (arguments.only or KINDS)
    }
    try:
        for round_ in range(arguments.rounds + 2):
            losses = set()
            for step in steps.values():
                seconds, loss = step.step(tokens)
                losses.add(loss.tobytes())
                if round_ == 0:
                    step.compiling = seconds
                elif round_ >= 2:  # the first rounds warm up
                    step.seconds.append(seconds)
            assert len(losses) == 1, "the probe changed the training"
            for phase in root.glob("*/actor_update"):
                shutil.rmtree(phase)
    finally:
        for step in steps.values():
            step.close()
        shutil.rmtree(root)
    plain = statistics.median(steps["no probe"].seconds)
    for name, step in steps.items():
        median = statistics.median(step.seconds)
        print(
            f"{name:26} {median * 1000:8.1f} ms  {median / plain:5.2f}   "
            f"first step, compiling: {step.compiling:5.1f} s"
        )


if __name__ == "__main__":
    main()
