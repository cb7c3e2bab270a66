"""How a run ends: finished, failed or interrupted, and in which phase.

How the process ends, `sys.exit()` and threads that die by an exception tell.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from mindrlhf_msprobe.capture.settings.configurations import error_in_words
from mindrlhf_msprobe.phases import Phase, names_of
from mindrlhf_msprobe.storage.manifest.run_file import FAILED, INTERRUPTED, Stop

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder


class Ending:
    """Knows the exceptions of which a run may end.

    Attributes:
        threads: those that trained.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder
        self.threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._failure: _Failure | None = None  # what passed through a phase, and was not the end
        self._loop_end: _Failure | None = None  # the same, where it ends a loop as a rule

    def goes_on(self) -> None:
        """Note that the training went on behind what passed through a phase."""
        self.threads.add(threading.current_thread())
        self._failure = self._loop_end = None

    def saves(self) -> None:
        """Note that something is saved: an exit that was on its way was none."""
        self.threads.add(threading.current_thread())
        if self._failure is not None and self._failure.of_process:
            self._failure = None

    def note_failure(self, phases: Sequence[Phase], error: BaseException) -> None:
        """Note that an exception passes through phases: unless training goes on, it ends there."""
        failure = _Failure(names_of(phases), error)
        if isinstance(error, _END_OF_A_LOOP):  # training goes on, as a rule
            self._loop_end = failure
        else:
            self._failure = failure

    def note_end(self, error: BaseException, thread: threading.Thread | None) -> None:
        """Note that the process, or a thread that trained, ends by an exception.

        Args:
            thread: None where it is the process.
        """
        if isinstance(error, _END_OF_A_LOOP) or (thread is not None and thread not in self.threads):
            return
        passed = self._failure
        phase = passed.phase if passed is not None and passed.led_to(error) else None
        ended = _Failure(phase, error, of_process=thread is None)
        if not ended.quietly and not (thread is None and passed is not None):
            self._failure = ended

    def stop(
        self, phase: str | None, error: BaseException | None, *, at_exit: bool = False
    ) -> Stop | None:
        """Return where the run stops, if it is closed now; None if it has finished.

        Args:
            phase: the phase that is open, or None.
            error: the exception of which the run ends, if one is known.
            at_exit: whether nobody closed it before the process ends.
        """
        passed = self._failure  # through a phase or a step
        if at_exit and isinstance(error, _END_OF_A_LOOP):  # no loop took it: the process ends of it
            passed = self._loop_end
        elif passed is not None and passed.of_process and not at_exit and error is None:
            passed = None  # somebody caught it, and closes the run
        ended = passed
        if error is not None and (at_exit or not isinstance(error, _END_OF_A_LOOP)):
            if passed is not None and passed.led_to(error):
                phase = phase or passed.phase
            ended = _Failure(phase, error)
        if ended is not None and not (ended.quietly and passed is None):
            state = INTERRUPTED if ended.quietly else FAILED
            return Stop(state, self._run.step, ended.phase, ended.error, ended.text)
        unasked = at_exit or error is not None
        if unasked and any((phase, self._run.phases.begun, self._run.open_step.has_saves)):
            return Stop(INTERRUPTED, self._run.step, phase)
        return None


class _Failure:
    """An exception of which the run may end, and the phase it passed through.

    The exception itself is not kept: its frames hold tensors.
    """

    def __init__(
        self, phase: str | None, error: BaseException, *, of_process: bool = False
    ) -> None:
        self.phase = phase
        self.of_process = of_process
        self.error, self.text = error_in_words(error)
        cause, seen = error, set[int]()
        while cause.__cause__ is not None and id(cause) not in seen:
            seen.add(id(cause))
            cause = cause.__cause__
        if cause is not error:  # what a trainer wraps says where it was
            self.text = "{} ({}: {})".format(self.text, *error_in_words(cause))
        self.quietly = isinstance(error, SystemExit) and error.code in (None, 0)
        self._id = id(error)

    def led_to(self, error: BaseException) -> bool:
        """Return whether `error` is this one, or was raised because of it."""
        seen: set[int] = set()
        known: BaseException | None = error
        while known is not None and id(known) not in seen:
            if id(known) == self._id:
                return True
            seen.add(id(known))
            known = known.__cause__ or known.__context__
        return False


_END_OF_A_LOOP = (StopIteration, StopAsyncIteration, GeneratorExit)


# What was there before is called as ever: whoever replaced `threading.excepthook` is called, too.
#
# Whoever has wrapped what stands here keeps it, also after the last listener is gone: nobody can
# see into a wrapper. So what stands here is made anew for each time, and calls, as long as it
# lives, what stood there when it was made: it can never come to call itself. Where two of them are
# called one within the other, the outer one tells.

#: Told of an exception, and of the thread that ends by it; None for `sys.exit()` in the main one.
Listener = Callable[[BaseException, "threading.Thread | None"], None]

_listeners: list[Listener] = []
_lock = threading.RLock()
_on_its_way = threading.local()  # .ends: the statuses and exceptions it is called with


def listen_to_ends(listener: Listener) -> None:
    """Tell `listener` from now on of what ends this process or one of its threads."""
    with _lock:
        if not _listeners:
            if not isinstance(sys.exit, _Exit):
                sys.exit = _Exit(sys.exit)
            if not isinstance(threading.excepthook, _ThreadDied):
                threading.excepthook = _ThreadDied(threading.excepthook)
        _listeners.append(listener)


def forget_listener(listener: Listener) -> None:
    """Tell it no more; after the last one everything is as it was before the first."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if _listeners:
            return
        # Whoever has replaced one since calls it, and it goes on.
        while isinstance(sys.exit, _Exit):
            sys.exit = sys.exit.before
        while isinstance(threading.excepthook, _ThreadDied):
            threading.excepthook = threading.excepthook.before


def abandon_listeners() -> None:
    """Tell nobody any more, in a forked child: threads that may hold the lock are not here."""
    global _lock
    _lock = threading.RLock()
    _listeners.clear()


class _Exit:
    """Stands for `sys.exit`, and calls what stood there."""

    def __init__(self, before: Any) -> None:
        functools.update_wrapper(self, before)
        self.before = before

    def __call__(self, status: Any = None, /) -> NoReturn:
        with _first_of(status) as is_first:
            if is_first and threading.current_thread() is threading.main_thread():
                _notify(SystemExit(status), None)
            self.before(status)
        raise SystemExit(status)  # a replacement of sys.exit that returns


class _ThreadDied:
    """Stands for `threading.excepthook`, and calls what stood there."""

    def __init__(self, before: Any) -> None:
        functools.update_wrapper(self, before)
        self.before = before

    def __call__(self, args: Any, /) -> None:
        with _first_of(args.exc_value) as is_first:
            if is_first and args.exc_value is not None:
                _notify(args.exc_value, args.thread)
            self.before(args)


@contextmanager
def _first_of(end: object) -> Iterator[bool]:
    """Return whether this thread is not being called for this end already, further out."""
    ends: list[object] = _on_its_way.__dict__.setdefault("ends", [])
    is_first = not any(end is one for one in ends)
    ends.append(end)
    try:
        yield is_first
    finally:
        ends.pop()


def _notify(error: BaseException, thread: threading.Thread | None) -> None:
    for listener in [*_listeners]:
        with suppress(Exception):
            listener(error, thread)
