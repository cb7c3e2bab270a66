"""The process of a local worker, forked where that is safe, else started afresh.

A fork costs milliseconds, where a fresh process must import everything again; but it is unsafe in
a process with threads, such as one that runs MindSpore.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.processes import forked, may_fork, send, start_fresh
from mindrlhf_msprobe.comparison.engine.worker_process import serve
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.engine.executor import Task

#: The exit code of a process for which somebody else has waited; no process ends with it.
UNKNOWN_CODE = 256
_KILLED_SECONDS = 10.0  # within which a process that was killed ends
_ENDED_BY = {"SIGKILL": message("note.sigkill"), "SIGBUS": message("note.sigbus")}


class Worker(ABC):
    """A worker: its process, and what it does.

    Attributes:
        tasks: the pipe it takes tasks from.
        results: the pipe it puts results into, unbuffered.
        pid: its number.
        ready: whether it has answered.
        task: what it does now, or None.
    """

    ready = False
    task: Task | None = None

    def __init__(self, job: Job, pipes_of_others: Iterable[int]) -> None:
        task_read, task_write = os.pipe()
        result_read, result_write = os.pipe()
        self.tasks: Any = os.fdopen(task_write, "wb")
        self.results: Any = os.fdopen(result_read, "rb", buffering=0)
        self._stopped, self._looked = 0.0, time.monotonic()
        others = [*pipes_of_others, task_write, result_read]
        try:
            self.pid = self._start(job, (task_read, result_write), others)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(task_read)
            os.close(result_write)

    @abstractmethod
    def _start(self, job: Job, pipes: tuple[int, int], others: list[int]) -> int:
        """Start it with its ends of both pipes, and without others; return its number."""

    @abstractmethod
    def wait(self, patience: float) -> int | None:
        """Wait at most so many seconds for its end; return its exit code, None if it runs on.

        The code is UNKNOWN_CODE in a process that ignores SIGCHLD, as it may have been told to
        before its program began: the kernel then forgets at once how its children ended.
        """

    @abstractmethod
    def kill(self) -> None:
        """Send it SIGKILL."""

    def begin(self, task: Task) -> None:
        """Hand it a task."""
        self.task = task
        send(self.tasks, task)

    def stopped_for(self, between_looks: float) -> float:
        """Return for how many seconds it has been seen stopped (SIGSTOP), at every look.

        The time between two looks counts no more than twice what it should have been, so that
        nothing is amiss if this process was stopped as well.
        """
        since, self._looked = self._looked, time.monotonic()
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:  # the system does not say so
            stat = b""
        is_stopped = stat.rpartition(b")")[2].split()[:1] == [b"T"]
        passed = min(self._looked - since, 2 * between_looks)
        self._stopped = self._stopped + passed if is_stopped else 0.0
        return self._stopped

    def end(self, patience: float = 0.0) -> Message:
        """End it, if it still runs after `patience` seconds, and say how it had ended."""
        code = self.wait(patience)
        if code is None:
            self.kill()
            code = self.wait(_KILLED_SECONDS)
        self.close()
        if code is None:  # it hangs in the kernel, waiting for a dead disk
            return message("note.no_answer")
        if code == UNKNOWN_CODE:
            return message("note.ended_unknown")
        if code < 0:
            known = {number.value: number.name for number in signal.Signals}
            name = known.get(-code, f"signal {-code}")
            return message("note.worker_killed", by=_ENDED_BY.get(name, name))
        return message("note.ended", code=code)

    def close(self) -> None:
        """Close this process's ends of the pipes; what was not yet written is for nobody."""
        for pipe in (self.tasks, self.results):
            with contextlib.suppress(OSError):
                pipe.close()


def start(job: Job, pipes_of_others: Iterable[int]) -> Worker:
    """Start a worker.

    Args:
        pipes_of_others: this process's ends of the other workers' pipes, which a fork must not
            keep open.

    Raises:
        OSError: there can be no more processes.
    """
    return (_Forked if may_fork() else _Fresh)(job, pipes_of_others)


class _Fresh(Worker):
    """An interpreter of its own."""

    def __init__(self, job: Job, pipes_of_others: Iterable[int]) -> None:
        super().__init__(job, pipes_of_others)
        with contextlib.suppress(OSError):  # it is dead, which reading from it will show
            send(self.tasks, job)

    def _start(self, job: Job, pipes: tuple[int, int], others: list[int]) -> int:
        self._process = start_fresh("mindrlhf_msprobe.comparison.engine.worker_process", pipes)
        return self._process.pid

    def wait(self, patience: float) -> int | None:
        import subprocess

        try:
            code = self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            return None
        # Popen reports 0 if it could not find out.
        ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        return UNKNOWN_CODE if code == 0 and ignored else code

    def kill(self) -> None:
        self._process.kill()


class _Forked(Worker):
    """A copy of this process."""

    _code: int | None = None

    def _start(self, job: Job, pipes: tuple[int, int], others: list[int]) -> int:
        return forked(partial(serve, lambda _: job, *pipes), others)

    def wait(self, patience: float) -> int | None:
        until = time.monotonic() + patience
        while self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._code = UNKNOWN_CODE
                break
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(0.002)
        return self._code

    def kill(self) -> None:
        if self.wait(0) is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended this moment
                os.kill(self.pid, signal.SIGKILL)
