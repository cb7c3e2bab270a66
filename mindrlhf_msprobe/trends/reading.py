"""One pass over a run: every journal and every save at most once, what is wanted is kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.patterns import Pattern, PatternError
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.phases import ROLLOUT_CORR, ROLLOUT_LOG_PROB
from mindrlhf_msprobe.sequences.batch import Sequences
from mindrlhf_msprobe.sequences.step_data import Settings, StepData, Unavailable
from mindrlhf_msprobe.storage.columns.columns import Columns, record_of
from mindrlhf_msprobe.storage.columns.layouts import Layout, Layouts, record_names
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.place import LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.reading.series import (
    STATISTICS,
    Gathered,
    Missing,
    Series,
    statistic_of,
)
from mindrlhf_msprobe.trends.derived import KEYS_READ, OF_KEYS
from mindrlhf_msprobe.trends.of_layers import MARKS, OF_ENTRIES
from mindrlhf_msprobe.trends.rollout_correction import METRICS, RolloutMetrics

#: Every derived quantity; `ROLLOUT_CORR` stands for its metrics, which have names of their own.
DERIVED = (*OF_KEYS, *OF_ENTRIES, ROLLOUT_CORR)
_OWN_NAMES = (*DERIVED, *METRICS)
#: The metrics that stand before key data; the others stand behind them.
_METRICS_FIRST = 5

_MOST_NEAR = 10_000  # names among which the nearest are looked for
_OF_KEY, _OF_RECORD = "mean", "norm"  # statistics, unless one is chosen


@dataclass(frozen=True)
class Choice:
    """What is wanted; nothing chosen: the mean of every key, and every derived quantity.

    Attributes:
        pattern: a regular expression on the names of records, keys and derived quantities.
        record: one on the names of records alone.
        keys, derived: names of keys, and of derived quantities.
        statistic: one of `STATISTICS`; None: the mean of a key, the norm of a record.
        phase, rank: of this one only; None: of all.
        spread: keys of which the smallest and the largest value are given, too.
    """

    pattern: str | None = None
    record: str | None = None
    keys: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    statistic: str | None = None
    phase: str | None = None
    rank: int | None = None
    spread: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether nothing is chosen."""
        return self.pattern is None and self.record is None and not (self.keys or self.derived)


@dataclass(frozen=True)
class Trends:
    """What was found.

    Attributes:
        series: derived quantities, keys, then layers and records.
        missing: derived quantities that were requested and are not there, with the reason.
    """

    series: list[Series]
    missing: list[Missing]


def read_trends(
    run: Run, choice: Choice, progress: Callable[[int, int], None] | None = None
) -> Trends:
    """Return the series of a run that are wanted.

    Args:
        progress: called with (done, all) after each step of a rank.

    Raises:
        UsageError: a pattern cannot be used, or a name of a statistic, rank, phase or derived
            quantity is not known.
        RunError: a key that was requested, or what a pattern matches, is not there.
    """
    wanted = Reading(run, choice)
    places = sorted(at for at in run.places if choice.rank in (None, at.rank))
    for number, at in enumerate(places):
        wanted.read(at)
        if progress is not None:
            progress(number + 1, len(places))
    return wanted.found()


def missing_in_all(found: Iterable[Trends]) -> list[Missing]:
    """Return what is missing in each of the runs, with the reason of the last one."""
    missing = {one.name: one for trends in found for one in trends.missing}
    there = {series.name for trends in found for series in trends.series}
    return [one for name, one in missing.items() if name not in there]


class Reading:
    """What is looked for in each place, and what was found so far."""

    def __init__(self, run: Run, choice: Choice) -> None:
        _check(run, choice)
        self._run, self._choice = run, choice
        self._pattern, self._record = (
            _pattern("pattern", choice.pattern),
            _pattern("record", choice.record),
        )
        names = choice.derived
        if choice.everything:
            names = DERIVED
        elif self._pattern is not None:
            matched = (n for n in _OWN_NAMES if self._pattern.search(n))
            names = (*names, *(n for n in matched if n not in names))
        self._derived = [name for name in names if name in OF_KEYS]
        self._metrics = RolloutMetrics(names)
        self._gather = {name: OF_ENTRIES[name](run) for name in names if name in OF_ENTRIES}
        self._records = self._pattern or self._record
        self._settings: Settings | None = None
        self._layouts = Layouts()
        self._why: dict[str, Message] = {}
        self._near: dict[str, None] = {}
        self._matched = False  # whether anything has a name that was requested
        self._found = Gathered()

    def read(self, at: StepPlace) -> None:
        """Read one place."""
        reads = bool(self._gather) or self._records is not None
        for layer in self._run.layer_places(*at) if reads else ():
            if self._choice.phase not in (None, layer.phase):
                continue
            columns = self._columns(layer)
            for gatherer in self._gather.values():
                gatherer.columns(columns)
        for gatherer in self._gather.values():
            gatherer.end(at, self._found)
        if self._choice.phase is None:
            self._read_keys(at)

    def take(self, step: int | None) -> list[Series]:
        """Return what was found since the last time, after a step; None: after the last one.

        Points of `update_to_weight` are of the step before: they need what the weights became.
        """
        for gatherer in self._gather.values():
            gatherer.settle(step, self._found)
        found, self._found = self._found, Gathered()
        return sorted(found.series(), key=_order)

    def _columns(self, at: LayerPlace) -> Columns:
        """Return what gatherers read of a place, and take the records that are wanted."""
        if self._records is None:
            return columns_of(self._run, at, self._layouts, marks=MARKS)
        columns = columns_of(self._run, at, self._layouts)
        statistic = self._choice.statistic or _OF_RECORD
        rows, others = columns.layout.once(_matching_rows, self._records)
        self._near |= dict.fromkeys(others[: _MOST_NEAR - len(self._near)])
        if not rows:
            return columns
        self._matched = True
        files, seqs = self._run.locator(at), columns.heads.seqs
        for _, row, name in sorted(rows, key=lambda one: seqs[one[0]]):  # as they began in time
            record = record_of(columns.values.leaf(row), files, name)
            value = statistic_of(record, statistic)
            if value is not None:
                place = at.step, at.rank, 0
                self._found.add(
                    "record", record.name, value, place, statistic=statistic, phase=at.phase
                )
        return columns

    def _read_keys(self, at: StepPlace) -> None:
        there = self._run.keys_at(at)
        every, own, pattern = self._choice.everything, self._choice.keys, self._pattern
        wanted = [k for k in there if every or k in own or (pattern and pattern.search(k))]
        read = {*wanted, *(KEYS_READ.intersection(there) if self._derived else ())}
        read |= self._metrics.keys(there)
        of_place = {key: saves for key in sorted(read) if (saves := self._run.key_data(key, *at))}
        for key in wanted:
            self._matched = self._matched or key in of_place
            names = [self._choice.statistic or _OF_KEY]
            names += ("min", "max") if key in self._choice.spread else ()
            for datum in of_place.get(key, ()):
                point = datum.step, datum.rank, datum.micro_step
                for record, name in itertools.product(datum.records, names):
                    value = statistic_of(record, name)
                    if value is not None:
                        self._found.add("key", record.name, value, point, statistic=name)
        if not of_place or not (self._derived or self._metrics.wanted):
            return
        if self._settings is None:
            self._settings = Settings.read(self._run)
        sequences = Sequences(StepData(of_place, of_place.__getitem__, self._settings))
        for name in self._derived:
            try:
                values = OF_KEYS[name](sequences)
            except Unavailable as error:
                self._why.setdefault(name, error.said)
                continue
            for micro_step, value, notes in values:
                self._found.add("derived", name, value, (*at, micro_step), notes=notes)
        self._metrics.read(sequences, at, self._found)

    def found(self) -> Trends:
        """Return what was found in all places."""
        series, choice = self.take(None), self._choice
        if not (series or choice.everything or choice.derived):
            wanted = choice.pattern or choice.record or ", ".join(choice.keys)
            of = {"path": str(self._run.path), "asked": shortened(wanted)}
            if self._matched:
                statistic = choice.statistic or _OF_KEY
                raise RunError.saying("trend.no_numbers", **of, statistic=statistic)
            near = nearest_names(wanted, [*self._run.keys, *_OWN_NAMES, *self._near])
            raise RunError.saying("trend.nothing_matches", **of, near=near)
        there = {s.name for s in series if s.kind == "derived"}
        whys = {name: gatherer.missing() for name, gatherer in self._gather.items()}
        whys |= {name: self._why.get(name, message("trend.no_key_data")) for name in self._derived}
        order = sorted(whys, key=DERIVED.index)
        missing = [Missing(name, whys[name]) for name in order if name not in there]
        # Why the run says that it holds no log-probabilities of the rollout.
        keys = self._run.coverage().get("key_data", {})
        said = next((keys[name] for name in ROLLOUT_LOG_PROB if name in keys), None)
        not_recorded = next(iter(said), None) if isinstance(said, tuple) else None
        return Trends(series, [*missing, *self._metrics.missing(not_recorded)])


def _matching_rows(
    layout: Layout, pattern: Pattern
) -> tuple[list[tuple[int, int, str]], list[str]]:
    """Return entry, row and name of each record that a pattern matches, and the other names."""
    numbers = np.repeat(np.arange(len(layout.names)), np.diff(layout.first)).tolist()
    matched, others = [], []
    for row, name in enumerate(record_names(layout)):
        if pattern.search(name):
            matched.append((numbers[row], row, name))
        else:
            others.append(name)
    return matched, others


def _order(series: Series) -> tuple[int, int]:
    """Whole networks before their layers, and records last; else as they were met."""
    if series.kind != "derived":
        return (1, 0) if series.kind == "key" else (3, 0)
    if series.name in METRICS:
        place = METRICS.index(series.name)
        return (0 if place < _METRICS_FIRST else 1), len(DERIVED) + place
    of, _, layer = series.name.partition("[")
    return (2 if layer else 0), DERIVED.index(of)


def _pattern(option: str, text: str | None) -> Pattern | None:
    """Return a pattern of the user's.

    Raises:
        UsageError: it cannot be used.
    """
    if text is None:
        return None
    try:
        return Pattern(text)
    except PatternError as error:
        raise UsageError.saying(
            "error.rule_pattern", where=option, pattern=shortened(text), why=str(error)
        ) from None


def _check(run: Run, choice: Choice) -> None:
    """Refuse names that are not known, naming the nearest."""
    known: Sequence[tuple[str, Iterable[str], Iterable[str]]] = (
        ("statistic", filter(None, [choice.statistic]), STATISTICS),
        ("derived", choice.derived, _OWN_NAMES),
        ("key", choice.keys, run.keys),
        ("phase", filter(None, [choice.phase]), run.phases),
        ("rank", [] if choice.rank is None else [str(choice.rank)], map(str, run.ranks)),
    )
    for what, given, there in known:
        held = list(there)
        for name in given:
            if name not in held:
                few = len(held) <= _SHOWN
                near = held if few else nearest_names(name, held) or held[:_SHOWN]
                raise UsageError.saying(
                    "trend.unknown", what=what, path=str(run.path), name=shortened(name), near=near
                )


_SHOWN = 12


def nearest_names(name: str, held: Iterable[str]) -> list[str]:
    """Return up to three names that are like one."""
    import difflib  # slow to import, and only a mistake needs it

    names = list(dict.fromkeys(held))[:_MOST_NEAR]
    holding = [other for other in names if name and name in other][:3]
    return holding or difflib.get_close_matches(name[:200], names, n=3, cutoff=0.3)
