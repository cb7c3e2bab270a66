"""How the process ends, as far as Python tells: `sys.exit()`, and threads that die by an exception.

What was there before is called as ever: whoever replaced `threading.excepthook` is called, too.

Whoever has wrapped what stands here keeps it, also after the last listener is gone: nobody can see
into a wrapper. So what stands here is made anew for each time, and calls, as long as it lives, what
stood there when it was made: it can never come to call itself. Where two of them are called one
within the other, the outer one tells.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

#: Told of an exception, and of the thread that ends by it; None for `sys.exit()` in the main one.
Listener = Callable[[BaseException, "threading.Thread | None"], None]

_listeners: list[Listener] = []
_lock = threading.RLock()
_on_its_way = threading.local()  # .ends: the statuses and exceptions it is called with


def listen(listener: Listener) -> None:
    """Tell `listener` from now on of what ends this process or one of its threads."""
    with _lock:
        if not _listeners:
            if not isinstance(sys.exit, _Exit):
                sys.exit = _Exit(sys.exit)
            if not isinstance(threading.excepthook, _ThreadDied):
                threading.excepthook = _ThreadDied(threading.excepthook)
        _listeners.append(listener)


def forget(listener: Listener) -> None:
    """Tell it no more; after the last one everything is as it was before the first."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if _listeners:
            return
        # Whoever has replaced one since calls it, and it goes on.
        while isinstance(sys.exit, _Exit):
            sys.exit = sys.exit.before
        while isinstance(threading.excepthook, _ThreadDied):
            threading.excepthook = threading.excepthook.before


def abandon() -> None:
    """Tell nobody any more, in a forked child: threads that may hold the lock are not here."""
    global _lock
    _lock = threading.RLock()
    _listeners.clear()


class _Exit:
    """Stands for `sys.exit`, and calls what stood there."""

    def __init__(self, before: Any) -> None:
        functools.update_wrapper(self, before)
        self.before = before

    def __call__(self, status: Any = None, /) -> NoReturn:
        with _first_of(status) as is_first:
            if is_first and threading.current_thread() is threading.main_thread():
                _notify(SystemExit(status), None)
            self.before(status)
        raise SystemExit(status)  # a replacement of sys.exit that returns


class _ThreadDied:
    """Stands for `threading.excepthook`, and calls what stood there."""

    def __init__(self, before: Any) -> None:
        functools.update_wrapper(self, before)
        self.before = before

    def __call__(self, args: Any, /) -> None:
        with _first_of(args.exc_value) as is_first:
            if is_first and args.exc_value is not None:
                _notify(args.exc_value, args.thread)
            self.before(args)


@contextmanager
def _first_of(end: object) -> Iterator[bool]:
    """Return whether this thread is not being called for this end already, further out."""
    ends: list[object] = _on_its_way.__dict__.setdefault("ends", [])
    is_first = not any(end is one for one in ends)
    ends.append(end)
    try:
        yield is_first
    finally:
        ends.pop()


def _notify(error: BaseException, thread: threading.Thread | None) -> None:
    for listener in [*_listeners]:
        with suppress(Exception):
            listener(error, thread)
