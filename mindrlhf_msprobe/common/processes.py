"""Copies of this process (fork): whether one may be made, and what it does first."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import NoReturn


def available_cores() -> int:
    """Return how many cores this process may use; all of the machine where none can be named."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on this platform, or refused in a sandbox
        return os.cpu_count() or 1


_WITH_THREADS = ("mindspore", "ray", "torch", "tensorflow")  # that Python does not count


def may_fork() -> bool:
    """Tell whether this process has no threads but those that numpy looks after itself."""
    return (
        hasattr(os, "fork")
        and threading.active_count() == 1
        and not any(module in sys.modules for module in _WITH_THREADS)
    )


def forked(work: Callable[[], object], others: Iterable[int]) -> int:
    """Do `work` in a copy of this process, and return its number.

    The copy ends with the work. It has a session and no terminal of its own, and Ctrl-C does not
    reach it: this process ends it.

    Args:
        others: files that are open here and are closed in the copy.

    Raises:
        OSError: there can be no more processes.
    """
    # A Ctrl-C that reached the copy before it ignores that would end this program twice.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():  # Python 3.12 counts numpy's threads
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _serve(work, others)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def _serve(work: Callable[[], object], others: Iterable[int]) -> NoReturn:
    """Be the copy; never returns into the code that was forked."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        for end in others:
            os.close(end)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        work()
        code = 0
    finally:
        os._exit(code)
