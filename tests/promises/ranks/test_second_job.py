"""A directory that a running job writes into: whoever else comes is told, and it is left alone."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from mindrlhf_msprobe import Probe, RunError, open_run

pytestmark = pytest.mark.slow

JOB = """
import sys
from mindrlhf_msprobe import Probe
probe = Probe.from_config({"msprobe": True, "key_data_dump": True, "dump_path": sys.argv[1],
                           "existing": sys.argv[2]})
print("recording", flush=True)
for line in sys.stdin:
    probe.save_data(loss=float(line))
    probe.step()
    print("stepped", flush=True)
probe.close()
"""


HOLDS = """
import sys
from pathlib import Path
from mindrlhf_msprobe.storage.writing.directory import RankLock
assert RankLock(Path(sys.argv[1]), 1).acquire()
print("held", flush=True)
sys.stdin.readline()
"""


def process(program, *arguments, **environment):
    """Start a program in a process of its own, which is spoken to by pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class RunningJob:
    """Another process that records key data, a step for each number it is given."""

    def __init__(self, path, existing="refuse", **environment):
        self._process = process(JOB, path, existing, **environment)
        self.pid = self._process.pid
        assert self._process.stdout.readline() == "recording\n"

    def step(self, loss):
        self._process.stdin.write(f"{loss}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "stepped\n"

    def end(self):
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=60)


def an_hour_ago(path):
    """Move what the manifests say an hour back: the next process is clearly a later one."""
    for manifest in path.glob("run*.json"):
        content = json.loads(manifest.read_text("utf-8"))
        for attempt in content["attempts"]:
            started = datetime.datetime.fromisoformat(attempt["started"])
            attempt["started"] = (started - datetime.timedelta(hours=1)).isoformat()
        manifest.write_text(json.dumps(content), "utf-8")


def begin(path, existing, **settings):
    return Probe.from_config(
        {"msprobe": True, "dump_path": str(path), "existing": existing, **settings}
    )


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_a_second_job_is_refused_while_the_first_runs(tmp_path, existing):
    """The message says who writes there and what to do; the first job loses nothing."""
    path = tmp_path / "run"
    job = RunningJob(path)
    job.step(0.5)
    with pytest.raises(RunError, match="is being written by a job that still runs") as refused:
        begin(path, existing)
    assert f"process {job.pid} on " in str(refused.value)
    assert "another dump_path" in str(refused.value)
    job.step(0.25)
    job.end()
    run = open_run(path)
    assert (run.finished, run.problems) == (True, [])
    assert [float(datum.value) for datum in run.key_data("loss")] == [0.5, 0.25]


def test_rank_0_does_not_replace_what_a_rank_of_a_larger_job_is_writing(tmp_path):
    """`overwrite` removes ranks beyond its own world, but none that is being recorded."""
    path = tmp_path / "run"
    job = RunningJob(path, RANK_ID="1", RANK_SIZE="2")
    job.step(0.5)
    with pytest.raises(RunError, match="as rank 1"):
        begin(path, "overwrite")
    job.step(0.25)
    job.end()
    assert [float(d.value) for d in open_run(path).key_data("loss", rank=1)] == [0.5, 0.25]


@pytest.mark.parametrize("take_away", ["remove", "move"])
def test_a_job_that_finds_the_place_empty_has_it_alone(tmp_path, take_away):
    """The directory went away under the first job: what it has yet to say does not mix in."""
    path = tmp_path / "run"
    job = RunningJob(path)
    job.step(0.5)
    if take_away == "remove":
        shutil.rmtree(path)
    else:
        path.rename(tmp_path / "moved")
    second = RunningJob(path)
    second.step(7.5)
    job.step(0.25)
    second.step(7.25)
    job.end()
    second.end()
    run = open_run(path)
    assert (run.finished, run.problems, run.lost) == (True, [], [])
    assert losses(path) == {0: [7.5, 7.25]}
    if take_away == "move":
        assert losses(tmp_path / "moved") == {0: [0.5]}
        assert not open_run(tmp_path / "moved").finished


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_a_killed_job_holds_nothing_back(tmp_path, existing):
    """After SIGKILL the next job may have the directory, as `existing` says."""
    path = tmp_path / "run"
    job = RunningJob(path)
    job.step(0.5)
    job.kill()
    begin(path, existing).close()
    steps = open_run(path).steps if existing == "resume" else []
    assert steps == ([0] if existing == "resume" else [])
    assert not list(path.glob(".*"))


def test_ranks_of_another_job_are_refused(tmp_path, monkeypatch):
    """Rank 1 of a job with another scheduler does not join rank 0's run."""
    path = tmp_path / "run"
    job = RunningJob(path, RANK_SIZE="2", MS_SCHED_HOST="a", MS_SCHED_PORT="1")
    for name, value in (("RANK_ID", "1"), ("RANK_SIZE", "2"), ("MS_SCHED_HOST", "b")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MS_SCHED_PORT", "1")
    with pytest.raises(RunError, match="another job") as refused:
        begin(path, "refuse")
    assert "'b:1'" in str(refused.value)
    monkeypatch.setenv("MS_SCHED_HOST", "a")
    begin(path, "refuse").close()
    job.end()
    run = open_run(path)
    assert [manifest["world"]["rank"] for manifest in run.manifests] == [0, 1]


def start(path, existing, **environment):
    """Begin to record in a process of its own; return its exit code and what it said."""
    job = process(JOB, path, existing, **environment)
    said = job.communicate("100.5\n")[1]
    return job.returncode, said


def losses(path):
    return {
        rank: [float(d.value) for d in open_run(path).key_data("loss", rank=rank)]
        for rank in open_run(path).ranks
    }


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_no_rank_of_a_larger_job_joins_one_that_runs(tmp_path, existing):
    """Not even a rank that the running job does not have."""
    path = tmp_path / "run"
    job = RunningJob(path, RANK_ID="0", RANK_SIZE="2")
    job.step(0.5)
    for rank in "0123":
        code, said = start(path, existing, RANK_ID=rank, RANK_SIZE="4")
        assert code != 0
        assert f"process {job.pid} on " in said
    job.step(0.25)
    job.end()
    assert losses(path) == {0: [0.5, 0.25]}


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
@pytest.mark.parametrize("first", ["ended", "missing"])
def test_a_rank_that_the_running_job_no_longer_records_is_not_taken(tmp_path, existing, first):
    """One job's rank 1 has ended, or never began: another job of that size does not take it."""
    path = tmp_path / "run"
    second = {"RANK_ID": "1", "RANK_SIZE": "2"}
    job = RunningJob(path, RANK_ID="0", RANK_SIZE="2")
    if first == "ended":
        other = RunningJob(path, **second)
        other.step(1.5)
        other.end()
    job.step(0.5)
    an_hour_ago(path)
    code, said = start(path, existing, **second)
    assert code != 0
    if first == "missing" or existing != "refuse":
        assert f"process {job.pid} on " in said
        assert "as rank 0; run.json says running, started 20" in said
    job.end()
    assert losses(path) == {0: [0.5]} | ({1: [1.5]} if first == "ended" else {})


def test_a_rank_of_a_job_that_has_ended_is_not_joined(tmp_path):
    """Under a launcher: its ranks run at the same time, so this is another job's."""
    path = tmp_path / "run"
    launched = {"RANK_SIZE": "2", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118"}
    assert start(path, "refuse", RANK_ID="0", **launched)[0] == 0
    an_hour_ago(path)
    code, said = start(path, "refuse", RANK_ID="1", **launched)
    assert code != 0
    assert "already holds the run of another job (run.json says finished, started 20" in said
    assert "existing: resume to continue that run" in said
    assert start(path, "resume", RANK_ID="1", **launched)[0] == 0
    assert losses(path) == {0: [100.5], 1: [100.5]}


def test_ranks_that_nothing_connects_may_run_one_after_the_other(tmp_path):
    path = tmp_path / "run"
    for rank in "01":
        assert start(path, "refuse", RANK_ID=rank, RANK_SIZE="2")[0] == 0
        an_hour_ago(path)
    assert losses(path) == {0: [100.5], 1: [100.5]}


def test_two_probes_of_one_process_do_not_let_the_lock_go(tmp_path):
    """A probe that is refused does not open the directory for other processes."""
    path = tmp_path / "run"
    probe = begin(path, "refuse")
    with pytest.raises(RunError, match="already holds a run"):
        begin(path, "refuse")
    _, said = start(path, "overwrite")
    probe.close()
    assert "is being written by a job that still runs" in said


def test_which_rank_did_not_end_is_said(tmp_path, cli):
    """`show` names the ranks where not all of them ended alike."""
    path = tmp_path / "run"
    jobs = [RunningJob(path, RANK_ID=rank, RANK_SIZE="3") for rank in "012"]
    for job in jobs:
        job.step(0.5)
    jobs[1].kill()
    for job in (jobs[0], jobs[2]):
        job.end()
    assert "finished (rank 0, 2), running (rank 1)" in cli("show", path).out


def test_all_ranks_of_a_job_that_is_started_again_are_accepted(tmp_path):
    """They begin at once, beside what the job before left: none takes another for that job."""
    path = tmp_path / "run"
    for existing in ("refuse", "overwrite", "resume", "overwrite", "resume"):
        world = {"RANK_SIZE": "4", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118"}
        jobs = [process(JOB, path, existing, RANK_ID=rank, **world) for rank in "0123"]
        said = [job.communicate("1.5\n2.5\n3.5\n")[1] for job in jobs]
        assert [job.returncode for job in jobs] == [0] * 4, said
        an_hour_ago(path)
    assert losses(path) == {rank: [1.5, 2.5, 3.5] * 2 for rank in range(4)}


@pytest.mark.parametrize("existing", ["overwrite", "resume"])
def test_a_rank_that_has_not_yet_said_who_it_is_is_taken_for_one_of_this_job(tmp_path, existing):
    """It holds its lock beside the manifest of an earlier run, which it is about to replace."""
    path = tmp_path / "run"
    world = {"RANK_SIZE": "2", "MS_SCHED_HOST": "a", "MS_SCHED_PORT": "1"}
    assert start(path, "refuse", RANK_ID="1", **world)[0] == 0
    an_hour_ago(path)
    holds = process(HOLDS, path, **world)
    assert holds.stdout.readline() == "held\n"
    code, said = start(path, existing, RANK_ID="0", **world)
    holds.communicate("\n")
    assert code == 0, said
