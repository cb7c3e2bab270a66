"""PyNative: gradients that were seen and are summarised when the backward pass is over.

Looking at a tensor's elements waits for everything that MindSpore has queued, and on a busy host
one such wait can take longer than a layer. During a backward pass no code of the trainer runs that
could change a gradient, so they are looked at together, at its end. Networks in which such code
does run, in a bprop of their own, have theirs looked at one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mindspore import Tensor
from mindspore.common.api import _pynative_executor


class _Depth(threading.local):
    """How many computations of gradients run inside each other in this thread."""

    value = 0


class Backlog:
    """Holds gradients until the pass that computes them is over.

    Args:
        most_bytes: of gradients that wait; then all are looked at at once.
        waits: whether gradients wait at all.
    """

    def __init__(self, most_bytes: int, *, waits: bool = True) -> None:
        self._most_bytes = most_bytes
        self._waits = waits
        self._depth = _Depth()
        self._waiting: list[Callable[[], None]] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._grad: Callable[..., Any] | None = None

    def open(self) -> None:
        """Begin to notice when MindSpore computes gradients."""
        if self._waits:
            self._grad = _pynative_executor.grad
            vars(_pynative_executor)["grad"] = self._compute

    def close(self) -> None:
        """Give MindSpore its own function back, and look at what still waits."""
        if vars(_pynative_executor).get("grad") == self._compute:
            del vars(_pynative_executor)["grad"]
        self.settle()

    def add(self, gradient: Tensor, look: Callable[[], None]) -> None:
        """Have `look` called once the gradient may be looked at: never later than the pass ends."""
        if not self._depth.value:
            look()
            return
        with self._lock:
            self._waiting.append(look)
            self._bytes += gradient.nbytes
            full = self._bytes > self._most_bytes
        if full:
            self.settle()

    def settle(self) -> None:
        """Look at everything that waits, in the order in which it came."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._bytes = 0
        for look in waiting:
            look()

    def _compute(self, *args: Any, **kwargs: Any) -> Any:
        assert self._grad is not None
        self._depth.value += 1
        try:
            return self._grad(*args, **kwargs)
        finally:
            self._depth.value -= 1
            if not self._depth.value:
                self.settle()
