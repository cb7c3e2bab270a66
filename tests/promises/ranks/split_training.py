"""A training whose work two ranks divide, or that one does alone: by tensors, or by samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe import Probe


class Reduce(nn.Cell):
    """The sum over ranks; its gradient is that of the sum."""

    def __init__(self, reduce: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.reduce = reduce

    def construct(self, x: Tensor) -> Tensor:
        return self.reduce(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout,)


class Linear(nn.Cell):
    """A product with a matrix, or with a part of one."""

    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ascontiguousarray(weight)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.T)


class Split(nn.Cell):
    """Two products, the first cut by its rows, the second by its columns."""

    def __init__(self, rank: int, size: int, reduce: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        up, down = (random.normal(size=shape).astype(np.float32) for shape in ((8, 4), (3, 8)))
        own = slice(rank * 8 // size, (rank + 1) * 8 // size)
        self.up, self.down, self.reduce = Linear(up[own]), Linear(down[:, own]), Reduce(reduce)

    def construct(self, x: Tensor) -> Tensor:
        return self.reduce(self.down(ops.tanh(self.up(x))))


def train_split(
    msprobe: dict[str, Any],
    by: str,
    rank: int = 0,
    size: int = 1,
    *,
    reduce: Callable[[Tensor], Tensor] = lambda x: x,
    fault: list[int] | None = None,
) -> None:
    """Train two steps.

    Args:
        by: tensors or samples.
        fault: the rank and the step of which one weight is changed.
    """
    parts = size if by == "tensors" else 1
    network = Split(rank if parts > 1 else 0, parts, reduce if parts > 1 else lambda x: x)
    settings = {"msprobe": True, "actor_train_dump": True, "task": "tensor", "step_end": 9}
    probe = Probe.from_config({**settings, **msprobe})
    probe.watch(actor=network)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    gradients_of = ms.value_and_grad(
        lambda x: (network(x) ** 2).mean(), None, network.trainable_params()
    )
    for step in range(2):
        batch = np.random.default_rng(step).normal(size=(4, 4)).astype(np.float32)
        if by == "samples":
            batch = np.split(batch, size)[rank]
        if fault == [rank, step]:
            weight = network.up.weight
            weight.set_data(weight + Tensor(np.eye(*weight.shape, dtype=np.float32)))
        with probe.phase("actor_update"):
            _, gradients = gradients_of(Tensor(batch))
        if by == "samples":
            gradients = tuple(reduce(gradient) / size for gradient in gradients)
        optimizer(gradients)
        probe.step()
    probe.close()
