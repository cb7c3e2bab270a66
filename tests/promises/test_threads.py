"""Several threads that record at once: everything is in one step, once, or counted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.capture.recording import saves as saves_module
from mindrlhf_msprobe.storage.journal_line import JournalLine

PATIENCE = 60


def begin(path: Path, **settings: Any) -> Probe:
    return Probe.from_config(
        {"msprobe": True, "key_data_dump": True, "dump_path": str(path), **settings}
    )


def together(*functions: Any) -> None:
    """Run functions in threads of their own and raise what they raise."""
    raised: list[BaseException] = []

    def guarded(function: Any) -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    if raised:
        raise raised[0]


@pytest.mark.parametrize("stepping", [1, 2])
def test_saves_of_many_threads_are_all_readable_once(tmp_path: Path, stepping: int) -> None:
    """8 threads save while others end steps; what step() left readable is so after close() too."""
    probe = begin(tmp_path / "run")
    saving, saves = 8, 60
    left, done = [saving], threading.Lock()
    ended: dict[int, int] = {}

    def save(thread: int) -> None:
        for number in range(saves):
            probe.save_data("loss", np.array([thread, number]))
            probe.save_data({f"own {thread}": float(number)})
        with done:
            left[0] -= 1

    def steps() -> None:
        saves_come = True
        while saves_come:  # once also where all saves were made before this thread began
            saves_come = left[0] > 0
            probe.step()
            if stepping == 1:
                step = probe.current_step - 1
                ended[step] = len(open_run(tmp_path / "run").key_data(step=step))

    savers = [lambda thread=thread: save(thread) for thread in range(saving)]
    together(*savers, *[steps] * stepping)
    probe.close()
    run = open_run(tmp_path / "run")
    assert run.problems == []
    assert run.lost == []
    loss = Counter(tuple(datum.value.tolist()) for datum in run.key_data("loss"))
    assert loss == Counter((t, n) for t in range(saving) for n in range(saves))
    for thread in range(saving):
        own = sorted(float(datum.value) for datum in run.key_data(f"own {thread}"))
        assert own == list(range(saves))
    for key in run.keys:
        for step in run.steps:
            numbers = [datum.micro_step for datum in run.key_data(key, step=step)]
            assert numbers == list(range(len(numbers)))
    for step, count in ended.items():
        assert len(run.key_data(step=step)) == count, f"step {step} changed after step() returned"
    attempt = run.manifests[0]["attempts"][-1]
    assert attempt["last_completed_step"] == probe.current_step - 1


def test_a_save_that_began_before_step_is_in_it_and_one_that_begins_after_is_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """step() waits for the slow save; a save that begins meanwhile does not wait for anything."""
    probe = begin(tmp_path / "run")
    real = saves_module.describe_key_data
    begun, go_on = threading.Event(), threading.Event()

    def slow(key: str, value: Any, **options: Any) -> Any:
        if key == "slow":
            begun.set()
            assert go_on.wait(PATIENCE)
        return real(key, value, **options)

    monkeypatch.setattr(saves_module, "describe_key_data", slow)
    slow_save = threading.Thread(target=probe.save_data, args=("slow", 1.0), daemon=True)
    slow_save.start()
    assert begun.wait(PATIENCE)
    step = threading.Thread(target=probe.step, daemon=True)
    step.start()
    while probe.current_step == 0:
        pass
    probe.save_data(quick=2.0)
    assert step.is_alive()
    go_on.set()
    step.join(PATIENCE)
    assert not step.is_alive()
    run = open_run(tmp_path / "run")
    assert run.completed(0)
    assert [datum.step for datum in run.key_data("slow")] == [0]
    probe.close()
    assert [datum.step for datum in open_run(tmp_path / "run").key_data("quick")] == [1]


def test_a_late_entry_is_counted_and_destroys_nothing(tmp_path: Path) -> None:
    """What a thread hands over for a step that has ended is refused; the step stays whole."""
    from helpers.runs import Recording

    from mindrlhf_msprobe.storage.writing.writer import StepEndedError

    recording = Recording(tmp_path / "run", task="tensor")
    with recording.phase("actor_update"):
        recording.call("a", "Dense", lambda x: x + 1, np.ones(4))
    recording.data("loss", 1.0)
    recording.end_step()
    writer = recording.writer
    line = JournalLine("Cell.b.Dense.forward.0", 9, 10, values={"input_args": [], "output": []})
    with pytest.raises(StepEndedError):
        writer.sink("actor_update", 0).append(line)
    with pytest.raises(StepEndedError):
        writer.sink("actor_update", 0).save("late", np.ones(3), None)
    with pytest.raises(StepEndedError):
        writer.save_key_data("loss", 0, 1, lambda: {"data": None}, {})
    recording.close()
    run = open_run(tmp_path / "run")
    assert [entry.cell for entry in run.entries()] == ["a"]
    assert [float(datum.value) for datum in run.key_data("loss")] == [1.0]
    assert run.problems == []


def test_a_step_ends_in_one_thread_or_a_phase_begins_in_another(tmp_path: Path) -> None:
    """A step does not end inside a phase; whatever ran in one is recorded in the step it began."""
    import mindspore as ms
    from mindspore import nn

    from mindrlhf_msprobe import UsageError

    network = nn.Dense(2, 2)
    probe = begin(tmp_path / "run", actor_train_dump=True, step_end=10**6)
    probe.watch(actor=network)
    x = ms.Tensor(np.ones((1, 2), np.float32))
    phases, running = 60, [True]

    def trains() -> None:
        for _ in range(phases):
            with probe.phase("actor_update"):
                network(x)
        running.clear()

    def steps() -> None:
        while running:
            try:
                probe.step()
            except UsageError:
                continue

    together(trains, steps)
    probe.close()
    run = open_run(tmp_path / "run")
    assert run.lost == run.problems == []
    calls = Counter((entry.step, entry.name) for entry in run.entries())
    assert set(calls.values()) == {1}
    assert len(calls) == phases


def test_configurations_of_many_threads_are_all_kept(tmp_path: Path) -> None:
    """No call's names are lost to another one that began earlier and ended later."""
    probe = begin(tmp_path / "run", configurations_dump=True)

    def save(thread: int) -> None:
        for number in range(40):
            probe.save_configs({f"{thread}.{number}": {"value": number}})

    together(*[lambda thread=thread: save(thread) for thread in range(8)])
    probe.close()
    saved = json.loads((tmp_path / "run/configurations.json").read_bytes())
    assert saved == {f"{t}.{n}": {"value": n} for t in range(8) for n in range(40)}


def test_saves_while_the_run_is_closed_are_written_or_refused(tmp_path: Path) -> None:
    """Whatever save_data() did not raise about is readable."""
    from mindrlhf_msprobe import UsageError

    probe = begin(tmp_path / "run")
    accepted: list[tuple[int, int]] = []
    started = threading.Barrier(9)

    def save(thread: int) -> None:
        started.wait(PATIENCE)
        for number in range(1000):
            try:
                probe.save_data("loss", np.array([thread, number]))
            except UsageError:
                return
            accepted.append((thread, number))

    def close() -> None:
        started.wait(PATIENCE)
        while len(accepted) < 100:
            pass
        probe.close()

    together(close, *[lambda thread=thread: save(thread) for thread in range(8)])
    run = open_run(tmp_path / "run")
    found = sorted(tuple(datum.value.tolist()) for datum in run.key_data("loss"))
    assert found == sorted(accepted)
    assert run.finished
