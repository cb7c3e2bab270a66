"""What is told of a process that ends, whoever else has replaced `sys.exit` and the hook."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mindspore")

from mindrlhf_msprobe.capture.recording import recorder
from mindrlhf_msprobe.capture.settings import environment


class Ends:
    """What stood at the two places, and what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached: list[object] = []
        monkeypatch.setattr(sys, "exit", self._exit)
        monkeypatch.setattr(threading, "excepthook", self._hook)

    def _exit(self, status: Any = None, /) -> None:
        self.reached.append(status)
        raise SystemExit(status)

    def _hook(self, args: Any, /) -> None:
        self.reached.append(args.exc_value)


PLACES = ((sys, "exit"), (threading, "excepthook"))


def end(module: Any, end_of: object) -> None:
    if module is sys:
        with pytest.raises(SystemExit):
            sys.exit(end_of)
    else:
        args = SimpleNamespace(exc_value=end_of, thread=threading.current_thread())
        threading.excepthook(args)


def wrapped(function: Any) -> Any:
    return lambda *args: function(*args)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    return Ends(monkeypatch)


@pytest.fixture
def told() -> Any:
    """Return a listener that is forgotten in the end."""
    heard: list[object] = []

    def listener(error: BaseException, thread: threading.Thread | None) -> None:
        heard.append(error.code if isinstance(error, SystemExit) else error)

    yield heard, listener
    recorder.forget_listener(listener)


@pytest.mark.parametrize(("module", "name"), PLACES)
@pytest.mark.parametrize("wrappers", [1, 2])
@pytest.mark.parametrize("times", [1, 3])
def test_a_wrapper_that_stays_is_called_and_told_of_once(ends, told, module, name, wrappers, times):
    """Somebody wraps while one listens; then the next one listens, and the process ends."""
    heard, listener = told
    for _ in range(times):
        recorder.listen_to_ends(listener)
        for _ in range(wrappers):
            setattr(module, name, wrapped(getattr(module, name)))
        recorder.forget_listener(listener)
    error = ValueError("it")
    end(module, error)
    assert (heard, ends.reached) == ([], [error])
    recorder.listen_to_ends(listener)
    end(module, error)
    assert (heard, ends.reached) == ([error], [error, error])


@pytest.mark.parametrize(("module", "name"), PLACES)
def test_one_who_takes_back_what_he_found_cuts_nobody_off(ends, told, module, name):
    """A wrapper of the first listening is taken away in the second; the third is told, too."""
    heard, listener = told
    first = getattr(module, name)
    recorder.listen_to_ends(listener)
    found = getattr(module, name)
    setattr(module, name, wrapped(found))
    recorder.forget_listener(listener)
    recorder.listen_to_ends(listener)
    setattr(module, name, found)
    error = ValueError("it")
    end(module, error)
    assert (heard, ends.reached) == ([error], [error])
    recorder.forget_listener(listener)
    assert getattr(module, name) == first
    recorder.listen_to_ends(listener)
    end(module, error)
    assert (heard, ends.reached) == ([error, error], [error, error])


def test_a_recorder_that_was_never_made_hears_nothing(make_probe, monkeypatch):
    """Under `strict`, a fault while it is made: nothing of it stays in the process."""

    def no_seeds() -> None:
        raise OSError("no seeds")

    before = sys.exit, threading.excepthook
    with monkeypatch.context() as broken:
        broken.setattr(environment, "seeds", no_seeds)
        with pytest.raises(OSError, match="no seeds"):
            make_probe(strict=True)
    assert (sys.exit, threading.excepthook) == before
    make_probe(strict=True, existing="overwrite").close()
    assert (sys.exit, threading.excepthook) == before
