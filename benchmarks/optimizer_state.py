"""What `optimizer_state: true` costs: describing Adam's moments, against the parameters themselves.

Processor time of one step for 8 layers of 1024 × 1024, float32, in PyNative mode on the CPU; every
tensor is another one in each round.

    python benchmarks/optimizer_state.py [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from median_table import print_medians
from mindspore import Tensor, nn

from mindrlhf_msprobe.capture.opening.opening import HostEntries
from mindrlhf_msprobe.capture.pynative.gradients import lines_of
from mindrlhf_msprobe.capture.tensors.summary import Summaries
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.writing.ledger import Ledger
from mindrlhf_msprobe.storage.writing.writer import Sink

LAYERS, WIDTH = 8, 1024


class Nowhere(Sink):
    def __init__(self) -> None:
        """Write nothing."""

    def append(self, line: JournalLine) -> None:
        """Take an entry."""


def fail(what: Any, error: BaseException, count: int = 1) -> None:
    raise error


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = nn.CellList([nn.Dense(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-3)
    charge = Ledger().charge("actor_update")
    entries = HostEntries(Nowhere(), Summaries(), fingerprint=True, charge=charge, fault=fail)
    parameters = {p.name: p for p in network.trainable_params()}
    random = np.random.default_rng(0)
    kinds: dict[str, Callable[[], object]] = {
        "parameters": lambda: entries.describer.describe(parameters, "parameters"),
        "optimizer state": lambda: list(lines_of([optimizer], entries, 0, 1, 0)),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for tensor in (p for p in optimizer.get_parameters() if p.ndim):
            tensor.set_data(Tensor(random.normal(size=tensor.shape), tensor.dtype))
            tensor.asnumpy()
        for name, describe in kinds.items():
            began = time.process_time()
            describe()
            times[name].append(time.process_time() - began)
    print_medians(times, "parameters")


if __name__ == "__main__":
    main()
