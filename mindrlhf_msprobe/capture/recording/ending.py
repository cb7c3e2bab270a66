"""How a run ends: finished, failed or interrupted, and in which phase."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
