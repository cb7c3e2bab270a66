"""PyNative: gradients that were seen and are summarised when the backward pass is over.

Looking at a tensor's elements waits for everything that MindSpore has queued, and on a busy host
one such wait can take longer than a layer. During a backward pass no code of the trainer runs that
could change a gradient, so they are looked at together, at its end. Networks in which such code
does run, in a bprop of their own, have theirs looked at one by one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from mindspore import Tensor

from mindrlhf_msprobe.capture.framework.private import EXECUTOR


class _Depth(threading.local):
    """Which differentiated functions, and how many computations of gradients, run in this thread.

    Attributes:
        forward: the frames that run such functions, the outermost first.
    """

    backward = 0

    def __init__(self) -> None:
        self.forward: list[FrameType] = []

    def drop_left(self) -> None:
        """Forget functions that an exception has ended: MindSpore does not say so."""
        running: set[int] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        self.forward = [one for one in self.forward if id(one) in running]


class Backlog:
    """Holds gradients until the pass that computes them is over.

    Args:
        most_bytes: of gradients that wait; then all are looked at at once.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waits = True
        self._depth = _Depth()
        self._waiting: list[Callable[[], None]] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._own: dict[str, Callable[..., Any]] = {}

    @property
    def nested(self) -> bool:
        """Whether a function is differentiated inside another one that is: of second order.

        Gradients that are differentiated themselves cannot be tapped: MindSpore 2.7 refuses.
        """
        if len(self._depth.forward) > 1:
            self._depth.drop_left()
        return len(self._depth.forward) > 1

    def open(self, *, waits: bool) -> None:
        """Begin to notice when MindSpore differentiates.

        Args:
            waits: whether gradients wait at all.
        """
        self._waits = waits
        stands_in = {
            "new_graph": self._begin_forward,
            "end_graph": self._end_forward,
            "grad": self._compute,
        }
        for name, function in stands_in.items():
            self._own[name] = getattr(EXECUTOR, name)
            vars(EXECUTOR)[name] = function

    def close(self) -> None:
        """Give MindSpore its own functions back, and look at what still waits."""
        for name in self._own:
            vars(EXECUTOR).pop(name, None)
        self._depth.forward.clear()  # what they hold may go
        self.settle()

    def add(self, gradient: Tensor, look: Callable[[], None]) -> None:
        """Have `look` called once the gradient may be looked at: never later than the pass ends."""
        if not self._depth.backward or not self._waits:
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

    def _begin_forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._depth.forward:
            self._depth.drop_left()
        self._depth.forward.append(sys._getframe(2))
        return self._own["new_graph"](*args, **kwargs)

    def _end_forward(self, *args: Any, **kwargs: Any) -> Any:
        frame, forward = sys._getframe(2), self._depth.forward
        if frame in forward:
            del forward[forward.index(frame) :]
        return self._own["end_graph"](*args, **kwargs)

    def _compute(self, *args: Any, **kwargs: Any) -> Any:
        depth = self._depth
        forward, depth.forward = depth.forward, []  # what a recomputed cell runs is no second order
        depth.backward += 1
        try:
            return self._own["grad"](*args, **kwargs)
        finally:
            depth.forward = forward
            depth.backward -= 1
            if not depth.backward:
                self.settle()
