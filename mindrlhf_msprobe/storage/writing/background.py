"""One thread that does what was handed over, in order, behind a bounded backlog.

Copies of tensors that wait to be written lie in buffers that are used again: fresh memory costs a
page fault for every 4 KiB, several times the copy itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.storage.writing.ledger import Ledger

#: Called with what could not be written, why, and how many losses that is. What it raises is raised
#: again by the next call that hands something over.
Report = Callable[[Message, BaseException, int], None]

_MEGABYTE = 1 << 20
# A thread that wakes up takes the interpreter from the training, which costs both more than a line
# takes to write: it lets some gather, unless somebody waits.
_GATHERING = 0.02  # seconds
_GATHERED = 1 << 20  # bytes
_NICENESS = 10  # of the writing thread; 19 would starve it on a host that others keep busy


@dataclass(eq=False, slots=True)
class Job:
    """Something to do; `size` bytes are held until it is done.

    Attributes:
        begun: whether it has been taken up: then nothing can join it any more.
        items: what is handed over bit by bit and done at once: the fewer jobs, the fewer wake-ups.
    """

    what: Message
    work: Callable[[], object]
    size: int
    begun: bool = False
    done: bool = False
    items: list[Any] = field(default_factory=list)


class Background:
    """Does jobs one after the other in a daemon thread, which starts with the first of them.

    Where no thread can be started (at the end of the interpreter, or beyond a limit of the
    system), jobs are done at once in the thread that hands them over.

    Args:
        budget: bytes that may wait to be written; then handing over waits, and says so once.
        fault: called, in whichever thread does the job, for every job that failed.
        ledger: takes the time spent working and waiting.
    """

    def __init__(self, budget: int, fault: Report, ledger: Ledger) -> None:
        self._budget = budget
        self._fault = fault
        self._ledger = ledger
        # Re-entrant, and waited for only through conditions, which let it go: a signal handler
        # that ends the run may come while its own thread holds it.
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._hurry = threading.Condition(self._lock)  # that the thread does not wait for more
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._held = 0  # bytes of the jobs that are not done
        self._waiting = 0  # threads that wait for progress
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._abandoned = False
        self._said = False
        self._raised: BaseException | None = None

    def hand_over(self, what: Message, work: Callable[[], object], size: int = 0) -> None:
        """Do `work` later, which holds `size` bytes; waits while there is no room for them.

        Raises:
            BaseException: what the fault sink raised about an earlier job.
        """
        if self._abandoned:
            return
        self.make_room(size)
        self._add(Job(what, work, size))
        self._raise_fault()

    def join(self, job: Job, item: Any, size: int) -> bool:
        """Add an item of `size` bytes to a job that waits; False if it cannot be added."""
        with self._lock:
            if job.begun or self._held + size > self._budget:
                return False
            job.items.append(item)
            job.size += size
            self._held += size
            self._hurry_if_full()
        self._raise_fault()
        return True

    def hand_over_batch(
        self, what: Message, work: Callable[[list[Any]], object], item: Any, size: int
    ) -> Job:
        """Hand over a job that does `work` with all items that joined until it began."""

        def do() -> None:
            items, job.items = job.items, []
            work(items)

        self.make_room(size)
        job = Job(what, do, size, items=[item])
        if not self._abandoned:
            self._add(job)
        self._raise_fault()
        return job

    def finish(self, what: Message, work: Callable[[], object], size: int = 0) -> None:
        """Do `work` after everything handed over before, and return when it is done.

        When the wait is interrupted, the work is done all the same.

        Args:
            size: bytes that it would hold; beyond the budget the wait is logged and accounted.

        Raises:
            BaseException: what the fault sink raised about this job or an earlier one.
        """
        self.wait_for(self.begin(what, work), size)

    def begin(self, what: Message, work: Callable[[], object]) -> Job:
        """Hand over `work` as `finish` does; `wait_for` returns when it is done."""
        job = Job(what, work, 0, done=self._abandoned)
        if not self._abandoned:
            self._add(job)
        return job

    def wait_for(self, job: Job, size: int = 0) -> None:
        """Return when a job is done; see `finish`.

        Raises:
            BaseException: what the fault sink raised about this job or an earlier one.
        """
        if self._abandoned:
            return
        if size > self._budget:
            self._wait_for_room(size, lambda: job.done)
        else:
            self._wait_for(lambda: job.done)
        self._raise_fault()

    def make_room(self, size: int) -> None:
        """Wait until `size` bytes more fit into the budget, or nothing else is waiting."""
        if self._abandoned or self._fits(size):
            return
        self._wait_for_room(self._held, lambda: self._fits(size))

    def _wait_for_room(self, held: int, true: Callable[[], bool]) -> None:
        """Wait because `held` bytes are too many; say so once, and account for the time."""
        if not self._said:
            self._said = True
            warn("log.waits", held=held / _MEGABYTE, budget=self._budget // _MEGABYTE)
        began = self._ledger.clock()
        try:
            self._wait_for(true)
        finally:
            self._ledger.waited += self._ledger.clock() - began

    def stop(self) -> None:
        """Let the thread end once nothing waits; it starts again when something is handed over."""
        with self._lock:
            self._stopping = True
            self._arrived.notify()
            self._hurry.notify()
        self._wait_for(lambda: self._thread is None)

    def abandon(self) -> None:
        """Do nothing more: called in a forked child, where the thread does not exist."""
        self._abandoned = True

    def report(self, what: Message, error: BaseException, count: int = 1) -> None:
        """Call the fault sink; what it raises is kept for the next call from outside."""
        try:
            self._fault(what, error, count)
        except BaseException as raised:
            self._raised = raised

    def _raise_fault(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def _fits(self, size: int) -> bool:
        with self._lock:
            idle = not self._jobs and not self._busy
            return idle or self._held + size <= self._budget

    def _wait_for(self, true: Callable[[], bool]) -> None:
        with self._lock:
            self._waiting += 1
            self._hurry.notify()
            try:
                self._progress.wait_for(true)
            finally:
                self._waiting -= 1

    def _add(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            self._held += job.size
            self._stopping = False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="msprobe-writer", daemon=True)
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread
            if self._thread is not None:
                self._arrived.notify()
                self._hurry_if_full()
                return
        while (next_job := self._next()) is not None:
            self._do(next_job)

    def _hurry_if_full(self) -> None:
        if self._held >= _GATHERED:
            self._hurry.notify()

    def _run(self) -> None:
        with self._lock:
            if self._thread is None:  # the call that started this thread was interrupted
                self._thread = threading.current_thread()
            elif self._thread is not threading.current_thread():
                return  # and another one was started in its place
        # This thread runs where the training leaves a core idle. What computes a layer is cut into
        # as many parts as there are cores: a core that is busy writing holds all of them up.
        # Whoever waits for the writing sleeps, and so leaves a core to it.
        with suppress(AttributeError, OSError):  # Linux gives every thread a priority of its own
            if sys.platform == "linux":
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._lock:
                while not self._jobs:
                    if self._stopping:
                        self._thread = None
                        self._progress.notify_all()
                        return
                    self._arrived.wait()
                    if not self._waiting and self._held < _GATHERED:
                        self._hurry.wait(_GATHERING)
            job = self._next()
            if job is not None:
                self._do(job)

    def _next(self) -> Job | None:
        with self._lock:
            if not self._jobs:
                return None
            self._busy = True
            job = self._jobs.popleft()
            job.begun = True
            return job

    def _do(self, job: Job) -> None:
        began = self._ledger.clock()
        try:
            job.work()
        except BaseException as error:  # or the thread ends, and everybody waits for ever
            self.report(job.what, error)
        finally:
            self._ledger.busy += self._ledger.clock() - began
            with self._lock:
                self._busy = False
                self._held -= job.size
                job.done = True
                if self._waiting:
                    self._progress.notify_all()


_SMALLEST = 1 << 16  # bytes; below, the allocator keeps its memory anyway


@dataclass(frozen=True, eq=False, slots=True)
class ArrayCopy:
    """A copy of an array.

    Attributes:
        array: the elements, C-contiguous.
        size: the bytes it occupies.
    """

    array: np.ndarray
    size: int
    buffer: np.ndarray | None = None


class BufferPool:
    """Copies arrays into buffers of a few sizes; may be used by several threads.

    Args:
        budget: bytes of memory that free buffers and copies in use together may hold; copies in
            use are bounded by whoever takes them, free buffers are dropped to keep within it.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held = 0  # bytes, free and in use
        self._free: dict[int, list[np.ndarray]] = {}
        # How many free buffers of a size were never needed since the last trim.
        self._idle: dict[int, int] = {}
        self._lock = threading.RLock()

    def size_for(self, array: np.ndarray) -> int:
        """Return the bytes that a copy of `array` will occupy."""
        size = array.nbytes
        if size < _SMALLEST:
            return size
        unit = 1 << (size.bit_length() - 3)  # at most a quarter of a buffer is unused
        return -(-size // unit) * unit

    def copy(self, array: np.ndarray) -> ArrayCopy:
        """Return a copy of `array`, to be given back by `release`."""
        size = self.size_for(array)
        if size < _SMALLEST:
            return ArrayCopy(np.array(array, order="C"), size)
        buffer = self._take(size)
        copy = buffer[: array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return ArrayCopy(copy, buffer.nbytes, buffer)

    def release(self, copy: ArrayCopy) -> None:
        """Take back a copy, whose elements nobody may look at any more."""
        if copy.buffer is None:
            return
        with self._lock:
            if self._held > self._budget:
                self._held -= copy.size
            else:
                self._free.setdefault(copy.size, []).append(copy.buffer)

    def trim(self) -> None:
        """Drop the free buffers that were not needed since the last trim."""
        with self._lock:
            for size, free in self._free.items():
                idle = min(self._idle.get(size, len(free)), len(free))
                del free[:idle]  # the last one given back is the first one taken
                self._held -= idle * size
            self._idle = {size: len(free) for size, free in self._free.items()}

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            free = self._free.get(size)
            if free:
                buffer = free.pop()
                self._idle[size] = min(self._idle.get(size, 0), len(free))
                return buffer
            self._held += size
            for other, buffers in self._free.items():
                while buffers and self._held > self._budget:
                    buffers.pop()
                    self._held -= other
        return np.empty(size, np.uint8)
