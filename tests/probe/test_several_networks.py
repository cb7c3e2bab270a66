"""Several networks of one role, and one network in several roles: their weights, and what is said.

MindRLHF's actor is three networks: one generates, the old policy and the trained one follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.programs import ALL_LAYERS, read_json

from mindrlhf_msprobe import Probe, check_run, compare_runs, open_run

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Policy, Scale, Twice, tensor
from mindspore import Tensor

from mindrlhf_msprobe.findings import Cause, CulpritCode, Divergence
from mindrlhf_msprobe.report.comparison import render

GENERATE, LOG_PROB, UPDATE = "actor_generate_sequences", "actor_compute_log_prob", "actor_update"
REFERENCE = "reference_compute_log_prob"
ACTORS = (GENERATE, LOG_PROB, UPDATE)
SETTINGS = {
    **{"msprobe": True, "key_data_dump": True, "step_end": 9, "token_range_end": 9},
    **ALL_LAYERS,
}


def weights_of(path: Path) -> Mapping[str, Mapping[str, str]]:
    weights: Mapping[str, Mapping[str, str]] = read_json(path / "run.json")["initial_weights"]
    return weights


def record(
    path: Path,
    change: Callable[[int, dict[str, Any]], None] | None = None,
    *,
    watched: str | None = None,
    steps: int = 1,
    **settings: Any,
) -> Path:
    """Record a training with a network of its own for each phase of the actor.

    Args:
        change: is given the step, before it begins, and the networks by phase.
        watched: the phase whose network is watched, after those of the others.
    """
    probe = Probe.from_config({**SETTINGS, "dump_path": str(path), "strict": True, **settings})
    networks: dict[str, Any] = {phase: Policy() for phase in (*ACTORS, REFERENCE)}
    if watched:
        probe.watch(actor=networks[watched])
    for step in range(steps):
        if change is not None:
            change(step, networks)
        for phase in (*ACTORS[:2], REFERENCE, UPDATE):
            with probe.phase(phase, model=networks[phase]):
                networks[phase](tensor(2, 3))
        probe.step()
    probe.close()
    return path


def add(cell: Any, much: float = 0.5) -> None:
    """Change the one number of a Scale."""
    cell.factor.set_data(Tensor(cell.factor.asnumpy() + np.float32(much)))


def first(a: Path, b: Path) -> Divergence:
    found = compare_runs(a, b).verdict.first_divergence
    assert found is not None
    return found


@pytest.mark.parametrize("watched", [None, *ACTORS])
def test_the_initial_weights_of_every_network_are_taken(tmp_path, watched):
    """One stands under the role, the others under the phase in which they first ran."""
    weights = weights_of(record(tmp_path / "run", watched=watched))
    own = watched or GENERATE
    assert set(weights) == {"actor", "reference", *ACTORS} - {own}
    assert len({tuple(of.items()) for of in weights.values()}) == 1


def test_a_network_that_runs_in_several_phases_is_taken_once(watched, recorded):
    """And at its first phase, not later."""
    probe, network = watched(Policy())
    for _ in range(2):
        for phase in ACTORS:
            with probe.phase(phase):
                network(tensor(2, 3))
        probe.step()
    assert set(weights_of(recorded(probe).path)) == {"actor"}


def test_a_network_that_a_phase_is_given_later_is_no_initial_one(layer_probe, recorded):
    """A trainer may build one for each update; the first ones count."""
    probe = layer_probe()
    for _ in range(3):
        with probe.phase(UPDATE, model=Scale()):
            pass
        probe.step()
    assert set(weights_of(recorded(probe).path)) == {"actor"}


def test_an_element_that_is_wrong_in_the_trained_network_alone(tmp_path):
    """Its initial weights say so; those of the other networks agree, which is no comfort."""

    def broken(step: int, networks: dict[str, Any]) -> None:
        if step == 0:
            add(networks[UPDATE].head)

    a, b = record(tmp_path / "a", steps=2), record(tmp_path / "b", broken, steps=2)
    found = first(a, b)
    assert (found.step, found.phase, found.cause) == (0, UPDATE, Cause.PARAMETER)
    assert found.culprit is None  # nothing was changed between two phases
    assert [check.to_json()["role"] for check in found.check_first] == [UPDATE]
    said = render(compare_runs(a, b))
    assert "initial weights of actor_update: 1 of 3 parameters differs (head.factor)" in said
    assert "agree (" not in said  # which would rule the cause out
    assert "changed between" not in said


def test_a_change_between_two_phases_of_one_network_is_still_said(tmp_path):
    """Of the same object, by the same name."""

    def run(path: Path, wrong: bool) -> Path:
        probe = Probe.from_config({**SETTINGS, "dump_path": str(path), "strict": True})
        network = Policy()
        probe.watch(actor=network)
        for step in range(2):
            for phase in ACTORS:
                if wrong and step == 1 and phase == UPDATE:
                    add(network.head)
                with probe.phase(phase):
                    network(tensor(2, 3))
                if phase == UPDATE:
                    add(network.backbone.first, 0.25)
            probe.step()
        probe.close()
        return path

    found = first(run(tmp_path / "a", False), run(tmp_path / "b", True))
    assert (found.step, found.phase, found.cause) == (1, UPDATE, Cause.PARAMETER)
    assert found.culprit is not None
    assert found.culprit.code is CulpritCode.CHANGED_BETWEEN


@pytest.mark.parametrize("swapped", [False, True])
def test_a_trained_network_that_is_changed_after_its_update(tmp_path, swapped):
    """The old policy and the rollout have copies of what the update made: it was right."""

    def trained(step: int, networks: dict[str, Any]) -> None:
        if step:
            for phase in ACTORS:
                add(networks[phase].head, 0.25)

    def changed(step: int, networks: dict[str, Any]) -> None:
        trained(step, networks)
        if step == 2:
            add(networks[UPDATE].head)

    runs = [
        record(tmp_path / name, change, steps=3)
        for name, change in (("a", trained), ("b", changed))
    ]
    found = first(*(runs[::-1] if swapped else runs))
    assert (found.step, found.phase, found.cause) == (2, UPDATE, Cause.PARAMETER)
    assert found.culprit is not None
    assert found.culprit.code is CulpritCode.CHANGED_BETWEEN
    assert (found.culprit.details["run"], found.culprit.details["copied"]) == ("BA"[swapped], True)
    assert "in the trained network alone, after that update" in found.explanation


# A reference that moved.


@pytest.mark.parametrize("window", [{}, {"step_start": 2, "step_end": 2}])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("phase", [REFERENCE, LOG_PROB])
def test_a_network_that_was_changed_after_the_start(tmp_path, window, swapped, phase):
    """Its first weights are history, too: no step before need be recorded."""

    def moved(step: int, networks: dict[str, Any]) -> None:
        if step == 2:
            add(networks[phase].head)

    a = record(tmp_path / "a", steps=3, **window)
    b = record(tmp_path / "b", moved, steps=3, **window)
    pair = (b, a) if swapped else (a, b)
    found = first(*pair)
    assert (found.step, found.phase, found.cause) == (2, phase, Cause.PARAMETER)
    assert found.culprit is not None
    assert found.culprit.code is CulpritCode.MOVED
    assert found.culprit.details["run"] == "AB"[not swapped]
    assert (found.culprit.details["parameters"], found.culprit.details["of"]) == (1, 3)
    assert f"In {'AB'[not swapped]} the network of {phase} changed after" in found.explanation


@pytest.mark.parametrize("window", [{}, {"step_start": 2, "step_end": 2}])
def test_check_sees_a_reference_that_moved(tmp_path, window):
    """Also where no step was recorded in which it had its first weights."""

    def moved(step: int, networks: dict[str, Any]) -> None:
        if step == 2:
            add(networks[REFERENCE].head)

    assert not check_run(record(tmp_path / "right", steps=3, **window)).findings
    findings = check_run(record(tmp_path / "run", moved, steps=3, **window)).findings
    (found,) = [one for one in findings if one.rule == "weights.moved"]
    assert (found.place.step, found.place.phase) == (2, REFERENCE)
    assert found.said.params["count"] == 1


# One object in two roles.


@pytest.mark.parametrize("how", ["watch", "later", "model"])
def test_one_network_in_two_roles_is_said_once(layer_probe, warnings_of, recorded, how):
    """At watch, or where a phase is given it; and run.json holds it."""
    probe = layer_probe()
    network = Policy()
    if how == "watch":
        probe.watch(actor=network, reference=network)
    else:
        probe.watch(actor=network)
        if how == "later":
            probe.watch(reference=network)
    for _ in range(2):
        with probe.phase(UPDATE):
            network(tensor(2, 3))
        with probe.phase(REFERENCE, *([network] if how == "model" else [])):
            network(tensor(2, 3))
        probe.step()
    (said,) = warnings_of()
    assert "actor and reference are one network" in said
    run = recorded(probe)
    held = {n.role: n.same_as for file in run.run_files for n in file.networks}
    assert held == {"actor": None, "reference": "actor"}


def test_networks_of_their_own_are_not_warned_of(layer_probe, warnings_of):
    """Also where they are of one class, and equal."""
    probe = layer_probe()
    probe.watch(actor=Twice(), reference=Twice(), critic=Twice())
    assert not warnings_of()


@pytest.mark.parametrize("phases", [False, True])
def test_key_data_alone_say_it_too(tmp_path, phases):
    """In the first round already, and where nothing tells of phases."""

    def run(path: Path, shared: bool) -> Path:
        switches = {"msprobe": True, "key_data_dump": True, "dump_path": str(path)}
        probe = Probe.from_config(switches)
        actor = Policy()
        reference = actor if shared else Policy()
        probe.watch(actor=actor, reference=reference)
        for _ in range(2):
            with probe.phase(REFERENCE) if phases else nullcontext():
                log_prob = reference(tensor(2, 3))
            probe.save_data(ref_log_prob=log_prob)
            add(actor.head)
            probe.step()
        probe.close()
        return path

    found = first(run(tmp_path / "a", False), run(tmp_path / "b", True))
    assert (found.step, found.record) == (1, "ref_log_prob")
    assert "In B reference and actor are one network" in found.explanation


@pytest.mark.parametrize("swapped", [False, True])
def test_one_network_in_two_roles_is_in_the_verdict(tmp_path, swapped):
    """Where the reference of one run is its actor, and the other's is not."""

    def run(path: Path, shared: bool) -> Path:
        probe = Probe.from_config({**SETTINGS, "dump_path": str(path)})
        actor = Policy()
        probe.watch(actor=actor, reference=actor if shared else Policy())
        reference = actor if shared else Policy()
        probe.watch(reference=reference)
        for _ in range(2):
            with probe.phase(REFERENCE):
                reference(tensor(2, 3))
            with probe.phase(UPDATE):
                actor(tensor(2, 3))
            add(actor.head)
            probe.step()
        probe.close()
        return path

    paths = [run(tmp_path / "a", swapped), run(tmp_path / "b", not swapped)]
    found = first(*paths)
    assert (found.step, found.phase, found.cause) == (1, REFERENCE, Cause.PARAMETER)
    side = "A" if swapped else "B"
    assert f"In {side} reference and actor are one network" in found.explanation
    assert "one network" in render(compare_runs(*paths))
    assert open_run(paths[0]).steps == [0, 1]
