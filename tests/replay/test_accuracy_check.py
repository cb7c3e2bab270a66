"""`task: accuracy_check` in a training: what it calls wrong, what it leaves alone."""

import json
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from replay.small_training import Policy, trained, with_gradients

from mindrlhf_msprobe import check_run
from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.errors import ConfigError, RunError
from mindrlhf_msprobe.findings.accuracy import Accuracy
from mindrlhf_msprobe.replay.second_opinion import Turns
from mindrlhf_msprobe.storage.step_lines import opinion_lines
from tests.helpers.small_networks import Assembled, hook_count

pytestmark = pytest.mark.slow


def squared(network, call=None, *, of=None):
    """Return what computes gradients of the sum of the squares of what a network returns."""
    call = network if call is None else call
    return with_gradients(network, lambda x: (call(x) ** 2).sum(), of=of)


def result(probe):
    """End a run and return what is thought of it."""
    probe.close()
    return accuracy_of(probe.config.dump_path)


@pytest.fixture
def judged(layer_probe):
    """Return a function that records one call, and returns what is thought of it."""

    def recorded(network, call, *inputs, **settings):
        probe = layer_probe(task="accuracy_check", existing="overwrite", **settings)
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            call(*inputs)
        probe.step()
        return result(probe)

    return recorded


def numbers(*shape):
    """Return a tensor of float32 numbers, the same each time."""
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_training_stays_the_same(layer_probe, level, recompute):
    """Bit for bit: dropout, batch norm, recomputation, counters, random numbers, hooks."""
    plain, _ = trained(recompute=recompute)
    probe = layer_probe(task="accuracy_check", level=level)
    watched, network = trained(probe, recompute=recompute)
    assert watched == plain
    assert hook_count(network) == 0
    found = result(probe)
    assert found.status is Accuracy.ORDINARY
    assert json.loads(Path(probe.config.dump_path, "run.json").read_text())["lost"] == {}


def test_no_kernel_is_asked_beside_the_training(tmp_path):
    """MindSpore counts calls: on a CPU the last bits of `log` are other ones from the sixth on."""
    program = (
        "import sys, mindspore as ms, numpy as np\n"
        "from mindspore import Tensor, mint, nn\n"
        "from mindrlhf_msprobe import Probe\n"
        "ms.set_device('CPU')\n"
        "x = Tensor(np.random.default_rng(0).uniform(0.1, 3, 66).astype(np.float32))\n"
        "settings = dict(msprobe=True, actor_train_dump=True, level='mix', dump_path=sys.argv[1])\n"
        "with Probe.from_config({**settings, 'task': 'accuracy_check'}) as probe:\n"
        "    probe.watch(actor=nn.Identity())\n"
        "    with probe.phase('actor_update'):\n"
        "        found = [mint.log(x).asnumpy().tobytes() for _ in range(9)]\n"
        "    probe.step()\n"
        "print('others from', next((n for n, one in enumerate(found) if one != found[0]), 5))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["others from 5"], done.stderr
    assert accuracy_of(tmp_path / "run").status is Accuracy.ORDINARY


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_training_is_ordinary(layer_probe, seed):
    """Outputs, gradients of inputs and gradients of parameters, at both levels."""
    probe = layer_probe(task="accuracy_check", level="mix")
    trained(probe, seed=seed)
    found = result(probe)
    assert {one.opinion for one in found.ranked} == {Accuracy.ORDINARY}
    names = {(one.call, one.tensor) for one in found.ranked}
    assert ("Functional.log_softmax.backward", "output.0") in names
    assert ("Cell.head.Dense.backward", "parameters.head.weight") in names
    assert ("Cell.root.Policy.backward", "parameters.head.weight") in names
    assert found.not_computed == ()


def half(x):
    return x.astype(ms.float16).astype(ms.float32)


def float16_rounded(original):
    """A kernel that returns results which were rounded to float16."""
    return lambda *args, **kwargs: half(original(*args, **kwargs))


def last_row_dropped(original):
    """A kernel that leaves out the last row."""

    def computed(*args, **kwargs):
        found = original(*args, **kwargs)
        return ops.cat([found[:-1], found[-1:] * 0])

    return computed


def with_gradient(factor):
    """Return what gives a function another gradient."""

    def fault(original):
        def computed(*args, **kwargs):
            found = original(*args, **kwargs)
            return found * factor + ops.stop_gradient(found * (1 - factor))

        return computed

    return fault


half_the_gradient = with_gradient(0.5)


def without_the_maximum(original):
    """A softmax that overflows."""

    def computed(x, axis=-1, **_):
        powers = ops.exp(x)
        return powers / powers.sum(axis, keepdims=True)

    return computed


def unlike_each_time(original):
    """A sum that is another one each time."""
    times = [0]

    def computed(*args, **kwargs):
        times[0] += 1
        return original(*args, **kwargs) * (1 + 1e-4 * times[0])

    return computed


@pytest.mark.parametrize(
    ("owner", "name", "fault", "call", "scale"),
    [
        (ops, "log_softmax", float16_rounded, "Functional.log_softmax.forward", 1),
        (ops.MatMul, "__call__", float16_rounded, "MatMul.forward", 1),
        (mint, "gather", last_row_dropped, "Mint.gather.forward", 1),
        (ops, "log_softmax", half_the_gradient, "Functional.log_softmax.backward", 1),
        (mint, "exp", half_the_gradient, "Mint.exp.backward", 1),
        (ops, "softmax", without_the_maximum, "Functional.softmax.forward", 500),
        (mint, "sum", unlike_each_time, "Mint.sum.forward", 1),
    ],
)
def test_a_planted_fault_is_named(layer_probe, monkeypatch, owner, name, fault, call, scale):
    """By its operator, in the trainer's own loss and in layers; first in check, too."""
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    probe = layer_probe(task="accuracy_check", level="mix")
    trained(probe, scale=scale, steps=1)
    found = result(probe)
    assert found.status is Accuracy.WRONG
    assert found.origins[0].call.endswith(call)
    operators = {one.call.rpartition(".")[0] for one in found.origins}
    assert operators == {found.origins[0].call.rpartition(".")[0]}  # none that NaN was given to
    checked = check_run(probe.config.dump_path)
    findings = [one for one in checked.findings if one.rule == "accuracy.wrong"]
    assert findings
    assert call.split(".")[-2] in findings[0].place.record


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_gradients_of_recomputed_cells_are_judged(layer_probe, monkeypatch, level):
    """They come through the second run; as many as without recomputation, and faults are seen."""
    judged = []
    for recompute in (False, True):
        probe = layer_probe(task="accuracy_check", level=level, existing="overwrite", strict=True)
        trained(probe, recompute=recompute, steps=1)
        found = result(probe)
        assert found.status is Accuracy.ORDINARY
        assert found.not_computed == ()
        judged.append({(one.call, one.cell, one.tensor) for one in found.ranked})
    assert judged[0] <= judged[1]
    assert any("first" in cell and call.endswith("backward") for call, cell, _ in judged[1])
    monkeypatch.setattr(ops, "relu", half_the_gradient(ops.relu))
    probe = layer_probe(task="accuracy_check", level=level, existing="overwrite")
    trained(probe, recompute=True, steps=1)
    found = result(probe)
    assert {one.cell.split(".")[0] for one in found.origins} == {"first", "second"}


def ratio_is_one(log_probs, advantages):
    """Return the loss of PPO's first update, in which nothing is clipped."""
    ratio = mint.exp(log_probs - ops.stop_gradient(log_probs))
    return -mint.minimum(ratio * advantages, mint.clamp(ratio, 0.8, 1.2) * advantages).mean()


def to_the_first(minimum):
    """A minimum that gives all of its gradient to its first operand, where both are equal."""

    def computed(a, b):
        return ops.where(a <= b, a, b)

    return computed


def dropped_gradient(original):
    """A function through whose last row no gradient flows."""

    def computed(*args, **kwargs):
        found = original(*args, **kwargs)
        return ops.cat([found[:-1], ops.stop_gradient(found[-1:])])

    return computed


@pytest.mark.parametrize(
    ("name", "fault", "status"),
    [
        ("minimum", with_gradient(1.0), Accuracy.ORDINARY),
        ("minimum", to_the_first, Accuracy.ORDINARY),
        ("minimum", with_gradient(1.05), Accuracy.WRONG),
        ("minimum", with_gradient(0.5), Accuracy.WRONG),
        ("minimum", with_gradient(1.9), Accuracy.WRONG),
        ("minimum", with_gradient(-1.0), Accuracy.WRONG),
        ("minimum", dropped_gradient, Accuracy.WRONG),
        ("clamp", with_gradient(1.05), Accuracy.WRONG),
    ],
)
def test_equal_operands_share_a_gradient_and_no_more(judged, monkeypatch, name, fault, status):
    """As in PPO's first update: in any shares whose sum is the gradient that arrived."""
    log_probs, advantages = numbers(2, 6, 5)
    network = nn.Dense(5, 5)
    monkeypatch.setattr(mint, name, fault(getattr(mint, name)))
    loss = with_gradients(network, lambda x: ratio_is_one(network(x), advantages))
    found = judged(network, loss, log_probs, level="L1")
    assert found.status is status
    if status is Accuracy.WRONG:
        assert [one.call for one in found.origins] == [f"Mint.{name}.backward"] * len(found.origins)


@pytest.mark.parametrize(
    "function",
    [
        *(ops.relu, ops.abs, ops.relu6, ops.leaky_relu, ops.hardtanh, ops.elu, ops.softplus),
        *(lambda x: mint.clamp(x, 0.0, 1.0), lambda x: mint.max(x), lambda x: mint.amax(x, -1)),
        *(lambda x: ops.maximum(x, x * 1.0), lambda x: mint.max(x, 1)[0]),
    ],
)
def test_bends_are_no_faults(judged, function):
    """Where a function has no slope, or several elements are the largest."""
    x = Tensor(np.float32([[0, 1, -1, 0], [2, 2, 2, 1]]))
    found = judged(nn.Dense(2, 2), ms.grad(lambda x: (function(x * 1.0) * 3).sum()), x, level="L1")
    assert Accuracy.WRONG not in {one.opinion for one in found.ranked}


def test_what_is_written_into_results_of_its_own_is_computed_again(judged):
    """As operators of Python do."""

    class Writing(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            found = x * 2
            found += x
            found[1] = 5
            found *= 3
            return found.mul(0.5)

    x = numbers(4, 6)
    network = Writing()
    found = judged(network, ms.grad(lambda x: network(x).sum()), x, level="mix")
    assert found.not_computed == ()
    assert found.status is Accuracy.ORDINARY
    assert {one.opinion for one in found.ranked} == {Accuracy.ORDINARY}


def test_an_operator_that_writes_is_judged_by_what_it_returns(judged, monkeypatch):
    """The cell around it is not: on some devices nothing is written."""

    class Writing(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return (x * 2).add_(x).mul(0.5)

    x = numbers(4, 6)
    network, own = Writing(), Tensor.add_
    for status in (Accuracy.ORDINARY, Accuracy.WRONG):
        found = judged(network, ms.grad(lambda x: network(x).sum()), x, level="mix")
        assert [(one.call, one.why.code) for one in found.not_computed] == [
            ("Cell.root.Writing.forward", "second.in_place")
        ]
        assert found.status is status
        monkeypatch.setattr(Tensor, "add_", lambda x, y: own(x, y * 1.001))
    assert found.origins[0].call == "Tensor.add_.forward"


def test_a_view_that_is_written_has_no_opinion(judged):
    """What it is a view of changes with it."""

    class Viewing(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            found = x * 2
            found[0].add_(1)
            return found + 1

    network = Viewing()
    found = judged(network, network, Tensor(np.ones((2, 3), np.float32)))
    assert [one.why.code for one in found.not_computed] == ["second.in_place"]


def test_infinite_gradients_raise_no_warning(judged, recwarn):
    """The difference of two is not a number."""
    network, inf = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU()), float("inf")
    call = ms.grad(lambda x: (network(x * 1.0) * inf).sum() + (x * inf).sum())
    judged(network, call, Tensor(np.ones((3, 4), np.float32)), level="mix")
    assert [str(one.message) for one in recwarn if one.category is RuntimeWarning] == []


def test_the_first_step_that_is_wrong_is_named(layer_probe, monkeypatch):
    """By check, also where a later one is further away."""
    calls, own = [0], mint.exp

    def worse(x):
        calls[0] += 1
        return own(x) * (1 + 1e-3 * calls[0] * (calls[0] > 1))

    monkeypatch.setattr(mint, "exp", worse)
    probe = layer_probe(task="accuracy_check", level="L1")
    trained(probe, steps=4)
    found = result(probe)
    assert (found.origins[0].step, found.origins[0].first_call.step) == (3, 1)
    checked = check_run(probe.config.dump_path)
    assert {one.place.step for one in checked.findings if one.rule == "accuracy.wrong"} == {1}


def test_a_derivative_beyond_float16_is_no_fault(judged):
    """That of 1/sqrt(x) overflows, where the gradient itself would not."""
    x = Tensor(np.float16([[1e-4, 0.5, 2e-4]]))

    class Norm(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return mint.rsqrt(x * 1)

    network = Norm()
    call = ms.grad(lambda x: (network(x) * 1e-3).sum())
    assert not np.isfinite(call(x).asnumpy()).all()
    found = judged(network, call, x, level="mix")
    assert found.status is Accuracy.ORDINARY
    assert found.gaps == 0
    assert "overflowed" in {one.worst.reason for one in found.ranked}


def infinite_gradient(original):
    """A function of float16 whose first gradient is infinite."""

    def computed(*args):
        found = original(*args)
        huge = Tensor(np.float16([60000] + [1] * (found.shape[-1] - 1)))
        return found + (found - ops.stop_gradient(found)) * huge * huge

    return computed


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_gradients_that_overflow_float16_are_right_where_the_exact_ones_do(
    judged, monkeypatch, level
):
    """As with a loss scale that is too large; where the exact ones do not, they are wrong."""
    x = Tensor(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float16))

    class Layer(Assembled, dense=lambda: nn.Dense(16, 16, dtype=ms.float16), act=nn.Tanh):
        def construct(self, x: Tensor) -> Tensor:
            return self.act(self.dense(x))

    network = nn.SequentialCell(Layer(), Layer())

    for scale, status in (
        (2.0**15, Accuracy.ORDINARY),
        (2.0**-6, Accuracy.ORDINARY),
        (2.0**-6, Accuracy.WRONG),
    ):

        def loss(x, factor=scale):
            return (network(x).astype(ms.float32) * factor).sum()

        if status is Accuracy.WRONG:
            monkeypatch.setattr(ops.Tanh, "__call__", infinite_gradient(ops.Tanh.__call__))
        found = judged(network, with_gradients(network, loss), x, level=level)
        assert found.status is status


def test_a_layer_that_rounds_is_named(judged):
    """At level L0, by its cell: the innermost of those that are wrong."""
    network = Policy()
    inner = network.second.dense.construct
    network.second.dense.construct = lambda x: half(inner(x))
    found = judged(network, network, numbers(8, 16))
    assert [one.call for one in found.origins] == ["Cell.second.dense.Dense.forward"]
    wrong = {one.cell for one in found.ranked if one.opinion is Accuracy.WRONG}
    assert wrong >= {"second.dense", "second", "root"}
    assert "first" not in wrong


def test_what_was_drawn_is_known_where_no_operator_is_recorded(judged):
    """At level L0 the mask of a dropout is used again, forward and backward."""
    network = nn.SequentialCell(nn.Dense(16, 16), nn.Dropout(p=0.3)).set_train()
    found = judged(network, squared(network), numbers(8, 16), level="L0", strict=True)
    assert found.status is Accuracy.ORDINARY
    opinions = [*opinion_lines(Path(found.path), 0).read()]
    assert [one.why for one in opinions if one.why is not None] == []
    records = {tensor.record for one in opinions for tensor in one.tensors}
    assert "Cell.1.Dropout.forward.0.output.0" in records
    assert any(record.endswith(".parameters.0.weight") for record in records)


def test_a_method_that_was_replaced_is_not_asked_about_itself(judged, monkeypatch):
    """Of a layer of MindSpore or MindFormers: its definition is what it is judged by."""
    from mindformers.models.llama.llama_layer import LlamaRMSNorm

    x = numbers(8, 16)
    for kind, network in (
        (nn.Dense, nn.Dense(16, 8)),
        (LlamaRMSNorm, LlamaRMSNorm(16, fused_kernel=False)),
    ):
        monkeypatch.setattr(kind, "construct", last_row_dropped(kind.construct))
        found = judged(network, network, x)
        assert found.status is Accuracy.WRONG
        monkeypatch.undo()
        found = judged(network, network, x)
        assert found.status is Accuracy.ORDINARY


class Holder(nn.Cell):
    """Holds primitives and a function of MindSpore, as its class says."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.softmax, self.matmul = ops.Softmax(axis=0), ops.MatMul(transpose_b=transposed)
        self.mean, self.mul = mint.mean, self.doubled

    def doubled(self, x: Tensor) -> Tensor:
        return x * 2

    def construct(self, x: Tensor) -> Tensor:
        return self.mul(self.mean(self.softmax(self.matmul(x * 2, x + 1)), dim=-1))


def own_softmax(x):
    """A softmax over the first axis, without the primitive that it replaces."""
    powers = ops.exp(x - x.max(0, keepdims=True))
    return powers / powers.sum(0, keepdims=True)


class LastRowDropped:
    """A kernel as an object."""

    def __init__(self, original):
        self.original = original

    def __call__(self, *args):
        return last_row_dropped(self.original)(*args)


@pytest.mark.parametrize("level", ["L0", "L1"])
@pytest.mark.parametrize(
    ("attribute", "fault", "call"),
    [
        ("softmax", last_row_dropped, "Primitive.softmax.Softmax.forward"),
        ("softmax", lambda _: last_row_dropped(own_softmax), "Primitive.softmax.Softmax.forward"),
        ("softmax", lambda _: own_softmax, ""),
        ("matmul", LastRowDropped, "Primitive.matmul.MatMul.forward"),
        ("matmul", half_the_gradient, "Primitive.matmul.MatMul.backward"),
        ("mean", last_row_dropped, "Mint.mean.forward"),
        ("mul", lambda mul: lambda x: mul(x) * 3, ""),
    ],
)
def test_what_a_cell_holds_in_the_place_of_an_operator_from_the_start(
    judged, attribute, fault, call, level
):
    """Is judged by the operator that the cell's class says; the cell itself, too."""
    network = Holder(transposed=True)
    setattr(network, attribute, fault(getattr(network, attribute)))
    gradient = ms.value_and_grad(lambda x: (network(x) ** 2).sum())
    found = judged(network, gradient, numbers(6, 6), level=level, strict=True)
    assert found.without_opinion == ()
    assert found.status is (Accuracy.WRONG if call else Accuracy.ORDINARY)
    if call and level == "L1":
        assert found.origins[0].call == call
    said = json.loads(Path(found.path, "run.json").read_text())["coverage"]
    operator = {"softmax": "Primitive.Softmax", "matmul": "Primitive.MatMul", "mean": "Mint.mean"}
    if level == "L1" and attribute != "mul":
        assert operator[attribute] in said["operators"]


def test_a_primitive_whose_attributes_nobody_knows_has_no_opinion(judged):
    """A cell's class may make it of what the cell does not keep."""
    network = Holder(transposed=True)
    network.matmul = lambda x, y: mint.matmul(x, y.T)
    found = judged(network, network, numbers(6, 6), level="L1", strict=True)
    assert found.status is Accuracy.UNDECIDED
    assert found.without_opinion == ("Primitive.MatMul",)


def test_float16_that_is_declared_is_ordinary(judged):
    """By `to_float`, and by `compute_dtype`; undeclared it is wrong."""
    x = numbers(8, 16)

    class Halved(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return half(x) * 1.0

    for network, settings, status in (
        (nn.Dense(16, 8).to_float(ms.float16), {}, Accuracy.ORDINARY),
        (Halved(), {"compute_dtype": "float16"}, Accuracy.ORDINARY),
        (Halved(), {}, Accuracy.WRONG),
    ):
        found = judged(network, network, x, **settings)
        assert found.status is status


class Cache(nn.Cell):
    """Keeps what it computed in a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(16, 4)
        self.kept = Parameter(Tensor(np.zeros((8, 4), np.float32)), requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        ops.assign(self.kept, self.dense(x))
        return self.kept + 1


def test_a_bprop_of_a_library_is_judged_by_itself(judged):
    """MindFormers' loss gives its parts gradients that are none of what these compute alone."""
    pytest.importorskip("mindformers")
    from mindformers.core.loss import CrossEntropyLoss

    network = CrossEntropyLoss()
    logits = numbers(6, 9)
    labels, mask = Tensor(np.arange(6, dtype=np.int32)), Tensor(np.ones(6, np.float32))
    found = judged(network, ms.value_and_grad(network), logits, labels, mask, strict=True)
    assert found.status is Accuracy.ORDINARY
    assert found.not_computed == ()
    calls = {one.call for one in found.ranked}
    assert {"Cell.root.CrossEntropyLoss.backward", "Cell._nllloss._NLLLoss.backward"} <= calls


def test_what_cannot_run_twice_is_said(judged, capsys):
    """With the reason; the layers in it are looked at all the same."""
    network, x = Cache(), Tensor(np.ones((8, 16), np.float32))
    kept = network.dense(x).asnumpy()
    found = judged(network, network, x)
    assert [one.why.code for one in found.not_computed] == ["second.in_place"]
    assert [one.cell for one in found.ranked] == ["dense"]
    assert np.array_equal(network.kept.asnumpy(), kept)
    assert main(["accuracy", str(found.path)]) == 2
    said = capsys.readouterr().out
    assert said.startswith("UNDECIDED")
    assert "nothing wrong in 1 call; 1 without an opinion: Functional.assign" in said
    assert "writes into a tensor" in said


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_complex_numbers_have_no_opinion(judged, level):
    """They are neither called wrong nor passed over."""

    class Rotated(nn.Cell):
        def construct(self, x: Tensor, turn: Tensor) -> Tensor:
            return ops.abs(x * turn + turn)

    r = np.random.default_rng(0)
    x, turn = (Tensor((r.normal(size=(3, 4)) + 1j).astype(np.complex64)) for _ in range(2))
    network = Rotated()
    found = judged(network, network, x, turn, level=level, strict=True)
    assert found.status is Accuracy.UNDECIDED
    assert "Tensor.__mul__" in found.without_opinion
    if level != "L0":
        assert {"Tensor.__add__", "Functional.abs"} <= {*found.without_opinion}


def test_one_operator_without_an_opinion_leaves_the_run_undecided(judged, capsys):
    """By its name; what computes no floating numbers is not missed, and a fault is a fault."""
    x = numbers(4, 6)
    whole = Tensor(np.arange(6, dtype=np.int32))
    network = nn.Dense(6, 6)
    for computed, code in ((lambda: None, 0), (lambda: ops.cdist(x, x), 2)):

        def call(also):
            return network(x), ops.gcd(whole, whole), also()  # gcd has no formula either

        found = judged(network, call, computed, level="mix")
        path = str(found.path)
        assert main(["accuracy", path]) == code
        said = capsys.readouterr().out
        assert ("without an opinion: Functional.cdist" in said) is (code == 2)
        checked = check_run(path)
        assert checked.findings == ()
        unchecked = [one.why.params for one in checked.not_checked if one.rule == "accuracy.wrong"]
        assert [one["name"] for one in unchecked] == ["Functional.cdist"] * (code == 2)


def test_outside_every_cell_is_said(judged, capsys):
    """Where the cell's name would stand."""
    kept = Tensor(np.ones((2, 2), np.float32))
    found = judged(nn.Dense(2, 2), lambda: (ops.cdist(kept, kept), ops.exp(kept)), level="L1")
    main(["accuracy", str(found.path), "--lang", "en"])
    assert "Functional.cdist.forward (outside every cell)" in capsys.readouterr().out


def test_an_operator_without_a_formula_does_not_end_the_training(judged):
    """Nor one whose kernel refuses float64: it is said, with and without gradients."""
    x = numbers(4, 6)
    network = nn.Dense(6, 6)

    def loss(x):
        return ops.cdist(network(x), x + 1).sum()

    computed = []

    def call(x):
        computed.extend(with_gradients(network, loss)(x)[1])
        return loss(x)

    call(x)
    found = judged(network, call, x, level="L1")
    for one, other in zip(computed[:2], computed[2:], strict=True):
        assert np.array_equal(one.asnumpy(), other.asnumpy())
    assert {one.why.code for one in found.not_computed} == {"second.no_formula"}


@pytest.mark.parametrize(
    ("name", "fault", "call"),
    [
        ("erfinv", None, None),
        ("erfinv", float16_rounded, "Functional.erfinv.forward"),
        ("hypot", last_row_dropped, "Functional.hypot.forward"),
        ("hypot", half_the_gradient, "Functional.hypot.backward"),
    ],
)
def test_an_operator_without_a_formula_is_judged_by_its_kernel(
    judged, monkeypatch, name, fault, call
):
    """In float64, in another process, where what was put in its place is not."""
    if fault is not None:
        monkeypatch.setattr(ops, name, fault(getattr(ops, name)))
    x = Tensor(np.random.default_rng(0).uniform(0.1, 0.9, (4, 6)).astype(np.float32))

    class Layer(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return ops.hypot(ops.erfinv(x), ops.interpolate(x[None], size=6, mode="linear")[0])

    network = Layer()
    gradient = ms.grad(lambda x: (network(x * 1.0) * 3).sum())
    found = judged(network, gradient, x, level="mix", strict=True)
    assert found.without_opinion == ()
    assert found.status is (Accuracy.ORDINARY if fault is None else Accuracy.WRONG)
    assert [one.call for one in found.origins[:1]] == ([] if call is None else [call])
    calls = {(one.call, one.tensor) for one in found.ranked}
    assert {("Functional.hypot.backward", f"output.{i}") for i in (0, 1)} <= calls
    assert ("Cell.root.Layer.backward", "output.0") in calls


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_attention_of_mindspore_is_judged(judged, monkeypatch, level):
    """It computes in a function that is no operator: by what that is made of."""
    network = nn.MultiheadAttention(8, 2)
    call = squared(network, lambda x: network(x, x, x)[0])
    for status in (Accuracy.ORDINARY, Accuracy.WRONG):
        found = judged(network, call, numbers(3, 5, 8), level=level, strict=True)
        assert found.without_opinion == ()
        assert found.status is status
        calls = {(one.call, one.tensor) for one in found.ranked}
        assert ("Cell.root.MultiheadAttention.backward", "parameters.in_proj_weight") in calls
        monkeypatch.setattr(ops, "softmax", float16_rounded(ops.softmax))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_scaled_dot_product_attention", last_row_dropped),
        ("linear", half_the_gradient),
        ("_check_qkv_shape", lambda found: lambda *args: found(*args)),
    ],
)
def test_what_replaces_a_function_of_mindspores_layers_is_not_asked(
    judged, monkeypatch, name, fault
):
    """No operator, but what layers are made of: the source of its module says what it computes."""
    functions = ops.function.nn_func
    own = getattr(functions, name)

    def unlike(*args, **kwargs):
        found = own(*args, **kwargs)
        if not isinstance(found, tuple):
            return fault(lambda: found)()
        return (fault(lambda: found[0])(), *found[1:])

    replacement = fault(own) if name.startswith("_check") else unlike
    monkeypatch.setattr(functions, name, replacement)
    network = nn.MultiheadAttention(8, 2)
    call = squared(network, lambda x: network(x, x, x)[0])
    found = judged(network, call, numbers(3, 5, 8), level="mix", strict=True)
    assert getattr(functions, name) is replacement
    said = json.loads(Path(found.path, "run.json").read_text())["coverage"]
    assert f"mindspore.ops.function.nn_func.{name}" in said["operators"]
    if name.startswith("_check"):  # decorated: what it was is not known
        assert found.status is Accuracy.UNDECIDED
        assert found.without_opinion == (f"mindspore.ops.function.nn_func.{name}",)
    else:
        assert found.status is Accuracy.WRONG
        assert found.origins[0].call.startswith("Cell.root.MultiheadAttention")


@pytest.mark.parametrize(
    ("kind", "shape", "settings", "operator"),
    [
        (nn.Conv3d, (2, 2, 4, 6, 4), {"stride": 2}, ops.Conv3D),
        (nn.Conv2dTranspose, (1, 2, 5, 4), {"stride": 2}, ops.Conv2DTranspose),
        (nn.Conv1dTranspose, (1, 2, 9), {"pad_mode": "pad", "padding": 1}, None),
    ],
)
def test_convolutions_of_mindspore_are_judged(judged, monkeypatch, kind, shape, settings, operator):
    """By their formulas, forward and backward."""
    network = kind(2, 4, 3, has_bias=True, **settings)
    call = squared(network, lambda x: network(x * 1), of=0)
    for status in (Accuracy.ORDINARY, Accuracy.WRONG)[: 1 if operator is None else 2]:
        found = judged(network, call, numbers(*shape), level="mix", strict=True)
        assert found.without_opinion == ()
        assert found.status is status
        back = {one.tensor for one in found.ranked if "onv" in one.call and "back" in one.call}
        assert back >= {"output.0", f"parameters.{network.weight.name}"}
        if operator is not None:
            monkeypatch.setattr(operator, "__call__", half_the_gradient(operator.__call__))


def test_what_moves_elements_draws_nothing(judged):
    """Though it is called a shuffle; gradients of what is drawn are not known."""
    shuffled = ms.grad(lambda x: (ops.pixel_shuffle(x * 1.0, 2) * 2).sum())
    drawn = ms.grad(lambda x: (ops.gumbel_softmax(x * 1.0) * x).sum())
    x = numbers(2, 4, 3, 3)
    found = judged(nn.Dense(2, 2), lambda: (shuffled(x), drawn(x)), level="L1")
    assert {one.opinion for one in found.ranked} == {Accuracy.ORDINARY}
    assert ("Functional.pixel_shuffle.backward", "output.0") in {
        (one.call, one.tensor) for one in found.ranked
    }
    assert found.without_opinion == ("Functional.gumbel_softmax.backward",)


def test_hooks_are_not_called_again(judged):
    """Neither a user's own nor those of cells inside."""
    network, seen = Policy(), []
    network.first.dense.register_forward_hook(lambda *_: seen.append(1))
    found = judged(network, network, Tensor(np.ones((8, 16), np.float32)))
    assert seen == [1]
    assert found.status is Accuracy.ORDINARY


def test_the_command_writes_what_it_says(layer_probe, tmp_path, capsys, monkeypatch):
    """Table, verdict.json and exit code."""
    monkeypatch.setattr(mint, "exp", float16_rounded(mint.exp))
    probe = layer_probe(task="accuracy_check", level="L1")
    trained(probe, steps=1)
    probe.close()
    path, out = str(probe.config.dump_path), tmp_path / "out"
    assert main(["accuracy", path, "-o", str(out)]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"WRONG {path}")
    assert "Mint.exp.forward output.0" in said
    assert (out / "accuracy_check.xlsx").stat().st_size
    verdict = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["status"] == "wrong"
    assert verdict["first"]["call"] == "Mint.exp.forward"
    assert main(["accuracy", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == verdict
    assert main(["accuracy", path, "--lang", "zh"]) == 1
    assert capsys.readouterr().out.startswith(f"错误 {path}")


def test_a_run_without_opinions_is_refused(layer_probe, capsys):
    """With what to record."""
    probe = layer_probe()
    trained(probe, steps=1)
    probe.close()
    with pytest.raises(RunError, match="task: accuracy_check"):
        accuracy_of(probe.config.dump_path)
    assert main(["accuracy", str(probe.config.dump_path)]) == 2


def test_a_run_in_which_no_cell_was_called_says_so(layer_probe, capsys):
    """It was recorded with the task: another one is not asked for."""
    probe = layer_probe(task="accuracy_check")
    probe.watch(actor=nn.Identity())
    with probe.phase("actor_update"):
        mint.exp(Tensor([1.0]))
    probe.step()
    probe.close()
    assert main(["accuracy", str(probe.config.dump_path), "--lang", "en"]) == 2
    said = capsys.readouterr().err
    assert "nothing was computed again" in said
    assert "level: mix" in said


def test_lines_that_are_cut_off_are_left_out(layer_probe):
    """As the last one of a process that was killed may be."""
    probe = layer_probe(task="accuracy_check")
    trained(probe, steps=1)
    probe.close()
    root = Path(probe.config.dump_path)
    file = root / "opinions.rank0.jsonl"
    whole = [*opinion_lines(root, 0).read()]
    file.write_bytes(file.read_bytes()[:-20] + b"\n[1]\n{}\n\xff\n")
    assert [*opinion_lines(root, 0).read()] == whole[:-1]


@pytest.mark.parametrize(("task", "steps"), [("accuracy_check", {0, 1}), ("statistics", {0})])
def test_a_resumed_run_forgets_the_step_that_runs_again(make_probe, tmp_path, task, steps):
    """Its opinions are given anew, once, or are of values that are no longer there."""
    settings = {"actor_train_dump": True, "step_end": 9, "existing": "resume"}
    settings |= {"msprobe": True, "dump_path": str(tmp_path / "run")}
    for count, more in ((2, {"task": "accuracy_check"}), (1, {"task": task, "initial_step": 1})):
        probe = make_probe(**settings, **more)
        trained(probe, steps=count)
        probe.close()
    found = [one.step for one in opinion_lines(tmp_path / "run", 0).read()]
    assert {*found} == steps
    assert found == sorted(found)
    assert found.count(1) in (0, found.count(0))


def test_cells_take_turns_within_a_budget():
    """Those that were looked at least come first in the next step."""
    turns, names = Turns(budget=1.0), ["a", "b", "c", "d"]
    seen = []
    for step in range(4):
        for name in names:
            if turns.takes(step, name):
                seen.append((step, name))
                turns.took(0.6)
    assert seen == [(0, "a"), (0, "b"), (1, "c"), (1, "d"), (2, "a"), (2, "b"), (3, "c"), (3, "d")]


@pytest.mark.parametrize(
    "settings", [{"budget": -1}, {"budget": True}, {"precision": "int8"}, {"compute_dtype": "int8"}]
)
def test_settings_that_mean_nothing_are_refused(make_probe, settings):
    """When the configuration is read."""
    with pytest.raises(ConfigError):
        make_probe(task="accuracy_check", **settings)
