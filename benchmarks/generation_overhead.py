"""Incremental decoding with the probe, against the same decoding without it.

A decoder (float32, PyNative, CPU): a prompt of 16 tokens, then single-token calls over a cache of
keys and values, 256 tokens in all. There are four kinds of decoding, each with a network, a cache
and an open phase of its own. They take turns, TURN tokens each, first one and then another in
front, so that whatever else the machine does hits all. What is printed is the median of the ratios
of turns that stand side by side, and what opening the phase, closing it and `step()` take beside
that, also as a share of the whole generation.

    python benchmarks/generation_overhead.py [--tokens N] [--seconds S] [--dir DIR] [--threads N]

It generates as often as fits into S seconds (default: 150), at least once. DIR is best on tmpfs
(default: /dev/shm). Files are kept until the end, as in a real run. THREADS are those that
MindSpore computes with (default: its own setting); on two cores it is quickest with 1, since its
threads wait for each other without sleeping.
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

from mindrlhf_msprobe import Probe

LAYERS, HIDDEN, HEADS, BATCH, PROMPT, VOCABULARY = 2, 256, 4, 4, 16, 512
WINDOW = (2, 3)  # the tokens of the narrow window, first and last
TURN = 8  # tokens


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Dense(HIDDEN, 3 * HIDDEN)
        self.out = nn.Dense(HIDDEN, HIDDEN)

    def construct(self, x: Tensor, cache: tuple, write: Tensor, mask: Tensor) -> tuple:
        """Attend to the cache, [batch, heads, length, dim] each, after `write` [new, length]."""
        new = x.shape[1]
        parts = self.qkv(x).reshape(BATCH, new, 3, HEADS, HIDDEN // HEADS)
        q, k, v = (parts[:, :, i].swapaxes(1, 2) for i in range(3))
        keep = 1 - write.sum(axis=0).reshape(-1, 1)
        if new == 1:  # sums of products: MindSpore's matmul of four dimensions takes 10 ms
            row = write.reshape(-1, 1)
            keys, values = cache[0] * keep + row * k, cache[1] * keep + row * v
            scores = (keys * q).sum(axis=-1).expand_dims(2)
        else:
            keys = cache[0] * keep + ops.matmul(write.T, k)
            values = cache[1] * keep + ops.matmul(write.T, v)
            scores = ops.matmul(q, keys.swapaxes(2, 3))
        weights = ops.softmax(scores / (HIDDEN // HEADS) ** 0.5 + mask)
        if new == 1:
            attended = (weights.swapaxes(2, 3) * values).sum(axis=2).expand_dims(2)
        else:
            attended = ops.matmul(weights, values)
        merged = attended.swapaxes(1, 2).reshape(BATCH, new, HIDDEN)
        return self.out(merged), (keys, values)


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((HIDDEN,))
        self.attention = Attention()
        self.norm2 = nn.LayerNorm((HIDDEN,))
        self.up = nn.Dense(HIDDEN, 4 * HIDDEN)
        self.down = nn.Dense(4 * HIDDEN, HIDDEN)

    def construct(self, x: Tensor, cache: tuple, write: Tensor, mask: Tensor) -> tuple:
        attended, cache = self.attention(self.norm1(x), cache, write, mask)
        x = x + attended
        return x + self.down(ops.gelu(self.up(self.norm2(x)))), cache


class Decoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.CellList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm((HIDDEN,))
        self.head = nn.Dense(HIDDEN, VOCABULARY)

    def construct(self, tokens: Tensor, caches: list, write: Tensor, mask: Tensor) -> tuple:
        x = self.embedding(tokens)
        after = []
        for block, cache in zip(self.blocks, caches):
            x, cache = block(x, cache, write, mask)
            after.append(cache)
        return self.head(self.norm(x)), after


class Generation:
    """One greedy generation, which can be continued token by token."""

    def __init__(self, network: nn.Cell, prompt: Tensor, count: int) -> None:
        self._network = network
        length = PROMPT + count
        empty = ops.zeros((BATCH, HEADS, length, HIDDEN // HEADS), ms.float32)
        self._caches = [(empty, empty)] * LAYERS
        self._rows = np.eye(length, dtype=np.float32)
        self._masks = np.where(np.tri(length, dtype=bool), 0, -1e9).astype(np.float32)
        self._tokens, self._begin = prompt, 0
        self.chosen: list[np.ndarray] = []

    def go_on(self, count: int) -> None:
        """Choose `count` tokens more, [batch, 1] each."""
        for _ in range(count):
            end = self._begin + self._tokens.shape[1]
            write, mask = (Tensor(t[self._begin : end]) for t in (self._rows, self._masks))
            logits, self._caches = self._network(self._tokens, self._caches, write, mask)
            self._tokens = ops.argmax(logits[:, -1:], dim=-1).astype(ms.int32)
            self.chosen.append(self._tokens.asnumpy())
            self._begin = end


class Kind:
    """One kind of decoding: a network, perhaps a probe, and what its turns took, in seconds."""

    def __init__(self, name: str, probe: Probe | None) -> None:
        ms.set_seed(0)
        self.name, self.probe, self.network = name, probe, Decoder()
        self.network.set_train(False)
        self.turns: list[float] = []
        self.around: list[float] = []  # opening and closing the phase, and step(), a generation
        if probe is not None:
            probe.watch(actor=self.network)

    def timed(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def open(self, prompt: Tensor, count: int) -> None:
        self._phase = self.probe and self.probe.phase("actor_generate_sequences")
        self._around = self.timed(self._phase.__enter__) if self._phase else 0.0
        self.generation = Generation(self.network, prompt, count)

    def close(self) -> None:
        if self._phase and self.probe:
            self._around += self.timed(lambda: self._phase.__exit__(None, None, None))
            self._around += self.timed(self.probe.step)
        self.around.append(self._around)

    def forget(self) -> None:
        self.turns.clear()
        self.around.clear()


def generate(kinds: list[Kind], prompt: Tensor, count: int) -> None:
    """Let each kind generate `count` tokens, in turn."""
    for kind in kinds:
        kind.open(prompt, count)
    for turn in range(count // TURN):
        first = turn % len(kinds)
        order = [*kinds[first:], *kinds[:first]][:: 1 if turn // len(kinds) % 2 else -1]
        for kind in order:
            kind.turns.append(kind.timed(lambda kind=kind: kind.generation.go_on(TURN)))
    for kind in reversed(kinds):
        kind.close()
    for kind in kinds[1:]:
        assert np.array_equal(kind.generation.chosen, kinds[0].generation.chosen), kind.name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    if arguments.threads:
        ms.set_context(runtime_num_threads=arguments.threads)
    prompt = Tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, PROMPT)), ms.int32)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    # Without `backward`, so that phases of several probes can be open at once.
    on = {"msprobe": True, "actor_infer_dump": True, "step_end": 10**6, "directions": ["forward"]}
    window = {"token_range_start": WINDOW[0], "token_range_end": WINDOW[1]}
    sections = {
        "phase switched off": {"msprobe": True},
        "window of two tokens": {**on, **window},
        "all tokens": {**on, "token_range_end": 10**6},
    }
    kinds = [Kind("no probe", None)]
    for name, section in sections.items():
        probe = Probe.from_config({**section, "dump_path": str(root / name)})
        kinds.append(Kind(name, probe))
    plain = kinds[0]
    try:
        generate(kinds, prompt, 4 * TURN)  # warms up
        for kind in kinds:
            kind.forget()
        began = time.perf_counter()
        generations, took = 0, 0.0
        while not generations or took * (generations + 1) / generations < arguments.seconds:
            generate(kinds, prompt, arguments.tokens // TURN * TURN)
            generations, took = generations + 1, time.perf_counter() - began
    finally:
        for kind in kinds:
            if kind.probe is not None:
                kind.probe.close()
        shutil.rmtree(root)
    print(f"{generations} generations, {len(plain.turns)} turns of {TURN} tokens each")
    whole = sum(plain.turns) / generations
    for kind in kinds:
        ratios = [mine / other for mine, other in zip(kind.turns, plain.turns)]
        low, median, high = statistics.quantiles(ratios, n=4)
        around = statistics.median(kind.around)
        print(
            f"{kind.name:20} {statistics.median(kind.turns) * 1000 / TURN:8.2f} ms a token  "
            f"{median:5.2f} (half of the turns {low:.2f} to {high:.2f})  "
            f"around it {around * 1000:5.0f} ms, {around / whole:.3f}"
        )


if __name__ == "__main__":
    main()
