"""Which step is open, which saves still belong to it, and when what in it ran."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mindrlhf_msprobe.errors import UsageError

_PATIENCE = 600.0  # seconds that the end of a step waits for a save which does not move
#: Openings, and saves, of a step that are listed; further ones are counted.
MOST_LISTED = 1000


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
                raise UsageError.saying("error.after_close", call=f"save_data({key!r})")
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


class StepClock:
    """Takes the times of one step; what is saved in other threads, too.

    Args:
        began: when the step began, by the same clock; None: with the first that is asked for.
        clock: in seconds; of no date.
    """

    def __init__(
        self, began: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._began = began
        self._clock = clock
        self._phases: list[dict[str, Any]] = []
        self._saves: list[tuple[str, int | None, float]] = []
        self._openings: Counter[str] = Counter()
        self._unlisted: dict[str, dict[str, Any]] = {}
        self._unlisted_saves = 0
        self._ended = self._seconds = 0.0

    def now(self) -> float:
        """Return how many seconds ago the step began."""
        now = self._clock()
        if self._began is None:
            self._began = now
        return now - self._began

    def opened(
        self, phases: Mapping[str, int | None], began: float, recording: float | None
    ) -> None:
        """Note that phases, which were open together since `began`, have ended.

        Args:
            phases: name → the number of the opening as recorded; None where it was not.
            recording: seconds that recording took meanwhile; None: not known.
        """
        seconds = self.now() - began
        for phase, number in phases.items():
            before = self._openings[phase]
            self._openings[phase] += 1
            if len(self._phases) >= MOST_LISTED:
                rest = self._unlisted.setdefault(phase, {"openings": 0, "seconds": 0.0})
                rest["openings"] += 1
                rest["seconds"] = round(rest["seconds"] + seconds, 6)
                continue
            noted: dict[str, Any] = {
                "phase": phase,
                "opening": before if number is None else number,
                "recorded": number is not None,
                "began": round(began, 6),
                "seconds": round(seconds, 6),
            }
            if recording is not None:
                noted["recording"] = round(min(recording, seconds), 6)
            self._phases.append(noted)

    def saved(self, key: str, micro_step: int | None, at: float) -> None:
        """Note that key data were saved."""
        if len(self._saves) < MOST_LISTED:
            self._saves.append((key, micro_step, at))
        else:
            self._unlisted_saves += 1

    def end(self) -> StepClock:
        """End the step, and return the clock of the next one, which begins at the same moment."""
        self._ended = time.time()
        self._seconds = self.now()
        return StepClock((self._began or 0.0) + self._seconds, self._clock)

    def to_json(self, step: int, rank: int) -> dict[str, Any]:
        """Return the line of a step that has ended."""
        unlisted: dict[str, Any] = {}
        if self._unlisted:
            unlisted["phases"] = self._unlisted
        if self._unlisted_saves:
            unlisted["key_data"] = self._unlisted_saves
        return {
            "step": step,
            "rank": rank,
            "ended": round(self._ended, 6),
            "seconds": round(self._seconds, 6),
            "phases": self._phases,
            "key_data": [
                {"key": key, "micro_step": micro_step, "at": round(at, 6)}
                for key, micro_step, at in self._saves
            ],
            **({"unlisted": unlisted} if unlisted else {}),
        }
