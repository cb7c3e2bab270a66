"""Follows a run: `python -m mindrlhf_msprobe.live.follower IN OUT DIRECTORY`.

Reads a task and then the numbers of steps from the pipe IN and writes reports to the pipe OUT. It
runs at the lowest priority, beside the training and not in it: a thread would take turns with it
for the interpreter. What looks at the steps are observers: checks, metrics, scalars, a comparison.
When IN ends without a word, the training was killed: the steps that wait by
then are looked at, and it ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

from mindrlhf_msprobe.checks.check import Checking
from mindrlhf_msprobe.checks.loading import all_rules, settings_of
from mindrlhf_msprobe.checks.views import Step
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.processes import framed, take_messages
from mindrlhf_msprobe.findings import Cause
from mindrlhf_msprobe.findings.health import CheckFinding
from mindrlhf_msprobe.live.process import (
    NO_MORE,
    Behind,
    Diverged,
    Ended,
    Fault,
    Found,
    Looked,
    Ready,
    Report,
    Task,
    Uncompared,
)
from mindrlhf_msprobe.phases import ROLLOUT_CORR, ROLLOUT_LOG_PROB
from mindrlhf_msprobe.sequences.step_data import Settings, Unavailable
from mindrlhf_msprobe.storage.arrays.atomic import write_all
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.following import FollowedRun
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.step_lines import StepLines, finding_lines
from mindrlhf_msprobe.trends.rollout_correction import rollout_gaps


class Observer:
    """Looks at the steps of a run, each once, as they end.

    Attributes:
        name: what it is called where it fails.
    """

    name: str

    def __init__(self, task: Task, run: FollowedRun) -> None:
        """Begin to look at a run, as a task says."""

    def step(self, number: int) -> Report | None:
        """Look at a step."""
        raise NotImplementedError

    def end(self) -> Report | None:
        """Take note that there is no further step."""
        return None


class Compared(Observer):
    """The steps beside those of another run, up to the first divergence."""

    name = "compare_to"

    def __init__(self, task: Task, run: FollowedRun) -> None:
        from mindrlhf_msprobe.comparison.following import StepByStep

        assert task.compare_to is not None
        self._steps = StepByStep(open_run(task.compare_to), run, task.rank)
        self._ended = self._said = False

    def step(self, number: int) -> Diverged | Uncompared | None:
        """Compare a step; nothing is compared behind the first divergence."""
        if self._ended:
            return None
        if not self._steps.has(number):
            self._ended = True
            return self._without_it(number)
        found = self._steps.compare(number)
        if found is None:
            if self._said or not self._steps.had_nothing_in_common:
                return None
            self._said = True  # later steps are looked at
            return Uncompared("live.nothing_in_common", {"step": number})
        self._ended = True
        if self._steps.is_gone:  # what it has lost since says nothing of the training
            return self._without_it(number)
        if self._steps.unread is not None and found.cause is Cause.UNREADABLE:
            why = self._steps.unread
            return Uncompared("live.compared_run_is_damaged", {"step": number, "why": why})
        said = message("live.cause", cause=found.cause.value, reasons=[*found.reasons])
        return Diverged(number, found.phase, found.record, found.cell, said)

    def _without_it(self, number: int) -> Uncompared:
        """Say that the other run does not have a step: it ended before, or was removed."""
        if self._steps.is_gone:
            return Uncompared("live.compared_run_is_gone", {"step": number})
        last = -1 if self._steps.last_step is None else self._steps.last_step
        known = {"step": number, "last": last, "running": self._steps.is_running}
        return Uncompared("live.not_compared", known)


class Checks(Observer):
    """The rules that can run live, over the steps of one rank; writes findings.rank<N>.jsonl."""

    name = "checks"

    def __init__(self, task: Task, run: FollowedRun) -> None:
        self._run, self._root, self._rank = run, task.root, task.rank
        rules, _ = all_rules()
        settings = None if task.rules is None else settings_of(task.rules, rules)
        self._checking = Checking(run, [rule for rule in rules if rule.live], settings)
        self._file: StepLines[dict[str, Any]] | None = None
        self._reported: set[Any] = set()

    def step(self, number: int) -> Found | None:
        """Give a step to the rules."""
        if self._file is None:
            self._file = finding_lines(self._root, self._rank)
            self._file.forget(number)  # an earlier attempt's: these steps are recorded again
        return self._report(self._checking.feed(Step(self._run, number, (self._rank,))))

    def end(self) -> Found | None:
        """Take what rules find only when there is no further step."""
        return self._report(self._checking.finish().all_findings)

    def _report(self, findings: list[CheckFinding]) -> Found | None:
        new = [one for one in findings if _identity(one) not in self._reported]
        if not new or self._file is None:
            return None
        self._reported.update(map(_identity, new))
        first = {_identity(one) for one in self._checking.findings()}
        found = [(one, _identity(one) not in first) for one in new]
        self._file.append(_line(one, follows, self._rank) for one, follows in found)
        return Found(tuple(found))


def _identity(finding: CheckFinding) -> Any:
    return finding.rule, finding.said.code, finding.place.phase, finding.place.name


def _line(finding: CheckFinding, follows: bool, rank: int) -> dict[str, Any]:
    content = finding.to_json()
    head = {"step": finding.place.step, "rank": rank, "rule": finding.rule}
    said = {"params": {}, **finding.said.as_json()}
    kept = ("place", "evidence", "causes_codes", "next_step", "stack")
    return {
        **head,
        "severity": finding.severity.value,
        **said,
        "follows": follows,
        **{name: content[name] for name in kept},
    }


class Metrics(Observer):
    """How far rollout and training are apart in each step, as key data of the run."""

    name = ROLLOUT_CORR

    def __init__(self, task: Task, run: FollowedRun) -> None:
        self._run, self._root, self._rank = run, task.root, task.rank
        self._settings = cache(partial(Settings.read, run))

    def step(self, number: int) -> None:
        """Write the metrics of a step that has the log-probabilities of both.

        What a trainer saves under this key stays; a step whose key data are gone gets none.
        """
        step = Step(self._run, number, (self._rank,), settings=self._settings)
        keys = step.keys(self._rank)
        if ROLLOUT_CORR in keys or not {*keys}.intersection(ROLLOUT_LOG_PROB):
            return
        try:
            gaps = rollout_gaps(step.sequences(self._rank))
        except Unavailable:  # `trend` says why
            return
        from mindrlhf_msprobe.report.trends import metric_files
        from mindrlhf_msprobe.storage.outputs import replaced

        for rows, gap, _ in () if self._run.is_thinned_by_now(number) else gaps:
            at = number, self._rank, rows.datum.micro_step
            files = metric_files(self._root, at, gap.metrics)
            with replaced(*(file.path for file in files)) as parts:
                for file, part in zip(files, parts):
                    file.write(part)


class Scalars(Observer):
    """What `trend --tensorboard` writes, as the steps end."""

    name = "tensorboard"

    def __init__(self, task: Task, run: FollowedRun) -> None:
        from mindrlhf_msprobe.report.trends import EventFiles
        from mindrlhf_msprobe.trends.reading import Choice, Reading

        assert task.tensorboard is not None
        self._series, self._rank = Reading(run, Choice()), task.rank
        self._files = EventFiles(task.tensorboard)

    def step(self, number: int) -> None:
        """Write the points of a step."""
        self._series.read(StepPlace(number, self._rank))
        self._write(self._series.take(number))

    def end(self) -> None:
        """Write the last points."""
        self._write(self._series.take(None))
        self._files.close()

    def _write(self, series: list[Any]) -> None:
        from mindrlhf_msprobe.report.trends import scalars_of

        for one in series:
            for scalar in scalars_of(one):
                self._files.scalar(*scalar)
        self._files.flush()


#: Steps that may wait to be looked at; of more the newest is.
MOST_WAITING = 16
_LOOK_SECONDS = 2.0  # between two looks whether the training is still there
_MOST_READ = 1 << 16


class _Steps:
    """The messages of the training."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._buffer, self._parent = pipe, bytearray(), os.getppid()
        self.kept: list[Any] = []  # what came with the task
        self._waiting = select.poll()
        self._waiting.register(pipe, select.POLLIN)
        self.ended = False

    def wait(self) -> list[Any]:
        """Return what has come, at least one message; nothing where there will be none."""
        found, self.kept = self.kept, []
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
    kinds: dict[type[Observer], bool] = {  # first what the training may wait for
        Compared: task.compare_to is not None,
        Checks: task.checks,
        Metrics: True,
        Scalars: task.tensorboard is not None,
    }
    for kind in (kind for kind, is_needed in kinds.items() if is_needed):
        try:
            observers.append(kind(task, run))
        except Exception as error:
            report(_fault(kind.name, error))
    report(Ready())
    # Not as SCHED_IDLE: threads of the training that wake up are put on its processor then, and a
    # step of 60 ms took 1.10 times as long in three series, with the priority alone 1.00 to 1.03.
    with suppress(OSError):
        os.nice(19)
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

    task, *steps.kept = steps.wait() or [None]
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
