"""Incremental decoding with the probe, against the same decoding without it.

A decoder of 4 layers, hidden 256, batch 8, float32, PyNative, CPU: a prompt of 16 tokens, then
TOKENS single-token calls over a cache of keys and values. The kinds of decoding alternate in one
process, so that whatever else the machine does hits all.

    python benchmarks/generation_overhead.py [--rounds N] [--tokens TOKENS] [--dir DIR]

On 2 cores a token takes some 0.2 s: the defaults run for twenty minutes, and need a quiet machine.

DIR is best on tmpfs (default: /dev/shm). Files are kept until the end, as in a real run.
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
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe

LAYERS, HIDDEN, HEADS, BATCH, PROMPT, VOCABULARY = 4, 256, 4, 8, 16, 512
WINDOW = (2, 3)  # the tokens of the narrow window, first and last


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Dense(HIDDEN, HIDDEN)
        self.key = nn.Dense(HIDDEN, HIDDEN)
        self.value = nn.Dense(HIDDEN, HIDDEN)
        self.out = nn.Dense(HIDDEN, HIDDEN)

    def construct(self, x: Tensor, cache: tuple, write: Tensor, mask: Tensor) -> tuple:
        """Attend to the cache, [batch, heads, length, dim] each, after `write` [new, length]."""
        new = x.shape[1]
        shape = (BATCH, new, HEADS, HIDDEN // HEADS)
        q, k, v = (f(x).reshape(shape).swapaxes(1, 2) for f in (self.query, self.key, self.value))
        keep = 1 - write.sum(axis=0).reshape(-1, 1)
        keys = cache[0] * keep + ops.matmul(write.T, k)
        values = cache[1] * keep + ops.matmul(write.T, v)
        weights = ops.softmax(ops.matmul(q, keys.swapaxes(2, 3)) / (HIDDEN // HEADS) ** 0.5 + mask)
        merged = ops.matmul(weights, values).swapaxes(1, 2).reshape(BATCH, new, HIDDEN)
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


def generate(network: nn.Cell, prompt: Tensor, count: int) -> np.ndarray:
    """Return `count` greedy tokens, [batch, count]."""
    length = PROMPT + count
    empty = ops.zeros((BATCH, HEADS, length, HIDDEN // HEADS), ms.float32)
    caches = [(empty, empty)] * LAYERS
    rows = np.eye(length, dtype=np.float32)
    masks = np.where(np.tri(length, dtype=bool), 0, -1e9).astype(np.float32)
    tokens, begin, chosen = prompt, 0, []
    for _ in range(count):
        end = begin + tokens.shape[1]
        write, mask = Tensor(rows[begin:end]), Tensor(masks[begin:end])
        logits, caches = network(tokens, caches, write, mask)
        tokens = ops.argmax(logits[:, -1:], dim=-1).astype(ms.int32)
        chosen.append(tokens.asnumpy())
        begin = end
    return np.concatenate(chosen, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    network = Decoder()
    network.set_train(False)
    prompt = Tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, PROMPT)), ms.int32)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    on = {"msprobe": True, "actor_infer_dump": True, "step_end": 10**6}
    sections = {
        "phase switched off": {"msprobe": True},
        "window of two tokens": {
            **on,
            "token_range_start": WINDOW[0],
            "token_range_end": WINDOW[1],
        },
        "all tokens": {**on, "token_range_end": 10**6},
    }
    probes = {
        name: Probe.from_config({**section, "dump_path": str(root / name)})
        for name, section in sections.items()
    }
    for probe in probes.values():
        probe.watch(actor=network)
    times: dict[str, list[float]] = {"no probe": [], **{name: [] for name in probes}}
    try:
        for round_ in range(arguments.rounds + 1):
            # In turn forwards and backwards, so that none always follows the same other.
            for name, seconds in list(times.items())[:: 1 if round_ % 2 else -1]:
                began = time.perf_counter()
                if name == "no probe":
                    generate(network, prompt, arguments.tokens)
                else:
                    with probes[name].phase("actor_generate_sequences"):
                        generate(network, prompt, arguments.tokens)
                    probes[name].step()
                if round_:  # the first round warms up
                    seconds.append(time.perf_counter() - began)
    finally:
        for probe in probes.values():
            probe.close()
        shutil.rmtree(root)
    plain = statistics.median(times["no probe"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(
            f"{name:20} {median * 1000 / arguments.tokens:8.2f} ms a token  {median / plain:5.2f}"
        )


if __name__ == "__main__":
    main()
