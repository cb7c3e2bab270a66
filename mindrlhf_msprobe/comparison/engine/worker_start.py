"""The process of a local worker, forked where that is safe, else started afresh.

A fork costs milliseconds, where a fresh process must import everything again; but it is unsafe in
a process with threads, such as one that runs MindSpore. multiprocessing is not used: its spawn
would run a caller's script again if that has no `__main__` guard.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import mindrlhf_msprobe
from mindrlhf_msprobe.common.processes import forked, may_fork
from mindrlhf_msprobe.comparison.engine.worker_process import send, work
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job

_PACKAGE_PARENT = Path(str(mindrlhf_msprobe.__file__)).resolve().parents[1]
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: The exit code of a process for which somebody else has waited; no process ends with it.
UNKNOWN_CODE = 256


class Process(Protocol):
    """A worker's process.

    Attributes:
        tasks: the pipe it takes tasks from.
        results: the pipe it puts results into, unbuffered.
        pid: its number.
    """

    tasks: Any
    results: Any
    pid: int

    def wait(self, patience: float) -> int | None:
        """Wait at most so many seconds for its end; return its exit code, None if it runs on.

        The code is UNKNOWN_CODE in a process that ignores SIGCHLD, as it may have been told to
        before its program began: the kernel then forgets at once how its children ended.
        """

    def kill(self) -> None:
        """Send it SIGKILL."""


def start(job: Job, pipes_of_others: Iterable[int]) -> Process:
    """Start a worker.

    Args:
        pipes_of_others: this process's ends of the other workers' pipes, which a fork must not
            keep open.

    Raises:
        OSError: there can be no more processes.
    """
    if may_fork():
        return _Forked(job, pipes_of_others)
    return _Fresh(job)


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped (SIGSTOP), where the system says so."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[:1] == [b"T"]


class _Pipes:
    """Both pipes of a worker, with this process's ends as files."""

    def __init__(self) -> None:
        task_read, task_write = os.pipe()
        result_read, result_write = os.pipe()
        self.theirs = task_read, result_write
        self.tasks: Any = os.fdopen(task_write, "wb")
        self.results: Any = os.fdopen(result_read, "rb", buffering=0)

    def close_theirs(self) -> None:
        for end in self.theirs:
            os.close(end)

    def close(self) -> None:
        for pipe in (self.tasks, self.results):
            with contextlib.suppress(OSError):
                pipe.close()


class _Fresh:
    """An interpreter of its own."""

    def __init__(self, job: Job) -> None:
        import subprocess  # slow to import, and a fork does without

        pipes = _Pipes()
        module = "mindrlhf_msprobe.comparison.engine.worker_process"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, pipes.theirs), os.getcwd()],
                cwd=_PACKAGE_PARENT,  # so that it is this package that is imported
                env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
                pass_fds=pipes.theirs,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the comparison alone, which ends them
            )
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.close_theirs()
        self.tasks, self.results = pipes.tasks, pipes.results
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # it is dead, which reading from it will tell
            send(self.tasks, job)

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


class _Forked:
    """A copy of this process."""

    def __init__(self, job: Job, pipes_of_others: Iterable[int]) -> None:
        pipes = _Pipes()
        others = [*pipes_of_others, pipes.tasks.fileno(), pipes.results.fileno()]
        try:
            self.pid = forked(partial(_serve, job, pipes.theirs), others)
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.close_theirs()
        self.tasks, self.results = pipes.tasks, pipes.results
        self._code: int | None = None

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


def _serve(job: Job, pipes: tuple[int, int]) -> None:
    with os.fdopen(pipes[0], "rb") as tasks, os.fdopen(pipes[1], "wb") as results:
        work(job, tasks, results)
