"""`optimizer_state: true`: what optimizers keep for their next update, once a step."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from helpers.small_networks import Assembled, in_mode
from mindspore import Tensor, mint, nn

from mindrlhf_msprobe import Probe, check_run, compare_runs, open_run
from mindrlhf_msprobe.capture.pynative.gradients import state_of
from mindrlhf_msprobe.storage.records import is_optimizer_state

STATE = "Cell.optimizer_state.Adam.forward.0"


class Net(Assembled, a=lambda: nn.Dense(3, 4), b=lambda: nn.Dense(4, 2)):
    """Two layers and a loss."""

    def construct(self, x):
        return self.b(ms.ops.tanh(self.a(x))).sum()


class Update(nn.Cell):
    """A whole update, to be compiled."""

    def __init__(self, net, optimizer):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.run = ms.value_and_grad(net, None, optimizer.parameters)

    def construct(self, x):
        loss, gradients = self.run(x)
        return ms.ops.depend(loss, self.optimizer(gradients))


def train(root, *, steps=3, poke=None, compiled=False, updates=1, **settings):
    """Train, recorded or (root None) not; return the optimizer, with its states after each step."""
    ms.set_seed(1)
    np.random.seed(1)
    net = Net()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    on = {"msprobe": root is not None, "key_data_dump": True, "actor_train_dump": True}
    chosen = {"dump_path": str(root), "step_end": 9, "optimizer_state": True, **settings}
    random, states = np.random.RandomState(0), []
    mode = ms.GRAPH_MODE if compiled else ms.PYNATIVE_MODE
    with in_mode(mode), Probe.from_config({**on, **chosen}) as probe:
        probe.watch(actor=net, optimizers={"actor": optimizer})
        update = Update(net, optimizer)
        for step in range(steps):
            for _ in range(updates):
                x = Tensor(random.randn(5, 3).astype(np.float32))
                with probe.phase("actor_update"):
                    loss = update(x)
            if poke is not None and step == 1:
                value = optimizer.moment2[0].asnumpy().copy()
                value.flat[0] = poke(value.flat[0])
                optimizer.moment2[0].set_data(Tensor(value))
            probe.save_data("loss", loss)
            probe.step()
            states.append({p.name: p.asnumpy().copy() for p in optimizer.get_parameters()})
    return states


def states_in(root, step):
    return [e for e in open_run(root).entries(step=step) if is_optimizer_state(e.cell)]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_state_after_the_last_update_of_each_step(tmp_path, compiled):
    """Every parameter of the optimizer but those that it trains, by exact oracles."""
    states = train(tmp_path / "run", compiled=compiled, updates=2)
    for step, state in enumerate(states):
        (entry,) = states_in(tmp_path / "run", step)
        assert (entry.name, entry.phase, entry.opening) == (STATE, "actor_update", 1)
        found = {r.path.removeprefix("0.").replace("%2E", "."): r for r in entry.records}
        trained = {"a.weight", "a.bias", "b.weight", "b.bias"}
        assert set(found) == set(state) - trained
        assert {"global_step", "beta1_power", "moment1.a.weight", "moment2.b.bias"} <= set(found)
        for name, record in found.items():
            assert record.io == "output"
            assert record.location is None
            norm = np.linalg.norm(state[name].astype(np.float64))
            assert np.isclose(record.leaf.norm, norm, rtol=1e-6)
            assert record.leaf.shape == state[name].shape
        last = max(e.end for e in open_run(tmp_path / "run").entries(step=step))
        assert last == entry.end
    for entry in open_run(tmp_path / "run").entries():
        assert entry.parent is None or not is_optimizer_state(entry.cell)


def test_training_is_the_same_bit_for_bit(tmp_path):
    """With it, without it, and without a probe; with full tensors the state is statistics, too."""
    plain = train(None)
    for name, settings in {"on": {"task": "tensor"}, "off": {"optimizer_state": False}}.items():
        states = train(tmp_path / name, **settings)
        for ours, theirs in zip(states, plain, strict=True):
            assert all((ours[p] == theirs[p]).all() for p in theirs)
    assert states_in(tmp_path / "off", 1) == []
    (entry,) = states_in(tmp_path / "on", 1)
    assert all(record.location is None for record in entry.records)
    result = compare_runs(tmp_path / "on", tmp_path / "off")
    assert result.verdict.status == "identical"
    codes = [gap.message.code for gap in result.verdict.coverage if gap.message]
    assert "coverage.optimizer_state_off" in codes


def test_a_state_that_differs_is_named_where_it_arose(tmp_path):
    """In the step in which nothing else differs yet; what was known before is said."""
    train(tmp_path / "a")
    train(tmp_path / "b", poke=lambda value: value * 1.5)
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert (first.step, first.entry, first.cause) == (1, STATE, "parameter")
    assert first.record == f"{STATE}.output.0.moment2%2Ea%2Eweight"
    (said,) = [one for one in first.reasons if one.code == "explanation.optimizer_state"]
    assert said.params == {"gradients": True, "before": True, "step": 0}
    assert (first.culprit, first.next_step) == (None, None)


def test_an_infinity_born_in_the_optimizer(tmp_path):
    """It is named with its place and cause; a run without it is silent."""
    train(tmp_path / "good", steps=6)
    assert check_run(tmp_path / "good").findings == ()
    for number, value in enumerate((np.inf, -np.inf, np.nan)):
        root = tmp_path / f"bad{number}"
        train(root, poke=lambda _, value=value: value)
        finding = check_run(root).findings[0]
        assert finding.rule == "non_finite.first"
        assert (finding.place.step, finding.place.phase) == (1, "actor_update")
        assert finding.place.record == f"{STATE}.output.0.moment2%2Ea%2Eweight"
        assert finding.said.code == "check_non_finite.optimizer_state"
        assert finding.said.params["gradients_finite"]
        assert finding.causes[0].code == "check_non_finite.cause_optimizer"


def test_trends_of_the_moments(tmp_path):
    """The norms of all moments together, and by layer."""
    states = train(tmp_path / "run")
    run = open_run(tmp_path / "run")
    for number, derived in enumerate(("adam_first_moment", "adam_second_moment"), start=1):
        series = {one.name: one for one in run.trend(derived=derived)}
        for layer in ("", "a", "b"):
            parts = [
                [v for n, v in state.items() if n.startswith(f"moment{number}.{layer}")]
                for state in states
            ]
            norms = [np.sqrt(sum((p.astype(np.float64) ** 2).sum() for p in of)) for of in parts]
            name = f"{derived}[{layer}]" if layer else derived
            assert np.allclose(series[name].values, norms, rtol=1e-6)


def test_what_optimizers_of_every_kind_keep():
    """What they train is not among it, also where `param_groups` hold it."""
    net = Net()
    parameters = net.trainable_params()
    trained = {p.name for p in parameters}
    for make, kept in (
        (lambda: nn.AdamWeightDecay(parameters, 1e-3), {"adam_m.a.weight", "adam_v.b.bias"}),
        (lambda: nn.Momentum(parameters, 1e-3, 0.9), {"moments.a.weight"}),
        (lambda: mint.optim.AdamW(parameters, 1e-3), {"exp_avg.a.weight", "state_step"}),
    ):
        state = state_of(make())
        assert kept <= set(state)
        assert not trained & set(state)
