"""A training step with the probe, against the same step without it.

A decoder of 4 layers, hidden 256, batch 8, sequence 128, float32, value_and_grad and AdamW,
PyNative, CPU. The kinds of step alternate in one process, so that whatever else the machine does
hits all. Files are kept until the end, as in a real run: the pages of a removed file are handed out
again, warm, and cost a fraction of fresh ones. So in every round the bytes that full tensors take
are also written to a plain file, with nothing else going on: the raw speed of DIR.

    python benchmarks/step_overhead.py [--rounds N] [--dir DIR]
    python benchmarks/step_overhead.py --every-other KIND [--rounds N] [--dir DIR]

With --every-other there is one probe of one kind, whose phase is entered on every other step: 2 N
steps, timed from the opening of the phase until the loss and a weight are on the host, without
`step()`. What a step leaves to the one after it, which the first way counts with the next kind of
step, is then counted with the steps without the phase; and the pages of files are always fresh.

DIR: on tmpfs (default: /dev/shm) or on a disk. It needs about 0.4 GB a round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from median_table import print_medians
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe

LAYERS, HIDDEN, BATCH, SEQUENCE, VOCABULARY = 4, 256, 8, 128, 512


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Dense(HIDDEN, 3 * HIDDEN)
        self.out = nn.Dense(HIDDEN, HIDDEN)

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = ops.split(self.qkv(x).reshape(BATCH, SEQUENCE, 12, HIDDEN // 4), 4, 2)
        q, k, v = (t.swapaxes(1, 2) for t in (q, k, v))
        weights = ops.softmax(ops.matmul(q, k.swapaxes(2, 3)) / (HIDDEN // 4) ** 0.5)
        return self.out(ops.matmul(weights, v).swapaxes(1, 2).reshape(BATCH, SEQUENCE, HIDDEN))


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((HIDDEN,))
        self.attention = Attention()
        self.norm2 = nn.LayerNorm((HIDDEN,))
        self.up = nn.Dense(HIDDEN, 4 * HIDDEN)
        self.down = nn.Dense(4 * HIDDEN, HIDDEN)

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(ops.gelu(self.up(self.norm2(x))))


class Decoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.CellList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm((HIDDEN,))
        self.head = nn.Dense(HIDDEN, VOCABULARY)

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def training_step() -> tuple[nn.Cell, nn.Optimizer, Callable[[], Tensor]]:
    ms.set_seed(0)
    network = Decoder()
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-4)
    tokens = Tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, SEQUENCE)), ms.int32)

    def loss(tokens: Tensor) -> Tensor:
        return ops.cross_entropy(network(tokens).reshape(-1, VOCABULARY), tokens.reshape(-1))

    loss_and_gradients = ms.value_and_grad(loss, None, optimizer.parameters)

    weight = network.head.weight

    def step() -> Tensor:
        value, gradients = loss_and_gradients(tokens)
        optimizer(gradients)
        value.asnumpy()
        weight.asnumpy()
        return value

    return network, optimizer, step


def bytes_below(directory: Path) -> int:
    """Return the bytes of all files, each counted once however many names it has."""
    sizes = {(s := path.stat()).st_ino: s.st_size for path in directory.rglob("*.npy")}
    return sum(sizes.values())


def raw_write(path: Path, size: int) -> float:
    """Write a fresh file of `size` bytes, a megabyte at a time; return the seconds it takes."""
    block = bytes(1 << 20)
    began = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(block)
    return time.perf_counter() - began


def every_other(probe: Probe, step: Callable[[], Tensor], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of steps inside a phase and of those without, which take turns."""
    times: dict[str, list[float]] = {"no phase": [], "phase": []}
    for round_ in range(rounds + 2):
        for name, seconds in times.items():
            began = time.perf_counter()
            with probe.phase("actor_update") if name == "phase" else nullcontext():
                step()
            if round_ >= 2:  # the first rounds warm up
                seconds.append(time.perf_counter() - began)
            if name == "phase":
                probe.step()
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument(
        "--only", action="append", help="a kind of step beside the one without a probe; repeatable"
    )
    parser.add_argument("--every-other", help="a kind of step, alone: see above")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network, optimizer, step = training_step()
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    on = {"msprobe": True, "actor_train_dump": True, "step_end": 10**6}
    sections = {
        "phase switched off": {"msprobe": True},
        "statistics": on,
        "overflow check": {**on, "task": "overflow_check"},
        "with optimizer state": {**on, "optimizer_state": True},
        "gradient signs": {**on, "task": "grad_probe"},
        "full tensors": {**on, "task": "tensor"},
    }
    if arguments.every_other:
        section = {**sections[arguments.every_other], "dump_path": str(root)}
        try:
            with Probe.from_config(section) as probe:
                probe.watch(actor=network)
                print_medians(every_other(probe, step, arguments.rounds), "no phase")
        finally:
            shutil.rmtree(root)
        return
    if arguments.only:
        sections = {name: sections[name] for name in arguments.only}
    probes = {
        name: Probe.from_config({**section, "dump_path": str(root / name)})
        for name, section in sections.items()
    }
    for probe in probes.values():
        signs = probe.config.task == "grad_probe"
        probe.watch(actor=network, optimizers={"actor": optimizer} if signs else None)
    times: dict[str, list[float]] = {"no probe": [], **{name: [] for name in probes}}
    processor: dict[str, list[float]] = {name: [] for name in times}
    raw: list[float] = []
    size = 0
    try:
        for round_ in range(arguments.rounds + 2):
            # In turn forwards and backwards, so that none always follows the same other.
            for name, seconds in list(times.items())[:: 1 if round_ % 2 else -1]:
                began, worked = time.perf_counter(), time.process_time()
                if name == "no probe":
                    step()
                else:
                    with probes[name].phase("actor_update"):
                        step()
                    probes[name].step()
                if round_ >= 2:  # the first rounds warm up
                    seconds.append(time.perf_counter() - began)
                    processor[name].append(time.process_time() - worked)
            if "full tensors" in probes:
                size = size or bytes_below(root / "full tensors")
                raw.append(raw_write(root / f"raw{round_}", size))
    finally:
        for probe in probes.values():
            probe.close()
        shutil.rmtree(root)
    beside = [name for name in ("overflow check", "gradient signs") if name in times]
    for task in beside if "statistics" in times else ():
        for what, of in (("time", times), ("processor time", processor)):
            ratios = sorted(b / a for a, b in zip(of["statistics"], of[task]))
            middle = [ratios[len(ratios) * n // 4] for n in (1, 3)]
            print(
                f"{task} / statistics, {what} round by round: {statistics.median(ratios):.3f} "
                f"(half of them {middle[0]:.3f} to {middle[1]:.3f})"
            )
    print_medians(times, "no probe")
    if raw:
        plain, median = statistics.median(times["no probe"]), statistics.median(raw)
        print(
            f"{'raw write':20} {median * 1000:8.1f} ms  {median / plain:5.2f}  "
            f"({size / 1e6:.0f} MB, {size / median / 1e9:.2f} GB/s; a step without a probe that "
            f"waits for it: {1 + median / plain:.2f})"
        )


if __name__ == "__main__":
    main()
