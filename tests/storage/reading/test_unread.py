"""What of a run cannot be read is never agreement, whichever of its files it is."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA, Fault, Recording, record_data, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Outcome
from mindrlhf_msprobe.storage.reading.reader import open_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a run with configurations.json."""
    root = record_training(tmp_path_factory.mktemp("run") / "a", steps=1)
    (root / "configurations.json").write_text('{"actor": {"lr": 1}}')
    return root


@pytest.fixture
def b(recorded, tmp_path):
    """Return a copy of it."""
    return shutil.copytree(recorded, tmp_path / "b")


@pytest.fixture
def both(recorded, tmp_path):
    """Return two copies of it."""
    return [shutil.copytree(recorded, tmp_path / name) for name in "ab"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Return by phase a run like it with a fault there."""
    root = tmp_path_factory.mktemp("faulty")
    return {
        phase: record_training(root / phase, steps=1, faults=[Fault("layers.1.mlp", phase)])
        for phase in FAULTS
    }


FAULTS = ("actor_generate_sequences", "reference_compute_log_prob", "critic_compute_values")

BROKEN = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "empty": lambda file: file.write_bytes(b""),
    "another kind": lambda file: file.write_text("[]"),
    "nested": lambda file: file.write_text("[" * 100_000),
    "no text": lambda file: file.write_bytes(b'{"a": "\xff\xfe"}'),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", ["run.json", "configurations.json"])
def test_settings_that_cannot_be_read_are_no_agreement(
    recorded, b, tmp_path, name, how, swapped, cli
):
    """All records agree, and the answer is that it cannot be told: exit code 2, with the file."""
    if (name, how) == ("configurations.json", "another kind"):
        pytest.skip("configurations may be a list")
    BROKEN[how](b / name)
    runs = [str(b), str(recorded)] if swapped else [str(recorded), str(b)]
    said = cli("compare", *runs, "-o", tmp_path / "out", code=2).out
    assert "INCOMPARABLE: " in said
    assert " agree, but not everything recorded could be read" in said
    assert f"{'A' if swapped else 'B'}: {b / name}: " in said
    verdict = json.loads((tmp_path / "out/verdict.json").read_text())
    assert verdict["status"] == "incomparable"
    assert [str(b / name) in line for line in verdict["unread"]] == [True]
    assert verdict["counts"]["unreadable"] == 0
    if name == "configurations.json":
        side = "A" if swapped else "B"
        assert f"configurations: configurations.json of run {side} cannot be read" in said
        assert "recorded it" not in said


def test_a_difference_is_a_difference_whatever_cannot_be_read(recorded, faulty, tmp_path):
    """Its place is named as ever."""
    b = shutil.copytree(faulty["reference_compute_log_prob"], tmp_path / "b")
    (b / "run.json").write_text("{")
    result = compare_runs(recorded, b)
    assert result.verdict.status is Outcome.DIVERGED
    assert result.verdict.first_divergence.entry == "Cell.layers.1.mlp.Dense.forward.0"
    assert not result.verdict.unread


@pytest.mark.parametrize("key_data_only", [False, True])
def test_a_missing_manifest_is_no_agreement(recorded, b, key_data_only):
    """Without run.json nobody knows what was lost; a part of a run has none, and needs none."""
    (b / "run.json").unlink()
    if key_data_only:
        for phase in b.iterdir():
            if phase.is_dir() and phase.name != "data":
                shutil.rmtree(phase)
    result = compare_runs(recorded, b, key_data_only=key_data_only)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert "run.json: is missing" in result.verdict.unread[0]
    if not key_data_only:
        part = "actor_update"
        assert compare_runs(recorded / part, b / part).verdict.status is Outcome.IDENTICAL


def test_one_ranks_manifest_is_missed(tmp_path, monkeypatch):
    """A job of three ranks, of which one's manifest is broken, then gone."""
    monkeypatch.setenv("RANK_SIZE", "3")
    a = record_training(tmp_path / "a", steps=1, ranks=(0, 1, 2))
    b = shutil.copytree(a, tmp_path / "b")
    assert compare_runs(a, b)
    (b / "run.rank2.json").write_text("{")
    assert "run.rank2.json: is not valid JSON" in compare_runs(a, b).verdict.unread[0]
    (b / "run.rank2.json").unlink()
    assert "run.rank2.json: is missing" in compare_runs(a, b).verdict.unread[0]


@pytest.mark.parametrize("missing", ["config", "lost", "attempts", "state"])
def test_a_manifest_that_is_not_whole_is_no_agreement(recorded, b, missing):
    """Valid JSON that does not say what a manifest says."""
    content = json.loads((b / "run.json").read_text())
    (b / "run.json").write_text(json.dumps({**content, missing: 3}))
    result = compare_runs(recorded, b)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert result.verdict.unread[0].endswith(f"{missing} missing, or in another form")


@pytest.mark.parametrize("rank", [10**400, -1, True, "0", None])
def test_a_manifest_of_no_rank_takes_nothing_else_with_it(recorded, b, rank, capsys):
    """A number that cannot be a rank is said to be none; the rest of the run is read."""
    content = json.loads((b / "run.json").read_text())
    content.update(world={**content["world"], "rank": rank}, state="running")
    (b / "run.json").write_text(json.dumps(content))
    result = compare_runs(recorded, b)
    assert not any(finding.status.value == "unreadable" for finding in result.findings)
    assert any("rank missing, or" in problem for problem in result.problems)
    assert main(["show", str(b)]) in (0, 2)
    assert "actor_update" in capsys.readouterr().out


def test_the_same_damage_on_both_sides_is_no_agreement(both):
    """Neither run has the entry any more, so nothing differs, and nothing is proven."""
    for run in both:
        journal = run / "actor_update/step0/rank0/records.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([lines[0], b"{}\n", *lines[2:]]))
    result = compare_runs(*both)
    assert not result
    phases = ("critic_update", "critic_update")
    assert compare_runs(*both, phases=phases).verdict.status is Outcome.IDENTICAL


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("name", ["construct.json", "stack.json"])
def test_msprobes_side_files_that_cannot_be_read_are_no_agreement(tmp_path, name, how):
    """A broken one is named; msprobe does not always write them, so a missing one is none."""
    a, b = (shutil.copytree(MSPROBE_DATA / "statistics_a", tmp_path / n) for n in "ab")
    assert compare_runs(a, b)
    files = list(b.rglob(name))
    BROKEN[how](files[0])
    result = compare_runs(a, b)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert str(files[0]) in result.verdict.unread[0]
    for file in [*a.rglob(name), *files]:
        file.unlink()
    assert compare_runs(a, b)


@pytest.mark.parametrize("name", ["dump.json", "construct.json", "stack.json"])
def test_what_is_made_from_the_journal_decides_nothing(recorded, b, name):
    """In our own runs the journal is what is read; these are for msprobe's tools."""
    for file in b.rglob(name):
        file.write_text("{")
    assert compare_runs(recorded, b).verdict.status is Outcome.IDENTICAL


def removed(root, *names):
    """Remove files or directories of a run."""
    for name in names:
        path = root / name
        assert path.exists(), name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Return a run of two ranks and two steps, with full tensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK_SIZE", "2")
        root = tmp_path_factory.mktemp("run") / "a"
        less = {"actor_infer_dump": False, "reference_dump": False}
        return record_training(root, steps=2, ranks=(0, 1), task="tensor", **less)


UPDATE = "actor_update/step1/rank1"
LOSS = "data/loss/step1/rank1"
GONE = {
    "a journal": (f"{UPDATE}/records.jsonl",),
    "a journal and its dump.json": (f"{UPDATE}/records.jsonl", f"{UPDATE}/dump.json"),
    "a rank of a step": (UPDATE,),
    "a step of a phase": ("actor_update/step1",),
    "a phase": ("actor_update",),
    "all phases of a step": tuple(
        f"{phase}/step1/rank1" for phase in ("actor_update", "critic_update")
    ),
    "a manifest": ("run.rank1.json",),
    "rank 0's manifest": ("run.json",),
    "full tensors": (f"{UPDATE}/dump_tensor_data",),
    "a save": (f"{LOSS}/micro_step0",),
    "what describes a save": (f"{LOSS}/micro_step0/loss.json",),
    "a key of a step": ("data/loss/step1",),
    "a key": ("data/loss",),
    "all key data": ("data",),
}


@pytest.mark.parametrize("both", [False, True], ids=["in B", "in A and B"])
@pytest.mark.parametrize("what", GONE)
def test_what_a_run_held_and_does_not_hold_is_no_agreement(two_ranks, tmp_path, what, both):
    """Whatever is gone, of one side or of both: exit code 0 is not said, the place is named."""
    runs = [shutil.copytree(two_ranks, tmp_path / name) for name in "ab"]
    for run in runs if both else runs[1:]:
        removed(run, *GONE[what])
    result = compare_runs(*runs, workers=1)
    assert not result
    said = "\n".join([*result.problems, *result.verdict.unread])
    named = GONE[what][0].split("/step")[0]
    assert named in said or result.verdict.first_divergence is not None
    if what not in ("full tensors", "a save", "what describes a save"):  # these are unreadable
        assert named in said


def test_with_common_what_is_not_there_is_said_and_left_out(recorded, b):
    """It was asked for; what is there and cannot be read is no agreement all the same."""
    removed(b, "actor_update", "data/loss")
    result = compare_runs(recorded, b, common=True)
    assert result.verdict.status is Outcome.IDENTICAL
    assert len(result.problems) == 2
    removed(b, "critic_update/step0/rank0/records.jsonl")
    assert compare_runs(recorded, b, common=True).verdict.status is Outcome.INCOMPARABLE


def test_a_phase_without_its_journal_is_read_from_dump_json(recorded, b):
    """It is said, agreement is not, and a difference is found at its place all the same."""
    gone = b / "reference_compute_log_prob/step0/rank0/records.jsonl"
    gone.unlink()
    result = compare_runs(recorded, b)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert [str(gone) in line for line in result.verdict.unread] == [True]
    assert "read from the dump.json beside it" in result.verdict.unread[0]
    assert result.verdict.counts["identical"] == sum(result.verdict.counts.values())
    only = {"phases": ("critic_update", "critic_update")}
    assert compare_runs(recorded, b, **only).verdict.status is Outcome.IDENTICAL


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("without", ["a", "b", "ab"])
@pytest.mark.parametrize("gone", ["reference_compute_log_prob", "actor_generate_sequences"])
def test_a_missing_journal_leads_to_no_wrong_place(
    recorded, faulty, tmp_path, without, fault, gone
):
    """Nothing tells when the phase ran: the other run does, or the order phases usually run in."""
    runs = {"a": recorded, "b": faulty[fault]}
    for name in without:
        runs[name] = shutil.copytree(runs[name], tmp_path / name)
        removed(runs[name], f"{gone}/step0/rank0/records.jsonl")
    first = compare_runs(*runs.values()).verdict.first_divergence
    assert (first.phase, first.cause.value) == (fault, "computation")
    assert first.entry == "Cell.layers.1.mlp.Dense.forward.0"


def test_a_journal_that_lost_whole_lines_is_damaged(both):
    """run.json says how many entries there are; also where both runs lost the same."""
    for run in both:
        journal = run / "critic_update/step0/rank0/records.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
    result = compare_runs(*both)
    assert not result
    assert any("holds 7 of the 9 entries" in problem for problem in result.problems)


def test_configurations_that_are_gone_are_missed(tmp_path):
    """run.json says that they were written."""
    a = record_data(tmp_path / "a", [("loss", 1.0)], configurations={"actor": {"lr": 1}})
    b = shutil.copytree(a, tmp_path / "b")
    assert compare_runs(a, b)
    (b / "configurations.json").unlink()
    assert "configurations.json: is missing" in compare_runs(tmp_path / "a", b).verdict.unread[0]


@pytest.mark.parametrize("name", ["dump", "actor_update", "reward_compute"])
def test_a_run_of_one_unnamed_phase_needs_its_manifest(tmp_path, name):
    """As PrecisionDebugger makes it; a phase of a run lies alike, and needs none of its own."""
    phases = {"reward_compute": "reward"} if name == "reward_compute" else {}
    whole = [record_training(tmp_path / side, steps=1, phases=phases) for side in "ab"]
    for run in whole:
        if name != "actor_update":
            shutil.copytree(run / "actor_update", run / name)
    if name != "dump":
        assert compare_runs(*(run / name for run in whole)).verdict.status is Outcome.IDENTICAL
        return
    alone = [shutil.copytree(run / name, tmp_path / f"{run.name}_alone") for run in whole]
    for run, path in zip(whole, alone):
        content = json.loads((run / "run.json").read_text())
        (path / "run.json").write_text(json.dumps({**content, "recorded": {}}))
    (alone[1] / "run.json").unlink()
    result = compare_runs(*alone)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert "run.json: is missing" in result.verdict.unread[0]


def test_steps_that_a_resumed_run_took_back_are_not_missed(tmp_path):
    """What a further attempt removes it no longer lists; what it left it does."""
    root = record_training(tmp_path / "a", steps=5)
    recording = Recording(root, existing="resume", initial_step=3, step=3)
    recording.writer.manifest.begin(3)
    recording.data("loss", 1.0)
    recording.end_step()
    recording.close()
    run = open_run(root)
    assert run.problems == []
    assert run.steps == [0, 1, 2, 3]
    shutil.rmtree(root / "data/loss/step1")
    assert [str(p) for p in open_run(root).problems] == [
        f"{root}/data/loss/step1/rank0: is missing: run.json lists saves there"
    ]


@pytest.mark.parametrize("name", ["step0/rank0/dump.json", "data/x/step0/rank0/x.npy"])
def test_what_another_tool_left_before_the_run_is_none_of_it(tmp_path, name):
    """existing: overwrite leaves it; it is neither listed nor compared, and said to be there."""
    a = record_training(tmp_path / "a", steps=1)
    (tmp_path / "b" / name).parent.mkdir(parents=True)
    if name.endswith("npy"):
        np.save(tmp_path / "b" / name, np.zeros(3))
    else:
        source = next(MSPROBE_DATA.rglob("dump.json"))
        shutil.copy(source, tmp_path / "b" / name)
    with pytest.raises(RunError, match="overwrite removes nothing of another tool"):
        record_training(tmp_path / "b", steps=1)
    b = record_training(tmp_path / "b", steps=1, existing="overwrite")
    assert (b / name).exists()
    run = open_run(b)
    assert run.left_out == [(b / name).parent]
    assert (run.phases, run.keys) == (open_run(a).phases, open_run(a).keys)
    result = compare_runs(a, b)
    assert result.verdict.status is Outcome.IDENTICAL
    assert any("stood in the directory of run B" in note for note in result.notes)
    assert open_run(record_training(b, steps=2, existing="overwrite")).left_out


@pytest.mark.parametrize("beside", ["stack.json", "construct.json", "dump_tensor_data/x.npy"])
def test_msprobes_dump_without_its_dump_json_is_unreadable(tmp_path, beside):
    """What stood beside it shows that there was one."""
    a, b = (shutil.copytree(MSPROBE_DATA / "statistics_a", tmp_path / n) for n in "ab")
    for run in (a, b):
        dump = sorted(run.rglob("dump.json"))[0]
        for path in dump.parent.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (dump.parent / beside).parent.mkdir(exist_ok=True)
        (dump.parent / beside).write_text("{}")
    result = compare_runs(a, b)
    assert not result
    assert any("dump.json is missing" in problem for problem in result.problems)


@pytest.mark.parametrize("content", ["{}", "[]", '{"seq": 1}'])
def test_a_save_without_data_is_said_in_words(tmp_path, content):
    """JSON that describes no save is unreadable, and the note needs no knowledge of Python."""
    for name in "ab":
        record_data(tmp_path / name, [("loss", 1.0)])
    (tmp_path / "b/data/loss/step0/rank0/micro_step0/loss.json").write_text(content)
    (finding,) = compare_runs(tmp_path / "a", tmp_path / "b").findings
    assert finding.status.value == "unreadable"
    assert finding.note == "B: loss.json: does not describe a save: it has no `data`"
