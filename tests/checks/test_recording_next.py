"""What a check says to record next: a configuration that records it."""

from __future__ import annotations

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.health_runs import HealthRun, an_inf, tensor
from helpers.small_networks import tensor as numbers
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe, check_run, load_config, open_run
from mindrlhf_msprobe.storage.place import StepPlace

REFERENCE, LOG_PROB, UPDATE = (
    "reference_compute_log_prob",
    "actor_compute_log_prob",
    "actor_update",
)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.Dense(4, 4) for _ in range(2)])

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def born_in_the_optimizer(root, *, state=False, **settings):
    """Record a weight, or an optimizer's moment, that an update makes infinite."""
    run = HealthRun(root, **settings)
    for step in range(3):
        with run.phase(LOG_PROB):
            bad = step == 2 and not state
            run.call("layers.1", parameters={"weight": an_inf() if bad else tensor()})
        with run.phase(UPDATE):
            run.call("layers.1")
            run.gradients("layers.1", weight=tensor())
            if state:
                run.call("optimizer_state", output=an_inf() if step == 1 else tensor())
        run.end_step()
    return run.close()


def recorded(root, section, *, steps=3):
    """Record a training of two tiny networks as a section says."""
    probe = Probe.from_config({**section, "dump_path": str(root), "strict": True})
    actor, reference = Network(), Network()
    optimizer = nn.Adam(actor.trainable_params(), 0.1)
    probe.watch(actor=actor, reference=reference, optimizers={"actor": optimizer})
    update = ms.value_and_grad(lambda x: actor(x).mean(), None, optimizer.parameters)
    for step in range(steps):
        x = numbers(2, 4, start=step)
        with probe.phase(LOG_PROB):
            log_prob = actor(x)
        probe.save_data(old_log_prob=log_prob)
        with probe.phase(REFERENCE):
            probe.save_data(ref_log_prob=reference(x))
        with probe.phase(UPDATE):
            loss, gradients = update(x)
            optimizer(gradients)
        probe.save_data(loss=loss)
        probe.step()
    probe.close()
    return open_run(root)


def next_of(run, rule):
    (finding,) = (one for one in check_run(run).findings if one.rule == rule)
    load_config({"msprobe_config": finding.next_step})
    return finding.next_step


def names_of(run, phase, step):
    return [record.name for entry in run.entries(phase, step, 0) for record in entry.records]


@pytest.mark.parametrize("state", [False, True])
def test_an_inf_that_is_born_in_the_optimizer(tmp_path, state):
    """What enters the optimizer and what it keeps, in the update between the two steps."""
    section = next_of(
        born_in_the_optimizer(tmp_path / "run", state=state, optimizer_state=state),
        "non_finite.first",
    )
    run = recorded(tmp_path / "next", section)
    at_update = names_of(run, UPDATE, 1)
    assert [entry for entry in at_update if ".parameters_grad." in entry and "layers.1" in entry]
    assert any("optimizer_state" in name and "moment2" in name for name in at_update)
    assert "loss" in run.keys
    gradients = [r for e in run.entries(UPDATE, 1, 0) for r in e.records if "_grad." in r.name]
    assert gradients
    assert all(one.leaf.signs is not None for one in gradients)  # of the optimizer's call


def test_where_the_optimizer_was_recorded_its_elements_come_next(tmp_path):
    settings = {"task": "grad_probe", "optimizer_state": True}
    section = next_of(born_in_the_optimizer(tmp_path / "run", **settings), "non_finite.first")
    assert (section["task"], section["include"]) == ("tensor", [r"^layers\.1($|\.)"])
    run = recorded(tmp_path / "next", section)
    records = [r for e in run.entries(UPDATE, 1, 0) for r in e.records if "_grad." in r.name]
    assert records
    assert all(one.array().dtype == np.float32 for one in records)
    again = born_in_the_optimizer(tmp_path / "again", task="tensor", optimizer_state=True)
    assert next_of(again, "non_finite.first")["task"] == "grad_probe"


def wrong_reference(root, *, layers=True, parameters=None, **settings):
    """Record log-probabilities of a reference that differ, and of layers or of keys alone."""
    switches = {} if layers else {"actor_train_dump": False, "reference_dump": False}
    run = HealthRun(root, **switches, **settings)
    for number, phase in enumerate((LOG_PROB, REFERENCE)):
        with run.phase(phase):
            for cell in ("layers.0", "layers.1") if layers else ():
                differs = number if cell == "layers.1" and parameters else 0
                weight = tensor(fingerprint=f"xxh3_128:{differs:032x}")
                run.call(cell, parameters={"weight": weight})
        key = "ref_log_prob" if number else "old_log_prob"
        run.data(key, np.full((2, 3), -1.0 - number, np.float32))
    run.end_step()
    return run.close()


def test_a_reference_whose_layers_were_not_recorded(tmp_path):
    """The parameters of both networks, by which they are told apart."""
    section = next_of(wrong_reference(tmp_path / "run", layers=False), "rl.reference")
    assert "task" not in section
    run = recorded(tmp_path / "next", section)
    assert not any(run.phases_at(StepPlace(step, 0)) for step in (1, 2))
    for phase in (LOG_PROB, REFERENCE):
        parameters = [
            r for e in run.entries(phase, 0, 0) for r in e.records if r.io == "parameters"
        ]
        assert len(parameters) == 4
        assert all(one.leaf.fingerprint for one in parameters)
    assert {"weights.reference", "rl.reference"} & {f.rule for f in check_run(run).all_findings}


@pytest.mark.parametrize("weights", [True, False])
def test_a_reference_whose_parameters_are_known(tmp_path, weights):
    """Of a weight that differs its elements; where none does, those of what both computed."""
    rule = "weights.reference" if weights else "rl.reference"
    section = next_of(wrong_reference(tmp_path / "run", parameters=weights), rule)
    assert section["task"] == "tensor"
    assert section.get("include") == ([r"^layers\.1($|\.)"] if weights else None)
    run = recorded(tmp_path / "next", section)
    for phase in (LOG_PROB, REFERENCE):
        found = [r for e in run.entries(phase, 0, 0) for r in e.records]
        assert found
        assert all(one.array() is not None for one in found)


def test_what_has_all_elements_needs_no_further_recording(tmp_path):
    run = wrong_reference(tmp_path / "run", task="tensor")
    (finding,) = (one for one in check_run(run).findings if one.rule == "rl.reference")
    assert finding.next_step is None
