"""Files with a line of JSON for each thing that is told of a rank's steps.

Lines are appended whole, and read as far as they are whole: of a process that was killed the last
one may not be.

generators.rank<N>.jsonl: the states of random generators behind each rollout of a rank.
findings.rank<N>.jsonl: what was found in the steps of one rank while it trained, a line each.
free_benchmark.rank<N>.jsonl: what became of disturbed computations, a line an output.
opinions.rank<N>.jsonl: what is thought of calls that were computed again (accuracy_check).
timeline.rank<N>.jsonl: when the phases of each step ran, a line a step.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, TypeVar

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message, read_message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import (
    dump_json,
    loads,
    number_from_json,
    number_to_json,
    write_all,
    write_atomic,
)

_STEP = re.compile(rb'\{"step": ([0-9]{1,18})[,}]')
_T = TypeVar("_T")


def step_line(raw: bytes) -> dict[str, Any] | None:
    """Return what a line says of a step; None if it is no such line."""
    try:
        found = loads(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and bounds.is_place(found.get("step")) else None


class StepLines(Generic[_T]):
    """One such file: the one door to it, for those who write it and those who read it.

    Args:
        root: the run's directory.
        kind: of the lines, one of `layout.LINES`.
        rank: whose they are.
        line: returns what a line says, or raises one of `NO_LINE` where a field is not of its type
            and in its bounds.
        most, longest: bytes of the file, and of a line, that are read.

    Attributes:
        path: the file.
        damaged: how many lines that were read are not what they should be; they are left out.
    """

    def __init__(
        self,
        root: Path,
        kind: str,
        rank: int,
        line: Callable[[dict[str, Any]], _T],
        *,
        most: int,
        longest: int,
    ) -> None:
        self._root, self._parse = root, line
        self.path = root / layout.lines_name(kind, rank)
        self._most, self._longest = most, longest
        self.damaged = 0

    def append(self, lines: Iterable[Mapping[str, Any]]) -> int:
        """Append lines, all of them or none; return how many bytes. The file is made with them.

        Args:
            lines: each has at least `step`.

        Raises:
            OSError: the file cannot be written, or something that is no plain file stands there.
        """
        content = b"".join(map(_line, lines))
        # A pipe that nobody reads would be waited for.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self.path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, message("fault.of_others"), str(self.path))
            try:
                return write_all(file, content)
            except OSError:  # on a full disk part of a line may be there
                os.ftruncate(file, before.st_size)
                raise
        finally:
            os.close(file)

    def forget(self, first_step: int) -> None:
        """Remove the lines of steps from one on, which run again, and what is no line.

        Raises:
            OSError: the file cannot be read or written.
        """
        if not self.path.is_file() or self.path.is_symlink():  # appending to it says so
            return
        kept = (_line(line) for line, _ in self._lines() if line["step"] < first_step)
        if not write_atomic(self.path, kept):
            self.path.unlink()

    def read(self) -> Iterator[_T]:
        """Yield the lines in the order in which they were written; none where there is no file."""
        self.damaged = 0
        return (found for _, found in self._lines())

    def steps(self) -> list[int]:
        """Return the steps of which there is a line.

        Raises:
            OSError, ValueError: the file cannot be read, leaves the run or is too large.
        """
        found: set[int] = set()
        for step, _ in self._whole():
            found.add(step)
            if len(found) > bounds.TIMELINE_STEPS:
                raise layout.UnreadError.saying("unread.many_steps", most=bounds.TIMELINE_STEPS)
        return sorted(found)

    def of_step(self, step: int) -> _T | None:
        """Return what the last line of a step says; None where there is none.

        Raises:
            OSError, ValueError: the file cannot be read, leaves the run or is too large, or the
                line is not one of ours.
        """
        found = None
        for number, raw in self._whole():
            found = raw if number == step else found
        if found is None:
            return None
        line = step_line(found)
        try:
            if line is None or line["step"] != step:
                raise ValueError
            return self._parse(line)
        except NO_LINE:
            raise layout.UnreadError.saying("unread.no_times", step=step) from None

    def _whole(self) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines with their steps, unread; half a line at the end is none."""
        self.damaged = 0
        try:
            file = layout.open_inside(self._root, self.path, self._most)
        except FileNotFoundError:
            return
        with file:
            while (raw := file.readline(self._longest)).endswith(b"\n"):
                found = _STEP.match(raw)
                if found and raw.endswith(b"}\n"):
                    yield int(found[1]), raw
                else:
                    self.damaged += 1
        if len(raw) == self._longest:
            most = bounds.in_bytes(self._longest)
            raise layout.UnreadError.saying("unread.long_line", most=most)

    def _lines(self) -> Iterator[tuple[dict[str, Any], _T]]:
        try:
            file = layout.open_inside(self._root, self.path, self._most)
        except (OSError, ValueError):
            return
        with file:
            while raw := file.readline(self._longest):
                line = step_line(raw)
                try:
                    if line is None:
                        raise ValueError
                    yield line, self._parse(line)
                except NO_LINE:
                    # One that is cut short, at the end, is that of a process that was killed.
                    self.damaged += raw.endswith(b"\n") or len(raw) == self._longest


#: What reading a line raises that is not what it should be.
NO_LINE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


def _line(content: Mapping[str, Any]) -> bytes:
    return dump_json(content) + b"\n"


def generator_lines(root: Path, rank: int) -> StepLines[tuple[tuple[int, int], dict[str, Any]]]:
    """Return the file of a rank, a line for each call: `step`, `call` and `states`.

    It is read as (step, number of the rollout in it), and generator → state.
    """

    def parsed(line: dict[str, Any]) -> tuple[tuple[int, int], dict[str, Any]]:
        return (bounds.count(line["step"]), bounds.count(line["call"])), dict(line["states"])

    most, longest = bounds.JOURNAL, bounds.TIMELINE_LINE
    return StepLines(root, layout.GENERATORS, rank, parsed, most=most, longest=longest)


def finding_lines(root: Path, rank: int) -> StepLines[dict[str, Any]]:
    """Return the file of what was found in a rank's steps while it trained.

    A line has at least `step`, `rank`, `rule`, `severity`, `code` and `params`.
    """
    most = bounds.METADATA
    return StepLines(root, layout.FINDINGS, rank, dict, most=most, longest=most)


def benchmark_lines(root: Path, rank: int) -> StepLines[dict[str, Any]]:
    """Return the file of a rank's rows, which have at least `step`, `phase` and `entry`."""
    return StepLines(root, layout.BENCHMARK, rank, _row, most=bounds.JOURNAL, longest=1 << 20)


class RowsOfSteps:
    """The rows of a rank, read once, as far as they are wanted.

    Args:
        rows: in the order of their steps; one that says a later step holds up no others.
        steps: which there are; rows of others are passed over.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], steps: Iterable[int]) -> None:
        known = {*steps}
        self._rows = (row for row in rows if row["step"] in known)
        self._next: dict[str, Any] | None = next(self._rows, None)

    def take(self, step: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a step, and those of earlier ones that stood behind later ones."""
        while self._next is not None and self._next["step"] <= step:
            row, self._next = self._next, next(self._rows, None)
            yield row


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that says what every row does, in the form in which it is written."""
    bounds.count(row["step"])
    for name in ("phase", "entry", "pert_mode", "stage"):
        bounds.text(row[name])
    if "why" in row:
        bounds.items(row["why"])
        return row
    if type(row["consistent"]) is not bool:
        raise ValueError
    for kind, names in _KINDS.items():
        for name in names:
            if row.get(name) is not None:
                kind(row[name])
    return row


#: Of a row that is no reason why: the fields that may be there, or are None.
_KINDS: dict[Callable[[Any], Any], tuple[str, ...]] = {
    bounds.number: ("change", "ratio", "threshold", "disturbed_by"),
    bounds.count: ("rank", "output_index", "differing"),
    bounds.text: ("path", "dtype", "coarsest", "handler_type"),
    lambda shape: [*map(bounds.count, bounds.items(shape))]: ("shape",),
}


ORDINARY, WRONG, UNDECIDED = "ordinary", "wrong", "undecided"


@dataclass(frozen=True, slots=True)
class TensorOpinion:
    """What is thought of one tensor of a call.

    Attributes:
        record: its record's name.
        opinion: ordinary, wrong or undecided.
        ratio: how many times what rounding explains it is away from the exact one, at worst.
        error, explained: relative to the norm of the exact tensor.
        at: the index of the element that is furthest beyond.
        actual, exact: that element.
        reason: a code of the area `opinion`; "" where there is nothing to say.
    """

    record: str
    opinion: str
    ratio: float = 0.0
    error: float = 0.0
    explained: float = 0.0
    at: tuple[int, ...] = ()
    actual: float = 0.0
    exact: float = 0.0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in its line."""
        numbers = ("ratio", "error", "explained", "actual", "exact")
        return {
            **{"record": self.record, "opinion": self.opinion, "at": [*self.at]},
            **{name: number_to_json(getattr(self, name)) for name in numbers},
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class CallOpinion:
    """What is thought of one call, or of its gradients.

    Attributes:
        entry: its entry; of gradients the backward one.
        cell: the cell it is, or is in; "" outside every cell.
        precision: the floating dtype whose rounding counts.
        seconds: what the second computation took.
        why: why there is no opinion, or None.
        tensors: one for each tensor.
        needed: whether an opinion is missed where there is none: not of what computes no floating
            numbers, nor of a cell all of whose operators were looked at by themselves.
    """

    step: int
    rank: int
    phase: str
    entry: str
    cell: str = ""
    precision: str = ""
    seconds: float = 0.0
    why: Message | None = None
    tensors: tuple[TensorOpinion, ...] = field(default_factory=tuple)
    needed: bool = True

    @property
    def opinion(self) -> str:
        """The gravest of its tensors'."""
        found = {tensor.opinion for tensor in self.tensors}
        if self.why is not None or not found:
            return UNDECIDED
        return next(one for one in (WRONG, UNDECIDED, ORDINARY) if one in found)


def opinion_lines(root: Path, rank: int) -> StepLines[CallOpinion]:
    """Return the file of the opinions on a rank's calls, in the order in which they were given.

    A line has `step`, `rank`, `phase`, `entry`, `cell`, `precision`, `seconds`, and `tensors` or
    `why`.
    """
    most, longest = bounds.OPINIONS, bounds.TIMELINE_LINE
    return StepLines(root, layout.OPINIONS, rank, _opinion, most=most, longest=longest)


def _opinion(line: Mapping[str, Any]) -> CallOpinion:
    why = line.get("why")
    said = None if why is None else read_message(dict(why))
    if why is not None and said is None:
        raise ValueError
    return CallOpinion(
        bounds.count(line["step"]),
        bounds.count(line["rank"]),
        bounds.text(line["phase"]),
        bounds.text(line["entry"]),
        bounds.text(line["cell"]),
        bounds.text(line["precision"]),
        bounds.number(line["seconds"]),
        said,
        tuple(map(_tensor, bounds.items(line.get("tensors", [])))),
        line.get("needed") is not False,
    )


def _tensor(found: Mapping[str, Any]) -> TensorOpinion:
    if found["opinion"] not in (ORDINARY, WRONG, UNDECIDED):
        raise ValueError
    numbers = ("ratio", "error", "explained", "actual", "exact")
    return TensorOpinion(
        bounds.text(found["record"]),
        found["opinion"],
        at=tuple(map(bounds.count, bounds.items(found["at"]))),
        reason=bounds.text(found["reason"]),
        **{name: _number(found[name]) for name in numbers},
    )


def _number(value: Any) -> float:
    """Return a number; not a finite one where it is written by name."""
    if isinstance(value, str) and isinstance(named := number_from_json(value), float):
        return named
    return bounds.number(value)


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


#: Openings, and saves, of a step that are listed; further ones are counted.
MOST_LISTED = 1000


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


def time_lines(root: Path, rank: int) -> StepLines[StepTimes]:
    """Return the file of the times of a rank's steps: `step` stands first in each line."""

    def parsed(line: dict[str, Any]) -> StepTimes:
        if line["rank"] != rank:
            raise ValueError
        unlisted = line.get("unlisted", {})
        return StepTimes(
            line["step"],
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

    most, longest = bounds.JOURNAL, bounds.TIMELINE_LINE
    return StepLines(root, layout.TIMELINE, rank, parsed, most=most, longest=longest)


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


#: What returns each file of lines of a rank.
ALL_LINES: tuple[Callable[[Path, int], StepLines[Any]], ...] = (
    *(generator_lines, finding_lines, benchmark_lines, opinion_lines, time_lines),
)
