"""What `resume` and `overwrite` remove: what a run recorded there, and nothing of anybody else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import Recording, leave_as_killed, record_training, words

from mindrlhf_msprobe import Probe, RunError, open_run
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.manifest.claim import remove_dumps
from mindrlhf_msprobe.storage.writing.writer import RunWriter


def begin(path, existing, **settings):
    section = {"msprobe": True, "key_data_dump": True, "configurations_dump": True}
    given = {"dump_path": str(path), "existing": existing, **settings}
    return Probe.from_config({**section, **given})


def killed(path, steps=2, task="tensor"):
    """Record a run whose last step was not ended, and leave it as a killed job does."""
    record_training(path, steps=steps, task=task)
    recording = Recording(path, existing="resume", step=steps, task=task)
    recording.writer.manifest.begin(steps)
    with recording.phase("actor_update"):
        recording.call("a", "Dense", lambda x: x + 1, np.ones(4))
        recording.writer.sink("actor_update", steps).save("ahead", np.ones(3), None)
    recording.data("loss", 1.0)
    leave_as_killed(recording.writer)


#: Files of others, by their place in the dump_path.
OF_OTHERS = [
    "step5/rank0/model.ckpt",
    "figures/step0/rank0/plot.png",
    "data/images/step3/rank0/cat.jpg",
    "data/loss/step0/rank0/micro_step0/notes.txt",
    "data/loss/step2/rank0/micro_step7/loss.npy",
    "data/loss/step2/rank0/micro_step8/loss.json",
    "data/loss/step1/rank0/micro_step0/deep/er/loss.npy",
    "actor_update/step0/rank0/dump_tensor_data/mine.npy",
    "actor_update/step2/rank0/dump_tensor_data/Cell.x.Dense.forward.0.input.0.npy",
    "actor_update/step2/rank0/weights/model.ckpt",
    "actor_update/step2/rank0/.records.jsonl.bak",
    "actor_update/step2/rank7x/x",
    "critic_update/step9/rank0/records.jsonl",
    "critic_update/step9/rank0/dump.json",
    "actor_update/plot.png",
    ".run.json.bak",
    ".run.json.lock.bak",
    ".run.json.tmp/inside",
    ".run.json.reserve/inside",
    "old_run/run.json",
    "old_run/step0/rank0/records.jsonl",
    "old_run/step0/rank0/dump_tensor_data/a.npy",
    "train.log",
]
LINE = '{"entry": "Cell.a.Dense.forward.0", "seq": 0, "data_name": "a.npy"}\n'


def put(path, name):
    file = path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    ours = name.startswith("old_run/step0/rank0/rec")
    file.write_text(LINE if ours else f"somebody's own {name}\n")


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_only_what_journals_name_is_removed(tmp_path, existing, task, caplog):
    """All files of others stay byte for byte, one line mentions them, the new run is whole."""
    path = tmp_path / "run"
    killed(path, task=task)
    before = {file for file in path.rglob("*") if file.is_file()}
    for name in OF_OTHERS:
        put(path, name)
    probe = begin(path, existing)
    mentioned = [r.getMessage() for r in caplog.records if "no run recorded" in r.getMessage()]
    assert len(mentioned) == 1
    assert "are left as they are" in mentioned[0]
    step = 2 if existing == "resume" else 0
    assert probe.current_step == step
    gone = {file for file in before if existing == "overwrite" or "/step2/" in str(file)}
    still = {file for file in gone if file.exists() and file.name != "run.json"}
    assert still == set()
    probe.save_data(loss=5.0)
    probe.step()
    probe.close()
    for name in OF_OTHERS:
        text = (path / name).read_text()
        assert text == f"somebody's own {name}\n" or text == LINE, name
    run = open_run(path)
    assert run.finished
    assert [float(d.value) for d in run.key_data("loss", step=step) if d.seq is not None] == [5.0]
    assert run.manifests[0]["lost"] == {}


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_nothing_of_a_run_alone_is_left(tmp_path, existing):
    """Tensors whose entries were not written yet, and half a save, are known as the run's own."""
    path = tmp_path / "run"
    killed(path)
    ahead = path / "actor_update/step2/rank0/dump_tensor_data/ahead.npy"
    assert ahead.exists()
    half = path / "data/loss/step2/rank0/.micro_step1.77.msprobe.tmp"
    half.mkdir()
    (half / "loss.npy").write_bytes(b"half")
    (path / "actor_update/step2/rank0/.dump.json.77.msprobe.tmp").write_bytes(b"half")
    begin(path, existing).close()
    assert [str(f.relative_to(path)) for f in path.rglob("*") if "step2" in str(f)] == []
    if existing == "overwrite":
        assert [file.name for file in path.iterdir()] == ["run.json"]


def test_links_and_names_that_lead_away_are_not_followed(tmp_path):
    """A journal may name what it likes: only plain files in its own directory go."""
    path, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.npy").write_text("precious")
    killed(path)
    rank = path / "actor_update/step2/rank0"
    (rank / "dump_tensor_data/linked.npy").symlink_to(outside / "precious.npy")
    shutil.rmtree(path / "critic_update/step1/rank0/dump_tensor_data")
    (path / "critic_update/step1/rank0/dump_tensor_data").symlink_to(outside)
    for directory in (rank, path / "critic_update/step1/rank0"):
        with open(directory / "records.jsonl", "a") as journal:
            for name in ("linked.npy", "../../../../../outside/precious.npy", "precious.npy"):
                journal.write(json.dumps({"entry": "x", "seq": 1, "data_name": name}) + "\n")
        with open(directory / ".msprobe_tensors", "a") as listing:
            listing.write(f"../{outside}/precious.npy\n{outside}/precious.npy\nprecious.npy\n")
    begin(path, "overwrite").close()
    assert (outside / "precious.npy").read_text() == "precious"
    assert (rank / "dump_tensor_data/linked.npy").is_symlink()


@pytest.mark.parametrize("name", ["run.json", "configurations.json"])
def test_a_file_of_others_that_is_called_like_ours_stays(tmp_path, name):
    """A foreign run.json is refused; foreign configurations beside no run are left."""
    path = tmp_path / "run"
    path.mkdir()
    (path / name).write_text('{"mine": 1}')
    if name == "run.json":
        with pytest.raises(RunError, match="is not a manifest of this package"):
            begin(path, "overwrite")
    else:
        begin(path, "overwrite").close()
    assert (path / name).read_text() == '{"mine": 1}'


@pytest.mark.parametrize("name", [".run.json.lock", ".run.json.msprobe.reserve", ".run.json.tmp"])
@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_a_directory_called_like_a_file_of_ours_stops_nothing(tmp_path, name, existing):
    path = tmp_path / "run"
    (path / name).mkdir(parents=True)
    (path / name / "inside").write_text("x")
    probe = begin(path, existing)
    with pytest.raises(RunError):
        begin(path, "refuse")
    probe.save_data(loss=1.0)
    probe.step()
    probe.close()
    assert (path / name / "inside").read_text() == "x"
    assert open_run(path).finished


def test_a_file_that_is_called_like_the_lock_keeps_its_content(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / ".run.json.lock").write_text("somebody's own")
    begin(path, "refuse").close()
    assert (path / ".run.json.lock").read_text() == "somebody's own"


def test_a_file_of_others_in_the_way_of_a_recording_stays(tmp_path):
    """What would have to take its place is lost and counted; all else is recorded."""
    path = tmp_path / "run"
    rank = path / "actor_update/step0/rank0"
    (rank / "dump_tensor_data").mkdir(parents=True)
    for name in ("dump.json", "dump_tensor_data/a.npy"):
        (rank / name).write_text("mine")
    lost = {}

    def fault(what, error, count):
        lost[what] = lost.get(what, 0) + count

    given = {"config": {"existing": "overwrite"}, "existing": "overwrite", "task": "tensor"}
    writer = RunWriter(path, rank=0, fault=fault, **given)
    for name in "ab":
        writer.sink("actor_update", 0).save(name, np.ones(2), None)
    line = JournalLine("Cell.b.Dense.forward.0", 0, 1, values={"input_args": [], "output": []})
    writer.sink("actor_update", 0).append(line)
    writer.end_step(0, lost)
    writer.close()
    assert words(lost) == {"a tensor": 1, "what msprobe's tools read": 1}
    assert {(rank / n).read_text() for n in ("dump.json", "dump_tensor_data/a.npy")} == {"mine"}
    assert [entry.cell for entry in open_run(path).entries()] == ["b"]


@pytest.mark.parametrize("content", ['{"a": 1}', "pipe", None])
def test_resume_without_a_manifest_mixes_nothing(tmp_path, content):
    """Data whose run.json is gone, or is a user's own, are no run to resume; nothing is changed."""
    path = tmp_path / "run"
    killed(path)
    (path / "run.json").unlink()
    if content == "pipe":
        os.mkfifo(path / "run.json")
    elif content is not None:
        (path / "run.json").write_text(content)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match=r"run\.json"):
        begin(path, "resume")
    assert {file: file.read_bytes() for file in before} == before
    assert (path / "run.json").exists() == (content is not None)
    if content is None:  # behind what is there, nothing can be mixed up
        probe = begin(path, "resume", initial_step=3)
        assert probe.current_step == 3
        probe.close()


def test_resume_beside_a_users_own_files_is_a_new_run(tmp_path):
    """Directories that are only called like a step's and a rank's are no run without run.json."""
    path = tmp_path / "run"
    for name in ("step5/rank0/model.ckpt", "data/images/step3/rank0/cat.jpg"):
        put(path, name)
    probe = begin(path, "resume")
    assert probe.current_step == 0
    probe.close()
    assert (path / "data/images/step3/rank0/cat.jpg").exists()


def test_names_that_no_file_can_have_stop_nothing(tmp_path):
    """A journal and a save may name what they like: the run is replaced all the same."""
    path = tmp_path / "run"
    killed(path)
    names = ["x" * 5000, "a\0b", ""]
    with open(path / "actor_update/step2/rank0/records.jsonl", "a") as journal:
        for name in names:
            journal.write(json.dumps({"entry": "x", "seq": 1, "data_name": name}) + "\n")
    saved = path / "data/loss/step0/rank0/micro_step0/loss.json"
    saved.write_text(json.dumps({"seq": 1, "data": [{"data_name": name} for name in names]}))
    begin(path, "overwrite").close()
    assert [file.name for file in path.rglob("*.json*")] == ["run.json"]


@pytest.mark.parametrize("ours_too", [False, True])
def test_the_refusal_to_resume_promises_only_what_overwrite_does(tmp_path, ours_too):
    """Dumps of msprobe, which know no journal, are not removed, whatever is advised."""
    path = tmp_path / "run"
    if ours_too:
        killed(path)
        (path / "run.json").unlink()
    msprobes = path / "reference_compute_log_prob/step7/rank0/dump.json"
    msprobes.parent.mkdir(parents=True)
    msprobes.write_text('{"task": "statistics", "data": {}}')
    with pytest.raises(RunError, match="up to step 7") as refused:
        begin(path, "resume")
    said = str(refused.value)
    assert ("set existing: overwrite" in said) == ours_too
    assert ("dumps of another tool stay" in said) == ours_too
    assert ("overwrite does not remove them" in said) == (not ours_too)
    begin(path, "overwrite").close()
    assert msprobes.exists()
    assert [*path.rglob("records.jsonl")] == []


def test_a_step_is_recorded_while_another_rank_removes_what_is_empty(tmp_path, monkeypatch):
    """Ranks begin at different times: one makes a step's directory as another tidies up."""
    directory = tmp_path / "data" / "loss" / "step5" / "rank0"
    times, mkdir = iter(range(3)), os.mkdir

    def tidied(path, *mode):
        """Tidy up between two of the calls that make the directory and those around it."""
        if Path(path) == directory and next(times, None) is not None:
            remove_dumps(tmp_path, lambda step, rank: rank == 1)
        mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", tidied)
    Recording(tmp_path).writer._steps.make(directory)
    assert directory.is_dir()


def test_a_step_stays_that_another_rank_begins_as_this_one_removes_what_is_empty(
    tmp_path, monkeypatch
):
    step = tmp_path / "data" / "loss" / "step5"
    step.mkdir(parents=True)
    rmdir = os.rmdir

    def begun(path):
        (step / "rank0").mkdir(exist_ok=True)
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", begun)
    assert remove_dumps(tmp_path, lambda step, rank: rank == 1) == []
    assert (step / "rank0").is_dir()
