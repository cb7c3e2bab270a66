"""How the process ends, as far as Python tells: `sys.exit()`, and threads that die by an exception.

What was there before is called as ever: whoever replaced `threading.excepthook` is told, too.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn

#: Told of an exception, and of the thread that ends by it; None for `sys.exit()` in the main one.
Listener = Callable[[BaseException, "threading.Thread | None"], None]

_listeners: list[Listener] = []
_before = SimpleNamespace(exit=None, hook=None)  # what stood there when the first one began
_lock = threading.RLock()


def listen(listener: Listener) -> None:
    """Tell `listener` from now on of what ends this process or one of its threads."""
    with _lock:
        if not _listeners:
            if sys.exit is not _exit:
                _before.exit = sys.exit
                functools.update_wrapper(_exit, sys.exit)
                sys.exit = _exit
            if threading.excepthook is not _thread_died:
                _before.hook = threading.excepthook
                threading.excepthook = _thread_died
        _listeners.append(listener)


def forget(listener: Listener) -> None:
    """Tell it no more; after the last one everything is as it was before the first."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if _listeners:
            return
        if sys.exit is _exit:  # whoever has replaced it since calls it, and it goes on
            sys.exit = _before.exit
        if threading.excepthook is _thread_died:
            threading.excepthook = _before.hook


def abandon() -> None:
    """Tell nobody any more, in a forked child: threads that may hold the lock are not here."""
    global _lock
    _lock = threading.RLock()
    _listeners.clear()


def _exit(status: Any = None, /) -> NoReturn:
    if threading.current_thread() is threading.main_thread():
        _tell(SystemExit(status), None)
    _before.exit(status)
    raise SystemExit(status)  # a replacement of sys.exit that returns


def _thread_died(args: Any, /) -> None:
    if args.exc_value is not None:
        _tell(args.exc_value, args.thread)
    _before.hook(args)


def _tell(error: BaseException, thread: threading.Thread | None) -> None:
    for listener in [*_listeners]:
        with suppress(Exception):
            listener(error, thread)
