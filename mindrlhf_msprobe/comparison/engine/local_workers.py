"""Local workers: processes of this machine; one that dies takes only its task along."""

from __future__ import annotations

import selectors
from collections import deque

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.processes import available_cores, receive
from mindrlhf_msprobe.comparison.engine import worker_start as processes
from mindrlhf_msprobe.comparison.engine.executor import (
    Engine,
    Failure,
    Result,
    Task,
    perform,
)
from mindrlhf_msprobe.comparison.engine.worker_start import Worker
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job

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
            worker = processes.start(self._job, pipes)
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
