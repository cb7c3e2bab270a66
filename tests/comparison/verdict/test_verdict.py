"""Two runs with a known difference → the verdict names it: the cell, the record, the cause."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from helpers.runs import Fault, Recording, a_nan, record_data, record_training, slightly_more

from mindrlhf_msprobe import Tolerance, compare_runs, open_run
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Cause, Outcome, Status
from mindrlhf_msprobe.phases import PHASES
from mindrlhf_msprobe.storage.journal_line import JournalLine

REFERENCE = "reference_compute_log_prob"


@pytest.fixture
def compared(trained):
    """Return a function that compares a training with one that has these faults."""

    def compare(*faults, tolerance=None, other=None, **settings):
        b = trained(*faults, name="b", **{**settings, **(other or {})})
        return compare_runs(trained(**settings), b, tolerance=tolerance)

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


def cell(name, call=0, kind="Dense"):
    return f"Cell.{name}.{kind}.forward.{call}"


GENERATE, UPDATE = "actor_generate_sequences", "actor_update"


def output(name, call=0, kind="Dense"):
    return f"{cell(name, call, kind)}.output.0"


SLIGHTLY = {"other": {"weights": {"layers.1.attention": slightly_more}}}
LEAVES = [
    (GENERATE, "layers.0.mlp"),
    ("actor_compute_log_prob", "embed"),
    (REFERENCE, "layers.1.attention"),
    ("critic_compute_values", "head"),
    (UPDATE, "layers.0.attention"),
    ("critic_update", "layers.1.mlp"),
]
ROOT = output("root", kind="Network")


def fault(place, phase=None, **more):
    return [Fault(place, phase, **more)]


@pytest.mark.parametrize(
    ("faults", "settings", "expected", "said"),
    [
        # A cell that is given the same and makes something else, in any phase and step.
        *(
            (
                *(fault(name, phase, step=step), {}),
                *(
                    f"{step}/0 {phase} {output(name)} computation",
                    "inputs and its parameters agree",
                ),
            )
            for step in (0, 1)
            for phase, name in LEAVES
        ),
        (
            fault("layers.0.mlp", GENERATE, call=2),
            *({}, f"0/0 {GENERATE} {output('layers.0.mlp', 2)} computation", ""),
        ),
        (
            fault("layers.1:between", REFERENCE),  # the code between two children
            {},
            f"0/0 {REFERENCE} {cell('layers.1.mlp')}.input.0 computation in layers.1",
            "",
        ),
        (
            fault("layers.0:sum", REFERENCE),  # the code behind the children
            *({}, f"0/0 {REFERENCE} {output('layers.0', kind='Block')} computation", ""),
        ),
        (fault("root", UPDATE), {}, f"0/0 {UPDATE} {ROOT} computation", ""),
        # A weight: loaded otherwise, at the first cell that holds it, or updated otherwise.
        (
            *([], SLIGHTLY),
            f"0/0 {GENERATE} {cell('layers.1.attention')}.parameters.weight parameter",
            "",
        ),
        (
            *(fault("weights:head"), {}),
            f"1/0 {GENERATE} {cell('head')}.parameters.weight parameter",
            "previous update",
        ),
        # Data: of the trainer, or from outside.
        (fault("prompts", step=1), {}, f"1/0 {GENERATE} prompts input", ""),
        (
            *(fault("responses", step=1), {"actor_infer_dump": False}),
            f"1/0 {GENERATE} responses input",
            "and the cells of actor_generate_sequences were not recorded",
        ),
        (fault("responses"), {}, f"0/0 {GENERATE} responses data", ""),
        *(
            (fault(key), {"data_at_end": at_end}, f"0/0 None {key} data", "")
            for key in ("rewards", "advantages")
            for at_end in (False, True)
        ),
        # What cannot be compared by value; nothing is cut to fit.
        (
            fault("layers.0.mlp", REFERENCE, change=a_nan),
            *({}, f"0/0 {REFERENCE} {output('layers.0.mlp')} non_finite", ""),
        ),
        (
            *(fault("root", REFERENCE, change=lambda v: v[:1]), {}),
            *(f"0/0 {REFERENCE} {ROOT} shape", "[2, 4, 6] against [1, 4, 6]"),
        ),
        (
            *(fault("root", REFERENCE, change=lambda v: v.astype(np.float64)), {}),
            *(f"0/0 {REFERENCE} {ROOT} dtype", ""),
        ),
        ([], {"other": {"steps": 1}}, f"1/0 {GENERATE} prompts missing", ""),
    ],
)
def test_what_differs_first_is_named_with_its_cause(compared, faults, settings, expected, said):
    """Step, rank, phase, record and cause; the cell to blame where that is another one."""
    place = first(compared(*faults, **settings))
    found = f"{place.step}/{place.rank} {place.phase} {place.record} {place.cause.value}"
    if place.entry and not place.record.startswith(place.entry):
        found += f" in {place.entry.split('.Block')[0].removeprefix('Cell.')}"
    assert found == expected
    assert said in place.explanation
    if place.record in ("rewards", "advantages"):
        assert place.agreed_before > 100
    if place.record == "prompts":
        assert place.agreed_steps == 1
        assert "were not recorded" not in place.explanation  # no cell makes them


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
def test_rewards_come_before_losses_whichever_phases_were_recorded(compared, off, at_end):
    """Rewards that differ are named before the losses they lead to, with any switches."""
    settings = {"data_at_end": at_end, "steps": 1, **dict.fromkeys(off, False)}
    assert first(compared(Fault("rewards"), **settings)).record == "rewards"


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    ("phase", "name", "rounds", "call"),
    [
        ("actor_compute_log_prob", "head", 1, 0),
        (REFERENCE, "head", 1, 0),
        (UPDATE, "head", 1, 0),
        (REFERENCE, "layers.0.mlp", 2, 1),
        (UPDATE, "layers.1.mlp", 2, 0),
    ],
)
def test_a_phases_result_stands_behind_its_cells(compared, phase, name, rounds, call, at_end):
    """What a cell made wrong, rewards of a second round among it, does not hide that cell."""
    settings = {"steps": 1, "rounds": rounds, "data_at_end": at_end}
    place = first(compared(Fault(name, phase, call=call), **settings))
    assert (place.phase, place.entry) == (phase, cell(name, call))


def test_key_data_alone_are_named_in_the_order_of_a_step(compared):
    """With key data only, what comes first in a step is named first, whatever was saved first."""
    settings = {"actor_infer_dump": False, "actor_train_dump": False, "reference_dump": False}
    settings |= {"critic_train_dump": False, "data_at_end": True}
    result = compared(Fault("rewards", step=1), **settings)
    assert first(result).record == "rewards"
    assert first(result).cause is Cause.DATA
    different = [f.record for f in by_status(result, Status.DIFFERENT)]
    assert different == ["rewards", "advantages", "loss", "value_loss"]


def test_values_count_where_a_tolerance_is_given(compared):
    """With a tolerance, runs in unlike dtypes are within it, and the result is true."""
    fault = Fault("root", "critic_update", change=lambda v: v.astype(np.float64))
    result = compared(fault, task="tensor", tolerance=Tolerance(rtol=1e-3, atol=1e-5))
    assert result
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE


def test_a_tolerance_hides_small_differences_only(compared):
    """Small differences are within the tolerance; the first larger one is named."""
    small = Fault("embed", "actor_compute_log_prob", change=lambda v: v * np.float32(1 + 1e-6))
    large = Fault("layers.1.mlp", REFERENCE, change=lambda v: v * np.float32(1.5))
    settings = {"task": "tensor", "tolerance": Tolerance(rtol=1e-3, atol=1e-4)}
    result = compared(small, **settings)
    assert result
    assert result.verdict.counts["within_tolerance"] > 0
    place = first(compared(small, large, **settings))
    assert (place.phase, place.entry) == (REFERENCE, cell("layers.1.mlp"))
    assert place.max_rel_err == pytest.approx(1 / 3, rel=1e-3)


def test_statistics_without_fingerprints_never_make_runs_identical(compared):
    """Equal runs recorded without fingerprints and tensors are within tolerance, and say so."""
    result = compared(fingerprint=False, key_data_dump=False)
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    assert result.verdict.counts["identical"] == 0
    assert all("statistics" in f.note for f in result.findings)


# What is missing.


def test_a_missing_phase_is_missing(trained, tmp_path):
    """A phase that one run ought to have and has not is missing, at its first cell."""
    pair = trained(), record_training(tmp_path / "b")
    for rank in (pair[1] / REFERENCE).rglob("rank0"):
        rank.rename(rank.parent / "gone")
    for runs, status in ((pair, "only_in_a"), (pair[::-1], "only_in_b")):
        result = compare_runs(*runs)
        place = first(result)
        assert (place.cause, place.phase, place.step) == (Cause.MISSING, REFERENCE, 0)
        assert place.entry == "Cell.root.Network.forward.0"
        assert result.verdict.counts[status] == 2 * 24


def test_a_missing_rank_is_missing(tmp_path):
    """A rank that only one run has is missing."""
    a = record_training(tmp_path / "a", ranks=(0, 1))
    b = record_training(tmp_path / "b", ranks=(0,))
    (a / "run.rank1.json").rename(a / "gone.json")
    place = first(compare_runs(a, b))
    assert (place.rank, place.step, place.cause) == (1, 0, Cause.MISSING)


def test_a_missing_cell_is_missing_where_it_ran(of_both):
    """A cell that ran in one run only is missing, with the cell around it."""

    def record(recording, run):
        def body(x):
            x = recording.call("a", "Dense", np.sin, x)
            if run == "a":
                x = recording.call("dropout", "Dropout", lambda x: x, x)
            return recording.call("b", "Dense", np.cos, x)

        with recording.phase(UPDATE):
            recording.call("root", "Net", body, np.ones(3))

    place = first(of_both(record))
    assert (place.entry, place.cause) == ("Cell.dropout.Dropout.forward.0", Cause.MISSING)
    assert "inside Cell.root.Net.forward.0" in place.explanation


@pytest.mark.parametrize("quiet", [True, False])
def test_a_cell_that_takes_and_gives_nothing_is_missed_too(of_both, quiet):
    """A cell without inputs that never returned in one run is not passed over."""

    def record(recording, run):
        with recording.phase(UPDATE):
            recording.call("x", "Net", np.sin, np.ones(3))
        if run == "a":
            line = JournalLine("Cell.silent.Net.forward.0", 99, None if quiet else 100)
            line.values["output"] = []
            recording.writer.sink(UPDATE, 0).append(line)

    place = first(of_both(record))
    assert (place.entry, place.cause) == ("Cell.silent.Net.forward.0", Cause.MISSING)


def test_an_empty_list_that_only_one_run_saved_is_missing(of_both):
    """Key data without an element are missing where they were not saved."""

    def record(recording, run):
        recording.data("loss", 1.0)
        if run == "b":
            recording.data("texts", [])

    place = first(of_both(record))
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
        record_data(tmp_path / name, [("loss", 1.0), ("texts", value)])
    assert open_run(tmp_path / "a").key_data("texts")[0].value == a
    place = first(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert place.record == record
    if place.cause is Cause.MISSING:
        assert "Both runs saved texts, with different elements in it." in place.explanation
    same = compare_runs(tmp_path / "a", tmp_path / "c").verdict
    assert same.status is Outcome.IDENTICAL


def test_more_calls_in_one_run_are_reported(compared):
    """A loop that runs longer in one run: what both have is compared, the surplus is missing."""
    settings = {"key_data_dump": False, "actor_train_dump": False, "reference_dump": False}
    settings |= {"critic_train_dump": False, "steps": 1}
    result = compared(other={"tokens": 5}, **settings)
    place = first(result)
    assert (place.entry, place.cause) == ("Cell.root.Network.forward.3", Cause.MISSING)
    assert result.verdict.counts["only_in_b"] == 2 * 9 * 2
    assert {f.entry.rpartition(".")[2] for f in by_status(result, Status.ONLY_IN_B)} == {"3", "4"}


def test_values_that_cannot_be_compared_are_listed_apart(of_both):
    """An object nothing is known about is neither the same nor different: it is listed."""

    def record(recording, run):
        with recording.phase(UPDATE):
            recording.call("x", "Net", lambda x, cache: x, np.ones(3), cache=object())

    result = of_both(record)
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
def test_an_unknown_object_against_something_else_is_not_the_same(tmp_path, of_both, other, status):
    """Where only one run has an object nothing is known about, the two differ."""

    def record(recording, run):
        value = object() if run == "a" else other
        kwargs = {} if isinstance(value, str) else {"cache": value}
        with recording.phase(UPDATE):
            recording.call("x", "Net", lambda x, **_: x, np.ones(3), **kwargs)

    result = of_both(record)
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
    assert "records.jsonl: 2 damaged lines in the journal" in said
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


def test_between_ranks_key_data_count_in_the_order_of_a_step(of_both):
    """With key data only, rank 1's rewards come before rank 0's loss."""
    wrong = {("b", 1, "rewards"), ("b", 0, "loss"), ("b", 1, "loss")}

    def record(recording, run):
        for key in ("prompts", "rewards", "loss"):
            recording.data(key, 2.0 if (run, recording.rank, key) in wrong else 1.0)

    for rank in (0, 1):
        result = of_both(record, rank=rank)
    assert (first(result).rank, first(result).record) == (1, "rewards")


def test_a_loss_logged_inside_a_phase_stands_behind_that_opening(of_both):
    """A loss saved in every second opening, inside it, does not come before that opening's cell."""

    def record(recording, run):
        for opening in range(4):
            with recording.phase(UPDATE):
                by = 3 if run == "b" and opening == 3 else 2
                y = recording.call("a", "Dense", lambda x, by=by: x * by, np.ones(3))
                if opening % 2:
                    recording.data("loss", float(y.sum()))
                recording.call("b", "Dense", np.sin, np.ones(3))

    assert first(of_both(record)).entry == cell("a", 3)


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


@pytest.mark.parametrize("empty", [False, True])
def test_runs_with_nothing_in_common_are_incomparable(of_both, empty):
    """Other phases, other keys, or nothing at all: comparing nothing is not success."""

    def record(recording, run):
        if empty:
            return
        with recording.phase(UPDATE if run == "a" else "critic_update"):
            recording.call("a", "Dense", np.sin, np.ones(3))
        recording.data("loss" if run == "a" else "rewards", 1.0)

    result = of_both(record)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert not result
    assert result.verdict.first_divergence is None


def test_the_same_directory_twice_is_refused(trained, tmp_path):
    """A run compared with itself proves nothing, however its path is written."""
    run = trained()
    (tmp_path / "link").symlink_to(run)
    for other in (run, str(run) + "/", tmp_path / "link"):
        with pytest.raises(RunError, match="the same directory"):
            compare_runs(run, other)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_container_recorded_in_one_run_only_is_not_blamed(trained, swapped):
    """A cell whose container one run left out is blamed on nothing that was not compared."""
    a = trained(steps=1, include=[r"\.mlp$"])
    b = trained(Fault("layers.0:between", REFERENCE), steps=1)
    place = first(compare_runs(b, a) if swapped else compare_runs(a, b))
    assert (place.entry, place.cause) == (cell("layers.0.mlp"), Cause.INPUT)


def test_the_next_step_names_a_trainers_own_phase(of_both):
    """The advice for a phase of the trainer's own declares that phase."""

    def record(recording, run):
        with recording.phase("reward_compute"):
            recording.call("a", "Dense", lambda x: x + (run == "b"), np.ones(3))

    place = first(of_both(record, phases={"reward_compute": "reward"}))
    assert "reward_compute" in ProbeConfig(**place.next_step).phase_table()


def test_the_spread_tells_where_the_difference_went(compared):
    """Each later phase and key of the step that differs is listed in causal order, no other."""
    verdict = compared(Fault("layers.1.mlp", REFERENCE)).verdict
    places = [spread.place for spread in verdict.spread]
    assert places[0] == REFERENCE
    assert "ref_log_prob" in places
    assert "responses" not in places
    for spread in verdict.spread:
        assert 0 < spread.different <= spread.compared
