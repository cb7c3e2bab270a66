"""What `task: sketch` costs beside `task: statistics`, in processor time and bytes.

First the training step of step_overhead.py (float32), without a probe, with statistics and with
sketches in turn in one process. What counts is the processor time of all threads that recording
adds. Then cells that compute nothing and return bfloat16 tensors [512, 4096], and what is left of
them on disk.

    python benchmarks/sketch_cost.py [--rounds N] [--dir DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from step_overhead import training_step

from mindrlhf_msprobe import Probe

ROWS, HIDDEN, CELLS = 512, 4096, 16
TASKS = ("statistics", "sketch")


class Given(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return self.tensor


class Chain(nn.Cell):
    """Cells that compute nothing: each returns a tensor that was made for this step."""

    def __init__(self) -> None:
        super().__init__()
        self.cells_in_turn = nn.CellList([Given() for _ in range(CELLS)])
        self.random = np.random.default_rng(0)

    def prepare(self) -> None:
        values = self.random.standard_normal((ROWS, HIDDEN), np.float32)
        for cell in self.cells_in_turn:
            values = np.roll(values, 1, axis=0)
            cell.tensor = Tensor(values).astype(ms.bfloat16) + 0
            cell.tensor.asnumpy()

    def construct(self, x: Tensor) -> Tensor:
        for cell in self.cells_in_turn:
            x = cell(x)
        return x


def measured(
    name: str,
    network: nn.Cell,
    step: Callable[[], object],
    rounds: int,
    directory: Path,
    prepare: Callable[[], object] = lambda: None,
) -> dict[str, Probe]:
    """Print what recording adds to a step, and return the probes, which are open."""
    on = {"msprobe": True, "actor_train_dump": True, "step_end": 10**6}
    probes = {
        task: Probe.from_config({**on, "task": task, "dump_path": str(directory / task)})
        for task in TASKS
    }
    for probe in probes.values():
        probe.watch(actor=network)
    added: dict[str, list[float]] = {task: [] for task in TASKS}
    plain = []
    for round_ in range(rounds + 2):
        prepare()
        worked = time.process_time()
        step()
        without = time.process_time() - worked
        for task in TASKS[:: 1 if round_ % 2 else -1]:
            prepare()
            worked = time.process_time()
            with probes[task].phase("actor_update"):
                step()
            probes[task].step()
            if round_ >= 2:  # the first rounds warm up
                added[task].append(time.process_time() - worked)
        if round_ >= 2:
            plain.append(without)
    network_alone = statistics.median(plain)
    print(f"{name}: {network_alone * 1000:.1f} ms of processor time without a probe")
    cost = {task: statistics.median(added[task]) - network_alone for task in TASKS}
    for task in TASKS:
        print(f"  {task:12} {cost[task] * 1000:8.1f} ms more")
    print(f"  sketch / statistics: {cost['sketch'] / cost['statistics']:.2f}")
    return probes


def sizes(directory: Path) -> dict[str, int]:
    """Return file name → bytes below a directory, of all steps and phases together."""
    found: dict[str, int] = {}
    for path in directory.rglob("*"):
        if path.is_file():
            found[path.name] = found.get(path.name, 0) + path.stat().st_size
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        network, _, step = training_step()
        probes = measured("training step", network, step, arguments.rounds, root / "step")
        for probe in probes.values():
            probe.close()
        chain = Chain()
        chain.set_train(False)
        x = Tensor(np.arange(4))
        probes = measured(
            f"{CELLS} cells of bfloat16 [{ROWS}, {HIDDEN}]",
            *(chain, lambda: chain(x), arguments.rounds, root / "chain", chain.prepare),
        )
        for probe in probes.values():
            probe.close()
        steps = arguments.rounds + 2
        found = sizes(root / "chain" / "sketch")
        # Each is recorded as an output and the next one's input, and has one sketch.
        of_tensors = steps * CELLS * ROWS * HIDDEN * 2
        for what, taken in (
            ("sketches.bin", found["sketches.bin"]),
            ("all files", sum(found.values())),
        ):
            print(f"{what}: {taken / steps / 1000:.0f} KB a step, 1/{of_tensors / taken:.1f}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
