"""Which ranks part, in which order, and how the answer says it."""

from __future__ import annotations

import json

import pytest
from helpers.runs import Fault, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.report.comparison import render

UPDATE, REFERENCE = "actor_update", "reference_compute_log_prob"


SIX = {"ranks": range(6), "tokens": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return record_training(tmp_path_factory.mktemp("ranks") / "a", **SIX)


@pytest.fixture
def compared(whole, tmp_path):
    """Return a function that compares the run with one into which faults were planted."""

    def compare(*faults, **options):
        record_training(tmp_path / "b", faults=faults, **SIX)
        return compare_runs(whole, tmp_path / "b", **options)

    return compare


def lines(result):
    return [line for line in render(result).splitlines() if line.startswith("Ranks: ")]


def test_the_earlier_step_comes_first(compared, tmp_path):
    """Rank 2 parts at step 0, rank 0 at step 1: rank 2 is named, and the others agree."""
    result = compared(
        Fault("head", REFERENCE, step=1, rank=0),
        Fault("head", UPDATE, step=0, rank=2),
        output_path=tmp_path / "out",
    )
    place = result.verdict.first_divergence
    assert (place.rank, place.step, place.phase) == (2, 0, UPDATE)
    assert [(r.rank, r.step, r.phase) for r in result.verdict.parted] == [
        (2, 0, UPDATE),
        (0, 1, REFERENCE),
    ]
    assert lines(result) == [
        f"Ranks: rank 2 diverges first, at step 0, {UPDATE}: Cell.head.Dense.forward.0.output.0",
        f"Ranks: rank 0 diverges later, at step 1, {REFERENCE}: Cell.head.Dense.forward.0.output.0",
        "Ranks: ranks 1, 3-5 agree throughout",
    ]
    ranks = json.loads((tmp_path / "out/verdict.json").read_text())["ranks"]
    assert ranks["agreeing"] == [1, 3, 4, 5]
    assert [(r["rank"], r["record"]) for r in ranks["parted"]] == [
        (2, "Cell.head.Dense.forward.0.output.0"),
        (0, "Cell.head.Dense.forward.0.output.0"),
    ]


def test_the_earlier_phase_comes_first(compared):
    """In one step the phase decides, whatever the ranks are called."""
    result = compared(Fault("embed", UPDATE, rank=0), Fault("head", REFERENCE, rank=3))
    assert [(r.rank, r.phase) for r in result.verdict.parted] == [(3, REFERENCE), (0, UPDATE)]
    assert result.verdict.first_divergence.rank == 3


def test_ranks_that_record_fewer_cells_are_no_earlier(tmp_path):
    """A stage with few cells has few entries before a phase: the phase still decides."""
    faults = [Fault("head", UPDATE, rank=0), Fault("head", REFERENCE, rank=1)]
    for name, planted in (("a", []), ("b", faults)):
        record_training(tmp_path / name, ranks=(0,), faults=planted, include=["^head$"])
        record_training(tmp_path / name, ranks=(1,), faults=planted)
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert [(r.rank, r.phase) for r in result.verdict.parted] == [(1, REFERENCE), (0, UPDATE)]


def test_the_order_inside_a_phase_counts_the_entries_before(compared):
    """Both part in one phase: the one whose earlier cell differs comes first."""
    result = compared(Fault("head", REFERENCE, rank=1), Fault("layers.0.mlp", REFERENCE, rank=4))
    assert [r.rank for r in result.verdict.parted] == [4, 1]


def test_ranks_that_part_together_stand_together(compared):
    """All ranks that part at the same record are named in one line, the lowest in the headline."""
    result = compared(*(Fault("head", REFERENCE, rank=rank) for rank in (1, 2, 3, 5)))
    assert result.verdict.first_divergence.rank == 1
    assert lines(result) == [
        f"Ranks: ranks 1-3, 5 diverge first, at step 0, {REFERENCE}: "
        "Cell.head.Dense.forward.0.output.0",
        "Ranks: ranks 0, 4 agree throughout",
    ]


def test_key_data_have_their_place_among_the_ranks(compared):
    """Responses that differ stand before the phases that read them."""
    result = compared(Fault("head", REFERENCE, rank=0), Fault("responses", rank=5))
    assert [(r.rank, r.phase, r.record) for r in result.verdict.parted] == [
        (5, None, "responses"),
        (0, REFERENCE, "Cell.head.Dense.forward.0.output.0"),
    ]


def test_many_ranks_still_fit_on_a_screen(compared):
    """What parts later is cut short, not what parts first nor what agrees."""
    cells = ("head", "layers.1.mlp", "layers.1.attention", "layers.0.mlp", "embed")
    result = compared(*(Fault(cell, REFERENCE, rank=rank) for rank, cell in enumerate(cells)))
    said = lines(result)
    assert len(said) == 5
    assert said[0].startswith("Ranks: rank 4 diverges first")
    assert said[-2] == "Ranks: … 2 more"
    assert said[-1] == "Ranks: rank 5 agrees throughout"


def test_where_there_is_nothing_to_say_no_rank_is_named(compared, trained):
    """Of a single rank, and of ranks that all agree."""
    result = compare_runs(trained(), trained(Fault("head", REFERENCE)))
    assert lines(result) == []
    assert len(result.verdict.parted) == 1
    agreeing = compared()
    assert (agreeing.verdict.parted, lines(agreeing)) == ((), [])
