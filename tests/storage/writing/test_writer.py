"""The writer: files whole or not at all, runs never mixed, finished steps survive a kill."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers.programs import read_json, run_python
from helpers.runs import EVERYTHING, Recording, record_training

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import Reserve, write_all
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.writing import steps
from mindrlhf_msprobe.storage.writing.writer import RunWriter


def writer(root, *, rank=0, existing="refuse", task="statistics", **options):
    config = {**EVERYTHING, "task": task}
    return RunWriter(Path(root), rank=rank, config=config, existing=existing, task=task, **options)


def entry(number, **values):
    name, frames = f"Cell.a.Dense.forward.{number}", values.pop("frames", ())
    values = {"input_args": [], "output": [], **values}
    return JournalLine(name, 2 * number, 2 * number + 1, values=values, frames=frames)


def test_every_json_file_of_a_run_is_valid(tmp_path):
    """With NaN and infinities everywhere, each JSON file and journal line is valid JSON."""
    recording = Recording(tmp_path)
    bad = np.float32([np.nan, np.inf, -np.inf])
    with recording.phase("actor_update"):
        recording.call("a", "Dense", lambda x, **_: x, bad, scale=float("nan"))
    recording.data("loss", {"总": bad, "mean": float("inf"), "text": "答\udc80"})
    recording.end_step()
    recording.close()
    files = list(tmp_path.rglob("*.json*"))
    assert {p.name for p in files} >= {"run.json", "dump.json", "records.jsonl", "loss.json"}
    for path in files:
        text = path.read_text(encoding="utf-8")
        for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
            json.loads(line, parse_constant=pytest.fail)


def test_the_tree_is_that_of_the_documentation(tmp_path):
    """A phase's files and a key's files lie where the documentation says."""
    record_training(tmp_path, steps=1, task="tensor")
    phase = tmp_path / "actor_update/step0/rank0"
    json_files = {"records.jsonl", "dump.json", "stack.json", "construct.json"}
    assert {p.name for p in phase.iterdir()} == {*json_files, "dump_tensor_data"}
    assert (phase / "dump_tensor_data/Cell.embed.Dense.forward.0.output.0.npy").is_file()
    key = tmp_path / "data/loss/step0/rank0/micro_step0"
    assert {p.name for p in key.iterdir()} == {"loss.npy", "loss.json"}


def test_dump_json_is_msprobes(tmp_path):
    """dump.json has msprobe's keys, children before their container; construct.json the parents."""
    record_training(tmp_path, steps=1, reference_dump=True)
    directory = tmp_path / "reference_compute_log_prob/step0/rank0"
    dump = read_json(directory / "dump.json")
    assert (dump["task"], dump["level"], dump["framework"]) == ("statistics", "L0", "mindspore")
    assert dump["dump_data_dir"] is None
    entries = list(dump["data"])
    assert entries[0] == "Cell.embed.Dense.forward.0"
    assert entries[-1] == "Cell.root.Network.forward.0"
    values = dump["data"][entries[0]]
    assert set(values) == {"input_args", "input_kwargs", "output", "parameters"}
    assert set(values["output"][0]) >= {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm"}
    construct = read_json(directory / "construct.json")
    assert next(iter(construct)) == "Cell.root.Network.forward.0"
    assert construct["Cell.layers.0.mlp.Dense.forward.0"] == "Cell.layers.0.Block.forward.0"


def test_call_stacks_are_kept_once(tmp_path):
    """Entries with one call stack share it, in the journal and in stack.json."""
    run = writer(tmp_path)
    for number, frames in enumerate([("f1", "f2"), ("f1", "f2"), ("f3",)]):
        run.sink("actor_update", 0).append(entry(number, frames=frames))
    run.end_step(0, {})
    run.close()
    stacks = read_json(tmp_path / "actor_update/step0/rank0/stack.json")
    assert [len(entries) for entries, _ in stacks.values()] == [2, 1]
    assert [e.stack for e in open_run(tmp_path).entries()] == [("f1", "f2"), ("f1", "f2"), ("f3",)]


def test_a_file_that_is_written_again_is_shared_by_what_it_holds_now(tmp_path):
    """The same record with the same elements keeps its file; with others it is no longer shared."""
    run = writer(tmp_path, task="tensor")
    saves = [("a", 1, "x:1"), ("a", 1, "x:1"), ("b", 1, "x:1"), ("a", 2, "x:2"), ("c", 1, "x:1")]
    saves += [("d", 2, "x:2"), ("b", 2, "x:2"), ("e", 1, "x:1")]
    names = {}
    for record, value, fingerprint in saves:
        names[record] = run.sink("actor_update", 0).save(record, np.full(3, value), fingerprint)
    run.wait()
    found = {
        record: np.load(tmp_path / "actor_update/step0/rank0/dump_tensor_data" / name)[0]
        for record, name in names.items()
    }
    assert found == {"a": 2, "b": 2, "c": 1, "d": 2, "e": 1}


def test_tensors_are_stored_where_hard_links_are_not_possible(tmp_path, monkeypatch):
    """On a file system without hard links each record gets a file of its own."""

    def no_links(*_):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    run = writer(tmp_path, task="tensor")
    for record in ("a", "b"):
        name = run.sink("actor_update", 0).save(record, np.arange(3), "x:1")
        run.wait()
        path = tmp_path / "actor_update/step0/rank0/dump_tensor_data" / name
        np.testing.assert_array_equal(np.load(path), np.arange(3))


# Runs are never mixed.


def test_a_directory_that_holds_a_run_is_refused(tmp_path):
    """A second run in the same directory is refused, and the first stays as it was."""
    record_training(tmp_path, steps=1)
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    with pytest.raises(
        RunError, match=r"already holds a run.*another dump_path.*resume.*overwrite"
    ):
        writer(tmp_path)
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("made", ["step0/proc77", "step0/rank0", "data/loss/step0/rank"])
def test_a_directory_with_another_tools_dumps_is_refused(tmp_path, made):
    """Dumps without a run.json belong to somebody else."""
    (tmp_path / made).mkdir(parents=True)
    with pytest.raises(RunError, match="dumps of another tool"):
        writer(tmp_path)


def test_a_directory_with_other_files_is_taken(tmp_path):
    """Logs and scripts beside a run do not matter."""
    (tmp_path / "train.log").write_text("…")
    writer(tmp_path).close()
    assert open_run(tmp_path).finished


def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path):
    """A dump_path below a file is an error that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        writer(tmp_path / "file" / "run")


def test_resume_continues_after_the_last_finished_step(tmp_path):
    """A resumed run keeps its identity and steps, and goes on where the last one ended."""
    record_training(tmp_path, steps=2)
    first = read_json(tmp_path / "run.json")
    resumed = writer(tmp_path, existing="resume")
    assert resumed.next_step() == 2
    resumed.sink("actor_update", 2).append(entry(0))
    resumed.end_step(2, {})
    resumed.close()
    second = read_json(tmp_path / "run.json")
    assert second["run_id"] == first["run_id"]
    assert [a["last_completed_step"] for a in second["attempts"]] == [1, 2]
    assert open_run(tmp_path).steps == [0, 1, 2]


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_what_a_killed_attempt_was_writing_is_swept_up(tmp_path, existing):
    """Temporary files of this rank's manifest go away, those of another rank stay."""
    record_training(tmp_path, steps=1)
    of_others = {".run.rank1.json.78.msprobe.tmp", ".run.json.bak", ".run.json.77.tmp"}
    of_others |= {".run.json.reserve", ".run.json.msprobe.tmp", ".run.json.1.msprobe.tmp.old"}
    ours = {".run.json.77.msprobe.tmp", ".run.json.1-2.msprobe.tmp", ".run.json.msprobe.reserve"}
    for name in (*of_others, *ours):
        (tmp_path / name).write_text("half")
    writer(tmp_path, existing=existing).close()
    hidden = {path.name for path in tmp_path.iterdir() if path.name.startswith(".")}
    assert hidden == of_others


def test_overwrite_leaves_nothing_of_the_earlier_run(tmp_path):
    """An overwritten run has only its own steps, keys and ranks; other files stay."""
    record_training(tmp_path, steps=3, ranks=(0, 1))
    (tmp_path / "train.log").write_text("…")
    writer(tmp_path, existing="overwrite").close()
    assert {p.name for p in tmp_path.iterdir()} == {"run.json", "train.log"}


@pytest.fixture
def outside(tmp_path):
    """Return a directory beside the run, with a file in it that is somebody's own."""
    rank = tmp_path / "outside/step0/rank0"
    rank.mkdir(parents=True)
    (rank / "precious").write_text("")
    yield tmp_path / "outside"
    assert [p.name for p in rank.iterdir()] == ["precious"]


def test_overwrite_follows_no_link_out_of_the_run(tmp_path, outside):
    """What a symbolic link points to is never removed."""
    record_training(tmp_path / "run", steps=1)
    (tmp_path / "run/linked").symlink_to(outside)
    writer(tmp_path / "run", existing="overwrite").close()


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
@pytest.mark.parametrize("link", ["actor_update", "data", "data/loss", "step3"])
def test_a_link_where_something_would_be_written_is_refused(tmp_path, outside, existing, link):
    """A phase on another disk may be another run's: it is named, and nothing of it goes."""
    path = tmp_path / "run" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(outside)
    with pytest.raises(RunError, match=rf"{link} is a symbolic link.*Remove the link, or give"):
        writer(tmp_path / "run", existing=existing)
    assert not (tmp_path / "run/run.json").exists()


def test_a_link_that_is_made_while_the_run_is_recorded_is_not_followed(tmp_path, outside):
    """What it leads to stays; what cannot be written is counted as lost."""
    section = {"msprobe": True, "key_data_dump": True, "dump_path": str(tmp_path / "run")}
    with Probe.from_config(section) as probe:
        (tmp_path / "run/data").mkdir()
        (tmp_path / "run/data/loss").symlink_to(outside)
        probe.save_data(loss=np.ones(3), rewards=np.ones(3))
        probe.step()
    run = open_run(tmp_path / "run")
    assert len(run.key_data("rewards")) == 1
    assert len(run.lost) == 1


# Survival.

KILLED = """
import sys, os, signal
from pathlib import Path
from helpers.runs import Recording, Network
import numpy as np
recording = Recording(Path("run"), task="tensor")
network = Network(1)
x = np.ones((2, 6), np.float32)
for _ in range(2):
    with recording.phase("actor_update"):
        network.run(recording, x)
    recording.data("loss", 1.5)
    recording.end_step()
with recording.phase("actor_generate_sequences"):
    network.run(recording, x)
recording.data("responses", ["一", "two"])
def die(value):
    recording.writer.wait()
    os.kill(os.getpid(), signal.SIGKILL)
with recording.phase("actor_update"):
    recording.call("head", "Dense", lambda x: x, x)
    recording.call("late", "Dense", die, x)
"""


def test_a_killed_run_keeps_every_finished_step_and_what_the_open_one_had(tmp_path):
    """After SIGKILL finished steps are whole for us and msprobe, the open one as far as written."""
    assert run_python(KILLED, tmp_path).returncode == -signal.SIGKILL
    run = open_run(tmp_path / "run")
    assert not run.finished
    assert [run.completed(step) for step in run.steps] == [True, True, False]
    for step in (0, 1):
        entries = run.entries(step=step)
        assert len(entries) == 9
        assert all(entry.end is not None for entry in entries)
        assert all(r.array().size for e in entries for r in e.records)
        dump = read_json(tmp_path / f"run/actor_update/step{step}/rank0/dump.json")
        assert set(dump["data"]) == {entry.name for entry in entries}
        assert run.key_data("loss", step=step)[0].value == 1.5
    assert len(run.entries("actor_generate_sequences", step=2)) == 9
    assert [e.name for e in run.entries("actor_update", step=2)] == ["Cell.head.Dense.forward.0"]
    assert run.key_data("responses", step=2)[0].value == ["一", "two"]
    assert run.problems == []


def test_a_further_attempt_leaves_nothing_of_the_steps_it_records_again(tmp_path):
    """Phases and keys that only the earlier attempt recorded in such a step are gone with it."""
    earlier = writer(tmp_path, task="tensor")
    for step in range(3):
        earlier.sink("actor_update", step).append(entry(step))
        earlier.sink("reference_compute_log_prob", step).append(entry(step))
        earlier.save_key_data("loss", step, 0, lambda: {"seq": 0, "data": None}, {})
        if step < 2:
            earlier.end_step(step, {})
    earlier.sink("actor_update", 2).save("old", np.zeros(2), None)
    earlier.wait()
    resumed = writer(tmp_path, existing="resume", task="tensor")
    resumed.manifest.begin(1)
    assert not list(tmp_path.rglob("*.npy"))
    run = open_run(tmp_path)
    assert {(e.phase, e.step) for e in run.entries()} == {
        ("actor_update", 0),
        ("reference_compute_log_prob", 0),
    }
    assert [datum.step for datum in run.key_data()] == [0]
    assert [run.completed(step) for step in range(3)] == [True, False, False]
    resumed.sink("actor_update", 1).append(entry(7))
    resumed.end_step(1, {})
    assert [open_run(tmp_path).completed(step) for step in range(3)] == [True, True, False]


def test_key_data_without_their_description_are_not_whole(tmp_path):
    """Arrays beside which the JSON is missing look like a shorter value, and are none."""
    recorded = writer(tmp_path)
    recorded.save_key_data("adv", 0, 0, lambda: {"data": None}, {"adv.0.npy": np.zeros(2)})
    recorded.end_step(0, {})
    next(tmp_path.rglob("adv.json")).unlink()
    (datum,) = open_run(tmp_path).key_data()
    with pytest.raises(ArrayFileError, match=r"adv\.json is missing"):
        datum.value  # noqa: B018


def test_the_kept_room_takes_the_file_that_has_become_larger(tmp_path):
    """On a full disk run.json is written into room that nobody else can take."""
    full = OSError(errno.ENOSPC, "No space left on device")
    path = tmp_path / "run.json"
    reserve = Reserve(path)
    reserve.keep(1000)
    assert reserve.write(path, b"x" * 3000, full)
    assert path.read_bytes() == b"x" * 3000
    assert not reserve.write(path, b"y" * 3000, full)  # there is no room any more
    reserve.keep(3000)
    assert not reserve.write(path, b"y" * 3000, OSError(errno.EACCES, "Permission denied"))
    assert reserve.write(path, b"y" * 5000, full)
    assert path.read_bytes() == b"y" * 5000


def test_ranks_that_resume_at_once_may_remove_the_same_directory(tmp_path, monkeypatch):
    """What another rank removed between being listed and being looked at is no error."""
    earlier = writer(tmp_path)
    earlier.sink("actor_update", 0).append(entry(0))
    earlier.wait()
    listed = layout.rank_directories

    def gone(step_dir, **options):
        shutil.rmtree(step_dir)
        return listed(step_dir, **options)

    resumed = writer(tmp_path, existing="resume")
    monkeypatch.setattr(layout, "rank_directories", gone)
    resumed.manifest.begin(0)
    assert not (tmp_path / "actor_update").exists()


@contextmanager
def waiting(run):
    """Let what is handed over to a writer wait until the end of the block."""
    begun, go_on = threading.Event(), threading.Event()
    run.background.hand_over("a gate", lambda: (begun.set(), go_on.wait(20)))
    assert begun.wait(20)
    yield
    go_on.set()


def test_entries_that_wait_together_are_written_together(tmp_path, monkeypatch):
    """One look at the directory and one write of the journal, whatever their number."""
    written, looks = [], []
    monkeypatch.setattr(
        steps, "write_all", lambda file, part: written.append(part) or write_all(file, part)
    )
    run = writer(tmp_path / "run")
    with waiting(run):
        own = run.manifest.check
        monkeypatch.setattr(run.manifest, "check", lambda: looks.append(1) or own())
        for number in range(50):
            line = entry(number, frames=("a frame", f"f{number % 2}"))
            run.sink("actor_update", 0).append(line)
    run.wait()
    assert [part.count(b"\n") for part in written] == [50]
    assert len(looks) <= 2  # that of the wait too
    run.end_step(0, {})
    run.close()
    lines = [json.loads(line) for line in written[0].splitlines()]
    assert [line["seq"] for line in lines] == list(range(0, 100, 2))
    assert [line["stack"] for line in lines] == [n % 2 for n in range(50)]
    assert [n for n, line in enumerate(lines) if "frames" in line] == [0, 1]


def test_of_entries_that_wait_together_only_the_bad_one_is_lost(tmp_path):
    """What cannot be written is counted by itself, and the others are whole."""
    lost = []
    fault = lambda what, error, count: lost.append((in_words(what, "en"), count))  # noqa: E731
    run = writer(tmp_path / "run", fault=fault)
    with waiting(run):
        for number in range(5):
            values = {"input_args": [float("nan")]} if number == 2 else {}
            run.sink("actor_update", 0).append(entry(number, frames=("a frame",), **values))
    run.end_step(0, {})
    run.close()
    assert lost == [("an entry", 1)]
    journal = (tmp_path / "run" / "actor_update" / "step0" / "rank0" / "records.jsonl").read_text()
    lines = [json.loads(line) for line in journal.splitlines()]
    assert [line["seq"] for line in lines] == [0, 2, 6, 8]
    assert [line.get("frames") for line in lines] == [["a frame"], None, None, None]
