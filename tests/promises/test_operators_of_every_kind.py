"""Odd calls of operators in a training: nothing is lost, nothing changes, nothing is accused.

Keyword-only arguments, `out`, views, what works in place, several outputs, None, Python's numbers
and strings, random operators, what raises and is caught, threads, and functions of the program
that are called like operators.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from helpers.small_networks import Assembled, tensor
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.ops import softmax as imported

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of
from mindrlhf_msprobe.storage.step_lines import benchmark_lines

pytestmark = pytest.mark.slow

PHASE = "actor_update"


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Be called like an operator, and be none."""
    return ops.softmax(x * 2, axis=axis) + 0 * x.max()


def keyword_only(x: Tensor) -> Tensor:
    y = mint.sum(input=x, dim=-1, keepdim=True) + mint.mean(x, dim=0, keepdim=True)
    return mint.add(input=x, other=y, alpha=0.5) * mint.clamp(x, min=-0.5, max=None)


def views(x: Tensor) -> Tensor:
    y = x * 1.5
    part = y[1:]
    flat = y.view(4, 3)[1:].reshape(-1)
    return part.sum() + (flat * flat).sum() + (ops.swapaxes(y, 0, 1) ** 2).sum()


def in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y += 0.25
    y[0] = y[1] * 2
    y *= x
    kept = ops.stop_gradient(x) * 1.0
    kept.add_(1.0)
    kept[0, 1] = 3
    return y + kept


def several_outputs(x: Tensor) -> Tensor:
    values, indices = ops.topk(x, 2, dim=-1)
    most, where = mint.max(x, dim=0)
    first, second = ops.split(x, 2, axis=-1)
    left, *_ = ops.unstack(x, axis=0)
    names = ops.meshgrid(left, most)
    total = values.sum() + most.sum() + left.sum() + (first * second).sum()
    return total + (indices.sum() + where.sum()).astype(ms.float32) + names[0].mean()


def nothing_and_texts(x: Tensor) -> Tensor:
    y = ops.clamp(x, None, 0.5) + ops.gelu(x, approximate="tanh")
    y = y + ops.pad(x[:, :2], (1, 1), mode="constant", value=0.5)
    none = ops.unsqueeze(x, 0)[None, ..., 0].sum()
    return ops.l1_loss(y, x, reduction="sum") + none + x.sum(axis=None)


def numbers(x: Tensor) -> Tensor:
    y = 2 ** (x * 0.1) + True * x - (3 - x) / 4 + x // 2 * 0.5
    scale = float(ops.stop_gradient(y).max().asnumpy())
    return y * scale + ops.full((3, 4), 2.5) + ops.arange(0, 4, 1).astype(ms.float32)


def random(x: Tensor) -> Tensor:
    y = ops.dropout(x, 0.25, seed=7)
    drawn = ops.standard_normal((3, 4), seed=3) * 0.01
    return y + drawn + ops.bernoulli(ops.sigmoid(ops.stop_gradient(x)), seed=5).astype(ms.float32)


def raising(x: Tensor) -> Tensor:
    for wrong in (
        lambda: mint.matmul(x, x),
        lambda: mint.reshape(x, (5, 5)),
        lambda: x.sum(axis=9),
        lambda: mint.add(x, no_such=1),
    ):
        with contextlib.suppress(Exception):
            wrong().asnumpy()
    return mint.exp(x * 0.1)


def shadowed(x: Tensor) -> Tensor:
    return softmax(x) + imported(x, axis=0)


class Kinds(nn.Cell):
    """A cell of one kind of call."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call
        self.weight = Parameter(tensor(3, 4, start=0.2), name="weight")
        self.softmax = ops.Softmax(axis=0)

    def construct(self, x: Tensor) -> Tensor:
        return (self.call(self.softmax(x * self.weight) + x)).sum() + self.weight.mean()


KINDS = (
    *(keyword_only, views, in_place, several_outputs, nothing_and_texts, numbers, random),
    *(raising, shadowed),
)


class All(Assembled, kinds=lambda: nn.CellList([Kinds(kind) for kind in KINDS])):
    """A cell of each kind; their results, and those of a thread beside them."""

    def construct(self, x: Tensor) -> Tensor:
        return sum(kind(x) for kind in self.kinds) / len(KINDS)


def train(probe: Any = None) -> list[bytes]:
    """Return losses, gradients and parameters of a step, and what a thread computed meanwhile."""
    ms.set_seed(5)
    network = All().set_train()
    optimizer = nn.SGD(network.trainable_params(), 0.05)
    x = tensor(3, 4, start=-0.7)
    found: list[bytes] = []

    def loss_of(given: Tensor) -> Tensor:
        return mint.mean(network(given) * 0.5, dim=None) + keyword_only(given).mean()

    step = ms.value_and_grad(loss_of, None, optimizer.parameters)
    if probe is not None:
        probe.watch(actor=network)
    with contextlib.nullcontext() if probe is None else probe.phase(PHASE):
        thread = threading.Thread(
            target=lambda: found.append(mint.exp(in_place(x)).asnumpy().tobytes())
        )
        thread.start()
        thread.join()
        loss, gradients = step(x)
        optimizer(gradients)
    if probe is not None:
        probe.step()
    tensors = [loss, *gradients, *network.get_parameters(), x]
    return found + [one.asnumpy().tobytes() for one in tensors]


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    """What comes out without the probe, once kernels have stopped to try out their parts."""
    for _ in range(16):
        mint.log(tensor(3, 4, start=1.0))
    return train()


@pytest.mark.parametrize(
    ("level", "settings"),
    [
        ("L1", {"task": "tensor"}),
        ("mix", {"task": "accuracy_check", "include": ["kinds"]}),
        ("L1", {"task": "free_benchmark", "pert_mode": "no_change", "include": ["kinds"]}),
    ],
)
def test_odd_calls_are_recorded_and_change_nothing(layer_probe, expected, level, settings) -> None:
    """By every task; what has no opinion is said."""
    probe = layer_probe(level=level, strict=True, **settings)
    assert train(probe) == expected
    probe.close()
    path, task = Path(probe.config.dump_path), settings["task"]
    run = open_run(path)
    assert not run.manifests[0]["lost"]
    names = {entry.name for entry in run.entries(phase=PHASE, step=0)}
    assert {"Mint.sum.0.forward", "Functional.topk.0.forward"} <= names
    assert "Functional.gelu.0.backward" in names
    if task == "accuracy_check":
        found = accuracy_of(path)
        assert [one.call for one in found.ranked if one.opinion.value != "ordinary"] == []
        assert [one.call for one in found.not_computed if one.cell != "root"]
    if task == "free_benchmark":
        rows = [*benchmark_lines(path, 0).read()]
        assert [row["entry"] for row in rows if row.get("consistent") is False] == []
        assert {"Functional.dropout.0.forward"} <= {row["entry"] for row in rows if "why" in row}
