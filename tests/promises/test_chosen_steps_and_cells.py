"""Runs of every n-th step, or of a few cells: what is left out is said, nothing is missing."""

from __future__ import annotations

import pytest
from helpers.runs import Fault, record_training

from mindrlhf_msprobe import check_run, compare_runs, open_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the runs of one training: whole, every 2nd step, every 3rd step, one layer."""
    root = tmp_path_factory.mktemp("runs")
    settings = {
        "whole": {},
        "second": {"step_interval": 2},
        "third": {"step_interval": 3, "step_start": 1},
        "layer": {"include": ["layers\\.1"], "directions": ["forward"]},
    }
    return {name: record_training(root / name, steps=6, **of) for name, of in settings.items()}


def layers(run):
    return sorted({entry.step for entry in open_run(run).entries()})


def test_layers_of_every_nth_step_and_key_data_of_all(runs):
    """Counted from step_start."""
    assert layers(runs["second"]) == [0, 2, 4]
    assert layers(runs["third"]) == [1, 4]
    for run in runs.values():
        assert open_run(run).problems == []
        assert {datum.step for datum in open_run(run).key_data("loss")} == {*range(6)}


@pytest.mark.parametrize(
    ("a", "b", "codes"),
    [
        ("whole", "second", {"coverage.step_interval"}),
        ("second", "third", {"coverage.step_interval", "coverage.step_outside"}),
        ("third", "layer", {"coverage.step_interval", "coverage.step_outside"}),
    ],
)
def test_what_one_run_left_out_is_coverage(runs, a, b, codes):
    """Both ways; what both have is compared, and a place is named as without an interval."""
    for one, other in ((a, b), (b, a)):
        result = compare_runs(runs[one], runs[other])
        assert result.verdict.status == "identical"
        found = {gap.message.code for gap in result.verdict.coverage if gap.message}
        assert found - {"coverage.cells_left_out"} == codes


def test_the_first_recorded_step_of_a_divergence_is_named(runs, tmp_path):
    """A cell that goes wrong in step 3 of a run with an interval shows first in the key data."""
    fault = Fault("layers.1.mlp", "actor_compute_log_prob", step=3)
    bad = record_training(tmp_path / "bad", steps=6, step_interval=2, faults=[fault])
    for a, b in ((runs["second"], bad), (runs["whole"], bad)):
        first = compare_runs(a, b).verdict.first_divergence
        assert (first.step, first.record, first.cause) == (3, "old_log_prob", "data")


def test_checks_and_trends_of_chosen_cells_say_what_they_did_not_see(runs, cli):
    """Silent on a healthy run; rules that lack something, and what the run left out, are listed."""
    for name, said in {
        "layer": ["cells left out by include/exclude", "backward not recorded"],
        "second": ["steps between those that are recorded (step_interval: 2, from step 0 on)"],
    }.items():
        result = check_run(runs[name])
        assert not [one for one in result.findings if one.severity.value != "note"]
        whys = [str(one.why) for one in result.not_checked]
        assert all(any(text in why for why in whys) for text in said)
        assert "weights.moved" in result.checked
        assert (
            f"{runs[name]}: not held: {said[0]}"
            in cli("trend", runs[name], "--record", "layers.1.mlp.*output").err
        )
        shown = cli("check", runs[name], "--not-checked").out.splitlines()
        assert any(line == f"  {said[0]}" for line in shown)
        assert said[0] in cli("show", runs[name]).out
    assert all(one.rule for one in check_run(runs["whole"]).not_checked)
