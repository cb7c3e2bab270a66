"""A rank that recorded less than others, another number of calls, or other shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.alike import pattern_of
from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.reading.views import Step
from mindrlhf_msprobe.checks.registry.rule import ranks, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity
from mindrlhf_msprobe.phases import GENERATE
from mindrlhf_msprobe.storage.manifest import thinned

_MOST_CELLS = 4  # that are named
_MOST_SHAPES = 200_000  # entries of which the shape is kept
_MOST_HELD = 256  # differences of ranks that are kept until it is known which cells may differ
_SEVERAL = 2  # sets of cells that change
_EXPERT = re.compile(r"(?i)expert[^.]*\.\d+\.")
_DYNAMIC = None


@rule(
    "ranks.entries",
    needs=(ranks(2),),
    causes=("check_ranks.cause_branch", "check_ranks.cause_batches", "check_ranks.cause_recording"),
    follows=("non_finite.*",),
)
class RecordedAlike:
    """Ranks that run the same cells run them equally often, on tensors of the same shapes.

    How often a cell runs while responses are generated depends on their lengths, and how often an
    expert does on its tokens. A pipeline's stages run other cells: a rank recorded less where all
    it has is what others have, too.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._names: dict[str, dict[int, list[str]]] = {}
        self._shapes: dict[tuple[str, str], dict[int, Any]] = {}
        self._first: dict[tuple[str, str], Place] = {}
        self._known: dict[tuple[str, int], tuple[list[Any], list[Any], list[Any]]] = {}
        self._routed = _Routed()
        self._held: dict[tuple[str, int, bool, frozenset[str]], _Held] = {}

    def journal(self, journal: Journal) -> None:
        """Note the calls, and the shapes of what they returned."""
        phase, rank = journal.phase, journal.rank
        self._names.setdefault(phase, {})[rank] = journal.layout.of_cells
        if phase == GENERATE:
            return
        records = journal.records("output")
        now = records.rows.names, records.kinds.shapes, records.kinds.dtypes
        if self._known.get((phase, rank)) == now:
            return
        self._known[phase, rank] = now
        for number, (name, path) in enumerate(records.rows.names):
            if path == "0":
                shape = records.kinds.shapes[number], records.kinds.dtypes[number]
                self._take(phase, rank, name, shape, partial(records.place, number))

    def _take(
        self, phase: str, rank: int, name: str, shape: Any, place: Callable[[], Place]
    ) -> None:
        at = phase, name
        by_rank = self._shapes.get(at)
        if by_rank is None:
            if len(self._shapes) >= _MOST_SHAPES:
                return
            by_rank = self._shapes[at] = {}
            self._first[at] = place()
        if by_rank.setdefault(rank, shape) != shape:
            by_rank[rank] = _DYNAMIC  # other ones in other steps: a length, a batch of its own

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the ranks that recorded less, or ran cells more or less often."""
        names, self._names = self._names, {}
        if not step.complete:
            return
        yield from self._keys(step)
        for phase, by_rank in names.items():
            yield from self._absent(step, phase, by_rank)
            if phase != GENERATE and len(by_rank) > 1:
                self._calls(step, phase, by_rank)

    def _absent(
        self, step: Step, phase: str, by_rank: Mapping[int, Sequence[str]]
    ) -> Iterator[Found]:
        absent = [rank for rank in step.ranks if rank not in by_rank]
        absent = [rank for rank in absent if self._should_record(phase, step.number, rank)]
        if absent and len(by_rank) > 1 - (len(step.ranks) == 2):
            said = message("check_ranks.no_phase", ranks=absent, phase=phase)
            at = Place(step.number, absent[0], phase)
            yield self._check.finding(
                said,
                at,
                ranks=absent,
                same=("absent", phase),
                evidence=[Evidence(at, {"entries": _counts(by_rank)})],
            )

    def _should_record(self, phase: str, step: int, rank: int) -> bool:
        """Return whether a rank was to record a phase that it has in no other step, either."""
        config = self._check.run.config(rank)
        if self._check.run.is_thinned(thinned.LAYERS, step, rank):
            return False
        if config is None:
            return bool(self._check.run.phases_at(step, rank))
        table = config.phase_table()
        return phase in table and config.records_phase(table[phase]) and config.records_step(step)

    def _calls(self, step: Step, phase: str, by_rank: Mapping[int, Sequence[str]]) -> None:
        """Hold the ranks that ran cells more or less often, until it is known which may."""
        for rank, names in by_rank.items():
            self._routed.take(phase, rank, names)
        lists = [*by_rank.values()]
        if all(names == lists[0] for names in lists[1:]):
            return
        counts = {rank: Counter(map(_call_name, names)) for rank, names in by_rank.items()}
        usual = _usual_of(counts)
        for rank, count in counts.items():
            other = counts[usual]
            if count == other or (set(count) - set(other) and set(other) - set(count)):
                continue  # stages of a pipeline run cells of their own
            cells = [name for name in {**other, **count} if count[name] != other[name]]
            lacking = not set(count) - set(other) and any(not count[name] for name in cells)
            calls = {name: (count[name], other[name]) for name in cells}
            self._hold(_Held(step.number, rank, usual, phase, lacking, calls, _counts(by_rank)))

    def _hold(self, new: _Held) -> None:
        at = new.phase, new.rank, new.lacking, frozenset(map(pattern_of, new.calls))
        held = self._held.get(at)
        if held is None and len(self._held) < _MOST_HELD:
            held = self._held[at] = new
        if held is not None:
            held.times, held.last_step = held.times + 1, new.step

    def _differing(self) -> Iterator[Found]:
        """Yield the ranks that ran cells more or less often, but for those that depend on data."""
        for held in self._held.values():
            calls = {
                name: of
                for name, of in held.calls.items()
                if not self._routed.depends_on_data(held.phase, name)
            }
            if not calls:
                continue
            rank, usual = held.rank, held.usual
            (first, (count, other)), *_ = calls.items()
            at = Place(held.step, rank, held.phase, entry=f"{first}.{max(0, count - 1)}")
            yield self._check.finding(
                message(
                    "check_ranks.calls",
                    lacking=held.lacking,
                    rank=rank,
                    other=usual,
                    cells=len(calls),
                    count=count,
                    usual=other,
                ),
                at,
                same=("calls", held.phase, rank, held.lacking),
                times=held.times,
                last_step=held.last_step,
                evidence=[
                    Evidence(at, {"entries": held.entries}),
                    *(
                        Evidence(
                            Place(held.step, rank, held.phase, entry=name),
                            {"calls": {rank: count, usual: other}},
                        )
                        for name, (count, other) in [*calls.items()][:_MOST_CELLS]
                    ),
                ],
            )

    def _keys(self, step: Step) -> Iterator[Found]:
        """Yield the ranks that lack a key which all others saved."""
        if len(step.ranks) < 3:
            return
        removed = self._check.run.is_thinned
        keys = {rank: set(step.keys(rank)) for rank in step.ranks}
        for key in sorted(set().union(*keys.values())):
            lacking = [rank for rank in step.ranks if key not in keys[rank]]
            lacking = [r for r in lacking if not removed(thinned.KEY_DATA, step.number, r)]
            if len(lacking) == 1:
                at = Place(step.number, lacking[0], key=key)
                said = message("check_ranks.no_key", rank=lacking[0], key=key)
                yield self._check.finding(said, at, same=("key", key))

    def end(self) -> Iterator[Found]:
        """Yield other numbers of calls, and the shapes that differ between ranks in all steps."""
        yield from self._differing()
        for (phase, rank), places in self._unlike_shapes().items():
            first, shapes = min(places, key=lambda item: item[0].order)
            at_rank = Place(first.step, rank, phase, first.entry, first.record, seq=first.seq)
            yield self._check.finding(
                message("check_ranks.shapes", rank=rank, records=len(places)),
                at_rank,
                severity=Severity.WARNING,
                same=("shapes", phase, rank),
                causes=("check_ranks.cause_batches", "check_ranks.cause_configuration"),
                evidence=[
                    Evidence(place, {"shapes": {str(r): _shown(s) for r, s in by_rank.items()}})
                    for place, by_rank in [(at_rank, shapes), *places[1:_MOST_CELLS]]
                ],
            )

    def _unlike_shapes(self) -> dict[tuple[str, int], list[tuple[Place, Mapping[int, Any]]]]:
        """Return the records of a rank whose shape is another one in all steps, by phase."""
        dynamic = {
            (phase, pattern_of(_call_name(name)))
            for (phase, name), by_rank in self._shapes.items()
            if any(shape is _DYNAMIC for shape in by_rank.values())
        }
        unlike: dict[tuple[str, int], list[tuple[Place, Mapping[int, Any]]]] = {}
        for at, by_rank in self._shapes.items():
            phase, call = at[0], _call_name(at[1])
            if (phase, pattern_of(call)) in dynamic or self._routed.depends_on_data(phase, call):
                continue
            fixed = {rank: shape for rank, shape in by_rank.items() if shape is not _DYNAMIC}
            kinds = Counter(map(_hashed, fixed.values()))
            if len(fixed) < len(by_rank) or len(kinds) < 2:
                continue
            usual = kinds.most_common(1)[0][0]
            other = next(rank for rank, shape in sorted(fixed.items()) if _hashed(shape) != usual)
            unlike.setdefault((at[0], other), []).append((self._first[at], fixed))
        return unlike


@dataclass
class _Held:
    """Cells that a rank ran more or less often than another, in one step or several.

    Attributes:
        calls: cell → how often the rank ran it, and the other one.
        entries: rank → how many it recorded.
    """

    step: int
    rank: int
    usual: int
    phase: str
    lacking: bool
    calls: dict[str, tuple[int, int]]
    entries: dict[str, int]
    times: int = 0
    last_step: int = 0


class _Routed:
    """Cells whose number of calls depends on the data, as that of experts does.

    Of cells whose names differ in numbers alone: those that are not always the same ones which run
    more or less often than in the step before.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[Sequence[str], Counter[str]]] = {}
        self._changed: dict[tuple[str, str], set[frozenset[str]]] = {}

    def take(self, phase: str, rank: int, names: Sequence[str]) -> None:
        """Take the entries of one rank in the next step."""
        known = self._last.get((phase, rank))
        if known is not None and known[0] == names:
            return
        counts = Counter(map(_call_name, names))
        self._last[phase, rank] = names, counts
        changed: dict[str, list[str]] = {}
        for name in () if known is None else {**known[1], **counts}:
            if known is not None and known[1][name] != counts[name]:
                changed.setdefault(pattern_of(name), []).append(name)
        for pattern, those in changed.items():
            sets = self._changed.setdefault((phase, pattern), set())
            if len(sets) < _SEVERAL:
                sets.add(frozenset(those))

    def depends_on_data(self, phase: str, name: str) -> bool:
        """Return whether how often a cell runs depends on the data, by what was seen so far."""
        several = len(self._changed.get((phase, pattern_of(name)), ())) >= _SEVERAL
        return several or bool(_EXPERT.search(name))


def _call_name(entry: str) -> str:
    return entry.rpartition(".")[0]


def _counts(by_rank: Mapping[int, Sequence[str]]) -> dict[str, int]:
    return {str(rank): len(names) for rank, names in sorted(by_rank.items())}


def _hashed(shape: tuple[Any, Any]) -> tuple[Any, ...]:
    return tuple(shape[0] or ()), shape[1]


def _shown(shape: tuple[Any, Any]) -> str:
    return f"{shape[1]}{list(shape[0] or ())}"


def _usual_of(counts: Mapping[int, Counter[str]]) -> int:
    """Return a rank that ran cells as often as most did; where no two are alike, that with most."""
    kinds = Counter(frozenset(count.items()) for count in counts.values())
    most = max(kinds.values())
    if most == 1:
        return max(counts, key=lambda rank: (len(counts[rank]), counts[rank].total(), -rank))
    return next(rank for rank in counts if kinds[frozenset(counts[rank].items())] == most)
