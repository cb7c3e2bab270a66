"""GRAPH_MODE and jit: the same names, calls, nesting and values as PyNative."""

import copy
import inspect
import json
import time

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import (
    MODES,
    Assembled,
    Cubed,
    Decoder,
    Echo,
    Mixed,
    Norm,
    Policy,
    Scale,
    Twice,
    in_mode,
    tensor,
)
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindrlhf_msprobe import Probe, UsageError, compare_runs, open_run
from mindrlhf_msprobe.capture.graph.calls import GraphCalls
from mindrlhf_msprobe.capture.tensors import summary
from mindrlhf_msprobe.comparison import Tolerance

PYNATIVE, GRAPH = MODES.values()
STEPS = 2
SETTINGS = {
    "off": {"msprobe": False},
    "switches off": {"actor_train_dump": False, "actor_infer_dump": False},
    "outside the window": {"step_start": 9},
    "statistics": {},
    "tensor": {"task": "tensor"},
}


@pytest.fixture
def graph_mode():
    """Run a test in GRAPH_MODE."""
    with in_mode(GRAPH):
        yield


def train(network, loss_of, x, settings, path, mode=GRAPH):
    """Score, train and return the bits of every output, loss, gradient and, at the end, weight."""
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 0.01)
    section = {"msprobe": settings is not None, "actor_train_dump": True, "actor_infer_dump": True}
    section |= {"step_end": 9, "dump_path": str(path), **(settings or {})}
    bits = []
    with in_mode(mode), Probe.from_config(section) as probe:
        probe.watch(actor=network, optimizers={"actor": optimizer})
        step = ms.value_and_grad(loss_of(network), None, optimizer.parameters)
        for _ in range(STEPS):
            with probe.phase("actor_generate_sequences"):
                network(x)
            with probe.phase("actor_update"):
                loss, gradients = step(x)
                optimizer(gradients)
            probe.step()
            bits += [r.asnumpy().tobytes() for r in (loss, *gradients)]
    return bits + [p.asnumpy().tobytes() for p in network.get_parameters()]


def mixed_loss(network):
    """Return a loss of the network of odd cells."""

    def loss(x):
        return (network(x, scale=1.25) ** 2).mean()

    return loss


def squares(network):
    """Return a loss of any other."""

    def loss(x):
        found = network(x)
        return (found * found).mean()

    return loss


def forward(run):
    return [entry for entry in run.entries() if entry.direction == "forward"]


def records(run):
    return {record.name: record for entry in run.entries() for record in entry.records}


def gaps_of(run):
    """Return the codes of what run.json says is missing of each cell in a graph."""
    gaps = run.manifests[0].get("coverage", {}).get("graph_mode", {}).get("actor", {})
    return {cell: {why["code"] for why in whys} for cell, whys in gaps.items()}


def lined_up(first, second, *tolerance, lang="en"):
    """Compare two runs, in which nothing may be apart, and return what is said to be missing."""
    within = Tolerance(*tolerance) if tolerance else None
    result = compare_runs(first, second, tolerance=within, lang=lang)
    assert result.findings
    assert {f.record for f in result.findings if not f.status.agrees} == set()
    return [gap.reason for gap in result.verdict.coverage]


def forward_of(path):
    """Return what a run holds of every forward entry, in the order in which they began."""
    return [
        (
            *(e.phase, e.step, e.name, e.parent, e.opening, e.token),
            [(r.name, r.leaf) for r in e.records],
        )
        for e in sorted(forward(open_run(path)), key=lambda entry: entry.seq)
    ]


@pytest.fixture(scope="module")
def mixed_bits(tmp_path_factory):
    """Train the network of odd cells without the probe, and record it in PyNative."""
    path = tmp_path_factory.mktemp("pynative") / "run"
    bits = train(Mixed(), mixed_loss, tensor(3, 4, start=-0.5), None, path)
    train(Mixed(), mixed_loss, tensor(3, 4, start=-0.5), {}, path, PYNATIVE)
    return bits, path


@pytest.mark.parametrize("variant", SETTINGS)
def test_training_is_the_same(tmp_path, mixed_bits, variant):
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


def stored(path, entry, variant):
    """Return an entry's records, with the files that hold their elements where there are any."""
    if variant != "tensor":
        return entry[6]
    (same,) = (e for e in open_run(path).entries(entry[0], step=entry[1]) if e.name == entry[2])
    for record in same.records:
        if record.leaf.is_tensor:
            assert record.array().shape == record.leaf.shape
    files = {record.name: record.leaf.data_name for record in same.records}
    return [(name, leaf.stored(files[name], fingerprint=True)) for name, leaf in entry[6]]


def test_a_llama_trains_the_same(tmp_path, build_llama):
    """A mindformers Llama is recorded as in PyNative, and trains as without the probe."""
    tokens = Tensor(np.arange(16).reshape(2, 8) % 17, ms.int32)

    def loss_of(network):
        def loss(tokens):
            logits = network(tokens)[0]
            return -ops.log_softmax(logits.astype(ms.float32), -1).reshape(-1)[::5].mean()

        return loss

    path = tmp_path / "graph"
    assert train(build_llama(), loss_of, tokens, {}, path) == train(
        build_llama(), loss_of, tokens, None, path
    )
    train(build_llama(), loss_of, tokens, {}, tmp_path / "eager", PYNATIVE)
    graph, eager = forward_of(path), forward_of(tmp_path / "eager")
    assert [entry[:6] for entry in graph] == [entry[:6] for entry in eager]
    first = [entry for entry in graph if entry[1] == 0]
    assert len(first) > 60
    assert first == [entry for entry in eager if entry[1] == 0]
    backward = [e for e in open_run(path).entries(step=0) if e.direction == "backward"]
    assert len(backward) > 30
    assert not open_run(path).manifests[0]["lost"]


class Nested(Assembled, scale=lambda: Scale(2.0)):
    """Takes a tuple and keywords; returns a dict with what is used and what is not."""

    def construct(self, pair, *, mask=None, bias=None):
        left, (count, right) = pair
        return self.scale(left) * right + bias, {"unused": left * 3, "count": count}


class UsesNested(nn.Cell):
    """Gives its child a structure."""

    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(tensor(2, start=1.0), name="weight")
        self.nested = Nested()

    def construct(self, x):
        hidden = x * self.weight
        out, _ = self.nested((hidden, (4, x)), mask=None, bias=hidden)
        return (out * out).sum()


def test_gradients_are_those_of_the_formula(run_phase):
    """Gradients of tuples, dicts and keywords stand where the values stand; unused ones are None.

    out = 2 h x + h with h = x w, loss = sum of squares: dloss/dout = 2 out, dloss/dh = 2 out 2 x
    through the tuple, 2 out through the bias.
    """
    network, x = UsesNested(), tensor(2, start=0.5)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    weight = network.weight.asnumpy().copy()
    step = ms.value_and_grad(network, None, optimizer.parameters)
    given = {"optimizer": optimizer, "mode": GRAPH, "task": "tensor"}
    run = run_phase(network, lambda: optimizer(step(x)[1]), **given)
    entries, values = {entry.name: entry for entry in run.entries()}, records(run)
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

    def construct(self, x, total):
        ops.assign_add(total, x)
        return x * total, total


class UsesAccumulates(nn.Cell):
    """Gives its child a Parameter."""

    def __init__(self):
        super().__init__()
        self.total = ms.Parameter(tensor(2), name="total", requires_grad=False)
        self.weight = ms.Parameter(tensor(2, start=1.0), name="weight")
        self.accumulates = Accumulates()

    def construct(self, x):
        out, total = self.accumulates(x * self.weight, self.total)
        return (out + total).sum()


@pytest.mark.usefixtures("graph_mode")
def test_a_parameter_that_changes_in_place_keeps_its_gradient(layer_probe, recorded):
    """A cell that takes a Parameter computes and differentiates as without the probe."""

    def trained(probe):
        network = UsesAccumulates()
        probe.watch(actor=network)
        step, bits = ms.value_and_grad(network, None, network.trainable_params()), []
        for _ in range(2):
            with probe.phase("actor_update"):
                loss, gradients = step(tensor(2, start=2.0))
            bits.append([t.asnumpy().tolist() for t in (loss, *gradients, network.total)])
        return bits

    probe, bits = layer_probe(task="tensor"), trained(Probe())
    assert trained(probe) == bits
    values = records(recorded(probe))
    given = [values[f"Cell.accumulates.Accumulates.forward.{n}.input.1"] for n in range(2)]
    assert [each.array().tolist() for each in given] == [tensor(2).asnumpy().tolist(), bits[0][2]]


class Loops(Assembled, child=lambda: Scale(1.5)):
    """Calls one child in a loop over a tensor and in a branch on one."""

    def construct(self, x):
        i = Tensor(0, ms.int32)
        while i < 3:
            x = self.child(x)
            i = i + 1
        if x.sum() > 0:
            x = self.child(x)
        return x.sum()


def test_calls_in_loops_and_branches_are_counted(run_phase):
    """Each turn of a tensor loop is a call of its own, backward too, over all runs of a phase."""
    network = Loops()
    step = ms.value_and_grad(network, None, network.trainable_params())
    run = run_phase(network, lambda: [step(tensor(2, 3)) for _ in range(2)], mode=GRAPH)
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
    assert gaps_of(run)["parameters_grad"] == {"coverage.optimizer_not_watched"}


@pytest.mark.usefixtures("graph_mode")
def test_watching_what_is_compiled_is_an_error(layer_probe):
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
def test_one_network_serves_two_roles(layer_probe, recorded):
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


def test_what_a_graph_cannot_hand_over_is_coverage(run_phase, warnings_of, tmp_path):
    """A dynamic shape is named in run.json and once in the log, and is no divergence."""
    runs, x = [], tensor(3, 4)
    for mode in (GRAPH, PYNATIVE):
        network = Scale()
        if mode == GRAPH:
            network.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))
        given = {"phase": "actor_compute_log_prob", "openings": 2, "mode": mode}
        runs.append(run_phase(network, lambda network=network: network(x), **given))
    assert gaps_of(runs[0]) == {"root": {"coverage.dynamic_shape"}}
    assert sum("dynamic" in text for text in warnings_of()) == 1
    result = compare_runs(runs[0].path, runs[1].path, output_path=tmp_path / "out")
    assert bool(result)
    assert [gap.reason for gap in result.verdict.coverage] == [
        "not recorded in graph mode: a tensor whose shape is dynamic"
    ]


@pytest.mark.usefixtures("graph_mode")
def test_a_fault_never_reaches_the_graph(layer_probe, recorded, monkeypatch):
    """What fails while a graph hands it over is counted; strict runs raise when the phase ends."""

    def broken(*_, **__):
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

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = tensor(2, 5, 11, start=-1.0)

    def construct(self, tokens):
        return -(ops.log_softmax(self.network(tokens), -1) * self.weights).mean()


def test_a_training_step_lines_up_with_pynative_gradients_and_recomputed_cells_included(tmp_path):
    """Every record of the one has its counterpart in the other; they differ by rounding only."""
    tokens = Tensor(np.arange(10).reshape(2, 5) * 7 % 11, ms.int32)
    section = {"actor_train_dump": True, "task": "tensor", "strict": True}

    def run(mode, recomputed, path, on=True):
        given = {**section, "msprobe": on, "dump_path": str(path)}
        with in_mode(mode), Probe.from_config(given) as probe:
            network = Decoder(recomputed)
            optimizer = nn.AdamWeightDecay(network.trainable_params(), 0.01)
            train = nn.TrainOneStepCell(DecoderLoss(network), optimizer)
            probe.watch(actor=network, optimizers={"actor": optimizer})
            with probe.phase("actor_update"):
                loss = train(tokens)
            return [t.asnumpy().tobytes() for t in (loss, *network.get_parameters())]

    eager, graph = tmp_path / "pynative", tmp_path / "graph"
    run(PYNATIVE, False, eager)
    assert run(GRAPH, True, graph) == run(GRAPH, True, graph, False)
    result = compare_runs(eager, graph, tolerance=Tolerance(1e-4, 1e-5))
    counts = {status for status, count in result.verdict.counts.items() if count}
    assert counts <= {"identical", "within_tolerance"}
    directions = {entry.direction for entry in open_run(graph).entries()}
    assert directions == {"forward", "backward", "parameters_grad"}


class SelfAttention(nn.Cell):
    """Gives one tensor to a cell in three places, and another cell returns what it is given."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.dropout = nn.Dropout(p=0.0)
        self.first = Scale(1.5)

    def construct(self, x):
        x = self.first(x)
        attended, weights = self.attention(x, x, x)
        return self.dropout(attended) + x, weights


def squares_of_first(network):
    """Return a loss of the first of what its network returns, should that be several things."""

    def loss(x):
        found = network(x)
        if isinstance(found, (tuple, list)):
            found = found[0]
        return (found * found).sum()

    return loss


def test_what_the_modes_see_unlike_is_no_divergence(tmp_path):
    """Shares of a gradient against the whole, and zeros against no gradient, are none."""
    for name, mode in MODES.items():
        ms.set_seed(1)
        train(SelfAttention(), squares_of_first, tensor(2, 3, 4), {}, tmp_path / name, mode)
    runs = tmp_path / "pynative", tmp_path / "graph"
    result = compare_runs(*runs, tolerance=Tolerance(1e-4, 1e-4))
    counts = {status for status, count in result.verdict.counts.items() if count}
    assert counts == {"identical", "within_tolerance"}
    assert any("several places" in gap.reason for gap in result.verdict.coverage)


class Residual(nn.Cell):
    """A block as transformers have it: x + f(norm(x)); it holds parameters in a tuple, too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((4,))
        self.dense = nn.Dense(4, 4)
        own = [Parameter(tensor(4, start=1.0), name=f"bias.{n}") for n in range(2)]
        self.biases = ParameterTuple(own)

    def construct(self, x):
        return x + self.dense(self.norm(x)) * self.biases[0] + self.biases[1]


class ResidualLoss(nn.Cell):
    """Two such blocks and a loss."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.SequentialCell([nn.Dense(4, 4), Residual(), Residual()])

    def construct(self, x):
        found = self.blocks(x)
        return (found * found).mean()


def residual_losses(run_phase, train_cell, **settings):
    """Record one step of the same training in both modes."""
    runs = []
    for mode in MODES.values():
        ms.set_seed(1)
        network = ResidualLoss()
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        cell = train_cell(network, optimizer)
        given = {"optimizer": optimizer, "mode": mode, "strict": True, **settings}
        runs.append(run_phase(cell, lambda cell=cell: cell(tensor(3, 4)), **given))
    return runs


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_cell_that_trains_lines_up_without_a_tolerance(run_phase, task):
    """What a residual connection rounds in PyNative, and what a graph cannot have, is said."""
    eager, graph = residual_losses(run_phase, nn.TrainOneStepCell, task=task)
    reasons = lined_up(eager.path, graph.path)
    findings = compare_runs(eager.path, graph.path).findings
    rounded = {f.record for f in findings if "difference of two gradients" in f.note}
    assert rounded <= {
        f"Cell.network.blocks.{n}.norm.LayerNorm.backward.0.output.0" for n in (1, 2)
    }
    reasons = [reason for reason in reasons if "graph mode" in reason]
    assert any("the optimizer's own call" in reason for reason in reasons)
    assert any("in a tuple" in reason for reason in reasons)
    assert {record.io for record in eager.entries()[0].records} == {"input", "output"}


class Gated(Assembled, norm=lambda: Norm(4), a=lambda: nn.Dense(4, 4), b=lambda: nn.Dense(4, 4)):
    """A gated product of a normed input, as a feed-forward layer computes it."""

    def construct(self, x):
        h = self.norm(x)
        return self.a(h) * self.b(h)


class Recomputed(nn.Cell):
    """A dense layer and a block that is recomputed."""

    def __init__(self):
        super().__init__()
        self.dense, self.block = nn.Dense(4, 4), Gated()
        self.block.recompute()

    def construct(self, x):
        return self.block(self.dense(x))


class Half(nn.Cell):
    """Two layers in float16 behind each other, as mixed precision makes them."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.first = nn.Dense(4, 4).to_float(ms.float16)
        self.second = nn.Dense(4, 4).to_float(ms.float16)

    def construct(self, x):
        h = self.first(self.dense(x)).astype(ms.float32)
        return self.second(h).astype(ms.float32)


class Product(nn.Cell):
    """The product of what it is given."""

    def construct(self, x, weight):
        return x * weight


class DynamicAndParameter(nn.Cell):
    """Hands a cell a tensor of dynamic shape, and a Parameter in another argument."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.full((4,), 1.5, np.float32)), name="weight")
        self.product, self.scale = Product(), Scale()
        self.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))

    def construct(self, x):
        return self.scale(self.product(x, self.weight))


@pytest.mark.parametrize(
    ("kind", "cells", "reasons", "said"),
    [
        (Recomputed, {"block.norm", "block.a", "block.b"}, {"gradients_recomputed"}, []),
        (Half, {"first", "second"}, {"gradients_casts_inputs"}, []),
        (
            *(DynamicAndParameter, {"product"}, {"dynamic_shape", "gradients_passes_parameter"}),
            ["动态 shape 的张量", "Parameter 作为输入"],
        ),
    ],
    ids=["recomputed", "half", "dynamic, and a Parameter"],
)
def test_where_a_probe_of_gradients_does_harm_there_is_none(tmp_path, kind, cells, reasons, said):
    """Training is the same bit for bit; what is missing is coverage, in comparing too.

    Every reason of a cell is kept and decides.
    """

    def trained(settings, name, mode):
        ms.set_seed(3)
        return train(kind(), squares, tensor(3, 4), settings, tmp_path / name, mode)

    plain = trained(None, "plain", GRAPH)
    assert trained({}, "graph", GRAPH) == plain
    trained({}, "pynative", PYNATIVE)
    run = open_run(tmp_path / "graph")
    expected = {f"coverage.{reason}" for reason in reasons}
    noted = {cell: codes for cell, codes in gaps_of(run).items() if expected <= codes}
    assert noted.keys() == cells
    left_out = run.coverage()["graph_mode"]["actor"]
    assert all({why.code for why in left_out[cell]} == noted[cell] for cell in cells)
    backward = {entry.cell for entry in run.entries() if entry.direction == "backward"}
    assert backward
    assert not backward & cells
    if said:
        assert noted == {"product": expected}
    tolerance = () if said else (1e-2, 1e-2)
    runs = [tmp_path / "pynative", tmp_path / "graph"]
    found = lined_up(*(runs[::-1] if said else runs), *tolerance, lang="zh")
    assert all(words in " ".join(found) for words in said)


def test_gradients_that_are_clipped_before_the_optimizer_are_no_divergence(run_phase):
    """PyNative records them as they arise, graph mode as they enter the optimizer."""

    class Clips(nn.TrainOneStepCell):
        def construct(self, *inputs):
            loss = self.network(*inputs)
            gradients = self.grad(self.network, self.weights)(*inputs, ops.ones_like(loss))
            return ops.depend(loss, self.optimizer(ops.clip_by_global_norm(gradients, 1e-3)))

    eager, graph = residual_losses(run_phase, Clips)
    said = lined_up(eager.path, graph.path)
    assert any("as they entered the optimizer" in reason for reason in said)


class DoesNotCompile(nn.Cell):
    """Asks for an attribute that is not there."""

    def construct(self, x):
        return x.no_such_attribute_of_a_tensor()


def test_what_does_not_compile_without_probes_is_the_networks_own_fault(
    run_phase, warnings_of, tmp_path, monkeypatch
):
    """The trainer gets MindSpore's own error; the log does not lay it to the recording."""
    monkeypatch.chdir(tmp_path)  # MindSpore writes the graph it could not compile
    network = DoesNotCompile()
    with pytest.raises(AttributeError, match="no_such_attribute"):
        run_phase(network, lambda: network(tensor(2, 2)), mode=GRAPH)
    assert not any("compile" in warning for warning in warnings_of())


class UsesPlain(nn.Cell):
    """Its loss calls one network twice and is trained by MindSpore's own train cell."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        return (self.network(x) * self.network(ops.tanh(x))).sum()


def test_gradients_go_to_the_call_they_belong_to(run_phase):
    """In one graph with the update: the gradient at one call's output is the other's output."""
    network = Policy()
    loss = UsesPlain(network)
    optimizer = nn.Momentum(loss.trainable_params(), 0.01, 0.9)
    train_cell = nn.TrainOneStepCell(loss, optimizer, sens=2.0)
    given = {"optimizer": optimizer, "mode": GRAPH, "task": "tensor", "include": ["^root$"]}
    run = run_phase(network, lambda: train_cell(tensor(2, 2)), openings=2, **given)
    values = records(run)
    for call in range(4):
        gradient = values[f"Cell.root.Policy.backward.{call}.input.0"].array()
        other = values[f"Cell.root.Policy.forward.{call ^ 1}.output.0"].array()
        np.testing.assert_array_equal(gradient, 2 * other)


def jitted_step(loss, optimizer):
    """Return a whole training step under ms.jit: forward, backward, update."""
    gradients_of = ms.value_and_grad(loss, None, optimizer.parameters)

    @ms.jit
    def step(x):
        value, gradients = gradients_of(x)
        optimizer(gradients)
        return value

    return step


def test_a_jitted_step_is_recorded_in_pynative(run_phase):
    """A function under ms.jit that runs forward, backward and update is recorded cell by cell."""
    network = Twice()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step, x = jitted_step(squares(network), optimizer), tensor(2, 2)
    run = run_phase(network, lambda: (step(x), network(x)), optimizer=optimizer)
    names = {entry.name for entry in run.entries()}
    for name in ("forward.3", "backward.1", "parameters_grad.0"):
        assert f"Cell.first.Scale.{name}" in names
    assert not run.manifests[0]["lost"]


class Bent(Assembled, scale=lambda: Parameter(Tensor(np.array([0.5, 1.5], np.float32)))):
    """A parameter with axes, and an argument that callers leave out."""

    def construct(self, x, factor=1.0):
        return ops.tanh(x * self.scale) * factor


@pytest.mark.parametrize("directions", [["forward"], ["forward", "backward"]])
def test_the_parameters_of_a_jitted_step_are_recorded_before_it_changes_them(
    directions, run_phase, monkeypatch
):
    """The update waits for them, however late the host takes them."""
    network = nn.SequentialCell(Bent(), Bent())
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step = jitted_step(squares(network), optimizer)
    opened = GraphCalls.opened

    def opened_late(self, *arguments):
        time.sleep(0.05)
        return opened(self, *arguments)

    monkeypatch.setattr(GraphCalls, "opened", opened_late)
    before = [parameter.asnumpy().copy() for parameter in network.trainable_params()]
    given = {"optimizer": optimizer, "task": "tensor", "directions": directions}
    run = run_phase(network, lambda: step(tensor(2, 2)), **given)
    found = [record.array() for record in records(run).values() if record.io == "parameters"]
    assert len(found) == len(before)
    for value, array, parameter in zip(before, found, network.trainable_params()):
        np.testing.assert_array_equal(array, value)
        assert not (value == parameter.asnumpy()).all()


class Jitted(Assembled, child=Twice):
    """A cell whose construct is compiled in PyNative mode."""

    @ms.jit
    def construct(self, x):
        return self.child(x)


def test_a_jitted_cell_is_recorded_once(run_phase):
    """Its children are recorded where it was compiled, inside the entry that PyNative makes."""
    network = nn.SequentialCell([Scale(), Jitted()])
    run = run_phase(network, lambda: [network(tensor(2, 2)) for _ in range(2)])
    parents = {e.name: e.parent for e in forward(run) if e.cell in ("1", "1.child")}
    assert len([e for e in forward(run) if e.cell in ("1", "1.child")]) == 4
    jitted, child = "Cell.1.Jitted.forward", "Cell.1.child.Twice.forward"
    assert {*parents} == {f"{name}.{n}" for name in (jitted, child) for n in range(2)}
    assert parents[f"{child}.1"] == f"{jitted}.1"


class RunsAgain(Assembled, scale=Scale, norm=lambda: nn.LayerNorm((2,))):
    """A jitted cell in which one with a parameter runs twice, the second time on its own result."""

    @ms.jit
    def construct(self, x):
        return self.scale(self.norm(self.scale(x)))


def test_what_python_differentiates_through_a_jitted_cell_stays_as_it_is(run_phase):
    """With probes of gradients in it MindSpore computed wrong gradients: it has none."""

    def gradients(network):
        def loss(x):
            return (network(x) ** 2).sum()

        _, found = ms.value_and_grad(loss, None, network.trainable_params())(tensor(3, 2))
        return [gradient.asnumpy() for gradient in found]

    plain, network = gradients(RunsAgain()), RunsAgain()

    def body():
        network(tensor(3, 2))  # compiled before, where nothing is differentiated
        for mine, theirs in zip(gradients(network), plain):
            np.testing.assert_array_equal(mine, theirs)

    run = run_phase(network, body)
    names = {entry.name for entry in run.entries()}
    assert "Cell.scale.Scale.forward.3" in names
    assert any(name.startswith("Cell.root.RunsAgain.backward.") for name in names)
    python = {"coverage.gradients_in_python"}
    assert gaps_of(run) == {"scale": python, "norm": python}
    assert not run.manifests[0]["lost"]


class Branch(Assembled, several=lambda: nn.SequentialCell(Scale(), nn.Tanh(), Scale()), one=Scale):
    """Chooses by what it is given, among cells of which the first has several in it."""

    def construct(self, x):
        if x.sum() > 0:  # noqa: SIM108 (a statement of the graph)
            y = self.several(x)
        else:
            y = self.one(x)
        return y


class Branches(Assembled, branch=Branch, head=Scale):
    """Has such a cell in it."""

    def construct(self, x):
        return self.head(self.branch(x))


class JittedBranches(Branches):
    """The same, compiled."""

    @ms.jit
    def construct(self, x):
        return self.head(self.branch(x))


@pytest.mark.parametrize("jitted", ["cell", "function"])
def test_a_branch_that_runs_again_in_the_backward_pass_is_recorded_once(run_phase, jitted):
    """MindSpore computes jitted branches once more where Python differentiates them."""

    def run(kind, compiles):
        network = kind()
        optimizer = nn.SGD(network.trainable_params(), 0.1)

        def scored(x):
            return network(x) + 1.0

        call = ms.jit(scored) if compiles else scored
        step = ms.value_and_grad(lambda x: (call(x) ** 2).sum(), None, optimizer.parameters)
        inputs = (tensor(2, 2), -tensor(2, 2), tensor(2, 2))
        given = {"optimizer": optimizer, "task": "tensor"}
        run = run_phase(network, lambda: [optimizer(step(x)[1]) for x in inputs], **given)
        return run, [parameter.asnumpy().tobytes() for parameter in network.trainable_params()]

    of_cell = jitted == "cell"
    plain, weights = run(Branches, False)
    compiled, same = run(JittedBranches if of_cell else Branches, not of_cell)
    assert same == weights
    assert not compiled.lost
    found = []
    for each in (plain, compiled):
        entries = sorted(each.entries(), key=lambda entry: entry.seq or 0)
        calls = [e for e in entries if e.direction == "forward"]
        assert all(e.end is not None for e in calls)
        names = [(e.cell, e.name.rpartition(".")[2], len(e.records)) for e in calls]
        trained = sorted(e.name for e in entries if e.direction == "parameters_grad")
        assert len({*trained}) == len(trained)
        found.append((names, trained))
    assert found[0] == found[1]


@pytest.mark.parametrize("other_is_watched", [False, True])
def test_a_cell_that_was_jitted_before_is_compiled_with_probes(
    layer_probe, recorded, other_is_watched
):
    """What was compiled before watch(), also while others were, runs where nothing is recorded."""
    network, probe = nn.SequentialCell([Scale(), Jitted()]), layer_probe()
    if other_is_watched:
        probe.watch(reference=Scale())
    expected = network(tensor(2, 2)).asnumpy().tobytes()
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        assert network(tensor(2, 2)).asnumpy().tobytes() == expected
    run = recorded(probe)
    inside = {"1.child", "1.child.first", "1.child.second"}
    assert {entry.cell for entry in run.entries()} == {"root", "0", "1"} | inside
    assert gaps_of(run) == {}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("transform", [ms.vmap, ms.jacrev, ms.jacfwd])
def test_vectorised_calls_run_without_probes(transform, mode, run_phase):
    """MindSpore refuses to vectorise host functions; other calls of the cell are recorded."""
    network, x, found = Scale(), tensor(3, 4), []
    with in_mode(mode):
        plain = transform(Scale())(x).asnumpy()
    body = lambda: found.extend([transform(network)(x), network(x)])  # noqa: E731
    run = run_phase(network, body, mode=mode)
    assert (found[0].asnumpy() == plain).all()
    assert [entry.name for entry in run.entries()] == ["Cell.root.Scale.forward.0"]
    assert gaps_of(run)["root"] == {"coverage.vectorised"}


def test_a_wrapped_cell_looks_like_itself(layer_probe):
    """Its signature, its source and a copy of it are there in PyNative mode."""
    network = Mixed()
    signature = inspect.signature(network.construct)
    layer_probe().watch(actor=network)
    assert inspect.signature(network.construct) == signature
    assert inspect.getsource(network.construct) == inspect.getsource(Mixed.construct)
    x = tensor(3, 4)
    assert (copy.deepcopy(network)(x).asnumpy() == network(x).asnumpy()).all()
    assert not any("construct" in vars(cell) for cell in (Mixed(), Cubed()))


def test_tokens_and_excluded_cells(run_phase):
    """The outermost cell counts tokens, though it is not recorded; call numbers are true."""
    network = Policy()
    given = {"include": ["head"], "token_range_start": 1, "token_range_end": 1, "mode": GRAPH}
    phase = "actor_generate_sequences"
    run = run_phase(
        network, lambda: [network(tensor(2, 2)) for _ in range(3)], phase=phase, **given
    )
    (entry,) = run.entries()
    assert (entry.name, entry.token, entry.parent) == ("Cell.head.Scale.forward.1", 1, None)
    journal = run.path / phase / "step0/rank0/records.jsonl"
    assert list(json.loads(journal.read_text()))[:3] == ["entry", "seq", "end"]


class EchoesAll(Assembled, echo=Echo):
    """Hands each argument to one cell."""

    def construct(self, *values):
        returned = ()
        for value in values:
            returned = (*returned, self.echo(value))
        return returned


def echoed(run_phase, values, **settings):
    """Record a network that echoes values in both modes; return the records of each run."""
    runs = []
    for mode in MODES.values():
        network = EchoesAll()
        body = lambda network=network: network(*values)  # noqa: E731
        runs.append([*records(run_phase(network, body, mode=mode, **settings)).items()])
    return runs


def test_every_dtype_and_shape_reaches_the_host(run_phase):
    """As in PyNative: with axes or without, and without elements."""
    names = "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32"
    dtypes = [getattr(ms, name) for name in f"{names} float64 complex64 complex128".split()]
    values = [Tensor(np.array([[1, 0], [3, 1]]), dtype) for dtype in dtypes]
    values += [Tensor(1, dtype) for dtype in dtypes] + [Tensor(np.zeros((0, 3)), ms.float32)]
    eager, graph = ([(n, r.leaf.to_json()) for n, r in run] for run in echoed(run_phase, values))
    assert eager == graph
    assert len(eager) == 4 * len(values)


def test_sketches_are_those_of_pynative(run_phase):
    """Rows of every dtype have the same sketch, token ids the same elements, in both modes."""
    rows = np.random.default_rng(0).standard_normal((2, 3, 70)).astype(np.float32)
    dtypes = (ms.float32, ms.bfloat16, ms.float16, ms.float64, ms.int32)
    values = [Tensor(rows, dtype) for dtype in dtypes] + [Tensor([[3, 1]], ms.int64)]
    found = []
    for run in echoed(run_phase, values, task="sketch"):
        sketches = {name: r.sketch() for name, r in run if r.leaf.sketch is not None}
        assert len(sketches) == 4 * 4  # int32 may be a mask: its elements are stored
        found.append(
            {name: (s.sums.tobytes(), s.fingerprints.tobytes()) for name, s in sketches.items()}
            | {name: r.array().tolist() for name, r in run if r.leaf.data_name is not None}
        )
    assert found[0] == found[1]
    assert len(found[0]) == 4 * len(values)


class Several(nn.Cell):
    """Takes and returns what a graph hands over in several ways; has two parameters."""

    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(tensor(2, start=1.0), name="weight")
        self.bias = ms.Parameter(tensor(2, start=0.5), name="bias")

    def construct(self, x, nested, *, scale, named):
        out = x * self.weight * scale + self.bias + nested[0]
        return out, {"first": nested[1][0], 'it\'s "2"\\': out.sum()}, [named["a b"], out > 1]


class UsesSeveral(Assembled, several=Several):
    """Calls a cell twice; what it returns the first time is not used."""

    def construct(self, x, empty):
        nested = (x + 1, (empty, 7))
        named = {"a b": x.astype(ms.bfloat16)}
        self.several(x, nested, scale=ops.sum(x), named=named)
        out, _, _ = self.several(x, nested, scale=ops.sum(x), named=named)
        return out.sum()


@pytest.mark.parametrize(
    ("together", "directions"),
    [(400, ["forward"]), *((most, ["forward", "backward"]) for most in (400, 1, 2))],
)
def test_one_host_call_takes_what_a_cell_is_given_and_one_what_it_returns(
    run_phase, monkeypatch, together, directions
):
    """However many tensors go together, the entries are those of PyNative in their order."""
    monkeypatch.setattr("mindrlhf_msprobe.capture.graph.cpu.MOST_TOGETHER", together)
    runs, bits = [], []
    for mode in MODES.values():
        network = UsesSeveral()
        step = ms.value_and_grad(network, None, network.trainable_params())

        def body(step=step):
            loss, gradients = step(tensor(2, start=2.0), Tensor(np.zeros((0, 2)), ms.int8))
            bits.append([x.asnumpy().tolist() for x in (loss, *gradients)])

        runs.append(run_phase(network, body, mode=mode, directions=directions))
    assert bits[0] == bits[1]
    eager, graph = (
        [(e.name, r.name, r.leaf.type, r.leaf.fingerprint) for e in forward(run) for r in e.records]
        for run in runs
    )
    assert eager == graph
    assert len({name for name, *_ in graph}) == 3
    manifest = runs[1].manifests[0]
    assert not manifest["lost"]
    if together == 400 and directions == ["forward"]:
        assert manifest["recording"]["graphs"]["host_functions"]["calls"] == 2 * 3
