"""What recording says in the log: each thing once, however often it happens."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.capture.settings.configurations import as_text
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import NO_END, ProbeConfig
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.storage.directory.hold import Loss

_MOST_TEXTS = 10  # values of a configuration that one message names


class Messages:
    """The messages of one recorder."""

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._reported: set[Hashable] = set()

    def _first(self, *event: Hashable) -> bool:
        """Tell whether an event has not been reported, and note that it is."""
        known = event in self._reported
        self._reported.add(event)
        return not known

    def has_reported(self, *event: Hashable) -> bool:
        """Tell whether an event has been reported."""
        return event in self._reported

    def started(self, root: Path, step: int, *, continues: bool) -> None:
        """Say where is recorded and what; `continues`: an earlier attempt's run."""
        config = self._config
        phases = [p.name for p in config.phase_table().values() if config.records_phase(p)]
        layers = message("log.layers", phases=phases, steps=_steps(config))
        parts = (
            (layers, phases),
            (message("listing.key_data"), config.key_data_dump),
            (message("log.configurations"), config.configurations_dump),
        )
        what = [part for part, wanted in parts if wanted] or [message("log.nothing_on")]
        code = "log.continuing" if continues else "log.recording"
        logger.info("%s", message(code, root=str(root), step=step, what=what))

    def starts_at(self, step: int) -> None:
        """Say that the trainer named the step it resumes with."""
        logger.info("%s", message("log.resumes", step=step))

    def fault(self, what: str, step: int, error: BaseException) -> None:
        """Say what could not be recorded; with the traceback at level debug."""
        kind = type(error).__name__
        logger.warning(
            "%s",
            message("log.fault", what=what, step=step, kind=kind, error=error),
            exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
        )

    def hold_lost(self, root: Path, manifest: str, step: int, loss: Loss) -> None:
        """Say that the directory is no longer this run's, so that recording has ended."""
        if self._first("hold lost"):
            how = message(f"log.loss_{loss.value}", manifest=manifest)
            logger.warning("%s", message("log.hold_lost", root=str(root), how=how, step=step))

    def place_lost(self, root: Path, step: int, place: Path, steps: int, taken: bool) -> None:
        """Say that a directory of a phase or of key data is gone, or is another one by now.

        Args:
            steps: how many of those that were recorded into it are lost.
        """
        if self._first("place lost", place, taken):
            code = "log.place_taken" if taken else "log.place_removed"
            logger.warning("%s", message(code, path=str(root / place), step=step, steps=steps))

    def silent(self, phase: Phase, step: int) -> None:
        """Say that no cell ran in a phase."""
        if self._first("silent", phase.name):
            known = {"phase": phase.name, "step": step, "role": phase.role}
            logger.warning("%s", message("log.silent", **known))

    def texts(self, texts: Mapping[str, Any]) -> None:
        """Say which values of the configurations were written as texts: place → value."""
        new = {path: value for path, value in texts.items() if self._first("text", path)}
        if not new:
            return
        shown = [
            message("log.text", path=path, kind=type(value).__name__, text=as_text(value)[:80])
            for path, value in itertools.islice(new.items(), _MOST_TEXTS)
        ]
        logger.warning("%s", message("log.texts", what=shown, left=len(new) - len(shown)))

    def left_out(self, what: str, why: Iterable[Message]) -> None:
        """Say that something which is switched on is not recorded."""
        logger.warning("%s", message("log.left_out", what=what, why=[*why]))

    def gaps(self, role: str, gaps: Mapping[str, Iterable[Message]]) -> None:
        """Say which cells of a network could not be recorded whole, being compiled."""
        cells = [message("log.gap", cell=cell, why=[*reasons]) for cell, reasons in gaps.items()]
        logger.warning("%s", message("log.gaps", role=role, cells=cells))

    def lost(self, lost: Mapping[str, int], noted: bool) -> None:
        """Say, at the end, what was lost; `noted`: run.json has it too."""
        logger.warning("%s", message("log.lost", lost=[*lost.items()], noted=noted))

    def step_forgotten(self, phase: str, times: int, step: int) -> None:
        """Say that a phase was opened several times and no step was ever ended."""
        known = {"phase": phase, "times": times, "step": step}
        logger.warning("%s", message("log.step_forgotten", **known))

    def configurations_forgotten(self) -> None:
        """Say that configurations were to be recorded and none came."""
        logger.warning("%s", message("log.configurations_forgotten"))

    def nothing_recorded(self, phase: str, first: int, last: int) -> None:
        """Say, at the end, that a phase is switched on, ran in these steps, and left nothing."""
        why = self._why_nothing(phase, first, last)
        known = {"phase": phase, "first": first, "last": last}
        logger.warning("%s", message("log.nothing_recorded", **known, why=why))

    def _why_nothing(self, phase: str, first: int, last: int) -> Message:
        config = self._config
        if "forward" not in config.directions:
            return message("log.no_forward")
        if config.steps and not any(first <= step <= last for step in config.steps):
            return message("log.meets_none", what=f"steps {list(config.steps)}")
        if last < config.step_start or first > config.step_end:
            window = f"step_start {config.step_start} … step_end {config.step_end}"
            return message("log.meets_none", what=window)
        limits = [
            f"{name} {list(getattr(config, name))}"
            for name in ("include", "exclude", "entries", "scope")
            if getattr(config, name)
        ]
        if config.phase_table()[phase].counts_tokens:
            start, end = config.token_range_start, config.token_range_end
            limits.insert(0, f"token_range_start {start} … token_range_end {end}")
        return message("log.look_at", what=limits) if limits else message("log.no_cell_ended")


def _steps(config: ProbeConfig) -> Message:
    if config.step_end < NO_END:
        return message("log.steps", first=config.step_start, last=config.step_end)
    return message("log.steps_from", first=config.step_start)
