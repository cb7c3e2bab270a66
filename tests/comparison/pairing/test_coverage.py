"""What a run was configured not to record is listed apart: neither the same nor a divergence."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from helpers.runs import Fault, Recording, record_training
from helpers.snapshots import rewrite

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.common.message import as_messages, message
from mindrlhf_msprobe.findings import Cause, Outcome
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.manifest.coverage import joined
from mindrlhf_msprobe.storage.reading.reader import open_run

SCOPE = ["Cell.layers.0.Block.forward.0", "Cell.layers.1.mlp.Dense.forward.0"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"reference_dump": False}, "reference_dump: false"),
        ({"actor_infer_dump": False}, "actor_infer_dump: false"),
        ({"step_start": 1, "step_end": 1}, "step_start 1 … step_end 1"),
        ({"token_range_start": 1, "token_range_end": 1}, "token_range_start 1 … token_range_end 1"),
        ({"include": [r"\.mlp$"]}, "include/exclude"),
        ({"exclude": ["attention"]}, "include/exclude"),
        ({"parameters": False}, "parameters: false"),
        ({"parts": ["input"]}, "parts: ['input']"),
        ({"parts": ["output"]}, "parts: ['output']"),
        ({"entries": ["mlp.Dense.forward.0"]}, "entries: ['mlp.Dense.forward.0']"),
        ({"scope": SCOPE}, f"scope {SCOPE[0]} … {SCOPE[1]}"),
        ({"key_data_dump": False}, "key_data_dump: false"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_was_switched_off_is_coverage(trained, settings, reason, swapped):
    """Records that one run left out by its own configuration are listed with the reason."""
    less = trained(**settings)
    result = compare_runs(less, trained()) if swapped else compare_runs(trained(), less)
    assert result.verdict.status is Outcome.IDENTICAL
    assert result.verdict.first_divergence is None
    assert result.verdict.counts["only_in_a"] == result.verdict.counts["only_in_b"] == 0
    assert result.verdict.coverage
    for gap in result.verdict.coverage:
        assert reason in gap.reason
        assert gap.only_in == ("B" if swapped else "A")
        assert gap.records > 0


def test_a_difference_beside_a_gap_is_still_found(trained):
    """What both runs recorded is compared, whatever one of them left out."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob", step=1)
    less = trained(fault, actor_infer_dump=False)
    place = compare_runs(trained(), less).verdict.first_divergence
    assert place is not None
    assert (place.entry, place.cause) == ("Cell.layers.1.mlp.Dense.forward.0", Cause.COMPUTATION)


def test_single_steps_that_were_not_chosen_are_coverage(trained, tmp_path):
    """A step of the window that is none of `steps` is listed apart."""
    less = shutil.copytree(trained(), tmp_path / "less")
    for directory in less.glob("[!d]*/step1"):
        shutil.rmtree(directory)
    rewrite(less / "run.json", {"config.steps": [0], "recorded": {}})
    verdict = compare_runs(trained(), less).verdict
    assert verdict.status is Outcome.IDENTICAL
    assert {gap.reason for gap in verdict.coverage} == {
        "step 1 is not among those recorded (steps: [0])"
    }


def test_an_entry_that_lacks_inside_the_scope_of_both_runs_is_missing(tmp_path):
    """A scope that both runs had excuses nothing that one of them lacks."""
    a = record_training(tmp_path / "a", steps=1, scope=SCOPE)
    b = record_training(tmp_path / "b", steps=1, scope=SCOPE, entries=["attention"])
    other = record_training(tmp_path / "c", steps=1, scope=[SCOPE[0]] * 2)
    for run in (b, other):
        gaps = compare_runs(a, run).verdict
        assert gaps.status is Outcome.IDENTICAL
        assert gaps.coverage
    journal = b / "actor_update/step0/rank0/records.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[1:]))
    place = compare_runs(b, a).verdict.first_divergence
    assert place is not None
    assert place.cause is Cause.MISSING


def test_a_rank_that_was_not_chosen_is_coverage(tmp_path):
    """A rank that one run's configuration left out is listed apart."""
    a = record_training(tmp_path / "a", ranks=(0, 1), steps=1)
    b = Recording(tmp_path / "b", ranks=[0])
    b.close()
    content = json.loads((tmp_path / "b/run.json").read_text())
    record_training(tmp_path / "c", steps=1)
    (tmp_path / "c/run.json").write_text(json.dumps(content))
    result = compare_runs(a, tmp_path / "c")
    assert result.verdict.status is Outcome.IDENTICAL
    assert all("rank 1 not recorded" in gap.reason for gap in result.verdict.coverage)


def test_runs_of_which_each_left_out_what_the_other_has_are_incomparable(trained):
    """Coverage alone is no success: nothing was compared."""
    off = {"key_data_dump": False, "actor_infer_dump": False, "actor_train_dump": False}
    b = trained(**off, critic_train_dump=False)
    result = compare_runs(trained(**off, reference_dump=False), b)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert {gap.only_in for gap in result.verdict.coverage} == {"A", "B"}


def test_what_ought_to_be_there_is_missing_and_not_coverage(trained, tmp_path):
    """A phase that is switched on and absent is missing, beside one that is switched off."""
    less = record_training(tmp_path / "b", reference_dump=False)
    for directory in (less / "critic_update").rglob("rank0"):
        directory.rename(directory.parent / "gone")
    result = compare_runs(trained(), less)
    place = result.verdict.first_divergence
    assert place is not None
    assert (place.phase, place.cause) == ("critic_update", Cause.MISSING)
    assert len(result.verdict.coverage) == 1


def test_an_argument_called_parameters_is_not_a_parameter(of_both):
    """`parameters: false` explains missing parameters, not a missing argument of that name."""

    def record(recording, run):
        kwargs = {"of": {"parameters": {"weight": np.ones(2)}}} if run == "a" else {}
        with recording.phase("actor_update"):
            recording.call("x", "Net", lambda x, **_: x, np.ones(3), **kwargs)

    place = of_both(record, parameters=False).verdict.first_divergence
    assert place is not None
    assert place.record == "Cell.x.Net.forward.0.input.of.parameters.weight"
    assert place.cause is Cause.MISSING


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("gaps", "reason"),
    [
        ({"x": "a dynamic shape"}, "graph mode: a dynamic shape"),
        ({"parameters_grad": "no optimizer"}, "graph mode: no optimizer"),
        ({"y": "another cell"}, None),
    ],
)
def test_what_a_graph_could_not_hand_over_is_coverage(tmp_path, gaps, reason, swapped):
    """A cell that run.json names lacks what it lacks for that reason; others lack it for none."""
    for name in ("graph", "eager"):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call("y", "Net", np.sin, np.ones(3))
        entry = "Cell.x.Net.parameters_grad.0" if "parameters_grad" in gaps else None
        leaf = {"type": "int", "value": 1}
        values = (
            {"parameters_grad": {"weight": [leaf]}}
            if entry
            else {"input_args": [leaf], "output": [leaf]}
        )
        if name == "graph":
            unread = {"type": "mindspore.Tensor", "value": None, "error": "not recorded"}
            values = None if entry else {"input_args": [unread], "output": [leaf]}
            recording.writer.manifest.note_graph_gaps("actor", gaps)
        if values is not None:
            line = JournalLine(entry or "Cell.x.Net.forward.0", 8, 9, values=values)
            recording.writer.sink("actor_update", 0).append(line)
        recording.end_step()
        recording.close()
    pair = ("eager", "graph") if swapped else ("graph", "eager")
    result = compare_runs(*(tmp_path / name for name in pair))
    if reason is None:
        assert result.verdict.status is Outcome.DIVERGED
    else:
        assert result.verdict.status is Outcome.IDENTICAL
        (gap,) = result.verdict.coverage
        assert reason in gap.reason


@pytest.mark.parametrize(
    "noted",
    [[{"code": "coverage.dynamic_shape"}, {"code": "coverage.gradients_casts_inputs"}], None],
)
def test_inputs_that_were_cast_before_they_were_recorded_are_coverage(tmp_path, noted):
    """By the code in run.json, whichever of several it is."""
    for name, dtype in (("graph", np.float16), ("eager", np.float32)):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call("x", "Net", lambda x: np.float32(x).sum(), np.ones(3, dtype))
        recording.end_step()
        recording.close()
    if noted is not None:
        coverage = {"graph_mode": {"actor": {"x": noted}}}
        rewrite(tmp_path / "graph" / "run.json", {"coverage": coverage})
    result = compare_runs(tmp_path / "eager", tmp_path / "graph", lang="zh")
    assert bool(result) == (noted is not None)
    if noted is not None:
        (gap,) = result.verdict.coverage
        assert gap.reason.startswith("静态图模式下未采集：")
        assert gap.reason.endswith("to_float 会转换输入")
        assert "动态 shape" in gap.reason
        said = gap.to_json()
        assert said["code"] == "coverage.graph_mode"
        assert said["params"]["why"][-1] == {"code": "coverage.gradients_casts_inputs"}


def test_each_reason_of_a_cell_is_noted_once(tmp_path):
    """Over several openings of a phase, and beside what a trainer noted in words."""
    recording = Recording(tmp_path / "run")
    dynamic, passed = message("coverage.dynamic_shape"), message("coverage.dtype", dtype="Int4")
    note = recording.writer.manifest.note_graph_gaps
    assert note("actor", {"x": "a text of its own"})
    assert note("actor", {"x": [dynamic, passed, dynamic]}) == {"x": (dynamic, passed)}
    assert note("actor", {"x": [passed, dynamic], "y": dynamic}) == {"y": (dynamic,)}
    recording.end_step()
    recording.close()
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["coverage"]["graph_mode"]["actor"] == {
        "x": ["a text of its own", dynamic.as_json(), passed.as_json()],
        "y": [dynamic.as_json()],
    }
    cells = open_run(tmp_path / "run").coverage()["graph_mode"]["actor"]
    assert cells == {"x": (*as_messages("a text of its own"), dynamic, passed), "y": (dynamic,)}


def test_merged_attempts_keep_every_reason_of_a_cell():
    """Also where it is a text."""
    dynamic, passed = {"code": "coverage.dynamic_shape"}, {"code": "coverage.replaced"}
    first = {"graph_mode": {"actor": {"x": "a text", "y": [dynamic]}}, "phases": {"p": "one"}}
    later = {"graph_mode": {"actor": {"x": [dynamic], "y": [passed, dynamic]}, "critic": {}}}
    assert joined(first, {**later, "phases": {"q": dynamic}}) == {
        "graph_mode": {"actor": {"x": ["a text", dynamic], "y": [dynamic, passed]}, "critic": {}},
        "phases": {"p": "one", "q": dynamic},
    }
    assert joined({"graph_mode": 7}, later) == later
    assert joined(first, {}) == first


@pytest.mark.parametrize(
    "noted",
    [
        {"code": "text", "graph_mode": 7},
        {"graph_mode": {"actor": {"x": {"code": 7}, "y": [[]]}, "critic": "all"}},
        {"graph_mode": "off", "phases": ["actor_update"], "key_data": {"code": "in a sandbox"}},
        {"key_data": {"loss": {"code": "coverage.left_out", "params": {"what": [{}], "x": 1}}}},
    ],
)
def test_coverage_of_any_shape_reads(tmp_path, noted):
    """It comes from a file; a key may be called `code`."""
    record_training(tmp_path / "run", steps=1)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    for name in ("run", "other"):
        rewrite(tmp_path / name / "run.json", {"coverage": noted})
    assert compare_runs(tmp_path / "run", tmp_path / "other")
    key_data = open_run(tmp_path / "run").coverage().get("key_data", {})
    if "code" in key_data:
        assert key_data == {"code": as_messages("in a sandbox")}


def test_a_phase_that_a_run_says_it_left_out_is_coverage(of_both):
    """Generation by another engine has no layers to record: they are not missing."""
    generate = "actor_generate_sequences"

    def record(recording, run):
        for phase in (generate, "actor_update")[run == "b" :]:
            with recording.phase(phase):
                recording.call("x", "Net", np.sin, np.ones(3))
        if run == "b":
            note = recording.writer.manifest.note_left_out
            assert note("phases", generate, "vLLM generates")
            assert not note("phases", generate, "vLLM generates")

    result = of_both(record)
    assert result.verdict.status is Outcome.IDENTICAL
    (gap,) = result.verdict.coverage
    assert gap.reason == "actor_generate_sequences not recorded: vLLM generates"
