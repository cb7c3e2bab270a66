"""Local workers: processes of their own, each started afresh.

They are neither forked (unsafe once MindSpore runs) nor spawned by multiprocessing (which would
run a caller's script again if it has no `__main__` guard). One that dies takes only its task along.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.comparison.executor import Failure, Result, Task, perform
from mindrlhf_msprobe.comparison.place import Job
from mindrlhf_msprobe.comparison.worker import receive, send

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MOST_START_FAILURES = 3


class LocalWorkers:
    """Does tasks in processes of this machine.

    Args:
        count: how many.
    """

    def __init__(self, job: Job, count: int) -> None:
        self.capacity = count
        self._job = job
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._lost: deque[tuple[Task, Failure]] = deque()
        self._here: deque[Task] = deque()  # when no worker can be started
        self._start_failures = 0
        try:
            for _ in range(count):
                self._start()
        except BaseException:
            self.close()
            raise

    def submit(self, task: Task) -> None:
        """Begin a task on a worker that has none."""
        worker = next((worker for worker in self._workers if worker.task is None), None)
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
            for key, _ in self._selector.select():
                done = self._take(key.data)
                if done is not None:
                    return done

    def close(self) -> None:
        """End all workers at once."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
        self._selector.close()

    def _take(self, worker: _Worker) -> tuple[Task, Result | Failure] | None:
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
        worker = _Worker()
        self._workers.append(worker)
        self._selector.register(worker.results, selectors.EVENT_READ, worker)
        try:
            send(worker.tasks, self._job)
        except OSError:
            self._bury(worker)

    def _bury(self, worker: _Worker) -> None:
        """Remove a worker that died and start another one in its place."""
        self._workers.remove(worker)
        self._selector.unregister(worker.results)
        reason = worker.kill(patience=1.0)
        if worker.task is not None and worker.ready:
            self._lost.append((worker.task, Failure(f"the worker that compared it {reason}")))
        elif worker.task is not None:  # it never began
            self._here.append(worker.task)
        self._start_failures = 0 if worker.ready else self._start_failures + 1
        if self._start_failures < _MOST_START_FAILURES:
            self._start()


class _Worker:
    """One worker process.

    Attributes:
        ready: whether it has answered.
        task: what it does now, or None.
    """

    def __init__(self) -> None:
        self.ready = False
        self.task: Task | None = None
        task_read, task_write = os.pipe()
        result_read, result_write = os.pipe()
        module = "mindrlhf_msprobe.comparison.worker"
        pipes = (task_read, result_write)
        command = [sys.executable, "-m", module, *map(str, pipes), os.getcwd()]
        try:
            self._process = subprocess.Popen(
                command,
                cwd=_PACKAGE_PARENT,  # so that it is this package that is imported
                env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
                pass_fds=pipes,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends them
            )
        except BaseException:
            os.close(task_write)
            os.close(result_read)
            raise
        finally:
            os.close(task_read)
            os.close(result_write)
        self.tasks: Any = os.fdopen(task_write, "wb")
        self.results: Any = os.fdopen(result_read, "rb", buffering=0)

    def begin(self, task: Task) -> None:
        """Hand it a task."""
        self.task = task
        send(self.tasks, task)

    def kill(self, patience: float = 0.0) -> str:
        """End it, if it still runs after `patience` seconds, and say how it had ended."""
        try:
            code = self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        for pipe in (self.tasks, self.results):
            with contextlib.suppress(OSError):  # what was not yet written is for nobody
                pipe.close()
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        return f"ended early (exit code {code})"
