"""A recorded training step that is also looked at while training, against recording alone.

Two networks, PyNative, CPU: 24 cells that compute next to nothing, whose step is the recording; and
the decoder of step_overhead.py. Statistics of every cell with gradients, and key data. The small
network learns nothing, so that all of its steps agree with those of the run that is compared with.

Two questions, answered apart, as the noise of a machine may be larger than either answer:

- What is added? Seconds of the training's thread inside what looks at steps, on the processor and
  waiting; of the whole process beyond recording alone; of the process that looks at steps, counted
  in nanoseconds by Linux where it says so (else in ticks). Divided by the length of a step they say
  how much longer it can become: what runs on another core costs the step at most as much.
- How much longer is the step? Blocks of steps alternate in one process, each round in another
  order; between blocks there is a pause, so that what looks at the steps of one block does so
  beside that block. A round gives one ratio of medians for each kind; of the rounds' ratios stand
  there the median and the interval in which the median lies with 95 % (order statistics, binomial).
  `shown` where all of it is at most --aim, `refuted` where none is, else `not decided`: give more
  rounds.

`--step-ms` lets the small network compute matrix products until its step is as long.

    python benchmarks/live_overhead.py [--rounds N] [--steps N] [--dir DIR] [--only NAME]
        [--step-ms MS [MS …]] [--kinds KIND [KIND …]] [--aim RATIO]
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from step_overhead import training_step

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.live.training import Live

CELLS = 24
ALONE = "recording alone"
KINDS = ("on_finding", "tensorboard", "compare_to", "stop")


class Added:
    """What the training's thread spends on what looks at steps, by kind."""

    kind = ""
    processor: ClassVar[dict[str, float]] = {}
    waited: ClassVar[dict[str, float]] = {}
    _inside = False

    @classmethod
    def counted(cls, method: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            if cls._inside:
                return method(*given)
            cls._inside, began = True, (time.thread_time(), time.perf_counter())
            try:
                return method(*given)
            finally:
                cls._inside = False
                processor = time.thread_time() - began[0]
                waited = time.perf_counter() - began[1] - processor
                cls.processor[cls.kind] = cls.processor.get(cls.kind, 0.0) + processor
                cls.waited[cls.kind] = cls.waited.get(cls.kind, 0.0) + waited

        return call

    @classmethod
    def begin(cls) -> None:
        cls.processor.clear()
        cls.waited.clear()


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


class Padding:
    """Matrix products that make a step as long as asked for: always as many."""

    def __init__(self) -> None:
        self._a = Tensor(np.random.default_rng(1).normal(size=(256, 256)).astype(np.float32))
        self.products = 0

    def compute(self) -> None:
        for _ in range(self.products):
            ops.matmul(self._a, self._a).asnumpy()

    def fill(self, missing: float) -> None:
        """Choose how many, so that they take so many seconds."""
        self.products = 200
        took = []
        for _ in range(5):
            began = time.perf_counter()
            self.compute()
            took.append(time.perf_counter() - began)
        self.products = max(0, round(missing / (min(took) / 200)))


PADDING = Padding()


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
        PADDING.compute()
        return value

    return network, step


def decoder_step() -> tuple[nn.Cell, Callable[[], Tensor]]:
    network, _, step = training_step()
    return network, step


def looked_seconds(probe: Probe) -> float:
    """Return the processor seconds of the process that looks at a probe's steps."""
    follower = probe._live._process if probe._live is not None else None
    if follower is None:
        return 0.0
    process = Path(f"/proc/{follower._process.pid}")
    try:
        return (
            sum(int(one.read_text().split()[0]) for one in process.glob("task/*/schedstat")) / 1e9
        )
    except OSError:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Block(NamedTuple):
    """Seconds of each step of a block, and of the whole process over it."""

    wall: list[float]
    thread: list[float]
    process: float


def block(probe: Probe, step: Callable[[], Tensor], steps: int) -> Block:
    wall, thread = [], []
    whole = time.process_time()
    for _ in range(steps):
        began = time.perf_counter(), time.thread_time()
        with probe.phase("actor_update"):
            loss = step()
        probe.save_data(loss=loss)
        probe.step()
        wall.append(time.perf_counter() - began[0])
        thread.append(time.thread_time() - began[1])
    found = Block(wall, thread, (time.process_time() - whole) / steps)
    time.sleep(0.3)
    return found


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return between which of the ratios their median lies with 95 % (binomial, p = 0.5)."""
    ordered, n = sorted(ratios), len(ratios)
    below, k = 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else (-math.inf, math.inf)


def verdict(low: float, high: float, aim: float) -> str:
    return "shown" if high <= aim else "refuted" if low > aim else "not decided"


def sections_of(name: str, root: Path, other: Path, kinds: list[str] | None) -> dict[str, Any]:
    """Return the further settings of each kind that is measured, recording alone first."""
    found: dict[str, Any] = {
        "on_finding": {"on_finding": "warn"},
        "tensorboard": {"on_finding": "warn", "tensorboard": str(root / "events")},
    }
    if name == "small":
        found["compare_to"] = {"compare_to": str(other)}
        found["stop"] = {"compare_to": str(other), "on_divergence": "stop"}
    chosen = {kind: one for kind, one in found.items() if kinds is None or kind in kinds}
    return {ALONE: {}, **chosen}


def measure(
    name: str, made: tuple[nn.Cell, Callable[[], Tensor]], arguments: argparse.Namespace, ms_: int
) -> None:
    network, step = made
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    on = {"msprobe": True, "actor_train_dump": True, "key_data_dump": True, "step_end": 10**6}
    sections = sections_of(name, root, root / "other", arguments.kinds)
    PADDING.products = 0
    if name == "small":
        with Probe.from_config({**on, "dump_path": str(root / "other")}) as probe:
            probe.watch(actor=network)
            block(probe, step, 3)
            usual = statistics.median(block(probe, step, 5).wall)
            block(probe, step, arguments.rounds * arguments.steps)
        if ms_:
            PADDING.fill(ms_ / 1000 - usual)
    probes = {
        kind: Probe.from_config({**on, **section, "dump_path": str(root / kind.replace(" ", "_"))})
        for kind, section in sections.items()
    }
    blocks: dict[str, list[Block]] = {kind: [] for kind in probes}
    try:
        for probe in probes.values():
            probe.watch(actor=network)
            block(probe, step, 3)  # warm up; the first step waits until the process is there
        Added.begin()
        began = {kind: looked_seconds(probe) for kind, probe in probes.items()}
        order = [*probes]
        for round_ in range(arguments.rounds):
            turn = round_ // 2 % len(order)
            turned = order[turn:] + order[:turn]
            for kind in turned[:: 1 if round_ % 2 else -1]:
                Added.kind = kind
                blocks[kind].append(block(probes[kind], step, arguments.steps))
        steps = arguments.rounds * arguments.steps
        looking = {
            kind: (looked_seconds(probe) - began[kind]) / steps for kind, probe in probes.items()
        }
    finally:
        for probe in probes.values():
            probe.close()
        shutil.rmtree(root)
    show(f"{name} {ms_ or ''}".strip(), blocks, looking, arguments)


def show(
    name: str, blocks: dict[str, list[Block]], looking: dict[str, float], asked: argparse.Namespace
) -> None:
    alone = blocks[ALONE]
    length = statistics.median(statistics.median(one.wall) for one in alone)
    print(f"{name}: a step of {length * 1000:.1f} ms, {asked.rounds} rounds of {asked.steps}")
    steps = asked.rounds * asked.steps
    for kind, own in blocks.items():
        if kind == ALONE:
            continue
        thread = Added.processor.get(kind, 0.0) / steps
        waited = Added.waited.get(kind, 0.0) / steps
        whole = statistics.median(a.process - b.process for a, b in zip(own, alone))
        print(
            f"  {kind:11} adds a step: training's thread {thread * 1e3:.3f} ms "
            f"({thread / length:.4f} of it) and {waited * 1e3:.3f} ms of waiting; the process "
            f"{whole * 1e3:+.2f} ms; what looks at steps {looking[kind] * 1e3:.2f} ms"
        )
        for what, of in (("wall", lambda b: b.wall), ("thread", lambda b: b.thread)):
            ratios = [
                statistics.median(of(a)) / statistics.median(of(b)) for a, b in zip(own, alone)
            ]
            low, high = interval(ratios)
            print(
                f"  {kind:11} {what:6} {statistics.median(ratios):6.3f} times "
                f"[{low:.3f}, {high:.3f}]: at most {asked.aim} {verdict(low, high, asked.aim)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--only", choices=("small", "decoder"))
    parser.add_argument("--step-ms", type=int, nargs="+", default=[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS)
    parser.add_argument("--aim", type=float, default=1.02)
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    for name, made in (("small", small_step), ("decoder", decoder_step)):
        if arguments.only in (None, name):
            for length in arguments.step_ms if name == "small" else [0]:
                measure(name, made(), arguments, length)


if __name__ == "__main__":
    main()
