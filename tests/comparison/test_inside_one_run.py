"""Two phases, two ranks or two steps held against each other."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers.runs import Fault, record_training, slightly_more

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Cause, Outcome

ACTOR, REFERENCE = "actor_compute_log_prob", "reference_compute_log_prob"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of two ranks and one step, in which actor and reference are equal."""
    return record_training(tmp_path_factory.mktemp("run"), steps=1, ranks=(0, 1))


def test_equal_networks_agree(run):
    """Actor and reference of the first step hold the same weights and say the same."""
    result = compare_runs(run, phases=(ACTOR, REFERENCE))
    assert result.verdict.status is Outcome.IDENTICAL
    assert {f.phase for f in result.findings} == {ACTOR}
    assert {f.rank for f in result.findings} == {0, 1}
    assert result.notes == (f"{ACTOR} of A is compared with {REFERENCE} of B",)


def test_how_runs_were_brought_together_is_said_in_both_languages(run, tmp_path):
    """verdict.json has the words, and beside them what a program reads: the same in both."""
    content = {}
    for lang in ("en", "zh"):
        compare_runs(run, ranks=(0, 1), output_path=tmp_path / lang, lang=lang)
        content[lang] = json.loads((tmp_path / lang / "verdict.json").read_text("utf-8"))
    assert content["en"]["notes"] == ["rank 0 of A is compared with rank 1 of B"]
    assert content["zh"]["notes"] == ["A 的 rank 0 与 B 的 rank 1 比对"]
    codes = [{"code": "pairing.rank", "params": {"a": 0, "b": 1}}]
    assert content["en"]["note_codes"] == content["zh"]["note_codes"] == codes
    unknown = [found["preflight"]["unknown"] for found in content.values()]
    assert unknown[0]
    assert len(unknown[0]) == len(unknown[1])
    assert not set(unknown[0]) & set(unknown[1])
    assert content["en"]["preflight"] | {"unknown": []} == content["zh"]["preflight"] | {
        "unknown": []
    }


@pytest.mark.parametrize("place", [ACTOR, REFERENCE])
def test_a_fault_in_one_of_two_networks_is_named(tmp_path, place):
    """The cell that computes otherwise is the origin, in whichever phase it is."""
    faulty = record_training(tmp_path / "a", steps=1, faults=[Fault("layers.0.mlp", place)])
    found = compare_runs(faulty, phases=(ACTOR, REFERENCE)).verdict.first_divergence
    assert found.entry == "Cell.layers.0.mlp.Dense.forward.0"
    assert (found.phase, found.cause) == (ACTOR, Cause.COMPUTATION)


def test_unequal_weights_are_parameters(tmp_path):
    """A reference that was loaded from elsewhere differs by its parameters."""
    faulty = record_training(tmp_path / "a", steps=1, weights={"embed": slightly_more})
    found = compare_runs(faulty, phases=(ACTOR, REFERENCE)).verdict.first_divergence
    assert found.record == "Cell.embed.Dense.forward.0.parameters.weight"
    assert found.cause is Cause.PARAMETER


def test_phases_of_two_runs(run, tmp_path):
    """A phase of A can be held against another one of B."""
    b = record_training(tmp_path / "b", steps=1, ranks=(0, 1), reference_dump=False)
    result = compare_runs(run, b, phases=(REFERENCE, ACTOR))
    assert result.verdict.status is Outcome.IDENTICAL
    assert {f.phase for f in result.findings} == {REFERENCE}


def test_damage_to_one_of_the_two_phases_counts_as_its_own(run, tmp_path):
    """A damaged line is unreadable where its phase is compared, and nowhere else."""
    copy = shutil.copytree(run, tmp_path / "copy")
    journal = copy / REFERENCE / "step0/rank0/records.jsonl"
    journal.write_bytes(b"damage\n" + journal.read_bytes())
    result = compare_runs(copy, phases=(ACTOR, REFERENCE))
    assert result.verdict.counts["unreadable"] == 1
    other = compare_runs(copy, phases=(ACTOR, "actor_update"))
    assert other.verdict.counts["unreadable"] == 0


def test_ranks_of_one_run(tmp_path):
    """Ranks that ran on the same data agree; a fault in one of them is named at A's rank."""
    for name in ("a", "b"):
        record_training(tmp_path / name, steps=1)
    record_training(tmp_path / "c", steps=1, faults=[Fault("head", "actor_update")])
    both = tmp_path / "both"
    for source, rank in (("a", 0), ("b", 1), ("c", 2)):
        for directory in (tmp_path / source).rglob("rank0"):
            target = both / directory.relative_to(tmp_path / source)
            shutil.copytree(directory, target.with_name(f"rank{rank}"))
    shutil.copy(tmp_path / "a" / "run.json", both)
    assert compare_runs(both, ranks=(0, 1)).verdict.status is Outcome.IDENTICAL
    result = compare_runs(both, ranks=(1, 2))
    place = result.verdict.first_divergence
    assert place.entry == "Cell.head.Dense.forward.0"
    assert (place.rank, place.phase, place.cause) == (1, "actor_update", Cause.COMPUTATION)
    assert {f.rank for f in result.findings} == {1}
    assert "rank 1 of A is compared with rank 2 of B" in result.notes


def test_ranks_that_see_other_data_differ_by_their_input(run):
    """Key data are compared between ranks, too."""
    place = compare_runs(run, ranks=(0, 1)).verdict.first_divergence
    assert place.cause in (Cause.INPUT, Cause.DATA)
    assert place.rank == 0


def test_ranks_and_phases_together(run, tmp_path):
    """One phase of one rank against another phase of the same rank of another run."""
    b = record_training(tmp_path / "b", steps=1, ranks=(1,))
    result = compare_runs(run, b, phases=(ACTOR, REFERENCE), ranks=(1, 1))
    assert result.verdict.status is Outcome.IDENTICAL
    assert {(f.phase, f.rank) for f in result.findings} == {(ACTOR, 1)}


def test_steps_of_other_numbers_line_up(tmp_path):
    """Two step directories are held against each other, whatever their numbers."""
    a = record_training(tmp_path / "a", steps=2)
    b = shutil.copytree(a / REFERENCE / "step1", tmp_path / "b" / REFERENCE / "step5")
    result = compare_runs(a / REFERENCE / "step1", b)
    assert result.verdict.status is Outcome.IDENTICAL
    assert {f.step for f in result.findings} == {1}
    assert {f.phase for f in result.findings} == {REFERENCE}
    assert "step 1 of A is compared with step 5 of B" in result.notes
    place = compare_runs(a / "critic_update/step0", a / "critic_update/step1")
    assert place.verdict.first_divergence.step == 0
    assert place.verdict.first_divergence.cause in (Cause.INPUT, Cause.PARAMETER)
    assert not place.verdict.counts["only_in_a"] + place.verdict.counts["only_in_b"]


def test_noise_runs_with_other_ranks_and_steps(tmp_path):
    """Repetitions meet A as B does: by ranks in order, and by step directory."""
    a, n, b = (
        record_training(tmp_path / name, steps=1, weights={"head": lambda w, f=factor: w * f})
        for name, factor in (("a", 1), ("n", 1.001), ("b", 1.002))
    )
    (n / "run.json").unlink()
    for directory in list(n.rglob("rank0")):
        directory.rename(directory.parent / "rank5")
    assert not compare_runs(a, b)
    assert compare_runs(a, b, noise=[n]).verdict.status is Outcome.WITHIN_TOLERANCE
    step = shutil.copytree(n / ACTOR / "step0", tmp_path / "n2" / ACTOR / "step8")
    result = compare_runs(a / ACTOR / "step0", b / ACTOR / "step0", noise=[step])
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    result = compare_runs(a, b, noise=[n], phases=(ACTOR, ACTOR))
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phases": ("actor_compute_log_probs", REFERENCE)}, f"Did you mean '{ACTOR}'"),
        ({"phases": (ACTOR, "nonsense")}, "It holds: actor_generate_sequences"),
        ({"phases": (ACTOR,)}, "expected the names of two phases"),
        ({"phases": f"{ACTOR},{REFERENCE}"}, "expected the names of two phases"),
        ({"phases": (ACTOR, None)}, "expected the names of two phases"),
        ({"ranks": (0, 7)}, "recorded no rank 7. It holds: 0, 1"),
        ({"ranks": (0, 1, 0)}, "expected two numbers"),
        ({"ranks": ("0", "1")}, "expected two numbers"),
        ({"ranks": 0}, "expected two numbers"),
    ],
)
def test_names_that_are_not_there(run, arguments, message):
    """The error names what was asked for and what there is."""
    with pytest.raises(UsageError, match=message):
        compare_runs(run, **arguments)


@pytest.mark.parametrize("arguments", [{}, {"phases": (ACTOR, ACTOR)}, {"ranks": (1, 1)}])
def test_nothing_is_compared_with_itself(run, arguments):
    """A run, a phase or a rank against itself proves nothing."""
    with pytest.raises(RunError, match="proves nothing"):
        compare_runs(run, **arguments)
    with pytest.raises(RunError, match="proves nothing"):
        compare_runs(run, run, **arguments)


def test_the_command_line(run, tmp_path, capsys):
    """One directory is enough with --phases or --ranks; errors end with 2."""
    out = ["-o", str(tmp_path / "out")]
    assert main(["compare", str(run), "--phases", f"{ACTOR}, {REFERENCE}", *out]) == 0
    assert json.loads((tmp_path / "out/verdict.json").read_text())["status"] == "identical"
    assert main(["compare", str(run), "--ranks", "0,1", *out]) == 1
    for wrong in (
        ["--phases", ACTOR],
        ["--phases", f"{ACTOR},"],
        ["--phases", f"{ACTOR},x"],
        ["--ranks", "0,9"],
        ["--ranks", "a,b"],
        ["--ranks", "0,-1"],
        ["--ranks", "0;1"],
        ["--ranks", "0,²"],
        [],
    ):
        assert main(["compare", str(run), *wrong, *out]) == 2, wrong
        assert "Traceback" not in capsys.readouterr().err
