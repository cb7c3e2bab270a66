"""The processor time that recording one entry takes, apart from what a network computes.

40 cells that return what they are given, a fourth of them with a weight of 16 KiB, 300 calls in
PyNative mode without gradients, of a tensor of 2 048 float32, with task statistics and with
overflow_check in turn. It is processor time, so that it says the same on a busy machine; the wall
time of a real network is that of step_overhead.py and generation_overhead.py.

    python benchmarks/entry_cost.py [--rounds N] [--dir DIR]
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
from mindspore import Parameter, Tensor, nn

from mindrlhf_msprobe import Probe

CELLS, WEIGHTS, CALLS = 40, 10, 300


class Pass(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x


class Chain(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.cells_in_turn = nn.CellList([Pass() for _ in range(CELLS)])
        for cell in list(self.cells_in_turn)[:: CELLS // WEIGHTS]:
            cell.weight = Parameter(np.ones((64, 64), np.float32))

    def construct(self, x: Tensor) -> Tensor:
        for cell in self.cells_in_turn:
            x = cell(x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = Chain()
    network.set_train(False)
    random = np.random.default_rng(0)
    inputs = [Tensor(random.random((8, 256), dtype=np.float32)) + 0 for _ in range(CALLS)]
    inputs[-1].asnumpy()
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    section = {"msprobe": True, "actor_infer_dump": True, "token_range_end": 10**6}
    probes = {
        task: Probe.from_config(
            {**section, "task": task, "step_end": 10**6, "dump_path": str(root / task)}
        )
        for task in ("statistics", "overflow_check")
    }
    for probe in probes.values():
        probe.watch(actor=network)
    own: dict[str, list[float]] = {task: [] for task in probes}
    all_threads: dict[str, list[float]] = {task: [] for task in probes}
    plain = []
    try:
        for round_ in range(arguments.rounds):
            for task, probe in list(probes.items())[:: 1 if round_ % 2 else -1]:
                of_process = time.process_time()
                with probe.phase("actor_generate_sequences"):
                    began = time.thread_time()
                    for x in inputs:
                        network(x)
                    own[task].append(time.thread_time() - began)
                probe.step()
                all_threads[task].append(time.process_time() - of_process)
            began = time.thread_time()
            for x in inputs:
                network(x)
            plain.append(time.thread_time() - began)
    finally:
        for probe in probes.values():
            probe.close()
        shutil.rmtree(root)
    entries = CALLS * (CELLS + 1)
    for task in probes:
        for name, seconds in (
            ("the thread that calls the cells", own[task]),
            ("all threads", all_threads[task]),
        ):
            median = statistics.median(seconds) / entries
            print(f"{task:16} {name:32} {median * 1e6:6.1f} microseconds an entry")
    median = statistics.median(plain) / entries
    print(f"{'no recording':16} {'the thread':32} {median * 1e6:6.1f} microseconds an entry")


if __name__ == "__main__":
    main()
