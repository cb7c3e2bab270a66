"""What is found while training: reported once, in time, and never at the training's expense."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import types

import numpy as np
import pytest
from helpers.programs import read_json, run_python
from helpers.runs import Fault, Recording, a_nan, record_training

from mindrlhf_msprobe import ConfigError, Probe, check_run, compare_runs, open_run
from mindrlhf_msprobe.live import follower, training
from mindrlhf_msprobe.live.follower import Checks, Scalars
from mindrlhf_msprobe.live.process import NO_MORE, Behind, Follower, Looked, Task
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.following import FollowedRun
from mindrlhf_msprobe.storage.step_lines import finding_lines

pytestmark = pytest.mark.slow

RULE = "non_finite.first"


@pytest.fixture
def probe_of(tmp_path, steps_wait):
    """Return what makes a probe whose steps end when they were looked at."""
    probes = []

    def make(**settings):
        on = {"msprobe": True, "dump_path": str(tmp_path / "run"), "key_data_dump": True}
        probes.append(Probe.from_config({**on, **settings}))
        return probes[-1]

    yield make
    for probe in probes:
        probe.close()


def steps(probe, count, nan_at=()):
    """Train for a few steps; the loss of some is NaN."""
    for _ in range(count):
        step = probe.current_step
        probe.save_data(loss=np.float32(np.nan if step in nan_at else 1.0 + step / 100))
        probe.step()


def test_a_finding_with_infinity_in_it_is_written_down(probe_of, tmp_path):
    probe = probe_of(on_finding="warn")
    ratio = np.array([[np.inf, 1.0, 1.0]], np.float32)
    for _ in range(2):
        probe.save_data(old_log_prob=np.zeros_like(ratio), ratio=ratio)
        probe.step()
    probe.close()
    found = [*finding_lines(tmp_path / "run", 0).read()]
    assert [one["rule"] for one in found] == ["non_finite.first"]
    assert "inf" in str(found).lower()
    assert read_json(tmp_path / "run/run.json")["lost"] == {}


def test_warn_logs_a_line_a_finding_and_writes_it_down(probe_of, tmp_path, caplog):
    """The training goes on; a check afterwards says the same."""
    probe = probe_of(on_finding="warn")
    with caplog.at_level(logging.WARNING, "mindrlhf_msprobe"):
        steps(probe, 5, nan_at=(2, 3))
    probe.close()
    (line,) = [r.getMessage() for r in caplog.records if RULE in r.getMessage()]
    assert "step 2" in line
    assert "loss" in line
    (found,) = finding_lines(tmp_path / "run", 0).read()
    (afterwards,) = check_run(tmp_path / "run").findings
    assert (found["rule"], found["step"], found["rank"]) == (RULE, 2, 0)
    assert found["code"] == afterwards.said.code
    assert found["params"] == dict(afterwards.said.params)
    assert (found["severity"], found["follows"]) == ("error", False)
    assert found["place"] == afterwards.place.to_json()
    assert open_run(tmp_path / "run").finished


def test_stop_ends_the_training_when_all_is_on_disk(probe_of, tmp_path):
    """SystemExit(1) from step(); the run is closed, and the step that was ended is whole."""
    probe = probe_of(on_finding="stop")
    steps(probe, 2)
    with pytest.raises(SystemExit) as end:
        steps(probe, 5, nan_at=(2,))
    assert end.value.code == 1
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    assert all(run.completed(step, 0) for step in run.steps)
    assert (run.state, run.stops[0].error) == ("failed", "SystemExit")
    assert not list((tmp_path / "run").glob(".*"))


def test_a_note_stops_nothing(probe_of):
    """Notes do not change the exit code of a check either."""
    probe = probe_of(on_finding="stop")
    for _ in range(3):
        probe.save_data(prompts=["a", "a"], responses=["b", "c"])
        probe.step()


def test_a_rule_file_switches_rules_off(probe_of, tmp_path):
    """A wrong one is refused while nothing is written."""
    (tmp_path / "rules.yaml").write_text("non_finite.first: off\n")
    probe = probe_of(on_finding="stop", rules=str(tmp_path / "rules.yaml"))
    steps(probe, 4, nan_at=(1,))
    probe.close()
    assert not list(finding_lines(tmp_path / "run", 0).read())
    (tmp_path / "rules.yaml").write_text("non_finite.frist: off\n")
    with pytest.raises(ConfigError, match=r"non_finite\.first"):
        probe_of(on_finding="stop", rules=str(tmp_path / "rules.yaml"), dump_path="elsewhere")


def log_probs(step, apart):
    """Return what the rollout and the training network give the tokens of a step."""
    old = -np.random.default_rng(step).gamma(1, 0.7, (4, 8)).astype(np.float32)
    return {"rollout_log_prob": old + np.float32(apart), "old_log_prob": old}


def test_a_gap_between_rollout_and_training_is_found_in_key_data_alone(probe_of, tmp_path):
    """At the threshold of the rule file, in the step that it begins in."""
    (tmp_path / "rules.yaml").write_text("rl.rollout_gap: {probability: 0.05}\n")
    probe = probe_of(on_finding="stop", rules=str(tmp_path / "rules.yaml"))
    for step in range(2):
        probe.save_data(**log_probs(step, 0.02))
        probe.step()
    probe.save_data(**log_probs(2, 0.5))
    with pytest.raises(SystemExit):
        probe.step()
    (found,) = finding_lines(tmp_path / "run", 0).read()
    assert (found["rule"], found["step"], found["severity"]) == ("rl.rollout_gap", 2, "warning")
    assert found["params"]["mean"] == pytest.approx(0.5)
    assert open_run(tmp_path / "run").steps == [0, 1, 2]


def test_an_old_run_is_resumed_beyond_what_stopped_it(probe_of, tmp_path):
    """What was found before stays; a resumed run is stopped by what it meets itself."""
    with pytest.raises(SystemExit):
        steps(probe_of(on_finding="stop"), 5, nan_at=(1,))
    steps(probe_of(on_finding="stop", existing="resume"), 3)
    assert [one["step"] for one in finding_lines(tmp_path / "run", 0).read()] == [1]


def test_findings_of_steps_that_are_recorded_again_go(probe_of, tmp_path):
    """Also where nothing looks at them this time."""
    probe = probe_of(on_finding="warn")
    steps(probe, 5, nan_at=(1, 3))
    probe.close()
    (line,) = finding_lines(tmp_path / "run", 0).read()
    finding_lines(tmp_path / "run", 0).append([{**line, "step": 3}])
    again = probe_of(existing="resume", initial_step=2)
    steps(again, 3)
    again.close()
    assert [one["step"] for one in finding_lines(tmp_path / "run", 0).read()] == [1]


@pytest.fixture
def called(monkeypatch):
    """Return what a function of a user's was called with; it raises what is put there."""
    module = types.ModuleType("my_alarms")
    module.findings, module.raises = [], None

    def seen(findings):
        module.findings.append(findings)
        if module.raises is not None:
            raise module.raises

    module.seen = seen
    monkeypatch.setitem(sys.modules, "my_alarms", module)
    return module


def test_a_function_is_called_with_the_findings(probe_of, called):
    """Once, by the thread that ended the step."""
    steps(probe_of(on_finding="my_alarms:seen"), 4, nan_at=(1, 2))
    ((finding,),) = called.findings
    assert (finding.rule, finding.place.step, finding.severity.value) == (RULE, 1, "error")
    assert "NaN" in finding.text


def test_what_the_function_raises_is_counted(probe_of, called, tmp_path):
    """An error of its own stops no training; SystemExit is meant."""
    called.raises = ValueError("mine")
    probe = probe_of(on_finding="my_alarms:seen")
    steps(probe, 4, nan_at=(1,))
    probe.close()
    lost = read_json(tmp_path / "run/run.json")["lost"]
    assert lost == {"the function of on_finding: ValueError": 1}
    called.raises = SystemExit(7)
    with pytest.raises(SystemExit) as end:
        steps(probe_of(on_finding="my_alarms:seen", existing="overwrite"), 4, nan_at=(1,))
    assert end.value.code == 7


@pytest.mark.parametrize("named", ["my_alarms:other", "no_such_module_at_all:f", "sys:path"])
def test_a_function_that_is_not_there_is_refused_at_the_start(probe_of, called, named, tmp_path):
    """Nothing has been written by then."""
    with pytest.raises(ConfigError, match=named):
        probe_of(on_finding=named)
    assert not (tmp_path / "run").exists()


def test_nothing_that_a_run_names_is_imported(tmp_path):
    """run.json of somebody else says on_finding; reading, checking and comparing import nothing."""
    (tmp_path / "planted.py").write_text("open('imported', 'w')")
    settings = {"msprobe": True, "key_data_dump": True, "dump_path": "run"}
    program = f"""
import json, shutil, sys
from mindrlhf_msprobe import Probe, check_run, compare_runs
sys.path.insert(0, "")
with Probe.from_config({settings}) as probe:
    for _ in range(2):
        probe.save_data(loss=1.0)
        probe.step()
content = json.load(open("run/run.json"))
content["config"] |= {{"on_finding": "planted:f", "tensorboard": "events"}}
json.dump(content, open("run/run.json", "w"))
check_run("run")
shutil.copytree("run", "run2")
compare_runs("run", "run2")
"""
    result = run_python(program, tmp_path)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "events").exists()


def test_without_it_nothing_is_imported_or_started(tmp_path):
    """Off means off."""
    settings = {"msprobe": True, "key_data_dump": True, "dump_path": "run"}
    program = f"""
import sys
from mindrlhf_msprobe import Probe
with Probe.from_config({settings}) as probe:
    probe.save_data(loss=1.0)
    probe.step()
rooms = ("mindrlhf_msprobe.live", "mindrlhf_msprobe.checks")
print([name for name in sys.modules if name.startswith(rooms)])
"""
    result = run_python(program, tmp_path)
    assert result.stdout.split("\n")[0] == "[]", result.stdout + result.stderr


def test_a_process_that_dies_costs_no_training(probe_of, tmp_path, caplog):
    """It is said and counted once; what it did not look at is coverage."""
    probe = probe_of(on_finding="stop")
    steps(probe, 1)
    os.kill(probe._live._process._process.pid, signal.SIGKILL)
    with caplog.at_level(logging.WARNING, "mindrlhf_msprobe"):
        steps(probe, 4, nan_at=(2,))
    probe.close()
    content = read_json(tmp_path / "run/run.json")
    assert list(content["lost"].values()) == [1]
    said = [r.args[0] for r in caplog.records if "the checks while training" in r.getMessage()]
    assert len(said) == 2
    assert "退出码 -9" in text_of(said[0], "zh")
    assert open_run(tmp_path / "run").steps == [0, 1, 2, 3, 4]
    why = content["coverage"]["live"]["steps"]
    assert why["params"] == {"count": 4, "first": 1, "last": 4}


def test_many_open_files_cost_nothing(probe_of, tmp_path):
    """A training may have more than 1024 of them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        probe = probe_of(on_finding="warn")
        steps(probe, 3, nan_at=(1,))
        probe.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert read_json(tmp_path / "run/run.json")["lost"] == {}
    assert [one["step"] for one in finding_lines(tmp_path / "run", 0).read()] == [1]


def test_one_that_has_died_sends_no_signal(tmp_path):
    """A training may have left SIGPIPE to the system, which would end it."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        one = Follower(Task(tmp_path, 0, True, None))
        one._process.kill()
        one._process.wait()
        assert one.announce(0)
        assert signal.sigtimedwait({signal.SIGPIPE}, 0) is None
        one.abandon()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        signal.signal(signal.SIGPIPE, before)


def test_one_that_does_not_go_on_keeps_no_training_at_its_end(tmp_path):
    """More steps wait than its pipe takes, and it is stopped."""
    one = Follower(Task(tmp_path, 0, True, None))
    os.kill(one._process.pid, signal.SIGSTOP)
    while one.announce(0):
        pass
    ending = threading.Thread(target=one.end, args=(0.1,), daemon=True)
    ending.start()
    ending.join(10)
    stuck = ending.is_alive()
    if stuck:
        one._process.kill()
    assert not stuck


def test_a_rank_that_cannot_meet_the_others_does_not_end_alone(probe_of, tmp_path, monkeypatch):
    """They would wait for it in a collective."""
    monkeypatch.setattr(training, "world_of", lambda: {"size": 2})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.live").write_text("no directory")
    probe = probe_of(on_finding="stop")
    steps(probe, 4, nan_at=(1,))
    probe.close()
    assert [one["step"] for one in finding_lines(tmp_path / "run", 0).read()] == [1]
    assert open_run(tmp_path / "run").steps == [0, 1, 2, 3]


def test_strict_raises_what_the_observer_met(probe_of):
    """As every fault of recording does."""
    probe = probe_of(on_finding="warn", strict=True)
    steps(probe, 1)
    os.kill(probe._live._process._process.pid, signal.SIGKILL)
    with pytest.raises(Exception, match="exit code -9"):
        steps(probe, 2)


def follow(root, told, **task):
    """Let steps be looked at as the process does; return what it reports."""
    messages = iter([*told, [NO_MORE]])
    source = types.SimpleNamespace(ended=False, wait=lambda: next(messages))
    reports = []
    follower.follow(source, Task(root, 0, **{"checks": True, "tensorboard": None, **task}),
                    reports.append)  # fmt: skip
    return reports


def test_who_is_behind_looks_at_the_newest_step_and_says_so(tmp_path, monkeypatch):
    """The steps between are named."""
    monkeypatch.setattr(follower.os, "nice", lambda _: None)  # of the tests themselves
    root = record_training(tmp_path / "run", steps=3)
    many = [*range(follower.MOST_WAITING + 1)]
    reports = follow(root, [many, [1, 2]])
    assert [one.steps for one in reports if isinstance(one, Behind)] == [tuple(many[:-1])]
    assert [one.step for one in reports if isinstance(one, Looked)] == [many[-1], 1, 2]


def test_a_step_that_was_thinned_before_is_not_one_that_was_looked_at(tmp_path, monkeypatch):
    """With `keep_mb`, who is behind finds nothing of it."""
    monkeypatch.setattr(follower.os, "nice", lambda _: None)  # of the tests themselves
    recording = Recording(tmp_path / "run", keep_mb=1, step_end=99)
    for step in range(14):
        with recording.phase("actor_update"):
            for cell in range(2):
                recording.call(f"c{cell}", "Dense", lambda x: x, np.full(9, step, np.float32))
        recording.data("responses", [os.urandom(60_000).hex()])
        recording.end_step()
    run = open_run(recording.close())
    gone = [
        s
        for s in range(14)
        if any(run.is_thinned(k, StepPlace(s, 0)) for k in ("layers", "key_data"))
    ]
    assert 0 < len(gone) < 14
    reports = follow(run.path, [[step] for step in range(14)])
    assert [one.steps[0] for one in reports if isinstance(one, Behind)] == gone
    assert [one.step for one in reports if isinstance(one, Looked)] == [
        step for step in range(14) if step not in gone
    ]


def test_a_storm_is_one_story(probe_of, caplog):
    """What follows from a finding is counted behind it, not logged line by line."""
    probe = probe_of(on_finding="warn")
    with caplog.at_level(logging.INFO, "mindrlhf_msprobe"):
        for step in range(30):
            bad = step >= 10
            values = {f"key{n}": np.float32(np.nan if bad else 1) for n in range(40)}
            values |= {"loss": np.float32(1e9 if step > 20 else 1), "kl": np.float32(-1)}
            probe.save_data(values)
            probe.step()
    lines = [r for r in caplog.records if "[" in r.getMessage() and "step" in r.getMessage()]
    assert 1 <= len(lines) <= 10


@pytest.mark.parametrize("seed", range(4))
def test_live_finds_what_a_check_finds_afterwards(tmp_path, seed):
    """Step by step, seeing three steps at most: the same findings of the rules that are live."""
    random = np.random.default_rng(seed)
    cell = str(random.choice(("embed", "layers.0.mlp", "head")))
    phase = str(random.choice(("actor_compute_log_prob", "actor_update")))
    fault = Fault(cell, phase, step=int(random.integers(4)), change=a_nan)
    root = record_training(tmp_path / "run", steps=5, faults=[fault] if seed else [])
    run = FollowedRun(root, 0)
    checks = Checks(Task(root, 0, True, None), run)
    found = []
    for step in range(5):
        assert run.take(step)
        new = checks.step(step)
        found += [one for one, _ in new.findings] if new else []
    new = checks.end()
    found += [one for one, _ in new.findings] if new else []
    live = {rule.name for rule in training_rules() if rule.live}
    wanted = [one for one in check_run(root).all_findings if one.rule in live]
    assert sorted(map(told, found)) == sorted(map(told, wanted))
    assert bool(found) or not seed


def training_rules():
    from mindrlhf_msprobe.checks.loading import own_rules

    return own_rules()


def told(finding):
    return finding.rule, finding.said.code, finding.place.step, finding.place.name


def test_no_live_rule_needs_another_rank():
    """A rank sees its own steps alone."""
    for rule in training_rules():
        assert not (rule.live and any(need.kind in ("ranks", "healthy") for need in rule.needs))


def test_scalars_are_those_of_trend_and_there_after_each_step(tmp_path):
    """TensorBoard reads them while the training runs."""
    pytest.importorskip("mindspore")  # before the protobuf of others, which it may not bear
    pytest.importorskip("tensorboardX")
    root = record_training(tmp_path / "run", steps=4)
    run = FollowedRun(root, 0)
    scalars = Scalars(Task(root, 0, False, tmp_path / "events"), run)
    seen = []
    for step in range(4):
        run.take(step)
        scalars.step(step)
        seen.append({at for _, at, _ in events(tmp_path / "events")})
    assert seen == [{*range(step + 1)} for step in range(4)]
    scalars.end()
    from mindrlhf_msprobe.cli import main

    assert main(["trend", str(root), "--tensorboard", str(tmp_path / "after")]) == 0
    assert sorted(events(tmp_path / "events")) == sorted(events(tmp_path / "after"))


@pytest.mark.parametrize(
    "live",
    [{"on_finding": "warn"}, {"tensorboard": "events"}, {}],
    ids=["warn", "tensorboard", "off"],
)
def test_the_gap_is_key_data_of_the_run_while_it_is_recorded(probe_of, tmp_path, live):
    """After each step, without a command: as files, for `trend` and `show`; off means off."""
    if "tensorboard" in live:
        pytest.importorskip("tensorboardX")
        live = {"tensorboard": str(tmp_path / "events")}
    probe = probe_of(**live)
    for step in range(3):
        probe.save_data(**log_probs(step, step / 8))
        probe.step()
        run = open_run(tmp_path / "run")
        found = [data.value["kl"] for data in run.key_data("rollout_corr")]
        if not live:
            assert not found
            continue
        assert len(found) == step + 1
        assert found[step] == pytest.approx(step / 8, abs=1e-6)
    probe.close()
    run = open_run(tmp_path / "run")
    assert not run.lost
    derived = {series.name: series.values.tolist() for series in run.trend(derived="rollout_corr")}
    saved = {
        series.name: series.values.tolist()
        for series in (run.trend(key="rollout_corr") if live else ())
    }
    for name, values in derived.items() if live else ():
        key = "rollout_corr." + name.removeprefix("rollout_corr/").replace("/", ".")
        assert saved[key] == values
    assert {one.rule for one in check_run(tmp_path / "run").findings} == {"rl.rollout_gap"}


def test_a_gap_that_the_trainer_saves_itself_stays(probe_of, tmp_path):
    """Its key is its own."""
    probe = probe_of(on_finding="warn")
    probe.save_data(**log_probs(0, 0.0), rollout_corr=np.float32(7))
    probe.step()
    probe.close()
    (data,) = open_run(tmp_path / "run").key_data("rollout_corr")
    assert data.value == 7


def events(root):
    """Return (tag, step, value) of all event files below a directory."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in root.rglob("events.out*"):
        content = path.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            found += [(one.tag, event.step, one.simple_value) for one in event.summary.value]
    return found


def test_two_runs_that_differ_in_it_compare_alike(tmp_path):
    """What looks at a run is no setting of the training."""
    for name, settings in (("a", {}), ("b", {"on_finding": "warn"})):
        with Probe.from_config(
            {"msprobe": True, "dump_path": str(tmp_path / name), "key_data_dump": True, **settings}
        ) as probe:
            steps(probe, 2)
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert result
    assert "on_finding" not in str(result.to_json())
