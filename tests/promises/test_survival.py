"""What is on disk after a kill, on a full disk, and where the run's directory went away."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.programs import TESTS
from helpers.runs import EVERYTHING, Recording, words

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.writing.writer import RunWriter

pytestmark = pytest.mark.slow

TRAINING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from helpers import runs
from helpers.runs import Network, Recording, _round
root, task, runs.WIDTH, steps = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
recording = Recording(root, task=task, step_end=10**6)
actor, reference, critic, generator = Network(1), Network(1), Network(2), np.random.default_rng(1)
while recording.step != steps:
    for key, value in _round(recording, actor, reference, critic, generator, 2):
        recording.data(key, value)
    recording.end_step()
    print(recording.step, flush=True)
recording.close()
"""


@pytest.mark.parametrize(
    ("task", "width"), [("statistics", 6), ("tensor", 6), ("tensor", 400), ("sketch", 300)]
)
def test_a_kill_at_any_moment_loses_no_step_that_was_ended(tmp_path, task, width):
    """Ended steps are whole, the open one is readable as far as it goes, and both compare."""

    def start(name, steps):
        command = [sys.executable, "-c", TRAINING, TESTS, tmp_path / name, task, width, steps]
        return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)

    whole = start("whole", 2)
    killed = start("killed", -1)
    killed.stdout.readline()
    time.sleep(random.random() * 0.3)
    killed.kill()
    said = killed.communicate()[0].split()
    whole.communicate()
    assert whole.returncode == 0
    run, expected = open_run(tmp_path / "killed"), open_run(tmp_path / "whole")
    ended = [step for step in run.steps if run.completed(step)]
    assert len(ended) >= (int(said[-1]) if said else 1)
    assert not run.finished
    for step in run.steps:
        entries, data = run.entries(step=step), run.key_data(step=step)
        for record in (r for e in entries for r in e.records):
            assert (record.file is not None) == (task == "tensor" and record.leaf.is_tensor)
            assert record.file is None or record.array() is not None
            assert (record.leaf.sketch is not None) == (task == "sketch" and record.leaf.is_tensor)
            assert record.leaf.sketch is None or record.sketch().rows
        assert all(datum.value is not None for datum in data)
        if step in ended:
            names = [entry.name for entry in entries]
            assert names == [entry.name for entry in expected.entries(step=0)]
            assert len(data) == len(expected.key_data(step=0))
            for phase in run.phases:
                path = tmp_path / f"killed/{phase}/step{step}/rank0/dump.json"
                assert set(json.loads(path.read_bytes())["data"]) <= set(names)
    assert run.problems == []
    counts = compare_runs(tmp_path / "whole", tmp_path / "killed").verdict.counts
    found = {status for status, count in counts.items() if count}
    assert "identical" in found <= {"identical", "only_in_a", "only_in_b"}


FULL = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from helpers import runs
from mindrlhf_msprobe import open_run
from helpers.runs import Network, Recording, _round, words
root, task = Path(sys.argv[2]), sys.argv[3]
runs.WIDTH = 40 if task == "sketch" else runs.WIDTH  # shorter rows are stored whole
lost = {}
def fault(what, error, count):
    lost[what] = lost.get(what, 0) + count
make = runs.RunWriter
runs.RunWriter = lambda *a, **k: make(*a, **k, fault=fault)
recording = Recording(root, task=task, step_end=99)
actor, reference, critic, generator = Network(1), Network(1), Network(2), np.random.default_rng(1)
for step in range(12):
    for key, value in _round(recording, actor, reference, critic, generator, 2):
        recording.data(key, value)
    recording.writer.end_step(step, lost)
    recording.step += 1
    recording._forget_step()
recording.writer.end_step(12, lost, complete=False)
recording.writer.close()
content = json.loads((root / "run.json").read_bytes())
assert content["lost"] == words(lost), (content["lost"], lost)
lost = words(lost)
assert content["state"] == "finished"
assert content["attempts"][-1]["last_completed_step"] == 11
run = open_run(root)
entries = run.entries()
assert lost["an entry"] + len(entries) == 12 * 63, (lost, len(entries))
for record in (r for entry in entries for r in entry.records):
    assert record.file is None or record.array() is not None
    place = record.leaf.sketch
    assert place is None or place.why is not None or record.sketch().rows
assert run.problems == [], run.problems
assert not list(root.rglob("*.tmp")) and not list(root.rglob("*.reserve"))
print(json.dumps(lost))
"""


@pytest.mark.parametrize("task", ["statistics", "tensor", "sketch"])
def test_a_full_disk_is_counted_in_run_json(tmp_path, task):
    """On a file system that fills up all goes on, and run.json still says what was lost."""
    (tmp_path / "disk").mkdir()
    script = f"mount -t tmpfs -o size=1500k none {tmp_path}/disk && exec " + '"$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-c", FULL, TESTS]
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            ["unshare", "-rm", "sh", "-c", script, "sh", "true"], capture_output=True
        ).returncode
    ):
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(
        [*command, str(tmp_path / "disk/run"), task], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["an entry"] > 0


def watched_writer(root, **settings):
    """Return a writer and what it loses."""
    lost = {}

    def fault(what, error, count):
        lost[what] = lost.get(what, 0) + count

    config = {**EVERYTHING, "task": "tensor"}
    made = RunWriter(
        root, rank=0, config=config, existing="refuse", task="tensor", fault=fault, **settings
    )
    return made, lost


def entry(name, *files, frames=()):
    leaves = [
        {"type": "mindspore.Tensor", "dtype": "Float64", "shape": [4], "data_name": file}
        for file in files
    ]
    values = {"input_args": leaves, "output": []}
    return JournalLine(f"Cell.{name}.Dense.forward.0", 0, 1, values=values, frames=frames)


def test_a_record_whose_elements_are_lost_says_why(tmp_path, monkeypatch):
    """Neither it nor what shares its elements names a file; a later equal one is stored anew."""
    from mindrlhf_msprobe.storage.writing import steps

    writer, lost = watched_writer(tmp_path)
    real = steps.save_npy

    def full(path, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steps, "save_npy", full)
    first = [writer.sink("actor_update", 0).save(n, np.ones(4), "x:1") for n in ("a", "b")]
    writer.sink("actor_update", 0).append(entry("early", *first))
    writer.wait()
    monkeypatch.setattr(steps, "save_npy", real)
    second = writer.sink("actor_update", 0).save("c", np.ones(4), "x:1")
    writer.sink("actor_update", 0).append(entry("late", second))
    writer.end_step(0, lost)
    early, late = open_run(tmp_path).entries()
    reasons = [record.leaf.why and str(record.leaf.why) for record in early.records]
    assert reasons == ["its elements could not be stored: No space left on device"] * 2
    assert late.records[0].array().tolist() == [1, 1, 1, 1]
    assert words(lost) == {"a tensor": 2}


def test_a_line_that_is_written_in_part_leaves_nothing(tmp_path, monkeypatch):
    """The journal keeps whole lines where one of them does not fit on the disk."""
    from mindrlhf_msprobe.storage.writing import steps

    writer, lost = watched_writer(tmp_path)
    real = steps.write_all

    def half(file, part):
        if b'"entry": "Cell.b.' not in part:
            return real(file, part)
        real(file, part[: len(part) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steps, "write_all", half)
    for name in ("a", "b", "c"):
        writer.sink("actor_update", 0).append(entry(name, frames=("frame",)))
    writer.end_step(0, lost)
    run = open_run(tmp_path)
    assert [e.cell for e in run.entries()] == ["a", "c"]
    assert [e.stack for e in run.entries()] == [("frame",)] * 2
    assert run.problems == []
    assert words(lost) == {"an entry": 1}


def test_a_phase_that_is_removed_or_moved_while_it_is_written_is_a_counted_loss(tmp_path):
    """Its entries count as lost; what follows is recorded, in the run that is still there."""
    writer, lost = watched_writer(tmp_path / "run")
    gone = tmp_path / "run/actor_update"
    for step, take_away in enumerate([shutil.rmtree, lambda path: path.rename(tmp_path / "x")]):
        for name in ("a", "b"):
            writer.sink("actor_update", step).append(entry(name))
        writer.wait()
        take_away(gone)
        writer.sink("actor_update", step).append(entry("c"))
        writer.end_step(step, lost)
        assert words(lost) == {"an entry": 3 * (step + 1)}
    writer.sink("actor_update", 2).append(entry("d"))
    writer.end_step(2, lost)
    writer.close()
    run = open_run(tmp_path / "run")
    assert [(e.step, e.cell) for e in run.entries()] == [(2, "d")]
    assert run.manifests[0]["lost"] == words(lost)
    assert run.finished


def test_memory_and_files_do_not_grow_with_the_steps(tmp_path):
    """A later step leaves no more buffers, accounts or open files behind than an earlier one."""
    recording = Recording(tmp_path, task="tensor")
    fds = []
    for _ in range(6):
        with recording.phase("actor_update"):
            recording.call("a", "Dense", lambda x: x + recording.step, np.ones(1 << 16))
        recording.end_step()
        fds.append(len(list(Path("/proc/self/fd").iterdir())))
    assert len(set(fds[1:])) == 1
    assert recording.writer._sinks == {}
    recording.close()
