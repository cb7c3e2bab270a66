"""What a switched-on probe records with: its run, its open step and what was lost.

Of the step that is open, it is known which saves still belong to it, and when what in it ran; of
the run how it ends: finished, failed or interrupted, and in which phase. How the process ends,
`sys.exit()` and threads that die by an exception tell.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from mindrlhf_msprobe.capture.graph.folder import FOLDERS
from mindrlhf_msprobe.capture.opening.overflow import NotHeldError
from mindrlhf_msprobe.capture.recording.messages import (
    log_disk_room,
    log_fault,
    log_left_out,
    log_missing_ranks,
    log_start,
    why_nothing,
)
from mindrlhf_msprobe.capture.recording.phases import Phases
from mindrlhf_msprobe.capture.recording.run_settings import RunSettings
from mindrlhf_msprobe.capture.recording.saves import Saves
from mindrlhf_msprobe.capture.settings.configurations import error_in_words
from mindrlhf_msprobe.capture.settings.environment import cann_version, settings_now
from mindrlhf_msprobe.capture.tensors.summary import is_of_training
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.log import inform, logger, warn
from mindrlhf_msprobe.phases import Phase, names_of
from mindrlhf_msprobe.storage.manifest.manifest import Note, Replaced, Written
from mindrlhf_msprobe.storage.manifest.run_file import FAILED, INTERRUPTED, Stop
from mindrlhf_msprobe.storage.step_lines import ALL_LINES, StepClock
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError
from mindrlhf_msprobe.storage.writing.ledger import Counted, Ledger
from mindrlhf_msprobe.storage.writing.writer import RunWriter


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


_PATIENCE = 600.0  # seconds that the end of a step waits for a save which does not move


class OpenStep:
    """The step that is open; may be used by several threads.

        with open_step.saving("loss") as (step, micro_step):
            ...                        # describe it, hand it over to the writer

    A save belongs to the step that is open when it begins, and that step does not end before the
    save has been handed over. One that begins while a step ends belongs to the next.

    Attributes:
        number: of the step that is open.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        # Re-entrant: a signal handler that ends the run may come while its own thread holds it.
        self._changed = threading.Condition(threading.RLock())
        self._micro_steps: dict[str, int] = {}
        self._saving: list[tuple[int, int]] = []  # (step, thread) of each save on its way
        self._closed = False

    @property
    def has_saves(self) -> bool:
        """Whether anything was saved by name in the open step."""
        return bool(self._micro_steps)

    @contextmanager
    def saving(self, key: str, *, counted: bool = True) -> Iterator[tuple[int, int]]:
        """Enter one save of a key: (step, micro-step), which are its own.

        Args:
            counted: whether it takes the next micro-step; else it gets 0, and says itself which.

        Raises:
            UsageError: the run has ended meanwhile.
        """
        with self._changed:
            if self._closed:
                raise UsageError.saying("error.after_close", call=f"save_data({key!r})")
            step, micro_step = self.number, self._micro_steps.setdefault(key, 0)
            if counted:
                self._micro_steps[key] = micro_step + 1
            on_its_way = step, threading.get_ident()
            self._saving.append(on_its_way)
        try:
            yield step, micro_step
        finally:
            with self._changed:
                self._saving.remove(on_its_way)
                self._changed.notify_all()

    def advance(self) -> int:
        """Open the next step and return the one that was open; its saves may be on their way."""
        with self._changed:
            ended = self.number
            self.number += 1
            self._micro_steps.clear()
            return ended

    def close(self) -> int:
        """Take no more saves and return the step that is open."""
        with self._changed:
            self._closed = True
            return self.number

    def wait_for(self, step: int) -> None:
        """Return when every save of a step, and of those before it, was handed over.

        Not those of this thread, which may be in a signal handler, nor those that do not move: the
        writer refuses what comes after the end of its step, and that is counted.
        """
        own = threading.get_ident()
        with self._changed:
            self._changed.wait_for(
                lambda: all(at > step or thread == own for at, thread in self._saving), _PATIENCE
            )


_MOST_KINDS = 1000  # of losses that are counted apart
_FURTHER = message("lost.further")


class Recorder:
    """Records one rank of one run.

    Attributes:
        phases, saves, settings, ending: what is recorded, each its part.
        root, rank: the run's directory, and which rank it records.
        config: what to record.
        ledger: takes what recording costs.
        writer: writes it.
        lock: held for moments only; cells run in any thread, files are written by one more.
        open_step: which step is open.
        sequence: numbers what is recorded, in time.
        lost: how many records were lost, by kind.

    Raises:
        RunError: the dump_path holds another run, or cannot be written.
    """

    def __init__(self, config: ProbeConfig, rank: int) -> None:
        self.config = config
        self.ledger = Ledger()
        self.lock = threading.RLock()
        self._logged: set[Hashable] = set()  # what is said once
        self.open_step = OpenStep(config.initial_step)
        self.lost: dict[Message, int] = {}
        self._raised: BaseException | None = None
        unknown: list[tuple[Message, BaseException]] = []
        settings: dict[str, Any] = settings_now(lambda *fault: unknown.append(fault))
        self.writer = RunWriter(
            Path(config.dump_path).expanduser().absolute(),
            rank=rank,
            config=config.to_json(),
            existing=config.existing,
            task=config.task_for_msprobe,
            settings={**settings, "versions": {"cann": cann_version()}},
            buffer_bytes=config.buffer_mb << 20,
            fault=self.fault,
            ledger=self.ledger,
            keep_bytes=config.keep_mb << 20,
        )
        self.root, self.rank = self.writer.root, rank
        self._begin(config.initial_step or self.writer.next_step())
        self.sequence = itertools.count()
        self.ending = Ending(self)
        self.settings = RunSettings(self)
        self.phases = Phases(self)
        self.saves = Saves(self)
        self._configurations_wanted = config.configurations_dump
        self._steps_ended = 0
        self._ending: int | None = None  # the step whose end is waited for: what fails is of it
        for what, error in unknown:
            self.fault(what, error)
        FOLDERS.begin(self.root, rank, config.buffer_mb << 20)
        log_start(config, self.root, self.step, continues=self.writer.continues)
        # The last: what is raised above, under `strict`, leaves no listener behind.
        listen_to_ends(self.ending.note_end)

    @property
    def step(self) -> int:
        """The number of the step that is open."""
        return self.open_step.number

    def note(self, note: Note) -> None:
        """Write down what is said of the run."""
        try:
            self.writer.note(note)
        except Exception as error:
            self.fault(note.lost, error)

    def _begin(self, step: int) -> None:
        self.open_step.number = step
        self._clocks = {step: StepClock()}  # of the open step, and of those that end
        try:
            self.writer.manifest.begin(step)
            if self.writer.continues:
                for lines_of in ALL_LINES:
                    lines_of(self.root, self.rank).forget(step)
        except OSError as refused:
            path, why = self.config.dump_path, refused.strerror or str(refused)
            raise RunError.saying("error.left_of_step", path=path, step=step, why=why) from None

    def start_at(self, step: int) -> None:
        """Count the steps from `step` on, unless the configuration says from where.

        Raises:
            UsageError: something has been recorded already.
            RunError: what an earlier attempt left from there on cannot be removed.
        """
        if self.config.initial_step:
            return
        if self.settings.phases_entered or self.open_step.has_saves or self._steps_ended:
            raise UsageError.saying("error.start_too_late", step=step, step2=self.step)
        self._begin(step)
        inform("log.resumes", step=step)

    def record_more(self, config: ProbeConfig) -> None:
        """Go on with another configuration."""
        self.config = config
        self.phases.record_more()
        self.writer.task, self.writer.level = config.task_for_msprobe, config.level
        self.note(Replaced("config", config.to_json(), Written.NOW))

    def clock_of(self, step: int) -> StepClock:
        """Return what takes the times of a step; of one that has ended, one that is let go."""
        return self._clocks.get(step) or StepClock()

    def leave_out(self, kind: str, name: str, why: str | Message, *, quiet: bool = False) -> None:
        """Write down, and say once, that something which is switched on is not recorded.

        Args:
            kind: of `coverage`: PHASES, KEY_DATA, …; `name` is one of them.
        """
        with self.lock:
            news = self.writer.manifest.note_left_out(kind, name, why)
        if news and not quiet:
            log_left_out(kind, name, why)

    def advance(self) -> int:
        """Open the next step, to which everything belongs that is begun from now on.

        Returns:
            the step that was open, which `end_step` is to end.
        """
        self.phases.end_step()
        self.ending.goes_on()
        self._steps_ended += 1
        self._ending = step = self.open_step.number
        self._clocks[step + 1] = self.clock_of(step).end()
        return self.open_step.advance()

    def end_step(self, step: int) -> None:
        """Make everything recorded in a step readable; saves on their way are waited for."""
        try:
            with Counted(self.fault, "lost.end_of_step"):
                try:
                    self.settings.end_step()
                    self.phases.record_optimizers(step)
                    if self.config.key_data_dump:
                        self.saves.note_compiled_without()
                    self.open_step.wait_for(step)
                finally:  # an interrupted wait ends the step too
                    clock, times = self._clocks.pop(step, None), None
                    if clock is not None and self.config.records_anything():
                        times = partial(clock.to_json, step, self.rank)
                    self.writer.end_step(step, self.lost, times=times)
        finally:
            self._ending = None
            if self.writer.manifest.lost is None:
                self._log_first_step(step)

    def _log_first_step(self, step: int) -> None:
        """Say once what a step with layer data takes, and which ranks do not write here."""
        config, root = self.config, self.root
        try:
            if self.writer.phases and self.once("disk room"):
                log_disk_room(config, root, step, self.ledger.bytes_of_last_step())
            if self.once("missing ranks"):
                log_missing_ranks(config, root, self.rank)
        except OSError as error:  # a directory that was removed is a loss already
            logger.debug("%s", message("log.disk_unknown", why=error))

    def close(self, stop: Stop | None = None) -> None:
        """End the run; a step that was not ended stays readable and is marked unfinished."""
        forget_listener(self.ending.note_end)
        self.phases.end_run()
        self.settings.end_run()
        FOLDERS.end(self.root)
        with Counted(self.fault, "lost.end_of_run"):
            step = self.open_step.close()
            try:
                try:
                    self.open_step.wait_for(step)
                finally:
                    self.writer.end_step(step, self.lost, complete=False)
            finally:
                self.writer.close(stop, self.lost)
        if self.lost:
            noted = self.writer.manifest.lost is None
            warn("log.lost", lost=[*self.lost.items()], noted=noted)
        if stop is None:  # which calls the trainer seems to have forgotten
            name, times = next(iter(self.phases.entered.most_common(1)), ("", 0))
            if times > 1 and not self._steps_ended:
                warn("log.step_forgotten", phase=name, times=times, step=self.step)
            if self._configurations_wanted and not self.saves.configurations:
                warn("log.configurations_forgotten")
        for name, (first, last) in self.phases.ran.items():
            silent = ("silent", name) in self._logged
            if not (name in self.writer.phases or silent or self.lost):
                why = why_nothing(self.config, name, first, last)
                warn("log.nothing_recorded", phase=name, first=first, last=last, why=why)

    def abandon(self) -> None:
        """Record nothing more: called in a forked child, which leaves the run to its parent."""
        abandon_listeners()
        self.settings.end_run()
        self.lock = threading.RLock()  # the old one may be held by a thread that is not here
        self.writer.abandon()

    def fault(self, what: Message, error: BaseException, count: int = 1) -> None:
        """Count a fault while recording and log it once per kind; raise it in strict mode.

        What an operator of the training met is raised in any mode: nobody else learns of it.
        """
        if error is self._raised:  # on its way out already, through another guard
            raise error
        why: str | Message = type(error).__name__
        if isinstance(error, (DumpPathLostError, NotHeldError)):
            why = error.kind if isinstance(error, DumpPathLostError) else error.said
        kind = message("lost.kind", what=what, why=why)
        with self.lock:
            if len(self.lost) >= _MOST_KINDS and kind not in self.lost:
                kind = _FURTHER
            first = kind not in self.lost
            self.lost[kind] = self.lost.get(kind, 0) + count
        if self.config.strict or is_of_training(error):
            self._raised = error
            raise error
        step = self.step if self._ending is None else self._ending
        if isinstance(error, DumpPathLostError):
            if self.once("dump_path lost"):
                lost = str(error.what)
                warn("log.dump_path_lost", root=str(self.root), what=lost, step=step)
        elif first:
            log_fault(what, step, error)

    def once(self, *event: Hashable) -> bool:
        """Return whether an event has not been said, and note that it is."""
        known = event in self._logged
        self._logged.add(event)
        return not known


def current_rank(environment: Mapping[str, str]) -> int:
    """Return this process's rank: a launcher's, else MindSpore's if it is initialised, else 0."""
    for name in ("RANK_ID", "RANK", "OMPI_COMM_WORLD_RANK"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    if "mindspore" in sys.modules:
        try:
            from mindspore.communication import get_rank

            return int(get_rank())
        except Exception:
            return 0
    return 0
