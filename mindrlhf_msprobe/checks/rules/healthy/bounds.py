"""What healthy runs never did: finite, dtype, shape, number of calls, range of norms."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.alike import pattern_of
from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.checks.registry.rule import HEALTHY, rule
from mindrlhf_msprobe.checks.rules.healthy.learned import (
    Learned,
    Span,
    joined,
    pattern_of_record,
)
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity

#: Phase and record, or phase and entry without the number of its call.
_Name = tuple[str, str]
_MOST_NAMES = 200_000


@rule(
    "healthy.range",
    needs=(HEALTHY,),
    severity=Severity.WARNING,
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
        self._known: _Known | None = None
        self._now: dict[tuple[int, str, str], list[Any]] = {}
        self._broken: dict[tuple[int, str], list[Place]] = {}

    def entry(self, entry: EntryView) -> None:
        """Compare an entry with what was learned, or learn from it."""
        name = _without_call(entry.name)
        seen = self._now.setdefault((entry.rank, entry.phase, name), [0, entry])
        seen[0] += 1
        if self._check.learning is not None:
            self._learning.entry(entry, name)
            return
        known = self._known = self._known or self._learning.known()
        margin = self._check.threshold("decades")
        for io, path, leaf in entry.records:
            learned = known.record(entry, name, io, path)
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
        known = self._known = self._known or self._learning.known()
        for (rank, phase, name), (count, entry) in now.items() if step.complete else ():
            calls = known.calls((phase, name))
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


def _without_call(name: str) -> str:
    return name.rpartition(".")[0]


class _Learning:
    """What is learned of healthy runs; it does not grow with their steps."""

    def __init__(self) -> None:
        self._records: dict[_Name, tuple[Learned, _Name, Hashable]] = {}
        self._calls: dict[_Name, Span] = {}
        self._seen: dict[tuple[int, int, str], set[str]] = {}

    def entry(self, entry: EntryView, name: str) -> None:
        """Take the records of an entry; `name` is its own without the number of its call."""
        for io, path, leaf in entry.records:
            record = entry.phase, entry.record_name(io, path)
            if record not in self._records:
                if len(self._records) >= _MOST_NAMES:
                    continue
                alike = entry.phase, pattern_of_record(name, io, path)
                self._records[record] = Learned(), (entry.phase, name), alike
            self._records[record][0].take(leaf)

    def step(self, run: int, counts: dict[tuple[int, str, str], int]) -> None:
        """Take how often each entry of a step was called, by rank, phase and name.

        Args:
            run: which of the healthy runs it is.
        """
        names: dict[tuple[int, int, str], set[str]] = {}
        for (rank, phase, name), count in counts.items():
            names.setdefault((run, rank, phase), set()).add(name)
            self._calls.setdefault((phase, name), Span()).take(count)
        for at, now in names.items():
            before = self._seen.setdefault(at, now)
            for name in before ^ now:
                self._calls[at[-1], name].take(0)
            before |= now

    def known(self) -> _Known:
        """Return what was learned, after the last healthy run."""
        return _Known(self._records, self._calls)


class _Known:
    """What was learned of each record and entry, and of those that are alike."""

    def __init__(
        self,
        records: dict[_Name, tuple[Learned, _Name, Hashable]],
        calls: dict[_Name, Span],
    ) -> None:
        self._records = {record: learned for record, (learned, *_) in records.items()}
        self._calls = dict(calls)
        self._of_patterns: dict[Hashable, Learned] = {}
        self._routed: dict[_Name, Span] = {}
        self._let_calls_vary()
        self._let_records_vary(records)

    def _let_calls_vary(self) -> None:
        """Give entries that are alike the calls of all, where one's number of calls varies."""
        alike: dict[_Name, list[_Name]] = {}
        for phase, name in self._calls:
            alike.setdefault((phase, pattern_of(name)), []).append((phase, name))
        for pattern, those in alike.items():
            spans = [self._calls[one] for one in those]
            if any(span.low < span.high for span in spans):
                whole = Span()
                whole.take(*(n for span in spans for n in (span.low, span.high)))
                self._calls.update(dict.fromkeys(those, whole))
                if whole.low == 0:
                    self._routed[pattern] = whole

    def _let_records_vary(self, records: dict[_Name, tuple[Learned, _Name, Hashable]]) -> None:
        """Give records that are alike what was learned of all, where one is empty in a step."""
        alike: dict[Hashable, list[_Name]] = {}
        for record, (learned, entry, pattern) in records.items():
            calls = self._calls.get(entry)
            learned.routed |= calls is not None and calls.low == 0
            alike.setdefault(pattern, []).append(record)
        for pattern, those in alike.items():
            of = [self._records[record] for record in those]
            if any(one.routed for one in of):
                whole = self._of_patterns[pattern] = joined(of)
                self._records.update(dict.fromkeys(those, whole))
            elif any(one.shape is None for one in of):
                for one in of:
                    one.shape = None

    def record(self, entry: EntryView, name: str, io: str, path: str) -> Learned | None:
        """Return what was learned of a record, or of those like it where they are routed."""
        learned = self._records.get((entry.phase, entry.record_name(io, path)))
        if learned is None and self._of_patterns:
            pattern = entry.phase, pattern_of_record(name, io, path)
            return self._of_patterns.get(pattern)
        return learned

    def calls(self, name: _Name) -> Span | None:
        """Return how often an entry is called in a step, or those like it where they are routed."""
        return self._calls.get(name) or self._routed.get((name[0], pattern_of(name[1])))
