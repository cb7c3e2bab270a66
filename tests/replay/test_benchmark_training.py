"""`task: free_benchmark` in a training: what it finds, what it says, and that nothing changes."""

import itertools
import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from replay.small_training import Block, trained

from mindrlhf_msprobe.capture.opening.observer import OperatorCall
from mindrlhf_msprobe.capture.operators.inventory import find_operator
from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.findings.accuracy import Accuracy
from mindrlhf_msprobe.replay.free_benchmark import BenchmarkedPhase
from mindrlhf_msprobe.storage.step_lines import benchmark_lines
from tests.helpers.small_networks import Assembled, hook_count

pytestmark = pytest.mark.slow

MODES = ("no_change", "add_noise", "bit_noise", "change_value", "improve_precision")


def rows_of(probe):
    """Return the rows of a run."""
    return [*benchmark_lines(Path(probe.config.dump_path), 0).read()]


def run_once(probe, network, *inputs):
    """Return the rows of one phase in which a network was called once."""
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        output = network(*inputs)
    probe.step()
    return rows_of(probe), output


@pytest.fixture
def benchmarked(layer_probe):
    """Return a function that calls a network once, and returns the rows and what it returned."""

    def once(network, *inputs, **settings):
        given = {"task": "free_benchmark", "strict": True, "existing": "overwrite"}
        probe = layer_probe(**given, **settings)
        found = run_once(probe, network, *inputs)
        probe.close()
        return found

    return once


def numbers(*shape, dtype=ms.float32, scale=1.0):
    return Tensor((np.random.standard_normal(shape) * scale).astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("mode", MODES[:4])
@pytest.mark.parametrize("level", ["L0", "L1"])
def test_inputs_that_are_not_finite_keep_their_rows(benchmarked, mode, level):
    """A NaN that changes its place changes the inputs by no number."""

    class Sum(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return ops.sum(x * 2, -1)

    values = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    values[0, 0], values[1, 3] = np.nan, np.inf
    rows, _ = benchmarked(Sum(), Tensor(values), pert_mode=mode, level=level)
    assert len(rows) == (1 if level == "L0" else 2)
    assert not any("why" in row for row in rows)


@pytest.mark.parametrize(
    ("mode", "stage", "recompute", "set_grad"),
    [
        *((mode, "forward", False, False) for mode in MODES),
        ("bit_noise", "forward", True, True),
        ("no_change", "backward", False, True),
        ("improve_precision", "backward", True, False),
    ],
)
def test_training_is_unchanged_to_the_bit(layer_probe, mode, stage, recompute, set_grad):
    """Draws, averages, Python attributes, gradients, parameters and hooks are as without it."""
    how = {"recompute": recompute, "set_grad": set_grad, "low": mode == "improve_precision"}
    expected, _ = trained(**how)
    probe = layer_probe(task="free_benchmark", pert_mode=mode, fuzz_stage=stage, strict=True)
    found, network = trained(probe, **how)
    assert found == expected
    assert hook_count(network) == 0
    rows = rows_of(probe)
    assert {row["step"] for row in rows} == {0, 1}
    assert all(row["consistent"] for row in rows if "why" not in row)
    names = {row["entry"] for row in rows if "why" not in row}
    assert "Cell.first.dense.Dense.forward.0" in names
    assert ("Cell.root.Policy.forward.0" in names) is (stage == "forward")


def test_averages_that_two_networks_share_stay_shared(layer_probe):
    """load_param_into_net lets a reference see what the actor's batch norm writes later."""

    def averages(probe=None):
        ms.set_seed(3)
        actor, reference = Block(8).set_train(), Block(8)
        ms.load_param_into_net(reference, actor.parameters_dict())
        for _ in range(2):
            x = Tensor(np.arange(32, dtype=np.float32).reshape(4, 8) / 32)
            if probe is None:
                actor(x)
            else:
                with probe.phase("actor_update", model=actor):
                    actor(x)
                probe.step()
        return [cell.norm.moving_mean.asnumpy().tobytes() for cell in (actor, reference)]

    expected = averages()
    probe = layer_probe(task="free_benchmark", pert_mode="no_change", strict=True)
    assert averages(probe) == expected
    assert len(set(expected)) == 1


@pytest.mark.parametrize("task", ["free_benchmark", "accuracy_check"])
def test_generators_are_where_they_were(layer_probe, task):
    """numpy, Python and MindSpore draw afterwards what they would have drawn, in both runs."""

    class Draws(nn.Cell):
        def construct(self, x):
            return x * float(np.random.rand())

    x = numbers(4)
    np.random.seed(5)
    np.random.rand()
    expected = np.random.rand()
    np.random.seed(5)
    probe = layer_probe(task=task, pert_mode="no_change")
    rows, _ = run_once(probe, Draws(), x)
    assert np.random.rand() == expected
    if task == "free_benchmark":
        assert [row["consistent"] for row in rows] == [True]
    else:
        probe.close()
        assert accuracy_of(probe.config.dump_path).status is Accuracy.ORDINARY


def test_gradients_of_inputs_and_parameters_are_compared(layer_probe):
    """Once the phase has ended, for one gradient of the output."""
    probe = layer_probe(task="free_benchmark", pert_mode="bit_noise", fuzz_stage="backward")
    probe.watch(actor=(network := nn.Dense(4, 3)))
    with probe.phase("actor_update"):
        network(numbers(2, 4))
    assert {row["path"]: row["consistent"] for row in rows_of(probe)} == {
        "input.0": True,
        "parameters_grad.weight": True,
        "parameters_grad.bias": True,
    }


def test_reduction_that_is_not_deterministic_is_found(benchmarked):
    """In any order of its terms, as atomic additions have it."""
    order = itertools.count()

    class Reduction(nn.Cell):
        def construct(self, x):
            start = next(order) % 999
            return ops.cat([x[start:], x[:start]]).cumsum(0)[-1]

    class Around(Assembled, reduction=Reduction, scale=lambda: nn.Dense(16, 16)):
        def construct(self, x):
            return self.scale(self.reduction(x))

    rows, _ = benchmarked(Around(), numbers(999, 16), pert_mode="no_change")
    consistent = {row["entry"]: row["consistent"] for row in rows}
    assert consistent == {
        "Cell.reduction.Reduction.forward.0": False,
        "Cell.scale.Dense.forward.0": True,
        "Cell.root.Around.forward.0": False,
    }
    assert rows[0]["differing"] > 0


def test_cancellation_is_found(benchmarked):
    """A variance from the mean of squares loses what the last bit of its input decides."""

    class Normalised(nn.Cell):
        def __init__(self, careless):
            super().__init__()
            self.careless = careless

        def construct(self, x):
            mean = x.mean(-1, keep_dims=True)
            if self.careless:
                variance = ops.square(x).mean(-1, keep_dims=True) - ops.square(mean)
            else:
                variance = ops.square(x - mean).mean(-1, keep_dims=True)
            return variance + 0.5

    x = numbers(8, 64) * 0.1 + 200
    found = {}
    for careless in (True, False):
        rows, _ = benchmarked(Normalised(careless), x, pert_mode="bit_noise", include=["root"])
        found[careless] = rows[0]["consistent"]
    assert found == {True: False, False: True}


@pytest.mark.parametrize("dtype", [ms.float32, ms.float16, ms.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_healthy_network_is_silent(benchmarked, dtype, mode):
    """Attention and MLP in any dtype, with large logits and masks."""

    def product(a, b):  # the CPU has none of bfloat16
        return ops.matmul(a.astype(ms.float32), b.astype(ms.float32)).astype(dtype)

    class Linear(nn.Cell):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.weight = Parameter(numbers(inputs, outputs, dtype=dtype, scale=0.3))

        def construct(self, x):
            return product(x, self.weight)

    class Layer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.norm = Linear(16, 16), Linear(16, 16), nn.LayerNorm((16,))
            self.up, self.down, self.act = Linear(16, 64), Linear(64, 16), nn.SiLU()

        def construct(self, x, mask):
            y = self.norm(x.astype(ms.float32)).astype(dtype)
            scores = product(self.q(y), self.k(y).swapaxes(-1, -2)).astype(ms.float32)
            scores = scores + (1 - mask.astype(ms.float32)) * -10000.0
            y = product(ops.softmax(scores, -1).astype(dtype), y)
            y = self.down(self.act(self.up(y).astype(ms.float32)).astype(dtype))
            return (x.astype(ms.float32) + y.astype(ms.float32)).astype(dtype)

    mask = Tensor(np.tril(np.ones((12, 12), np.float32))).astype(dtype)
    x = numbers(2, 12, 16, dtype=dtype, scale=4)
    rows, _ = benchmarked(Layer(), x, mask, pert_mode=mode)
    judged = [row for row in rows if "why" not in row]
    improves = mode == "improve_precision"
    same = 0  # the numbers that are exchanged may be equal, in 16 bits
    if mode == "change_value":
        codes = [[said["code"] for said in row.get("why", ())] for row in rows]
        same = codes.count(["benchmark.nothing_to_disturb"])
    judgeable = 0 if improves and dtype == ms.float32 else 5 if improves else 7
    assert len(judged) == judgeable - same
    assert [row for row in judged if not row["consistent"]] == []


def test_calls_that_cannot_run_again_are_said(benchmarked):
    """Whole numbers, objects, graphs, hooks of others: nothing is claimed of them."""

    class Cache:
        """An object that a second run could change."""

    class Takes(nn.Cell):
        def construct(self, x, other=None):
            return x + 1

    class Compiled(nn.Cell):
        @ms.jit
        def construct(self, x):
            return x + 1

    class All(nn.Cell):
        def __init__(self):
            super().__init__()
            self.whole, self.object, self.hooked = Takes(), Takes(), Takes()
            self.empty, self.graph = Takes(), Compiled()
            self.hooked.register_forward_hook(lambda cell, inputs, output: None)

        def construct(self, x):
            self.whole(Tensor([1, 2]))
            self.empty(x[:0])
            return self.graph(self.hooked(self.object(x, Cache())))

    rows, _ = benchmarked(All(), numbers(3), pert_mode="add_noise")
    why = {row["entry"].split(".")[1]: row["why"][0]["code"] for row in rows}
    assert why == {
        "whole": "benchmark.nothing_to_disturb",
        "empty": "benchmark.nothing_to_disturb",
        "object": "benchmark.object",
        "hooked": "benchmark.hooks",
        "graph": "benchmark.compiled",
        "root": "benchmark.hooks",
    }


def test_cell_that_writes_into_its_input_and_its_parameters(benchmarked):
    """Both runs begin with the same numbers, and what the first one wrote stays."""

    class Writes(Assembled, count=lambda: Parameter(Tensor([0.0]), requires_grad=False)):
        def construct(self, x):
            ops.assign_add(self.count, Tensor([1.0]))
            x[0] = 7.0
            return x * 2

    network, x = Writes(), numbers(5)
    expected = [14.0, *(x.asnumpy()[1:] * 2)]
    rows, output = benchmarked(network, x, pert_mode="no_change")
    assert [row["consistent"] for row in rows] == [True]
    assert network.count.asnumpy().tolist() == [1.0]
    assert x.asnumpy()[0] == 7
    assert output.asnumpy().tolist() == expected


def test_cell_that_raises_the_second_time(benchmarked):
    """The training goes on, and it is said."""

    class Once(nn.Cell):
        runs = 0

        def construct(self, x):
            Once.runs += 1
            if Once.runs > 1:
                raise ValueError("once")
            return x

    rows, _ = benchmarked(Once(), numbers(3), pert_mode="bit_noise")
    assert rows[0]["why"][0]["params"]["why"] == "ValueError: once"


class InFloat16(Assembled, weight=lambda: Parameter(numbers(8, 8))):
    """A product that is computed in float16."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x.astype(ms.float16), self.weight.astype(ms.float16)).astype(ms.float32)


@pytest.mark.parametrize(("level", "include"), [("L0", ["product"])])
def test_fix_hands_the_second_result_to_the_training(layer_probe, warnings_of, level, include):
    """Its values and its gradients; loudly."""

    class Behind(Assembled, before=lambda: nn.Dense(8, 8), product=InFloat16):
        def construct(self, x):
            return self.product(self.before(x))

    network, x = Behind(), numbers(4, 8)

    def plain(x):
        return ops.square(ops.matmul(network.before(x), network.product.weight)).sum()

    weights = network.trainable_params()
    grads = ms.value_and_grad(lambda x: ops.square(network(x)).sum(), None, weights)
    expected = ms.value_and_grad(plain, None, weights)(x)
    unfixed = grads(x)
    probe = layer_probe(
        task="free_benchmark", handler_type="fix", level=level, include=include, strict=True
    )
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        found = grads(x)
    probe.step()
    probe.close()
    assert found[0].asnumpy() == expected[0].asnumpy()
    assert found[0].asnumpy() != unfixed[0].asnumpy()
    for gradient, wanted in zip(found[1], expected[1]):
        assert np.allclose(gradient.asnumpy(), wanted.asnumpy(), rtol=1e-5, atol=1e-5)
    content = json.loads((Path(probe.config.dump_path) / "run.json").read_text())
    expected_note = {"task": "free_benchmark", "pert_mode": "improve_precision"}
    assert content["changed_training"] == expected_note
    assert any("THE TRAINING IS CHANGED" in text for text in warnings_of())


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "statistics"},
        {"task": "free_benchmark", "pert_mode": "add_noise"},
        {"task": "free_benchmark", "fuzz_stage": "backward"},
        {"task": "free_benchmark", "fuzz_thresholds": {"float8": 1}},
        {"task": "free_benchmark", "fuzz_ratio": 0},
    ],
)
def test_what_cannot_be_done_is_refused(layer_probe, settings):
    """Before anything is recorded, with what to write instead."""
    with pytest.raises(ConfigError, match=r"msprobe_config\.\w+"):
        layer_probe(handler_type="fix", **settings)


def test_operators_run_again(benchmarked):
    """Each recorded operator, by its own name; what draws or talks is said."""

    class Computes(nn.Cell):
        def construct(self, x):
            y = ops.softmax(x * 2, -1)
            y[0] = 1.0
            return ops.dropout(y, 0.5) + ops.rand_like(y)

    network, x = Computes(), numbers(6, 8)
    for mode in MODES[:-1]:
        rows, output = benchmarked(network, x, pert_mode=mode, level="L1")
        found = {row["entry"]: row.get("consistent") for row in rows}
        assert found["Functional.softmax.0.forward"] is True
        assert found["Tensor.__mul__.0.forward"] is True
        assert found["Functional.dropout.0.forward"] is None
        assert not [row for row in rows if row.get("consistent") is False]
    assert output.shape == (6, 8)


def test_training_is_unchanged_where_operators_run_again(layer_probe):
    """To the bit, forward and backward."""
    expected, _ = trained(recompute=True)
    for stage in ("forward", "backward"):
        probe = layer_probe(
            task="free_benchmark",
            pert_mode="bit_noise",
            level="mix",
            fuzz_stage=stage,
            strict=True,
            existing="overwrite",
        )
        found, _ = trained(probe, recompute=True)
        probe.close()
        assert found == expected
        rows = [row for row in rows_of(probe) if "why" not in row]
        assert any(row["entry"].startswith("Functional.relu.") for row in rows)
        assert all(row["consistent"] for row in rows)


def test_sum_that_loses_small_terms_is_found(layer_probe):
    """The order of the terms of a sum does not count, unless digits are lost."""

    def careless(x, axis=-1):
        total = Tensor(np.zeros(x.shape[:-1], np.float16))
        for index in range(x.shape[-1]):
            total = Tensor(total.asnumpy() + x.asnumpy()[..., index])
        return total

    values = np.ones((3, 64), np.float16)
    values[:, 0] = 4096
    found = {}
    for name, function in (("careless", careless), ("careful", None)):
        operator = find_operator("Functional.sum")
        rows: list[dict] = []
        phase = BenchmarkedPhase(ProbeConfig(pert_mode="change_value"), {}, rows.extend)
        compute = function or (
            lambda x, axis=-1: Tensor(x.asnumpy().astype(np.float64).sum(axis).astype(np.float16))
        )
        given, named = (Tensor(values),), {"axis": -1}
        call = OperatorCall(operator, compute, given, named, "Functional.sum.0.forward")
        phase.operator_begins(call).ended(compute(*given, **named))
        phase.close()
        found[name] = [row["consistent"] for row in rows]
    assert found == {"careless": [False], "careful": [True]}
