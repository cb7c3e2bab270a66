"""Key data that a trainer saves at the end of a step stand where they arose, not where they were
saved."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.health_runs import a_nan, steps_of, tensor

from mindrlhf_msprobe import check_run

KEYS = {
    "old_log_prob": "actor_compute_log_prob",
    "ref_log_prob": "reference_compute_log_prob",
    "values": "critic_compute_values",
    "rewards": None,
    "advantages": None,
}


def run_of(root, key, *, late, phases=True, of_phase=False, nan=True):
    """Return a run whose update is given a NaN that a key has; or whose phase made it."""
    for run, step, _ in steps_of(root, 2):
        bad = nan and step == 1
        saved = np.full((2, 3), -0.5)
        if bad:
            saved[1, 1] = np.nan
        with run.phase("actor_generate_sequences"):
            run.call("root")
        home = KEYS[key]
        if home is not None and phases:
            with run.phase(home):
                run.call("head", output=a_nan() if bad and of_phase else tensor())
        if not late:
            run.data(key, saved)
        with run.phase("actor_update"), run.cell("root"):
            run.call("a")
            run.call("loss", a_nan() if bad else None, a_nan() if bad else None)
        if late:
            run.data(key, saved)
        run.data("loss", float("nan") if bad else 1.0)
    return root


def first(root):
    (one, *others) = [f for f in check_run(root).all_findings if f.rule == "non_finite.first"]
    assert not [f for f in others if f.said.code == "check_non_finite.data"]
    return one


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("phases", [True, False])
def test_a_nan_is_told_where_it_arose_however_late_it_was_saved(tmp_path, key, phases):
    """Before the update that was given it, whether its own phase was recorded or not."""
    late = first(run_of(tmp_path / "late", key, late=True, phases=phases))
    early = first(run_of(tmp_path / "early", key, late=False, phases=phases))
    assert late.place.key == early.place.key == key
    assert late.said == early.said
    assert late.causes == early.causes
    assert late.place.phase == KEYS[key]


@pytest.mark.parametrize("late", [True, False])
def test_a_cell_of_its_phase_made_it(tmp_path, late):
    """Then the cell is where it was born."""
    one = first(run_of(tmp_path / "run", "old_log_prob", late=late, of_phase=True))
    assert one.place.entry == "Cell.head.Dense.forward.0"
    assert one.place.phase == "actor_compute_log_prob"


def test_a_healthy_run_says_nothing(tmp_path):
    assert not [
        f
        for f in check_run(run_of(tmp_path / "run", "values", late=True, nan=False)).all_findings
        if f.rule.startswith("non_finite")
    ]
