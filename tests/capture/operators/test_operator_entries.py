"""Operators as entries: what they were given and returned, where, and nothing else."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from helpers.programs import run_python
from helpers.small_networks import Assembled, Does, Scale, tensor
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import comm_func
from mindspore.ops import softmax as imported_softmax

from mindrlhf_msprobe.capture.opening.opening import HostEntries
from mindrlhf_msprobe.capture.operators import interception
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.storage.operators import parse_operator

PHASE = "actor_update"


class Inner(Assembled, weight=lambda: Parameter(tensor(3, 3, start=0.5), name="weight")):
    """A product and a sum."""

    def construct(self, x):
        return mint.matmul(x, self.weight) + 1


class Net(Assembled, first=Inner, second=Inner, softmax=ops.Softmax):
    """Two cells with operators between them."""

    def construct(self, x):
        return self.second(mint.exp(self.softmax(self.first(x)))).sum()


@pytest.fixture
def run_of(run_phase):
    """Return a function that runs another one in a phase, at level mix, and opens the run."""

    def run(call: Callable[[], Any], network: nn.Cell | None = None, **settings: Any):
        own = {"level": "mix", "strict": True, "task": "tensor"}
        network = Scale() if network is None else network
        run = run_phase(network, call, **{**own, **settings})
        assert not interception._PATCHES.are_on
        return run

    return run


@pytest.fixture
def record(run_of):
    """Return a function that does so, and returns the entries by their names."""

    def run(call: Callable[[], Any], network: nn.Cell | None = None, **settings: Any):
        return {entry.name: entry for entry in run_of(call, network, **settings).entries()}

    return run


def names_at(run, step=0):
    return [entry.name for entry in run.entries(phase=PHASE, step=step, rank=0)]


def values(entry, io) -> list[Any]:
    """Return the values of an entry in order: elements of tensors, scalars, types of others."""
    return [
        record.array()
        if record.leaf.is_tensor
        else record.leaf.type
        if record.leaf.opaque
        else record.leaf.value
        for record in entry.records
        if record.io == io
    ]


def same(found, expected) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        other = other.asnumpy() if isinstance(other, Tensor) else other
        assert np.array_equal(one, other), (one, other)


X, Y = tensor(3, 3, start=0.25), tensor(3, 3, start=1.25)
N = X.asnumpy()

#: Calls, what the operator is called, what it is given, and what it returns; N: the numbers of X.
CALLS = [
    (lambda: mint.add(X, X, alpha=2), "Mint.add", [X, X, 2], [N * np.float32(3)]),
    (lambda: mint.max(X, dim=-1), "Mint.max", [X, -1], [N.max(-1), N.argmax(-1)]),
    (
        lambda: mint.clamp(X, None, 0.5),
        "Mint.clamp",
        [X, None, 0.5],
        [np.minimum(N, np.float32(0.5))],
    ),
    (
        lambda: ops.l1_loss(X, Y, reduction="sum"),
        "Functional.l1_loss",
        [X, Y, "sum"],
        [np.float32(9)],
    ),
    (lambda: ops.cast(X, ms.float16), "Functional.cast", [X, "Float16"], [N.astype(np.float16)]),
    (
        lambda: X[1:, ..., None],
        "Tensor.__getitem__",
        [X, [1, None, None], "...", None],
        [N[1:, :, None]],
    ),
    (lambda: 2.5 - X, "Tensor.__rsub__", [X, 2.5], [np.float32(2.5) - N]),
    (lambda: mint.cat([X, X], 0), "Mint.cat", [X, X, 0], [np.concatenate([N, N])]),
    (lambda: imported_softmax(X, axis=0), "Functional.softmax", [X, 0], [ops.softmax(X, axis=0)]),
    (
        lambda: ops.ReduceSum(True)(X, 1),
        "Primitive.ReduceSum.ReduceSum",
        [X, 1],
        [N.sum(1, keepdims=True)],
    ),
]


@pytest.mark.parametrize(
    ("call", "name", "given", "returned"), CALLS, ids=[name for _, name, *_ in CALLS]
)
def test_an_operators_entry_has_what_it_was_given_and_returned(record, call, name, given, returned):
    """Values are those of an independent call, arguments of any kind are told."""
    entries = record(call)
    assert [*entries] == [f"{name}.0.forward"]
    entry = entries[f"{name}.0.forward"]
    same(values(entry, "input"), given)
    found = values(entry, "output")
    assert len(found) == len(returned)
    for one, other in zip(found, returned):
        other = other.asnumpy() if isinstance(other, Tensor) else other
        assert np.allclose(one, other, rtol=1e-6, atol=0)
        assert np.asarray(one).dtype == np.asarray(other).dtype or name == "Mint.max"
    assert (entry.around, entry.parent) == ("", None)
    assert "test_operator_entries.py" in entry.stack[0]


def test_operators_stand_in_the_cells_that_call_them(record):
    """Parent, cell, place in time, numbers; the primitive is called as its cell calls it."""
    network = Net()
    entries = record(lambda: (network(X), mint.exp(X)), network)
    forward = {n: e for n, e in entries.items() if parse_operator(n)}
    assert {n: (e.around, e.parent) for n, e in forward.items()} == {
        "Mint.matmul.0.forward": ("first", "Cell.first.Inner.forward.0"),
        "Tensor.__add__.0.forward": ("first", "Cell.first.Inner.forward.0"),
        "Primitive.softmax.Softmax.0.forward": ("root", "Cell.root.Net.forward.0"),
        "Mint.exp.0.forward": ("root", "Cell.root.Net.forward.0"),
        "Mint.matmul.1.forward": ("second", "Cell.second.Inner.forward.0"),
        "Tensor.__add__.1.forward": ("second", "Cell.second.Inner.forward.0"),
        "Tensor.sum.0.forward": ("root", "Cell.root.Net.forward.0"),
        "Mint.exp.1.forward": ("", None),
    }
    for entry in forward.values():
        around = entries.get(entry.parent)
        assert around is None or around.seq < entry.seq < entry.end < around.end


def test_a_primitives_entry_says_what_it_was_made_with(record):
    """Plain values alone; as they are now, where they were set since; nothing for other calls."""
    product = ops.BatchMatMul(transpose_b=True)
    changed = ops.MatMul()
    changed.transpose_b = True
    pooled = ops.AvgPool(kernel_size=(2, 1), pad_mode="same")
    images = tensor(1, 1, 4, 4)

    def call():
        product(X[None], X[None])
        changed(X, X)
        pooled(images)
        mint.exp(X)

    found = {n: e.attributes for n, e in record(call, level="L1").items()}
    assert found["Primitive.BatchMatMul.BatchMatMul.0.forward"] == {
        "transpose_a": False,
        "transpose_b": True,
    }
    assert found["Primitive.MatMul.MatMul.0.forward"]["transpose_b"] is True
    pool = found["Primitive.AvgPool.AvgPool.0.forward"]
    assert (pool["kernel_size"], pool["pad_mode"]) == ([2, 1], "same")
    assert found["Mint.exp.0.forward"] is None


def test_attributes_are_shown_and_are_not_in_msprobes_files(record, tmp_path, capsys):
    """`show RUN ENTRY` says them, of the backward entry as well; dump.json stays as it is."""
    product = ops.BatchMatMul(transpose_b=True)
    record(lambda: ms.grad(lambda x: product(x, x).sum())(X[None]))
    run = tmp_path / "run"
    for direction in ("forward", "backward"):
        entry = f"Primitive.BatchMatMul.BatchMatMul.0.{direction}"
        assert main(["show", str(run), entry, "--lang", "en"]) == 0
        assert "attributes: transpose_a=False, transpose_b=True" in capsys.readouterr().out
    dump = next(run.rglob("dump.json")).read_text(encoding="utf-8")
    assert "transpose_b" not in dump


def test_only_operators_of_chosen_cells_are_recorded(record):
    """`include` and `exclude` ask for the cell around them; "^$" is outside every cell."""
    network = Net()

    def call():
        network(X)
        mint.exp(X)

    def around(**settings):
        entries = record(call, network, **settings)
        return sorted({e.around for n, e in entries.items() if parse_operator(n)})

    assert around(include=["second"]) == ["second"]
    assert around(exclude=["second"]) == ["", "first", "root"]
    assert around(include=["^$"]) == [""]
    assert around(include=["^$", "first"]) == ["", "first"]
    assert around(include=["root"]) == ["root"]
    assert around(level="L0") == []


def test_entries_narrows_operators(record):
    """As msprobe's `list`: the names of entries that hold one of the texts."""
    network = Net()
    entries = record(lambda: network(X), network, entries=["Mint.matmul"])
    assert [*entries] == ["Mint.matmul.0.forward", "Mint.matmul.1.forward"]


def test_at_level_l1_cells_and_their_parameters_are_no_entries(record):
    """The cell around an operator is known all the same."""
    network = Net()
    gradient = ms.value_and_grad(network, None, network.trainable_params())
    entries = record(lambda: gradient(X), network, level="L1")
    assert all(parse_operator(name) for name in entries)
    assert entries["Mint.matmul.1.backward"].around == "second"
    assert entries["Mint.matmul.1.forward"].parent is None


def test_the_files_for_msprobe_say_their_level(run_of):
    """dump.json names level and entries, stack.json their stacks, construct.json their parents."""
    network = Net()
    directory = run_of(lambda: network(X), network).path / PHASE / "step0" / "rank0"
    dump, stack, construct = (
        json.loads((directory / f"{name}.json").read_text())
        for name in ("dump", "stack", "construct")
    )
    assert dump["level"] == "mix"
    entry = dump["data"]["Mint.matmul.1.forward"]
    assert [*entry] == ["input_args", "input_kwargs", "output"]
    assert construct["Mint.matmul.1.forward"] == "Cell.second.Inner.forward.0"
    assert any("Mint.matmul.1.forward" in names for names, _ in stack.values())


def test_gradients_arrive_at_operators_and_leave_them(record):
    """Backward entries hold what autograd hands on, each input by itself."""
    network = Scale(3.0)

    def loss(x):
        y = network(x)
        z = mint.exp(y)
        return mint.mul(z, y).sum()

    entries = record(lambda: ms.value_and_grad(loss, 0)(X), network)
    y = 3 * X.asnumpy().astype(np.float64)
    z = np.exp(y)
    product = entries["Mint.mul.0.backward"]
    arrives, first, second = (*values(product, "input"), *values(product, "output"))
    assert np.array_equal(arrives, np.ones((3, 3), np.float32))
    assert np.allclose(first, y, rtol=1e-6)
    assert np.allclose(second, z, rtol=1e-5)
    exp = entries["Mint.exp.0.backward"]
    assert np.allclose(values(exp, "input")[0], y, rtol=1e-6)
    assert np.allclose(values(exp, "output")[0], y * z, rtol=1e-5)
    scale = entries["Tensor.__mul__.0.backward"]
    assert (scale.around, scale.parent) == ("root", "Cell.root.Scale.backward.0")
    assert np.allclose(values(scale, "input")[0], z + y * z, rtol=1e-5)


class Shared(nn.Cell):
    """A parameter that several operators use, one of them twice."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(tensor(3, 3, start=0.7), name="weight")
        self.count = Parameter(tensor(3, start=0.0), name="count", requires_grad=False)

    def construct(self, x):
        for _ in range(3):
            x = mint.tanh(mint.matmul(x, self.weight)) + self.weight + self.count
            x = x + mint.mul(self.weight, self.weight).mean() + mint.cat([x, self.weight]).mean()
        return x.sum()


def test_the_gradient_of_a_parameter_that_an_operator_is_given(record):
    """It is that of this one use, and the sums of the training are those without recording."""
    network = Shared()
    grad = ms.value_and_grad(network, 0, network.trainable_params())
    plain = grad(X)
    found: list[Any] = []
    entries = record(lambda: found.append(grad(X)), network, level="L1")
    assert np.array_equal(found[0][1][1][0].asnumpy(), plain[1][1][0].asnumpy())
    given = values(entries["Mint.matmul.2.forward"], "input")[0]
    product = entries["Mint.matmul.2.backward"]
    (arrives,) = values(product, "input")
    assert np.allclose(values(product, "output")[1], given.T @ arrives, rtol=1e-5)
    assert [r.leaf.type for r in entries["Mint.mul.0.backward"].records][1:] == ["NoneType"] * 2


def test_an_operator_that_changes_its_argument_shows_it_before_and_after(record):
    """In-place operators; also where they return nothing."""
    x, y = tensor(3, 3), tensor(3, 3)

    def call():
        x.add_(2)
        y[0] = 7.0

    entries = record(call)
    added, put = entries["Tensor.add_.0.forward"], entries["Tensor.__setitem__.0.forward"]
    before = tensor(3, 3).asnumpy()
    same(values(added, "input"), [before, 2])
    same(values(added, "output"), [before + 2])
    after = before.copy()
    after[0] = 7
    same(values(put, "input"), [before, 0, 7.0])
    same(values(put, "output"), [after])
    assert np.array_equal(y.asnumpy(), after)


def test_the_gradient_of_an_operator_in_place(record):
    """What arrives is behind the change, what leaves before it."""
    network = Scale(2.0)

    def loss(x):
        y = network(x)
        y[0] = y[1] * 5
        return (y * y).sum()

    plain = ms.value_and_grad(loss, 0)(X)
    found: list[Any] = []
    entries = record(lambda: found.append(ms.value_and_grad(loss, 0)(X)), network)
    assert np.array_equal(found[0][1].asnumpy(), plain[1].asnumpy())
    put = entries["Tensor.__setitem__.0.backward"]
    y = 2 * X.asnumpy()
    y[0] = y[1] * 5
    assert np.allclose(values(put, "input")[0], 2 * y, rtol=1e-6)
    leaves = 2 * y
    leaves[0] = 0
    assert np.allclose(values(put, "output")[0], leaves, rtol=1e-6)


def test_random_operators_draw_what_they_would_draw(record):
    """The state of the generator is not touched."""

    def draw():
        ms.set_seed(3)
        return ops.dropout(X, 0.5), ops.rand(2, 2), ops.standard_normal((2,))

    plain, found = draw(), []
    entries = record(lambda: found.extend(draw()))
    for one, other in zip(found, plain):
        assert np.array_equal(one.asnumpy(), other.asnumpy())
    assert {parse_operator(name).operator for name in entries} == {
        *("Functional.dropout", "Functional.rand", "Functional.standard_normal")
    }


def test_an_operator_that_raises_has_no_end_and_what_follows_is_recorded(record):
    """Caught by the trainer; also inside a cell that raised with it."""

    network = Does(lambda _, x: mint.add(x, "a text"))

    def call():
        for attempt in (lambda: network(X), lambda: mint.add(X, "a text")):
            with pytest.raises(Exception, match=r".+"):
                attempt()
        mint.exp(X)

    entries = record(call, network)
    inside, outside = entries["Mint.add.0.forward"], entries["Mint.add.1.forward"]
    assert (inside.end, values(inside, "output")) == (None, [])
    assert (inside.around, outside.around) == ("root", "")
    assert (entries["Mint.exp.0.forward"].around, outside.end) == ("", None)


def test_operators_of_every_thread_are_recorded_in_the_cells_of_their_thread(record):
    """Two threads run two cells at once."""
    network = Net()
    inside = threading.Barrier(2, timeout=60)

    class Waits(Inner):
        def construct(self, x):
            inside.wait()
            found = mint.exp(x) if self.weight.name == "a" else mint.log(x)
            inside.wait()
            return found

    network.first, network.second = Waits(), Waits()
    network.first.weight.name, network.second.weight.name = "a", "b"

    def call():
        threads = [
            threading.Thread(target=cell, args=(tensor(3, start=1.0),))
            for cell in (network.first, network.second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    entries = record(call, network)
    assert entries["Mint.exp.0.forward"].around == "first"
    assert entries["Mint.log.0.forward"].around == "second"


def test_a_recomputed_cell_calls_its_operators_once(record):
    """The second run, for the gradients, is no call; its gradients belong to the first."""

    def entries_of(inner):
        network = Does(lambda net, x: net.inner(x).sum(), inner=inner)
        gradient = ms.value_and_grad(network, 0, network.trainable_params())
        return record(lambda: gradient(X), network)

    recomputed = Inner()
    recomputed.recompute()
    entries, expected = entries_of(recomputed), entries_of(Inner())
    names = {name for name in entries if parse_operator(name)}
    assert names == {name for name in expected if parse_operator(name)}
    assert "Mint.matmul.0.backward" in names
    for name in names:
        for one, other in zip(entries[name].records, expected[name].records):
            assert one.leaf.fingerprint == other.leaf.fingerprint, one.name


def test_communication_is_recorded_also_where_it_fails(record):
    """No other rank is there; the trainer gets MindSpore's own error."""

    def call():
        with pytest.raises(Exception, match=r".+"):
            comm_func.all_reduce(X)

    entries = record(call)
    assert [*entries] == ["Distributed.all_reduce.0.forward"]
    same(values(entries["Distributed.all_reduce.0.forward"], "input")[:1], [X])


def test_what_is_compiled_meanwhile_is_no_entry_and_computes_the_same(record):
    """`ms.jit` and MindSpore's optimizers see the originals."""

    @ms.jit
    def compiled(x):
        return mint.add(ops.softmax(x), 1)

    plain = compiled(X).asnumpy()
    weight = Parameter(tensor(3), name="w")
    optimizer = nn.Adam([weight], learning_rate=0.1)
    found = []
    entries = record(
        lambda: (found.append(compiled(X)), optimizer((tensor(3, start=1.0),)), mint.exp(X))
    )
    assert [*entries] == ["Mint.exp.0.forward"]
    assert np.array_equal(found[0].asnumpy(), plain)


def test_the_output_that_is_the_next_ones_input_is_summarised_once(record, monkeypatch):
    """As between cells: statistics are computed once for each tensor."""
    from mindrlhf_msprobe.capture.tensors import summary

    computed = []
    statistics_of = summary.statistics_of
    monkeypatch.setattr(
        summary, "statistics_of", lambda *a, **k: (computed.append(1), statistics_of(*a, **k))[1]
    )
    x = tensor(5, 7, start=3.0)
    entries = record(lambda: mint.exp(mint.log(mint.sqrt(x))), task="statistics")
    tensors = [r for e in entries.values() for r in e.records if r.leaf.is_tensor]
    assert (len(tensors), len(computed)) == (6, 4)


def test_a_fault_in_recording_is_counted_and_the_training_goes_on(run_of, monkeypatch):
    """What cannot be described is lost; the operator returns what it would."""

    def fails(*_):
        raise RuntimeError("on purpose")

    found = []

    def call():
        mint.exp(X)
        with monkeypatch.context() as patched:
            patched.setattr(HostEntries, "append", fails)
            found.append(mint.exp(X))
        mint.exp(X)

    run = run_of(call, level="L1", strict=False)
    assert np.array_equal(found[0].asnumpy(), mint.exp(X).asnumpy())
    assert names_at(run) == ["Mint.exp.0.forward", "Mint.exp.2.forward"]
    assert "operator" in json.dumps(json.loads((run.path / "run.json").read_text())["lost"])


def test_tokens_limit_operators_and_their_numbers_stay(record):
    """A number is that of the call, whatever tokens are recorded."""
    network = Net()
    every, last = (
        record(
            lambda: [network(X) for _ in range(4)],
            network,
            phase="actor_generate_sequences",
            token_range_start=first,
            token_range_end=2,
        )
        for first in (0, 2)
    )
    found = {name: entry.token for name, entry in last.items()}
    assert found == {name: entry.token for name, entry in every.items() if entry.token == 2}
    assert found["Mint.matmul.4.forward"] == 2


def test_a_phase_without_a_network_records_operators(layer_probe, recorded, tmp_path, caplog):
    """What is computed outside every network, with none watched; not at level L0."""
    probe = layer_probe(level="mix", task="tensor")
    for _ in range(2):
        with probe.phase(PHASE):
            ms.value_and_grad(lambda x: mint.exp(x * 2).sum(), 0)(X)
        probe.step()
    run = recorded(probe)
    entries = {entry.name: entry for entry in run.entries(phase=PHASE, step=1, rank=0)}
    assert {"Mint.exp.0.forward", "Mint.exp.0.backward"} <= entries.keys()
    assert entries["Mint.exp.0.forward"].around == ""
    assert caplog.text.count("no network is watched") == 1
    assert "no cell of the" not in caplog.text
    assert run.manifests[0]["seeds"]


def test_a_primitive_that_is_defined_after_the_first_phase_is_recorded(watched, recorded):
    """With a call of its own; outside phases that is what it was."""
    probe, network = watched(Net(), level="L1", strict=True)
    for _ in range(2):
        with probe.phase(PHASE):
            network(X)
        probe.step()

        class Doubled(ops.Softmax):
            def __call__(self, x):
                return super().__call__(x) * 2

        own = Doubled.__call__
        network.softmax = Doubled()
    assert vars(Doubled)["__call__"] is own
    with probe.phase(PHASE):
        output = network(X)
        assert vars(Doubled)["__call__"] is not own
    probe.step()
    assert vars(Doubled)["__call__"] is own
    assert np.array_equal(output.asnumpy(), network(X).asnumpy())
    run = recorded(probe)
    names = {entry.name for entry in run.entries(phase=PHASE, step=2, rank=0)}
    assert names >= {"Primitive.softmax.Softmax.0.forward"}


def test_what_stands_in_the_place_of_an_operator_is_named(run_of, monkeypatch, caplog):
    """Functions, methods and primitives that are not MindSpore's, by what they are."""

    @functools.wraps(mint.nn.functional.softmax)
    def softmax(x, *args, **kwargs):
        return x * 2

    def doubled(self, *args):
        return args[0] * 2

    monkeypatch.setattr(mint.nn.functional, "softmax", softmax)
    monkeypatch.setattr(ops.Softmax, "__call__", doubled)
    network = Net()
    run = run_of(lambda: mint.nn.functional.softmax(network(X)), network, steps=2)
    expected = {"MintFunctional.softmax.0.forward", "Primitive.softmax.Softmax.0.forward"}
    assert expected <= {*names_at(run, 1)}
    said = run.manifests[0]["coverage"]["operators"]
    by = {name: why["params"]["by"] for name, why in said.items()}
    assert by.keys() == {"MintFunctional.softmax", "Primitive.Softmax"}
    assert by["MintFunctional.softmax"].endswith("is_named.<locals>.softmax")
    assert by["Primitive.Softmax"].startswith("test_operator_entries.")
    assert caplog.text.count("not MindSpore's own") == 1


def test_off_means_off(tmp_path):
    """Level L0 replaces nothing, and does not even look for operators."""
    program = (
        "import sys, mindspore as ms\n"
        "from mindspore import nn, mint\n"
        "from mindrlhf_msprobe import Probe\n"
        "ms.set_device('CPU')\n"
        "net, add = nn.Dense(2, 2), mint.add\n"
        "probe = Probe.from_config({'msprobe': True, 'actor_train_dump': True})\n"
        "probe.watch(actor=net)\n"
        "with probe.phase('actor_update'):\n"
        "    net(ms.Tensor([[1.0, 2.0]])); assert mint.add is add\n"
        "probe.close()\n"
        "print([m for m in sys.modules if '.capture.operators.' in m])\n"
    )
    done = run_python(program, tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_operators_of_a_graph_are_coverage(run_of):
    """Its cells are recorded; of their operators run.json says why there are none."""
    network = Net()
    run = run_of(lambda: network(X), network, mode=ms.GRAPH_MODE, task="statistics")
    names = names_at(run)
    assert [name for name in names if parse_operator(name)] == []
    assert "Cell.first.Inner.forward.0" in names
    gaps = run.manifests[0]["coverage"]["graph_mode"]["actor"]
    assert "coverage.operators_in_graph" in json.dumps(gaps["first"])


def test_where_operators_cannot_be_reached_cells_are_recorded(run_of, monkeypatch):
    """It is counted as lost, and nothing of MindSpore stays replaced."""
    mint.exp(X)
    with interception.intercepted(lambda operator, original, args, kwargs: None):
        pass  # finds all places
    before = {name: vars(Tensor).get(name) for name in ("__add__", "matmul", "softmax")}
    puts = interception._Place.put_on
    left = iter(range(900))

    def put_on(place):
        if next(left, None) is None:
            raise RuntimeError("on purpose")
        puts(place)

    monkeypatch.setattr(interception._Place, "put_on", put_on)
    network = Net()
    run = run_of(lambda: network(X), network, strict=False)
    names = names_at(run)
    assert "Cell.first.Inner.forward.0" in names
    assert not any(map(parse_operator, names))
    assert {name: vars(Tensor).get(name) for name in before} == before
    assert [*run.manifests[0]["lost"]] == ["the operators of a phase: RuntimeError"]


def test_phases_that_are_open_together_have_the_operators_of_their_networks(layer_probe, recorded):
    """Those outside every cell belong to both."""
    actor, critic = Net(), Inner()
    probe = layer_probe(level="mix", strict=True)
    probe.watch(actor=actor, critic=critic)
    with probe.phase(["actor_update", "critic_update"]):
        actor(X)
        critic(X)
        mint.log(Y)
    run = recorded(probe)
    of_actor, of_critic = (
        [e.name for e in run.entries(phase=phase, step=0) if parse_operator(e.name)]
        for phase in ("actor_update", "critic_update")
    )
    assert "Mint.matmul.1.forward" in of_actor
    assert of_critic == ["Mint.matmul.0.forward", "Tensor.__add__.0.forward", "Mint.log.0.forward"]
    assert of_actor[-1] == "Mint.log.0.forward"


#: Holds operators in what Python cannot replace them in; reaches one as it should.
HOLDING = """
import functools
from mindspore import mint
TABLE = {'exp': mint.exp}
def with_default(x, act=mint.sin): return act(x)
def made(act):
    return lambda x: act(x)
closed = made(mint.cos)
class Held:
    act = staticmethod(mint.tanh)
partly = functools.partial(mint.sum, dim=0)
def reached(x): return mint.abs(x)
"""


@pytest.fixture
def program_of(monkeypatch):
    """Return a function that makes a module of a program."""

    def make(name, code):
        module = ModuleType(name)
        exec(compile(code, __file__, "exec"), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


def test_operators_that_programs_hold_beyond_reach_are_named(run_of, program_of, caplog):
    """In containers, closures, defaults, classes, partials: none of their calls is an entry."""
    trainer = program_of("trainer_of_test", HOLDING)
    network = Net()
    network.acts = [mint.neg]
    run = run_of(
        lambda: network(trainer.with_default(trainer.TABLE["exp"](trainer.reached(X)))), network
    )
    said = run.manifests[0]["coverage"]["operators"]
    assert {
        "trainer_of_test.TABLE['exp']",
        "trainer_of_test.with_default(act=…)",
        "trainer_of_test.closed: act",
        "trainer_of_test.Held.act",
        "trainer_of_test.partly",
        "root.acts[0]",
    } <= said.keys()
    assert not any("reached" in place for place in said)
    assert "Mint.sum" in json.dumps(said["trainer_of_test.partly"])
    assert "trainer_of_test.TABLE['exp']" in caplog.text
    assert "Mint.abs.0.forward" in names_at(run)


PROGRAM = """
from mindspore import Tensor, mint, ops
from mindspore.ops import softmax

normalised, summed, product, act = ops.Softmax(), ops.reduce_sum, Tensor.matmul, mint.tanh
held = {"softmax": ops.Softmax().__call__}

def run(x):
    return act(product(normalised(x), softmax(x))) + summed(x) + ops.reduce_sum(x)
"""


def test_a_primitive_that_another_function_replaces_later_is_recorded_and_named(
    watched, recorded, program_of, monkeypatch
):
    """As are imported names and attributes of cells; what MindSpore has instead is what it is."""
    program = program_of("program_of_primitives", PROGRAM)
    probe, network = watched(Net(), level="L1", strict=True)

    def other(x, *args):
        return Tensor(x.asnumpy() / 2)

    for step in range(2):
        with probe.phase(PHASE):
            program.run(X)
            network(X)
        probe.step()
        if step == 0:
            monkeypatch.setattr(program, "normalised", other)
            monkeypatch.setattr(program, "softmax", functools.partial(other))
            monkeypatch.setattr(program, "act", mint.exp)
            monkeypatch.setattr(ops, "reduce_sum", other)
            monkeypatch.setattr(network, "softmax", other)
    run = recorded(probe)
    names = [
        {e.name for e in run.entries(phase=PHASE, step=step) if e.direction == "forward"}
        for step in range(2)
    ]
    same = {"Tensor.matmul.0.forward", "Functional.softmax.0.forward", "Mint.exp.0.forward"}
    same |= {f"Primitive.{name}.Softmax.0.forward" for name in ("Softmax", "softmax")}
    assert names[0] >= same | {"Mint.tanh.0.forward"}
    assert names[0] >= {f"Primitive.ReduceSum.ReduceSum.{n}.forward" for n in range(2)}
    assert names[1] >= same | {f"Primitive.ReduceSum.ReduceSum.{n}.forward" for n in range(2)}
    assert names[1] >= {"Mint.exp.1.forward"}
    assert "Mint.tanh.0.forward" not in names[1]
    said = run.manifests[0]["coverage"]["operators"]
    replaced = {n for n, why in said.items() if why["code"] == "coverage.operator_replaced"}
    assert replaced == {"Functional.softmax", "Primitive.Softmax", "Primitive.ReduceSum"}
    assert "program_of_primitives.held['softmax']" in said


def test_what_replaces_a_primitive_is_judged_by_the_attributes_of_that(layer_probe):
    """A function that computes the same is no fault, and one that does not is one."""
    from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of

    network = nn.SequentialCell(Inner())
    network.total = ops.ReduceSum(keep_dims=True)
    construct = network.construct
    network.construct = lambda x: network.total(construct(x), 0)
    probe = layer_probe(level="L1", task="accuracy_check", strict=True)
    probe.watch(actor=network)
    for replacement in (
        None,
        lambda x, axis: mint.sum(x, dim=axis, keepdim=True),
        lambda x, axis: mint.sum(x, dim=axis, keepdim=True) * 1.01,
    ):
        if replacement is not None:
            network.total = replacement
        with probe.phase(PHASE):
            network(X)
        probe.step()
    probe.close()
    found = {one.call: one for one in accuracy_of(probe.config.dump_path).ranked}
    total = found["Primitive.total.ReduceSum.forward"]
    assert total.counts == {"ordinary": 2, "wrong": 1}
    assert total.first_call.step == 2
