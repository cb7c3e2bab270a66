"""What the verdict says beside the place: no blame the data do not support, no useless advice."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from helpers.runs import Fault, Recording, record_training
from helpers.snapshots import rewrite

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.comparison.judging.tolerance import Rule, Tolerances
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Cause

REFERENCE = "reference_compute_log_prob"
ONLY_CELLS = {"key_data_dump": False, "configurations_dump": False}


@pytest.fixture
def first(tmp_path, trained):
    """Return a function that compares two trainings and returns their first divergence."""

    def compare(*faults, break_b=None, **settings):
        if break_b is None:
            b = trained(*faults, name="b", **settings)
        else:
            b = record_training(tmp_path / "b", faults=faults, **settings)
            break_b(b)
        return compare_runs(trained(**settings), b).verdict.first_divergence

    return compare


@pytest.fixture
def pair(trained):
    """Return two trainings that agree, for reading alone."""
    return trained(), trained(name="b")


def cut_off(run):
    """Take step 1 from a run and leave it as a killed job leaves it."""
    for step in run.rglob("step1"):
        shutil.rmtree(step)
    last = ("attempts", -1, "last_completed_step")
    rewrite(run / "run.json", {"state": "running", last: 0})


def never_recorded(run, directory):
    """Take a directory from a run, and from what its manifest lists."""
    shutil.rmtree(run / directory)
    rewrite(run / "run.json", {"recorded": ...})


@pytest.mark.parametrize("directory", ["data/ref_log_prob", f"{REFERENCE}/step1", REFERENCE])
def test_files_that_went_missing_are_not_blamed_on_the_trainer(first, directory):
    """run.json lists what was recorded there: neither the trainer nor the probe left it out."""
    place = first(break_b=lambda run: shutil.rmtree(run / directory))
    assert place.cause is Cause.MISSING
    assert "B recorded more than is on disk" in place.explanation
    assert "run.json lists" in place.explanation
    for wrong in ("The trainer", "recorded nothing"):
        assert wrong not in place.explanation


def test_a_cell_left_out_may_be_to_blame(first):
    """Under include, a difference that comes from outside is not blamed on the trainer."""
    place = first(Fault("layers.0.mlp", REFERENCE), include=["layers.1"], **ONLY_CELLS)
    assert place.cause is Cause.INPUT
    assert "include/exclude left out cells" in place.explanation
    assert "the trainer passed" not in place.explanation
    assert "include" not in place.next_step


def test_key_data_after_filtered_cells_are_not_blamed_on_the_trainer_alone(first):
    """Under include, key data that differ after agreeing cells carry the doubt, too."""
    place = first(Fault("layers.1.mlp", REFERENCE), include=["layers.0"])
    assert place.record == "ref_log_prob"
    assert "include/exclude left out cells" in place.explanation


def test_parameters_that_were_not_recorded_may_be_to_blame(first):
    """With parameters: false a cell is named with the doubt that its weight may differ."""
    place = first(Fault("layers.1.mlp", REFERENCE), parameters=False)
    assert place.cause is Cause.COMPUTATION
    assert "parameters: false" in place.explanation
    assert "parameters agree" not in place.explanation


def test_without_filters_there_is_no_doubt(first):
    """Where everything was recorded, the cell is blamed without an if."""
    place = first(Fault("layers.1.mlp", REFERENCE))
    assert "may be to blame" not in place.explanation


def test_a_key_saved_in_one_run_only_is_missing(first):
    """A key that one run lacks is said to be missing, and no layers are suggested."""
    place = first(break_b=lambda run: never_recorded(run, "data/ref_log_prob"))
    assert place.cause is Cause.MISSING
    assert "saved it in one run only" in place.explanation
    assert "arithmetic" not in place.explanation
    assert place.next_step is None


def test_a_phase_that_one_run_lacks_is_named_as_a_phase(first):
    """A whole phase that is missing is not told as one missing cell."""
    place = first(break_b=lambda run: never_recorded(run, f"{REFERENCE}/step1"))
    assert place.cause is Cause.MISSING
    assert f"B recorded nothing of {REFERENCE} in this step" in place.explanation


def test_the_next_step_keeps_the_trainers_own_settings(first):
    """Own phases and the first step's number stand in the suggested section, so it can be used."""
    phases = {"reward_compute": "reward"}
    place = first(
        Fault("layers.1.mlp", REFERENCE), task="statistics", phases=phases, initial_step=0
    )
    assert place.next_step["phases"] == phases


def test_a_run_is_not_compared_with_a_part_of_itself(pair):
    """A phase's directory inside the other run is the same run, and refused."""
    with pytest.raises(RunError, match="lies inside the other"):
        compare_runs(pair[0], pair[0] / REFERENCE)


def test_what_a_run_lost_is_in_the_verdict(pair, tmp_path):
    """Records lost while recording are named, even where everything else agrees."""
    a = shutil.copytree(pair[0], tmp_path / "a")
    rewrite(a / "run.json", {"lost": {"a tensor: TypeError": 3}})
    result = compare_runs(a, pair[1], output_path=tmp_path / "out")
    assert "A: rank 0 lost 3 records: a tensor: TypeError" in result.problems
    written = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert written["problems"] == list(result.problems)


GENERATE = "actor_generate_sequences"


def test_tokens_that_were_not_recorded_may_be_to_blame(first):
    """Responses that differ after agreeing tokens are not blamed on the trainer's arithmetic."""
    place = first(Fault("layers.0.mlp", GENERATE, call=2), token_range_end=0)
    assert place.record == "responses"
    assert "only some of its tokens were recorded" in place.explanation
    assert "arithmetic" not in place.explanation
    assert place.next_step["token_range_end"] > 0


def test_a_token_range_that_begins_late_is_said(first):
    """A first recorded token whose input differs points to the tokens before it."""
    place = first(Fault("layers.0.mlp", GENERATE, call=0), token_range_start=2, token_range_end=2)
    assert place.cause is Cause.INPUT
    assert "an earlier token may have differed" in place.explanation
    assert place.next_step["token_range_end"] == 2
    assert "token_range_start" not in place.next_step


def test_agreement_by_statistics_only_is_said(first):
    """Without fingerprints, what agrees before the origin agrees by statistics only."""
    place = first(Fault("layers.1.mlp", REFERENCE), fingerprint=False, task="statistics")
    assert "by statistics only, not bit for bit" in place.explanation


def test_cells_within_the_tolerance_may_have_made_key_data_differ(trained):
    """The trainer's own arithmetic is not blamed alone where cells differ a little."""
    a, b = trained(task="tensor"), trained(Fault("layers.1.mlp", REFERENCE), task="tensor")
    loose = Tolerances(rules=(Rule("^Cell", Tolerance(rtol=1e6, atol=1e6)),))
    place = compare_runs(a, b, tolerance=loose).verdict.first_divergence
    assert (place.record, place.cause) == ("ref_log_prob", Cause.DATA)
    assert "it may come from these small differences" in place.explanation


def test_a_cut_off_run_is_said_with_key_data_alone(first):
    """Also in the first round, key data only, a run that was never closed is named."""
    off = ("actor_infer", "actor_train", "reference", "critic_train")
    place = first(break_b=cut_off, **{f"{name}_dump": False for name in off})
    assert place.cause is Cause.STOPPED
    assert "B had stopped; A went on" in place.explanation


def test_prompts_that_differ_suggest_no_layers(first):
    """Nothing of the step has run when the prompts differ, so no layers are asked for."""
    off = ("actor_infer", "actor_train", "reference", "critic_train")
    place = first(Fault("prompts"), **{f"{name}_dump": False for name in off})
    assert (place.record, place.cause) == ("prompts", Cause.INPUT)
    assert place.next_step is None


def test_links_in_a_circle_are_refused(pair, tmp_path):
    """A path that leads nowhere is a run that does not exist, not a crash."""
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(RunError):
        compare_runs(tmp_path / "one", pair[1])


@pytest.mark.parametrize("content", ['{"tables": ["a\\u0000.xlsx", "d.xlsx"]}', "[" * 100_000])
def test_an_odd_verdict_in_the_output_is_left_alone(pair, tmp_path, content):
    """Whatever a verdict.json that is none of ours says, it stays, and so does what it names."""
    (tmp_path / "out" / "d.xlsx").mkdir(parents=True)
    (tmp_path / "out" / "verdict.json").write_text(content)
    with pytest.raises(RunError, match=r"verdict\.json is not what a comparison wrote"):
        compare_runs(*pair, output_path=tmp_path / "out")
    assert (tmp_path / "out" / "verdict.json").read_text() == content
    assert (tmp_path / "out" / "d.xlsx").is_dir()


def one_cell(path, output, **parameters):
    recording = Recording(path)
    with recording.phase("actor_update"):
        recording.call("net", "Net", lambda x: output, np.ones(3), parameters=parameters)
    recording.end_step()
    recording.close()
    return path


def test_a_parameter_of_one_run_only_is_not_called_another_one(tmp_path):
    a = one_cell(tmp_path / "a", np.ones(2), weight=np.ones(2))
    b = one_cell(tmp_path / "b", np.ones(2), weight=np.ones(2), bias=np.ones(2))
    found = compare_runs(a, b).verdict.first_divergence
    assert (found.record, found.cause) == ("Cell.net.Net.forward.0.parameters.bias", Cause.MISSING)
    assert "only one run has or recorded this parameter" in found.explanation
    assert "check loading" not in found.explanation


def test_an_output_that_is_put_together_otherwise_has_ended_in_both_runs(tmp_path):
    a = one_cell(tmp_path / "a", (np.ones(2), np.ones(3)))
    b = one_cell(tmp_path / "b", (np.ones(2), [np.ones(3)]))
    found = compare_runs(a, b).verdict.first_divergence
    assert (found.record, found.cause) == ("Cell.net.Net.forward.0.output.1", Cause.MISSING)
    assert "its output has another structure" in found.explanation
    assert "ended in one run" not in found.explanation


@pytest.mark.parametrize(
    ("key", "switch"), [("old_log_prob", "actor_train_dump"), ("values", "critic_train_dump")]
)
def test_a_round_of_key_data_says_that_weights_were_not_looked_at(first, key, switch):
    """Whether a weight or the computation differs is not known, and the answer says what tells."""
    off = ("actor_infer_dump", "actor_train_dump", "reference_dump", "critic_train_dump")
    phase = "actor_compute_log_prob" if key == "old_log_prob" else "critic_compute_values"
    place = first(Fault("head", phase), **dict.fromkeys(off, False))
    assert place.record == key
    said = f"nor were the weights they ran with: {switch}: true fingerprints these, too"
    assert said in place.explanation
    assert place.next_step[switch] is True


def test_what_comes_of_recorded_cells_says_nothing_of_weights(first):
    assert "weights they ran with" not in first(Fault("rewards")).explanation


@pytest.mark.parametrize(
    "file",
    [
        "data/advantages/step1/rank0/micro_step0/advantages.npy",
        "actor_update/step1/rank0/dump_tensor_data/Cell.layers.1.Block.forward.0.output.0.npy",
        "actor_update/step1/rank0/dump_tensor_data/Cell.layers.1.Block.forward.0.input.0.npy",
        "actor_update/step1/rank0/dump_tensor_data/*layers.0.mlp*.parameters.weight.npy",
    ],
)
def test_a_file_that_was_edited_afterwards_says_nothing_of_the_computation(first, file):
    """Neither a cell, nor loading, nor the trainer is blamed: its fingerprint is another one."""

    def edit(run):
        (path,) = run.glob(file)
        elements = np.load(path)
        elements.reshape(-1)[0] += 1
        path.unlink()  # equal tensors share it
        np.save(path, elements)

    place = first(task="tensor", break_b=edit)
    assert place.cause is Cause.FILE
    assert (place.step, place.rank, place.culprit, place.next_step) == (1, 0, None, None)
    assert "This says nothing about the computation" in place.explanation
    assert "the elements in the file of B no longer match its fingerprint" in place.explanation
    for blamed in ("computed", "arithmetic", "loading", "passed", "optimizer"):
        assert blamed not in place.explanation


def test_nan_on_both_sides_is_no_damaged_file(tmp_path):
    """Statistics without fingerprints cannot tell; the file is whole."""
    runs = [record_training(tmp_path / name, steps=1) for name in "ab"]
    for run in runs:
        (journal,) = (run / "actor_update/step0").glob("*/records.jsonl")
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        leaf = next(one for line in lines for one in line.get("output") or [] if one.get("shape"))
        leaf.update(fingerprint=None, nan_count=1, Max="NaN", Min="NaN", Mean="NaN", Norm="NaN")
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = compare_runs(*runs).verdict.first_divergence
    assert first.cause is Cause.UNREADABLE
    assert "cannot be compared" in first.explanation
    assert "record both again with `fingerprint: true`" in first.explanation
    assert "the file" not in first.explanation
