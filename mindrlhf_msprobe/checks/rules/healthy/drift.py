"""Slow drift away from what healthy runs did in the same steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.reading.records import Named, Rows
from mindrlhf_msprobe.checks.reading.views import Step, numbers_in, place_of
from mindrlhf_msprobe.checks.registry.rule import HEALTHY, rule, steps
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

_LEAST_STEPS = 8
_ALIKE = 0.02  # decades by which norms differ that begin alike
_MOST = 0.75  # of the records
_BEGINNING = 6  # steps that tell how far runs of two seeds are from each other
_MOST_SPANS = 128  # of steps, of which a mean is kept

#: Entry and path of a record, or a key.
_Name = tuple[str, str] | str


@rule(
    "healthy.drift",
    needs=(HEALTHY, steps(_LEAST_STEPS)),
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
    step, the slack is twice as large, and what counts is how much farther away than in the first
    steps the run is. With several, the decision is at least twice the sum that one of them reaches
    against the others, in any key or record. Records, beside key data, are looked at where the
    runs begin alike; where they do not, the deviation is at least that of a whole run. Of more than
    128 common steps, means of equal spans of them are compared.
    """

    learns = True

    def __init__(self, check: Check) -> None:
        self._check = check
        common = set(check.run.steps).intersection(*(one.steps for one in check.healthy))
        self._common = np.array(sorted(common), np.int64)
        self._width = -(-len(common) // _MOST_SPANS) or 1
        self._spans = -(-len(common) // self._width)
        # The first rank stands for the others.
        self._ranks = [min(one.ranks, default=None) for one in (*check.healthy, check.run)]
        self._own: dict[str, _Means] = {}  # by phase; "" of key data
        self._healthy: list[dict[str, _Means]] = [{} for _ in check.healthy]

    def journal(self, journal: Journal) -> None:
        """Take the norms of outputs and gradients."""
        span = self._span_of(journal.step)
        if span is None or journal.rank != self._rank:
            return
        records = journal.records("output", PARAMETERS_GRAD)
        names, numbers = records.rows.once(_first_calls)
        norms = records.numbers("Norm")[numbers]
        norms = np.where(records.kinds.are_floats[numbers] & (norms > 0), norms, np.nan)
        self._take(journal.phase, span, names, np.log10(norms))

    def step(self, step: Step) -> None:
        """Take the means of a step's key data."""
        span = self._span_of(step.number)
        if span is None or self._rank not in step.ranks:
            return
        means: dict[str, float] = {}
        for key in step.keys(self._rank):
            for datum in step.key_data(key, rank=self._rank)[:1]:
                means[key] = _mean(datum)
        self._take("", span, [*means], np.array([*means.values()]))

    def _span_of(self, step: int) -> int | None:
        """Return in which span of the common steps a step lies; None where it is in none."""
        at = int(np.searchsorted(self._common, step))
        there = at < len(self._common) and self._common[at] == step
        return at // self._width if there else None

    @property
    def _rank(self) -> int | None:
        learning = self._check.learning
        return self._ranks[-1 if learning is None else learning]

    def _take(self, phase: str, span: int, names: Sequence[_Name], values: np.ndarray) -> None:
        learning = self._check.learning
        into = self._own if learning is None else self._healthy[learning]
        known = into.get(phase)
        if known is None:
            known = into[phase] = _Means(self._spans)
        known.take(span, names, values)

    def end(self) -> Iterator[Found]:
        """Yield the first drift, with how many there are."""
        found: list[tuple[int, str, _Name, np.ndarray]] = []
        alike = self._begin_alike()
        for of_keys in (True, False) if alike else (True,):
            compared = [*self._compared(of_keys, alike)]
            # What one healthy run does to the others, it may in any record of this kind.
            usual = max((one.usual for *_, one in compared), default=0.0)
            limit = max(self._check.threshold("decision"), 2 * usual)
            for phase, name, series, one in compared:
                passed = np.flatnonzero(one.sums > limit)
                if passed.size:
                    found.append((int(one.spans[passed[0]]), phase, name, series))
        first = min((at for at, *_ in found), default=None)
        places = [
            (place, series)
            for at, phase, name, series in found
            if at == first and (place := self._place(at, phase, name)) is not None
        ]
        if places:
            place, series = min(places, key=lambda one: one[0].order)
            shown = series[np.isfinite(series)][-16:].tolist()
            yield self._check.finding(
                message("check_healthy.drift", others=len(found) - 1),
                place,
                evidence=[Evidence(place, {"by step": shown})],
                next_step=self._check.next_recording(place),
                same="drift",
            )

    def _place(self, span: int, phase: str, name: _Name) -> Place | None:
        """Return where a record stands first in a span of steps; its journal is read again."""
        run, rank = self._check.run, self._rank or 0
        for step in self._common[span * self._width :][: self._width].tolist():
            if isinstance(name, str):
                data = run.key_data(name, step, rank)
                if data:
                    return place_of(data[0])
            elif phase in run.phases_at(step, rank):
                records = Journal(run, phase, step, rank).records("output", PARAMETERS_GRAD)
                if name in records.rows.names:
                    return records.place(records.rows.names.index(name))
        return None

    def _compared(
        self, of_keys: bool, alike: bool
    ) -> Iterator[tuple[str, _Name, np.ndarray, _Compared]]:
        """Yield the series of keys, or of records, with how they stand to those of healthy runs."""
        for phase, own in self._own.items():
            if bool(phase) == of_keys:
                continue
            healthy = [one[phase].by_name() for one in self._healthy if phase in one]
            for name, series in own.by_name().items():
                others = [one[name] for one in healthy if name in one]
                compared = self._compare(series, others, alike) if others else None
                if compared is not None:
                    yield phase, name, series, compared

    def _begin_alike(self) -> bool:
        """Return whether the run begins with nearly the norms of the first healthy run.

        It has its weights and data then. How far the norms of other seeds are apart, and move
        apart, is of each seed; `healthy.range` looks at them.
        """
        alike = count = 0
        for phase, own in self._own.items():
            other = self._healthy[0].get(phase)
            known = {} if other is None or not phase else other.by_name()
            for name, series in own.by_name().items():
                both = known.get(name)
                if both is not None and np.isfinite(series[0]) and np.isfinite(both[0]):
                    count += 1
                    alike += bool(abs(series[0] - both[0]) < _ALIKE)
        return alike >= _MOST * count

    def _compare(self, own: np.ndarray, others: list[np.ndarray], alike: bool) -> _Compared | None:
        """Return how a series stands to those of healthy runs; None where too few steps tell."""
        common = np.flatnonzero(np.isfinite(own) & np.isfinite(others).all(axis=0))
        if len(common) < _LEAST_STEPS:
            return None
        values = np.array(others)[:, common]
        mean, usual = values.mean(axis=0), 0.0
        if len(others) > 1:
            spread = float(np.sqrt(((values - mean) ** 2).sum() / (values.size - len(common))))
        else:
            # How far seeds differ one run does not tell: only what moves away from it is a drift.
            mean = mean + (own[common] - mean)[:_BEGINNING].mean()
            spread = float(np.std(np.diff(values[0])))
        if not alike:  # of another seed, which learns at another pace
            spread = max(spread, float(values.std(axis=1).mean()))
        if not spread > 1e-9 * max(1.0, float(np.abs(mean).max())):
            return None
        for n, row in enumerate(values if len(others) > 1 else ()):
            against = np.delete(values, n, 0).mean(axis=0)
            usual = max(usual, float(self._sums(row, against, spread)[-1]))
        return _Compared(common, self._sums(own[common], mean, spread), usual)

    def _sums(self, values: np.ndarray, mean: np.ndarray, spread: float) -> np.ndarray:
        """Return the largest CUSUM up to each step, whichever way the values drift."""
        slack, up, down, most = self._check.threshold("slack"), 0.0, 0.0, 0.0
        if len(self._healthy) == 1:
            slack *= 2  # the mean of the first steps is not exact
        sums = []
        for score in (values - mean) / (spread or 1.0):
            up, down = max(0.0, up + score - slack), max(0.0, down - score - slack)
            most = max(most, up, down)
            sums.append(most)
        return np.array(sums)


class _Compared(NamedTuple):
    """How a series stands to those of healthy runs.

    Attributes:
        spans: of steps that all of them have.
        sums: the largest CUSUM up to each of them.
        usual: the largest that one healthy run reaches against the others; 0 where there is one.
    """

    spans: np.ndarray
    sums: np.ndarray
    usual: float


class _Means:
    """The means of records, or keys, over spans of steps: as many numbers, however many steps.

    Args:
        spans: how many.
    """

    def __init__(self, spans: int) -> None:
        self._named = Named()
        self._nothing = np.zeros(spans)

    def take(self, span: int, names: Sequence[_Name], values: np.ndarray) -> None:
        """Add the values of a step; what is not finite is passed over."""
        places = self._named.places(names)
        sums, counts = (self._named.column(of, self._nothing) for of in ("sum", "count"))
        are = np.isfinite(values)
        sums[places[are], span] += values[are]
        counts[places[are], span] += 1

    def by_name(self) -> dict[_Name, np.ndarray]:
        """Return the means of each, (spans,); NaN where there is no value."""
        if not self._named.names:
            return {}
        sums, counts = (self._named.column(of, self._nothing) for of in ("sum", "count"))
        with np.errstate(invalid="ignore"):
            return dict(zip(self._named.names, sums / counts))


def _first_calls(rows: Rows) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Return the names of the records of first calls, and which they are."""
    calls = [Entry(entry, "", 0, 0, 0, None).call for entry, _ in rows.names]
    numbers = [n for n, call in enumerate(calls) if call == 0]
    return [rows.names[n] for n in numbers], np.array(numbers, np.intp)


def _mean(datum: KeyDatum) -> float:
    array = numbers_in(datum)
    return float(array.mean()) if array is not None and array.size else math.nan
