"""What `task: sketch` costs beside `task: statistics`, in processor time and bytes.

16 cells that compute nothing return tensors that were made for this step, so that the processor
time of all threads is that of recording: a training step's own varies by more than recording adds.
With statistics and with sketches in turn in one process; then what is left on disk.

    python benchmarks/sketch_cost.py [--rounds N] [--dir DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe

CELLS = 16
TASKS = ("statistics", "sketch")
KINDS = (
    (ms.bfloat16, (512, 4096)),
    (ms.bfloat16, (8, 4096)),
    (ms.bfloat16, (4, 32, 256, 128)),
    (ms.float32, (512, 4096)),
    (ms.float32, (1024, 256)),
)


class Given(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return self.tensor


class Chain(nn.Cell):
    """Cells that compute nothing: each returns a tensor that was made for this step."""

    def __init__(self, dtype: object, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.cells_in_turn = nn.CellList([Given() for _ in range(CELLS)])
        self.of = dtype, shape
        self.random = np.random.default_rng(0)

    def prepare(self) -> None:
        dtype, shape = self.of
        values = self.random.standard_normal(shape, np.float32)
        for cell in self.cells_in_turn:
            values = np.roll(values, 1)
            cell.tensor = Tensor(values).astype(dtype) + 0
            cell.tensor.asnumpy()

    def construct(self, x: Tensor) -> Tensor:
        for cell in self.cells_in_turn:
            x = cell(x)
        return x


def measured(chain: Chain, rounds: int, directory: Path) -> dict[str, float]:
    """Return the seconds of processor time that a step takes with each task."""
    on = {"msprobe": True, "actor_train_dump": True, "step_end": 10**6}
    probes = {
        task: Probe.from_config({**on, "task": task, "dump_path": str(directory / task)})
        for task in TASKS
    }
    for probe in probes.values():
        probe.watch(actor=chain)
    seconds: dict[str, list[float]] = {task: [] for task in TASKS}
    x = Tensor(np.arange(4))
    for round_ in range(rounds + 2):
        for task in TASKS[:: 1 if round_ % 2 else -1]:
            chain.prepare()
            worked = time.process_time()
            with probes[task].phase("actor_update"):
                chain(x)
            probes[task].step()
            if round_ >= 2:  # the first rounds warm up
                seconds[task].append(time.process_time() - worked)
    for probe in probes.values():
        probe.close()
    return {task: statistics.median(seconds[task]) for task in TASKS}


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
        for number, (dtype, shape) in enumerate(KINDS):
            chain, directory = Chain(dtype, shape), root / str(number)
            chain.set_train(False)
            cost = measured(chain, arguments.rounds, directory)
            print(
                f"{CELLS} tensors of {dtype} {list(shape)}: statistics "
                f"{cost['statistics'] * 1000:.1f} ms, sketch {cost['sketch'] * 1000:.1f} ms: "
                f"{cost['sketch'] / cost['statistics']:.2f}"
            )
            found = sizes(directory / "sketch")
            # Each is recorded as an output and the next one's input, and has one sketch.
            item = 2 if dtype == ms.bfloat16 else 4
            of_tensors = (arguments.rounds + 2) * CELLS * int(np.prod(shape)) * item
            parts = [of_tensors / n for n in (found["sketches.bin"], sum(found.values()))]
            print("  on disk: sketches 1/{:.1f}, all files 1/{:.1f}".format(*parts))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
