"""A process that imports openpyxl and makes blank workbooks while this one compares."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import sys
import time
from collections import deque
from functools import partial

from mindrlhf_msprobe.common.processes import available_cores, forked, may_fork
from mindrlhf_msprobe.report.formats.outline import Blank, Outline

_PATIENCE = 30.0  # seconds for one workbook, after which it is made in this process
_SECONDS_TO_END = 1.0
_KEPT = 8  # workbooks
_LENGTH = struct.Struct("<Q")  # stands before each answer


def start() -> BlankProcess | None:
    """Start the process; None where it cannot be had, or is not worth while."""
    worth_while = "openpyxl" not in sys.modules and available_cores() > 1
    if not (worth_while and may_fork()):
        return None
    try:
        return BlankProcess()
    except OSError:  # no more processes, or no more files
        return None


class BlankProcess:
    """The process, and what it was asked for.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            asked, ask, answers, answer = ends
            self._pid = forked(partial(_serve, asked, answer), (ask, answers))
        except BaseException:
            for end in ends:
                os.close(end)
            raise
        os.close(asked)
        os.close(answer)
        self._ask: int | None = ask
        self._answers = answers
        self._asked: deque[tuple[Outline, ...]] = deque()
        self._made: dict[tuple[Outline, ...], Blank] = {}
        self._works = True

    def ask(self, outlines: tuple[Outline, ...]) -> None:
        """Have a workbook made that will be taken."""
        if not self._works or outlines in self._made or outlines in self._asked:
            return
        if self._ask is None:
            self._works = False
            return
        try:
            with os.fdopen(self._ask, "wb", closefd=False) as pipe:
                pickle.dump(outlines, pipe, pickle.HIGHEST_PROTOCOL)
        except OSError:  # it has ended
            self._works = False
        self._asked.append(outlines)

    def ask_no_more(self) -> None:
        """Let it end as soon as it has made what it was asked for."""
        if self._ask is not None:
            os.close(self._ask)
            self._ask = None

    def take(self, outlines: tuple[Outline, ...]) -> Blank | None:
        """Return a workbook; None if the process does not make it."""
        self.ask(outlines)
        while self._works and outlines not in self._made:
            try:
                (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
                made: Blank = pickle.loads(self._read(length))
            except (OSError, EOFError):
                self._works = False
                break
            if len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            self._made[self._asked.popleft()] = made
        return self._made.get(outlines)

    def _read(self, length: int) -> bytes:
        parts = []
        while length:
            if not select.select([self._answers], [], [], _PATIENCE)[0]:
                raise EOFError  # it was stopped
            part = os.read(self._answers, length)
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """End the process."""
        self.ask_no_more()
        os.close(self._answers)
        until = time.monotonic() + _SECONDS_TO_END
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for it
            while not os.waitpid(self._pid, os.WNOHANG)[0]:
                if time.monotonic() >= until:
                    os.kill(self._pid, signal.SIGKILL)
                    until = float("inf")
                time.sleep(0.001)


def _serve(asked: int, answer: int) -> None:
    """Make what is asked for, until nobody can ask any more."""
    from mindrlhf_msprobe.report.formats.blank_openpyxl import make

    with (
        os.fdopen(asked, "rb") as requests,
        os.fdopen(answer, "wb") as answers,
        contextlib.suppress(EOFError, BrokenPipeError),
    ):
        while True:
            made = pickle.dumps(make(pickle.load(requests)), pickle.HIGHEST_PROTOCOL)
            answers.write(_LENGTH.pack(len(made)) + made)
            answers.flush()
