"""A language model whose work two ranks divide: by stages, by contexts or by experts.

What ranks hand each other is written by hand, with the collectives that run on CPU. The loss of a
rank is the mean over the samples, or tokens, that it was given.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe import Probe

SAMPLES, LENGTH, WIDTH, WORDS = 4, 6, 8, 16


@dataclass
class Ranks:
    """Which rank of how many this is, and what they do together."""

    rank: int = 0
    size: int = 1
    reduce: Callable[[Tensor], Tensor] = lambda x: x
    gather: Callable[[Tensor], Tensor] = lambda x: x

    def own(self, count: int) -> range:
        """Return which of so many this rank has."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def part(self, x: Tensor, axis: int) -> Tensor:
        """Return the part of the whole that this rank has."""
        own = self.own(x.shape[axis])
        return x[own.start : own.stop] if axis == 0 else x[:, own.start : own.stop]


class Linear(nn.Cell):
    """A product with a matrix, the same for the same name."""

    def __init__(self, name: str, outputs: int, inputs: int) -> None:
        super().__init__()
        drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(outputs, inputs))
        self.weight = Parameter(Tensor((drawn * inputs**-0.5).astype(np.float32)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.T)


class Embedding(Linear):
    """The rows of a table."""

    def construct(self, ids: Tensor) -> Tensor:
        return ops.gather(self.weight, ids, 0)


class Perceptron(nn.Cell):
    """Two products, and what entered."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.up, self.down = Linear(f"{name}.up", 12, WIDTH), Linear(f"{name}.down", WIDTH, 12)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.down(ops.tanh(self.up(x)))


class Gather(nn.Cell):
    """What all ranks have along an axis; the gradient of the own part is a sum over ranks."""

    def __init__(self, ranks: Ranks, axis: int) -> None:
        super().__init__()
        self.ranks, self.axis = ranks, axis

    def construct(self, x: Tensor) -> Tensor:
        if self.axis == 0:
            return self.ranks.gather(x)
        return self.ranks.gather(x.swapaxes(0, 1)).swapaxes(0, 1)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.ranks.part(self.ranks.reduce(dout), self.axis),)


class Scatter(nn.Cell):
    """The own samples of a sum over ranks; the gradient is that of all samples."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks

    def construct(self, x: Tensor) -> Tensor:
        return self.ranks.part(self.ranks.reduce(x), 0)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.ranks.gather(dout),)


class Border(nn.Cell):
    """What the first stage hands to the second, and the gradient that comes back."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks

    def construct(self, x: Tensor) -> Tensor:
        return self.ranks.reduce(x * (self.ranks.rank == 0))

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.ranks.reduce(dout * (self.ranks.rank == 1)),)


class Attention(nn.Cell):
    """One causal head; keys and values of all contexts are gathered."""

    def __init__(self, name: str, ranks: Ranks) -> None:
        super().__init__()
        self.q, self.k, self.v = (Linear(f"{name}.{x}", WIDTH, WIDTH) for x in "qkv")
        self.gather, self.ranks = Gather(ranks, 1), ranks

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.gather(self.k(x)), self.gather(self.v(x))
        own = self.ranks.own(LENGTH)
        later = np.arange(LENGTH) > np.arange(own.start, own.stop)[:, None]
        scores = ops.matmul(q, k.swapaxes(1, 2)) + Tensor((later * -1e9).astype(np.float32))
        return x + ops.matmul(ops.softmax(scores, -1), v)


class Mixture(nn.Cell):
    """Four experts, each of which sees the samples of all ranks."""

    def __init__(self, name: str, ranks: Ranks) -> None:
        super().__init__()
        self.router, self.own = Linear(f"{name}.router", 4, WIDTH), ranks.own(4)
        self.experts = nn.CellList([Perceptron(f"{name}.{n}") for n in self.own])
        self.rows, self.back = Gather(ranks, 0), Scatter(ranks)

    def construct(self, x: Tensor) -> Tensor:
        every, shares = self.rows(x), self.rows(ops.softmax(self.router(x), -1))
        parts = [
            expert(every) * shares[..., number : number + 1]
            for number, expert in zip(self.own, self.experts)
        ]
        return x + self.back(sum(parts[1:], parts[0]))


class Model(nn.Cell):
    """An embedding, layers, and a head."""

    def __init__(self, by: str, ranks: Ranks) -> None:
        super().__init__()
        stages = by == "stages"
        self.first = not stages or ranks.rank == 0
        self.last = not stages or ranks.rank == ranks.size - 1
        if self.first:
            self.embedding = Embedding("embedding", WORDS, WIDTH)
        kinds: dict[str, Any] = {"contexts": Attention, "experts": Mixture}
        layers = [
            kinds[by](str(n), ranks) if by in kinds else Perceptron(str(n))
            for n in (ranks.own(4) if stages else range(2))
        ]
        self.layers = nn.CellList(layers)
        if self.last:
            self.head = Linear("head", WORDS, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        x = self.embedding(x) if self.first else x
        for layer in self.layers:
            x = layer(x)
        return self.head(x) if self.last else x


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return ops.cross_entropy(logits.reshape(-1, WORDS), targets.reshape(-1))


def _step(network: Model, by: str, ids: Tensor, ranks: Ranks) -> None:
    """Pass forward and backward once."""
    parameters = network.trainable_params()
    targets = ops.concat((ids[:, 1:], ids[:, :1]), 1)
    if by == "stages" and ranks.size > 1:
        border = Border(ranks)
        if ranks.rank == 0:
            ms.value_and_grad(lambda x: border(network(x)).sum(), None, parameters)(ids)
        else:
            nothing = Tensor(np.zeros((SAMPLES, LENGTH, WIDTH), np.float32))
            loss = lambda x: _loss(network(border(x)), targets)  # noqa: E731
            ms.value_and_grad(loss, 0, parameters)(nothing)
        return
    if by != "stages":
        axis = 1 if by == "contexts" else 0
        ids, targets = ranks.part(ids, axis), ranks.part(targets, axis)
    ms.value_and_grad(lambda x: _loss(network(x), targets), None, parameters)(ids)


def train_divided(
    msprobe: dict[str, Any], by: str, ranks: Ranks | None = None, fault: str | None = None
) -> None:
    """Pass forward and backward once.

    Args:
        by: stages, contexts or experts.
        fault: the name of a weight that is changed on rank 1, as that rank calls it.
    """
    ranks = ranks or Ranks()
    network = Model(by, ranks)
    for parameter in network.get_parameters():
        if ranks.rank == 1 and parameter.name == fault:
            parameter.set_data(parameter + Tensor(np.eye(*parameter.shape, dtype=np.float32)))
    settings = {"msprobe": True, "actor_train_dump": True, "task": "tensor", "step_end": 9}
    probe = Probe.from_config({**settings, **msprobe})
    probe.watch(actor=network)
    drawn = np.random.default_rng(7).integers(0, WORDS, (SAMPLES, LENGTH))
    with probe.phase("actor_update"):
        _step(network, by, Tensor(drawn.astype(np.int32)), ranks)
    probe.step()
    probe.close()
