"""The process that follows a run, as the training sees it, and what both say to each other.

The training never waits for it in a step.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.processes import framed, start_fresh, take_messages
from mindrlhf_msprobe.findings.health import CheckFinding

#: Said to the follower instead of a step: there will be none.
NO_MORE = None


@dataclass(frozen=True)
class Task:
    """What a follower is to do.

    Attributes:
        root, rank: whose steps it follows.
        checks: whether it looks for findings.
        rules: the rule file; None: every rule is as it is.
        tensorboard: the directory of event files; None: none are written.
        compare_to: the run that each step is compared with; None: with none.
    """

    root: Path
    rank: int
    checks: bool
    tensorboard: Path | None
    rules: Path | None = None
    compare_to: Path | None = None


@dataclass(frozen=True)
class Ready:
    """It has begun to follow."""


@dataclass(frozen=True)
class Found:
    """What was found in a step, or at the end, and was not before.

    Attributes:
        findings: each with whether it follows from one before it.
    """

    findings: tuple[tuple[CheckFinding, bool], ...]


@dataclass(frozen=True)
class Diverged:
    """A step is not that of the run that is compared with; it is the first one.

    Attributes:
        step, phase, record: where it first diverges; of key data the phase may be None.
        cell: the name of the cell to blame; None for key data.
        said: why.
    """

    step: int
    phase: str | None
    record: str
    cell: str | None
    said: Message


@dataclass(frozen=True)
class Uncompared:
    """A step is not compared with that of the other run, nor are those behind it, mostly.

    Attributes:
        code: of the message that says why.
        params: its parameters, but for `path`, which names the other run.
    """

    code: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Behind:
    """Steps that were not looked at: there were too many, or they were thinned before."""

    steps: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """An observer failed and looks at no further step.

    Attributes:
        observer: its name.
        kind, text: what it raised.
    """

    observer: str
    kind: str
    text: str | Message


@dataclass(frozen=True)
class Looked:
    """A step was looked at."""

    step: int


@dataclass(frozen=True)
class Ended:
    """All steps that waited were looked at."""


Report = Ready | Found | Diverged | Uncompared | Behind | Fault | Looked | Ended


_MODULE = "mindrlhf_msprobe.live.follower"
_MOST_READ = 1 << 20
# A training may have left SIGPIPE as it is, which would end it where the process has died.
_AT_ONCE = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class Follower:
    """Starts the process and talks to it.

    Raises:
        OSError: there can be no more processes.
    """

    def __init__(self, task: Task) -> None:
        self._steps, there = socket.socketpair()
        self._reports, back = os.pipe()
        try:
            self._process = start_fresh(_MODULE, (there.fileno(), back))
        except BaseException:
            self._close()
            raise
        finally:
            there.close()
            os.close(back)
        os.set_blocking(self._reports, False)
        self._buffer = bytearray()
        self.ready = self.ended = False
        with suppress(OSError):  # it is dead, which reading from it shows
            self._steps.send(framed(task), _AT_ONCE)

    def announce(self, step: int | None) -> bool:
        """Say that a step has ended, or NO_MORE; False where too much waits to be read already."""
        try:
            self._steps.send(framed(step), _AT_ONCE)
        except BlockingIOError:
            return False
        except OSError:  # it is dead, which reading from it shows
            pass
        return True

    def reports(self, patience: float = 0.0) -> list[Report]:
        """Return what it has reported since, at most waiting so many seconds for anything."""
        if self.ended:
            return []
        waiting = select.poll()  # select() knows no file above 1023
        waiting.register(self._reports, select.POLLIN)
        waiting.poll(patience * 1000)
        try:
            while data := os.read(self._reports, _MOST_READ):
                self._buffer += data
            self.ended = True
        except BlockingIOError:
            pass
        found: list[Report] = take_messages(self._buffer)
        self.ready = self.ready or any(isinstance(one, Ready) for one in found)
        if self.ended and not any(isinstance(one, Ended) for one in found):
            said = message("fault.process_ended", code=self._process.wait())
            found.append(Fault("", "ProcessLookupError", said))
        return found

    def end(self, patience: float) -> list[Report]:
        """Let it look at the steps that wait, and end; return what it still reports.

        Args:
            patience: seconds to wait for each report before it is given up.
        """
        found: list[Report] = []
        since, said = time.monotonic(), False
        while not self.ended and time.monotonic() - since < patience:
            said = said or self.announce(NO_MORE)
            new = self.reports(min(1.0, patience))
            if new:
                since = time.monotonic()
            found += new
            if any(isinstance(one, Ended) for one in new):
                break
        self.abandon()
        self._process.kill()
        self._process.wait()
        return found

    def abandon(self) -> None:
        """Say nothing more to it and hear nothing: in a forked child, it is the parent's."""
        self.ended = True
        self._close()

    def _close(self) -> None:
        self._steps.close()
        with suppress(OSError):
            os.close(self._reports)
