"""The processor time that recording one entry takes, apart from what a network computes.

40 cells that return what they are given, a fourth of them with a weight of 16 KiB, 300 calls in
PyNative mode without gradients, statistics of a tensor of 2 048 float32. It is processor time, so
that it says the same on a busy machine; the wall time of a real network is that of
step_overhead.py and generation_overhead.py.

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
    probe = Probe.from_config({**section, "step_end": 10**6, "dump_path": str(root / "run")})
    probe.watch(actor=network)
    own, all_threads, plain = [], [], []
    try:
        for _ in range(arguments.rounds):
            of_process = time.process_time()
            with probe.phase("actor_generate_sequences"):
                began = time.thread_time()
                for x in inputs:
                    network(x)
                own.append(time.thread_time() - began)
            probe.step()
            all_threads.append(time.process_time() - of_process)
            began = time.thread_time()
            for x in inputs:
                network(x)
            plain.append(time.thread_time() - began)
    finally:
        probe.close()
        shutil.rmtree(root)
    for name, seconds in (
        ("the thread that calls the cells", own),
        ("all threads", all_threads),
        ("the thread, without recording", plain),
    ):
        median = statistics.median(seconds) / (CALLS * (CELLS + 1))
        print(f"{name:32} {median * 1e6:6.1f} microseconds an entry")


if __name__ == "__main__":
    main()
