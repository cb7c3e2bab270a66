"""Two runs with a known difference → the verdict names it: the cell, the record, the cause."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from helpers.runs import Fault, Network, Recording, a_nan, record_training, slightly_more

from mindrlhf_msprobe import Tolerance, compare_runs, open_run
from mindrlhf_msprobe.findings import Cause, Outcome, Status
from mindrlhf_msprobe.phases import PHASES
from mindrlhf_msprobe.storage.journal_line import JournalLine

REFERENCE = "reference_compute_log_prob"


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory):
    """Return a run without a fault."""
    return record_training(tmp_path_factory.mktemp("a"))


@pytest.fixture
def compared(reference_run, tmp_path):
    """Return a function that records a second run and compares it with the one without a fault."""

    def compare(*faults, a=None, tolerance=None, **settings):
        b = record_training(tmp_path / "b", faults=faults, **settings)
        return compare_runs(a or reference_run, b, tolerance=tolerance)

    return compare


def first(comparison):
    """Return the first divergence; the verdict must be diverged, and the result false."""
    assert comparison.verdict.status is Outcome.DIVERGED
    assert not comparison
    assert comparison.verdict.first_divergence is not None
    return comparison.verdict.first_divergence


def by_status(comparison, *statuses):
    return [f for f in comparison.findings if f.status in statuses]


def test_equal_runs_are_identical(compared):
    """Two runs of the same training agree bit for bit, and the result is true."""
    result = compared()
    assert result.verdict.status is Outcome.IDENTICAL
    assert result
    assert result.verdict.first_divergence is None
    assert sorted(result.verdict.phases) == sorted(phase.name for phase in PHASES)
    assert (result.verdict.steps, result.verdict.ranks) == (2, 1)


def test_the_counts_sum_up(compared):
    """Every pair has exactly one status, and every status is counted, those with 0 too."""
    verdict = compared(Fault("layers.1.mlp", REFERENCE)).verdict
    assert set(verdict.counts) == {str(status) for status in Status}
    assert sum(verdict.counts.values()) == verdict.compared
    assert verdict.counts["identical"] > 0
    assert verdict.counts["different"] > 0


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    ("phase", "cell"),
    [
        ("actor_generate_sequences", "layers.0.mlp"),
        ("actor_compute_log_prob", "embed"),
        (REFERENCE, "layers.1.attention"),
        ("critic_compute_values", "head"),
        ("actor_update", "layers.0.attention"),
        ("critic_update", "layers.1.mlp"),
    ],
)
def test_the_cell_that_computed_something_else_is_the_origin(compared, phase, cell, step):
    """A leaf whose inputs and parameters agree and whose output differs is blamed, in any phase."""
    place = first(compared(Fault(cell, phase, step=step)))
    assert (place.step, place.phase, place.cause) == (step, phase, Cause.COMPUTATION)
    assert place.entry == f"Cell.{cell}.Dense.forward.0"
    assert place.record == f"{place.entry}.output.0"
    assert "inputs and its parameters agree" in place.explanation


def test_a_later_call_of_a_cell_is_blamed_at_that_call(compared):
    """A fault at the third token's pass is named with that call."""
    place = first(compared(Fault("layers.0.mlp", "actor_generate_sequences", call=2)))
    assert place.entry == "Cell.layers.0.mlp.Dense.forward.2"


def test_the_code_between_two_children_belongs_to_the_container(compared):
    """A child that is handed something else by a container whose input agrees: the container."""
    place = first(compared(Fault("layers.1:between", REFERENCE)))
    assert place.entry == "Cell.layers.1.Block.forward.0"
    assert place.cause is Cause.COMPUTATION
    assert place.record == "Cell.layers.1.mlp.Dense.forward.0.input.0"


def test_the_code_after_the_children_belongs_to_the_container(compared):
    """A container whose output differs while all its children agree is the origin."""
    place = first(compared(Fault("layers.0:sum", REFERENCE)))
    assert place.entry == "Cell.layers.0.Block.forward.0"
    assert (place.cause, place.record) == (Cause.COMPUTATION, f"{place.entry}.output.0")


def test_the_root_itself_can_be_the_origin(compared):
    """A root whose own code changes the output is named as such."""
    place = first(compared(Fault("root", "actor_update")))
    assert place.entry == "Cell.root.Network.forward.0"


def test_a_weight_that_differs_from_the_start_is_a_parameter(compared):
    """A weight loaded differently is a parameter, named at the first cell that holds it."""
    place = first(compared(weights={"layers.1.attention": slightly_more}))
    assert (place.phase, place.step) == ("actor_generate_sequences", 0)
    assert place.record == "Cell.layers.1.attention.Dense.forward.0.parameters.weight"
    assert place.entry == "Cell.layers.1.attention.Dense.forward.0"
    assert place.cause is Cause.PARAMETER


def test_a_wrong_update_shows_as_a_parameter_of_the_next_step(compared):
    """An optimizer that moves a weight differently shows at the next step's first use of it."""
    place = first(compared(Fault("weights:head", step=0)))
    assert (place.step, place.phase) == (1, "actor_generate_sequences")
    assert place.record == "Cell.head.Dense.forward.0.parameters.weight"
    assert place.cause is Cause.PARAMETER
    assert "previous update" in place.explanation


def test_other_prompts_are_an_input(compared):
    """What enters the first phase differs: the prompts themselves are named, cause input."""
    place = first(compared(Fault("prompts", step=1)))
    assert (place.step, place.phase) == (1, "actor_generate_sequences")
    assert (place.record, place.entry, place.cause) == ("prompts", None, Cause.INPUT)
    assert place.agreed_steps == 1
    assert "were not recorded" not in place.explanation  # no cell makes them


def test_other_responses_are_an_input_where_generation_was_not_recorded(tmp_path):
    """Key data that enter the recorded phases differ first: cause input."""
    settings = {"actor_infer_dump": False}
    a = record_training(tmp_path / "a", **settings)
    b = record_training(tmp_path / "b", faults=[Fault("responses", step=1)], **settings)
    place = first(compare_runs(a, b))
    assert (place.step, place.record, place.cause) == (1, "responses", Cause.INPUT)
    assert place.entry is None
    assert "and the cells of actor_generate_sequences were not recorded" in place.explanation


def test_other_responses_are_data_where_generation_agrees(compared):
    """Responses that differ although every cell of the generation agrees: the trainer's code."""
    place = first(compared(Fault("responses")))
    assert (place.record, place.cause, place.entry) == ("responses", Cause.DATA, None)
    assert place.phase == "actor_generate_sequences"


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("key", ["rewards", "advantages"])
def test_the_trainers_own_arithmetic_is_data_whenever_it_was_saved(tmp_path, key, at_end):
    """Rewards and advantages stand before the update, also if they were saved at the step's end."""
    a = record_training(tmp_path / "a", data_at_end=at_end)
    b = record_training(tmp_path / "b", faults=[Fault(key)], data_at_end=at_end)
    place = first(compare_runs(a, b))
    assert (place.step, place.record, place.cause) == (0, key, Cause.DATA)
    assert place.agreed_before > 100


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    "off",
    [
        ("actor_train_dump",),
        ("critic_train_dump",),
        ("actor_train_dump", "reference_dump", "actor_infer_dump"),
        ("actor_train_dump", "critic_train_dump"),
    ],
)
def test_rewards_come_before_losses_whichever_phases_were_recorded(tmp_path, off, at_end):
    """Rewards that differ are named before the losses they lead to, with any switches."""
    settings = {"data_at_end": at_end, "steps": 1, **dict.fromkeys(off, False)}
    a = record_training(tmp_path / "a", **settings)
    b = record_training(tmp_path / "b", faults=[Fault("rewards")], **settings)
    assert first(compare_runs(a, b)).record == "rewards"


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    ("phase", "cell"),
    [("actor_compute_log_prob", "head"), (REFERENCE, "head"), ("actor_update", "head")],
)
def test_a_phases_result_stands_behind_its_cells(tmp_path, phase, cell, at_end):
    """A log_prob or loss that a cell made wrong does not hide that cell."""
    a = record_training(tmp_path / "a", data_at_end=at_end)
    b = record_training(tmp_path / "b", faults=[Fault(cell, phase)], data_at_end=at_end)
    place = first(compare_runs(a, b))
    assert (place.phase, place.entry) == (phase, "Cell.head.Dense.forward.0")


def test_key_data_alone_are_named_in_the_order_of_a_step(tmp_path):
    """With key data only, what comes first in a step is named first, whatever was saved first."""
    settings = {"actor_infer_dump": False, "actor_train_dump": False, "reference_dump": False}
    settings |= {"critic_train_dump": False, "data_at_end": True}
    a = record_training(tmp_path / "a", **settings)
    b = record_training(tmp_path / "b", faults=[Fault("rewards", step=1)], **settings)
    result = compare_runs(a, b)
    assert first(result).record == "rewards"
    assert first(result).cause is Cause.DATA
    different = [f.record for f in by_status(result, Status.DIFFERENT)]
    assert different == ["rewards", "advantages", "loss", "value_loss"]


def test_a_one_sided_nan_is_named(compared):
    """A NaN that only one run has is the cause, at the cell that made it."""
    place = first(compared(Fault("layers.0.mlp", REFERENCE, change=a_nan)))
    assert (place.entry, place.cause) == ("Cell.layers.0.mlp.Dense.forward.0", Cause.NON_FINITE)


def test_another_shape_is_named(compared):
    """An output of another shape is the cause, and nothing was cut to compare it."""
    place = first(compared(Fault("root", REFERENCE, change=lambda v: v[:1])))
    assert (place.entry, place.cause) == ("Cell.root.Network.forward.0", Cause.SHAPE)
    assert "[2, 4, 6] against [1, 4, 6]" in place.explanation


def test_another_dtype_is_named_unless_a_tolerance_is_given(compared):
    """An output of another dtype is the cause; with a tolerance only its values count."""
    fault = Fault("root", REFERENCE, change=lambda v: v.astype(np.float64))
    place = first(compared(fault))
    assert (place.entry, place.cause) == ("Cell.root.Network.forward.0", Cause.DTYPE)


def test_values_count_where_a_tolerance_is_given(tmp_path):
    """With a tolerance, runs in unlike dtypes are within it, and the result is true."""
    fault = Fault("root", "critic_update", change=lambda v: v.astype(np.float64))
    a = record_training(tmp_path / "a", task="tensor")
    b = record_training(tmp_path / "b", task="tensor", faults=[fault])
    result = compare_runs(a, b, tolerance=Tolerance(rtol=1e-3, atol=1e-5))
    assert result
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE


def test_a_tolerance_hides_small_differences_only(tmp_path):
    """Small differences are within the tolerance; the first larger one is named."""
    small = Fault("embed", "actor_compute_log_prob", change=lambda v: v * np.float32(1 + 1e-6))
    large = Fault("layers.1.mlp", REFERENCE, change=lambda v: v * np.float32(1.5))
    tolerance = Tolerance(rtol=1e-3, atol=1e-4)
    a = record_training(tmp_path / "a", task="tensor", steps=1)
    close = record_training(tmp_path / "b", task="tensor", steps=1, faults=[small])
    result = compare_runs(a, close, tolerance=tolerance)
    assert result
    assert result.verdict.counts["within_tolerance"] > 0
    far = record_training(tmp_path / "c", task="tensor", steps=1, faults=[small, large])
    place = first(compare_runs(a, far, tolerance=tolerance))
    assert (place.phase, place.entry) == (REFERENCE, "Cell.layers.1.mlp.Dense.forward.0")
    assert place.max_rel_err == pytest.approx(1 / 3, rel=1e-3)


def test_statistics_without_fingerprints_never_make_runs_identical(tmp_path):
    """Equal runs recorded without fingerprints and tensors are within tolerance, and say so."""
    a, b = (
        record_training(tmp_path / n, fingerprint=False, key_data_dump=False) for n in ("a", "b")
    )
    result = compare_runs(a, b)
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    assert result.verdict.counts["identical"] == 0
    assert all("statistics" in f.note for f in result.findings)


# What is missing.


def test_a_missing_phase_is_missing(tmp_path, reference_run):
    """A phase that one run ought to have and has not is missing, at its first cell."""
    b = record_training(tmp_path / "b")
    for directory in (b / REFERENCE).rglob("rank0"):
        directory.rename(directory.parent / "gone")
    pairs = ((reference_run, b, "only_in_a"), (b, reference_run, "only_in_b"))
    for one, other, status in pairs:
        result = compare_runs(one, other)
        place = first(result)
        assert (place.cause, place.phase, place.step) == (Cause.MISSING, REFERENCE, 0)
        assert place.entry == "Cell.root.Network.forward.0"
        assert result.verdict.counts[status] == 2 * 24


def test_a_missing_step_is_missing(tmp_path, reference_run):
    """A run that ends a step earlier diverges there."""
    shorter = record_training(tmp_path / "b", steps=1)
    place = first(compare_runs(reference_run, shorter))
    assert (place.step, place.cause) == (1, Cause.MISSING)


def test_a_missing_key_is_missing(tmp_path, reference_run):
    """A key that only one run saved is missing."""
    b = record_training(tmp_path / "b")
    for directory in (b / "data/rewards").rglob("rank0"):
        directory.rename(directory.parent / "gone")
    place = first(compare_runs(reference_run, b))
    assert (place.record, place.cause) == ("rewards", Cause.MISSING)


def test_a_missing_rank_is_missing(tmp_path):
    """A rank that only one run has is missing."""
    a = record_training(tmp_path / "a", ranks=(0, 1))
    b = record_training(tmp_path / "b", ranks=(0,))
    (a / "run.rank1.json").rename(a / "gone.json")
    place = first(compare_runs(a, b))
    assert (place.rank, place.step, place.cause) == (1, 0, Cause.MISSING)


def test_a_missing_cell_is_missing_where_it_ran(tmp_path):
    """A cell that ran in one run only is missing, with the cell around it."""

    def record(root, extra):
        recording = Recording(root)

        def body(x):
            x = recording.call("a", "Dense", np.sin, x)
            if extra:
                x = recording.call("dropout", "Dropout", lambda x: x, x)
            return recording.call("b", "Dense", np.cos, x)

        with recording.phase("actor_update"):
            recording.call("root", "Net", body, np.ones(3))
        recording.end_step()
        return recording.close()

    place = first(compare_runs(record(tmp_path / "a", True), record(tmp_path / "b", False)))
    assert (place.entry, place.cause) == ("Cell.dropout.Dropout.forward.0", Cause.MISSING)
    assert "inside Cell.root.Net.forward.0" in place.explanation


@pytest.mark.parametrize("quiet", [True, False])
def test_a_cell_that_takes_and_gives_nothing_is_missed_too(tmp_path, quiet):
    """A cell without inputs that never returned in one run is not passed over."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call("x", "Net", np.sin, np.ones(3))
        if name == "a":
            line = JournalLine("Cell.silent.Net.forward.0", 99, None if quiet else 100)
            line.values["output"] = []
            recording.writer.append_entry("actor_update", 0, line)
        recording.end_step()
        recording.close()
    place = first(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert (place.entry, place.cause) == ("Cell.silent.Net.forward.0", Cause.MISSING)


def test_an_empty_list_that_only_one_run_saved_is_missing(tmp_path):
    """Key data without an element are missing where they were not saved."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        recording.data("loss", 1.0)
        if name == "b":
            recording.data("texts", [])
        recording.end_step()
        recording.close()
    place = first(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert (place.record, place.cause) == ("texts", Cause.MISSING)


@pytest.mark.parametrize(
    ("a", "b", "record"),
    [
        ([], {}, "texts"),
        ([], [[]], "texts"),
        ([["x"], []], [["x"]], "texts.1"),
        ([["x"], {}], [["x"], []], "texts.1"),
        ({"x": ["x"], "y": []}, {"x": ["x"]}, "texts.y"),
        ([[], ["x"]], [["x"], []], "texts.0"),
    ],
)
def test_an_empty_element_is_an_element(tmp_path, a, b, record):
    """A response without a token is missed where it is not; equal ones agree."""
    for name, value in (("a", a), ("b", b), ("c", a)):
        recording = Recording(tmp_path / name)
        recording.data("loss", 1.0)
        recording.data("texts", value)
        recording.end_step()
        recording.close()
    assert open_run(tmp_path / "a").key_data("texts")[0].value == a
    place = first(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert place.record == record
    if place.cause is Cause.MISSING:
        assert "Both saved texts, with other elements in it." in place.explanation
    same = compare_runs(tmp_path / "a", tmp_path / "c").verdict
    assert same.status is Outcome.IDENTICAL


def test_more_calls_in_one_run_are_reported(tmp_path):
    """A loop that runs longer in one run: what both have is compared, the surplus is missing."""
    settings = {"key_data_dump": False, "actor_train_dump": False, "reference_dump": False}
    settings |= {"critic_train_dump": False}
    a = record_training(tmp_path / "a", tokens=3, steps=1, **settings)
    b = record_training(tmp_path / "b", tokens=5, steps=1, **settings)
    result = compare_runs(a, b)
    place = first(result)
    assert (place.entry, place.cause) == ("Cell.root.Network.forward.3", Cause.MISSING)
    assert result.verdict.counts["only_in_b"] == 2 * 9 * 2
    assert {f.entry.rpartition(".")[2] for f in by_status(result, Status.ONLY_IN_B)} == {"3", "4"}


def test_values_that_cannot_be_compared_are_listed_apart(tmp_path):
    """An object nothing is known about is neither the same nor different: it is listed."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call("x", "Net", lambda x, cache: x, np.ones(3), cache=object())
        recording.end_step()
        recording.close()
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert result.verdict.status is Outcome.IDENTICAL
    (gap,) = result.verdict.coverage
    assert "object" in gap.reason
    assert (gap.only_in, gap.records) == ("both", 1)


@pytest.mark.parametrize(
    ("other", "status"),
    [
        (np.ones(2), Status.DTYPE_MISMATCH),
        (None, Status.DTYPE_MISMATCH),
        (object, Status.DTYPE_MISMATCH),
        ("absent", Status.ONLY_IN_A),
    ],
    ids=["tensor", "None", "another type", "absent"],
)
def test_an_unknown_object_against_something_else_is_not_the_same(tmp_path, other, status):
    """Where only one run has an object nothing is known about, the two differ."""
    for name in ("a", "b"):
        value = object() if name == "a" else other
        kwargs = {} if isinstance(value, str) else {"cache": value}
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call("x", "Net", lambda x, **_: x, np.ones(3), **kwargs)
        recording.end_step()
        recording.close()
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert first(result).record == "Cell.x.Net.forward.0.input.cache"
    assert len(by_status(result, status)) == 1
    swapped = compare_runs(tmp_path / "b", tmp_path / "a")
    assert not swapped


# What cannot be read.


def test_a_file_cut_short_is_unreadable_and_the_rest_is_compared(tmp_path):
    """One damaged file is one unreadable record; everything else keeps its status."""
    a, b = (record_training(tmp_path / n, task="tensor", steps=1) for n in ("a", "b"))
    tensors = b / REFERENCE / "step0/rank0/dump_tensor_data"
    path = tensors / "Cell.head.Dense.forward.0.output.0.npy"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-10])
    result = compare_runs(a, b)
    place = first(result)
    assert (place.cause, place.phase) == (Cause.UNREADABLE, REFERENCE)
    assert place.record == "Cell.head.Dense.forward.0.output.0"
    assert result.verdict.counts["unreadable"] == 1
    assert result.verdict.counts["identical"] == result.verdict.compared - 1


def test_a_damaged_journal_counts_as_diverged(tmp_path):
    """A damaged line in a finished step is never a pass, although the other run is equal."""
    runs = [record_training(tmp_path / n, steps=1) for n in ("a", "b")]
    for run in runs:  # in both, so that what is left is equal
        journal = run / REFERENCE / "step0/rank0/records.jsonl"
        journal.write_bytes(journal.read_bytes()[:-50])
    result = compare_runs(*runs)
    assert first(result).cause is Cause.UNREADABLE
    assert len(result.problems) == 2


def test_a_damaged_line_is_said_to_be_one(tmp_path):
    """Which line of which file, which entry it held; nothing is said of a record's elements."""
    runs = [record_training(tmp_path / n, steps=1) for n in ("a", "b")]
    journal = runs[1] / REFERENCE / "step0/rank0/records.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[2])["entry"]
    lines[2] = lines[2].replace(b'"seq"', b'"\xff"')
    lines[4] = b"\0" * 20 + b"\n"
    journal.write_bytes(b"".join(lines))
    result = compare_runs(*runs)
    said = first(result).explanation
    assert "records.jsonl: 2 damaged line(s) in the journal" in said
    assert f"line 3 ({entry}), line 5 (its name is lost, too)" in said
    assert "elements" not in said
    assert result.verdict.counts["identical"] > 100


def test_a_broken_dump_json_counts_as_diverged(tmp_path):
    """A phase whose dump.json is broken is unreadable, in one run or in both."""
    runs = [record_training(tmp_path / n, steps=1) for n in ("a", "b")]
    for run in runs:
        directory = run / REFERENCE / "step0/rank0"
        (directory / "records.jsonl").unlink()
        os.truncate(directory / "dump.json", 40)
        result = compare_runs(*runs)
        assert first(result).cause is Cause.UNREADABLE
        assert first(result).phase == REFERENCE
        assert result.verdict.counts["only_in_a"] == result.verdict.counts["only_in_b"] == 0


def test_layer_data_behind_a_link_are_not_passed_over(tmp_path):
    """A phase that lies outside both runs is unreadable, not silently the same."""
    runs = [record_training(tmp_path / n, steps=1) for n in ("a", "b")]
    for run in runs:
        (run / REFERENCE).rename(tmp_path / f"moved_{run.name}")
        (run / REFERENCE).symlink_to(tmp_path / f"moved_{run.name}")
    assert first(compare_runs(*runs)).cause is Cause.UNREADABLE


# Several ranks.


def test_the_rank_whose_computation_parts_first_is_named(tmp_path):
    """Between ranks the earliest event of the step comes first, not the lowest rank."""
    a = record_training(tmp_path / "a", ranks=(0, 1, 2), steps=1)
    faults = [Fault("head", "critic_update", rank=0), Fault("embed", REFERENCE, rank=2)]
    b = record_training(tmp_path / "b", ranks=(0, 1, 2), steps=1, faults=faults)
    place = first(compare_runs(a, b))
    assert (place.rank, place.phase, place.entry) == (2, REFERENCE, "Cell.embed.Dense.forward.0")


def test_of_ranks_that_part_together_the_lowest_is_named(tmp_path):
    """The same event on several ranks: the lowest rank."""
    a = record_training(tmp_path / "a", ranks=(0, 1, 2), steps=1)
    faults = [Fault("embed", REFERENCE, rank=rank) for rank in (2, 1)]
    b = record_training(tmp_path / "b", ranks=(0, 1, 2), steps=1, faults=faults)
    assert first(compare_runs(a, b)).rank == 1


def test_between_ranks_key_data_count_in_the_order_of_a_step(tmp_path):
    """With key data only, rank 1's rewards come before rank 0's loss."""
    for name in ("a", "b"):
        for rank in (0, 1):
            recording = Recording(tmp_path / name, rank=rank)
            for key in ("prompts", "rewards", "loss"):
                wrong = name == "b" and (key, rank) in (("rewards", 1), ("loss", 0), ("loss", 1))
                recording.data(key, 2.0 if wrong else 1.0)
            recording.end_step()
            recording.close()
    place = first(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert (place.rank, place.record) == (1, "rewards")


def test_an_earlier_step_comes_before_a_lower_rank(tmp_path):
    """A divergence at step 0 of the last rank comes before one at step 1 of the first."""
    a = record_training(tmp_path / "a", ranks=(0, 1))
    faults = [Fault("embed", "actor_generate_sequences", rank=0, step=1)]
    faults.append(Fault("head", "critic_update", rank=1, step=0))
    b = record_training(tmp_path / "b", ranks=(0, 1), faults=faults)
    place = first(compare_runs(a, b))
    assert (place.step, place.rank, place.phase) == (0, 1, "critic_update")


# Micro-steps: the phases of a step opened several times.


@pytest.mark.parametrize("at_end", [False, True])
def test_a_cell_of_a_later_round_is_found(tmp_path, at_end):
    """With two rounds in a step, a fault in the second round's phase is named at its call."""
    a = record_training(tmp_path / "a", steps=1, rounds=2, data_at_end=at_end)
    fault = Fault("layers.0.mlp", REFERENCE, call=1)
    b = record_training(tmp_path / "b", steps=1, rounds=2, data_at_end=at_end, faults=[fault])
    place = first(compare_runs(a, b))
    assert place.entry == "Cell.layers.0.mlp.Dense.forward.1"


@pytest.mark.parametrize("at_end", [False, True])
def test_an_update_of_the_first_round_comes_before_the_second_rounds_rewards(tmp_path, at_end):
    """What the first round's update did wrong is not blamed on the rewards it led to."""
    a = record_training(tmp_path / "a", steps=1, rounds=2, data_at_end=at_end)
    fault = Fault("layers.1.mlp", "actor_update", call=0)
    b = record_training(tmp_path / "b", steps=1, rounds=2, data_at_end=at_end, faults=[fault])
    place = first(compare_runs(a, b))
    assert (place.phase, place.entry) == ("actor_update", "Cell.layers.1.mlp.Dense.forward.0")


def test_a_loss_logged_inside_a_phase_stands_behind_that_opening(tmp_path):
    """A loss saved in every second opening, inside it, does not come before that opening's cell."""

    def record(root, wrong):
        recording = Recording(root)
        for opening in range(4):
            with recording.phase("actor_update"):
                by = 3 if wrong and opening == 3 else 2
                y = recording.call("a", "Dense", lambda x, by=by: x * by, np.ones(3))
                if opening % 2:
                    recording.data("loss", float(y.sum()))
                recording.call("b", "Dense", np.sin, np.ones(3))
        recording.end_step()
        return recording.close()

    place = first(compare_runs(record(tmp_path / "a", False), record(tmp_path / "b", True)))
    assert place.entry == "Cell.a.Dense.forward.3"


# Parameters.


def record_parameters(root, changes, wrong=0.0, **settings):
    """Record five calls of a cell whose weight changes before the calls in `changes`."""
    recording = Recording(root, **settings)
    weight = np.ones(4, np.float32)
    with recording.phase("actor_update"):
        for call in range(5):
            if call in changes:
                weight = weight + 1 + np.float32(wrong)
            recording.call("a", "Dense", lambda x: x, np.ones(3), parameters={"weight": weight})
    recording.end_step()
    return recording.close()


def test_parameters_recorded_again_in_both_runs_are_compared(tmp_path):
    """A parameter that changed in both runs is compared where it changed."""
    a, b = record_parameters(tmp_path / "a", {2}), record_parameters(tmp_path / "b", {2})
    assert compare_runs(a, b)
    c = record_parameters(tmp_path / "c", {2}, wrong=0.5)
    place = first(compare_runs(a, c))
    assert place.record == "Cell.a.Dense.forward.2.parameters.weight"
    assert place.cause is Cause.PARAMETER


@pytest.mark.parametrize("swapped", [False, True])
def test_a_parameter_that_changed_in_one_run_only_is_a_parameter(tmp_path, swapped):
    """A parameter recorded again in one run is compared with what the other last held."""
    runs = [record_parameters(tmp_path / "a", {3}), record_parameters(tmp_path / "b", set())]
    result = compare_runs(*(runs[::-1] if swapped else runs))
    place = first(result)
    assert place.record == "Cell.a.Dense.forward.3.parameters.weight"
    assert (place.entry, place.cause) == ("Cell.a.Dense.forward.3", Cause.PARAMETER)
    assert len(by_status(result, Status.DIFFERENT)) == 1
    assert not by_status(result, Status.ONLY_IN_A, Status.ONLY_IN_B)


# The edges.


def test_runs_with_nothing_in_common_are_incomparable(tmp_path):
    """Other phases, other keys: nothing was compared, so nothing is the same."""
    for name, phase, key in (("a", "actor_update", "loss"), ("b", "critic_update", "rewards")):
        recording = Recording(tmp_path / name)
        with recording.phase(phase):
            recording.call("a", "Dense", np.sin, np.ones(3))
        recording.data(key, 1.0)
        recording.end_step()
        recording.close()
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert not result
    assert result.verdict.first_divergence is None


def test_runs_that_recorded_nothing_are_incomparable(tmp_path):
    """Comparing nothing is not success."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        recording.end_step()
        recording.close()
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert not result


def test_the_same_directory_twice_is_refused(reference_run, tmp_path):
    """A run compared with itself proves nothing, however its path is written."""
    from mindrlhf_msprobe.errors import RunError

    (tmp_path / "link").symlink_to(reference_run)
    for other in (reference_run, str(reference_run) + "/", tmp_path / "link"):
        with pytest.raises(RunError, match="the same directory"):
            compare_runs(reference_run, other)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_container_recorded_in_one_run_only_is_not_blamed(tmp_path, swapped):
    """A cell whose container one run left out is blamed on nothing that was not compared."""
    a = record_training(tmp_path / "a", steps=1, include=[r"\.mlp$"])
    b = record_training(tmp_path / "b", steps=1, faults=[Fault("layers.0:between", REFERENCE)])
    place = first(compare_runs(b, a) if swapped else compare_runs(a, b))
    assert (place.entry, place.cause) == ("Cell.layers.0.mlp.Dense.forward.0", Cause.INPUT)


def test_the_next_step_is_a_configuration_that_records_the_place(compared):
    """The advice is a valid section that records the origin, its phase and step, with tensors."""
    from mindrlhf_msprobe.config import ProbeConfig

    place = first(compared(Fault("layers.1.mlp", REFERENCE, step=1)))
    config = ProbeConfig(**place.next_step)
    assert (config.task, config.step_start, config.step_end) == ("tensor", 1, 1)
    assert config.reference_dump
    assert config.records_cell("layers.1.mlp")
    assert not config.records_cell("layers.1.attention")


def test_the_next_step_names_a_trainers_own_phase(tmp_path):
    """The advice for a phase of the trainer's own declares that phase."""
    from mindrlhf_msprobe.config import ProbeConfig

    for name in ("a", "b"):
        recording = Recording(tmp_path / name, phases={"reward_compute": "reward"})
        with recording.phase("reward_compute"):
            recording.call("a", "Dense", lambda x, n=name: x + (n == "b"), np.ones(3))
        recording.end_step()
        recording.close()
    place = first(compare_runs(tmp_path / "a", tmp_path / "b"))
    config = ProbeConfig(**place.next_step)
    assert "reward_compute" in config.phase_table()


def test_the_network_helper_is_deterministic():
    """The runs of these tests start from the same weights."""
    assert all((Network(1).weights[n] == w).all() for n, w in Network(1).weights.items())


def test_the_spread_tells_where_the_difference_went(compared):
    """Each later phase and key of the step that differs is listed in causal order, no other."""
    verdict = compared(Fault("layers.1.mlp", REFERENCE)).verdict
    places = [spread.place for spread in verdict.spread]
    assert places[0] == REFERENCE
    assert "ref_log_prob" in places
    assert "responses" not in places
    for spread in verdict.spread:
        assert 0 < spread.different <= spread.compared
