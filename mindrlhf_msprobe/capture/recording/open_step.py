"""Which step is open, and which saves still belong to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mindrlhf_msprobe.errors import UsageError

_PATIENCE = 600.0  # seconds that the end of a step waits for a save which does not move


class OpenStep:
    """The step that is open; may be used by several threads.

        with open_step.saving("loss") as (step, micro_step):
            ...                        # describe it, hand it over to the writer

    A save belongs to the step that is open when it begins, and that step does not end before the
    save has been handed over. One that begins while a step ends belongs to the next.

    Attributes:
        number: of the step that is open.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        # Re-entrant: a signal handler that ends the run may come while its own thread holds it.
        self._changed = threading.Condition(threading.RLock())
        self._micro_steps: dict[str, int] = {}
        self._saving: list[tuple[int, int]] = []  # (step, thread) of each save on its way
        self._closed = False

    @property
    def has_saves(self) -> bool:
        """Whether anything was saved by name in the open step."""
        return bool(self._micro_steps)

    @contextmanager
    def saving(self, key: str, *, counted: bool = True) -> Iterator[tuple[int, int]]:
        """Enter one save of a key: (step, micro-step), which are its own.

        Args:
            counted: whether it takes the next micro-step; else it gets 0, and says itself which.

        Raises:
            UsageError: the run has ended meanwhile.
        """
        with self._changed:
            if self._closed:
                raise UsageError.saying("error.data_after_close", key=key)
            step, micro_step = self.number, self._micro_steps.setdefault(key, 0)
            if counted:
                self._micro_steps[key] = micro_step + 1
            on_its_way = step, threading.get_ident()
            self._saving.append(on_its_way)
        try:
            yield step, micro_step
        finally:
            with self._changed:
                self._saving.remove(on_its_way)
                self._changed.notify_all()

    def advance(self) -> int:
        """Open the next step and return the one that was open; its saves may be on their way."""
        with self._changed:
            ended = self.number
            self.number += 1
            self._micro_steps.clear()
            return ended

    def close(self) -> int:
        """Take no more saves and return the step that is open."""
        with self._changed:
            self._closed = True
            return self.number

    def wait_for(self, step: int) -> None:
        """Return when every save of a step, and of those before it, was handed over.

        Not those of this thread, which may be in a signal handler, nor those that do not move: the
        writer refuses what comes after the end of its step, and that is counted.
        """
        own = threading.get_ident()
        with self._changed:
            self._changed.wait_for(
                lambda: all(at > step or thread == own for at, thread in self._saving), _PATIENCE
            )
