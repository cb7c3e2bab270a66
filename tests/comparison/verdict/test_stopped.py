"""A run that stopped: where and of what begins the answer, and what both have is compared.

And a second opening of an update whose first one raised: no update came between.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import PHASES, Fault, Recording, leave_as_killed, record_training
from helpers.snapshots import rewrite

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.findings import Cause, Outcome
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.storage.manifest.run_file import FAILED, INTERRUPTED, Stop

ERROR = "batch 7 holds\na \x1b[31mNaN"


class Stops(Exception):
    """Ends the training in the middle."""


def stop_at(root: Path, phase: str, step: int, call: str | None, ending: str, **more: Any) -> Path:
    """Record a training that stops in a phase, when a cell is called, or when the phase begins."""
    made: list[Recording] = []
    entered = Recording.phase
    called = Recording.call

    def enter(self: Recording, name: str) -> Any:
        if self not in made:
            made.append(self)
        if call is None and (name, self.step) == (phase, step):
            self._phase = name
            raise Stops
        return entered(self, name)

    def run(self: Recording, cell: str, *given: Any, **named: Any) -> Any:
        if (self._phase, self.step, cell) == (phase, step, call):
            raise Stops
        return called(self, cell, *given, **named)

    with pytest.MonkeyPatch.context() as patch, suppress(Stops):
        patch.setattr(Recording, "phase", enter)
        patch.setattr(Recording, "call", run)
        record_training(root, steps=4, **more)
    (recording,) = made
    writer = recording.writer
    if ending == "killed":
        leave_as_killed(writer)
        return root
    writer.end_step(recording.step, {}, complete=False)
    stops = {
        "failed": Stop(FAILED, recording.step, phase, "ValueError", ERROR),
        "interrupted": Stop(INTERRUPTED, recording.step, phase),
    }
    writer.close(stops[ending])
    return root


@pytest.fixture
def whole(trained: Callable[..., Path]) -> Path:
    """Return the training that did not stop."""
    return trained(steps=4)


@pytest.mark.parametrize(
    ("phase", "call"), [*zip(PHASES, ["embed", None, "root", "layers.1.mlp", "embed", "root"])]
)
def test_the_answer_begins_with_where_it_stopped(
    whole: Path, tmp_path: Path, phase: str, call: str | None
) -> None:
    """And what both have is compared: it agrees, nothing is missing, and that is not the same."""
    ending = {"embed": "killed", "root": "interrupted"}.get(str(call), "failed")
    b = stop_at(tmp_path / "b", phase, 2, call, ending)
    result = compare_runs(whole, b, output_path=tmp_path / "out")
    said = {
        "failed": "B stopped in step 2, " + phase + r": ValueError: batch 7 holds a \x1b[31mNaN",
        "interrupted": f"B ended inside step 2, {phase}, without close()",
        "killed": "B was killed in step 2",
    }[ending]
    lines = render(result).splitlines()
    assert lines[0].startswith(said)
    assert result.verdict.status is Outcome.DIVERGED
    assert not bool(result)
    first = result.verdict.first_divergence
    assert first is not None
    assert (first.step, first.cause) == (2, Cause.STOPPED)
    assert first.agreed_steps == 2
    counts = {status for status, count in result.verdict.counts.items() if count}
    assert counts == {"identical"}
    both = sum(len(entry.records) for entry in open_run(b).entries())
    assert result.verdict.counts["identical"] >= both
    assert [gap.only_in for gap in result.verdict.coverage] == ["A"]
    (stopped,) = json.loads((tmp_path / "out/verdict.json").read_bytes())["stopped"]
    assert (stopped["run"], stopped["state"], stopped["step"]) == ("B", ending, 2)
    if ending != "killed":
        assert stopped["phase"] == phase
    if ending == "failed":
        assert (stopped["error"], stopped["text"]) == ("ValueError", ERROR)


@pytest.mark.parametrize("ending", ["failed", "killed"])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_difference_before_the_stop_is_the_first_divergence(
    whole: Path, tmp_path: Path, ending: str, step: int
) -> None:
    """The cell to blame is named as if the run had not stopped."""
    faults = [Fault("layers.0.mlp", "critic_compute_values", step=step)]
    b = stop_at(tmp_path / "b", "actor_update", 2, "embed", ending, faults=faults)
    for pair in ((whole, b), (b, whole)):
        first = compare_runs(*pair).verdict.first_divergence
        assert first is not None
        assert (first.step, first.cause) == (step, Cause.COMPUTATION)
        assert first.phase == "critic_compute_values"
        assert first.entry == "Cell.layers.0.mlp.Dense.forward.0"


def test_what_is_missing_before_the_stop_is_missing(whole: Path, tmp_path: Path) -> None:
    """A key, and a cell, that the other run has earlier in time are no part of the stop."""
    b = stop_at(tmp_path / "b", "critic_update", 2, None, "failed")
    shutil.rmtree(b / "actor_compute_log_prob/step2")
    first = compare_runs(whole, b).verdict.first_divergence
    assert first is not None
    assert (first.step, first.phase, first.cause) == (2, "actor_compute_log_prob", Cause.MISSING)


@pytest.mark.parametrize(
    ("chosen", "status"),
    [
        ({"common": True}, Outcome.IDENTICAL),
        ({"steps": "0-1"}, Outcome.IDENTICAL),
        ({}, Outcome.DIVERGED),
    ],
)
def test_what_was_asked_for_decides(
    whole: Path, tmp_path: Path, chosen: Any, status: Outcome
) -> None:
    """Where only what both have, or steps before the stop, are compared, the runs may agree."""
    a = stop_at(tmp_path / "a", "actor_update", 2, None, "failed")
    result = compare_runs(a, whole, **chosen)
    assert result.verdict.status is status
    assert render(result).startswith("A stopped in step 2, actor_update: ValueError")


def test_two_runs_that_stop_alike_agree(tmp_path: Path) -> None:
    """Both lines are said; nothing is missing on either side."""
    runs = [stop_at(tmp_path / n, "actor_update", 1, "root", "failed") for n in "ab"]
    result = compare_runs(*runs)
    assert result.verdict.status is Outcome.IDENTICAL
    assert [line[:9] for line in render(result).splitlines()[:2]] == ["A stopped", "B stopped"]


def test_show_and_the_exit_code_say_it(whole: Path, tmp_path: Path, capsys: Any) -> None:
    b = stop_at(tmp_path / "b", "actor_update", 2, None, "failed")
    assert main(["compare", str(whole), str(b), "-o", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().out.startswith("B stopped in step 2, actor_update: ValueError")
    assert main(["show", str(b)]) == 0
    shown = capsys.readouterr().out
    assert r"stopped in step 2, actor_update: ValueError: batch 7 holds a \x1b[31mNaN" in shown


@pytest.mark.parametrize(
    "stopped",
    [3, [], {"step": "x", "phase": 7}, {"step": -1, "error": {}}, {"text": "y" * 10**6}],
    ids=["number", "list", "texts", "negative", "long"],
)
def test_what_a_file_says_of_the_stop_is_not_trusted(
    whole: Path, tmp_path: Path, stopped: Any
) -> None:
    """Another shape, wrong types and huge texts cost nothing but themselves."""
    b = stop_at(tmp_path / "b", "actor_update", 2, None, "failed")
    rewrite(b / "run.json", {("attempts", -1, "stopped"): stopped})
    text = render(compare_runs(whole, b))
    assert text.startswith("B stopped in step 2")
    assert len(text) < 5000


@pytest.mark.parametrize("moved", [True, False])
def test_a_cell_that_was_not_reached_before_has_not_been_updated(of_both, moved):
    """Its weights are recorded for the first time; those of the others show whether they moved."""
    x = np.ones(3, np.float32)

    def record(recording, run):
        for number in range(2):
            with recording.phase("actor_update"):
                w = {"weight": x * (1 + number * moved)}
                recording.call("first", "Dense", lambda x: x, x, parameters=w)
                if number:  # the first opening raised here
                    by = 3 if run == "b" else 1
                    w = {"weight": x * 7}
                    recording.call("second", "Dense", lambda x, by=by: x * by, x, parameters=w)

    first = of_both(record).verdict.first_divergence
    assert first.occasion.weights_moved is moved
    assert ("update," in first.explanation or "the first update" in first.explanation) is moved


@pytest.mark.parametrize("kept", ["a", "b"])
def test_an_update_that_was_not_made_in_one_run_is_none(of_both, kept):
    """The optimizer raised in one run: there the second opening comes after no update."""
    x = np.ones(3, np.float32)

    def record(recording, run):
        for number in range(2):
            with recording.phase("actor_update"):
                for cell in ("first", "second"):
                    w = {"weight": x * (1 + number * (run != kept))}
                    recording.call(cell, "Dense", lambda x: x, x, parameters=w)

    first = of_both(record).verdict.first_divergence
    assert (first.occasion.weights_moved, first.occasion.kept_in) == (True, kept.upper())
    assert "the first update" not in first.explanation
    assert f"in {kept.upper()} its weights did not change between" in first.explanation


@pytest.mark.parametrize("raised", [True, False])
def test_micro_steps_of_unlike_number_are_not_taken_for_the_same(of_both, raised):
    """The second of three updates raised in B: its second loss is that of the third."""

    def record(recording, run):
        for number in range(3):
            if not (raised and run == "b" and number == 1):
                value = number + (0.5 if not raised and run == "b" and number else 0)
                recording.data("loss", np.float32(value))

    first = of_both(record, actor_train_dump=False).verdict.first_divergence
    assert (first.key, first.occasion.number) == ("loss", 1)
    assert ("the first update" in first.explanation) is not raised
