"""Small real networks, each with one thing that real networks do."""

import dataclasses
import os
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

if ms.get_context("device_target") != "CPU":
    ms.set_device("CPU")
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.runtime.launch_blocking()

MODES = {"pynative": ms.PYNATIVE_MODE, "graph": ms.GRAPH_MODE}

Pair = namedtuple("Pair", ["left", "right"])


@contextmanager
def in_mode(mode: int) -> Iterator[None]:
    """Run something in a mode, and what follows in PyNative."""
    ms.set_context(mode=mode)
    try:
        yield
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


@dataclasses.dataclass
class Hidden:
    """A dataclass as models return them."""

    states: Tensor
    cache: Any = None


def tensor(*shape: int, start: float = 0.0) -> Tensor:
    """Return float32 numbers that are all different."""
    count = int(np.prod(shape))
    return Tensor(np.arange(count, dtype=np.float32).reshape(shape) / 7 + np.float32(start))


def hook_count(network: nn.Cell) -> int:
    """Return how many hooks of any kind lie on a network's cells."""
    replaced = sum("_run_construct" in vars(cell) for _, cell in network.cells_and_names())
    return replaced + sum(
        len(hooks)
        for _, cell in network.cells_and_names()
        for hooks in (
            cell._forward_hook,
            cell._forward_pre_hook,
            cell._backward_hook,
            cell._backward_pre_hook,
        )
    )


class Assembled(nn.Cell):
    """A cell of the parts that its class is defined with: cells and parameters.

    class Loss(Assembled, network=Policy, weight=lambda: Parameter(tensor(2), name="weight")):
        def construct(self, x): ...
    """

    _parts: ClassVar[dict[str, Callable[[], Any]]] = {}

    def __init_subclass__(cls, **parts: Callable[[], Any]) -> None:
        super().__init_subclass__()
        cls._parts = {**cls._parts, **parts}

    def __init__(self) -> None:
        super().__init__()
        for name, make in self._parts.items():
            setattr(self, name, make())


class Scale(nn.Cell):
    """One parameter, one product."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = Parameter(Tensor(np.float32(factor)), name="factor")

    def construct(self, x: Tensor) -> Tensor:
        return x * self.factor


class Does(nn.Cell):
    """Computes what a function says, of itself, its children and what it is given."""

    def __init__(self, compute: Callable[..., Any], **children: nn.Cell) -> None:
        super().__init__()
        self.compute = (compute,)
        for name, child in children.items():
            setattr(self, name, child)

    def construct(self, *given: Any) -> Any:
        return self.compute[0](self, *given)


class Echo(nn.Cell):
    """Takes anything and returns it: one argument as it is, several as a tuple."""

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs else (*args, *kwargs.values())


class Returns(nn.Cell):
    """Returns what it was given when it was made."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = (value,)

    def construct(self, x: Tensor) -> Any:
        return self.value[0]


class Cubed(nn.Cell):
    """x**3 with a bprop of its own that is wrong on purpose: 5 instead of 3 x**2."""

    def construct(self, x: Tensor) -> Tensor:
        return x * x * x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout * 5,)


class Twice(nn.Cell):
    """Two layers; the first runs twice and has a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Scale(2.0)
        self.second = Scale(3.0)
        self.alias = self.first

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.alias(self.first(x)))


class Policy(Assembled, backbone=Twice, head=lambda: Scale(5.0)):
    """A backbone and a head, which trainers also call one after the other."""

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class Raises(nn.Cell):
    """Raises while `armed`."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = True

    def construct(self, x: Tensor) -> Tensor:
        if self.armed:
            raise ArithmeticError("raised inside the cell")
        return x + 1


class Catches(Assembled, breaks=Raises, follows=Scale):
    """Goes on after its first child raised."""

    def construct(self, x: Tensor) -> Tensor:
        try:
            x = self.breaks(x)
        except ArithmeticError:
            x = x - 1
        return self.follows(x)


class Opaque:
    """What nobody can look into."""


class BrokenTensor(Tensor):
    """A tensor that cannot be brought to the host."""

    def asnumpy(self) -> np.ndarray:
        raise MemoryError("the device is gone")


class Mixed(nn.Cell):
    """Odd signatures, shared cells, a custom bprop and an in-place change, all differentiable."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.dense.weight.set_data(tensor(4, 4, start=-1.0))
        self.dense.bias.set_data(tensor(4))
        self.tied = self.dense
        self.cubed = Cubed()
        self.blocks = nn.CellList([Gate(), Gate()])
        self.tail = nn.SequentialCell([nn.Tanh(), Scale(0.5)])
        self.echo = Echo()

    def construct(self, x: Tensor, *, mask: Any = None, scale: float = 1.0) -> Tensor:
        x = self.tied(self.dense(x))
        x = ops.tanh(x)
        for block in self.blocks:
            x, _ = block(x, None, extra={"mask": mask, "scale": scale})
        x = x + 0.1 * self.cubed(x)
        x = self.echo(x)
        return self.tail(x)


class HalfInside(nn.Cell):
    """Computes in float16, as `to_float` has it, and takes and returns float32."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(1.1)
        self.to_float(ms.float16)

    def construct(self, x: Tensor) -> Tensor:
        return ops.cast(self.scale(x) + x * 0.3, ms.float32)


class Gate(Assembled, scale=lambda: Scale(1.5)):
    """Takes a positional None and a dict; returns a tuple with a dict inside."""

    def construct(self, x: Tensor, cache: Any, extra: dict) -> tuple[Tensor, dict]:
        return self.scale(x) * extra["scale"], {"cache": cache, "used": x}


class Norm(nn.Cell):
    """An RMSNorm out of plain operators: its input is used twice."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = Parameter(tensor(size, start=0.5), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + 1e-6) * self.weight


class Attention(nn.Cell):
    """Several uses of one input, a keyword-only scalar, a dict among the arguments, a tuple out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(size, size) for _ in range(3))

    def construct(
        self, x: Tensor, mask: Any = None, *, scale: float = 1.0, extra: Any = None
    ) -> Any:
        weights = ops.softmax(ops.matmul(self.query(x), self.key(x).swapaxes(-1, -2)) * scale)
        y = ops.matmul(weights, self.value(x))
        return y + 0.1 * extra["residual"], (weights,)


class Block(nn.Cell):
    """A pre-norm residual block: every input of a norm is used again after it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(size), Norm(size)
        self.attention = Attention(size)
        self.up, self.down = nn.Dense(size, 2 * size), nn.Dense(2 * size, size)

    def construct(self, x: Tensor) -> Tensor:
        y, _ = self.attention(self.norm1(x), None, scale=0.3, extra={"residual": x})
        x = x + y
        return x + self.down(ops.gelu(self.up(self.norm2(x))))


class Decoder(nn.Cell):
    """Two blocks, the first of which runs once more at the end."""

    def __init__(self, recomputed: bool = False) -> None:
        super().__init__()
        ms.set_seed(1)
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.CellList([Block(8) for _ in range(2)])
        self.norm = Norm(8)
        self.head = nn.Dense(8, 11)
        if recomputed:
            for block in self.blocks:
                block.recompute()

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.blocks[0](x)
        return self.head(self.norm(x))


FILE = os.path.abspath(__file__)
