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

from mindrlhf_msprobe.capture.mindspore_api import BYTECODE_CONTEXT, GRAPH_EXECUTORS


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
        self._replaced: list[tuple[type, str, Callable[..., Any]]] = []
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
                    setattr(*self._replaced.pop())

    def _watch_executors(self) -> None:
        for executor in GRAPH_EXECUTORS:
            self._replace(executor, "compile", self._around)
        if BYTECODE_CONTEXT is not None:
            self._replace(BYTECODE_CONTEXT, "__enter__", self._before_bytecode)
            self._replace(BYTECODE_CONTEXT, "__exit__", self._after_bytecode)

    def _replace(
        self, owner: type, name: str, replace: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        original = vars(owner)[name]
        setattr(owner, name, replace(original))
        self._replaced.append((owner, name, original))

    def _around(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_graph)
        def compile_with_probes(*args: Any, **kwargs: Any) -> Any:
            with self._wrapped():
                return compile_graph(*args, **kwargs)

        return compile_with_probes

    # What `ms.jit(capture_mode="bytecode")` captures is compiled without any method of Python's.
    # Cells that hold wrappers are not captured: Python runs them, and its hooks record them.

    def _before_bytecode(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(enter)
        def enter_with_wrappers(*args: Any) -> Any:
            self._wrap()
            return enter(*args)

        return enter_with_wrappers

    def _after_bytecode(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def leave_and_unwrap(*args: Any) -> Any:
            try:
                return leave(*args)
            finally:
                self._unwrap()

        return leave_and_unwrap

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Hold the wrappers on; several threads may compile at once."""
        with ExitStack() as ends:
            ends.callback(self._unwrap)
            self._wrap()
            yield
        for listener in [*self.listeners]:
            listener()

    def _wrap(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                for wrapping in self._wrappings:
                    wrapping.put_on()

    def _unwrap(self) -> None:
        with self._lock:
            self._depth = max(self._depth - 1, 0)  # what was entered before is left now
            if not self._depth:
                for wrapping in self._wrappings:
                    wrapping.take_off()


COMPILATIONS = Compilations()
