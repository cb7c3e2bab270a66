"""Phases that open together: one call runs two networks, each recorded in the phase of its role."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Assembled, hook_count
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe, UsageError, compare_runs, open_run
from mindrlhf_msprobe.comparison import Tolerance

TOKENS = Tensor(np.arange(10).reshape(2, 5) * 7 % 11, ms.int32)
BOTH = ["actor_update", "critic_update"]
MODES = {"PyNative": ms.PYNATIVE_MODE, "graph": ms.GRAPH_MODE}


class Small(nn.Cell):
    """An embedding and two layers."""

    def __init__(self) -> None:
        super().__init__()
        ms.set_seed(1)
        self.embedding = nn.Embedding(11, 8)
        self.hidden, self.head = nn.Dense(8, 8), nn.Dense(8, 11)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.head(ops.gelu(self.hidden(self.embedding(tokens))))


class Both(Assembled, actor=Small, critic=Small):
    """Actor and critic with one loss, as PPO trains them together."""

    def construct(self, tokens: Tensor) -> Tensor:
        log_prob = ops.log_softmax(self.actor(tokens), -1)
        values = self.critic(ops.depend(tokens, log_prob))
        again = self.actor(tokens)
        return (values**2).mean() - log_prob.mean() + (again**2).mean() / 7


def train(path: Path | None, mode: int, phases: Any = BOTH, **settings: Any) -> list[bytes]:
    """Train two steps and return the bits of every loss and, at the end, weight."""
    ms.set_context(mode=mode)
    on = {"msprobe": True, "actor_train_dump": True, "critic_train_dump": True, "step_end": 9}
    section = {**on, "strict": True, "dump_path": str(path), **settings}
    probe = Probe.from_config(section if path is not None else {})
    try:
        both = Both()
        optimizer = nn.AdamWeightDecay(both.trainable_params(), 0.01)
        step = nn.TrainOneStepCell(both, optimizer)
        probe.watch(
            actor=both.actor,
            critic=both.critic,
            optimizers={"actor": optimizer, "critic": optimizer},
        )
        bits = []
        for _ in range(2):
            with probe.phase(phases):
                loss = step(TOKENS)
            assert hook_count(both) == 0
            bits.append(loss.asnumpy().tobytes())
            probe.step()
        return bits + [p.asnumpy().tobytes() for p in both.get_parameters()]
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        probe.close()


def names(path: Path, phase: str, step: int = 1) -> set[str]:
    """Return the names of a phase's entries."""
    return {entry.name for entry in open_run(path).entries(phase=phase, step=step)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, list[bytes]]]:
    """Record the training in both modes, with full tensors."""
    folder = tmp_path_factory.mktemp("joint")
    runs = {}
    for name, mode in MODES.items():
        runs[mode] = folder / name, train(folder / name, mode, task="tensor")
    return runs


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_each_network_is_recorded_in_the_phase_of_its_role(mode, recorded):
    """Calls are counted apart, gradients are its own, and the training's bits stay."""
    path, bits = recorded[mode]
    assert bits == train(None, mode)
    run = open_run(path)
    assert run.phases == BOTH
    assert not run.lost
    actor, critic = (names(path, phase) for phase in BOTH)
    assert actor > critic
    assert {n for n in actor - critic if ".forward." in n} >= {"Cell.root.Small.forward.1"}
    for part in ("forward.0", "backward.0"):
        assert f"Cell.root.Small.{part}" in critic
    for found in (actor, critic):
        assert "Cell.head.Dense.parameters_grad.0" in found
        assert "Cell.head.Dense.parameters_grad.1" not in found


def test_the_modes_line_up(recorded):
    """Every record of PyNative has its counterpart in the graph."""
    runs = [recorded[mode][0] for mode in MODES.values()]
    result = compare_runs(*runs, tolerance=Tolerance(1e-4, 1e-5))
    found = {status for status, count in result.verdict.counts.items() if count}
    assert found <= {"identical", "within_tolerance"}


def test_gradients_are_those_of_the_critic_trained_alone(recorded):
    """What the critic's part holds is not the actor's under another name."""
    run = open_run(recorded[ms.PYNATIVE_MODE][0])
    gradients = {}
    for phase in BOTH:
        (entry,) = [
            entry
            for entry in run.entries(phase=phase, step=0)
            if entry.name == "Cell.head.Dense.parameters_grad.0"
        ]
        gradients[phase] = {r.path: r.array() for r in entry.records}["bias"]
    critic = Both().critic
    weights = critic.trainable_params()
    expected = ms.grad(lambda: (critic(TOKENS) ** 2).mean(), None, weights)()
    bias = next(g for g, p in zip(expected, weights) if p.name.endswith("head.bias"))
    np.testing.assert_allclose(gradients["critic_update"], bias.asnumpy(), rtol=1e-5)
    assert not np.allclose(gradients["actor_update"], bias.asnumpy(), rtol=1e-2)


def test_a_phase_that_is_switched_off_is_left_out(tmp_path):
    """The other one is recorded as if it were open alone."""
    train(tmp_path / "run", ms.PYNATIVE_MODE, actor_train_dump=False)
    assert open_run(tmp_path / "run").phases == ["critic_update"]


def test_a_critic_that_does_not_exist_records_nothing(layer_probe, recorded, tmp_path):
    """`watch(critic=None)`: the call is the actor's alone."""
    probe = layer_probe()
    actor = Small()
    probe.watch(actor=actor, critic=None)
    with probe.phase(BOTH):
        actor(TOKENS)
    probe.close()
    assert open_run(probe.config.dump_path).phases == ["actor_update"]


def test_networks_that_share_cells_hold_them_both(layer_probe):
    """A backbone with two heads stands under both roles, forward and backward."""
    probe = layer_probe()
    both = Both()
    both.critic.hidden = both.actor.hidden
    probe.watch(actor=both.actor, critic=both.critic)
    with probe.phase(BOTH):
        ms.grad(both, None, both.trainable_params())(TOKENS)
    probe.close()
    for phase in BOTH:
        found = names(Path(probe.config.dump_path), phase, 0)
        assert "Cell.hidden.Dense.forward.2" in found
        assert "Cell.hidden.Dense.parameters_grad.0" in found


def test_an_exception_closes_all_of_them(layer_probe):
    """It passes through; no hook stays, and the next opening records."""
    probe, both = layer_probe(), Both()
    probe.watch(actor=both.actor, critic=both.critic)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), probe.phase(BOTH):
            both(TOKENS).asnumpy()[1 // 0]
        assert hook_count(both) == 0
    probe.step()
    probe.close()
    assert "Cell.root.Small.forward.1" in names(Path(probe.config.dump_path), BOTH[1], 0)


def test_as_a_decorator(layer_probe):
    """Each call of the function is one opening of all of them."""
    probe, both = layer_probe(), Both()
    probe.watch(actor=both.actor, critic=both.critic)
    update = probe.phase(BOTH)(both)
    update(TOKENS)
    probe.close()
    assert open_run(probe.config.dump_path).phases == BOTH


def test_misuse_is_named(layer_probe):
    """Unknown names, none, one role twice, a model for several, and a network not watched."""
    probe = layer_probe()
    probe.watch(actor=Small())
    for names_, message in (
        (["actor_update", "critic_updat"], "Did you mean 'critic_update'"),
        ([], "expected phases of different roles"),
        (["actor_update", "actor_compute_log_prob"], "expected phases of different roles"),
        (["actor_update", 3], r"phase\(3\) is not known"),
        (7, r"phase\(7\) is not known"),
    ):
        with pytest.raises(UsageError, match=message):
            probe.phase(names_)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a model belongs to one phase"):
        probe.phase(BOTH, model=Small())
    with pytest.raises(UsageError, match="before a network was watched"), probe.phase(BOTH):
        pass
    with probe.phase("actor_update"):
        pass
    probe.watch(critic=Small())
    with probe.phase(BOTH):
        with pytest.raises(UsageError, match="'actor_update and critic_update' is still open"):
            probe.phase("actor_update").__enter__()
        with pytest.raises(UsageError, match="inside the phase 'actor_update and critic_update'"):
            probe.step()
