"""What a switched-on probe records with: its run, its open step and what was lost."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.capture.framework import process_end
from mindrlhf_msprobe.capture.framework.memory import is_of_training
from mindrlhf_msprobe.capture.graph.folder import FOLDERS
from mindrlhf_msprobe.capture.opening.overflow import NotHeldError
from mindrlhf_msprobe.capture.recording.ending import Ending
from mindrlhf_msprobe.capture.recording.messages import (
    log_disk_room,
    log_fault,
    log_left_out,
    log_missing_ranks,
    log_start,
    why_nothing,
)
from mindrlhf_msprobe.capture.recording.open_step import OpenStep, StepClock
from mindrlhf_msprobe.capture.recording.phases import Phases
from mindrlhf_msprobe.capture.recording.run_settings import RunSettings
from mindrlhf_msprobe.capture.recording.saves import Saves
from mindrlhf_msprobe.capture.settings.environment import cann_version, settings_now
from mindrlhf_msprobe.capture.words import counted
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.log import inform, logger, warn
from mindrlhf_msprobe.storage.directory.job import DumpPathLostError
from mindrlhf_msprobe.storage.manifest.notes import Configuration, Note
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.step_lines import ALL_LINES
from mindrlhf_msprobe.storage.writing.ledger import Ledger
from mindrlhf_msprobe.storage.writing.writer import RunWriter

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
        process_end.listen(self.ending.note_end)

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
        self.note(Configuration(config.to_json()))

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
        """Say once what a step with layer data takes, and which ranks write elsewhere."""
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
        process_end.forget(self.ending.note_end)
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
        process_end.abandon()
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
