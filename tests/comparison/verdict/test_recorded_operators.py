"""Real trainings with operators recorded: the wrong kernel is named, in cells and in the loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import helpers.small_networks  # noqa: F401  which sets the device
from mindspore import Parameter, Tensor, mint, nn, ops

from mindrlhf_msprobe import Probe, compare_runs
from mindrlhf_msprobe.comparison import Tolerance
from mindrlhf_msprobe.findings import Cause, Divergence, Outcome

SEEDS = range(2)


class Attention(nn.Cell):
    """Scores, shares, and what is mixed by them."""

    def __init__(self, draw: np.random.Generator, sharp: float) -> None:
        super().__init__()
        weight = draw.normal(size=(6, 6)).astype(np.float32) * 0.4
        self.weight = Parameter(Tensor(weight), name="weight")
        self.sharp = sharp

    def construct(self, x: Tensor) -> Tensor:
        q = mint.matmul(x, self.weight)
        shares = ops.softmax(mint.matmul(q, x.swapaxes(-1, -2)) * self.sharp, -1)
        return mint.matmul(shares, q)


class Network(nn.Cell):
    """Two layers and a head."""

    def __init__(self, seed: int, sharp: float) -> None:
        super().__init__()
        draw = np.random.default_rng(seed)
        self.layers = nn.CellList([Attention(draw, sharp), Attention(draw, sharp)])
        self.head = nn.Dense(6, 5, has_bias=False)
        weight = draw.normal(size=(5, 6)).astype(np.float32)
        self.head.weight.set_data(Tensor(weight))

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = mint.add(x, mint.nn.functional.silu(layer(x)))
        return self.head(x)


def loss_of(logits: Tensor, taken: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """Return PPO's loss with a KL term: all of it outside every cell."""
    log_probs = ops.log_softmax(logits, -1)
    log_prob = mint.gather(log_probs, -1, taken).squeeze(-1)
    ratio = mint.exp(log_prob - old)
    policy = -mint.mean(mint.minimum(ratio * advantages, mint.clamp(ratio, 0.8, 1.2) * advantages))
    kl = mint.mean(mint.exp(old - log_prob) - 1 - (old - log_prob))
    return policy + 0.1 * kl


def at_call(change: Callable[..., Tensor]) -> Any:
    """Return what makes a kernel of which one call gives what `change` makes of its result."""

    def fault(kernel: Callable[..., Tensor], at: int) -> Any:
        calls = itertools.count()

        def wrong(*args: Any, **kwargs: Any) -> Tensor:
            result = kernel(*args, **kwargs)
            return change(result, *args) if next(calls) == at else result

        return wrong

    return fault


@at_call
def rounded(result: Tensor, *_: Any) -> Tensor:
    """Has the precision of float16."""
    return result.astype(ms.float16).astype(ms.float32)


@at_call
def without_last_row(result: Tensor, *_: Any) -> Tensor:
    """Leaves the last row zero."""
    kept = np.ones(result.shape, np.float32)
    kept[..., -1:] = 0
    return result * Tensor(kept)


@at_call
def without_maximum(result: Tensor, x: Tensor, *_: Any) -> Tensor:
    """A softmax that does not subtract the maximum first."""
    powers = ops.exp(x)
    return powers / powers.sum(-1, keepdims=True)


@at_call
def undetermined(result: Tensor, *_: Any) -> Tensor:
    """A reduction that adds in another order each time."""
    return result * Tensor(np.float32(1 + 1e-5))


@contextmanager
def planted(module: ModuleType | None, name: str, fault: Any, at: int) -> Iterator[None]:
    """Put a wrong kernel in the place of a function of MindSpore."""
    if module is None:
        yield
        return
    kernel = getattr(module, name)
    setattr(module, name, fault(kernel, at))
    try:
        yield
    finally:
        setattr(module, name, kernel)


def train(
    path: Path, seed: int, fault: Any = (None, "", None, 0), sharp: float = 3.0, **settings: Any
) -> None:
    """Record one update of a network."""
    network = Network(seed, sharp)
    draw = np.random.default_rng(seed + 100)
    x = Tensor(draw.normal(size=(2, 4, 6)).astype(np.float32))
    taken = Tensor(draw.integers(0, 5, size=(2, 4, 1)))
    old, advantages = (Tensor(draw.normal(size=(2, 4)).astype(np.float32)) for _ in range(2))

    def forward(x: Tensor) -> Tensor:
        return loss_of(network(x), taken, old, advantages)

    gradients = ms.value_and_grad(forward, None, network.trainable_params())
    probe = Probe.from_config(
        {"msprobe": True, "dump_path": str(path), "actor_train_dump": True, "level": "mix"}
        | {"key_data_dump": True, **settings}
    )
    probe.watch(actor=network)
    with planted(*fault):
        with probe.phase("actor_update"):
            loss, _ = gradients(x)
        probe.save_data(loss=loss)
        probe.step()
        probe.close()


FAULTS = [
    ((mint, "matmul", rounded, 1), "Mint.matmul", "layers.0", "ops.softmax(mint.matmul"),
    ((mint, "matmul", without_last_row, 5), "Mint.matmul", "layers.1", "return mint.matmul"),
    ((mint, "mean", undetermined, 1), "Mint.mean", "", "kl = mint.mean"),
    ((ops, "log_softmax", rounded, 0), "Functional.log_softmax", "", "ops.log_softmax("),
    ((mint, "clamp", without_last_row, 0), "Mint.clamp", "", "policy = "),
]
#: Kernels on CPU round otherwise from call to call, by where their input lies.
TOLERANCE = Tolerance(rtol=3e-6, atol=1e-7)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that returns the recording without a fault."""
    made: dict[str, Path] = {}

    def record(seed: int, **settings: Any) -> Path:
        key = repr((seed, settings))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("right") / "run"
            train(made[key], seed, **settings)
        return made[key]

    return record


def blamed(a: Path, b: Path) -> Divergence:
    """Return the first divergence of two recordings."""
    first = compare_runs(a, b, tolerance=TOLERANCE).verdict.first_divergence
    assert first is not None
    assert first.entry is not None
    return first


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("fault", "operator", "cell", "code"), FAULTS)
def test_the_wrong_kernel_is_named(
    tmp_path: Path,
    right: Callable[..., Path],
    seed: int,
    fault: Any,
    operator: str,
    cell: str,
    code: str,
) -> None:
    """Its operator, cell and line of code, whatever it does and wherever it stands."""
    train(tmp_path / "run", seed, fault)
    first = blamed(right(seed), tmp_path / "run")
    assert (first.operator, first.cell, first.cause) == (operator, cell, Cause.COMPUTATION)
    assert str(first.entry).endswith(".forward")
    assert code in first.source
    assert first.line.startswith("test_recorded_operators.py:")
    assert "In B it is not MindSpore's own" in first.explanation


def again_otherwise(kernel: Callable[..., Tensor], at: int) -> Any:
    """Return a kernel whose results are off by two roundings at most: another order of sums."""
    calls = itertools.count(1)

    def other(*args: Any, **kwargs: Any) -> Tensor:
        result = kernel(*args, **kwargs)
        off = np.random.default_rng(next(calls)).integers(-2, 3, size=result.shape)
        return result * Tensor((1 + off * 2.0**-23).astype(np.float32)) if at else result

    return other


@at_call
def off_gradient(result: Tensor, *_: Any) -> Tensor:
    """Has a right forward, and a gradient that is off by three percent."""
    return result + (result - ops.stop_gradient(result)) * 0.03


#: What is wrong behind ordinary rounding, and where that is.
BEHIND = [
    (mint, "matmul", rounded, 5, "Mint.matmul", "layers.1"),
    (mint, "matmul", without_last_row, 4, "Mint.matmul", "layers.1"),
    (ops, "log_softmax", rounded, 0, "Functional.log_softmax", ""),
    (mint, "exp", without_last_row, 1, "Mint.exp", ""),
    (mint, "exp", off_gradient, 0, "Mint.exp", ""),
]


@pytest.mark.parametrize(("seed", "task"), [(0, "tensor"), (1, "statistics")])
@pytest.mark.parametrize("fault", BEHIND)
def test_an_error_behind_ordinary_rounding_is_named(
    tmp_path: Path, seed: int, fault: Any, task: str
) -> None:
    """A kernel that is not the same twice comes first; the answer names the wrong one, too."""
    module, name, kind, at, operator, cell = fault
    for run, is_wrong in (("a", 0), ("b", 1)):
        with planted(mint.nn.functional, "silu", again_otherwise, is_wrong):
            right = (None, "", None, 0)
            train(tmp_path / run, seed, (module, name, kind, at) if is_wrong else right, task=task)
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first is not None
    assert first.operator == "MintFunctional.silu"
    assert first.born is not None
    assert (first.born.operator, first.born.cell) == (operator, cell)
    assert first.born.line.startswith("test_recorded_operators.py:")
    assert f"{first.born.entry}.output.0" in first.explanation


@pytest.mark.parametrize("seed", range(3))
def test_rounding_alone_is_no_birth(tmp_path: Path, seed: int) -> None:
    """Of a healthy training, in which one kernel is not the same twice, nothing more is said."""
    for run, is_other in (("a", 0), ("b", 1)):
        with planted(mint.nn.functional, "silu", again_otherwise, is_other):
            train(tmp_path / run, seed, task="tensor")
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first is not None
    assert first.born is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_softmax_that_does_not_subtract_the_maximum_is_named(tmp_path: Path, seed: int) -> None:
    """It overflows where scores are large."""
    train(tmp_path / "a", seed, sharp=3000.0)
    train(tmp_path / "b", seed, (ops, "softmax", without_maximum, 0), sharp=3000.0)
    first = blamed(tmp_path / "a", tmp_path / "b")
    expected = ("Functional.softmax", "layers.0", Cause.NON_FINITE)
    assert (first.operator, first.cell, first.cause) == expected


def test_two_recordings_agree_and_levels_are_coverage(
    tmp_path: Path, right: Callable[..., Path]
) -> None:
    """Nothing of a healthy pair differs; a run with cells alone agrees with what it has."""
    train(tmp_path / "mix", 0)
    alike = (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)
    assert compare_runs(right(0), tmp_path / "mix", tolerance=TOLERANCE).verdict.status in alike
    for level, reason in (("L0", "operators not recorded"), ("L1", "cells not recorded")):
        train(tmp_path / level, 0, level=level)
        for pair in ((right(0), tmp_path / level), (tmp_path / level, right(0))):
            verdict = compare_runs(*pair, tolerance=TOLERANCE).verdict
            assert verdict.status in alike, level
            assert any(reason in str(gap.reason) for gap in verdict.coverage)


class Scored(nn.Cell):
    """A cell with operators of its own, inside a network."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4, weight_init="ones", has_bias=False)

    def construct(self, x: Tensor) -> Tensor:
        return ops.softmax(mint.matmul(self.dense(x), x), -1)


@pytest.mark.parametrize("inner", [False, True])
def test_what_a_graph_runs_is_coverage(tmp_path: Path, inner: bool) -> None:
    """A compiled network has its cells alone; they agree with those of PyNative."""
    for name, mode in (("pynative", ms.PYNATIVE_MODE), ("graph", ms.GRAPH_MODE)):
        ms.set_context(mode=mode)
        try:
            network = nn.SequentialCell(Scored()) if inner else Scored()
            settings = {"dump_path": str(tmp_path / name), "actor_train_dump": True}
            probe = Probe.from_config({"msprobe": True, "level": "mix", **settings})
            probe.watch(actor=network)
            with probe.phase("actor_update"):
                network(Tensor(np.ones((4, 4), np.float32)))
            probe.step()
            probe.close()
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE)
    for pair in (("pynative", "graph"), ("graph", "pynative")):
        verdict = compare_runs(*(tmp_path / name for name in pair), tolerance=TOLERANCE).verdict
        assert verdict.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)
        assert any("a graph runs them" in str(gap.reason) for gap in verdict.coverage)
