"""Follows a run: `python -m mindrlhf_msprobe.live.follower IN OUT DIRECTORY`.

Reads a task and then the numbers of steps from the pipe IN and writes reports to the pipe OUT. It
runs at the lowest priority, beside the training and not in it: a thread would take turns with it
for the interpreter. When IN ends without a word, the training was killed: the steps that wait by
then are looked at, and it ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mindrlhf_msprobe.common.processes import framed, take_messages
from mindrlhf_msprobe.live.observers import Observer, kinds_of
from mindrlhf_msprobe.live.reports import (
    NO_MORE,
    Behind,
    Ended,
    Fault,
    Looked,
    Ready,
    Report,
    Task,
)
from mindrlhf_msprobe.storage.arrays.atomic import write_all
from mindrlhf_msprobe.storage.reading.following import FollowedRun

#: Steps that may wait to be looked at; of more the newest is.
MOST_WAITING = 16
_LOOK_SECONDS = 2.0  # between two looks whether the training is still there
_MOST_READ = 1 << 16


class _Steps:
    """The messages of the training."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._buffer, self._parent = pipe, bytearray(), os.getppid()
        self._kept: list[Any] = []
        self._waiting = select.poll()
        self._waiting.register(pipe, select.POLLIN)
        self.ended = False

    def first(self) -> Any:
        """Return the first message; None where there is none."""
        first, *self._kept = self.wait() or [None]
        return first

    def wait(self) -> list[Any]:
        """Return what has come, at least one message; nothing where there will be none."""
        found, self._kept = self._kept, []
        while not self.ended:
            if not self._waiting.poll(0 if found else _LOOK_SECONDS * 1000):
                # A process that the training forked may hold the pipe open.
                self.ended = os.getppid() != self._parent
                if found:
                    break
                continue
            data = os.read(self._pipe, _MOST_READ)
            self.ended = not data
            self._buffer += data
            found += take_messages(self._buffer)
        return found


def follow(steps: _Steps, task: Task, report: Callable[[Report], None]) -> None:
    """Look at steps until there are no more."""
    run = FollowedRun(task.root, task.rank)
    observers: list[Observer] = []
    for kind in kinds_of(task):
        try:
            observers.append(kind(task, run))
        except Exception as error:
            report(_fault(kind.name, error))
    report(Ready())
    _give_way()
    while not steps.ended:
        received = steps.wait()
        steps.ended = steps.ended or NO_MORE in received
        waiting = [step for step in received if step is not NO_MORE]
        if len(waiting) > MOST_WAITING:
            report(Behind(tuple(waiting[:-1])))
            del waiting[:-1]
        for step in waiting:
            if run.take(step):
                observers = _looked(observers, step, report)
            report(Behind((step,)) if run.is_thinned_by_now(step) else Looked(step))
    _looked(observers, None, report)
    report(Ended())


def _give_way() -> None:
    """Run at the lowest priority.

    Not as SCHED_IDLE: threads of the training that wake up are put on its processor then, and a
    step of 60 ms took 1.10 times as long in three series, with the priority alone 1.00 to 1.03.
    """
    with suppress(OSError):
        os.nice(19)


def _looked(
    observers: list[Observer], step: int | None, report: Callable[[Report], None]
) -> list[Observer]:
    """Let observers look at a step, or end; return those that go on."""
    going_on = []
    for one in observers:
        try:
            found = one.end() if step is None else one.step(step)
        except Exception as error:  # one that fails costs no other
            report(_fault(one.name, error))
            continue
        going_on.append(one)
        if found is not None:
            report(found)
    return going_on


def _fault(name: str, error: Exception) -> Fault:
    return Fault(name, type(error).__name__, str(error)[:300])


def main(inbox: int, outbox: int) -> None:
    """Follow what the pipe says, and report."""
    steps = _Steps(inbox)

    def report(said: Report) -> None:
        with suppress(BrokenPipeError):  # nobody is there any more
            write_all(outbox, framed(said))

    task = steps.first()
    if task is None:
        return
    try:
        follow(steps, task, report)
    except Exception as error:
        report(_fault("", error))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training's
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.chdir(sys.argv[3])
    main(int(sys.argv[1]), int(sys.argv[2]))
