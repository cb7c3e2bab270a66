"""MindFormers' monitors: event files that MindFormers 1.6 wrote (`mindformers_monitor/make.py`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.runs import MSPROBE_DATA

from mindrlhf_msprobe import compare_runs, open_run

DATA = MSPROBE_DATA.parent / "mindformers_monitor"
KEYS = ["adam_m_norm", "adam_v_norm", "batch-size", "grad-norm", "learning-rate", "loss"]


@pytest.fixture
def events(tmp_path):
    """The file of a copy, which may be changed."""
    (path,) = Path(shutil.copytree(DATA / "a", tmp_path / "run")).glob("rank_0/*")
    return path


def test_scalars_are_key_data_by_step():
    run = open_run(DATA / "a")
    assert (run.steps, run.ranks, run.keys) == ([1, 2, 3, 4, 5, 6], [0], [*KEYS, "weight_norm"])
    (datum,) = run.key_data("adam_m_norm", step=2)
    assert [record.path for record in datum.records] == ["0.bias", "0.weight", "2.bias", "2.weight"]
    (rate,) = run.key_data("learning-rate", step=2)
    assert rate.value == [pytest.approx(0.01)]
    assert run.problems == []


def test_what_the_clock_says_and_other_axes_are_left_out():
    keys = " ".join(open_run(DATA / "a").keys)
    assert "samples" not in keys
    assert "throughput" not in keys


def test_one_rank_of_it_is_a_run_too():
    assert open_run(DATA / "a" / "rank_0").ranks == [0]


def test_commands_take_it(tmp_path, cli):
    assert "weight_norm" in cli("show", DATA / "a").out
    assert "6 values" in cli("trend", DATA / "a", "--key", "grad-norm").out
    out = str(tmp_path / "out")
    assert "learning-rate" in cli("compare", DATA / "a", DATA / "b", "-o", out, code=1).out


def test_two_directories_of_one_rank_are_not_taken_for_one(events):
    shutil.copytree(events.parent, events.parent.with_name("rank_00"))
    problems = open_run(events.parent.parent).problems
    assert [problem.path.name for problem in problems] == ["rank_00"]


def test_a_later_file_counts(events):
    shutil.copy(next((DATA / "b").glob("rank_0/*")), events.with_name(f"{events.name}.1"))
    assert compare_runs(DATA / "b", events.parent.parent).verdict.status == "identical"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda raw: raw[:-5], "is cut short in event"),
        (lambda raw: raw[:3000] + bytes([raw[3000] ^ 1]) + raw[3001:], "is damaged"),
        (lambda raw: raw[:40] + b"\xff" * 12 + raw[52:], "event 2 is damaged"),
    ],
)
def test_damage_is_said_and_nothing_behind_it_is_the_same(events, tmp_path, spoil, said):
    events.write_bytes(spoil(events.read_bytes()))
    run = events.parent.parent
    assert said in str(open_run(run).problems[0])
    for other in (DATA / "a", shutil.copytree(run, tmp_path / "b")):
        assert compare_runs(other, run).verdict.status in ("incomparable", "diverged")


def test_a_link_that_leaves_the_run_is_not_followed(events, tmp_path):
    events.rename(tmp_path / "elsewhere")
    events.symlink_to(tmp_path / "elsewhere")
    run = open_run(events.parent.parent)
    assert "symbolic link that leaves" in str(run.problems[0])
