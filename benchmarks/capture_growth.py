"""What recording costs as cells, elements and steps grow.

    python benchmarks/capture_growth.py [--steps N] [--dir DIR]

A chain of Dense cells is differentiated with and without the probe. Printed: what recording adds to
a step for 1, 2, 4 and 8 times as many cells and as many elements, and the process's memory after
every quarter of many steps.
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


def resident_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def added(cells: int, rows: int, root: Path, rounds: int = 9) -> float:
    """Return the seconds that recording adds to a step."""
    network = nn.SequentialCell([nn.Dense(64, 64) for _ in range(cells)])
    x = Tensor(np.random.default_rng(0).standard_normal((rows, 64), np.float32))
    step = ms.value_and_grad(lambda: network(x).mean(), None, network.trainable_params())
    on = {"msprobe": True, "actor_train_dump": True, "step_end": 10**6}
    probe = Probe.from_config({**on, "dump_path": str(root / f"{cells}_{rows}")})
    probe.watch(actor=network)
    plain, recorded = [], []
    for round_ in range(rounds + 2):
        began = time.perf_counter()
        step()[0].asnumpy()
        middle = time.perf_counter()
        with probe.phase("actor_update"):
            step()[0].asnumpy()
        probe.step()
        ended = time.perf_counter()
        if round_ >= 2:
            plain.append(middle - began)
            recorded.append(ended - middle)
    probe.close()
    return statistics.median(recorded) - statistics.median(plain)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        for times in (1, 2, 4, 8):
            print(f"{8 * times:4} cells: {added(8 * times, 64, root) * 1000:7.1f} ms")
        for times in (1, 2, 4, 8):
            rows = 4096 * times
            print(f"{rows * 64:9} elements: {added(4, rows, root) * 1000:7.1f} ms")
        network = nn.SequentialCell([nn.Dense(64, 64) for _ in range(8)])
        x = Tensor(np.ones((256, 64), np.float32))
        step = ms.value_and_grad(lambda: network(x).mean(), None, network.trainable_params())
        on = {"msprobe": True, "actor_train_dump": True, "step_end": 10**6}
        probe = Probe.from_config({**on, "dump_path": str(root / "long")})
        probe.watch(actor=network)
        for number in range(1, arguments.steps + 1):
            with probe.phase("actor_update"):
                step()
            probe.step()
            if number % (arguments.steps // 4) == 0:
                print(f"{number:5} steps: {resident_megabytes():7.1f} MB resident")
        probe.close()
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
