"""A small transformer in plain numpy, which generates through a cache and trains on whole samples.

Both are recorded through the real writer (`helpers.runs.Recording`), without MindSpore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from helpers.runs import Recording
from mindrlhf_msprobe.comparison.mismatch.find import PHASES

HIDDEN, VOCABULARY, HEADS, BLOCKS = 64, 40, 4, 3
PROJECTIONS = ("q", "k", "v")
Weights = dict[str, np.ndarray]


def weights_of(seed: int = 0, blocks: int = BLOCKS) -> Weights:
    """Return the weights of a network, [outputs, inputs], by the names of its cells."""
    rng = np.random.default_rng(seed)
    sizes = {"embed": (VOCABULARY, HIDDEN), "head": (VOCABULARY, HIDDEN)}
    for block in range(blocks):
        sizes |= {f"blocks.{block}.attn.{own}": (HIDDEN, HIDDEN) for own in (*PROJECTIONS, "out")}
        sizes |= {f"blocks.{block}.up": (2 * HIDDEN, HIDDEN)}
        sizes |= {f"blocks.{block}.down": (HIDDEN, 2 * HIDDEN)}
    made = {n: rng.standard_normal(s) / np.sqrt(s[1]) for n, s in sizes.items()}
    norms = ["norm", *(f"blocks.{b}.{own}" for b in range(blocks) for own in ("norm1", "norm2"))]
    made |= {name: 1 + 0.3 * rng.standard_normal(HIDDEN) for name in norms}
    return {name: values.astype(np.float32) for name, values in made.items()}


@dataclass
class Transformer:
    """One network.

    Attributes:
        fused: whether queries, keys and values are one projection, one behind the other.
        without: cells that it does not run.
        extra: cells that it runs beside those that all have: what stands before → name, function.
        adapters: of cells, A [r, inputs], B [outputs, r] and the factor of what they add.
        faults: what is made of the output of a cell, by its name.
    """

    weights: Weights
    fused: bool = False
    without: frozenset[str] = frozenset()
    extra: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = field(
        default_factory=dict
    )
    adapters: Mapping[str, tuple[np.ndarray, np.ndarray, float]] = field(default_factory=dict)
    faults: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.caches: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def blocks(self) -> int:
        return sum(name.endswith(".up") for name in self.weights)

    def run(self, recording: Recording, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return logits; tokens see those of the calls before, which the cache holds."""
        self._recording = recording
        return recording.call("root", "Transformer", self._root, ids, positions=positions)

    def _root(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        x = self._cell("embed", "Embedding", lambda ids: self.weights["embed"][ids], ids)
        for block in range(self.blocks):
            x = self._call(f"blocks.{block}", "Block", self._block, x, positions)
        return self._dense("head", self._norm("norm", x))

    def _block(self, x: np.ndarray, positions: np.ndarray, name: str) -> np.ndarray:
        given = self._norm(f"{name}.norm1", x)
        x = x + self._call(f"{name}.attn", "Attention", self._attention, given, positions)
        up = self._dense(f"{name}.up", self._norm(f"{name}.norm2", x))
        return x + self._dense(f"{name}.down", np.tanh(up))

    def _attention(self, x: np.ndarray, positions: np.ndarray, name: str) -> np.ndarray:
        def rotated(own: str, given: np.ndarray) -> np.ndarray:
            return self._cell(f"{name}.rotary_{own}", "Rotary", rotate, given, positions)

        if self.fused:
            q, k, v = np.split(self._dense(f"{name}.qkv", x), 3, axis=-1)
            q, k = rotated("q", q), rotated("k", k)
        else:  # each is rotated before the next one is computed
            q = rotated("q", self._dense(f"{name}.q", x))
            k = rotated("k", self._dense(f"{name}.k", x))
            v = self._dense(f"{name}.v", x)
        return self._dense(f"{name}.out", self._mixed(name, q, k, v))

    def _mixed(self, name: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        block = int(name.split(".")[1])
        if block in self.caches:
            k, v = (np.concatenate(of, 1) for of in zip(self.caches[block], (k, v)))
        self.caches[block] = k, v
        heads = [of.reshape(*of.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) for of in (q, k, v)]
        scores = heads[0] @ heads[1].swapaxes(2, 3) / np.float32(np.sqrt(HIDDEN / HEADS))
        hidden = np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        scores = np.exp(np.where(hidden, np.float32(-1e4), scores))
        mixed = scores / scores.sum(-1, keepdims=True) @ heads[2]
        return mixed.transpose(0, 2, 1, 3).reshape(q.shape)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        if name in self.without:
            return x
        weight = self.weights[name]
        size = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5))
        return self._cell(name, "RMSNorm", lambda x: x / size * weight, x, weight=weight)

    def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
        weight = self._weight(name)
        if name not in self.adapters:
            return self._cell(name, "Dense", lambda x: x @ weight.T, x, weight=weight)
        a, b, factor = self.adapters[name]
        parameters = {"weight": weight, "lora_a": a, "lora_b": b}

        def added(x: np.ndarray) -> np.ndarray:
            return x @ weight.T + np.float32(factor) * ((x @ a.T) @ b.T)

        return self._cell(name, "LoRADense", added, x, **parameters)

    def _weight(self, name: str) -> np.ndarray:
        around, _, own = name.rpartition(".")
        if own == "qkv":
            return np.concatenate([self.weights[f"{around}.{part}"] for part in PROJECTIONS])
        return self.weights[name]

    def _call(self, name: str, kind: str, function: Any, *inputs: np.ndarray) -> np.ndarray:
        return self._cell(name, kind, lambda *given: function(*given, name), *inputs)

    def _cell(
        self, name: str, kind: str, function: Any, *inputs: Any, **parameters: np.ndarray
    ) -> np.ndarray:
        if name in self.extra:
            other, made = self.extra[name]
            inputs = (self._recording.call(other, "Extra", made, inputs[0]), *inputs[1:])
        if kind == "Embedding":
            parameters = {"weight": self.weights[name]}
        change = self.faults.get(name, lambda x: x)
        return self._recording.call(
            name, kind, lambda *given: change(function(*given)), *inputs, parameters=parameters
        )


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return vectors rotated by their positions, in pairs."""
    angles = positions[..., None] / 100 ** np.linspace(0, 1, HIDDEN // 2)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def merged(network: Transformer, factor: float | None = None) -> Weights:
    """Return weights to which what the adapters of a network add is added.

    Args:
        factor: another one than the network's.
    """
    found = dict(network.weights)
    for name, (a, b, own) in network.adapters.items():
        times = np.float32(own if factor is None else factor)
        found[name] = (found[name] + times * (b @ a)).astype(np.float32)
    return found


@dataclass(frozen=True)
class Samples:
    """Prompts and responses."""

    ids: np.ndarray
    prompt: int = 4

    @property
    def positions(self) -> np.ndarray:
        return np.tile(np.arange(self.ids.shape[1], dtype=np.int32), (len(self.ids), 1))


def samples(seed: int = 5, batch: int = 3, response: int = 9, prompt: int = 4) -> Samples:
    """Return samples of random tokens."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, VOCABULARY, (batch, prompt + response)).astype(np.int32)
    return Samples(ids, prompt)


def generate(
    recording: Recording,
    network: Transformer,
    given: Samples,
    before: Callable[[int, Transformer], None] = lambda call, network: None,
    *,
    cached: bool = True,
) -> None:
    """Record a rollout: the prompts, then a token of each sample in each call.

    Args:
        before: called before each call of the network, from 0.
        cached: whether the network keeps keys and values; else each call is given all tokens.
    """
    network.caches.clear()
    ids, positions = given.ids, given.positions
    with recording.phase(PHASES[0]):
        for call, end in enumerate(range(given.prompt, ids.shape[1])):
            before(call, network)
            if not cached:
                network.caches.clear()
            start = 0 if call == 0 or not cached else end - 1
            network.run(recording, ids[:, start:end], positions[:, start:end])


def train(recording: Recording, network: Transformer, given: Samples) -> None:
    """Record the log-probabilities' pass over whole samples."""
    network.caches.clear()
    with recording.phase(PHASES[1]):
        network.run(recording, given.ids, given.positions)


def recorded(
    path: Path,
    rollout: Transformer,
    training: Transformer,
    *,
    before: Callable[[int, Transformer], None] = lambda call, network: None,
    given: Samples | None = None,
    **settings: Any,
) -> Path:
    """Record one step of both; return the run."""
    recording = Recording(path, **{"task": "tensor", "directions": ["forward"], **settings})
    given = given or samples()
    generate(recording, rollout, given, before)
    train(recording, training, given)
    recording.end_step()
    return recording.close()


def healthy(seed: int = 0, **changed: Any) -> tuple[Transformer, Transformer]:
    """Return a rollout network with fused projections, and a training network like it."""
    network = Transformer(weights_of(seed))
    return replace(network, fused=True, **changed), network
