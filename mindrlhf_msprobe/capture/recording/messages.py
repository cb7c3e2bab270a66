"""What recording says in the log: each thing once, however often it happens."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.capture.settings.configurations import as_text
from mindrlhf_msprobe.capture.words import in_english
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.config import NO_END, ProbeConfig
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.storage.directory.hold import Loss

_HOW_LOST = {
    Loss.REMOVED: "was removed while this job records into it",
    Loss.MOVED: "was moved away while this job records into it",
    Loss.REPLACED: "is another directory by now than the one that this job claimed",
    Loss.LOCK_GONE: "is no longer this job's alone: the file that locks it was removed",
    Loss.LOCK_TAKEN: "was taken by another job while this one records into it",
    Loss.MANIFEST_GONE: "has lost {manifest}: it was removed while this job records into it",
    Loss.MANIFEST_REPLACED: "has another {manifest} by now than the one that this job wrote",
}
_MOST_TEXTS = 10  # values of a configuration that one message names


class Messages:
    """The messages of one recorder."""

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._told: set[Hashable] = set()

    def _first(self, *event: Hashable) -> bool:
        """Tell whether an event has not been told of, and take it as told."""
        known = event in self._told
        self._told.add(event)
        return not known

    def has_told(self, *event: Hashable) -> bool:
        """Tell whether an event has been told of."""
        return event in self._told

    def started(self, root: Path, step: int, *, continues: bool) -> None:
        """Say where is recorded and what; `continues`: an earlier attempt's run."""
        config = self._config
        phases = [p.name for p in config.phase_table().values() if config.records_phase(p)]
        layers = f"layers of {', '.join(phases)} in {_steps(config)}"
        parts = (
            (layers, phases),
            ("key data", config.key_data_dump),
            ("configurations", config.configurations_dump),
        )
        logger.info(
            "%s %s from step %d on: %s",
            "continuing the run in" if continues else "recording to",
            root,
            step,
            "; ".join(what for what, wanted in parts if wanted) or "nothing is switched on",
        )

    def starts_at(self, step: int) -> None:
        """Say that the trainer told the step it resumes with."""
        logger.info("the training resumes with step %d", step)

    def fault(self, what: str, step: int, error: BaseException) -> None:
        """Say what could not be recorded; with the traceback at level debug."""
        logger.warning(
            "could not record %s (step %d): %s: %s. Training goes on; further losses of this "
            "kind are counted in run.json.",
            what,
            step,
            type(error).__name__,
            error,
            exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
        )

    def hold_lost(self, root: Path, manifest: str, step: int, loss: Loss) -> None:
        """Say that the directory is no longer this run's, so that recording has ended."""
        if self._first("hold lost"):
            logger.warning(
                "dump_path %s %s. Recording stops in step %d: nothing more is written, and what is "
                "still to come is counted and named when the probe is closed. Training goes on. To "
                "record again, start the job with a dump_path that is left alone while it runs.",
                root,
                _HOW_LOST[loss].format(manifest=manifest),
                step,
            )

    def place_lost(self, root: Path, step: int, place: Path, steps: int, taken: bool) -> None:
        """Say that a directory of a phase or of key data is gone, or is another one by now.

        Args:
            steps: how many of those that were recorded into it are lost.
        """
        if self._first("place lost", place, taken):
            logger.warning(
                "%s %s while this job records into it, which was noticed in step %d: %d step(s) "
                "that were recorded there are lost. %s Training goes on; what is lost is counted.",
                root / place,
                "was replaced by something else" if taken else "was removed",
                step,
                steps,
                "Nothing is recorded into what stands there now: move it away to record again."
                if taken
                else "Recording goes on in a new directory.",
            )

    def silent(self, phase: Phase, step: int) -> None:
        """Say that no cell ran in a phase."""
        if self._first("silent", phase.name):
            logger.warning(
                "phase %s, step %d: no cell of the %s network that was watched ran inside it, so "
                "nothing was recorded. Check that the phase is wrapped around the right call, that "
                "the network that runs is the one given to watch(), that include and exclude leave "
                "cells of it, and that watch() was called before it was first compiled.",
                phase.name,
                step,
                phase.role,
            )

    def texts(self, texts: Mapping[str, Any]) -> None:
        """Say which values of the configurations were written as texts: place → value."""
        new = {path: value for path, value in texts.items() if self._first("text", path)}
        if not new:
            return
        told = [
            f"{path} is a {type(value).__name__}, written as the text {as_text(value):.80s}"
            for path, value in itertools.islice(new.items(), _MOST_TEXTS)
        ]
        left = len(new) - len(told)
        more = f"; and {left} more" if left else ""
        logger.warning("configurations: %s%s", "; ".join(told), more)

    def left_out(self, what: str, why: Iterable[Message]) -> None:
        """Say that something which is switched on is not recorded."""
        logger.warning("%s are not recorded: %s", what, in_english(*why))

    def gaps(self, role: str, gaps: Mapping[str, Iterable[Message]]) -> None:
        """Say which cells of a network could not be recorded whole, being compiled."""
        cells = "; ".join(f"{cell}: {in_english(*reasons)}" for cell, reasons in gaps.items())
        logger.warning(
            "the %s network is compiled, and of these cells something cannot be recorded (see "
            "coverage.graph_mode in run.json): %s",
            role,
            cells,
        )

    def lost(self, lost: Mapping[str, int], noted: bool) -> None:
        """Say, at the end, what was lost; `noted`: run.json has it too."""
        kinds = ", ".join(f"{what}: {count}" for what, count in lost.items())
        where = " (see run.json)" if noted else ""
        logger.warning("records lost while recording%s: %s", where, kinds)

    def step_forgotten(self, phase: str, times: int, step: int) -> None:
        """Say that a phase was opened several times and no step was ever ended."""
        logger.warning(
            "step() was never called, although phase %s was opened %d times: all of it stands in "
            "step %d. Call probe.step() at the end of every training step.",
            phase,
            times,
            step,
        )

    def configurations_forgotten(self) -> None:
        """Say that configurations were to be recorded and none came."""
        logger.warning(
            "configurations_dump is true, but save_configs() was never called: there is no "
            "configurations.json. Call probe.save_configs({name: configuration, …}) once, or set "
            "configurations_dump to false."
        )

    def nothing_recorded(self, phase: str, first: int, last: int) -> None:
        """Say, at the end, that a phase is switched on, ran in these steps, and left nothing."""
        logger.warning(
            "phase %s is switched on and ran in steps %d to %d, but nothing of it was recorded: %s",
            phase,
            first,
            last,
            self._why_nothing(phase, first, last),
        )

    def _why_nothing(self, phase: str, first: int, last: int) -> str:
        config = self._config
        if "forward" not in config.directions:
            return "directions leaves out forward, and no gradients were computed in it"
        if config.steps and not any(first <= step <= last for step in config.steps):
            return f"steps {list(config.steps)} meets none of them"
        if last < config.step_start or first > config.step_end:
            return f"step_start {config.step_start} … step_end {config.step_end} meets none of them"
        limits = [
            f"{name} {list(getattr(config, name))}"
            for name in ("include", "exclude", "entries", "scope")
            if getattr(config, name)
        ]
        if config.phase_table()[phase].counts_tokens:
            start, end = config.token_range_start, config.token_range_end
            limits.insert(0, f"token_range_start {start} … token_range_end {end}")
        return f"look at {', '.join(limits)}" if limits else "no cell of its network ran to an end"


def _steps(config: ProbeConfig) -> str:
    if config.step_end < NO_END:
        return f"steps {config.step_start} to {config.step_end}"
    return f"all steps from {config.step_start} on" if config.step_start else "all steps"
