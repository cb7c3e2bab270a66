"""A part of two runs compared: steps, records, keys, what both have, up to the first divergence."""

from __future__ import annotations

import json
import re

import pytest
from helpers.runs import Fault, Recording, record_data, record_training
from helpers.snapshots import rewrite

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.pairing.filters import filters
from mindrlhf_msprobe.comparison.steps import step_of_rank as place
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Cause, Outcome
from mindrlhf_msprobe.report.comparison import render

ACTOR, UPDATE = "actor_compute_log_prob", "actor_update"
MLP = Fault("layers.0.mlp", "reference_compute_log_prob", step=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs of four steps that part in a cell of the reference in step 1."""
    root = tmp_path_factory.mktemp("filters")
    return (
        record_training(root / "a", steps=4),
        record_training(root / "b", steps=4, faults=[MLP]),
    )


@pytest.mark.parametrize(
    ("steps", "compared", "left_out"),
    [
        ("0", {0}, (1, 2, 3)),
        ("0, 2-9", {0, 2, 3}, (1,)),
        (2, {2}, (0, 1, 3)),
        ([0, 3], {0, 3}, (1, 2)),
    ],
)
def test_steps(runs, steps, compared, left_out):
    """Only the steps that were asked for are compared, and the answer says which were not."""
    result = compare_runs(*runs, steps=steps)
    assert {finding.step for finding in result.findings} == compared
    assert result.chosen.steps_left_out == left_out
    assert result.to_json()["chosen"]["left_out"]["steps"] == list(left_out)
    assert bool(result) == (compared == {0})
    assert f"Left out: step{'s' * (len(left_out) > 1)} {left_out[0]}" in render(result)


def test_include_and_exclude(runs):
    """A record is compared if one of include and none of exclude is found in its name."""
    result = compare_runs(*runs, include=["mlp", "^values$"], exclude=r"input|layers\.1", steps=0)
    names = {finding.record for finding in result.findings}
    assert "values" in names
    cells = names - {"values"}
    assert cells
    assert all("layers.0.mlp" in name and "input" not in name for name in cells)
    assert result
    gap = next(gap for gap in result.verdict.coverage if "--include" in gap.reason)
    assert gap.records + len(result.findings) == len(compare_runs(*runs, steps=0).findings)


@pytest.mark.parametrize(
    ("include", "record", "cause"),
    [
        ("output", "Cell.layers.0.mlp.Dense.forward.0.output.0", Cause.COMPUTATION),
        (r"head.*output", "Cell.head.Dense.forward.0.output.0", Cause.INPUT),
        (r"layers\.0\.Block.*output", "Cell.layers.0.Block.forward.0.output.0", Cause.COMPUTATION),
        (r"head", "Cell.head.Dense.forward.0.input.0", Cause.INPUT),
        ("ref_log_prob", "ref_log_prob", Cause.DATA),
    ],
)
def test_what_was_left_out_is_never_said_to_agree(runs, include, record, cause):
    """A cell is blamed only where what it was given agrees; else the origin lies before it."""
    first = compare_runs(*runs, include=include).verdict.first_divergence
    assert (first.record, first.cause, first.step) == (record, cause, 1)
    if include != "output":
        assert re.search("comparison left (them )?out", first.explanation)
        assert first.next_step is None


def test_keys(runs):
    """Only the keys that were asked for are compared, and no cell."""
    result = compare_runs(*runs, keys="values, loss")
    assert {finding.record for finding in result.findings} == {"values", "loss"}
    assert result.verdict.first_divergence.record == "loss"
    assert "prompts" in result.chosen.keys_left_out
    assert "Left out: all cells; keys" in render(result)


@pytest.fixture(scope="module")
def with_copy(tmp_path_factory):
    """Return a run that saves log_prob equal to old_log_prob in step 0 only."""
    steps = [{"old_log_prob": [1.0, 2.0], "log_prob": [1.0, 2.0 + step]} for step in range(2)]
    root = tmp_path_factory.mktemp("copy") / "a"
    return record_data(root, *(saves.items() for saves in steps))


@pytest.mark.parametrize("keys", ["old_log_prob=log_prob", {"old_log_prob": "log_prob"}])
def test_two_keys_stand_against_each_other(with_copy, keys):
    """In one run or in two; the note says so, and each side keeps its own name."""
    result = compare_runs(with_copy, keys=keys)
    first = result.verdict.first_divergence
    assert (first.step, first.record) == (1, "old_log_prob.1")
    assert result.findings[0].b.name == "log_prob.0"
    assert "old_log_prob of A is compared with log_prob of B" in result.notes
    assert compare_runs(with_copy, keys=keys, steps=0).verdict.status is Outcome.IDENTICAL


def test_common(runs, tmp_path):
    """What one run alone has is coverage; nothing in common is still no agreement."""
    short = record_training(tmp_path / "short", steps=2, critic_train_dump=True, ranks=(0,))
    longer = record_training(tmp_path / "longer", steps=3, ranks=(0, 1))
    for directory in (short / "data/values", short / "critic_update"):
        for path in sorted(directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        directory.rmdir()
    assert compare_runs(short, longer).verdict.status is Outcome.DIVERGED
    for pair in ((short, longer), (longer, short)):
        result = compare_runs(*pair, common=True)
        assert result.verdict.status is Outcome.IDENTICAL
        reasons = " ".join(gap.reason for gap in result.verdict.coverage)
        assert all(what in reasons for what in ("steps and ranks", "phases", "keys"))
    assert compare_runs(*runs, common=True).verdict.first_divergence.step == 1
    other = record_data(tmp_path / "other", [("mine", 1.0)])
    other = compare_runs(other, runs[0], common=True)
    assert other.verdict.status is Outcome.INCOMPARABLE


def test_first_only_compares_no_more_than_it_needs(runs, tmp_path, monkeypatch):
    """It ends where the full comparison finds the first divergence, and writes its place alone."""
    judged = []
    compare_pair = place.compare_pair
    monkeypatch.setattr(
        place, "compare_pair", lambda job, work: judged.append(work) or compare_pair(job, work)
    )
    whole = compare_runs(*runs, workers=1)
    all_pairs = len(judged)
    judged.clear()
    result = compare_runs(*runs, workers=1, first_only=True, output_path=tmp_path / "out")
    first, expected = result.verdict.first_divergence, whole.verdict.first_divergence
    assert (first.record, first.cause, first.entry) == (
        expected.record,
        expected.cause,
        expected.entry,
    )
    assert (first.agreed_before, first.agreed_steps) == (expected.agreed_before, 1)
    before = [f for f in whole.findings if f.step == 0]
    assert len(judged) == len(before) + expected.agreed_before + 1 < all_pairs / 2
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    table = "compare_result_reference_compute_log_prob.xlsx"
    assert names == [table, "summary.xlsx", "verdict.json"]
    assert {(f.step, f.phase) for f in result.findings} == {(1, "reference_compute_log_prob")}
    content = json.loads((tmp_path / "out/verdict.json").read_text())["chosen"]
    assert content["first_only"] is True
    assert content["left_out"]["steps_after_the_first_divergence"] == [2, 3]


def test_first_only_of_several_ranks(tmp_path):
    """The rank that parts in the earliest phase is named, though a lower one parts later."""
    faults = [
        [Fault("head", "actor_update", rank=0), Fault("embed", ACTOR, rank=1)],
        [Fault("embed", ACTOR, rank=1, step=1)],
    ]
    a = record_training(tmp_path / "a", ranks=(0, 1))
    for name, planted in zip(("b", "c"), faults):
        b = record_training(tmp_path / name, ranks=(0, 1), faults=planted)
        whole, first = compare_runs(a, b), compare_runs(a, b, first_only=True)
        for key in ("rank", "phase", "record", "cause", "step", "explanation"):
            expected = getattr(whole.verdict.first_divergence, key)
            assert getattr(first.verdict.first_divergence, key) == expected
    assert compare_runs(a, record_training(tmp_path / "d", ranks=(0, 1)), first_only=True)


def test_first_only_of_what_is_missing(tmp_path):
    """How much is missing is known without comparing what follows."""
    a = record_training(tmp_path / "a", steps=1)
    b = record_training(tmp_path / "b", steps=1, reference_dump=False)
    rewrite(b / "run.json", {"config.reference_dump": True})
    whole, first = compare_runs(a, b), compare_runs(a, b, first_only=True)
    assert first.verdict.first_divergence.cause is Cause.MISSING
    assert first.verdict.first_divergence.explanation == whole.verdict.first_divergence.explanation


def test_phases_of_which_one_has_no_backward_pass(tmp_path):
    """What both can have is compared: forward records; the rest is coverage."""
    recording = Recording(tmp_path / "a")
    for phase in (ACTOR, UPDATE):
        with recording.phase(phase):
            recording.call("root", "Net", lambda x: x * 2.0, 1.0)
            if phase == UPDATE:
                recording.call("root", "Net", lambda x: x * 3.0, 1.0)
    recording.end_step()
    run = recording.close()
    journal = run / UPDATE / "step0/rank0/records.jsonl"
    backward = {"entry": "Cell.root.Net.backward.0", "seq": 90, "end": 91, "parent": None}
    value = [{"type": "float", "value": 1.0}]
    line = json.dumps({**backward, "opening": 0, "input": value, "output": value})
    journal.write_text(journal.read_text() + line + "\n")
    for phases in ((ACTOR, UPDATE), (UPDATE, ACTOR)):
        result = compare_runs(run, phases=phases)
        assert result.verdict.status is Outcome.IDENTICAL
        assert result.verdict.compared == 2
        reasons = {gap.reason: gap.records for gap in result.verdict.coverage}
        assert len(reasons) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": "7-9"}, "names 7-9, of which neither run recorded anything. They hold: 0-3"),
        ({"steps": "0,8"}, "names 8, of which"),
        ({"steps": "3-1"}, "1 comes before 3"),
        ({"steps": "1:2"}, "expected step numbers and ranges"),
        ({"steps": []}, "names no step"),
        ({"steps": [True]}, "expected step numbers"),
        ({"steps": -1}, "expected step numbers"),
        ({"include": "atention"}, "'atention' matches no record.*Nearest: .*attention"),
        ({"exclude": ["mlp", "nothing like it"]}, "exclude 'nothing like it' matches no record"),
        ({"include": "("}, "not a regular expression"),
        ({"include": 3}, "expected a regular expression"),
        ({"include": "mlp", "exclude": "mlp"}, "leave no record to compare"),
        ({"keys": "value"}, "holds the key 'value'. Did you mean 'values'"),
        ({"keys": "values=lss"}, "B does not hold the key 'lss'. Did you mean 'loss'"),
        ({"keys": "values,values=loss"}, "names 'values' twice"),
        ({"keys": "values="}, "expected names of keys"),
        ({"keys": [1]}, "expected names of keys"),
        ({"keys": "values", "phases": (ACTOR, UPDATE)}, "keys and phases are both given"),
        ({"first_only": 1}, "expected True or False"),
        ({"common": "yes"}, "expected True or False"),
    ],
)
def test_a_filter_that_is_wrong_or_matches_nothing(runs, arguments, message):
    """It is an error that says what there is; never an empty agreement."""
    with pytest.raises(UsageError, match=message):
        compare_runs(*runs, **arguments)


def test_a_key_is_not_compared_with_itself(runs):
    """One run needs two keys that stand against each other."""
    with pytest.raises(RunError, match=r"Expected two keys, e\.g\. loss=OTHER"):
        compare_runs(runs[0], keys="loss")


def test_nothing_chosen_changes_nothing(runs):
    """Without filters verdict.json has no word of them."""
    assert "chosen" not in compare_runs(*runs).to_json()
    assert filters() == filters(None, None, None, None)


def test_the_command_line(runs, tmp_path, capsys):
    """Each has its option; `=` in --keys makes one run enough."""
    a, b, out = str(runs[0]), str(runs[1]), ["-o", str(tmp_path / "out")]
    assert main(["compare", a, b, "--steps", "0", *out]) == 0
    chosen = ["--include", "mlp", "--include", "embed", "--exclude", "output", "--common"]
    assert main(["compare", a, b, *chosen, "--steps", "0", *out]) == 0
    assert main(["compare", a, b, "--keys", "loss", "--first-only", *out]) == 1
    assert main(["compare", a, "--keys", "old_log_prob=ref_log_prob", "--steps", "0", *out]) == 0
    capsys.readouterr()
    for wrong in (["--steps", "x"], ["--keys", ""], ["--include", "nothing"], ["--steps", ""]):
        assert main(["compare", a, b, *wrong, *out]) == 2
        assert "Traceback" not in capsys.readouterr().err
