"""Gradients in PyNative: right at every border, the training's own numbers left alone."""

import dataclasses
import itertools
from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import read_json, run_python
from helpers.small_networks import (
    MODES,
    Assembled,
    Catches,
    Cubed,
    Decoder,
    Does,
    Hidden,
    Mixed,
    Pair,
    Policy,
    Scale,
    Twice,
    tensor,
)
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.capture.cells import named_cells
from mindrlhf_msprobe.capture.pynative import gradients

PHASE = "actor_update"


TOKENS = Tensor(np.arange(10).reshape(2, 5) * 7 % 11, ms.int32)


def language_loss(network):
    # MindSpore's own cross_entropy is not always the same bits on CPU, even twice in a row.
    return -(ops.log_softmax(network(TOKENS), -1) * tensor(2, 5, 11, start=-1.0)).mean()


@pytest.fixture
def run_update(run_phase):
    """Return a function that differentiates a loss inside one phase and opens the run."""

    def run(network, loss, *inputs, times=1, **settings):
        position = 0 if inputs else None
        gradient = ms.value_and_grad(loss, position, network.trainable_params())
        body = lambda: [gradient(*inputs) for _ in range(times)]  # noqa: E731
        run = run_phase(network, body, **{"strict": True, "task": "tensor", **settings})
        assert not any(parameter.hooks() for parameter in network.get_parameters())
        return run

    return run


def arrays(run, direction="backward"):
    """Return what was recorded in one direction, None where there was no gradient."""
    return {
        record.name: record.array() if record.leaf.is_tensor else None
        for entry in run.entries(phase=PHASE, step=0, rank=0)
        if entry.direction == direction
        for record in entry.records
    }


def reference(network, loss):
    """Return the gradients at each cell's first argument and first result, found another way.

    Each cell is handed a tapped copy of its argument, and its caller one of its result. Unlike the
    probe, that changes the order in which the training adds up.
    """
    found = {}
    calls = defaultdict(int)

    def show(name):
        return lambda gradients: found.__setitem__(name, gradients[0].asnumpy().copy())

    def tapped(value, name):
        if isinstance(value, tuple):
            return (tapped(value[0], name), *value[1:])
        return ops.HookBackward(show(name))(value) if value.is_floating_point() else value

    handles = []
    for name, cell in named_cells(network).items():
        head = f"Cell.{name}.{type(cell).__name__}.backward"

        def before(cell, args, kwargs, head=head):
            first = tapped(args[0], f"{head}.{calls[head]}.output.0")
            calls[head] += 1
            return (first, *args[1:]), kwargs

        def after(cell, args, output, head=head):
            number = calls[head] - 1
            return tapped(output, f"{head}.{number}.input.0")

        if not cell.has_bprop:
            handles.append(cell.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(cell.register_forward_hook(after))
    ms.value_and_grad(loss, None, network.trainable_params())()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("kind", ["plain", "recomputed", "odd"])
def test_gradients_of_every_cell_are_those_found_another_way(run_update, kind):
    network, same = (Mixed(), Mixed()) if kind == "odd" else (Decoder(kind != "plain"), Decoder())

    def loss_of(network):
        if kind == "odd":
            return lambda: (network(tensor(3, 4, start=-0.5), scale=1.25) ** 2).mean()
        return lambda: language_loss(network)

    found, expected = arrays(run_update(network, loss_of(network))), reference(same, loss_of(same))
    assert expected
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, 2e-6, 1e-6, err_msg=name)


def test_recomputing_leaves_the_same_entries_as_not_recomputing(run_update):
    names, values = [], []
    for recomputed in (False, True):
        network = Decoder(recomputed)
        loss = lambda network=network: language_loss(network)  # noqa: E731
        entries = run_update(network, loss, task="statistics").entries(phase=PHASE, step=0, rank=0)
        names.append(sorted((e.name, e.parent) for e in entries))
        values.append({r.name: r.leaf.fingerprint for e in entries for r in e.records})
    assert names[0] == names[1]
    assert values[0] == values[1]


def test_gradients_of_parameters_are_those_the_optimizer_gets(run_update):
    network = Decoder()
    recorded = arrays(run_update(network, lambda: language_loss(network)), "parameters_grad")
    gradient = ms.grad(lambda: language_loss(network), None, network.trainable_params())
    for parameter, value in zip(network.trainable_params(), gradient()):
        cell, _, name = parameter.name.rpartition(".")
        kind = type(named_cells(network)[cell]).__name__
        found = recorded.pop(f"Cell.{cell}.{kind}.parameters_grad.0.{name}")
        assert np.array_equal(found, value.asnumpy()), parameter.name
    assert not recorded


def test_each_accumulation_has_a_number(run_update):
    network = Scale(3.0)
    x = tensor(4, start=1.0)
    run = run_update(network, lambda: (network(x) * network(x)).sum(), times=2)
    grads = arrays(run, "parameters_grad")
    assert list(grads) == [f"Cell.root.Scale.parameters_grad.{n}.factor" for n in (0, 1)]
    expected = 2 * 3.0 * float((x.asnumpy() ** 2).sum())
    assert all(float(value) == pytest.approx(expected, rel=1e-6) for value in grads.values())
    backward = arrays(run)
    for call in range(4):
        arrived = backward[f"Cell.root.Scale.backward.{call}.input.0"]
        np.testing.assert_allclose(arrived, 3.0 * x.asnumpy(), rtol=1e-6)


def test_a_shared_cell_has_a_backward_entry_for_each_call(run_update):
    network = Twice()
    x = tensor(3, start=1.0)
    got = arrays(run_update(network, lambda y: (network(y * 1) * x).sum(), x))
    factor = {f"Cell.first.Scale.backward.{call}": size for call, size in ((0, 6.0), (1, 3.0))}
    for entry, arriving in factor.items():
        np.testing.assert_allclose(got[f"{entry}.input.0"], arriving * x.asnumpy(), rtol=1e-6)
        np.testing.assert_allclose(got[f"{entry}.output.0"], 2 * arriving * x.asnumpy(), rtol=1e-6)


def test_a_custom_bprop_is_recorded_as_it_is(run_update):
    x = tensor(3, start=1.0)
    network = Does(lambda net, x: net.cubed(net.scale(x)), scale=Scale(2.0), cubed=Cubed())
    got = arrays(run_update(network, lambda: (network(x) * x).sum()))
    assert np.array_equal(got["Cell.cubed.Cubed.backward.0.input.0"], x.asnumpy())
    assert np.array_equal(got["Cell.cubed.Cubed.backward.0.output.0"], 5 * x.asnumpy())


@dataclasses.dataclass
class Bundle:
    """A dataclass with everything nested in it."""

    states: Any
    more: Any = None


class Splits(nn.Cell):
    """Returns its input three times over, in whatever `pack` makes of it."""

    def __init__(self, pack):
        super().__init__()
        self.scale = Scale(2.0)
        self.pack = (pack,)

    def construct(self, x, **kwargs):
        x = self.scale(x)
        return self.pack[0](x * 1, x * 10, x * 100)


@pytest.mark.parametrize(
    ("pack", "used", "paths"),
    [
        (lambda a, b, c: (a, b, c), lambda y: y[0] + y[2], ["0", "1", "2"]),
        (lambda a, b, c: [a, [b, (c,)]], lambda y: y[0] + y[1][1][0], ["0.0", "0.1.0", "0.1.1.0"]),
        (
            lambda a, b, c: {"a": a, "in": {"b": b, "c": c}},
            lambda y: y["a"] + y["in"]["c"],
            ["0.a", "0.in.b", "0.in.c"],
        ),
        (
            lambda a, b, c: Bundle(a, {"b": b, "c": [c]}),
            lambda y: y.states + y.more["c"][0],
            ["0.states", "0.more.b", "0.more.c.0"],
        ),
        (
            lambda a, b, c: Hidden(a, Pair(b, c)),
            lambda y: y.states + y.cache.right,
            ["0.states", "0.cache.left", "0.cache.right"],
        ),
    ],
    ids=["tuple", "lists", "dicts", "dataclass", "named tuple"],
)
def test_nested_outputs(run_update, pack, used, paths):
    network = Splits(pack)
    x = tensor(3, start=1.0)
    got = arrays(run_update(network, lambda y: (used(network(y * 1)) * x).sum(), x))
    first, unused, last = (got[f"Cell.root.Splits.backward.0.input.{path}"] for path in paths)
    assert np.array_equal(first, x.asnumpy())
    assert np.array_equal(last, x.asnumpy())
    assert unused is None  # nobody used it: no gradient, not zeros
    leaves = got["Cell.root.Splits.backward.0.output.0"]
    np.testing.assert_allclose(leaves, 2 * 101 * x.asnumpy(), rtol=1e-6)


class Takes(nn.Cell):
    """Arguments of all sorts."""

    def construct(self, x, rest, *args, mask=None, **kwargs):
        y = x * 2 + rest["a"] * 3 + rest["more"][0] * 4 + args[0][1] * 5 + kwargs["bias"].left * 6
        return y if mask is None else y * mask


class Calls(Assembled, takes=Takes, scale=lambda: Scale(1.0)):
    """Calls a cell with nested arguments that all lie in the graph of gradients."""

    def construct(self, x):
        a, b, c, d, e = (self.scale(x * i) for i in range(1, 6))
        whole = Tensor([1, 2, 3], ms.int32)
        rest = {"a": b, "more": [c, None]}
        y = self.takes(a, rest, (7, d), mask=None, bias=Pair(e, whole), text="as is")
        return y + b  # what was handed in is used again


def test_nested_arguments_and_keyword_arguments(run_update):
    x = tensor(3, start=1.0)
    network = Calls()
    got = arrays(run_update(network, lambda: (network(x) * x).sum()))
    entry = "Cell.takes.Takes.backward.0.output"
    factors = {"0": 2, "1.a": 3, "1.more.0": 4, "2.1": 5, "bias.left": 6}
    for path, factor in factors.items():
        np.testing.assert_allclose(got.pop(f"{entry}.{path}"), factor * x.asnumpy(), 1e-6)
    rest = {name: value for name, value in got.items() if name.startswith(entry)}
    assert rest == dict.fromkeys(
        f"{entry}.{path}" for path in ("1.more.1", "2.0", "mask", "bias.right", "text")
    )


def test_a_cell_that_returns_its_input_and_one_that_uses_its_output(run_update):
    def uses(_, x):
        y = x * 2
        return y, y * 10

    inner = Does(
        lambda net, x: sum(net.keeps(net.same(x * 1))), same=nn.Identity(), keeps=Does(uses)
    )
    x = tensor(3, start=1.0)
    network = nn.SequentialCell([inner, Scale(1.0)])
    got = arrays(run_update(network, lambda y: (network(y) * x).sum(), x))
    # What the cell itself does with its output does not arrive from outside.
    assert np.array_equal(got["Cell.0.keeps.Does.backward.0.input.0"], x.asnumpy())
    np.testing.assert_allclose(got["Cell.0.keeps.Does.backward.0.output.0"], 22 * x.asnumpy())
    for io in ("input", "output"):
        gradient = got[f"Cell.0.same.Identity.backward.0.{io}.0"]
        np.testing.assert_allclose(gradient, 22 * x.asnumpy())


def test_a_tensor_given_twice_shows_its_whole_gradient_in_both_places(run_update):
    def once(_, a, b):
        return a * b if a is b else a * b * 0  # the cell sees one object, as without a probe

    def twice(net, x):
        y = net.scale(x)
        return net.product(y, y)

    x = tensor(3, start=1.0)
    network = Does(twice, scale=Scale(1.0), product=Does(once))
    run = run_update(network, lambda: network(x).sum())
    got = arrays(run)
    for place in "01":
        gradient = got[f"Cell.product.Does.backward.0.output.{place}"]
        np.testing.assert_allclose(gradient, 2 * x.asnumpy())
    whole = {r.name for e in run.entries() for r in e.records if r.leaf.whole}
    assert whole == {f"Cell.product.Does.backward.0.output.{place}" for place in "01"}


def test_the_input_of_the_differentiated_function_gets_its_gradient(run_phase):
    network, found = Policy(), []
    x = tensor(3, start=1.0)

    def body():
        found.append(ms.value_and_grad(lambda x: (network(x) * x).sum(), 0)(x)[1])

    got = arrays(run_phase(network, body, strict=True, task="tensor"))
    body()
    assert np.array_equal(found[0].asnumpy(), found[1].asnumpy())
    for entry in ("root.Policy", "backbone.Twice", "backbone.first.Scale"):
        leaves = got[f"Cell.{entry}.backward.0.output.0"]
        np.testing.assert_allclose(leaves, 60 * x.asnumpy(), rtol=1e-6)


def test_bfloat16_keeps_its_dtype(run_update):
    def half(net, x):
        y = (x * 1).astype(ms.bfloat16)
        return (net.double(y) + y).astype(ms.float32)

    network = Does(half, double=Does(lambda _, x: x + x))
    weights = Tensor([1.0, 3.0, 1.5], ms.float32)
    scale = Scale(1.0)
    cells = nn.SequentialCell([scale, network])
    run = run_update(cells, lambda: (cells(tensor(3, start=1.0)) * weights).sum())
    (leaves,) = (
        record
        for entry in run.entries(phase=PHASE, step=0, rank=0)
        for record in entry.records
        if record.name == "Cell.1.double.Does.backward.0.output.0"
    )
    assert leaves.leaf.dtype == "BFloat16"
    assert np.array_equal(leaves.array(), np.float32([2.0, 6.0, 3.0]))


@pytest.mark.parametrize(
    ("direction", "found"),
    [("forward", {"forward"}), ("backward", {"backward", "parameters_grad"})],
)
def test_one_direction_alone(run_update, direction, found):
    network = Twice()
    x = tensor(3, start=1.0)
    run = run_update(network, lambda: network(x).sum(), directions=[direction])
    assert {entry.direction for entry in run.entries(phase=PHASE, step=0, rank=0)} == found


def test_without_gradients_there_are_no_backward_entries_and_no_hooks(watched, recorded):
    probe, network = watched(Policy(), strict=True)
    with probe.phase("actor_compute_log_prob"):
        network(tensor(3))
        assert not any(parameter.hooks() for parameter in network.get_parameters())
    entries = recorded(probe).entries(phase="actor_compute_log_prob", step=0, rank=0)
    assert {entry.direction for entry in entries} == {"forward"}


def test_gradients_computed_after_the_phase_are_left_alone(watched, recorded):
    probe, network = watched(Policy(), strict=True)

    def loss(x):
        with probe.phase(PHASE):
            y = network(x)
        return y.sum()

    x = tensor(3, start=1.0)
    gradient = ms.grad(loss, 0)(x)
    assert np.array_equal(gradient.asnumpy(), np.full(3, 60, np.float32))
    entries = recorded(probe).entries(phase=PHASE, step=0, rank=0)
    assert {entry.direction for entry in entries} == {"forward"}


#: Fields of the journal, of dump.json and of a leaf, and the field that holds the gradients.
FIELDS = ["entry", "seq", "end", "token", "opening", "stack", "frames", "input_args", "output"]
FIELDS += ["parameters_grad", "type", "shape", "max", "data_name", "error", "frames_"]


class Named(nn.Cell):
    """Parameters called like fields of the files, each used with a factor of its own."""

    def __init__(self):
        super().__init__()
        for number, name in enumerate(FIELDS):
            self.insert_param_to_cell(name, Parameter(tensor(2, start=number), name=name))

    def construct(self, x):
        y = self.entry * x + self.seq * x * 2 + self.end * x * 3 + self.token * x * 4
        y = y + self.opening * x * 5 + self.stack * x * 6 + self.frames * x * 7
        y = y + self.input_args * x * 8 + self.output * x * 9 + self.parameters_grad * x * 10
        y = y + self.type * x * 11 + self.shape * x * 12 + self.max * x * 13
        return y + self.data_name * x * 14 + self.error * x * 15 + self.frames_ * x * 16


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_parameters_are_recorded_whatever_they_are_called(run_phase, mode):
    """Each gradient stands under its parameter's name, in the journal and in dump.json."""
    network = Named()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    x = tensor(2, start=1.0)

    def loss():
        return network(x).sum()

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    given = {"optimizer": optimizer, "mode": mode, "strict": True}
    run = run_phase(network, lambda: optimizer(step()[1]), **given)
    expected = {
        f"Cell.root.Named.parameters_grad.0.{name}": (x.asnumpy() * np.float32(n)).max()
        for n, name in enumerate(FIELDS, 1)
    }
    place = run.path / PHASE / "step0/rank0"
    dump = read_json(place / "dump.json")
    assert set(dump["data"]["Cell.root.Named.parameters_grad.0"]) == set(FIELDS)
    for journal in (True, False):
        if not journal:
            (place / "records.jsonl").unlink()
        entries = open_run(run.path).entries(PHASE)
        (entry,) = [e for e in entries if e.direction == "parameters_grad"]
        assert {r.name: np.float32(r.leaf.max) for r in entry.records} == expected


def test_a_fault_in_a_gradient_never_reaches_the_training(run_phase, monkeypatch):
    network, found = Twice(), []
    x = tensor(3, start=1.0)

    def broken(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(gradients.CallGradients, "_write", broken)
    run = run_phase(network, lambda: found.append(ms.grad(lambda x: network(x * 1).sum(), 0)(x)))
    assert np.array_equal(found[0].asnumpy(), np.full(3, 12, np.float32))
    assert "a gradient: MemoryError" in run.manifests[0]["lost"]


def test_a_tensor_that_the_model_keeps_gets_no_more_taps_after_a_while(run_phase, monkeypatch):
    class Keeps(nn.Cell):
        def __init__(self):
            super().__init__()
            self.product, self.scale = Does(lambda _, x, table: x * table), Scale(2.0)
            self.table = None

        def construct(self, x):
            if self.table is None:
                self.table = ops.cos(x)
            return self.product(self.scale(x), self.table)

    taps, counts = [], []
    tapped = gradients._tapped
    monkeypatch.setattr(gradients, "_tapped", lambda *args: taps.append(args) or tapped(*args))
    network = Keeps()
    step = ms.value_and_grad(lambda x: network(x).sum(), 0, network.trainable_params())

    def body():
        taps.clear()
        step(tensor(3, start=1.0))
        counts.append(sum(tensor is network.table for tensor, *_ in taps))

    run_phase(network, body, steps=20, strict=True, step_end=99)
    assert counts[0] == 2
    assert counts[-1] == 0


def test_gradients_are_looked_at_together_when_they_are_computed(run_phase, monkeypatch):
    """Looking waits for all that is queued: it is done once a pass, before anyone else can look."""
    moments = []
    write = gradients.CallGradients._write

    def noted(self, *args):
        moments.append("looked")
        write(self, *args)

    monkeypatch.setattr(gradients.CallGradients, "_write", noted)
    network = Twice()
    step = ms.value_and_grad(lambda: network(tensor(3)).sum(), None, network.trainable_params())
    body = lambda: [(step(), moments.append("computed")) for _ in range(2)]  # noqa: E731
    run_phase(network, body, strict=True)
    half = moments.index("computed")
    assert moments[:half] == ["looked"] * half
    assert half > 4
    assert moments == moments[: half + 1] * 2


@pytest.mark.parametrize(
    ("network", "x", "most"), [(Twice, tensor(400, 400), 3), (Mixed, tensor(3, 4), 0)]
)
def test_gradients_that_wait_are_bounded(run_phase, monkeypatch, network, x, most):
    """More bytes than the buffer holds are looked at while the pass is still running.

    Where a bprop of the model, as Mixed has one, could change them, none waits.
    """
    settled = []
    settle = gradients.Backlog.settle

    def noted(backlog):
        settled.append(len(backlog._waiting))
        settle(backlog)

    monkeypatch.setattr(gradients.Backlog, "settle", noted)
    cell = network()
    body = lambda: ms.grad(lambda x: cell(x * 1).sum(), 0)(x)  # noqa: E731
    run_phase(cell, body, strict=True, buffer_mb=1)
    assert max(settled) <= most  # of 640 kB each


def test_mindspore_has_its_own_function_back_after_a_phase(watched):
    from mindspore.common.api import _pynative_executor

    probe, _ = watched(Twice(), strict=True)
    with probe.phase(PHASE):
        assert "grad" in vars(_pynative_executor)
    assert "grad" not in vars(_pynative_executor)


def test_a_hook_that_mindspore_no_longer_removes_is_used_again(run_phase):
    """After a backward pass that failed, its handles do nothing; no gradient is counted twice."""

    class Fails(nn.Cell):
        armed = False

        def construct(self, x):
            return x * 1

        def bprop(self, x, out, dout):
            if self.armed:
                raise ArithmeticError("raised in the backward pass")
            return (dout * 1,)

    network = nn.SequentialCell([Scale(2.0), Fails(), Scale(3.0)])
    step = ms.value_and_grad(lambda: network(tensor(3)).sum(), None, network.trainable_params())
    numbers = itertools.count()

    def body():
        network[1].armed = next(numbers) == 1
        with pytest.raises(Exception, match=r".") if network[1].armed else nullcontext():
            step()

    run = run_phase(network, body, steps=4, strict=True)
    names = [
        [e.name for e in run.entries(phase=PHASE, step=number) if e.direction == "parameters_grad"]
        for number in (0, 2, 3)
    ]
    assert names[0] == names[1] == names[2]
    assert len(names[0]) == 2


def test_a_cell_that_raised_has_no_gradients(run_update):
    network = Catches()
    x = tensor(3, start=1.0)
    got = arrays(run_update(network, lambda y: (network(y * 1) * x).sum(), x))
    assert not any("breaks" in name for name in got)
    assert np.array_equal(got["Cell.follows.Scale.backward.0.input.0"], x.asnumpy())


def test_an_overflow_beside_a_cell_is_not_blamed_on_it(run_update):
    """inf - inf is no gradient of the cell: nothing is known of what left it."""

    def beside(net, x):
        x = net.scale(x)
        return net.inner(x) + x * 3e38 * 1e38

    network = Does(beside, inner=Scale(2.0), scale=Scale(1.0))
    run = run_update(network, lambda: network(tensor(3, start=1.0)).sum())
    got = arrays(run)
    assert np.array_equal(got["Cell.inner.Scale.backward.0.input.0"], np.ones(3, np.float32))
    assert got["Cell.inner.Scale.backward.0.output.0"] is None
    unknown = [r.name for e in run.entries() for r in e.records if r.leaf.opaque]
    assert unknown == ["Cell.inner.Scale.backward.0.output.0"]  # not the same as no gradient


def test_second_order_gradients_train_as_without_the_probe(run_phase):
    network, found = Policy(), []

    def penalty(x):
        return (ms.grad(lambda y: (network(y) ** 2).sum())(x) ** 2).sum()

    body = lambda: found.append(ms.grad(penalty)(tensor(3, start=1.0)).asnumpy())  # noqa: E731
    body()
    lost = run_phase(network, body).manifests[0]["lost"]
    assert np.array_equal(*found)
    assert list(lost) == ["second-order gradients: NotImplementedError"]


#: A process of its own: after a differentiated function that raised, MindSpore itself takes what
#: follows for a second differentiation until the process ends.
_RAISED = """
import numpy as np, pytest, mindspore as ms
from helpers.small_networks import Policy, tensor
from mindrlhf_msprobe import Probe

network = Policy()
x = tensor(3, start=1.0)


def loss(x):
    return (network(x) ** 2).sum()


def raising(x):
    raise ValueError(f"a bad batch: {loss(x).shape}")


def both():
    for bad in (raising, ms.grad(raising)):
        with pytest.raises(ValueError, match="a bad batch"):
            ms.grad(bad)(x)
    return [ms.grad(loss)(x).asnumpy() for _ in range(2)]


plain = both()
given = {"msprobe": True, "actor_train_dump": True, "dump_path": "run"}
with Probe.from_config(given) as probe:
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        found = both()
assert np.array_equal(found, plain)
"""


def test_gradients_are_recorded_after_one_that_raised(tmp_path):
    """A trainer that skips a batch whose loss raised: what follows in the phase is first order."""
    ended = run_python(_RAISED, tmp_path)
    assert ended.returncode == 0, ended.stderr
    entries = open_run(tmp_path / "run").entries()
    root = [e.name for e in entries if e.name.startswith("Cell.root.Policy.backward")]
    assert len(root) == 2, root
