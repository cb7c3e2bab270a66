"""When the phases of a step ran, and for how long, stands in timeline.rank<N>.jsonl."""

import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import run_python
from helpers.small_networks import Assembled, Scale, tensor

from mindrlhf_msprobe import Probe, UsageError, open_run
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.step_lines import MOST_LISTED, StepClock, StepTimes


class Time:
    """A clock that is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def times(run: Run, step: int, rank: int = 0) -> StepTimes:
    found = run.timeline(step, rank)
    assert found is not None
    return found


def opened(run: Run, step: int, rank: int = 0) -> list[tuple[str, int, bool]]:
    return [(one.phase, one.opening, one.recorded) for one in times(run, step, rank).phases]


def train(probe: Probe, steps: int = 1) -> None:
    actor = Scale()
    probe.watch(actor=actor, reference=None, critic=None)
    for _ in range(steps):
        for phase in ("actor_compute_log_prob", "actor_update", "actor_update"):
            with probe.phase(phase):
                actor(tensor(3))
        probe.save_data(loss=1.0)
        probe.step()


def test_each_opening_of_a_phase_and_each_save_has_its_time(layer_probe, tmp_path):
    """In the order of time, inside the step; an opening has the number of its entries."""
    probe = layer_probe(key_data_dump=True, step_end=0)
    train(probe, steps=2)
    run = open_run(tmp_path / "run")  # while it is being recorded
    for step in (0, 1):
        found = times(run, step)
        inside = step == 0
        assert opened(run, step) == [
            ("actor_compute_log_prob", 0, inside),
            ("actor_update", 0, inside),
            ("actor_update", 1, inside),
        ]
        ends = [0.0]
        for one in found.phases:
            assert one.began >= ends[-1] - 1e-5
            assert one.recording is not None
            assert 0 <= one.recording <= one.seconds
            ends.append(one.began + one.seconds)
        (save,) = found.key_data
        assert (save.key, save.micro_step) == ("loss", 0)
        assert ends[-1] - 1e-5 <= save.at <= found.seconds
    openings = {entry.opening for entry in run.entries("actor_update", step=0)}
    assert openings == {one.opening for one in times(run, 0).phases if one.phase == "actor_update"}
    assert times(run, 0).ended + times(run, 1).seconds == pytest.approx(times(run, 1).ended, abs=1)
    probe.close()
    assert run.timed_steps() == open_run(tmp_path / "run").timed_steps() == [0, 1]


def test_phases_that_are_off_or_open_together_are_listed(make_probe, tmp_path):
    """What is off is not recorded; what is open together has one time; saves without micro-step."""
    probe = make_probe(actor_train_dump=True, key_data_dump=True)
    actor, critic = Scale(), Scale()
    probe.watch(actor=actor, critic=critic)
    with probe.phase(["actor_update", "critic_update"]):
        actor(tensor(3))
    with pytest.raises(LookupError), probe.phase("actor_update"):
        raise LookupError
    with pytest.raises(UsageError), probe.phase("actor_update"), probe.phase("critic_update"):
        pass
    probe.save_data_at(None, {"loss": 1.0})
    probe.save_data_at(7, {"loss": 1.0})
    probe.step()
    run = open_run(tmp_path / "run")
    assert opened(run, 0) == [
        ("actor_update", 0, True),
        ("critic_update", 0, False),
        ("actor_update", 1, True),
        ("actor_update", 2, True),
    ]
    both = times(run, 0).phases[:2]
    assert both[0].seconds == both[1].seconds
    assert [save.micro_step for save in times(run, 0).key_data] == [None, 7]


def test_a_step_that_is_not_ended_has_none(layer_probe, tmp_path):
    """A phase that is open when the run is closed, and what came before it in its step."""
    probe = layer_probe()
    train(probe)
    with probe.phase("actor_update"):
        probe.close()
    assert open_run(tmp_path / "run").timed_steps() == [0]


def test_what_a_graph_runs_has_its_time(run_phase):
    """The phase waits for it."""

    class Jitted(Assembled, inner=Scale):
        @ms.jit
        def construct(self, x: ms.Tensor) -> ms.Tensor:
            return self.inner(x)

    actor = Jitted()
    run = run_phase(actor, lambda: actor(tensor(3)), openings=2)
    assert opened(run, 0) == [("actor_update", 0, True), ("actor_update", 1, True)]
    assert {entry.opening for entry in run.entries("actor_update")} == {0, 1}


def test_each_rank_that_records_writes_its_own(layer_probe, tmp_path, monkeypatch):
    """A rank that is not listed writes none."""
    monkeypatch.setenv("RANK_SIZE", "3")
    for rank in (0, 1, 2):
        monkeypatch.setenv("RANK_ID", str(rank))
        probe = layer_probe(ranks=[0, 1])
        train(probe, steps=1 + rank)
        probe.close()
    run = open_run(tmp_path / "run")
    assert [run.timed_steps(rank) for rank in (0, 1, 2)] == [[0], [0, 1], []]
    assert times(run, 1, 1).rank == 1
    assert not run.problems


KILLED = """
import os, signal, sys
from mindrlhf_msprobe import Probe
probe = Probe.from_config({"msprobe": True, "key_data_dump": True, "dump_path": sys.argv[1]})
for step in range(3):
    probe.save_data(loss=1.0)
    if step == 1 and os.fork() == 0:  # the run is its parent's
        probe.step()
        os._exit(0)
    probe.step()
os.wait()
probe.save_data(loss=1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_has_every_step_and_a_further_attempt_goes_on(make_probe, tmp_path):
    """Steps that run again have the times of the last attempt; a forked child writes none."""
    assert run_python(KILLED, tmp_path, str(tmp_path / "run")).returncode < 0
    run = open_run(tmp_path / "run")
    assert run.timed_steps() == [0, 1, 2]
    assert len((tmp_path / "run/timeline.rank0.jsonl").read_bytes().splitlines()) == 3
    before = [times(run, step) for step in range(3)]
    probe = make_probe(key_data_dump=True, existing="resume")
    assert probe.current_step == 3
    probe.start_at(1)
    assert open_run(tmp_path / "run").timed_steps() == [0]
    for _ in range(3):
        probe.save_data(loss=2.0)
        probe.step()
    run = open_run(tmp_path / "run")
    assert run.timed_steps() == [0, 1, 2, 3]
    assert times(run, 0) == before[0]
    assert all(times(run, step).ended > before[-1].ended for step in (1, 2, 3))


def test_what_cannot_be_written_is_counted_and_stops_nothing(make_probe, tmp_path, caplog):
    """Said once; a link is not written through, and later steps go on."""
    probe = make_probe(key_data_dump=True)
    path, precious = tmp_path / "run/timeline.rank0.jsonl", tmp_path / "precious"
    precious.touch()
    for step in range(4):
        if step == 1:
            path.unlink()
            path.symlink_to(precious)
        if step == 3:
            path.unlink()
        probe.save_data(loss=1.0)
        probe.step()
    probe.close()
    run = open_run(tmp_path / "run")
    assert run.timed_steps() == [3]
    assert [loss.params["count"] for loss in run.losses] == ["2"]
    assert "times of a step" in caplog.text
    assert precious.read_bytes() == b""
    assert len(run.key_data("loss")) == 4


def test_a_step_of_very_many_openings_lists_the_first_ones() -> None:
    """The rest is counted, so that neither memory nor a line grows without end."""
    time = Time()
    clock = StepClock(clock=time)
    for number in range(MOST_LISTED + 3):
        began = clock.now()
        time.now += 0.5
        clock.opened({"actor_update": number}, began, None)
        clock.saved("loss", number, clock.now())
    following = clock.end()
    time.now += 2
    assert following.now() == 2
    line = clock.to_json(4, 1)
    assert len(line["phases"]) == len(line["key_data"]) == MOST_LISTED
    assert line["phases"][-1]["opening"] == MOST_LISTED - 1
    assert line["unlisted"] == {
        "phases": {"actor_update": {"openings": 3, "seconds": 1.5}},
        "key_data": 3,
    }
    assert line["seconds"] == (MOST_LISTED + 3) / 2
    following.end()
    assert following.to_json(5, 1)["seconds"] == 2
