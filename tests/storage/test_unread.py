"""What of a run cannot be read is never agreement, whichever of its files it is."""

from __future__ import annotations

import json
import shutil

import pytest
from runs import MSPROBE_DATA, Fault, record_training

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison import compare_runs
from mindrlhf_msprobe.findings import Outcome


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a run with configurations.json."""
    root = record_training(tmp_path_factory.mktemp("run") / "a", steps=1)
    (root / "configurations.json").write_text('{"actor": {"lr": 1}}')
    return root


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
    recorded, tmp_path, name, how, swapped, capsys
):
    """All records agree, and the answer is that it cannot be told: exit code 2, with the file."""
    if (name, how) == ("configurations.json", "another kind"):
        pytest.skip("configurations may be a list")
    b = shutil.copytree(recorded, tmp_path / "b")
    BROKEN[how](b / name)
    runs = [str(b), str(recorded)] if swapped else [str(recorded), str(b)]
    assert main(["compare", *runs, "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().out
    assert "INCOMPARABLE: " in said
    assert " agree, but not all that was recorded could be read" in said
    assert f"{'A' if swapped else 'B'}: {b / name}: " in said
    verdict = json.loads((tmp_path / "out/verdict.json").read_text())
    assert verdict["status"] == "incomparable"
    assert [str(b / name) in line for line in verdict["unread"]] == [True]
    assert verdict["counts"]["unreadable"] == 0


def test_a_difference_is_a_difference_whatever_cannot_be_read(recorded, tmp_path):
    """Its place is named as ever."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob")
    b = record_training(tmp_path / "b", steps=1, faults=[fault])
    (b / "run.json").write_text("{")
    result = compare_runs(recorded, b)
    assert result.verdict.status is Outcome.DIVERGED
    assert result.verdict.first_divergence.entry == "Cell.layers.1.mlp.Dense.forward.0"
    assert not result.verdict.unread


@pytest.mark.parametrize("key_data_only", [False, True])
def test_a_missing_manifest_is_no_agreement(recorded, tmp_path, key_data_only):
    """Without run.json nobody knows what was lost; a part of a run has none, and needs none."""
    b = shutil.copytree(recorded, tmp_path / "b")
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
def test_a_manifest_that_is_not_whole_is_no_agreement(recorded, tmp_path, missing):
    """Valid JSON that does not say what a manifest says."""
    b = shutil.copytree(recorded, tmp_path / "b")
    content = json.loads((b / "run.json").read_text())
    (b / "run.json").write_text(json.dumps({**content, missing: 3}))
    result = compare_runs(recorded, b)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert result.verdict.unread[0].endswith(missing)


def test_the_same_damage_on_both_sides_is_no_agreement(recorded, tmp_path):
    """Neither run has the entry any more, so nothing differs, and nothing is proven."""
    runs = [shutil.copytree(recorded, tmp_path / name) for name in "ab"]
    for run in runs:
        journal = run / "actor_update/step0/rank0/records.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([lines[0], b"{}\n", *lines[2:]]))
    result = compare_runs(*runs)
    assert not result
    phases = ("critic_update", "critic_update")
    assert compare_runs(*runs, phases=phases).verdict.status is Outcome.IDENTICAL


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
def test_what_is_made_from_the_journal_decides_nothing(recorded, tmp_path, name):
    """In our own runs the journal is what is read; these are for msprobe's tools."""
    b = shutil.copytree(recorded, tmp_path / "b")
    for file in b.rglob(name):
        file.write_text("{")
    assert compare_runs(recorded, b).verdict.status is Outcome.IDENTICAL
