"""task: grad_probe: signs and shares of the gradients that enter an optimizer, by update."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import MODES, tensor
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe import ConfigError, Probe, ProbeConfig, compare_runs, open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.storage.arrays.npy import open_npy
from mindrlhf_msprobe.storage.reading.gradients import open_gradients
from mindrlhf_msprobe.trends.similarity import Measure, compare_gradients

PHASE = "actor_update"
BOUNDS = (-1.0, 0.0, 1.0)


class Holds(nn.Cell):
    """Holds parameters and never runs."""

    def __init__(self, **values):
        super().__init__()
        for name, value in values.items():
            setattr(self, name, Parameter(value, name=name))


class Takes(nn.Cell):
    """Stands for an optimizer: takes whatever gradients it is given."""

    def __init__(self, network):
        super().__init__()
        self.parameters = network.trainable_params()

    def construct(self, gradients):
        """Update nothing."""
        return len(gradients)


class Tied(nn.Cell):
    """Two layers that share a weight, and a scalar."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4, weight_init=tensor(4, 4), has_bias=False)
        self.second = nn.Dense(4, 4, weight_init=tensor(4, 4, start=-0.7), has_bias=False)
        self.again = nn.Dense(4, 4, has_bias=False)
        self.again.weight = self.first.weight
        self.scale = Parameter(Tensor(1.5, ms.float32), name="scale")

    def construct(self, x):
        """Return a loss."""
        return (self.again(ops.tanh(self.second(self.first(x)))) * self.scale).mean()


@pytest.fixture(autouse=True)
def _pynative():
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def train(probe, *, steps=2, passes=1, updates=1, watched=True, outside=False, flipped_from=99):
    """Train `Tied`, and return the bits of its losses and, at the end, of its weights.

    Args:
        passes: backward passes that are added up for an update.
        outside: call the optimizer behind the phase.
        flipped_from: the step from which the gradient of second.weight has the wrong sign.
    """
    network = Tied()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    probe.watch(actor=network, optimizers={"actor": optimizer} if watched else None)
    differentiate = ms.value_and_grad(network, None, optimizer.parameters)
    signs = [-1.0 if p.name.endswith("second.weight") else 1.0 for p in optimizer.parameters]
    bits = []
    for step in range(steps):
        with probe.phase(PHASE):
            for update in range(updates):
                x = tensor(2, 4, start=0.3 * step + update)
                loss, gradients = differentiate(x)
                for number in range(1, passes):
                    more = differentiate(x + number)[1]
                    gradients = tuple(map(ops.add, gradients, more))
                if step >= flipped_from:
                    gradients = tuple(g * sign for g, sign in zip(gradients, signs))
                bits.append(loss.asnumpy().tobytes())
                if not outside:
                    optimizer(gradients)
        if outside:
            optimizer(gradients)
        probe.step()
    return bits + [p.asnumpy().tobytes() for p in network.get_parameters()]


@pytest.fixture
def run_of(tmp_path):
    """Return a function that trains with the task and opens the run."""
    probes = []

    def record(name, mode="pynative", settings=None, **trained):
        on = {"msprobe": True, "actor_train_dump": True, "step_end": 9, "strict": True}
        on |= {"dump_path": str(tmp_path / name), "task": "grad_probe", **(settings or {})}
        ms.set_context(mode=MODES[mode])
        probes.append(Probe.from_config(on))
        train(probes[-1], **trained)
        probes[-1].close()
        return open_run(tmp_path / name)

    yield record
    for probe in probes:
        probe.close()


def gradients(run, step=0):
    return open_gradients(run.path).at(step, 0)


def leaf_of(gradient):
    assert gradient.record is not None
    return gradient.record.leaf


SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 1e-7, -1e-7, 0.5, -2.0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_signs_and_shares_are_those_of_the_elements(layer_probe, dtype):
    """Of any float dtype and shape; zeros, −0.0 and NaN are not above zero, as in msprobe."""
    kind = getattr(ms, dtype)
    values = {
        "special": np.array(SPECIAL, np.float64),
        "matrix": np.linspace(-1.5, 1.25, 3 * 7 * 5).reshape(3, 7, 5),
        "large": np.random.default_rng(0).normal(size=70_001),  # more than a block
        "scalar": np.array(0.25),
        "empty": np.zeros((0, 3)),
    }
    given = {name: Tensor(value, kind) for name, value in values.items()}
    network = Holds(**{name: Tensor(np.zeros(v.shape), kind) for name, v in values.items()})
    optimizer = Takes(network)
    probe = layer_probe(task="grad_probe", strict=True)
    probe.watch(actor=network, optimizers={"actor": optimizer})
    with probe.phase(PHASE):
        optimizer(tuple(given[p.name] for p in optimizer.parameters))
    probe.step()
    probe.close()
    found = {g.parameter: g for g in open_gradients(probe.config.dump_path).at(0, 0)}
    assert set(found) == set(values)
    for name, gradient in found.items():
        elements = given[name].astype(ms.float64).asnumpy().reshape(-1)
        bits = np.unpackbits(open_npy(gradient.signs))[: elements.size]
        assert bits.tolist() == [x > 0 for x in elements.tolist()], name
        edges = [-math.inf, *BOUNDS, math.inf]
        counts = [sum(a < x <= b for x in elements) for a, b in itertools.pairwise(edges)]
        counts[0] += int(np.sum(elements == -math.inf))
        expected = [count / max(1, elements.size) for count in (*counts, np.sum(elements == 0))]
        assert list(leaf_of(gradient).shares or ()) == expected, name
        assert leaf_of(gradient).shape == tuple(values[name].shape)
    assert leaf_of(found["special"]).nan_count == 1


def test_an_update_is_a_call_of_the_optimizer(run_of):
    """However many backward passes went before it; without the optimizer passes are counted."""
    run = run_of("updates", passes=3, updates=2)
    names = ["scale", "first.weight", "second.weight"]
    found = gradients(run)
    assert [(g.parameter, g.update) for g in found] == [(n, u) for u in (0, 1) for n in names]
    assert all(leaf_of(gradient).at_optimizer for gradient in found)
    assert {g.update for g in gradients(run_of("passes", passes=3, watched=False))} == {0, 1, 2}


def test_an_optimizer_without_parameters_costs_its_updates_alone(layer_probe, recorded):
    """Gradients are recorded by backward pass then, and run.json says that something was lost."""
    network = Tied()
    probe = layer_probe(task="grad_probe")
    probe.watch(actor=network, optimizers={"actor": nn.ReLU()})
    with probe.phase(PHASE):
        ms.value_and_grad(network, None, network.trainable_params())(tensor(2, 4))
    probe.step()
    run = recorded(probe)
    assert len(gradients(run)) == 3
    assert run.manifests[0]["lost"]


def test_both_modes_record_the_same(run_of):
    """Also where the optimizer is called when the phase is over."""
    a, b = run_of("pynative"), run_of("graph", "graph")
    assert compare_runs(a.path, b.path)
    outside = run_of("outside", outside=True)
    for other in (b, outside):
        trend = compare_gradients(
            open_gradients(a.path), open_gradients(other.path), measure=Measure.SIGNS
        )
        assert [found.value for found in trend.updates] == [1.0, 1.0]
        assert not trend.suspicious
        assert not trend.alone
    for one, other in zip(gradients(a, 1), gradients(b, 1)):
        assert leaf_of(one).shares == leaf_of(other).shares
        assert leaf_of(one).fingerprint == leaf_of(other).fingerprint


@pytest.mark.parametrize("mode", MODES)
def test_training_is_unchanged(mode, layer_probe, tmp_path):
    """Losses and weights are the same bits with the task, off and without a probe."""
    ms.set_context(mode=MODES[mode])
    on = layer_probe(task="grad_probe", strict=True)
    bits = train(on, passes=2)
    on.close()
    assert train(Probe(), passes=2) == bits


def test_the_step_and_parameter_where_signs_change_are_named(run_of, capsys):
    """Of two runs of which one flips the gradient of a layer from a step on."""
    a, same, other = (
        run_of("a", steps=4),
        run_of("b", steps=4),
        run_of("c", steps=4, flipped_from=2),
    )
    assert main(["trend", "--gradients", str(a.path), str(same.path)]) == 0
    assert "first 1.000000, last 1.000000" in capsys.readouterr().out
    assert main(["trend", "--gradients", str(a.path), str(other.path)]) == 1
    out = capsys.readouterr().out
    assert "from step 2, rank 0, actor_update, update 0, second.weight" in out
    assert "first.weight" not in out.split("step 3")[0]


def test_levels_and_lists_say_of_which_gradients(run_of):
    """msprobe's grad_level and param_list; statistics are recorded of all."""
    levels = {"L0": (False, False), "L1": (True, False), "L2": (True, True)}
    for level, expected in levels.items():
        settings = {"grad_level": level, "bounds": [0.5], "param_list": ["second.weight"]}
        run = run_of(level, steps=1, settings=settings)
        for gradient in gradients(run):
            leaf = gradient.record.leaf
            listed = gradient.parameter == "second.weight"
            has = gradient.signs is not None, len(leaf.shares or ()) == 3
            assert has == (expected if listed else (False, False)), (level, gradient.parameter)
            assert leaf.norm is not None


def test_what_entered_earlier_is_recorded_as_with_statistics(run_of):
    """The layers' entries are there as they are with task: statistics."""
    with_task, plain = run_of("a", steps=1), run_of("b", steps=1, settings={"task": "statistics"})

    def layers(run):
        return [
            (entry.name, record.name, record.leaf)
            for entry in run.entries()
            if entry.direction != "parameters_grad"
            for record in entry.records
        ]

    assert layers(with_task) == layers(plain)


def test_gradients_need_backward_entries():
    """A configuration that records no gradients is refused."""
    with pytest.raises(ConfigError, match=r"directions: \[backward\]"):
        ProbeConfig(task="grad_probe", directions=["forward"])
