"""The moments in which MindSpore compiles, for which alone cells get their wrappers.

Whatever compiles a graph (a cell in GRAPH_MODE, `ms.jit`, `value_and_grad` of them) ends in one
method of MindSpore's executors. While a run is recorded it is replaced by one that puts wrappers on
the cells of the watched networks, as they are at that moment, and takes them off again: what Python
runs, copies or shows in a traceback is the network's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from mindrlhf_msprobe.capture.mindspore_api import GRAPH_EXECUTORS


class Wrapping(Protocol):
    """Who puts wrappers on cells."""

    def put_on(self) -> None:
        """Wrap what is to be compiled with probes."""

    def take_off(self) -> None:
        """Unwrap it again."""


class Compilations:
    """Lets wrappings know when MindSpore compiles.

    Attributes:
        listeners: called after each, in the thread that compiled.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._wrappings: list[Wrapping] = []
        self._replaced: list[tuple[type, Callable[..., Any]]] = []
        self._lock = threading.RLock()
        self._depth = 0

    def add(self, wrapping: Wrapping) -> None:
        """Put on and take off a wrapping around every compilation from now on.

        Raises:
            Exception: whatever keeps MindSpore's executors from being asked.
        """
        with self._lock:
            if wrapping in self._wrappings:
                return
            if not self._replaced:
                self._watch_executors()
            self._wrappings.append(wrapping)

    def remove(self, wrapping: Wrapping) -> None:
        """End what `add` began; without any wrapping MindSpore's executors are its own again."""
        with self._lock:
            if wrapping in self._wrappings:
                self._wrappings.remove(wrapping)
            if not self._wrappings:
                while self._replaced:
                    executor, compile_graph = self._replaced.pop()
                    executor.compile = compile_graph  # type: ignore[attr-defined]

    def _watch_executors(self) -> None:
        for executor in GRAPH_EXECUTORS:
            compile_graph = vars(executor)["compile"]
            executor.compile = self._around(compile_graph)
            self._replaced.append((executor, compile_graph))

    def _around(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_graph)
        def compile_with_probes(*args: Any, **kwargs: Any) -> Any:
            with self._wrapped():
                return compile_graph(*args, **kwargs)

        return compile_with_probes

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Hold the wrappers on; several threads may compile at once."""
        with ExitStack() as ends:
            with self._lock:
                self._depth += 1
                ends.callback(self._unwrap)
                if self._depth == 1:
                    for wrapping in self._wrappings:
                        wrapping.put_on()
            yield
        for listener in [*self.listeners]:
            listener()

    def _unwrap(self) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                for wrapping in self._wrappings:
                    wrapping.take_off()


COMPILATIONS = Compilations()
