"""A recorded training step that is also looked at while training, against recording alone.

Two networks, PyNative, CPU: 24 cells that compute next to nothing, whose step is the recording; and
the decoder of step_overhead.py. Statistics of every cell with gradients, and key data. Blocks of
steps alternate in one process; between blocks there is a pause, so that what looks at the steps of
one block does so beside that block and not beside the next. Wall time holds what a busy machine
adds; the processor time of the training's thread holds less of it, and what of that is spent on
looking at steps, which is counted apart, nearly nothing. What the process that looks at them takes
a step is counted in ticks of the system.

The small network learns nothing, so that all of its steps agree with those of the run that is
compared with.

    python benchmarks/live_overhead.py [--rounds N] [--steps N] [--dir DIR] [--only NAME]
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
from mindspore import Tensor, nn, ops
from step_overhead import training_step

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.live.training import Live

CELLS = 24


class Added:
    """Seconds of the training's thread that are spent on what looks at steps."""

    seconds = 0.0
    _inside = False

    @classmethod
    def counted(cls, method: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            if cls._inside:
                return method(*given)
            cls._inside, began = True, time.thread_time()
            try:
                return method(*given)
            finally:
                cls._inside = False
                cls.seconds += time.thread_time() - began

        return call


Live.step_ended = Added.counted(Live.step_ended)
Live.look = Added.counted(Live.look)


class Small(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.Dense(8, 8) for _ in range(CELLS)])

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + ops.tanh(layer(x))
        return x


def small_step() -> tuple[nn.Cell, Callable[[], Tensor]]:
    network = Small()
    optimizer = nn.SGD(network.trainable_params(), 0.0)
    x = Tensor(np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32))
    loss_and_gradients = ms.value_and_grad(
        lambda x: (network(x) ** 2).mean(), None, optimizer.parameters
    )

    def step() -> Tensor:
        value, gradients = loss_and_gradients(x)
        optimizer(gradients)
        value.asnumpy()
        return value

    return network, step


def decoder_step() -> tuple[nn.Cell, Callable[[], Tensor]]:
    network, _, step = training_step()
    return network, step


def looked_seconds(probe: Probe) -> float:
    """Return the processor seconds of the process that looks at a probe's steps, in ticks."""
    follower = probe._live._process if probe._live is not None else None
    if follower is None:
        return 0.0
    fields = Path(f"/proc/{follower._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def block(probe: Probe, step: Callable[[], Tensor], steps: int) -> list[tuple[float, float]]:
    """Return wall seconds, and processor seconds of this thread, of each step of a block."""
    found = []
    for _ in range(steps):
        began = time.perf_counter(), time.thread_time()
        with probe.phase("actor_update"):
            loss = step()
        probe.save_data(loss=loss)
        probe.step()
        found.append((time.perf_counter() - began[0], time.thread_time() - began[1]))
    time.sleep(0.3)
    return found


def measure(
    name: str, made: tuple[nn.Cell, Callable[[], Tensor]], arguments: argparse.Namespace
) -> None:
    network, step = made
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    on = {"msprobe": True, "actor_train_dump": True, "key_data_dump": True, "step_end": 10**6}
    sections = {
        "recording alone": {},
        "on_finding: warn": {"on_finding": "warn"},
        "tensorboard, too": {"on_finding": "warn", "tensorboard": str(root / "events")},
    }
    if name == "small":
        other = root / "other"
        with Probe.from_config({**on, "dump_path": str(other)}) as probe:
            probe.watch(actor=network)
            block(probe, step, 3 + arguments.rounds * arguments.steps)
        sections["compare_to"] = {"compare_to": str(other)}
        sections["… and stop"] = {"compare_to": str(other), "on_divergence": "stop"}
    probes = {
        kind: Probe.from_config({**on, **section, "dump_path": str(root / kind.replace(" ", "_"))})
        for kind, section in sections.items()
    }
    times: dict[str, list[list[tuple[float, float]]]] = {kind: [] for kind in probes}
    try:
        for probe in probes.values():
            probe.watch(actor=network)
            block(probe, step, 3)  # warm up; the first step waits until the process is there
        Added.seconds = 0.0
        began = {kind: looked_seconds(probe) for kind, probe in probes.items()}
        for round_ in range(arguments.rounds):
            for kind in list(probes)[:: 1 if round_ % 2 else -1]:
                times[kind].append(block(probes[kind], step, arguments.steps))
        looked_at = arguments.rounds * arguments.steps * (len(probes) - 1)
        print(f"{name:8} {Added.seconds / looked_at * 1e6:.0f} us a step of the training's thread")
        steps = arguments.rounds * arguments.steps
        looking = {
            kind: (looked_seconds(probe) - began[kind]) / steps * 1000
            for kind, probe in probes.items()
        }
    finally:
        for probe in probes.values():
            probe.close()
        shutil.rmtree(root)
    medians = {
        kind: [[statistics.median(one[w] for one in block) for block in blocks] for w in (0, 1)]
        for kind, blocks in times.items()
    }
    for kind, found in medians.items():
        alone = medians["recording alone"]
        pairs = [[a / b for a, b in zip(found[w], alone[w])] for w in (0, 1)]
        wall, cpu = map(statistics.median, pairs)
        ms_a_step = statistics.median(found[0]) * 1000
        one = f"{name:8} {kind:18} {ms_a_step:8.1f} ms  wall {wall:5.3f}  processor {cpu:5.3f}"
        print(f"{one}  looking {looking[kind]:4.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--only", choices=("small", "decoder"))
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    for name, made in (("small", small_step), ("decoder", decoder_step)):
        if arguments.only in (None, name):
            measure(name, made(), arguments)


if __name__ == "__main__":
    main()
