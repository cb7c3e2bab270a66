"""A directory that goes away, or becomes somebody else's, under the job that records into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import Recording, words

from mindrlhf_msprobe import Probe, RunError, open_run
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.log import logger


def begin(path: Path, **settings: Any) -> Probe:
    return Probe.from_config(
        {"msprobe": True, "key_data_dump": True, "dump_path": str(path), **settings}
    )


def content(path: Path) -> dict[str, bytes]:
    """Return every file below a directory."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def removed(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved"))


def parent_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved parent"))


def replaced(path: Path) -> None:
    shutil.rmtree(path)
    (path / "data/loss/step1/rank0").mkdir(parents=True)
    (path / "run.json").write_text("somebody else's")


def replaced_by_a_copy(path: Path) -> None:
    """All files look alike, but for the directory."""
    path.rename(path.with_name("moved"))
    shutil.copytree(path.with_name("moved"), path)


def replaced_by_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("a file")


@pytest.mark.parametrize("when", ["between steps", "in a step", "before a save is written"])
@pytest.mark.parametrize(
    "take_away",
    [removed, moved, parent_moved, replaced, replaced_by_a_copy, replaced_by_a_file],
)
def test_recording_stops_where_its_directory_is_no_longer_its_own(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    take_away: Callable[[Path], None],
    when: str,
) -> None:
    """It says so once, counts everything, makes nothing anew and touches nothing that is there."""
    path = tmp_path / "parent/run"
    probe = begin(path)
    probe.save_data(loss=0.0)
    probe.step()
    if when == "in a step":
        probe.save_data(loss=1.0)
        assert probe._recorder is not None
        probe._recorder._writer.wait()
    take_away(path)
    before = content(tmp_path)
    caplog.clear()
    for _ in range(3):
        probe.save_data(loss=1.0)
        probe.step()
    probe.save_configs({"a": 1})
    probe.close()
    said = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert len([line for line in said if "Recording stops in step 1" in line]) == 1
    lost = {
        "key data loss: the dump_path was lost": 3 + (when == "in a step"),
        "a step: the dump_path was lost": 3,
    }
    assert words(probe._recorder._lost) == lost  # type: ignore[union-attr]
    assert [line for line in said if "records lost while recording" in line]
    assert not [line for line in said if "Error" in line], "names of classes in sentences"
    assert len(said) == 2
    assert content(tmp_path) == before
    for manifest in tmp_path.rglob("run.json"):
        if "somebody" not in manifest.read_text():
            run = open_run(manifest.parent)
            assert not run.finished
            assert [step for step in range(9) if run.completed(step)] == [0]


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_a_job_that_takes_the_place_is_left_alone(tmp_path: Path, existing: str) -> None:
    """The later job's run is whole, and the earlier one puts nothing into it, nor ends it."""
    path = tmp_path / "run"
    first = begin(path)
    first.save_data(loss=0.0)
    first.step()
    first.save_data(loss=1.0)
    assert first._recorder is not None
    first._recorder._writer.wait()
    if existing == "refuse":
        shutil.rmtree(path)
    else:
        (path / ".run.json.lock").unlink()
    second = begin(path, existing=existing)
    second.save_data(loss=10.0)
    first.save_data(loss=2.0)
    first.step()
    second.step()
    first.close()
    lock = path / ".run.json.lock"
    assert lock.exists(), "a lock that is not its own was removed"
    second.save_data(loss=20.0)
    second.step()
    second.close()
    run = open_run(path)
    assert (run.finished, run.problems) == (True, [])
    attempts = run.manifests[0]["attempts"]
    assert [a["state"] for a in attempts] == ["running"] * (existing == "resume") + ["finished"]
    values = [float(datum.value) for datum in run.key_data("loss")]
    assert values == [0.0] * (existing == "resume") + [10.0, 20.0]


def test_a_lock_that_is_removed_ends_the_run_as_failed(tmp_path: Path) -> None:
    """Nobody else came, so that run.json can say so, and what is missing."""
    path = tmp_path / "run"
    probe = begin(path)
    probe.save_data(loss=0.0)
    probe.step()
    (path / ".run.json.lock").unlink()
    probe.save_data(loss=1.0)
    probe.step()
    probe.close()
    manifest = json.loads((path / "run.json").read_bytes())
    assert manifest["state"] == "failed"
    assert manifest["attempts"][-1]["last_completed_step"] == 0
    assert manifest["lost"]["key data loss: the dump_path was lost"] == 1
    assert os.listdir(path / "data/loss") == ["step0"]
    with pytest.raises(RunError, match="already holds a run"):
        begin(path)


def test_what_another_wrote_into_the_lock_ends_recording(tmp_path: Path) -> None:
    """Where a file system has no locks, a second job opens the same file and says who it is."""
    path = tmp_path / "run"
    probe = begin(path)
    probe.save_data(loss=0.0)
    probe.step()
    (path / ".run.json.lock").write_text('{"pid": 1, "host": "elsewhere"}')
    before = content(path)
    probe.save_data(loss=1.0)
    probe.step()
    probe.close()
    lost = words(probe._recorder._lost)  # type: ignore[union-attr]
    assert lost["a step: the dump_path was lost"] == 1
    after = content(path)
    after.setdefault(".run.json.lock", before[".run.json.lock"])
    assert after == before


def test_strict_raises_that_the_directory_is_gone(tmp_path: Path) -> None:
    """With strict: true nobody trains on without a recording."""
    probe = begin(tmp_path / "run", strict=True)
    shutil.rmtree(tmp_path / "run")

    def train() -> None:
        for _ in range(2):  # whenever the writing thread meets it
            probe.save_data(loss=0.0)
            probe.step()

    with pytest.raises(Exception, match="no longer the directory that was claimed"):
        train()
    probe.close()


def manifest_removed(path: Path) -> None:
    (path / "run.json").unlink()


def manifest_replaced(path: Path) -> None:
    (path / "run.json").write_text('{"somebody": "else\'s"}')


def manifest_of_another_run(path: Path) -> None:
    manifest = json.loads((path / "run.json").read_bytes())
    (path / "run.json").write_text(json.dumps({**manifest, "run_id": "another"}))


def manifest_linked(path: Path) -> None:
    elsewhere = path.with_name("elsewhere.json")
    elsewhere.write_text("{}")
    (path / "run.json").unlink()
    (path / "run.json").symlink_to(elsewhere)


@pytest.mark.parametrize("when", ["between steps", "in a step", "before close"])
@pytest.mark.parametrize(
    "take_away", [manifest_removed, manifest_replaced, manifest_of_another_run, manifest_linked]
)
def test_recording_stops_where_its_manifest_is_no_longer_its_own(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    take_away: Callable[[Path], None],
    when: str,
) -> None:
    """It says so once, counts what is lost, and writes over nobody's file."""
    path = tmp_path / "run"
    probe = begin(path)
    probe.save_data(loss=0.0)
    probe.step()
    if when == "in a step":
        probe.save_data(loss=1.0)
        assert probe._recorder is not None
        probe._recorder._writer.wait()
    take_away(path)
    before = content(tmp_path)
    caplog.clear()
    for _ in range(0 if when == "before close" else 2):
        probe.save_data(loss=1.0)
        probe.step()
    probe.close()
    said = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert len([line for line in said if "run.json" in line and "Recording stops" in line]) == 1
    lost = words(probe._recorder._lost)  # type: ignore[union-attr]
    assert lost["a step: the dump_path was lost"] == (1 if when == "before close" else 2)
    after = content(tmp_path)
    after.setdefault("run/.run.json.lock", before["run/.run.json.lock"])
    assert after == before


def test_a_manifest_that_was_edited_or_brought_back_is_still_its_own(tmp_path: Path) -> None:
    """An editor writes another file of the same run."""
    path = tmp_path / "run"
    probe = begin(path)
    older = (path / "run.json").read_bytes()
    probe.save_data(loss=0.0)
    probe.step()
    (path / "run.json").unlink()
    (path / "run.json").write_bytes(older)
    probe.save_data(loss=1.0)
    probe.step()
    probe.close()
    run = open_run(path)
    assert (run.finished, run.lost, [run.completed(step) for step in (0, 1)]) == (
        True,
        [],
        [True, True],
    )


def data_removed(path: Path) -> None:
    shutil.rmtree(path / "data")


def key_removed(path: Path) -> None:
    shutil.rmtree(path / "data/loss")


def data_emptied(path: Path) -> None:
    """It is another directory, but nobody's yet."""
    shutil.rmtree(path / "data")
    (path / "data").mkdir()


def data_of_others(path: Path) -> None:
    (path / "data").rename(path.with_name("moved"))
    (path / "data/loss/step0/rank0").mkdir(parents=True)
    (path / "data/mine.txt").write_text("a user's")


def key_of_others(path: Path) -> None:
    (path / "data/loss").rename(path.with_name("moved"))
    (path / "data/loss").mkdir()
    (path / "data/loss/mine.txt").write_text("a user's")


def data_linked(path: Path) -> None:
    (path / "data").rename(path.with_name("moved"))
    (path / "data").symlink_to(path.with_name("moved"))


@pytest.mark.parametrize("when", ["between steps", "in a step", "before close"])
@pytest.mark.parametrize(
    "take_away",
    [data_removed, key_removed, data_emptied, data_of_others, key_of_others, data_linked],
)
def test_a_directory_of_key_data_that_goes_away_takes_no_step_silently(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    take_away: Callable[[Path], None],
    when: str,
) -> None:
    """Its steps are counted, and said to be lost once; only what is this run's is written into."""
    path = tmp_path / "run"
    probe = begin(path)
    for step in range(3):
        probe.save_data(loss=float(step))
        probe.step()
    if when == "in a step":
        probe.save_data(loss=3.0)
        assert probe._recorder is not None
        probe._recorder._writer.wait()
    take_away(path)
    of_others = {name: b for name, b in content(tmp_path).items() if "json" not in name}
    caplog.clear()
    for step in range(3, 3 if when == "before close" else 6):
        if when == "between steps" or step > 3:
            probe.save_data(loss=float(step))
        probe.step()
    probe.close()
    said = [record.getMessage() for record in caplog.records if "3 step(s) that" in record.message]
    taken = take_away in (data_of_others, key_of_others, data_linked)
    assert len(said) == 1
    assert ("Recording goes on in a new directory" in said[0]) == (not taken)
    lost = json.loads((path / "run.json").read_bytes())["lost"]
    place = "data/loss" if take_away in (key_removed, key_of_others) else "data"
    how = "the directory was replaced" if taken else "the directory was removed"
    assert lost[f"steps in {place}: {how}"] == 3
    after = content(tmp_path)
    assert {name: after[name] for name in of_others} == of_others
    saved = 3 if when != "before close" else 0
    if taken:
        assert lost.get(f"key data loss: {how}", 0) == saved
        new = [name for name in after if "step4" in name or "step5" in name]
        assert new == []
    elif saved:
        there = {datum.step for datum in open_run(path).key_data("loss")}
        assert there == ({3, 4, 5} if when == "between steps" else {4, 5})
        gone = sum(n for what, n in lost.items() if what.startswith("key data loss"))
        assert gone == (when == "in a step")


@pytest.mark.parametrize("taken", [False, True])
def test_a_directory_of_a_phase_that_goes_away_takes_no_step_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """As one of key data; and what other ranks of the job have made anew is not somebody else's."""
    monkeypatch.setenv("RANK_SIZE", "2")
    recordings = [Recording(tmp_path, rank=rank) for rank in (0, 1)]
    faults: list[tuple[str, int]] = []
    recordings[0].writer._background._fault = lambda what, error, n: faults.append(
        (in_words(what, "en"), n)
    )
    recordings[1].writer._background._fault = lambda what, error, n: None

    def step(number: int, recording: Recording) -> None:
        with recording.phase("actor_update"):
            recording.call("a", "Dense", lambda x: x + 1, np.ones(4))
        recording.end_step()

    for number in range(2):
        for recording in recordings:
            step(number, recording)
    shutil.rmtree(tmp_path / "actor_update")
    if taken:
        (tmp_path / "actor_update/step9/rank0").mkdir(parents=True)
    if not taken:
        step(2, recordings[1])
    for number in (2, 3):
        step(number, recordings[0])
    lost = {what: sum(n for w, n in faults if w == what) for what, _ in faults}
    expected = {"steps in actor_update": 2} | ({"an entry": 2} if taken else {})
    assert {what: n for what, n in lost.items() if what in ("an entry", *expected)} == expected
    there = sorted(
        p.parent.parent.name for p in tmp_path.glob("actor_update/*/rank0/records.jsonl")
    )
    assert there == ([] if taken else ["step2", "step3"])
    for recording in recordings:
        recording.close()
