"""Asks the process that computes by kernels of float64: it is started when it is needed first."""

from __future__ import annotations

import atexit
import inspect
import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from mindrlhf_msprobe.common.processes import receive, send, start_fresh
from mindrlhf_msprobe.replay.kernels.asked import Answer, Asked, Refused

if TYPE_CHECKING:
    import subprocess

_MODULE = "mindrlhf_msprobe.replay.kernels.process"
#: Seconds after which a process is given up: the first answer waits for MindSpore's import.
_PATIENCE = 120.0
#: How often a process that ended is started again.
_MOST_STARTS = 4


class NoAnswerError(Exception):
    """No kernel of float64 computes what was asked for."""


class KernelProcess:
    """The process, with what it refused.

    Args:
        most_starts: how often it is started, again where an operator has ended it.
    """

    def __init__(self, most_starts: int = _MOST_STARTS) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._to: BinaryIO | None = None
        self._from: BinaryIO | None = None
        self._starts_left = most_starts
        self._fatal: set[str] = set()

    def ask(self, asked: Asked) -> Answer:
        """Return what kernels give.

        Raises:
            NoAnswerError: there is none, or the process cannot be.
        """
        with self._lock:
            if asked.operator in self._fatal:
                raise NoAnswerError(asked.operator)
            try:
                said = self._asked(asked)
            except (
                OSError,
                EOFError,
                ValueError,
            ) as error:  # it has ended, and is another one next
                self._fatal.add(asked.operator)
                self._end()
                raise NoAnswerError(asked.operator) from error
        if isinstance(said, Refused):
            raise NoAnswerError(said.why)
        return said

    def _asked(self, asked: Asked) -> Answer | Refused:
        if self._process is None or self._pid != os.getpid():
            self._start()
        assert self._to is not None
        assert self._from is not None
        send(self._to, asked)
        waiting = select.poll()
        waiting.register(self._from, select.POLLIN)
        if not waiting.poll(_PATIENCE * 1000):
            raise EOFError
        said: Answer | Refused = receive(self._from)
        return said

    def _start(self) -> None:
        if not self._starts_left:
            raise EOFError
        self._starts_left -= 1
        there, to = os.pipe()
        back, here = os.pipe()
        self._to, self._from = os.fdopen(to, "wb"), os.fdopen(back, "rb")
        try:
            self._process, self._pid = start_fresh(_MODULE, (there, here)), os.getpid()
        finally:
            os.close(there)
            os.close(here)
        atexit.register(self.end)

    def end(self) -> None:
        """End the process; another one is started when it is needed."""
        with self._lock:
            self._end()
        atexit.unregister(self.end)

    def _end(self) -> None:
        for pipe in (self._to, self._from):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if self._process is not None and self._pid == os.getpid():
            self._process.kill()
            self._process.wait()
        self._process = self._to = self._from = None


#: The one of this process.
KERNELS = KernelProcess()


def attributes_of(primitive: Any) -> dict[str, Any]:
    """Return what a primitive was made with.

    Raises:
        NoAnswerError: that cannot be told: some are held as other values than they were given as.
    """
    parameters = [*inspect.signature(type(primitive).__init__).parameters.values()][1:]
    raw, held = primitive.init_attrs, primitive.attrs
    found = {}
    for one in parameters:
        value = raw.get(one.name, held.get(one.name, one.empty))
        known = one.name in raw or not isinstance(one.default, str)
        if not known or not _is_plain(value):
            raise NoAnswerError(one.name)
        found[one.name] = value
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, type(None)))
