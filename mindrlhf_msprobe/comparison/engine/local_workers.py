"""Local workers: processes of this machine; one that dies takes only its task along.

A process is forked where that is safe, else started afresh. A fork costs milliseconds, where a
fresh process must import everything again; but it is unsafe in a process with threads, such as one
that runs MindSpore.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.processes import (
    available_cores,
    forked,
    may_fork,
    receive,
    send,
    start_fresh,
)
from mindrlhf_msprobe.comparison.engine.executor import Engine, Failure, Result, Task, perform
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job

if TYPE_CHECKING:
    import subprocess

#: The exit code of a process for which somebody else has waited; no process ends with it.
UNKNOWN_CODE = 256
_KILLED_SECONDS = 10.0  # within which a process that was killed ends
_ENDED_BY = {"SIGKILL": message("note.sigkill"), "SIGBUS": message("note.sigbus")}


class Worker:
    """A worker: its process, and what it does.

    Attributes:
        tasks: the pipe it takes tasks from.
        results: the pipe it puts results into, unbuffered.
        pid: its number.
        ready: whether it has answered.
        task: what it does now, or None.

    Args:
        pipes_of_others: this process's ends of the other workers' pipes, which a fork must not
            keep open.

    Raises:
        OSError: there can be no more processes.
    """

    ready = False
    task: Task | None = None

    def __init__(self, job: Job, pipes_of_others: Iterable[int]) -> None:
        task_read, task_write = os.pipe()
        result_read, result_write = os.pipe()
        self.tasks: Any = os.fdopen(task_write, "wb")
        self.results: Any = os.fdopen(result_read, "rb", buffering=0)
        self._stopped, self._looked = 0.0, time.monotonic()
        self._code: int | None = None
        self._fresh: subprocess.Popen[bytes] | None = None
        own = task_read, result_write
        try:
            if may_fork():
                others = [*pipes_of_others, task_write, result_read]
                self.pid = forked(partial(_serve, lambda _: job, *own), others)
            else:
                self._fresh = start_fresh(__name__, own)
                self.pid = self._fresh.pid
        except BaseException:
            self.close()
            raise
        finally:
            os.close(task_read)
            os.close(result_write)
        if self._fresh is not None:
            with contextlib.suppress(OSError):  # it is dead, which reading from it will show
                send(self.tasks, job)

    def _wait(self, patience: float) -> int | None:
        """Wait at most so many seconds for its end; return its exit code, None if it runs on.

        The code is UNKNOWN_CODE in a process that ignores SIGCHLD, as it may have been told to
        before its program began: the kernel then forgets at once how its children ended.
        """
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
        if self._fresh is not None:
            self._fresh.returncode = self._code
        return self._code

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
        code = self._wait(patience)
        if code is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended this moment
                os.kill(self.pid, signal.SIGKILL)
            code = self._wait(_KILLED_SECONDS)
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


_MOST_START_FAILURES = 3
_MOST_FOR_A_CORE = 4  # workers, beyond which nothing is gained even on a slow disk
_STOPPED_SECONDS = 30.0  # after which a worker that was stopped is given up
_LOOK_SECONDS = 1.0  # between two looks whether one was


class LocalWorkers(Engine):
    """Does tasks in processes of this machine, which are started as there is work for them.

    Args:
        count: how many at most; never more than a few for each core.
    """

    def __init__(self, job: Job, count: int) -> None:
        self.capacity = min(count, _MOST_FOR_A_CORE * available_cores())
        self._job = job
        self._selector = selectors.DefaultSelector()
        self._workers: list[Worker] = []
        self._lost: deque[tuple[Task, Failure]] = deque()
        self._here: deque[Task] = deque()  # when no worker can be started
        self._start_failures = 0

    def expect(self, tasks: int) -> None:
        """Start workers until there is one for each of so many tasks."""
        wanted = min(tasks, self.capacity)
        while len(self._workers) < wanted and self._start_failures < _MOST_START_FAILURES:
            self._start()

    @property
    def ready(self) -> bool:
        """Whether any worker has answered, or none can be started."""
        while not any(worker.ready for worker in self._workers):
            answers = self._selector.select(timeout=0) if self._workers else []
            if not answers:
                break
            for key, _ in answers:
                self._take(key.data)
        return not self._workers or any(worker.ready for worker in self._workers)

    def submit(self, task: Task) -> None:
        """Begin a task on a worker that has none."""
        free = [worker for worker in self._workers if worker.task is None]
        worker = next((worker for worker in free if worker.ready), free[0] if free else None)
        if worker is None:
            self._here.append(task)
            return
        try:
            worker.begin(task)
        except OSError:  # it is dead
            self._bury(worker)

    def next_result(self) -> tuple[Task, Result | Failure]:
        """Wait for any task that was begun and return what became of it."""
        while True:
            if self._lost:
                return self._lost.popleft()
            if self._here:
                task = self._here.popleft()
                return task, perform(self._job, task)
            answers = self._selector.select(_LOOK_SECONDS)
            for key, _ in answers:
                done = self._take(key.data)
                if done is not None:
                    return done
            for worker in () if answers else tuple(self._workers):
                # One that was stopped and that nobody lets go on is given up.
                stopped = 0.0 if worker.task is None else worker.stopped_for(_LOOK_SECONDS)
                if stopped >= _STOPPED_SECONDS:
                    self._bury(worker, message("note.worker_stopped"))

    def close(self) -> None:
        """End all workers at once."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._selector.close()

    def _take(self, worker: Worker) -> tuple[Task, Result | Failure] | None:
        try:
            message = receive(worker.results)
        except (EOFError, OSError):
            self._bury(worker)
            return None
        if not worker.ready:  # its first message only says that it runs
            worker.ready = True
            return None
        task, worker.task = worker.task, None
        assert task is not None
        return task, message

    def _start(self) -> None:
        pipes = [pipe.fileno() for w in self._workers for pipe in (w.tasks, w.results)]
        try:
            worker = Worker(self._job, pipes)
        except OSError:  # no more processes, or no more memory for them
            self._start_failures += 1
            return
        self._workers.append(worker)
        self._selector.register(worker.results, selectors.EVENT_READ, worker)

    def _bury(self, worker: Worker, why: Message | None = None) -> None:
        """Remove a worker that died, or is given up, and start another one in its place."""
        self._workers.remove(worker)
        self._selector.unregister(worker.results)
        reason = worker.end(patience=0.0 if why else 1.0)
        reason = why or reason
        if worker.task is not None and worker.ready:
            self._lost.append((worker.task, Failure(message("note.worker", what=reason))))
        elif worker.task is not None:  # it never began
            self._here.append(worker.task)
        self._start_failures = 0 if worker.ready else self._start_failures + 1
        if self._start_failures < _MOST_START_FAILURES:
            self._start()


def _serve(job_from: Callable[[BinaryIO], Any], tasks_end: int, results_end: int) -> None:
    """Do tasks until there are no more, and end the process, which never outlives the comparison.

    Args:
        job_from: returns the job, given the pipe of the tasks.
        tasks_end, results_end: this process's ends of the pipes.
    """
    with os.fdopen(tasks_end, "rb") as tasks, os.fdopen(results_end, "wb") as results:
        try:
            job = job_from(tasks)
            send(results, "ready")
            while True:
                send(results, perform(job, receive(tasks)))
        except (EOFError, BrokenPipeError):
            os._exit(0)


if __name__ == "__main__":  # IN OUT DIRECTORY: reads the job, then tasks, from a pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the comparison itself ends its workers
    os.chdir(sys.argv[3])
    _serve(receive, int(sys.argv[1]), int(sys.argv[2]))
