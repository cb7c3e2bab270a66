"""Runs the plan of a comparison: in this process, on local workers, or on a Ray cluster.

The work is a list of steps, each of one rank. A step with large tensors comes back with pairs that
are still to be compared; they are put together into chunks of about equal size, of which every
worker takes the next. Whoever does the work, the result is the same.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.steps.step_of_rank import (
    Job,
    PairResult,
    PairWork,
    StepResult,
    compare_pair,
    compare_step,
)
from mindrlhf_msprobe.findings import Finding, Side, Status
from mindrlhf_msprobe.storage.place import StepPlace

#: Called with (records done, records known so far, or estimated) as the comparison proceeds.
Progress = Callable[[int, int], None]

_BYTES_OF_A_STEP = 1 << 20  # what reading a step takes, as so many bytes of tensors
_MOST_STEPS = 32  # that one task is of
_TURNS = 4  # of a worker that are left, at least, when it takes several steps
_WORTH_SECONDS = 0.1  # of work for one process that make it worth while to start others


@dataclass(frozen=True)
class StepTask:
    """Compare one step of one rank, or several that are small.

    Attributes:
        fold: let what agrees be counted, and hand back what does not.
    """

    steps: tuple[int, ...]
    rank: int
    fold: bool = False

    @property
    def key(self) -> tuple[int, ...]:
        """What tells the task from all others, if it is of one step."""
        return self.steps[0], self.rank


@dataclass(frozen=True)
class ChunkTask:
    """Compare some pairs, of one or of several steps."""

    works: tuple[PairWork, ...]

    @property
    def key(self) -> tuple[int, ...]:
        """What tells the task from all others, if it is of one pair."""
        return self.works[0].at


Task = StepTask | ChunkTask
Result = tuple[StepResult, ...] | tuple[PairResult, ...]


@dataclass(frozen=True)
class Failure:
    """A task whose worker died, or could not do it."""

    reason: Message | str


def perform(job: Job, task: Task) -> Result | Failure:
    """Do one task; what goes wrong in it is its result, so that nothing else is lost."""
    try:
        if isinstance(task, StepTask):
            results = []
            for step in task.steps:
                results.append(compare_step(job, StepPlace(step, task.rank), wholesale=task.fold))
                if not results[-1].waiting:
                    results[-1].finish()
                    if task.fold:
                        results[-1].fold()
            return tuple(results)
        return tuple(compare_pair(job, work) for work in task.works)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


class Engine(ABC):
    """Does tasks, several at once, in any order.

    Attributes:
        capacity: how many tasks it takes at once, at most.
    """

    capacity: int

    @property
    def ready(self) -> bool:
        """Whether it has begun to work; until then, others had better do the tasks."""
        return True

    def expect(self, tasks: int) -> None:  # noqa: B027
        """Get ready for so many tasks at once, as far as the capacity allows."""

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Begin a task."""

    @abstractmethod
    def next_result(self) -> tuple[Task, Result | Failure]:
        """Wait for any task that was begun and return what became of it."""

    def close(self) -> None:  # noqa: B027
        """End all workers; tasks that were begun are abandoned."""


class ThisProcess(Engine):
    """Does one task at a time, in this process."""

    capacity = 1

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        """Begin a task."""
        self._tasks.append(task)

    def next_result(self) -> tuple[Task, Result | Failure]:
        """Do the task that was begun first."""
        task = self._tasks.popleft()
        return task, perform(self._job, task)


def run(
    job: Job,
    rank_steps: Sequence[StepPlace],
    start_workers: Callable[[], Engine] | None,
    progress: Progress | None = None,
    *,
    at_once: bool = False,
    meanwhile: Callable[[], object] | None = None,
    folding: Folding | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[StepResult]:
    """Compare all steps and return what was found, in their order.

    Args:
        folding: decides which findings are let go of; None: none.
        start_workers: returns the engine that takes over when there is so much to do that it is
            worth while; None: this process does it all.
        at_once: start it whatever there is to do.
        meanwhile: called in a thread once the workers are busy.
    """
    schedule = _Schedule(
        rank_steps, progress, folding or Folding(None, len(rank_steps)), job.chunk_bytes
    )
    here: Engine = ThisProcess(job)
    workers: Engine | None = None
    began = clock()
    try:
        while not schedule.finished:
            left = schedule.seconds_left(clock() - began)
            if workers is None and start_workers and (at_once or left > _WORTH_SECONDS):
                workers = start_workers()
            engine = here
            if workers is not None:
                workers.expect(schedule.tasks_left)
                # What was begun is waited for where it was begun, even if no worker is left there.
                if at_once or schedule.running or workers.ready:
                    engine = workers
            schedule.fill(engine)
            if meanwhile is not None and engine is workers:
                threading.Thread(target=meanwhile, daemon=True).start()
                meanwhile = None
            schedule.done(*engine.next_result())
    finally:
        if workers is not None:
            workers.close()
    return schedule.results()


class _Schedule:
    """Which tasks are left, and what came of those that are done."""

    def __init__(
        self,
        rank_steps: Sequence[StepPlace],
        progress: Progress | None,
        folding: Folding,
        chunk_bytes: int,
    ) -> None:
        self._rank_steps = list(rank_steps)
        self._chunk_bytes = chunk_bytes
        self._folding = folding
        # Rank by rank, as columns of several steps of a rank are read together.
        in_order = sorted(rank_steps, key=lambda at: (at.rank, at.step))
        self._left = deque(in_order)
        self._waiting: deque[PairWork] = deque()
        self._begun: deque[Task] = deque()  # what failed once
        self._results: dict[StepPlace, StepResult] = {}
        self._open: dict[StepPlace, int] = {}
        self._failed_once: dict[tuple[int, ...], Message | str] = {}
        self._progress = progress
        self._waiting_bytes = self._bytes_done = 0
        self._records = self._records_done = 0
        self.running = 0

    @property
    def ready(self) -> bool:
        """Whether there is a task that can begin now."""
        return bool(self._left or self._waiting or self._begun)

    @property
    def tasks_left(self) -> int:
        """Return into how many tasks everything that is known to be left can be cut."""
        return len(self._left) + len(self._waiting) + len(self._begun) + self.running

    def seconds_left(self, spent: float) -> float:
        """Estimate how long one process would still take, from the time it has taken so far."""
        steps = len(self._results)
        if not steps or spent < _WORTH_SECONDS / 10:
            return 0.0
        done = steps * _BYTES_OF_A_STEP + self._bytes_done
        left = (len(self._rank_steps) - steps) * (done + self._waiting_bytes) / steps
        return spent * (left + self._waiting_bytes) / done

    @property
    def finished(self) -> bool:
        """Whether everything is done."""
        return not (self.ready or self.running)

    def fill(self, engine: Engine) -> None:
        """Give an engine as many tasks as it takes at once."""
        while self.ready and self.running < engine.capacity:
            self.running += 1
            if self._begun:
                engine.submit(self._begun.popleft())
            elif self._waiting:  # pairs that wait come first, so that few of them are held
                engine.submit(self._next_chunk(engine.capacity))
            else:
                engine.submit(self._next_steps(engine.capacity))

    def _next_steps(self, workers: int) -> StepTask:
        """Take the next step; where steps are small, several of a rank, so that none is idle long.

        A worker reads the columns of several steps at once, and handing over costs as much as
        counting a small step.
        """
        step, rank = self._left.popleft()
        if not self._folding.is_likely:
            return StepTask((step,), rank)
        steps = [step]
        most = min(_MOST_STEPS, len(self._left) // (_TURNS * workers))
        while len(steps) < most and self._left[0][1] == rank:
            steps.append(self._left.popleft()[0])
        return StepTask(tuple(steps), rank, fold=True)

    def _next_chunk(self, workers: int) -> ChunkTask:
        """Put pairs together until they make a chunk, a smaller one when little is left."""
        size = min(self._chunk_bytes, self._waiting_bytes // workers)
        works = [self._waiting.popleft()]
        total = works[0].bytes
        while self._waiting and total + self._waiting[0].bytes <= size:
            works.append(self._waiting.popleft())
            total += works[-1].bytes
        self._waiting_bytes -= total
        self._bytes_done += total
        return ChunkTask(tuple(works))

    def done(self, task: Task, result: Result | Failure) -> None:
        """Take in what became of a task."""
        self.running -= 1
        if isinstance(result, Failure):
            self._failed(task, result)
        else:
            for found in result:
                if isinstance(found, StepResult):
                    self._step_done(found)
                else:
                    self._settle(found)
        if self._progress is not None:
            known = len(self._results)
            total = self._records * len(self._rank_steps) // max(1, known)
            self._progress(self._records_done, max(total, self._records))

    def _step_done(self, result: StepResult) -> None:
        at = result.at
        self._results[at] = result
        self._open[at] = len(result.waiting)
        self._records += result.records
        self._records_done += result.records - len(result.waiting)
        self._waiting.extend(result.waiting)
        self._waiting_bytes += sum(work.bytes for work in result.waiting)
        result.waiting = ()
        self._folding.came(result)
        if not self._open[at]:
            self._folding.finished(result)

    def _settle(self, result: PairResult) -> None:
        at = StepPlace(result.step, result.rank)
        self._results[at].settle(result)
        self._open[at] -= 1
        self._records_done += 1
        if not self._open[at]:
            self._results[at].finish()
            self._folding.finished(self._results[at])

    def _failed(self, task: Task, failure: Failure) -> None:
        """Do a task that failed once more, in smaller parts, before giving it up."""
        if isinstance(task, StepTask) and len(task.steps) > 1:
            alone = (replace(task, steps=(step,)) for step in reversed(task.steps))
            self._begun.extendleft(alone)
        elif isinstance(task, ChunkTask) and len(task.works) > 1:
            half = len(task.works) // 2
            self._begun.extendleft((ChunkTask(task.works[half:]), ChunkTask(task.works[:half])))
        elif task.key not in self._failed_once:
            self._failed_once[task.key] = failure.reason
            self._begun.appendleft(task)
        else:
            two = {"first": self._failed_once[task.key], "second": failure.reason}
            notes = (message("note.two_tries", **two),)
            if isinstance(task, ChunkTask):
                self._settle(PairResult(*task.works[0].at, Status.UNREADABLE, None, notes, ()))
                return
            # A step of which nothing could be compared: one unreadable finding.
            (step, *_), rank = task.steps, task.rank
            name, place = f"step {step}, rank {rank}", (step, rank, None, "input", "")
            found = Finding(name, Status.UNREADABLE, *place, a=Side(), b=Side(), notes=notes)
            result = StepResult(step, rank, [found], [(0, 0)])
            result.finish()
            self._step_done(result)

    def results(self) -> list[StepResult]:
        """Return what was found, in the order of the steps."""
        return [self._results[at] for at in self._rank_steps]


#: Records, of which more are not listed one by one where they agree.
FOLD_ABOVE = 50_000


class Folding:
    """Decides what is let go of while the steps of a comparison come in.

    Attributes:
        many: whether there are more records than are held as objects.

    Args:
        above: how many records are listed at most, and held as objects; None: all.
        steps: how many there will be.
        all_rows: list more of them, too.
    """

    def __init__(self, above: int | None, steps: int, *, all_rows: bool = False) -> None:
        self._above = above
        self._all_rows = all_rows
        self._expected = steps
        self._finished: list[StepResult] = []
        self._records = self._come = 0
        self._first: StepResult | None = None
        self.many = False

    @property
    def is_likely(self) -> bool:
        """Whether there seem to be too many records; what agrees may be counted wholesale then."""
        if self._above is None or self._all_rows or not self._come:
            return False
        return self.many or self._records * self._expected > self._above * self._come

    def came(self, result: StepResult) -> None:
        """Take note of a step, of which some pairs may still be compared."""
        self._records += result.records
        self._come += 1

    def finished(self, result: StepResult) -> None:
        """Take in a step that is finished, and let go of what agrees if there is too much."""
        if self._above is None:
            return
        self._finished.append(result)
        self.many = self.many or self._records > self._above
        if self.many:
            for each in self._finished:
                self._let_go(each)
            self._finished.clear()

    def _let_go(self, result: StepResult) -> None:
        """Fold a step, but the one of the first divergence so far: it has to be explained."""
        if self._all_rows:
            result.pack()
            return
        result.folded = True
        order, first = result.order, self._first
        later = order is None or (first is not None and (first.order or ()) <= order)
        self._first, other = (first, result) if later else (result, first)
        if other is not None:
            other.fold()
            other.pack()


def merged_problems(results: Iterable[StepResult], side: int) -> list[Message]:
    """Return what could not be read of one run, once each, in the order of the steps."""
    found = (problem for result in results if result.problems for problem in result.problems[side])
    return list(dict.fromkeys(found))
