"""GRAPH_MODE and jit: the same names, calls, nesting and values as PyNative."""

import copy
import inspect
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Cubed, Decoder, Echo, Mixed, Policy, Scale, Twice, tensor
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindrlhf_msprobe import Probe, UsageError, compare_runs, open_run
from mindrlhf_msprobe.capture.graph.calls import GraphCalls
from mindrlhf_msprobe.capture.tensors import summary
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison import Tolerance

STEPS = 2
SETTINGS: dict[str, dict[str, Any] | None] = {
    "off": {"msprobe": False},
    "switches off": {"actor_train_dump": False, "actor_infer_dump": False},
    "outside the window": {"step_start": 9},
    "statistics": {},
    "tensor": {"task": "tensor"},
}


@pytest.fixture
def graph_mode() -> Iterator[None]:
    """Run a test in GRAPH_MODE."""
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def train(
    network: nn.Cell,
    loss_of: Callable[[nn.Cell], Callable[..., Tensor]],
    x: Tensor,
    settings: dict[str, Any] | None,
    path: Path,
    mode: int = ms.GRAPH_MODE,
) -> list[bytes]:
    """Score, train and return the bits of every output, loss, gradient and, at the end, weight."""
    ms.set_context(mode=mode)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 0.01)
    probe = None
    if settings is not None:
        on = {"msprobe": True, "actor_train_dump": True, "actor_infer_dump": True, "step_end": 9}
        probe = Probe.from_config({**on, "dump_path": str(path), **settings})
        probe.watch(actor=network, optimizers={"actor": optimizer})
    step = ms.value_and_grad(loss_of(network), None, optimizer.parameters)
    bits = []
    try:
        for _ in range(STEPS):
            with probe.phase("actor_generate_sequences") if probe else nullcontext():
                network(x)
            with probe.phase("actor_update") if probe else nullcontext():
                loss, gradients = step(x)
                optimizer(gradients)
            if probe is not None:
                probe.step()
            bits += [r.asnumpy().tobytes() for r in (loss, *gradients)]
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        if probe is not None:
            probe.close()
    return bits + [p.asnumpy().tobytes() for p in network.get_parameters()]


def mixed_loss(network: nn.Cell) -> Callable[[Tensor], Tensor]:
    """Return a loss of the network of odd cells."""

    def loss(x: Tensor) -> Tensor:
        return (network(x, scale=1.25) ** 2).mean()

    return loss


def forward_of(path: Path) -> list[tuple[Any, ...]]:
    """Return what a run holds of every forward entry, in the order in which they began."""
    entries = [e for e in open_run(path).entries() if e.direction == "forward"]
    return [
        (
            e.phase,
            e.step,
            e.name,
            e.parent,
            e.opening,
            e.token,
            [(r.name, r.leaf) for r in e.records],
        )
        for e in sorted(entries, key=lambda entry: entry.seq)
    ]


@pytest.fixture(scope="module")
def mixed_bits(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], Path]:
    """Train the network of odd cells without the probe, and record it in PyNative."""
    path = tmp_path_factory.mktemp("pynative") / "run"
    bits = train(Mixed(), mixed_loss, tensor(3, 4, start=-0.5), None, path)
    train(Mixed(), mixed_loss, tensor(3, 4, start=-0.5), {}, path, ms.PYNATIVE_MODE)
    return bits, path


@pytest.mark.parametrize("variant", SETTINGS)
def test_training_is_the_same(
    tmp_path: Path, mixed_bits: tuple[list[bytes], Path], variant: str
) -> None:
    """Shared cells, a custom bprop and odd signatures train bit for bit as without the probe."""
    network = Mixed()
    bits = train(network, mixed_loss, tensor(3, 4, start=-0.5), SETTINGS[variant], tmp_path / "run")
    assert bits == mixed_bits[0]
    if variant in ("off", "switches off"):
        assert not any("construct" in vars(cell) for _, cell in network.cells_and_names())
    if variant in ("statistics", "tensor"):
        assert forward_of(tmp_path / "run") == [
            (*entry[:6], stored(tmp_path / "run", entry, variant))
            for entry in forward_of(mixed_bits[1])
        ]
        assert not open_run(tmp_path / "run").manifests[0]["lost"]


def stored(path: Path, entry: tuple[Any, ...], variant: str) -> list[tuple[str, Any]]:
    """Return an entry's records, with the files that hold their elements where there are any."""
    if variant != "tensor":
        return entry[6]
    (same,) = (e for e in open_run(path).entries(entry[0], step=entry[1]) if e.name == entry[2])
    for record in same.records:
        if record.leaf.is_tensor:
            assert record.array().shape == record.leaf.shape
    files = {record.name: record.leaf.data_name for record in same.records}
    return [(name, leaf.stored(files[name], fingerprint=True)) for name, leaf in entry[6]]


def test_a_llama_trains_the_same(tmp_path: Path, build_llama: Callable[[], nn.Cell]) -> None:
    """A mindformers Llama is recorded as in PyNative, and trains as without the probe."""
    tokens = Tensor(np.arange(16).reshape(2, 8) % 17, ms.int32)

    def loss_of(network: nn.Cell) -> Callable[[Tensor], Tensor]:
        def loss(tokens: Tensor) -> Tensor:
            logits = network(tokens)[0]
            return -ops.log_softmax(logits.astype(ms.float32), -1).reshape(-1)[::5].mean()

        return loss

    path = tmp_path / "graph"
    assert train(build_llama(), loss_of, tokens, {}, path) == train(
        build_llama(), loss_of, tokens, None, path
    )
    train(build_llama(), loss_of, tokens, {}, tmp_path / "eager", ms.PYNATIVE_MODE)
    graph, eager = forward_of(path), forward_of(tmp_path / "eager")
    assert [entry[:6] for entry in graph] == [entry[:6] for entry in eager]
    first = [entry for entry in graph if entry[1] == 0]
    assert len(first) > 60
    assert first == [entry for entry in eager if entry[1] == 0]
    backward = [e for e in open_run(path).entries(step=0) if e.direction == "backward"]
    assert len(backward) > 30
    assert not open_run(path).manifests[0]["lost"]


class Nested(nn.Cell):
    """Takes a tuple and keywords; returns a dict with what is used and what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(2.0)

    def construct(self, pair: tuple, *, mask: Any = None, bias: Any = None) -> tuple:
        left, (count, right) = pair
        return self.scale(left) * right + bias, {"unused": left * 3, "count": count}


class UsesNested(nn.Cell):
    """Gives its child a structure."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(tensor(2, start=1.0), name="weight")
        self.nested = Nested()

    def construct(self, x: Tensor) -> Tensor:
        hidden = x * self.weight
        out, _ = self.nested((hidden, (4, x)), mask=None, bias=hidden)
        return (out * out).sum()


@pytest.mark.usefixtures("graph_mode")
def test_gradients_are_those_of_the_formula(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Gradients of tuples, dicts and keywords stand where the values stand; unused ones are None.

    out = 2 h x + h with h = x w, loss = sum of squares: dloss/dout = 2 out, dloss/dh = 2 out 2 x
    through the tuple, 2 out through the bias.
    """
    network, x = UsesNested(), tensor(2, start=0.5)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    weight = network.weight.asnumpy().copy()
    probe = layer_probe(task="tensor")
    probe.watch(actor=network, optimizers={"actor": optimizer})
    with probe.phase("actor_update"):
        _, gradients = ms.value_and_grad(network, None, optimizer.parameters)(x)
        optimizer(gradients)
    entries = {entry.name: entry for entry in recorded(probe).entries()}
    values = {r.name: r for entry in entries.values() for r in entry.records}
    h = x.asnumpy() * weight
    out = 2 * h * x.asnumpy() + h
    expected = {
        "Cell.nested.Nested.backward.0.input.0": 2 * out,
        "Cell.nested.Nested.backward.0.output.0.0": 2 * out * 2 * x.asnumpy(),
        "Cell.nested.Nested.backward.0.output.bias": 2 * out,
        "Cell.nested.scale.Scale.backward.0.input.0": 2 * out * x.asnumpy(),
        "Cell.root.UsesNested.backward.0.input.0": np.float32(1),
        "Cell.root.UsesNested.parameters_grad.0.weight": (
            2 * out * (2 * x.asnumpy() + 1) * x.asnumpy()
        ),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(values[name].array(), value, rtol=1e-6, err_msg=name)
    for none in ("input.1.unused", "input.1.count", "output.0.1.0", "output.0.1.1", "output.mask"):
        assert values[f"Cell.nested.Nested.backward.0.{none}"].leaf.type == "NoneType"
    nested = entries["Cell.nested.Nested.backward.0"]
    root = entries["Cell.root.UsesNested.backward.0"]
    assert nested.parent == root.name
    assert entries["Cell.root.UsesNested.forward.0"].end < root.seq < nested.seq < nested.end
    assert nested.end < root.end < entries["Cell.root.UsesNested.parameters_grad.0"].seq


class Accumulates(nn.Cell):
    """Changes a Parameter that it is given, and returns it."""

    def construct(self, x: Tensor, total: ms.Parameter) -> tuple[Tensor, ms.Parameter]:
        ops.assign_add(total, x)
        return x * total, total


class UsesAccumulates(nn.Cell):
    """Gives its child a Parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.total = ms.Parameter(tensor(2), name="total", requires_grad=False)
        self.weight = ms.Parameter(tensor(2, start=1.0), name="weight")
        self.accumulates = Accumulates()

    def construct(self, x: Tensor) -> Tensor:
        out, total = self.accumulates(x * self.weight, self.total)
        return (out + total).sum()


@pytest.mark.usefixtures("graph_mode")
def test_a_parameter_that_changes_in_place_keeps_its_gradient(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """A cell that takes a Parameter computes and differentiates as without the probe."""
    bits, probe, x = [], layer_probe(task="tensor"), tensor(2, start=2.0)
    for watched in (False, True):
        network = UsesAccumulates()
        if watched:
            probe.watch(actor=network)
        step = ms.value_and_grad(network, None, network.trainable_params())
        for _ in range(2):
            with probe.phase("actor_update") if watched else nullcontext():
                loss, gradients = step(x)
            bits.append([t.asnumpy().tolist() for t in (loss, *gradients, network.total)])
    assert bits[:2] == bits[2:]
    values = {r.name: r for entry in recorded(probe).entries() for r in entry.records}
    for call in range(2):
        given = values[f"Cell.accumulates.Accumulates.forward.{call}.input.1"].array()
        assert given.tolist() == (tensor(2).asnumpy().tolist() if call == 0 else bits[0][2])


class Loops(nn.Cell):
    """Calls one child in a loop over a tensor and in a branch on one."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Scale(1.5)

    def construct(self, x: Tensor) -> Tensor:
        i = Tensor(0, ms.int32)
        while i < 3:
            x = self.child(x)
            i = i + 1
        if x.sum() > 0:
            x = self.child(x)
        return x.sum()


@pytest.mark.usefixtures("graph_mode")
def test_calls_in_loops_and_branches_are_counted(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Each turn of a tensor loop is a call of its own, backward too, over all runs of a phase."""
    network = Loops()
    probe = layer_probe()
    probe.watch(actor=network)
    step = ms.value_and_grad(network, None, network.trainable_params())
    with probe.phase("actor_update"):
        for _ in range(2):
            step(tensor(2, 3))
    run = recorded(probe)
    entries = {e.name: e for e in run.entries()}
    calls = [f"Cell.child.Scale.{d}.{n}" for d in ("forward", "backward") for n in range(8)]
    assert set(calls) <= set(entries)
    # The gradient of x scaled by 1.5 four times, at the input of its n-th call.
    first = entries["Cell.child.Scale.backward.1"].records[1].leaf
    assert first.max == pytest.approx(1.5**3)
    order = sorted(entries.values(), key=lambda e: e.seq)
    assert [e.name for e in order if e.cell == "root"] == [
        f"Cell.root.Loops.{d}.{n}" for n in range(2) for d in ("forward", "backward")
    ]
    gaps = run.manifests[0]["coverage"]["graph_mode"]["actor"]
    assert gaps["parameters_grad"] == [{"code": "coverage.optimizer_not_watched"}]


@pytest.mark.usefixtures("graph_mode")
def test_watching_what_is_compiled_is_an_error(layer_probe: Callable[..., Probe]) -> None:
    """A network that ran, by itself or inside another cell, is refused with what to do."""
    network = Policy()
    network(tensor(2, 2))
    probe = layer_probe()
    with pytest.raises(UsageError, match=r"Policy, but it has been compiled.*before the first"):
        probe.watch(actor=network)
    inner = Scale()
    outer = nn.SequentialCell([inner])
    outer(tensor(2, 2))
    with pytest.raises(UsageError, match="inside SequentialCell"):
        probe.watch(actor=inner)


@pytest.mark.usefixtures("graph_mode")
def test_one_network_serves_two_roles(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Its cells have one set of probes; each phase records what ran while it was open."""
    network = Twice()
    probe = layer_probe()
    probe.watch(actor=network, reference=network)
    wrapper = vars(network)["construct"]
    probe.watch(actor=network)
    assert vars(network)["construct"] is wrapper
    x = tensor(2, 2)
    network(x)
    with probe.phase("actor_compute_log_prob"):
        network(x)
        probe.save_data(seen=1)
    network(x)
    with probe.phase("reference_compute_log_prob"):
        network(x)
        copy.deepcopy(network)(x)  # nobody watches a copy
    run = recorded(probe)
    assert [len(list(run.entries(phase=phase))) for phase in run.phases] == [4, 4]


@pytest.mark.usefixtures("graph_mode")
def test_what_a_graph_cannot_hand_over_is_coverage(
    tmp_path: Path, warnings_of: Callable[[], list[str]]
) -> None:
    """A dynamic shape is named in run.json and once in the log, and is no divergence."""
    x = tensor(3, 4)
    for name, mode in (("graph", ms.GRAPH_MODE), ("eager", ms.PYNATIVE_MODE)):
        ms.set_context(mode=mode)
        network = Scale()
        if name == "graph":
            network.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))
        section = {"msprobe": True, "reference_dump": True, "dump_path": str(tmp_path / name)}
        with Probe.from_config(section) as probe:
            probe.watch(reference=network)
            for _ in range(2):
                with probe.phase("reference_compute_log_prob"):
                    network(x)
            probe.step()
    gaps = open_run(tmp_path / "graph").manifests[0]["coverage"]["graph_mode"]
    assert gaps == {"reference": {"root": [{"code": "coverage.dynamic_shape"}]}}
    assert sum("dynamic" in text for text in warnings_of()) == 1
    result = compare_runs(tmp_path / "graph", tmp_path / "eager", output_path=tmp_path / "out")
    assert bool(result)
    assert [gap.reason for gap in result.verdict.coverage] == [
        "not recorded in graph mode: a tensor whose shape is dynamic"
    ]


@pytest.mark.usefixtures("graph_mode")
def test_a_fault_never_reaches_the_graph(
    layer_probe: Callable[..., Probe],
    recorded: Callable[[Probe], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What fails while a graph hands it over is counted; strict runs raise when the phase ends."""

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    network, x = Twice(), tensor(2, 2)
    probe = layer_probe(parameters=False)
    probe.watch(actor=network)
    with monkeypatch.context() as patch, probe.phase("actor_update"):
        patch.setattr(summary.Summaries, "describe", broken)
        broken_run = network(x).asnumpy()
    with probe.phase("actor_update"):
        assert (network(x).asnumpy() == broken_run).all()
    run = recorded(probe)
    assert run.manifests[0]["lost"] == {"a tensor: MemoryError": 8}
    strict = layer_probe(strict=True, dump_path=probe.config.dump_path + "2", parameters=False)
    strict.watch(actor=network)
    monkeypatch.setattr(summary.Summaries, "describe", broken)
    with pytest.raises(MemoryError), strict.phase("actor_update"):
        network(x)
    assert (network(x).asnumpy() == broken_run).all()


class DecoderLoss(nn.Cell):
    """The loss of a decoder, as a train cell takes it."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = tensor(2, 5, 11, start=-1.0)

    def construct(self, tokens: Tensor) -> Tensor:
        return -(ops.log_softmax(self.network(tokens), -1) * self.weights).mean()


def test_a_training_step_lines_up_with_pynative_gradients_and_recomputed_cells_included(
    tmp_path: Path,
) -> None:
    """Every record of the one has its counterpart in the other; they differ by rounding only."""
    tokens = Tensor(np.arange(10).reshape(2, 5) * 7 % 11, ms.int32)

    def run(mode: int, recomputed: bool, path: Path | None) -> list[bytes]:
        ms.set_context(mode=mode)
        try:
            network = Decoder(recomputed)
            optimizer = nn.AdamWeightDecay(network.trainable_params(), 0.01)
            train = nn.TrainOneStepCell(DecoderLoss(network), optimizer)
            probe = Probe.from_config(
                {"msprobe": path is not None, "actor_train_dump": True, "task": "tensor"}
                | {"dump_path": str(path), "strict": True}
            )
            probe.watch(actor=network, optimizers={"actor": optimizer})
            with probe.phase("actor_update"):
                loss = train(tokens)
            probe.close()
            return [t.asnumpy().tobytes() for t in (loss, *network.get_parameters())]
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE)

    run(ms.PYNATIVE_MODE, False, tmp_path / "pynative")
    bits = run(ms.GRAPH_MODE, True, tmp_path / "graph")
    assert bits == run(ms.GRAPH_MODE, True, None)
    result = compare_runs(
        tmp_path / "pynative", tmp_path / "graph", tolerance=Tolerance(1e-4, 1e-5)
    )
    counts = {status for status, count in result.verdict.counts.items() if count}
    assert counts <= {"identical", "within_tolerance"}
    directions = {entry.direction for entry in open_run(tmp_path / "graph").entries()}
    assert directions == {"forward", "backward", "parameters_grad"}


class SelfAttention(nn.Cell):
    """Gives one tensor to a cell in three places, and another cell returns what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.dropout = nn.Dropout(p=0.0)
        self.first = Scale(1.5)

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        attended, weights = self.attention(x, x, x)
        return self.dropout(attended) + x, weights


class FirstOutput(nn.Cell):
    """Takes the first of what its network returns, should that be several things."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x: Tensor) -> Tensor:
        found = self.network(x)
        if isinstance(found, (tuple, list)):
            found = found[0]
        return (found * found).sum()


def test_what_the_modes_see_unlike_is_no_divergence(tmp_path: Path) -> None:
    """Shares of a gradient against the whole, and zeros against no gradient, are none."""
    for name, mode in (("pynative", ms.PYNATIVE_MODE), ("graph", ms.GRAPH_MODE)):
        ms.set_seed(1)
        network = SelfAttention()
        train(network, FirstOutput, tensor(2, 3, 4), {}, tmp_path / name, mode)
    runs = tmp_path / "pynative", tmp_path / "graph"
    result = compare_runs(*runs, tolerance=Tolerance(1e-4, 1e-4))
    counts = {status for status, count in result.verdict.counts.items() if count}
    assert counts == {"identical", "within_tolerance"}
    assert any("several places" in gap.reason for gap in result.verdict.coverage)


class Residual(nn.Cell):
    """A block as transformers have it: x + f(norm(x)); it holds parameters in a tuple, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((4,))
        self.dense = nn.Dense(4, 4)
        own = [Parameter(tensor(4, start=1.0), name=f"bias.{n}") for n in range(2)]
        self.biases = ParameterTuple(own)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.dense(self.norm(x)) * self.biases[0] + self.biases[1]


class ResidualLoss(nn.Cell):
    """Two such blocks and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.SequentialCell([nn.Dense(4, 4), Residual(), Residual()])

    def construct(self, x: Tensor) -> Tensor:
        found = self.blocks(x)
        return (found * found).mean()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_cell_that_trains_lines_up_without_a_tolerance(tmp_path: Path, task: str) -> None:
    """What a residual connection rounds in PyNative, and what a graph cannot have, is said."""
    for name, mode in (("pynative", ms.PYNATIVE_MODE), ("graph", ms.GRAPH_MODE)):
        ms.set_context(mode=mode)
        ms.set_seed(1)
        network = ResidualLoss()
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        train = nn.TrainOneStepCell(network, optimizer)
        probe = Probe.from_config(
            {"msprobe": True, "actor_train_dump": True, "task": task, "strict": True}
            | {"dump_path": str(tmp_path / name)}
        )
        probe.watch(actor=train, optimizers={"actor": optimizer})
        try:
            with probe.phase("actor_update"):
                train(tensor(3, 4))
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE)
        probe.step()
        probe.close()
    result = compare_runs(tmp_path / "pynative", tmp_path / "graph")
    apart = {finding.record for finding in result.findings if not finding.status.agrees}
    assert apart == set()
    rounded = {f.record for f in result.findings if "difference of two gradients" in f.note}
    assert rounded <= {
        f"Cell.network.blocks.{n}.norm.LayerNorm.backward.0.output.0" for n in (1, 2)
    }
    reasons = {gap.reason for gap in result.verdict.coverage if "graph mode" in gap.reason}
    assert any("the optimizer's own call" in reason for reason in reasons)
    assert any("in a tuple" in reason for reason in reasons)
    root = open_run(tmp_path / "pynative").entries()[0]
    assert {record.io for record in root.records} == {"input", "output"}


class HandMadeNorm(nn.Cell):
    """RMSNorm in plain operators."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(np.ones(4, np.float32)), name="gamma")

    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + 1e-6) * self.gamma


class Gated(nn.Cell):
    """A gated product of a normed input, as a feed-forward layer computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = HandMadeNorm(), nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.a(h) * self.b(h)


class Recomputed(nn.Cell):
    """A dense layer and a block that is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.block = nn.Dense(4, 4), Gated()
        self.block.recompute()

    def construct(self, x: Tensor) -> Tensor:
        return self.block(self.dense(x))


class Half(nn.Cell):
    """Two layers in float16 behind each other, as mixed precision makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.first = nn.Dense(4, 4).to_float(ms.float16)
        self.second = nn.Dense(4, 4).to_float(ms.float16)

    def construct(self, x: Tensor) -> Tensor:
        h = self.first(self.dense(x)).astype(ms.float32)
        return self.second(h).astype(ms.float32)


@pytest.mark.parametrize(
    ("kind", "cells", "reason"),
    [
        (Recomputed, {"block.norm", "block.a", "block.b"}, "coverage.gradients_recomputed"),
        (Half, {"first", "second"}, "coverage.gradients_casts_inputs"),
    ],
)
def test_where_a_probe_of_gradients_does_harm_there_is_none(
    tmp_path: Path, kind: type[nn.Cell], cells: set[str], reason: str
) -> None:
    """Training is the same bit for bit; what is missing is coverage, in comparing too."""

    def trained(settings: dict[str, Any] | None, name: str, mode: int) -> list[bytes]:
        ms.set_seed(3)
        network = kind()
        return train(network, squares, tensor(3, 4), settings, tmp_path / name, mode)

    plain = trained(None, "plain", ms.GRAPH_MODE)
    assert trained({}, "graph", ms.GRAPH_MODE) == plain
    trained({}, "pynative", ms.PYNATIVE_MODE)
    run = open_run(tmp_path / "graph")
    left_out = run.coverage()["graph_mode"]["actor"]
    assert {name for name, why in left_out.items() if Message(reason) in why} == cells
    backward = {entry.cell for entry in run.entries() if entry.direction == "backward"}
    assert backward
    assert not backward & cells
    runs = tmp_path / "pynative", tmp_path / "graph"
    result = compare_runs(*runs, tolerance=Tolerance(1e-2, 1e-2))
    assert {f.record for f in result.findings if not f.status.agrees} == set()


class DynamicAndParameter(nn.Cell):
    """Hands a cell a tensor of dynamic shape, and a Parameter in another argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.full((4,), 1.5, np.float32)), name="weight")
        self.product, self.scale = Product(), Scale()

    def construct(self, x: Tensor) -> Tensor:
        return self.scale(self.product(x, self.weight))


class Product(nn.Cell):
    """The product of what it is given."""

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * weight


def test_every_reason_of_a_cell_is_kept_and_decides(tmp_path: Path) -> None:
    """A Parameter is passed by a cell of dynamic shape: both are said; its gradients are none."""

    def trained(settings: dict[str, Any] | None, name: str, mode: int) -> list[bytes]:
        network = DynamicAndParameter()
        network.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))
        return train(network, squares, tensor(3, 4), settings, tmp_path / name, mode)

    assert trained({}, "graph", ms.GRAPH_MODE) == trained(None, "plain", ms.GRAPH_MODE)
    trained({}, "pynative", ms.PYNATIVE_MODE)
    run = open_run(tmp_path / "graph")
    reasons = {"coverage.dynamic_shape", "coverage.gradients_passes_parameter"}
    noted = run.manifests[0]["coverage"]["graph_mode"]["actor"]["product"]
    assert {reason["code"] for reason in noted} == reasons
    assert {why.code for why in run.coverage()["graph_mode"]["actor"]["product"]} == reasons
    assert not [e for e in run.entries() if e.cell == "product" and e.direction == "backward"]
    result = compare_runs(tmp_path / "graph", tmp_path / "pynative", lang="zh")
    assert {f.record for f in result.findings if not f.status.agrees} == set()
    said = " ".join(gap.reason for gap in result.verdict.coverage)
    assert "动态 shape 的张量" in said
    assert "Parameter 作为输入" in said


def squares(network: nn.Cell) -> Callable[[Tensor], Tensor]:
    """Return a loss."""

    def loss(x: Tensor) -> Tensor:
        found = network(x)
        return (found * found).mean()

    return loss


def test_gradients_that_are_clipped_before_the_optimizer_are_no_divergence(
    tmp_path: Path,
) -> None:
    """PyNative records them as they arise, graph mode as they enter the optimizer."""

    class Clips(nn.TrainOneStepCell):
        def construct(self, *inputs: Tensor) -> Tensor:
            loss = self.network(*inputs)
            gradients = self.grad(self.network, self.weights)(*inputs, ops.ones_like(loss))
            return ops.depend(loss, self.optimizer(ops.clip_by_global_norm(gradients, 1e-3)))

    for name, mode in (("pynative", ms.PYNATIVE_MODE), ("graph", ms.GRAPH_MODE)):
        ms.set_context(mode=mode)
        ms.set_seed(1)
        network = ResidualLoss()
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        probe = Probe.from_config(
            {"msprobe": True, "actor_train_dump": True, "dump_path": str(tmp_path / name)}
        )
        probe.watch(actor=network, optimizers={"actor": optimizer})
        try:
            with probe.phase("actor_update"):
                Clips(network, optimizer)(tensor(3, 4))
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE)
        probe.step()
        probe.close()
    result = compare_runs(tmp_path / "pynative", tmp_path / "graph")
    assert {f.record for f in result.findings if not f.status.agrees} == set()
    assert any("as they entered the optimizer" in gap.reason for gap in result.verdict.coverage)


class DoesNotCompile(nn.Cell):
    """Asks for an attribute that is not there."""

    def construct(self, x: Tensor) -> Tensor:
        return x.no_such_attribute_of_a_tensor()


@pytest.mark.usefixtures("graph_mode")
def test_what_does_not_compile_without_probes_is_the_networks_own_fault(
    layer_probe: Callable[..., Probe],
    warnings_of: Callable[[], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer gets MindSpore's own error; the log does not lay it to the recording."""
    monkeypatch.chdir(tmp_path)  # MindSpore writes the graph it could not compile
    network = DoesNotCompile()
    probe = layer_probe()
    probe.watch(actor=network)
    with (
        pytest.raises(AttributeError, match="no_such_attribute"),
        probe.phase("actor_update"),
    ):
        network(tensor(2, 2))
    assert not any("compile" in warning for warning in warnings_of())


class UsesPlain(nn.Cell):
    """Its loss calls one network twice and is trained by MindSpore's own train cell."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, x: Tensor) -> Tensor:
        return (self.network(x) * self.network(ops.tanh(x))).sum()


@pytest.mark.usefixtures("graph_mode")
def test_gradients_go_to_the_call_they_belong_to(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """In one graph with the update: the gradient at one call's output is the other's output."""
    network = Policy()
    loss = UsesPlain(network)
    optimizer = nn.Momentum(loss.trainable_params(), 0.01, 0.9)
    train_cell = nn.TrainOneStepCell(loss, optimizer, sens=2.0)
    probe = layer_probe(task="tensor", include=["^root$"])
    probe.watch(actor=network, optimizers={"actor": optimizer})
    for _ in range(2):
        with probe.phase("actor_update"):
            train_cell(tensor(2, 2))
    values = {r.name: r for entry in recorded(probe).entries() for r in entry.records}
    for call in range(4):
        gradient = values[f"Cell.root.Policy.backward.{call}.input.0"].array()
        other = values[f"Cell.root.Policy.forward.{call ^ 1}.output.0"].array()
        np.testing.assert_array_equal(gradient, 2 * other)


def jitted_step(loss: Callable[[Tensor], Tensor], optimizer: nn.Optimizer) -> Any:
    """Return a whole training step under ms.jit: forward, backward, update."""
    gradients_of = ms.value_and_grad(loss, None, optimizer.parameters)

    @ms.jit
    def step(x: Tensor) -> Tensor:
        value, gradients = gradients_of(x)
        optimizer(gradients)
        return value

    return step


def test_a_jitted_step_is_recorded_in_pynative(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """A function under ms.jit that runs forward, backward and update is recorded cell by cell."""
    network = Twice()
    optimizer = nn.SGD(network.trainable_params(), 0.1)

    def loss(x: Tensor) -> Tensor:
        return network(x).sum()

    step = jitted_step(loss, optimizer)
    probe = layer_probe()
    probe.watch(actor=network, optimizers={"actor": optimizer})
    with probe.phase("actor_update"):
        step(tensor(2, 2))
        network(tensor(2, 2))
    run = recorded(probe)
    names = {entry.name for entry in run.entries()}
    for name in ("forward.3", "backward.1", "parameters_grad.0"):
        assert f"Cell.first.Scale.{name}" in names
    assert not run.manifests[0]["lost"]


class Bent(nn.Cell):
    """A parameter with axes, and an argument that callers leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Parameter(Tensor(np.array([0.5, 1.5], np.float32)))

    def construct(self, x: Tensor, factor: float = 1.0) -> Tensor:
        return ops.tanh(x * self.scale) * factor


class Squared(nn.Cell):
    """A loss around a network."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, x: Tensor) -> Tensor:
        return (self.network(x) ** 2).mean()


@pytest.mark.parametrize("directions", [["forward"], ["forward", "backward"]])
def test_the_parameters_of_a_jitted_step_are_recorded_before_it_changes_them(
    directions: list[str],
    layer_probe: Callable[..., Probe],
    recorded: Callable[[Probe], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The update waits for them, however late the host takes them."""
    network = nn.SequentialCell(Bent(), Bent())
    loss = Squared(network)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step = jitted_step(loss, optimizer)

    opened = GraphCalls.opened

    def opened_late(self: GraphCalls, *arguments: Any) -> int:
        time.sleep(0.05)
        return opened(self, *arguments)

    monkeypatch.setattr(GraphCalls, "opened", opened_late)
    probe = layer_probe(task="tensor", directions=directions)
    probe.watch(actor=network, optimizers={"actor": optimizer})
    before = [parameter.asnumpy().copy() for parameter in network.trainable_params()]
    with probe.phase("actor_update"):
        step(tensor(2, 2))
    found = {
        record.name: record.array()
        for entry in recorded(probe).entries()
        for record in entry.records
        if record.io == "parameters"
    }
    assert len(found) == len(before)
    for value, array in zip(before, found.values()):
        np.testing.assert_array_equal(array, value)
    changed = zip(before, network.trainable_params())
    assert not any((value == parameter.asnumpy()).all() for value, parameter in changed)


class Jitted(nn.Cell):
    """A cell whose construct is compiled in PyNative mode."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Twice()

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.child(x)


def test_a_jitted_cell_is_recorded_once(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Its children are recorded where it was compiled, inside the entry that PyNative makes."""
    network = nn.SequentialCell([Scale(), Jitted()])
    probe = layer_probe()
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        network(tensor(2, 2))
        network(tensor(2, 2))
    entries = [e for e in recorded(probe).entries() if e.direction == "forward"]
    names = [e.name for e in entries if e.cell in ("1", "1.child")]
    assert sorted(names) == [
        *(f"Cell.1.Jitted.forward.{n}" for n in range(2)),
        *(f"Cell.1.child.Twice.forward.{n}" for n in range(2)),
    ]
    parents = {e.name: e.parent for e in entries}
    assert parents["Cell.1.child.Twice.forward.1"] == "Cell.1.Jitted.forward.1"


class RunsAgain(nn.Cell):
    """A jitted cell in which one with a parameter runs twice, the second time on its own result."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.norm = nn.LayerNorm((2,))

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.scale(self.norm(self.scale(x)))


def test_what_python_differentiates_through_a_jitted_cell_stays_as_it_is(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """With probes of gradients in it MindSpore computed wrong gradients: it has none."""

    def gradients(network: nn.Cell) -> list[np.ndarray]:
        def loss(x: Tensor) -> Tensor:
            return (network(x) ** 2).sum()

        _, found = ms.value_and_grad(loss, None, network.trainable_params())(tensor(3, 2))
        return [gradient.asnumpy() for gradient in found]

    plain = gradients(RunsAgain())
    network, probe = RunsAgain(), layer_probe()
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        network(tensor(3, 2))  # compiled before, where nothing is differentiated
        for mine, theirs in zip(gradients(network), plain):
            np.testing.assert_array_equal(mine, theirs)
    run = recorded(probe)
    names = {entry.name for entry in run.entries()}
    assert "Cell.scale.Scale.forward.3" in names
    assert any(name.startswith("Cell.root.RunsAgain.backward.") for name in names)
    gaps = run.manifests[0]["coverage"]["graph_mode"]["actor"]
    assert set(gaps) == {"scale", "norm"}
    assert all(why == [{"code": "coverage.gradients_in_python"}] for why in gaps.values())
    assert not run.manifests[0]["lost"]


class Branch(nn.Cell):
    """Chooses by what it is given, among cells of which the first has several in it."""

    def __init__(self) -> None:
        super().__init__()
        self.several = nn.SequentialCell(Scale(), nn.Tanh(), Scale())
        self.one = Scale()

    def construct(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # noqa: SIM108 (a statement of the graph)
            y = self.several(x)
        else:
            y = self.one(x)
        return y


class Branches(nn.Cell):
    """Has such a cell in it."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = Branch(), Scale()

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.branch(x))


class JittedBranches(Branches):
    """The same, compiled."""

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.branch(x))


@pytest.mark.parametrize("jitted", ["cell", "function"])
def test_a_branch_that_runs_again_in_the_backward_pass_is_recorded_once(
    tmp_path: Path, jitted: str
) -> None:
    """MindSpore computes jitted branches once more where Python differentiates them."""

    def run(path: Path, kind: type[nn.Cell], compiles: bool) -> list[bytes]:
        network = kind()
        optimizer = nn.SGD(network.trainable_params(), 0.1)

        def scored(x: Tensor) -> Tensor:
            return network(x) + 1.0

        call = ms.jit(scored) if compiles else scored
        step = ms.value_and_grad(lambda x: (call(x) ** 2).sum(), None, optimizer.parameters)
        section = {"msprobe": True, "actor_train_dump": True, "task": "tensor"}
        with Probe.from_config({**section, "dump_path": str(path)}) as probe:
            probe.watch(actor=network, optimizers={"actor": optimizer})
            with probe.phase("actor_update"):
                for x in (tensor(2, 2), -tensor(2, 2), tensor(2, 2)):
                    _, gradients = step(x)
                    optimizer(gradients)
            probe.step()
        return [parameter.asnumpy().tobytes() for parameter in network.trainable_params()]

    of_cell = jitted == "cell"
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    weights = run(plain, Branches, False)
    assert run(compiled, JittedBranches if of_cell else Branches, not of_cell) == weights
    runs = [open_run(path) for path in (plain, compiled)]
    assert not runs[1].lost
    found = []
    for each in runs:
        entries = sorted(each.entries(), key=lambda entry: entry.seq or 0)
        forward = [e for e in entries if e.direction == "forward"]
        assert all(e.end is not None for e in forward)
        names = [(e.cell, e.name.rpartition(".")[2], len(e.records)) for e in forward]
        trained = sorted(e.name for e in entries if e.direction == "parameters_grad")
        assert len({*trained}) == len(trained)
        found.append((names, trained))
    assert found[0] == found[1]


def test_a_jitted_cell_that_ran_while_others_were_watched_is_recorded(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """It held no probes then; watched, it is compiled with them."""
    other, network, probe = Scale(), Jitted(), layer_probe()
    probe.watch(reference=other)
    network(tensor(2, 2))
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        network(tensor(2, 2))
    run = recorded(probe)
    assert "Cell.child.first.Scale.forward.0" in {entry.name for entry in run.entries()}
    assert "graph_mode" not in run.manifests[0].get("coverage", {})


def test_a_cell_that_was_jitted_before_is_compiled_with_probes(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """What was compiled before watch() goes on to run where nothing is recorded."""
    network = nn.SequentialCell([Scale(), Jitted()])
    network(tensor(2, 2))
    probe = layer_probe()
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        network(tensor(2, 2))
    run = recorded(probe)
    inside = {"1.child", "1.child.first", "1.child.second"}
    assert {entry.cell for entry in run.entries()} == {"root", "0", "1"} | inside
    assert "graph_mode" not in run.manifests[0].get("coverage", {})


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
@pytest.mark.parametrize("transform", [ms.vmap, ms.jacrev, ms.jacfwd])
def test_vectorised_calls_run_without_probes(
    transform: Callable[[nn.Cell], Callable[..., Tensor]],
    mode: int,
    layer_probe: Callable[..., Probe],
    recorded: Callable[[Probe], Any],
) -> None:
    """MindSpore refuses to vectorise host functions; other calls of the cell are recorded."""
    network = Scale()
    x = tensor(3, 4)
    ms.set_context(mode=mode)
    try:
        plain = transform(Scale())(x).asnumpy()
        probe = layer_probe()
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            assert (transform(network)(x).asnumpy() == plain).all()
            network(x)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    run = recorded(probe)
    assert [entry.name for entry in run.entries()] == ["Cell.root.Scale.forward.0"]
    gaps = run.manifests[0]["coverage"]["graph_mode"]["actor"]
    assert gaps["root"] == [{"code": "coverage.vectorised"}]


def test_a_wrapped_cell_looks_like_itself(layer_probe: Callable[..., Probe]) -> None:
    """Its signature, its source and a copy of it are there in PyNative mode."""
    network = Mixed()
    signature = inspect.signature(network.construct)
    layer_probe().watch(actor=network)
    assert inspect.signature(network.construct) == signature
    assert inspect.getsource(network.construct) == inspect.getsource(Mixed.construct)
    x = tensor(3, 4)
    assert (copy.deepcopy(network)(x).asnumpy() == network(x).asnumpy()).all()
    assert not any("construct" in vars(cell) for cell in (Mixed(), Cubed()))


@pytest.mark.usefixtures("graph_mode")
def test_tokens_and_excluded_cells(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """The outermost cell counts tokens, though it is not recorded; call numbers are true."""
    network = Policy()
    probe = layer_probe(include=["head"], token_range_start=1, token_range_end=1)
    probe.watch(actor=network)
    with probe.phase("actor_generate_sequences"):
        for _ in range(3):
            network(tensor(2, 2))
    (entry,) = recorded(probe).entries()
    assert (entry.name, entry.token, entry.parent) == ("Cell.head.Scale.forward.1", 1, None)
    journal = Path(probe.config.dump_path) / "actor_generate_sequences/step0/rank0/records.jsonl"
    assert list(json.loads(journal.read_text()))[:3] == ["entry", "seq", "end"]


class EchoesAll(nn.Cell):
    """Hands each argument to one cell."""

    def __init__(self) -> None:
        super().__init__()
        self.echo = Echo()

    def construct(self, *values: Tensor) -> tuple[Tensor, ...]:
        returned = ()
        for value in values:
            returned = (*returned, self.echo(value))
        return returned


def test_every_dtype_and_shape_reaches_the_host(
    tmp_path: Path, make_probe: Callable[..., Probe]
) -> None:
    """As in PyNative: with axes or without, and without elements."""
    names = "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32"
    dtypes = [getattr(ms, name) for name in f"{names} float64 complex64 complex128".split()]
    values = [Tensor(np.array([[1, 0], [3, 1]]), dtype) for dtype in dtypes]
    values += [Tensor(1, dtype) for dtype in dtypes] + [Tensor(np.zeros((0, 3)), ms.float32)]
    found = []
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        ms.set_context(mode=mode)
        network = EchoesAll()
        probe = make_probe(actor_train_dump=True, dump_path=str(tmp_path / str(mode)))
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            network(*values)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        probe.close()
        run = open_run(probe.config.dump_path)
        found.append([(r.name, r.leaf.to_json()) for e in run.entries() for r in e.records])
    assert found[0] == found[1]
    assert len(found[0]) == 4 * len(values)


def test_sketches_are_those_of_pynative(tmp_path: Path, make_probe: Callable[..., Probe]) -> None:
    """Rows of every dtype have the same sketch, token ids the same elements, in both modes."""
    rows = np.random.default_rng(0).standard_normal((2, 3, 70)).astype(np.float32)
    dtypes = (ms.float32, ms.bfloat16, ms.float16, ms.float64, ms.int32)
    values = [Tensor(rows, dtype) for dtype in dtypes] + [Tensor([[3, 1]], ms.int64)]
    found = []
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        ms.set_context(mode=mode)
        network = EchoesAll()
        path = str(tmp_path / str(mode))
        probe = make_probe(actor_train_dump=True, task="sketch", dump_path=path)
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            network(*values)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        probe.close()
        records = [r for e in open_run(path).entries() for r in e.records]
        sketches = {r.name: r.sketch() for r in records if r.leaf.sketch is not None}
        found.append(
            {name: (s.sums.tobytes(), s.fingerprints.tobytes()) for name, s in sketches.items()}
            | {r.name: r.array().tolist() for r in records if r.leaf.data_name is not None}
        )
        assert len(sketches) == 4 * 4  # int32 may be a mask: its elements are stored
    assert found[0] == found[1]
    assert len(found[0]) == 4 * len(values)


class Several(nn.Cell):
    """Takes and returns what a graph hands over in several ways; has two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(tensor(2, start=1.0), name="weight")
        self.bias = ms.Parameter(tensor(2, start=0.5), name="bias")

    def construct(
        self, x: Tensor, nested: tuple[Any, ...], *, scale: Tensor, named: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        out = x * self.weight * scale + self.bias + nested[0]
        return out, {"first": nested[1][0], 'it\'s "2"\\': out.sum()}, [named["a b"], out > 1]


class UsesSeveral(nn.Cell):
    """Calls a cell twice; what it returns the first time is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.several = Several()

    def construct(self, x: Tensor, empty: Tensor) -> Tensor:
        nested = (x + 1, (empty, 7))
        named = {"a b": x.astype(ms.bfloat16)}
        self.several(x, nested, scale=ops.sum(x), named=named)
        out, _, _ = self.several(x, nested, scale=ops.sum(x), named=named)
        return out.sum()


@pytest.mark.parametrize("together", [400, 1, 2])
@pytest.mark.parametrize("directions", [["forward"], ["forward", "backward"]])
def test_one_host_call_takes_what_a_cell_is_given_and_one_what_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, directions: list[str]
) -> None:
    """However many tensors go together, the entries are those of PyNative in their order."""
    monkeypatch.setattr("mindrlhf_msprobe.capture.graph.cpu.MOST_TOGETHER", together)
    runs, bits = [], []
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        network = UsesSeveral()
        ms.set_context(mode=mode)
        path = tmp_path / str(mode)
        section = {"msprobe": True, "actor_train_dump": True, "directions": directions}
        try:
            with Probe.from_config({**section, "dump_path": str(path)}) as probe:
                probe.watch(actor=network)
                step = ms.value_and_grad(network, None, network.trainable_params())
                with probe.phase("actor_update"):
                    loss, gradients = step(tensor(2, start=2.0), Tensor(np.zeros((0, 2)), ms.int8))
                probe.step()
                bits.append([x.asnumpy().tolist() for x in (loss, *gradients)])
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE)
        runs.append(open_run(path))
    assert bits[0] == bits[1]
    forward = [
        [
            (entry.name, record.name, record.leaf.type, record.leaf.fingerprint)
            for entry in run.entries()
            if entry.direction == "forward"
            for record in entry.records
        ]
        for run in runs
    ]
    assert forward[0] == forward[1]
    assert len({name for name, *_ in forward[1]}) == 3
    manifest = runs[1].manifests[0]
    assert not manifest["lost"]
    if together == 400 and directions == ["forward"]:
        assert manifest["recording"]["graphs"]["host_functions"]["calls"] == 2 * 3
