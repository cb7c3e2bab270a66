"""What a switched-on probe records with: its run, its open step and what was lost.

Of the step that is open, it is known which saves still belong to it, and when what in it ran.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.capture.graph.folder import FOLDERS
from mindrlhf_msprobe.capture.opening.overflow import NotHeldError
from mindrlhf_msprobe.capture.recording.ending import (
    Ending,
    abandon_listeners,
    forget_listener,
    listen_to_ends,
)
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
from mindrlhf_msprobe.capture.settings.environment import cann_version, settings_now
from mindrlhf_msprobe.capture.tensors.summary import is_of_training
from mindrlhf_msprobe.capture.words import counted
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.log import inform, logger, warn
from mindrlhf_msprobe.storage.manifest.notes import Note, Replaced, Written
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.step_lines import ALL_LINES
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError
from mindrlhf_msprobe.storage.writing.ledger import Ledger
from mindrlhf_msprobe.storage.writing.writer import RunWriter

_PATIENCE = 600.0  # seconds that the end of a step waits for a save which does not move
#: Openings, and saves, of a step that are listed; further ones are counted.
MOST_LISTED = 1000


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


class StepClock:
    """Takes the times of one step; what is saved in other threads, too.

    Args:
        began: when the step began, by the same clock; None: with the first one that is taken.
        clock: in seconds; of no date.
    """

    def __init__(
        self, began: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._began = began
        self._clock = clock
        self._phases: list[dict[str, Any]] = []
        self._saves: list[tuple[str, int | None, float]] = []
        self._openings: Counter[str] = Counter()
        self._unlisted: dict[str, dict[str, Any]] = {}
        self._unlisted_saves = 0
        self._ended = self._seconds = 0.0

    def now(self) -> float:
        """Return how many seconds ago the step began."""
        now = self._clock()
        if self._began is None:
            self._began = now
        return now - self._began

    def opened(
        self, phases: Mapping[str, int | None], began: float, recording: float | None
    ) -> None:
        """Note that phases, which were open together since `began`, have ended.

        Args:
            phases: name → the number of the opening as recorded; None where it was not.
            recording: seconds that recording took meanwhile; None: not known.
        """
        seconds = self.now() - began
        for phase, number in phases.items():
            before = self._openings[phase]
            self._openings[phase] += 1
            if len(self._phases) >= MOST_LISTED:
                rest = self._unlisted.setdefault(phase, {"openings": 0, "seconds": 0.0})
                rest["openings"] += 1
                rest["seconds"] = round(rest["seconds"] + seconds, 6)
                continue
            noted: dict[str, Any] = {
                "phase": phase,
                "opening": before if number is None else number,
                "recorded": number is not None,
                "began": round(began, 6),
                "seconds": round(seconds, 6),
            }
            if recording is not None:
                noted["recording"] = round(min(recording, seconds), 6)
            self._phases.append(noted)

    def saved(self, key: str, micro_step: int | None, at: float) -> None:
        """Note that key data were saved."""
        if len(self._saves) < MOST_LISTED:
            self._saves.append((key, micro_step, at))
        else:
            self._unlisted_saves += 1

    def end(self) -> StepClock:
        """End the step, and return the clock of the next one, which begins at the same moment."""
        self._ended = time.time()
        self._seconds = self.now()
        return StepClock((self._began or 0.0) + self._seconds, self._clock)

    def to_json(self, step: int, rank: int) -> dict[str, Any]:
        """Return the line of a step that has ended."""
        unlisted: dict[str, Any] = {}
        if self._unlisted:
            unlisted["phases"] = self._unlisted
        if self._unlisted_saves:
            unlisted["key_data"] = self._unlisted_saves
        return {
            "step": step,
            "rank": rank,
            "ended": round(self._ended, 6),
            "seconds": round(self._seconds, 6),
            "phases": self._phases,
            "key_data": [
                {"key": key, "micro_step": micro_step, "at": round(at, 6)}
                for key, micro_step, at in self._saves
            ],
            **({"unlisted": unlisted} if unlisted else {}),
        }


_MOST_KINDS = 1000  # of losses that are counted apart
_FURTHER = message("lost.further")


class Recorder:
    """Records one rank of one run.

    Attributes:
        phases, saves, settings, ending: what is recorded, each its part.
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
        self._clocks = {config.initial_step: StepClock()}  # of the open step, and of those that end
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
        self._begin(config.initial_step or self.writer.next_step())
        self.sequence = itertools.count()
        self.ending = Ending(self)
        self.settings = RunSettings(self)
        self.phases = Phases(self)
        self.saves = Saves(self)
        self._configurations_wanted = config.configurations_dump
        self._room_logged = self._ranks_logged = False
        self._steps_ended = 0
        self._ending: int | None = None  # the step whose end is waited for: what fails is of it
        for what, error in unknown:
            self.fault(what, error)
        FOLDERS.begin(self.writer.root, rank, config.buffer_mb << 20)
        log_start(config, self.writer.root, self.step, continues=self.writer.continues)
        # The last: what is raised above, under `strict`, leaves no listener behind.
        listen_to_ends(self.ending.note_end)

    @property
    def step(self) -> int:
        """The number of the step that is open."""
        return self.open_step.number

    @property
    def root(self) -> Path:
        """The run's directory."""
        return self.writer.root

    @property
    def rank(self) -> int:
        """Which rank it records."""
        return self.writer.rank

    def note(self, note: Note) -> None:
        """Write down what is said of the run."""
        try:
            self.writer.note(note)
        except Exception as error:
            self.fault(note.lost, error)

    def _begin(self, step: int) -> None:
        self.open_step.number = step
        self._clocks = {step: StepClock()}
        try:
            self.writer.manifest.begin(step)
            if self.writer.continues:
                for lines_of in ALL_LINES:
                    lines_of(self.writer.root, self.writer.rank).forget(step)
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
            with counted(self.fault, "lost.end_of_step"):
                try:
                    self.settings.end_step()
                    self.phases.record_optimizers(step)
                    if self.config.key_data_dump:
                        self.saves.note_compiled_without()
                    self.open_step.wait_for(step)
                finally:  # an interrupted wait ends the step too
                    clock, times = self._clocks.pop(step, None), None
                    if clock is not None and self.config.records_anything():
                        times = partial(clock.to_json, step, self.writer.rank)
                    self.writer.end_step(step, self.lost, times=times)
        finally:
            self._ending = None
            if self.writer.manifest.lost is None:
                self._log_first_step(step)

    def _log_first_step(self, step: int) -> None:
        """Say once what a step with layer data takes, and which ranks do not write here."""
        config, root = self.config, self.writer.root
        try:
            if self.writer.phases and not self._room_logged:
                self._room_logged = True
                log_disk_room(config, root, step, self.ledger.bytes_of_last_step())
            if not self._ranks_logged:
                self._ranks_logged = True
                log_missing_ranks(config, root, self.writer.rank)
        except OSError as error:  # a directory that was removed is a loss already
            logger.debug("%s", message("log.disk_unknown", why=error))

    def close(self, stop: Stop | None = None) -> None:
        """End the run; a step that was not ended stays readable and is marked unfinished."""
        forget_listener(self.ending.note_end)
        self.phases.end_run()
        self.settings.end_run()
        FOLDERS.end(self.writer.root)
        with counted(self.fault, "lost.end_of_run"):
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
            why = error.kind
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
                root, lost = str(self.writer.root), str(error.what)
                warn("log.dump_path_lost", root=root, what=lost, step=step)
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
