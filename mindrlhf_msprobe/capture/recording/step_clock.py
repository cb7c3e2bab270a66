"""When what in a step ran: openings of phases, saves of key data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

#: Openings, and saves, of a step that are listed; further ones are counted.
MOST_LISTED = 1000


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
