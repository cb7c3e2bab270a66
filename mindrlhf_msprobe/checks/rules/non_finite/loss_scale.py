"""Overflow of scaled gradients: a dynamic loss scale retries, and that is normal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import Step, place_of, value_of
from mindrlhf_msprobe.checks.rules.non_finite.events import Event, Events
from mindrlhf_msprobe.checks.rules.non_finite.near_limit import near_limit
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.phases import OVERFLOW
from mindrlhf_msprobe.storage.reading.leaf_json import numbers_of


class Scales:
    """Follows the loss scale from step to step.

    Attributes:
        known: whether the training scales its loss, as far as key data tell.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self.known = False
        self._scale: float | None = None
        self._fell = False
        self._row = 0  # steps in a row that were retried

    def step(self, step: Step) -> None:
        """Read what a step says of its loss scale."""
        scales = [number for datum in step.key_data("loss_scale") for number in _numbers(datum)]
        self._fell = False
        if scales:
            self.known = True
            earlier = self._scale if self._scale is not None else scales[0]
            self._fell = min(scales) < earlier
            self._scale = scales[-1]

    def is_retried(self, step: Step) -> bool:
        """Return whether a step says that it overflowed, and so was not applied."""
        flags = [number for datum in step.key_data(OVERFLOW) for number in _numbers(datum)]
        return any(flags)

    def retried(self, step: Step, hard: Mapping[int, Events]) -> Iterator[Found]:
        """Yield that a step overflowed and is retried: a note, until it does not end."""
        self._row += 1
        most = self._check.threshold("retries")
        grave = self._row > most
        rank, event = _first(hard)
        name = "stuck" if grave else "retried"
        evidence = [Evidence(event.place, numbers_of(event.records[0][2]))]
        for key in (OVERFLOW, "loss_scale"):
            for datum in step.key_data(key, rank=rank)[:1]:
                evidence.append(Evidence(place_of(datum), {"value": _numbers(datum)}))
        yield self._check.finding(
            message(f"check_non_finite.{name}", steps=self._row),
            event.place,
            severity=Severity.WARNING if grave else Severity.NOTE,
            evidence=evidence,
            same=name,
            ranks=sorted(hard),
            causes=("check_non_finite.cause_scale_floor",) if grave else (),
        )

    def was_skipped(self, hard: Mapping[int, Events]) -> bool:
        """Return whether a step whose gradients were not finite was retried, by the step after it.

        The loss scale fell; or where it is not saved, float16 overflowed, and what comes after it
        is finite.
        """
        return self._fell or (not self.known and any(map(self._overflowed, hard.values())))

    def _overflowed(self, events: Events) -> bool:
        """Return whether the first that is not finite is an infinity in float16, or came of one."""
        first = events.in_time()[0]
        return events.is_float16 and (
            bool(first.counts[1]) or bool(near_limit(self._check.run, first))
        )

    def clean(self) -> None:
        """Note a step in which everything was finite."""
        self._row = 0


def _first(hard: Mapping[int, Events]) -> tuple[int, Event]:
    firsts = {rank: events.in_time()[0] for rank, events in hard.items()}
    return min(firsts.items(), key=lambda item: (not item[1].is_birth, item[1].time, item[0]))


def _numbers(datum: Any) -> list[float]:
    value = value_of(datum)
    try:
        return [float(one) for one in np.asarray(value, np.float64).reshape(-1)]
    except (TypeError, ValueError):
        return []
