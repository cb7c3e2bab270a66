"""A run against runs that are known to be healthy: what those never did, and slow drift."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import EntryView, Step, numbers_in, place_of
from mindrlhf_msprobe.checks.registry.rule import HEALTHY, rule, steps
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.health import Evidence, Place, Severity
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.leaf_json import is_float, non_finite, statistic
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

#: Phase and record, or "" and a key.
_Name = tuple[str, str]
_MOST_NAMES = 200_000


class _Learned:
    """What healthy runs held of one record."""

    __slots__ = ("dtypes", "finite", "high", "low", "shapes")

    def __init__(self) -> None:
        self.dtypes: set[Any] = set()
        self.shapes: set[str] = set()
        self.finite = True
        self.low, self.high = math.inf, -math.inf

    def take(self, leaf: Any) -> None:
        """Take one leaf of a healthy run."""
        self.dtypes.add(leaf.get("dtype"))
        self.shapes.add(str(leaf.get("shape")))
        self.finite = self.finite and non_finite(leaf) is None
        size = _log_norm(leaf)
        if size is not None:
            self.low, self.high = min(self.low, size), max(self.high, size)

    def broken_by(self, leaf: Any, margin: float) -> str | None:
        """Return how a leaf differs from all that was learned; None if it does not."""
        if self.finite and non_finite(leaf) is not None:
            return "finite"
        if leaf.get("dtype") not in self.dtypes:
            return "dtype"
        if len(self.shapes) == 1 and str(leaf.get("shape")) not in self.shapes:
            return "shape"
        size = _log_norm(leaf)
        if size is not None and self.low <= self.high:
            more = margin + (self.high - self.low)
            if not self.low - more <= size <= self.high + more:
                return "range"
        return None


def _log_norm(leaf: Any) -> float | None:
    """Return the logarithm (base 10) of a float tensor's norm; None for others, and for 0."""
    norm = statistic(leaf, "Norm") if is_float(leaf) else None
    return None if norm is None or norm <= 0 or not math.isfinite(norm) else math.log10(norm)


@rule(
    "healthy.range",
    needs=(HEALTHY,),
    severity=Severity.WARNING,
    thresholds={"decades": 0.5},
    follows=("non_finite.*", "healthy.*", "weights.*", "rl.*"),
)
class Range:
    """Nothing differs from what healthy runs held: finite, dtype, shape, calls, range of norms.

    The range of a norm is that of the healthy runs, wider by itself and by half a decade.
    """

    learns = True

    def __init__(self, check: Check) -> None:
        self._check = check
        self._learned: dict[_Name, _Learned] = {}
        self._calls: dict[_Name, set[int]] = {}
        self._now: dict[tuple[int, str, str], list[Any]] = {}
        self._broken: dict[tuple[int, str], list[Place]] = {}

    def entry(self, entry: EntryView) -> None:
        """Compare an entry with what was learned, or learn from it."""
        name = _without_call(entry.name)
        seen = self._now.setdefault((entry.rank, entry.phase, name), [0, entry])
        seen[0] += 1
        for io, path, leaf in entry.records:
            record = entry.phase, entry.record_name(io, path)
            learned = self._learned.get(record)
            if self._check.learning is None:
                kind = learned and learned.broken_by(leaf, self._check.threshold("decades"))
                if kind:
                    self._broken.setdefault((entry.rank, kind), []).append(entry.place(io, path))
            elif learned is not None or len(self._learned) < _MOST_NAMES:
                self._learned.setdefault(record, _Learned()).take(leaf)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield what is broken in a step, the first of each kind."""
        broken, self._broken = self._broken, {}
        now, self._now = self._now, {}
        for (rank, phase, name), (count, entry) in now.items() if step.complete else ():
            if self._check.learning is not None:
                self._calls.setdefault((phase, name), set()).add(count)
                continue
            known = self._calls.get((phase, name))
            if known is None or count not in known:
                kind = "unknown" if known is None else "calls"
                broken.setdefault((rank, kind), []).append(entry.place())
        for (rank, kind), places in broken.items():
            first = min(places, key=lambda place: place.order)
            yield self._check.finding(
                message(f"check_healthy.{kind}", others=len(places) - 1),
                first,
                evidence=[Evidence(place) for place in sorted(places, key=lambda p: p.order)[:5]],
                next_step=self._check.next_recording(first),
                same=(kind, rank),
            )


def _without_call(name: str) -> str:
    return name.rpartition(".")[0]


@rule(
    "healthy.drift",
    needs=(HEALTHY, steps(8)),
    severity=Severity.WARNING,
    thresholds={"slack": 0.5, "decision": 15.0},
    causes=("check_healthy.cause_settings", "check_healthy.cause_precision"),
    follows=("non_finite.*", "healthy.*", "weights.*", "rl.*"),
)
class Drift:
    """Nothing drifts away from what healthy runs did in the same step.

    A CUSUM of the distance from their mean, in their standard deviations (Page 1954, "Continuous
    Inspection Schemes"): what is beyond the slack adds up, and a drift is named where the sum
    passes the decision. With one healthy run the deviation is that of its differences from step to
    step; with several, the decision is at least twice the sum that one of them reaches against the
    others.
    """

    learns = True

    def __init__(self, check: Check) -> None:
        self._check = check
        self._own: dict[_Name, dict[int, float]] = {}
        self._places: dict[tuple[_Name, int], Place] = {}
        self._healthy: list[dict[_Name, dict[int, float]]] = [{} for _ in check.healthy]

    def entry(self, entry: EntryView) -> None:
        """Take the norms of an entry's outputs and gradients."""
        if entry.rank or entry.call:  # the first rank and call stand for the others
            return
        for io, path, leaf in entry.records:
            size = _log_norm(leaf) if io in ("output", PARAMETERS_GRAD) else None
            if size is not None:
                self._take((entry.phase, entry.record_name(io, path)), size, entry.place(io, path))

    def step(self, step: Step) -> None:
        """Take the means of a step's key data."""
        for key in step.keys(min(step.ranks, default=None)):
            for datum in step.key_data(key, rank=min(step.ranks))[:1]:
                mean = _mean(datum)
                if mean is not None:
                    self._take(("", key), mean, place_of(datum))

    def _take(self, name: _Name, value: float, place: Place) -> None:
        learning = self._check.learning
        into = self._own if learning is None else self._healthy[learning]
        if into.setdefault(name, {}).setdefault(place.step, value) == value and learning is None:
            self._places.setdefault((name, place.step), place)

    def end(self) -> Iterator[Found]:
        """Yield the first drift, with how many there are."""
        found = []
        for name, series in self._own.items():
            others = [one[name] for one in self._healthy if name in one]
            at = self._passes(series, others) if others else None
            if at is not None and (name, at) in self._places:
                found.append((self._places[name, at], name))
        if found:
            found.sort(key=lambda one: one[0].order)
            place, name = found[0]
            values = self._own[name]
            yield self._check.finding(
                message("check_healthy.drift", others=len(found) - 1),
                place,
                evidence=[Evidence(place, {"by step": [values[n] for n in sorted(values)][-16:]})],
                next_step=self._check.next_recording(place),
                same="drift",
            )

    def _passes(self, own: dict[int, float], others: list[dict[int, float]]) -> int | None:
        """Return the step in which the CUSUM of a series passes the decision."""
        common = sorted(set(own).intersection(*others))
        if len(common) < 8:
            return None
        values = np.array([[one[n] for n in common] for one in others])
        mean = values.mean(axis=0)
        if len(others) > 1:
            spread = float(np.sqrt(((values - mean) ** 2).sum() / (values.size - len(common))))
            limit = max(
                self._check.threshold("decision"),
                *(
                    2 * float(self._sums(row, np.delete(values, n, 0).mean(axis=0), spread)[-1])
                    for n, row in enumerate(values)
                ),
            )
        else:
            spread = float(np.std(np.diff(values[0])))
            limit = self._check.threshold("decision")
        if not spread > 1e-9 * max(1.0, float(np.abs(mean).max())):
            return None
        sums = self._sums(np.array([own[n] for n in common]), mean, spread)
        passed = np.flatnonzero(sums > limit)
        return common[int(passed[0])] if passed.size else None

    def _sums(self, values: np.ndarray, mean: np.ndarray, spread: float) -> np.ndarray:
        """Return the largest CUSUM up to each step, whichever way the values drift."""
        slack, up, down, most = self._check.threshold("slack"), 0.0, 0.0, 0.0
        sums = []
        for score in (values - mean) / (spread or 1.0):
            up, down = max(0.0, up + score - slack), max(0.0, down - score - slack)
            most = max(most, up, down)
            sums.append(most)
        return np.array(sums)


def _mean(datum: KeyDatum) -> float | None:
    array = numbers_in(datum)
    mean = float(array.mean()) if array is not None and array.size else math.nan
    return mean if math.isfinite(mean) else None
