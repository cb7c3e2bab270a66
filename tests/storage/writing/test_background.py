"""The thread that writes: in order, within its budget, and never a reason to hang."""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
import pytest

from mindrlhf_msprobe.storage.writing.background import Background, BufferPool
from mindrlhf_msprobe.storage.writing.ledger import Ledger

PATIENCE = 20  # seconds after which a test that hangs has failed


def refuse(what, error, count):
    raise error


def background(budget=100, fault=refuse):
    return Background(budget, fault, Ledger())


class Gate:
    """A job that takes until it is opened."""

    def __init__(self):
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self):
        self.reached.set()
        assert self._open.wait(PATIENCE)

    def open(self):
        self._open.set()


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def test_recording_waits_when_the_budget_is_full_and_says_so_once(caplog):
    """Beyond the budget handing over waits until there is room; one message tells it."""
    jobs, gate, done = background(budget=100), Gate(), []
    jobs.hand_over("gate", gate, 60)
    assert gate.reached.wait(PATIENCE)
    jobs.hand_over("fits", lambda: done.append("fits"), 40)
    waiting = [in_thread(jobs.hand_over, "more", lambda: done.append("more"), 60) for _ in range(2)]
    for thread in waiting:
        thread.join(0.05)
        assert thread.is_alive()
    gate.open()
    for thread in waiting:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    jobs.finish("", lambda: None)
    assert done == ["fits", "more", "more"]
    assert ["recording waits for the disk" in r.getMessage() for r in caplog.records] == [True]


def test_what_exceeds_the_whole_budget_is_taken_all_the_same():
    """One job larger than the budget does not wait for ever."""
    jobs, done = background(budget=10), []
    for number in range(3):
        jobs.hand_over("large", lambda number=number: done.append(number), 1000)
    jobs.finish("", lambda: None)
    assert done == [0, 1, 2]


def test_what_the_fault_sink_raises_is_raised_once_by_the_next_call():
    """In strict mode the fault arrives in the thread that records, and only once."""
    jobs = background()
    jobs.hand_over("first", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jobs.finish("", lambda: None)
    jobs.finish("", lambda: None)


def test_an_interrupted_wait_is_no_lost_job():
    """Ctrl-C while `finish` waits arrives at once; the job is done all the same."""
    jobs, gate, done = background(), Gate(), []

    def interrupt_then_wait():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        gate()

    # MindSpore puts a handler of its own there, which ends the process.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs.hand_over("gate", interrupt_then_wait)
    try:
        with pytest.raises(KeyboardInterrupt):
            jobs.finish("the end", lambda: done.append("end"))
    finally:
        signal.signal(signal.SIGINT, before)
    gate.open()
    jobs.finish("", lambda: None)
    assert done == ["end"]


def test_a_signal_handler_may_end_the_run_wherever_it_comes():
    """A handler that waits for everything does not hang while its thread hands something over."""
    jobs, done = background(), []

    def end(*_):
        jobs.finish("from the handler", lambda: done.append("handler"))

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with jobs._lock:  # as in the middle of handing over
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ["handler"]


def test_without_a_thread_jobs_are_done_at_once(monkeypatch):
    """Where no thread can be started, what is handed over is done by whoever hands it over."""

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    jobs, done = background(), []
    jobs.hand_over("a", lambda: done.append("a"), 1000)
    assert done == ["a"]
    jobs.finish("b", lambda: done.append("b"))
    jobs.stop()
    assert done == ["a", "b"]


def test_the_thread_ends_and_starts_again():
    """After `stop` no thread is left; a later job still gets done."""
    jobs, done = background(), []
    before = threading.active_count()
    for name in ("a", "b"):
        jobs.hand_over(name, lambda name=name: done.append(name))
        jobs.stop()
    assert done == ["a", "b"]
    assert threading.active_count() == before


def test_an_abandoned_one_does_nothing_and_does_not_wait():
    """What a forked child hands over is not done, whatever its parent's thread was doing."""
    jobs, gate, done = background(), Gate(), []
    jobs.hand_over("gate", gate)
    jobs.abandon()
    jobs.hand_over("a", lambda: done.append("a"), 1000)
    jobs.finish("b", lambda: done.append("b"))
    gate.open()
    assert done == []


# Buffers.


@pytest.mark.parametrize("shape", [(), (0,), (5,), (300, 300), (1 << 17,)], ids=str)
def test_a_copy_is_of_its_moment(shape):
    """A copy has the elements that the array had, in C order, whatever the array gets later."""
    pool = BufferPool(1 << 24)
    array = np.asfortranarray(np.random.default_rng(0).normal(size=shape))
    before = array.copy()
    copy = pool.copy(array)
    array[...] = 0
    np.testing.assert_array_equal(copy.array, before)
    assert copy.array.flags.c_contiguous
    assert copy.size >= array.nbytes


def test_buffers_are_used_again_and_dropped_when_they_are_idle():
    """A buffer that came back serves the next tensor of its size; an idle one is given up."""
    pool = BufferPool(1 << 30)
    first, second = pool.copy(np.ones(1 << 20)), pool.copy(np.ones(1 << 20))
    pool.release(first)
    pool.release(second)
    again = pool.copy(np.zeros((1 << 20) - 100))
    assert again.buffer is second.buffer
    pool.release(again)
    for _ in range(2):  # of a whole step between the two, nothing was needed
        pool.trim()
    other = pool.copy(np.ones(1 << 20)).buffer
    assert other is not first.buffer
    assert other is not second.buffer


def test_free_buffers_stay_within_the_budget():
    """Buffers of sizes that are no longer needed make room for others."""
    pool = BufferPool(3 << 20)
    for size in (1 << 20, 3 << 19, 1 << 21, 5 << 19):
        pool.release(pool.copy(np.ones(size, np.uint8)))
        assert pool._held <= 3 << 20


# The ledger.


def test_the_ledger_adds_up_by_phase_and_step():
    """Totals, means, largest and last values over all steps, and the last steps one by one."""
    ledger = Ledger()
    for step in range(40):
        with ledger.charge("actor_update"), ledger.charge("key data"):  # the inner one is free
            pass
        ledger.wrote("actor_update", 100 + step, 3)
        ledger.end_step(step)
    ledger.wrote("actor_update", 7, 1)
    found = ledger.to_json(40)
    phase = found["phases"]["actor_update"]
    assert phase["steps"] == 41
    assert phase["bytes"] == {"total": 4787, "mean": 117, "max": 139, "last": 7}
    assert phase["records"]["total"] == 121
    assert phase["seconds"]["total"] == found["seconds"] > 0
    assert "key data" not in found["phases"]
    assert list(found["last_steps"]) == [str(step) for step in range(25, 41)]
    assert found["last_steps"]["40"]["actor_update"]["bytes"] == 7
    assert ledger.to_json(40) == found


def test_a_charge_may_be_kept_and_used_by_several_threads():
    """Every thread's time is charged to the account, also where one works while another does."""
    now = [0.0]
    ledger = Ledger(clock=lambda: now[0])
    charge = ledger.charge("actor_update")
    inside, ended = threading.Event(), threading.Event()

    def spend():
        with charge:
            inside.set()
            ended.wait(PATIENCE)

    with charge:
        now[0] = 10.0
        other = in_thread(spend)
        assert inside.wait(PATIENCE)
        now[0] = 100.0
    now[0] = 105.0
    ended.set()
    other.join(PATIENCE)
    seconds = ledger.to_json(0)["phases"]["actor_update"]["seconds"]["total"]
    assert seconds == 100 + 95


def test_a_start_that_is_interrupted_leaves_one_thread(monkeypatch):
    """Ctrl-C inside the call that starts the thread does not give the jobs a second one."""
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        monkeypatch.setattr(threading.Thread, "start", start)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    jobs, threads = background(), set()
    with pytest.raises(KeyboardInterrupt):
        jobs.hand_over("first", lambda: threads.add(threading.get_ident()))
    for _ in range(50):
        jobs.hand_over("more", lambda: threads.add(threading.get_ident()))
    jobs.finish("", lambda: None)
    assert len(threads) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_writing_thread_gives_way_to_the_training():
    """It runs at a lower priority than the threads that compute; theirs stays as it is."""
    jobs, found = background(), []

    def look():
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    jobs.finish("a look", look)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    assert found[0] > before or before == 19


def test_what_joins_a_batch_is_done_with_it_and_counts_against_the_budget():
    """Items join until the job begins; then, or beyond the budget, they do not."""
    jobs, gate, done = background(budget=100), Gate(), []
    jobs.hand_over("gate", gate, 10)
    assert gate.reached.wait(PATIENCE)
    batch = jobs.hand_over_batch("items", done.append, "a", 30)
    assert jobs.join(batch, "b", 30)
    assert not jobs.join(batch, "c", 31)
    assert jobs.join(batch, "d", 30)
    gate.open()
    jobs.finish("the last", lambda: None)
    assert done == [["a", "b", "d"]]
    assert not jobs.join(batch, "e", 1)
    assert batch.items == []


def test_nobody_waits_for_more_to_gather(monkeypatch):
    """Jobs gather for a moment; who waits for one, or hands over much, ends it at once."""
    monkeypatch.setattr("mindrlhf_msprobe.storage.writing.background._GATHERING", 1000)
    monkeypatch.setattr("mindrlhf_msprobe.storage.writing.background._GATHERED", 50)
    jobs, done = background(), []
    jobs.hand_over("small", lambda: done.append("small"))
    jobs.finish("waited for", lambda: done.append("waited for"))
    assert done == ["small", "waited for"]
    large = threading.Event()
    jobs.hand_over("small", lambda: done.append("small"))
    jobs.hand_over("large", large.set, 60)
    assert large.wait(PATIENCE)
    jobs.hand_over("small", lambda: done.append("small"))
    jobs.stop()
    assert done[-1] == "small"
