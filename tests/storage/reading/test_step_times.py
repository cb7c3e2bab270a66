"""Times of steps, read back: of a long run, of one that grows, of files that hold anything."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from helpers.runs import record_training

from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.layout import TIMELINE, lines_name
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.step_lines import (
    PhaseTime,
    SaveTime,
    StepTimes,
    UnlistedPhase,
    time_lines,
)

PHASE = {"phase": "actor_update", "opening": 1, "recorded": True, "began": 0.5, "seconds": 2.0}
LINE = {
    **{"step": 1, "rank": 0, "ended": 1.7e9, "seconds": 4},
    "phases": [{**PHASE, "recording": 0.25}, {**PHASE, "recorded": False}],
    "key_data": [
        {"key": "loss", "micro_step": 0, "at": 3.0},
        {"key": "r", "micro_step": None, "at": 3},
    ],
    "unlisted": {"phases": {"critic_update": {"openings": 2, "seconds": 1.0}}, "key_data": 5},
    "of a later version": {},
}


@pytest.fixture
def root(tmp_path):
    return record_training(tmp_path / "run", steps=2)


def test_a_step_has_its_phases_and_saves(root):
    """As they were written; a step or a rank that has none gives None, and is no problem."""
    run = open_run(root)
    assert run.timeline(1) is None
    time_lines(root, 0).append([LINE])
    assert run.timeline(1) == StepTimes(
        *(1, 0, 1.7e9, 4.0),
        phases=(
            PhaseTime("actor_update", 1, True, 0.5, 2.0, 0.25),
            PhaseTime("actor_update", 1, False, 0.5, 2.0, None),
        ),
        key_data=(SaveTime("loss", 0, 3.0), SaveTime("r", None, 3.0)),
        unlisted=(UnlistedPhase("critic_update", 2, 1.0),),
        unlisted_key_data=5,
    )
    assert run.timeline(1).of_phases() == {"actor_update": (2, 4.0), "critic_update": (2, 1.0)}
    assert run.timeline(0) is run.timeline(1, rank=7) is None
    assert not run.problems


def test_a_step_that_ran_again_has_its_last_times(root):
    """Also where both lines stand apart, and the file is read while it grows."""
    run = open_run(root)
    for step, seconds in ((0, 1), (1, 2), (0, 3)):
        time_lines(root, 0).append([{**LINE, "step": step, "seconds": seconds}])
    assert [run.timeline(step).seconds for step in (0, 1)] == [3, 2]
    time_lines(root, 0).append([{**LINE, "step": 5}])
    assert run.timeline(5).step == 5
    assert run.timed_steps() == [0, 1, 5]
    (root / lines_name(TIMELINE, 0)).unlink()  # overwritten by another job
    time_lines(root, 0).append([{**LINE, "step": 6}])
    assert run.timeline(6).step == 6


def test_a_long_run_is_read_with_little_memory(tmp_path):
    """100 000 steps: one line is held at a time."""
    phases = [dict(PHASE) for _ in range(6)]
    with open(tmp_path / lines_name(TIMELINE, 0), "w") as file:
        for step in range(100_000):
            file.write(json.dumps({**LINE, "step": step, "phases": phases}) + "\n")
    timeline = time_lines(tmp_path, 0)
    tracemalloc.start()
    found = [timeline.of_step(step).step for step in (0, 50_000, 99_999)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [0, 50_000, 99_999]
    assert most < 8 << 20


HOSTILE = {
    "no times": {"step": 1},
    "another rank": {**LINE, "rank": 3},
    "a text": {**LINE, "seconds": "4"},
    "negative": {**LINE, "seconds": -1},
    "nan": {**LINE, "seconds": float("nan")},
    "beyond a float": {**LINE, "ended": 10**400},
    "phases of another kind": {**LINE, "phases": {"actor_update": 1}},
    "an opening that is none": {**LINE, "phases": [3]},
    "recorded twice": {**LINE, "phases": [{**PHASE, "recorded": 2}]},
    "a name without end": {**LINE, "phases": [{**PHASE, "phase": "x" * 5000}]},
    "a name that is none": {**LINE, "key_data": [{"key": None, "micro_step": 0, "at": 1}]},
    "a micro-step that is none": {**LINE, "key_data": [{"key": "k", "micro_step": -1, "at": 1}]},
    "unlisted of another kind": {**LINE, "unlisted": {"phases": [1], "key_data": 0}},
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_line_that_is_none_of_ours_is_a_problem(root, line):
    """None, and which line it is; other steps can be read."""
    lines = [json.dumps(one) + "\n" for one in (LINE, line, {**LINE, "step": 2})]
    (root / lines_name(TIMELINE, 0)).write_text("".join(lines))
    run = open_run(root)
    assert run.timeline(1) is None
    (problem,) = run.problems
    assert (problem.step, problem.rank) == (1, 0)
    assert "step 1" in str(problem)
    assert run.timeline(2).step == 2


def test_what_is_no_line_is_counted_and_half_a_line_is_none(root):
    """Bytes, other JSON, nested without end; a killed process leaves the half of one."""
    path = root / lines_name(TIMELINE, 0)
    nested = b'{"step": 4, "rank": ' + b"[" * 100_000 + b"}\n"
    time_lines(root, 0).append([LINE])
    path.write_bytes(b'\xff\x00\n[1]\n{"rank": 0}\n' + nested + path.read_bytes() + b'{"step": 3, ')
    run = open_run(root)
    assert run.timeline(1).step == 1
    assert run.timeline(3) is None
    assert [problem.why.params for problem in run.problems] == [{"count": 3}]
    assert run.timeline(4) is None
    assert len(run.problems) == 2


def test_a_line_or_a_file_without_end_is_not_read(root, monkeypatch):
    """Bounds that no run comes near."""
    path = root / lines_name(TIMELINE, 0)
    path.write_bytes(b'{"step": 1' + b" " * (5 << 20) + b"}\n")
    run = open_run(root)
    assert run.timeline(1) is None
    assert "4 MiB" in str(run.problems[0])
    monkeypatch.setattr(bounds, "TIMELINE_STEPS", 3)
    path.unlink()
    for step in range(5):
        time_lines(root, 0).append([{**LINE, "step": step}])
    run = open_run(root)
    assert run.timed_steps() == []
    assert "3" in str(run.problems[0])
    with open(path, "wb") as file:
        file.truncate(bounds.JOURNAL + 1)
    run = open_run(root)
    assert run.timeline(0) is None
    assert "4 GiB" in str(run.problems[0])


def test_show_prints_how_long_phases_took(root, cli):
    """The mean over the steps, or one step; in both languages, names made printable."""
    odd = {**PHASE, "phase": "\x1b[31m\u202e", "seconds": 0.5}
    for step in (0, 1):
        phases = [{**PHASE, "seconds": 1.0 + step}] * 2 + [odd]
        time_lines(root, 0).append([{**LINE, "step": step, "phases": phases, "unlisted": {}}])
    text = cli("show", root).out
    assert "Time of a step, rank 0, mean of 2 steps: 4.00 s" in text
    assert "  actor_update: 3.000 s, opened 2 times" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    text = cli("show", root, "--step", "1", "--lang", "zh").out
    assert "step 1 用时，rank 0：4.00 s" in text
    assert "  actor_update：4.000 s，打开 2 次" in text


def test_show_says_what_of_the_times_cannot_be_read(root, cli):
    """They are part of the run."""
    (root / lines_name(TIMELINE, 0)).write_text("?\n")
    assert lines_name(TIMELINE, 0) in cli("show", root, code=2).out
