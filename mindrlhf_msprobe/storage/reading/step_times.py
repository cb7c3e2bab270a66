"""The times of the steps of one rank: timeline.rank<N>.jsonl, written and read."""

from __future__ import annotations

import os
import re
import stat
from array import array
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, loads, write_atomic
from mindrlhf_msprobe.storage.step_lines import append_whole

_STEP = re.compile(rb'\{"step": ([0-9]{1,18})[,}]')


@dataclass(frozen=True)
class PhaseTime:
    """One opening of a phase. Phases that are open together have the same times.

    Attributes:
        phase: its name.
        opening: how often it had been opened in this step before; of a phase that was recorded, as
            in its entries.
        recorded: whether it was recorded.
        began: seconds since the step began.
        seconds: how long it was open, recording included.
        recording: how many of them recording took in the training's threads; None: not known.
    """

    phase: str
    opening: int
    recorded: bool
    began: float
    seconds: float
    recording: float | None = None


@dataclass(frozen=True)
class SaveTime:
    """One save of key data.

    Attributes:
        key, micro_step: what was saved; None: without a micro-step.
        at: seconds since the step began.
    """

    key: str
    micro_step: int | None
    at: float


@dataclass(frozen=True)
class UnlistedPhase:
    """Openings of a phase beyond those that are listed one by one.

    Attributes:
        openings: how many.
        seconds: how long they were open, together.
    """

    phase: str
    openings: int
    seconds: float


@dataclass(frozen=True)
class StepTimes:
    """When the phases of a finished step ran on one rank, in seconds of the host's clock.

    Attributes:
        step, rank: which.
        ended: when `Probe.step()` was called, in seconds since 1970 (UTC).
        seconds: how long the step took, from the end of the one before; of the first, from its
            first phase or save.
        phases: the openings that ended: `phase`, `opening`, `recorded`, `began`, `seconds`,
            `recording`.
        key_data: the saves: `key`, `micro_step`, `at`.
        unlisted: openings beyond 1000 a step: `phase`, `openings`, `seconds`.
        unlisted_key_data: how many saves are not listed.
    """

    step: int
    rank: int
    ended: float
    seconds: float
    phases: tuple[PhaseTime, ...] = field(default=(), repr=False)
    key_data: tuple[SaveTime, ...] = field(default=(), repr=False)
    unlisted: tuple[UnlistedPhase, ...] = ()
    unlisted_key_data: int = 0

    def of_phases(self) -> dict[str, tuple[int, float]]:
        """Return for each phase how often it was opened, and its seconds in all."""
        found: dict[str, tuple[int, float]] = {}
        opened = [(one.phase, 1, one.seconds) for one in self.phases]
        opened += [(one.phase, one.openings, one.seconds) for one in self.unlisted]
        for phase, openings, seconds in opened:
            before = found.get(phase, (0, 0.0))
            found[phase] = before[0] + openings, before[1] + seconds
        return found


class Timeline:
    """The times of one rank's steps; holds where the line of each stands, 16 bytes a step.

    A file that grows is read on when a step is asked for that was not there.

    Args:
        root: the run's directory.

    Attributes:
        path: the file.
        damaged: how many whole lines of it are of no step.
    """

    def __init__(self, root: Path, rank: int) -> None:
        self.path = root / layout.timeline_name(rank)
        self.damaged = 0
        self._root, self._rank = root, rank
        self._read = 0  # bytes of whole lines
        self._steps, self._offsets = array("q"), array("q")
        self._order: np.ndarray | None = None

    def steps(self) -> list[int]:
        """Return the steps of which there is a line.

        Raises:
            OSError, ValueError: the file cannot be read, leaves the run or is too large.
        """
        self._read_on()
        return sorted({*self._steps})

    def at(self, step: int) -> StepTimes | None:
        """Return the times of a step; None where there are none.

        Of a step that ran again, those of the last time.

        Raises:
            OSError: the file cannot be read.
            ValueError: it leaves the run or is too large, or the line is none of ours.
        """
        offset = self._offset(step)
        if offset is None:
            self._read_on()
            offset = self._offset(step)
        if offset is None:
            return None
        with layout.open_inside(self._root, self.path, bounds.JOURNAL) as file:
            file.seek(offset)
            raw = file.readline(bounds.TIMELINE_LINE)
        return _times(raw, step, self._rank)

    def _offset(self, step: int) -> int | None:
        if not self._steps:
            return None
        steps = np.frombuffer(self._steps, np.int64)
        if self._order is None:
            self._order = np.argsort(steps, kind="stable")
        last = int(np.searchsorted(steps, step, "right", sorter=self._order)) - 1
        at = int(self._order[last])
        return self._offsets[at] if last >= 0 and self._steps[at] == step else None

    def _read_on(self) -> None:
        """Note where the lines stand that were appended since; half a line at the end is none."""
        try:
            file = layout.open_inside(self._root, self.path, bounds.JOURNAL)
        except FileNotFoundError:
            return
        with file:
            if file.seek(0, 2) < self._read:  # it was written anew
                self._read = self.damaged = 0
                self._steps, self._offsets, self._order = array("q"), array("q"), None
            file.seek(self._read)
            while raw := file.readline(bounds.TIMELINE_LINE):
                if not raw.endswith(b"\n"):
                    if len(raw) == bounds.TIMELINE_LINE:
                        most = bounds.in_bytes(bounds.TIMELINE_LINE)
                        raise layout.UnreadError.saying("unread.long_line", most=most)
                    return
                step = step_of_line(raw)
                if step is None:
                    self.damaged += 1
                elif len(self._steps) == bounds.TIMELINE_STEPS:
                    raise layout.UnreadError.saying("unread.many_steps", most=bounds.TIMELINE_STEPS)
                else:
                    self._order = None
                    self._steps.append(step)
                    self._offsets.append(self._read)
                self._read += len(raw)


def step_of_line(raw: bytes) -> int | None:
    """Return the step whose times a whole line holds; None where it does not begin like one."""
    found = _STEP.match(raw)
    return int(found[1]) if found and raw.endswith(b"}\n") else None


def _times(raw: bytes, step: int, rank: int) -> StepTimes:
    """Return what a line holds.

    Raises:
        ValueError: it is none of ours, or of another step or rank.
    """
    try:
        line = loads(raw)
        if (line["step"], line["rank"]) != (step, rank):
            raise ValueError
        unlisted = line.get("unlisted", {})
        return StepTimes(
            step,
            rank,
            bounds.number(line["ended"]),
            _seconds(line["seconds"]),
            tuple(map(_phase, bounds.items(line["phases"]))),
            tuple(map(_save, bounds.items(line["key_data"]))),
            tuple(
                UnlistedPhase(
                    bounds.text(phase), bounds.count(of["openings"]), _seconds(of["seconds"])
                )
                for phase, of in unlisted.get("phases", {}).items()
            ),
            bounds.count(unlisted.get("key_data", 0)),
        )
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise layout.UnreadError.saying("unread.no_times", step=step) from None


def _phase(found: Mapping[str, Any]) -> PhaseTime:
    recording = found.get("recording")
    if type(found["recorded"]) is not bool:
        raise ValueError
    return PhaseTime(
        bounds.text(found["phase"]),
        bounds.count(found["opening"]),
        found["recorded"],
        _seconds(found["began"]),
        _seconds(found["seconds"]),
        None if recording is None else _seconds(recording),
    )


def _save(found: Mapping[str, Any]) -> SaveTime:
    micro_step = found["micro_step"]
    micro_step = None if micro_step is None else bounds.count(micro_step)
    return SaveTime(bounds.text(found["key"]), micro_step, _seconds(found["at"]))


def _seconds(value: Any) -> float:
    if (seconds := bounds.number(value)) < 0:
        raise ValueError
    return seconds


def append_times(root: Path, rank: int, times: Mapping[str, Any]) -> None:
    """Append the times of one step, whole or not at all.

    Args:
        times: `step` first, by which a line is found.

    Raises:
        OSError: the file cannot be written, or something that is no plain file stands there.
    """
    append_whole(root / layout.timeline_name(rank), dump_json(times) + b"\n")


def forget_times(root: Path, rank: int, first_step: int) -> None:
    """Remove the times of a rank's steps from one on, which run again, and what is no line.

    Raises:
        OSError: the file cannot be read or written.
    """
    path = root / layout.timeline_name(rank)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):  # appending to it says that it is none
            return
    except FileNotFoundError:
        return
    with open(path, "rb") as file:
        lines = iter(lambda: file.readline(bounds.TIMELINE_LINE), b"")
        steps = ((raw, step_of_line(raw)) for raw in lines)
        kept = (raw for raw, step in steps if step is not None and step < first_step)
        if not write_atomic(path, kept):
            path.unlink()
