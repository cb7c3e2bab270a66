"""Runs that went on: with the state of their optimizers, or without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import Recording
from helpers.snapshots import rewrite

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.preflight.preflight import preflight
from mindrlhf_msprobe.storage.manifest.manifest import Networks
from mindrlhf_msprobe.storage.manifest.run_file import Settings
from mindrlhf_msprobe.storage.reading.reader import Run, open_run


def sections(count: int, lr: float = 0.1) -> Settings:
    """Return a network and its optimizer, which has counted some updates."""
    settings: dict[str, Any] = {
        "learning_rate": lr,
        "global_step": count,
        "beta1_power": 0.9**count,
    }
    cells = [{"class": "Dense", "attributes": {"width": 8}, "cells": ["root"]}]
    network = {"role": "actor", "phases": ["actor_update"], "class": "Dense", "cells": cells}
    modes = {"actor_update": [{"step": 0, "training": True}]}
    optimizers = {"actor": {"class": "Adam", "settings": settings}}
    return Settings({"networks": [network], "modes": modes, "optimizers": optimizers})


def record(root: Path, *attempts: Settings, step: int = 2) -> Run:
    """Record `step` steps an attempt, each with its settings."""
    for number, noted in enumerate(attempts):
        recording = Recording(root, step=number * step, existing="resume" if number else "refuse")
        recording.writer.manifest.begin(number * step)
        recording.writer.note(Networks(noted))
        for _ in range(step):
            recording.data("loss", 1.0)
            recording.end_step()
        recording.close()
    return open_run(root)


def said(a: Run, b: Run) -> list[str]:
    return [line for line in preflight(a, b).unknown if "resumed" in line or "attempt" in line]


def test_a_warm_resume_is_not_said(tmp_path: Path) -> None:
    """What an update changes by itself is no other optimizer."""
    whole = record(tmp_path / "a", sections(0))
    warm = record(tmp_path / "b", sections(0), sections(2))
    assert said(whole, warm) == said(warm, whole) == said(warm, warm) == []
    attempts = json.loads((tmp_path / "b" / "run.json").read_text())["attempts"]
    assert "networks" not in attempts[1]


@pytest.mark.parametrize("step", [2, 3])
def test_a_cold_resume_is_said_with_what_the_other_run_had_counted(tmp_path: Path, step) -> None:
    warm = record(tmp_path / "a", sections(0), sections(4), step=step)
    cold = record(tmp_path / "b", sections(0), sections(0), step=step)
    words = "resumed at step {} with another optimizer state (actor: global_step 0 against 4)"
    assert said(warm, cold) == [f"run B {words.format(step)}"]
    assert said(cold, warm) == [f"run A {words.format(step)}"]


def test_a_cold_resume_is_said_beside_a_run_that_was_not_stopped(tmp_path: Path) -> None:
    """As far as its own first attempt tells."""
    whole, cold = record(tmp_path / "a", sections(0)), record(tmp_path / "b", *[sections(0)] * 2)
    (line,) = said(whole, cold)
    assert "run B resumed at step 2 with the optimizer state of step 0" in line


def test_only_what_was_other_is_said(tmp_path: Path) -> None:
    """Another learning rate is none of networks and modes, which are noted with it."""
    whole = record(tmp_path / "a", sections(0))
    (line,) = said(whole, record(tmp_path / "b", sections(0), sections(2, lr=0.5)))
    assert "other settings of networks and optimizers" not in line
    assert "optimizers" in line
    assert "networks" not in line
    assert "modes" not in line


def test_caches_that_a_network_fills_are_no_other_network(tmp_path: Path) -> None:
    """A rotary network makes its tables when it first runs: there is none before."""
    first, again = sections(0).json, sections(2).json
    first["networks"][0]["cells"][0]["attributes"] |= {"_mask": None, "_scale": 1.0}
    again["networks"][0]["cells"][0]["attributes"] |= {"_scale": 1.0}
    whole = record(tmp_path / "a", Settings(first))
    assert said(whole, record(tmp_path / "b", Settings(first), Settings(again))) == []
    again["networks"][0]["cells"][0]["attributes"]["_scale"] = 2.0
    (line,) = said(whole, record(tmp_path / "c", Settings(first), Settings(again)))
    assert "networks" in line


def begun(root: Path, step: int, count: int, loss: float = 1.0) -> Path:
    """Record the steps from one on to 4, in a directory of their own."""
    recording = Recording(root, step=step, initial_step=step, actor_train_dump=False)
    recording.writer.manifest.begin(step)
    recording.writer.note(Networks(sections(count)))
    for own in range(step, 5):
        recording.data("loss", loss if own > step else 1.0)
        recording.end_step()
    return recording.close()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_that_begins_behind_the_other_went_on_without_its_optimizer(tmp_path, step) -> None:
    """In a directory of its own: it counts as many updates as the other one at its start."""
    whole, cold = begun(tmp_path / "a", 0, 0), begun(tmp_path / "b", step, 0)
    words = f"resumed at step {step} with the optimizer state of step 0 (actor: global_step 0"
    assert any(f"run B {words}" in line for line in said(open_run(whole), open_run(cold)))
    assert any(f"run A {words}" in line for line in said(open_run(cold), open_run(whole)))
    warm = begun(tmp_path / "warm", step, step)
    assert said(open_run(whole), open_run(warm)) == said(open_run(warm), open_run(whole)) == []
    assert said(open_run(cold), open_run(cold)) == []


def test_a_verdict_says_with_which_optimizer_a_run_went_on(tmp_path: Path) -> None:
    """What differs behind the resumed step may come of it; a warm resume is not named."""
    whole = begun(tmp_path / "a", 0, 0)
    for count, named in ((0, True), (2, False)):
        other = begun(tmp_path / f"b{count}", 2, count, loss=2.0)
        found = compare_runs(whole, other, output_path=tmp_path / "out").verdict.first_divergence
        assert found is not None
        assert (found.step, found.record) == (3, "loss")
        assert found.agreed_steps == 1, "step 2: of 0 and 1 B has nothing"
        words = "Run B resumed at step 2 with the optimizer state of step 0"
        assert (words in found.explanation) is named, found.explanation


@pytest.mark.parametrize("step", [0, 1, 3])
def test_what_updates_change_is_no_difference_of_runs_that_begin_apart(tmp_path, step) -> None:
    """Neither the weights that they begin with, nor how far their optimizers had counted."""
    runs = [begun(tmp_path / "a", 0, 0), begun(tmp_path / "b", step, step or 4)]
    for run, fingerprint in zip(runs, ("xxh3_128:aa", "xxh3_128:bb")):
        weights = {"actor": {"w": fingerprint}, "critic": {"w": "xxh3_128:cc"}}
        rewrite(run / "run.json", {"initial_weights": weights})
    found = preflight(*map(open_run, runs))
    settings = {difference.name for difference in found.differences}
    weights = [weights.role for weights in found.weights if weights.differ]
    words = f"initial weights of actor: run A began with step 0, run B with step {step}"
    if step:
        assert not settings & {"actor.global_step", "actor.beta1_power"}
        assert not weights
        assert any(words in line for line in found.unknown)
    else:
        assert {"actor.global_step", "actor.beta1_power"} <= settings
        assert weights == ["actor"]
        assert not any("began with step" in line for line in found.unknown)
    assert "critic" in [weights.role for weights in found.weights]


def with_state(root: Path, *counts: int) -> Path:
    """Record two steps an attempt, each with the state of the optimizer after its update."""
    for number, count in enumerate(counts):
        recording = Recording(root, step=2 * number, existing="resume" if number else "refuse")
        recording.writer.manifest.begin(2 * number)
        recording.writer.note(Networks(sections(count)))
        for own in (1, 2):
            state = {"moment1.w": np.float32([count]), "global_step": np.int32([count + own])}
            with recording.phase("actor_update"):
                recording.call("optimizer_state", "Adam", lambda state=state: state)
            recording.data("loss", 1.0)
            recording.end_step()
        recording.close()
    return root


@pytest.mark.parametrize("count", [0, 1])
def test_a_recorded_state_is_not_blamed_on_the_optimizer(tmp_path, count) -> None:
    """It differs in the resumed step itself, for the run went on with another one."""
    warm, cold = with_state(tmp_path / "a", 0, 2), with_state(tmp_path / "b", 0, count)
    for runs, side in (((warm, cold), "B"), ((cold, warm), "A")):
        found = compare_runs(*runs, workers=1).verdict.first_divergence
        assert found is not None
        assert (found.step, found.phase) == (2, "actor_update")
        assert f"Run {side} resumed at step 2 with another" in found.explanation
        assert f"global_step {count} against 2" in found.explanation
        assert "settings of the optimizer" not in found.explanation
