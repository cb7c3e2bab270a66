"""A directory that goes away, or becomes somebody else's, under the job that records into it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from helpers.programs import run_python
from helpers.runs import Recording, words

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.log import logger


def begin(path, **settings):
    return Probe.from_config(
        {"msprobe": True, "key_data_dump": True, "dump_path": str(path), **settings}
    )


def steps(probe, *numbers):
    """Record whole steps."""
    for number in numbers:
        probe.save_data(loss=float(number))
        probe.step()


def begun(path, count=1, *, in_a_step=False, **settings):
    """Return a probe that has recorded steps, and part of one more, which is on disk."""
    probe = begin(path, **settings)
    steps(probe, *range(count))
    if in_a_step:
        probe.save_data(loss=float(count))
        written(probe)
    return probe


def written(probe):
    """Wait until all is on disk that was handed over."""
    assert probe._recorder is not None
    probe._recorder.writer.wait()


def lost_of(probe):
    assert probe._recorder is not None
    return words(probe._recorder.lost)


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == logger.name]


def content(path):
    """Return every file below a directory."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def removed(path):
    shutil.rmtree(path)


def moved(path):
    path.rename(path.with_name("moved"))


def replaced(path):
    shutil.rmtree(path)
    (path / "data/loss/step1/rank0").mkdir(parents=True)
    (path / "run.json").write_text("somebody else's")


def replaced_by_a_copy(path):
    """All files look alike, but for the directory."""
    path.rename(path.with_name("moved"))
    shutil.copytree(path.with_name("moved"), path)


def replaced_by_a_file(path):
    shutil.rmtree(path)
    path.write_text("a file")


@pytest.mark.parametrize(
    ("take_away", "in_a_step"),
    [
        (removed, False),
        (removed, True),
        (moved, True),
        (replaced, True),
        (replaced_by_a_copy, False),
        (replaced_by_a_file, False),
    ],
)
def test_recording_stops_where_its_directory_is_no_longer_its_own(
    tmp_path, caplog, take_away, in_a_step
):
    """It says so once, counts everything, makes nothing anew and touches nothing that is there."""
    path = tmp_path / "parent/run"
    probe = begun(path, in_a_step=in_a_step)
    take_away(path)
    before = content(tmp_path)
    caplog.clear()
    steps(probe, 1, 1, 1)
    probe.save_configs({"a": 1})
    probe.close()
    assert len([line for line in said(caplog) if "Recording stops in step 1" in line]) == 1
    assert lost_of(probe) == {
        "key data loss: the dump_path was lost": 3 + in_a_step,
        "a step: the dump_path was lost": 3,
    }
    assert [line for line in said(caplog) if "records lost while recording" in line]
    assert not [line for line in said(caplog) if "Error" in line], "names of classes in sentences"
    assert len(said(caplog)) == 2
    assert content(tmp_path) == before
    for manifest in tmp_path.rglob("run.json"):
        if "somebody" not in manifest.read_text():
            run = open_run(manifest.parent)
            assert not run.finished
            assert [step for step in range(9) if run.completed(step)] == [0]


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_a_job_that_takes_the_place_is_left_alone(tmp_path, existing):
    """The later job's run is whole, and the earlier one puts nothing into it, nor ends it."""
    path = tmp_path / "run"
    lock = path / ".run.json.lock"
    first = begun(path, in_a_step=True)
    if existing == "refuse":
        shutil.rmtree(path)
    else:
        lock.unlink()
    second = begin(path, existing=existing)
    second.save_data(loss=10.0)
    steps(first, 2)
    second.step()
    first.close()
    assert lock.exists(), "a lock that is not its own was removed"
    steps(second, 20)
    second.close()
    run = open_run(path)
    assert (run.finished, run.problems) == (True, [])
    attempts = run.manifests[0]["attempts"]
    assert [a["state"] for a in attempts] == ["running"] * (existing == "resume") + ["finished"]
    values = [float(datum.value) for datum in run.key_data("loss")]
    assert values == [0.0] * (existing == "resume") + [10.0, 20.0]


def test_a_lock_that_is_removed_is_taken_once_more(tmp_path):
    """Nobody else came, so that nothing is lost, and nobody can come now."""
    path = tmp_path / "run"
    lock = path / ".run.json.lock"
    probe = begun(path)
    lock.unlink()
    steps(probe, 1)
    asked = "import sys; from mindrlhf_msprobe import Probe; Probe.from_config(sys.argv[1])"
    config = tmp_path / "config.json"
    settings = {"msprobe": True, "dump_path": str(path), "existing": "overwrite"}
    config.write_text(json.dumps(settings))
    assert "InUseError" in run_python(asked, tmp_path, str(config)).stderr
    probe.close()
    run = open_run(path)
    assert (run.finished, run.lost, run.problems) == (True, [], [])
    assert [float(datum.value) for datum in run.key_data("loss")] == [0.0, 1.0]
    assert not lock.exists()


def test_what_another_wrote_into_the_lock_ends_recording(tmp_path):
    """Where a file system has no locks, a second job opens the same file and says who it is."""
    path = tmp_path / "run"
    probe = begun(path)
    (path / ".run.json.lock").write_text('{"pid": 1, "host": "elsewhere"}')
    before = content(path)
    steps(probe, 1)
    probe.close()
    assert lost_of(probe)["a step: the dump_path was lost"] == 1
    after = content(path)
    after.setdefault(".run.json.lock", before[".run.json.lock"])
    assert after == before


def test_strict_raises_that_the_directory_is_gone(tmp_path):
    """With strict: true nobody trains on without a recording."""
    probe = begin(tmp_path / "run", strict=True)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(Exception, match="no longer the directory that this job claimed"):
        steps(probe, 0, 0)  # whenever the writing thread meets it
    probe.close()


def manifest_removed(path):
    (path / "run.json").unlink()


def manifest_replaced(path):
    (path / "run.json").write_text('{"somebody": "else\'s"}')


def manifest_of_another_run(path):
    manifest = json.loads((path / "run.json").read_bytes())
    (path / "run.json").write_text(json.dumps({**manifest, "run_id": "another"}))


def manifest_linked(path):
    elsewhere = path.with_name("elsewhere.json")
    elsewhere.write_text("{}")
    (path / "run.json").unlink()
    (path / "run.json").symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("take_away", "when"),
    [
        (manifest_removed, "between steps"),
        (manifest_replaced, "in a step"),
        (manifest_of_another_run, "before close"),
        (manifest_linked, "between steps"),
    ],
)
def test_recording_stops_where_its_manifest_is_no_longer_its_own(tmp_path, caplog, take_away, when):
    """It says so once, counts what is lost, and writes over nobody's file."""
    path = tmp_path / "run"
    probe = begun(path, in_a_step=when == "in a step")
    take_away(path)
    before = content(tmp_path)
    caplog.clear()
    steps(probe, *([] if when == "before close" else [1, 1]))
    probe.close()
    stops = [line for line in said(caplog) if "run.json" in line and "Recording stops" in line]
    assert len(stops) == 1
    expected = 1 if when == "before close" else 2
    assert lost_of(probe)["a step: the dump_path was lost"] == expected
    after = content(tmp_path)
    after.setdefault("run/.run.json.lock", before["run/.run.json.lock"])
    assert after == before


def test_a_manifest_that_was_edited_or_brought_back_is_still_its_own(tmp_path):
    """An editor writes another file of the same run."""
    path = tmp_path / "run"
    probe = begin(path)
    older = (path / "run.json").read_bytes()
    steps(probe, 0)
    (path / "run.json").unlink()
    (path / "run.json").write_bytes(older)
    steps(probe, 1)
    probe.close()
    run = open_run(path)
    assert (run.finished, run.lost) == (True, [])
    assert [run.completed(step) for step in (0, 1)] == [True, True]


def data_removed(path):
    shutil.rmtree(path / "data")


def key_removed(path):
    shutil.rmtree(path / "data/loss")


def data_emptied(path):
    """It is another directory, but nobody's yet."""
    shutil.rmtree(path / "data")
    (path / "data").mkdir()


def data_of_others(path):
    (path / "data").rename(path.with_name("moved"))
    (path / "data/loss/step0/rank0").mkdir(parents=True)
    (path / "data/mine.txt").write_text("a user's")


def key_of_others(path):
    (path / "data/loss").rename(path.with_name("moved"))
    (path / "data/loss").mkdir()
    (path / "data/loss/mine.txt").write_text("a user's")


def data_linked(path):
    (path / "data").rename(path.with_name("moved"))
    (path / "data").symlink_to(path.with_name("moved"))


@pytest.mark.parametrize(
    ("take_away", "when"),
    [
        (data_removed, "between steps"),
        (key_removed, "in a step"),
        (data_emptied, "before close"),
        (data_of_others, "in a step"),
        (key_of_others, "between steps"),
        (data_linked, "in a step"),
        (data_linked, "before close"),
    ],
)
def test_a_directory_of_key_data_that_goes_away_takes_no_step_silently(
    tmp_path, caplog, take_away, when
):
    """Its steps are counted, and said to be lost once; what stands there is left as it is."""
    path = tmp_path / "run"
    probe = begun(path, 3, in_a_step=when == "in a step")
    take_away(path)
    of_others = {name: b for name, b in content(tmp_path).items() if "json" not in name}
    caplog.clear()
    if when == "in a step":
        probe.step()
    steps(probe, *{"between steps": (3, 4, 5), "in a step": (4, 5)}.get(when, ()))
    probe.close()
    assert len([record for record in caplog.records if "3 steps that" in record.message]) == 1
    lost = json.loads((path / "run.json").read_bytes())["lost"]
    assert lost["steps in data/loss: FileNotFoundError"] == 3
    after = content(tmp_path)
    assert {name: after[name] for name in of_others} == of_others
    in_step = sum(n for what, n in lost.items() if what.startswith("key data loss"))
    linked = take_away == data_linked
    assert in_step == (0 if when == "before close" else 3 if linked else int(when == "in a step"))
    new = {name for name in after if name not in of_others and "step4/" in name}
    assert bool(new) == (when != "before close" and not linked)


def test_what_keep_mb_removes_is_never_of_others(tmp_path):
    """Another run's steps stand where this one's were, under the same names."""
    probes = [begin(tmp_path / "run", keep_mb=1), begin(tmp_path / "other")]
    for number, probe in enumerate(probes):
        for _ in range(4):
            probe.save_data(values=np.full(1 << 15, number + 1.0))
            probe.step()
    written(probes[0])
    shutil.rmtree(tmp_path / "run/data")
    shutil.copytree(tmp_path / "other/data", tmp_path / "run/data")
    before = content(tmp_path / "run/data")
    for _ in range(6):
        probes[0].save_data(values=np.ones(1 << 15))
        probes[0].step()
    for probe in probes:
        probe.close()
    after = content(tmp_path / "run/data")
    assert {name: after.get(name) for name in before} == before
    assert not (tmp_path / "run/data/values/step5").exists(), "nothing is removed any more"


def test_a_step_of_others_in_the_way_is_left(tmp_path):
    """What another run recorded in the step that comes next is not mixed with this one's."""
    other, probe = begin(tmp_path / "other"), begun(tmp_path / "run")
    steps(other, 100, 101, 102)
    other.close()
    shutil.rmtree(tmp_path / "run/data")
    shutil.copytree(tmp_path / "other/data", tmp_path / "run/data")
    before = content(tmp_path / "run/data")
    steps(probe, 1, 2, 3)
    probe.close()
    lost = json.loads((tmp_path / "run/run.json").read_bytes())["lost"]
    assert lost == {"key data loss: FileExistsError": 2, "steps in data/loss: FileNotFoundError": 1}
    after = content(tmp_path / "run/data")
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[1] for name in after if name not in before} == {"step3"}


@pytest.mark.parametrize("taken", [False, True])
def test_a_directory_of_a_phase_that_goes_away_takes_no_step_silently(tmp_path, monkeypatch, taken):
    """As one of key data; and what other ranks of the job have made anew is not somebody else's."""
    monkeypatch.setenv("RANK_SIZE", "2")
    recordings = [Recording(tmp_path, rank=rank) for rank in (0, 1)]
    faults = []
    recordings[0].writer.background._fault = lambda what, error, n: faults.append(
        (in_words(what, "en"), n)
    )
    recordings[1].writer.background._fault = lambda what, error, n: None

    def step(number, recording):
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
    assert lost == {"steps in actor_update": 2}
    there = sorted(
        p.parent.parent.name for p in tmp_path.glob("actor_update/*/rank0/records.jsonl")
    )
    assert there == ["step2", "step3"]
    assert (tmp_path / "actor_update/step9/rank0").exists() == taken
    for recording in recordings:
        recording.close()
