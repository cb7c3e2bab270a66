"""Whoever compares, in whatever order and whatever dies meanwhile: the result is the same."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers.programs import wait_for
from helpers.runs import Fault, Recording, record_training

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.comparison.engine import executor
from mindrlhf_msprobe.comparison.engine import local_workers as local
from mindrlhf_msprobe.comparison.pairing.view import views
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings import Outcome, Status
from mindrlhf_msprobe.storage.place import StepPlace

PHASE = "actor_update"
HUGE = 1 << 28  # elements of a sparse file that takes no space, but a second to compare

#: A program that compares two runs with workers; `descendants` are the processes it started.
PROGRAM = """
import json, os, signal, sys, threading, time

def children(pid):
    found = []
    for task in os.listdir(f"/proc/{{pid}}/task"):
        try:
            with open(f"/proc/{{pid}}/task/{{task}}/children") as file:
                found += map(int, file.read().split())
        except OSError:  # that thread has ended
            pass
    return found

{prelude}
from mindrlhf_msprobe import compare_runs

def progress(done, total):
    seen.update(children(os.getpid()))
    calls.append((done, total))
    {on_progress}

seen, calls = set(), []
result = compare_runs(*sys.argv[1:3], workers=2, progress=progress, output_path=sys.argv[3])
print(json.dumps({{"status": result.verdict.status.value, "workers": len(seen), "calls": calls}}))
"""
RAY_PROGRAM = """
import json, os, signal, sys
import ray
from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.engine import ray_workers
from mindrlhf_msprobe.errors import UsageError

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
told = {}

def refusal(in_worker):
    here, copy = os.getpid(), original()
    def check():
        return copy() if os.getpid() == here else in_worker(copy())
    ray_workers._copy_of_package = lambda: check
    try:
        workers = ray_workers.RayWorkers(None, None, 100_000)
    except UsageError as error:
        return str(error)
    return workers.capacity

def dies_once(answer, flag=os.path.join(sys.argv[5], "died")):
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

original = ray_workers._copy_of_package
told["dies once"] = refusal(dies_once)
told["dies"] = refusal(lambda answer: os.kill(os.getpid(), signal.SIGKILL))
told["unlike"] = refusal(lambda answer: {**answer, "fingerprint": "another"})
told["missing"] = refusal(lambda answer: __import__("no_such_module"))
ray_workers._copy_of_package = original
for name, a, b in (("large", *sys.argv[1:3]), ("small", *sys.argv[3:5])):
    compare_runs(
        a, b, engine="ray", output_path=f"{sys.argv[5]}/{name}",
        progress=lambda *n: told.update({name: n}),
    )
told["left"] = ray.is_initialized()
with open(f"{sys.argv[5]}/told.json", "w") as file:  # Ray itself prints on stdout
    json.dump(told, file)
ray.shutdown()
"""
#: A program with a Ray of its own, of which a worker dies.
OWN_RAY_PROGRAM = """
import json, os, signal, sys, time
from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.engine import ray_workers
from mindrlhf_msprobe.comparison.engine.executor import perform

def dies_once(job, task, flag=os.path.join(sys.argv[3], "died")):
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return perform(job, task)

ray_workers.perform = dies_once
result = compare_runs(
    *sys.argv[1:3], engine="ray", workers=2,
    progress=lambda *n: time.sleep(0.3),  # Ray takes a moment to tell of it
)
print(json.dumps([result.verdict.counts, os.path.exists(os.path.join(sys.argv[3], "died"))]))
"""
A_THREAD = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"


def record(path, values, steps=1):
    """Record one cell for each value, with its elements."""
    recording = Recording(path, task="tensor")
    for _ in range(steps):
        with recording.phase(PHASE):
            for number, value in enumerate(values):
                recording.call(f"cell{number}", "Dense", lambda x, v=value: v, np.float32(1))
        recording.end_step()
    return recording.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Return two runs with more than a chunk of tensors, one of them larger than a chunk."""
    root = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    values = [random.normal(size=1_000_000).astype(np.float32) for _ in range(8)]
    values.insert(3, random.normal(size=(6, 1_000_000)).astype(np.float32))
    others = [value.copy() for value in values]
    others[3][5, -1] += 1
    others[5][77] = np.nan
    others[6] = others[6].reshape(2, -1)
    others[7] *= np.float32(1.000001)
    return record(root / "a", values), record(root / "b", others)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return two runs of several steps and ranks, one with a fault."""
    root = tmp_path_factory.mktemp("small")
    settings = {"steps": 2, "ranks": (0, 1), "task": "tensor"}
    fault = Fault("layers.1.mlp", "critic_update", step=1, rank=1)
    return (
        record_training(root / "a", **settings),
        record_training(root / "b", faults=[fault], **settings),
    )


def sparse(path, cells=2, elements=HUGE):
    """Record cells whose tensors are files with holes: no space, but long to compare."""
    run = record(path, [np.zeros(4, np.float32)] * cells)
    (journal,) = run.rglob("records.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    directory = journal.parent / "dump_tensor_data"
    for number, line in enumerate(lines):
        (leaf,) = line["output"]
        leaf.update(shape=[elements], data_name=f"sparse{number}.npy", fingerprint=f"x:{path.name}")
        with open(directory / leaf["data_name"], "wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (elements,)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 4 * elements)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def children_of(pid):
    """Return the processes that a process has started."""
    found = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # that thread has ended
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def alive(pids):
    """Return which of these processes still run; one that is only not yet waited for does not."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.append(pid)
    return running


def run_script(tmp_path, program, arguments):
    """Run a program from a file in a directory of its own and return what it printed."""
    script = tmp_path / "script" / "program.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=tmp_path,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},  # for MindSpore
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_program(tmp_path, runs, *, prelude="", on_progress="pass"):
    """Run PROGRAM and return what it printed, and its verdict.json."""
    out = tmp_path / "out"
    program = PROGRAM.format(prelude=prelude, on_progress=on_progress)
    told = run_script(tmp_path, program, [*runs, out])
    return json.loads(told.splitlines()[-1]), (out / "verdict.json").read_bytes()


def verdict(runs, out, **settings):
    """Return the bytes of verdict.json."""
    compare_runs(*runs, output_path=out, **settings)
    return (out / "verdict.json").read_bytes()


@pytest.mark.parametrize("kind", ["large", "small"])
def test_the_number_of_workers_changes_nothing(kind, tmp_path, request):
    """verdict.json and all findings are the same, to the byte, with and without workers."""
    runs = request.getfixturevalue(kind)
    alone = compare_runs(*runs, workers=1, output_path=tmp_path / "1")
    assert alone.verdict.status is Outcome.DIVERGED
    for workers in (2, 3, None):
        shared = compare_runs(*runs, workers=workers, output_path=tmp_path / str(workers))
        assert repr(shared.findings) == repr(alone.findings)  # NaN is not equal to itself
        written = [(tmp_path / n / "verdict.json").read_bytes() for n in ("1", str(workers))]
        assert written[0] == written[1]


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 0), (0.004, 0), (0.5, 1)])
def test_workers_are_started_where_the_rest_takes_longer_than_they_do(large, seconds, expected):
    """Estimated from what the first places took; however slow this machine is."""
    now, started = itertools.count(), []
    job = Job(views(*map(open_run, large), None, None)[:2], ())
    places = [StepPlace(step, 0) for step in open_run(large[0]).steps]
    alone = executor.run(job, places, None)

    def start():
        started.append(executor.ThisProcess(job))
        return started[-1]

    found = executor.run(job, places, start, clock=lambda: seconds * next(now))
    assert len(started) == expected
    assert repr(found) == repr(alone)


def test_workers_change_nothing_about_rules_and_noise(large, tmp_path):
    """A tolerance and further runs are known to every worker."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("cell7: {rtol: 1e-3}\n")
    settings = {"tolerance": rules, "noise": [shutil.copytree(large[0], tmp_path / "n")]}
    written = [
        verdict(large, tmp_path / str(workers), workers=workers, **settings) for workers in (1, 2)
    ]
    assert written[0] == written[1]
    assert json.loads(written[0])["counts"]["within_tolerance"] == 1


def test_ray_changes_nothing(large, small, tmp_path):
    """The same on a Ray cluster the process is connected to already, which is left as it is."""
    if find_spec("ray") is None:
        pytest.skip("needs ray")
    run_script(tmp_path, RAY_PROGRAM, [*large, *small, tmp_path])
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["left"] is True
    for name, runs in (("large", large), ("small", small)):
        local = compare_runs(*runs, workers=1, output_path=tmp_path / f"{name}_local")
        written = [(tmp_path / n / "verdict.json").read_bytes() for n in (f"{name}_local", name)]
        assert written[0] == written[1]
        assert told[name] == [len(local.findings)] * 2
    assert told["dies once"] == 2  # cores, though more workers were asked for
    assert "its workers fail before they begin" in told["dies"]
    assert "run another copy of mindrlhf_msprobe" in told["unlike"]
    assert "ModuleNotFoundError" in told["missing"]
    for refusal in ("unlike", "missing"):
        assert "Install mindrlhf_msprobe" in told[refusal]
        assert "Install" not in told["dies"]


def test_a_ray_of_its_own(small, tmp_path):
    """Its workers run this copy of the package; one that dies is not told of on stdout."""
    if find_spec("ray") is None:
        pytest.skip("needs ray")
    for name in ("mindrlhf_msprobe", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the wrong module')\n")
    counts, died = json.loads(run_script(tmp_path, OWN_RAY_PROGRAM, [*small, tmp_path]))
    assert died
    assert counts == json.loads(json.dumps(compare_runs(*small, workers=1).verdict.counts))


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_never_goes_back(large, small, workers):
    """The count of records that are done grows, and ends at their number."""
    for runs in (large, small):
        calls = []
        result = compare_runs(*runs, workers=workers, progress=lambda *n, c=calls: c.append(n))
        done = [n for n, _ in calls]
        assert done == sorted(done)
        assert all(n <= total for n, total in calls)
        assert calls[-1] == (len(result.findings), len(result.findings))


def test_a_process_that_has_imported_mindspore(large, tmp_path):
    """Workers are no copies of a process in which a framework runs threads."""
    if find_spec("mindspore") is None:  # not imported here: it does not bear ray in one process
        pytest.skip("needs MindSpore")
    told, written = run_program(tmp_path, large, prelude="import mindspore")
    assert told["workers"] > 0
    assert written == verdict(large, tmp_path / "alone", workers=1)


@pytest.mark.parametrize("prelude", ["", A_THREAD], ids=["forked", "fresh"])
def test_modules_of_the_same_name_in_the_working_directory(large, tmp_path, prelude):
    """A numpy.py or pickle.py beside the runs is nobody's business.

    Nor do workers run the caller's script again, which has no main guard.
    """
    for name in ("numpy", "pickle", "yaml", "mindrlhf_msprobe", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    told, written = run_program(tmp_path, large, prelude=prelude)
    assert told["workers"] > 0
    assert written == verdict(large, tmp_path / "alone", workers=1)


def test_relative_paths(large, tmp_path, monkeypatch):
    """Runs, repetitions and files of rules may be given relative to the working directory."""
    for name, run in zip("ab", large):
        (tmp_path / name).symlink_to(run)
    monkeypatch.chdir(tmp_path)
    result = compare_runs("a", "b", workers=2, output_path="out")
    assert repr(result.findings) == repr(compare_runs(*large, workers=1).findings)
    assert (tmp_path / "out/verdict.json").is_file()


KILL_ONE = "len(calls) == 1 and [os.kill(p, signal.SIGKILL) for p in children(os.getpid())[:1]]"
KILL_ALL = "[os.kill(p, signal.SIGKILL) for p in children(os.getpid())]"


@pytest.mark.parametrize("prelude", ["", A_THREAD], ids=["forked", "fresh"])
@pytest.mark.parametrize("kill", [KILL_ONE, KILL_ALL], ids=["one", "all"])
def test_workers_that_are_killed(large, tmp_path, prelude, kill):
    """Nothing hangs and no row is lost: what was being compared is compared again, or says why."""
    expected = compare_runs(*large, workers=1)
    told, written = run_program(tmp_path, large, prelude=prelude, on_progress=kill)
    assert told["workers"] > 0
    counts = json.loads(written)["counts"]
    assert sum(counts.values()) == len(expected.findings)
    if kill is KILL_ONE:
        assert counts == expected.verdict.counts
    assert told["calls"][-1] == [len(expected.findings)] * 2


@pytest.mark.parametrize("prelude", ["", A_THREAD], ids=["forked", "fresh"])
def test_workers_that_are_killed_where_sigchld_is_ignored(large, tmp_path, prelude):
    """How they ended is not known then; that they did is enough."""
    prelude = f"signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{prelude}"
    told, written = run_program(tmp_path, large, prelude=prelude, on_progress=KILL_ONE)
    assert told["workers"] > 1
    assert written == verdict(large, tmp_path / "alone", workers=1)


def test_a_worker_that_is_stopped(large, tmp_path):
    """It is given up after a while, and another one does its work."""
    prelude = (
        "import mindrlhf_msprobe.comparison.engine.local_workers as workers\n"
        "workers._STOPPED_SECONDS, workers._LOOK_SECONDS = 0.5, 0.1"
    )
    stop = KILL_ONE.replace("SIGKILL", "SIGSTOP")
    told, written = run_program(tmp_path, large, prelude=prelude, on_progress=stop)
    assert told["workers"] > 2
    assert written == verdict(large, tmp_path / "alone", workers=1)


def test_no_more_workers_than_there_is_work(large, small, monkeypatch):
    """However many are asked for: one for each task, and a few for each core."""
    started = []
    start = local.Worker
    monkeypatch.setattr(local, "Worker", lambda *a: started.append(a) or start(*a))
    compare_runs(*small, workers=100_000)
    assert 1 <= len(started) <= 4  # steps of ranks
    started.clear()
    compare_runs(*large, workers=100_000)
    assert 1 <= len(started) <= 9  # pairs
    monkeypatch.setattr(local, "available_cores", lambda: 1)
    started.clear()
    compare_runs(*large, workers=100_000)
    assert len(started) <= 4


class Deadly:
    """Workers that die of every task, in turn of one thing and another."""

    capacity, ready = 2, True

    def __init__(self, *reasons):
        self.reasons = deque(reasons)
        self.tasks = deque()

    def expect(self, tasks):
        self.expected = tasks

    def submit(self, task):
        self.tasks.append(task)

    def next_result(self):
        self.reasons.rotate(-1)
        return self.tasks.popleft(), executor.Failure(self.reasons[-1])

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("reasons", "note"),
    [
        (["it died", "it died"], "in two tries: each time it died"),
        (["it died", "it burnt"], "in two tries: first it died, then it burnt"),
    ],
)
def test_what_two_workers_died_of(reasons, note):
    """The note says that there were two, and what became of them."""
    engine = Deadly(*reasons)
    (place,) = executor.run(Job(()), [StepPlace(0, 0)], lambda: engine, at_once=True)
    (finding,) = place.findings
    assert finding.status is Status.UNREADABLE
    assert finding.note == f"it could not be compared, {note}"
    assert engine.expected == 1
    assert engine.closed


class DiesOfSeveral(executor.ThisProcess):
    """A worker that dies of every task of several steps, and does those of one."""

    died = 0

    def next_result(self):
        task, result = super().next_result()
        if len(task.steps) == 1:
            return task, result
        self.died += 1
        return task, executor.Failure("it died")


def test_steps_of_a_task_that_died_are_compared_alone(tmp_path, monkeypatch):
    """A step that kills its worker takes none of those along that were handed over with it."""
    monkeypatch.setattr("mindrlhf_msprobe.comparison.compare.FOLD_ABOVE", 0)
    fault = Fault("rewards", step=20)
    runs = [record_training(tmp_path / "a", steps=24, tokens=1)]
    runs += [record_training(tmp_path / "b", steps=24, tokens=1, faults=[fault])]
    expected = verdict(runs, tmp_path / "whole", workers=1)
    started = []

    def engine(_, job, *others):
        return lambda: started.append(DiesOfSeveral(job)) or started[0]

    monkeypatch.setattr("mindrlhf_msprobe.comparison.compare._engine", engine)
    assert verdict(runs, tmp_path / "alone", workers=2) == expected
    assert started[0].died > 1


@pytest.mark.parametrize("prelude", ["", A_THREAD], ids=["forked", "fresh"])
def test_workers_killed_again_and_again(large, tmp_path, prelude):
    """Even if none lives for more than a moment, the comparison ends, and says what is missing."""
    killer = """
def slay():
    until = time.monotonic() + 3
    while time.monotonic() < until:
        for pid in children(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
            seen.add(pid)
        time.sleep(0.02)
"""
    # A thread forces fresh processes; a forked one must do it for the forking.
    start = "threading.Thread(target=slay, daemon=True).start()"
    given = {"prelude": killer, "on_progress": f"len(calls) == 1 and {start}"}
    if prelude:
        given = {"prelude": f"{killer}\nseen = set()\n{start}"}
    told, written = run_program(tmp_path, large, **given)
    counts = json.loads(written)["counts"]
    assert sum(counts.values()) == len(compare_runs(*large, workers=1).findings)
    assert told["status"] == "diverged"


@pytest.mark.parametrize(
    "executable", ["/nonexistent", "/bin/false"], ids=["not there", "ends at once"]
)
def test_workers_that_cannot_be_started(large, tmp_path, executable):
    """This process then does all the work itself."""
    prelude = f"{A_THREAD}\nsys.executable = {executable!r}"
    _, written = run_program(tmp_path, large, prelude=prelude)
    assert written == verdict(large, tmp_path / "alone", workers=1)


#: Shortens a file while a process that a program started has it open; the process notices nothing.
SHRINK = """
def shrink(path):
    while True:
        for pid in children(os.getpid()):
            with open(f"/proc/{pid}/maps") as maps:
                if path not in maps.read():
                    continue
            os.kill(pid, signal.SIGSTOP)
            os.truncate(path, 1 << 20)
            os.kill(pid, signal.SIGCONT)
            return
        time.sleep(0.001)
"""


def test_a_file_that_shrinks_while_it_is_compared(tmp_path):
    """The worker that read it dies of SIGBUS; its record is unreadable, the others are judged."""
    runs = [sparse(tmp_path / name, cells=4, elements=1 << 26) for name in "ab"]
    path = str(next(runs[1].rglob("sparse3.npy")))
    shrink = f"len(calls) == 1 and threading.Thread(target=shrink, args=({path!r},)).start()"
    prelude = f"{A_THREAD}\n{SHRINK}"
    _, written = run_program(tmp_path, runs, prelude=prelude, on_progress=shrink)
    content = json.loads(written)
    assert content["counts"]["unreadable"] == 1
    assert content["first_divergence"]["record"] == "Cell.cell3.Dense.forward.0.output.0"
    assert sum(content["counts"].values()) == 8


def reads(pid):
    """Tell whether a process has a tensor of a sparse run open."""
    with suppress(OSError):
        return "/sparse" in Path(f"/proc/{pid}/maps").read_text()
    return False


@pytest.fixture
def running(tmp_path):
    """Return a function that starts a long comparison on the command line and waits for workers."""
    runs = [sparse(tmp_path / name, cells=8) for name in "ab"]
    started = []

    def start():
        command = [sys.executable, "-m", "mindrlhf_msprobe", "compare", *map(str, runs)]
        process = subprocess.Popen(
            [*command, "-o", str(tmp_path / "out"), "--workers", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        workers = wait_for(lambda: len(found := children_of(process.pid)) == 2 and found)
        assert workers
        assert wait_for(lambda: all(map(reads, workers)))
        assert process.poll() is None, process.communicate()
        return process, workers

    yield start
    for process in started:
        process.kill()
        process.communicate()


def contents(root):
    return {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("whole_group", [False, True])
def test_ctrl_c(running, small, tmp_path, whole_group):
    """It ends with 130; no worker stays behind, and an earlier result is as it was."""
    compare_runs(*small, output_path=tmp_path / "out")
    before = contents(tmp_path / "out")
    process, workers = running()
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "interrupted" in errors
    assert wait_for(lambda: not alive(workers))
    assert contents(tmp_path / "out") == before
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b", "out"}


def test_no_worker_outlives_a_comparison_that_is_killed(running):
    """SIGKILL leaves the comparison no time to end its workers; they end themselves."""
    process, workers = running()
    process.kill()
    process.communicate()
    assert wait_for(lambda: not alive(workers))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers is 0; expected a whole number, 1 or larger"),
        ({"workers": -1}, "workers is -1; expected a whole number, 1 or larger"),
        ({"workers": "x"}, "workers is 'x'; expected a whole number"),
        ({"workers": 2.0}, "workers is 2.0; expected a whole number"),
        ({"workers": True}, "workers is True; expected a whole number"),
        ({"engine": "rya"}, "Did you mean 'ray'"),
        ({"engine": None}, "expected local or ray"),
    ],
)
def test_choices_that_are_none(small, settings, message):
    """The error says what was given and what was expected."""
    with pytest.raises(UsageError, match=message):
        compare_runs(*small, **settings)


def test_one_record_that_fails_costs_no_other(tmp_path):
    """A pair that cannot be compared is unreadable; the rest of its step is judged."""
    runs = [record(tmp_path / name, [np.ones(3, np.float32)] * 4) for name in "ab"]
    for run in runs:
        (journal,) = run.rglob("records.jsonl")
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        lines[1]["output"][0].update(max={"no": "number"}, Max=[1])
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [f.status for f in compare_runs(*runs).findings if f.io == "output"]
    assert found.count(Status.IDENTICAL) == 3
