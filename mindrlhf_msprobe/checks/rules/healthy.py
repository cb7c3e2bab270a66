"""A run against runs that are known to be healthy: what those never did, and slow drift."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import HEALTHY, Found, Named, pattern_of, rule, steps
from mindrlhf_msprobe.checks.views import Step, place_of
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence
from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, is_float, non_finite, statistic
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.columns.rows import Rows
from mindrlhf_msprobe.storage.place import LayerPlace, Place, StepPlace
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, parts_of_name, record_name

_SEVERAL = 2  # times that something is seen before it is known whether it varies


class Span:
    """Between which numbers all lie that were seen."""

    __slots__ = ("high", "low")

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf

    def take(self, *numbers: float) -> None:
        """Widen it to hold these numbers."""
        self.low, self.high = min(self.low, *numbers), max(self.high, *numbers)

    def holds(self, number: float, margin: float = 0.0) -> bool:
        """Return whether a number lies in it, made wider by itself and by a margin."""
        more = margin + (self.high - self.low)
        return self.low - more <= number <= self.high + more


class Learned:
    """What healthy runs held of one record, or of several of one pattern.

    Attributes:
        shape: the one that each had; None if they differ.
        times: how often it was seen.
        routed: whether it was empty, zero everywhere or not there in a step in which others were:
            how much reaches it depends on the data, as with the experts of a mixture.
    """

    __slots__ = ("_dtypes", "_finite", "_means", "_norms", "routed", "shape", "times")

    def __init__(self) -> None:
        self._dtypes: set[Any] = set()
        self._finite = True
        self._norms, self._means = Span(), Span()
        self.shape: str | None = None
        self.times = 0
        self.routed = False

    def take(self, leaf: LeafJson) -> None:
        """Take one leaf of a healthy run."""
        shape, dims, sizes = str(leaf.get("shape")), leaf.get("shape"), _sizes(leaf)
        self.shape = shape if self.shape == shape or not self.times else None
        self.times += 1
        self._dtypes.add(leaf.get("dtype"))
        self._finite = self._finite and non_finite(leaf) is None
        if sizes is not None:
            self._norms.take(sizes[0])
            self._means.take(sizes[1])
        else:  # a tensor of floats that is empty, or zero everywhere
            is_empty = type(dims) is list and 0 in dims
            self.routed |= is_empty or (is_float(leaf) and statistic(leaf, "Norm") == 0)

    def join(self, other: Learned) -> None:
        """Take what was learned of another record of the same pattern."""
        self.shape = other.shape if self.shape == other.shape or not self.times else None
        self.times += other.times
        self._dtypes |= other._dtypes
        self._finite = self._finite and other._finite
        self._norms.take(other._norms.low, other._norms.high)
        self._means.take(other._means.low, other._means.high)
        self.routed = self.routed or other.routed

    def broken_by(self, leaf: LeafJson, margin: float) -> str | None:
        """Return how a leaf differs from all that was learned; None if it does not."""
        if self._finite and non_finite(leaf) is not None:
            return "finite"
        if leaf.get("dtype") not in self._dtypes:
            return "dtype"
        fixed = self.shape is not None and self.times >= _SEVERAL and not self.routed
        if fixed and str(leaf.get("shape")) != self.shape:
            return "shape"
        sizes = _sizes(leaf)
        if sizes is None or self._norms.low > self._norms.high:
            return None
        # Of what is added up over rows the norm grows with their number, of a mean it falls.
        known = [*zip((self._norms, self._means), sizes)]
        from_nothing = self.routed or math.prod(leaf["shape"]) == 1  # a number may cross 0
        if from_nothing and all(size < span.low for span, size in known):
            return None
        return None if any(span.holds(size, margin) for span, size in known) else "range"


def _sizes(leaf: LeafJson) -> tuple[float, float] | None:
    """Return the logarithms (base 10) of a float tensor's norm and root mean square, or None."""
    norm = statistic(leaf, "Norm") if is_float(leaf) else None
    if norm is None or norm <= 0 or not math.isfinite(norm):
        return None
    size = math.log10(norm)
    return size, size - math.log10(math.prod(leaf["shape"])) / 2


def pattern_of_record(entry: str, io: str, path: str) -> Hashable:
    """Return what records have in common whose cells or parameters differ in numbers alone.

    Those of all calls of a cell do: a bias that is zero at the first call moves by the next one.
    """
    is_parameter = io in ("parameters", PARAMETERS_GRAD)
    return pattern_of(entry), io, pattern_of(path) if is_parameter else path


#: Phase and record, or phase and entry without the number of its call.
_Name = tuple[str, str]
_MOST_NAMES = 200_000


@rule(
    "healthy.range",
    needs=(HEALTHY,),
    thresholds={"decades": 0.5},
    follows=("non_finite.*", "healthy.*", "weights.*", "rl.*"),
)
class Range:
    """Nothing differs from what healthy runs held: finite, dtype, shape, calls, range of norms.

    The range of a norm is that of the healthy runs, wider by itself and by half a decade. What
    varies in healthy runs for one of several records whose names differ in numbers alone may vary
    for each of them: an expert that received no tokens in some step shows that any of them may.
    """

    learns = True

    def __init__(self, check: Check) -> None:
        self._check = check
        self._learning = _Learning()
        self._now: dict[tuple[int, str, str], list[Any]] = {}
        self._broken: dict[tuple[int, str], list[Place]] = {}

    @cached_property
    def _known(self) -> _Known:
        """What was learned, after the last healthy run."""
        return _Known(self._learning.records, self._learning.calls)

    def entry(self, entry: Entry) -> None:
        """Compare an entry with what was learned, or learn from it."""
        name = entry.name.rpartition(".")[0]  # without the number of the call
        seen = self._now.setdefault((entry.rank, entry.phase, name), [0, entry])
        seen[0] += 1
        if self._check.learning is not None:
            self._learning.entry(entry, name)
            return
        margin = self._check.threshold("decades")
        for io, path, leaf in entry.values:
            learned = self._known.record(entry, name, io, path)
            kind = learned and learned.broken_by(leaf, margin)
            if kind:
                self._broken.setdefault((entry.rank, kind), []).append(entry.place(io, path))

    def step(self, step: Step) -> Iterator[Found]:
        """Yield what is broken in a step, the first of each kind."""
        broken, self._broken = self._broken, {}
        now, self._now = self._now, {}
        if self._check.learning is not None:
            if step.complete:
                counts = {at: count for at, (count, _) in now.items()}
                self._learning.step(self._check.learning, counts)
            return
        for (rank, phase, name), (count, entry) in now.items() if step.complete else ():
            calls = self._known.calls((phase, name))
            if calls is None or (calls.low == calls.high != count):
                kind = "unknown" if calls is None else "calls"
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


class _Learning:
    """What is learned of healthy runs; it does not grow with their steps.

    Attributes:
        records: each with its entry, and what it has in common with others.
        calls: how often each entry is called in a step.
    """

    def __init__(self) -> None:
        self.records: dict[_Name, tuple[Learned, _Name, Hashable]] = {}
        self.calls: dict[_Name, Span] = {}
        self._seen: dict[tuple[int, int, str], set[str]] = {}

    def entry(self, entry: Entry, name: str) -> None:
        """Take the records of an entry; `name` is its own without the number of its call."""
        for io, path, leaf in entry.values:
            record = entry.phase, record_name(entry.name, io, path)
            if record not in self.records:
                if len(self.records) >= _MOST_NAMES:
                    continue
                pattern = entry.phase, pattern_of_record(name, io, path)
                self.records[record] = Learned(), (entry.phase, name), pattern
            self.records[record][0].take(leaf)

    def step(self, run: int, counts: dict[tuple[int, str, str], int]) -> None:
        """Take how often each entry of a step was called, by rank, phase and name.

        Args:
            run: which of the healthy runs it is.
        """
        names: dict[tuple[int, int, str], set[str]] = {}
        for (rank, phase, name), count in counts.items():
            names.setdefault((run, rank, phase), set()).add(name)
            self.calls.setdefault((phase, name), Span()).take(count)
        for at, now in names.items():
            before = self._seen.setdefault(at, now)
            for name in before ^ now:
                self.calls[at[-1], name].take(0)
            before |= now


class _Known:
    """What was learned of each record and entry, and of those of one pattern."""

    def __init__(
        self, records: dict[_Name, tuple[Learned, _Name, Hashable]], calls: dict[_Name, Span]
    ) -> None:
        self._records = {record: learned for record, (learned, *_) in records.items()}
        self._calls = dict(calls)
        self._of_patterns: dict[Hashable, Learned] = {}
        self._routed: dict[_Name, Span] = {}
        # Entries of one pattern get the calls of all, where one's number of calls varies.
        entries: dict[_Name, list[_Name]] = {}
        for phase, name in self._calls:
            entries.setdefault((phase, pattern_of(name)), []).append((phase, name))
        for pattern, those in entries.items():
            spans = [self._calls[one] for one in those]
            if any(span.low < span.high for span in spans):
                whole = Span()
                whole.take(*(n for span in spans for n in (span.low, span.high)))
                self._calls.update(dict.fromkeys(those, whole))
                if whole.low == 0:
                    self._routed[pattern] = whole
        self._let_records_vary(records)

    def _let_records_vary(self, records: dict[_Name, tuple[Learned, _Name, Hashable]]) -> None:
        """Give records of one pattern what was learned of all, where one is empty in a step."""
        of_patterns: dict[Hashable, list[_Name]] = {}
        for record, (learned, entry, pattern) in records.items():
            calls = self._calls.get(entry)
            learned.routed |= calls is not None and calls.low == 0
            of_patterns.setdefault(pattern, []).append(record)
        for pattern, those in of_patterns.items():
            of = [self._records[record] for record in those]
            if any(one.routed for one in of):
                whole = self._of_patterns[pattern] = Learned()
                for one in of:
                    whole.join(one)
                self._records.update(dict.fromkeys(those, whole))
            elif any(one.shape is None for one in of):
                for one in of:
                    one.shape = None

    def record(self, entry: Entry, name: str, io: str, path: str) -> Learned | None:
        """Return what was learned of a record, or of those like it where they are routed."""
        learned = self._records.get((entry.phase, record_name(entry.name, io, path)))
        if learned is None and self._of_patterns:
            pattern = entry.phase, pattern_of_record(name, io, path)
            return self._of_patterns.get(pattern)
        return learned

    def calls(self, name: _Name) -> Span | None:
        """Return how often an entry is called in a step, or those like it where they are routed."""
        return self._calls.get(name) or self._routed.get((name[0], pattern_of(name[1])))


_LEAST_STEPS = 8
_SAME_BEGINNING = 0.02  # decades by which first norms of the same weights and data may differ
_MOST = 0.75  # of the records
_BEGINNING = 6  # steps that tell how far runs of two seeds are from each other
_MOST_SPANS = 128  # of steps, of which a mean is kept

#: Entry and path of a record, or a key.
_Called = tuple[str, str] | str


@rule(
    "healthy.drift",
    needs=(HEALTHY, steps(_LEAST_STEPS)),
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
    runs begin with the same norms; where they do not, the deviation is at least that of a whole
    run. Of more than 128 common steps, means of equal spans of them are compared.
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

    def journal(self, journal: Columns) -> None:
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
                numbers = step.counted_in(datum)
                means[key] = math.nan
                if numbers is not None and numbers.size:
                    means[key] = float(numbers.mean())
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

    def _take(self, phase: str, span: int, names: Sequence[_Called], values: np.ndarray) -> None:
        learning = self._check.learning
        into = self._own if learning is None else self._healthy[learning]
        into.setdefault(phase, _Means(self._spans)).take(span, names, values)

    def end(self) -> Iterator[Found]:
        """Yield the first drift, with how many there are."""
        found: list[tuple[int, str, _Called, np.ndarray]] = []
        same = self._begins_as_they_did()
        for of_keys in (True, False) if same else (True,):
            compared = [*self._compared(of_keys, same)]
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
                shown={"by step": shown},
                next_step=self._check.next_recording(place),
                same="drift",
            )

    def _place(self, span: int, phase: str, name: _Called) -> Place | None:
        """Return where a record stands first in a span of steps; its journal is read again."""
        run, rank = self._check.run, self._rank or 0
        for step in self._common[span * self._width :][: self._width].tolist():
            if isinstance(name, str):
                data = run.key_data(name, step, rank)
                if data:
                    return place_of(data[0])
            elif phase in run.phases_at(StepPlace(step, rank)):
                columns = columns_of(run, LayerPlace(phase, step, rank))
                records = columns.records("output", PARAMETERS_GRAD)
                if name in records.rows.names:
                    return records.place(records.rows.names.index(name))
        return None

    def _compared(
        self, of_keys: bool, same_beginning: bool
    ) -> Iterator[tuple[str, _Called, np.ndarray, _Compared]]:
        """Yield the series of keys, or of records, with how they stand to those of healthy runs."""
        for phase, own in self._own.items():
            if bool(phase) == of_keys:
                continue
            healthy = [one[phase].by_name() for one in self._healthy if phase in one]
            for name, series in own.by_name().items():
                others = [one[name] for one in healthy if name in one]
                compared = self._compare(series, others, same_beginning) if others else None
                if compared is not None:
                    yield phase, name, series, compared

    def _begins_as_they_did(self) -> bool:
        """Return whether the run begins with nearly the norms of the first healthy run.

        It has its weights and data then. How far the norms of other seeds are apart, and move
        apart, is of each seed; `healthy.range` looks at them.
        """
        same = count = 0
        for phase, own in self._own.items():
            other = self._healthy[0].get(phase)
            known = {} if other is None or not phase else other.by_name()
            for name, series in own.by_name().items():
                both = known.get(name)
                if both is not None and np.isfinite(series[0]) and np.isfinite(both[0]):
                    count += 1
                    same += bool(abs(series[0] - both[0]) < _SAME_BEGINNING)
        return same >= _MOST * count

    def _compare(
        self, own: np.ndarray, others: list[np.ndarray], same_beginning: bool
    ) -> _Compared | None:
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
        if not same_beginning:  # of another seed, which learns at another pace
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

    def take(self, span: int, names: Sequence[_Called], values: np.ndarray) -> None:
        """Add the values of a step; what is not finite is passed over."""
        places = self._named.places(names)
        sums, counts = (self._named.column(of, self._nothing) for of in ("sum", "count"))
        are = np.isfinite(values)
        sums[places[are], span] += values[are]
        counts[places[are], span] += 1

    def by_name(self) -> dict[_Called, np.ndarray]:
        """Return the means of each, (spans,); NaN where there is no value."""
        if not self._named.names:
            return {}
        sums, counts = (self._named.column(of, self._nothing) for of in ("sum", "count"))
        with np.errstate(invalid="ignore"):
            return dict(zip(self._named.names, sums / counts))


def _first_calls(rows: Rows) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Return the names of the records of first calls, and which they are."""
    calls = [parts_of_name(entry).call for entry, _ in rows.names]
    numbers = [n for n, call in enumerate(calls) if call == 0]
    return [rows.names[n] for n in numbers], np.array(numbers, np.intp)
