"""Ranks that do not do the same, do not hold the same, or ran with other settings."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import PARAMETERS, Found, Named, pattern_of, ranks, rule
from mindrlhf_msprobe.checks.views import Step
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.phases import GENERATE
from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, numbers_of
from mindrlhf_msprobe.storage.columns.rows import Records
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.place import Place, StepPlace

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
class RecordedEqually:
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
        self._held: dict[tuple[str, int, bool, frozenset[str]], _OtherCalls] = {}

    def journal(self, journal: Columns) -> None:
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
            at, by_rank = (phase, name), self._shapes.get((phase, name))
            if path != "0" or (by_rank is None and len(self._shapes) >= _MOST_SHAPES):
                continue
            if by_rank is None:
                by_rank = self._shapes[at] = {}
                self._first[at] = records.place(number)
            shape = records.kinds.shapes[number], records.kinds.dtypes[number]
            if by_rank.setdefault(rank, shape) != shape:
                by_rank[rank] = _DYNAMIC  # other ones in other steps: a length, a batch of its own

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the ranks that recorded less, or ran cells more or less often."""
        names, self._names = self._names, {}
        if not step.complete:
            return
        yield from self._keys(step)
        for phase, by_rank in names.items():
            lacking = (rank for rank in step.ranks if rank not in by_rank)
            absent = [rank for rank in lacking if self._should_record(phase, step.number, rank)]
            if absent and len(by_rank) > 1 - (len(step.ranks) == 2):
                yield self._check.finding(
                    message("check_ranks.no_phase", ranks=absent, phase=phase),
                    Place(step.number, absent[0], phase),
                    ranks=absent,
                    same=("absent", phase),
                    shown={"entries": _counts(by_rank)},
                )
            if phase != GENERATE and len(by_rank) > 1:
                self._calls(step, phase, by_rank)

    def _should_record(self, phase: str, step: int, rank: int) -> bool:
        """Return whether a rank was to record a phase that it has in no other step, either."""
        config = self._check.run.config(rank)
        if self._check.run.is_thinned(step_spans.LAYERS, StepPlace(step, rank)):
            return False
        if config is None:
            return bool(self._check.run.phases_at(StepPlace(step, rank)))
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
            at = phase, rank, lacking, frozenset(map(pattern_of, calls))
            held = self._held.get(at)
            if held is None and len(self._held) < _MOST_HELD:
                held = _OtherCalls(
                    step.number, rank, usual, phase, lacking, calls, _counts(by_rank)
                )
                self._held[at] = held
            if held is not None:
                held.times, held.last_step = held.times + 1, step.number

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
                shown={"entries": held.entries},
                evidence=[
                    Evidence(
                        Place(held.step, rank, held.phase, entry=name),
                        {"calls": {rank: count, usual: other}},
                    )
                    for name, (count, other) in [*calls.items()][:_MOST_CELLS]
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
            lacking = [
                r for r in lacking if not removed(step_spans.KEY_DATA, StepPlace(step.number, r))
            ]
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
                    Evidence(
                        place,
                        {"shapes": {str(r): f"{t}{[*(s or ())]}" for r, (s, t) in of.items()}},
                    )
                    for place, of in [(at_rank, shapes), *places[1:_MOST_CELLS]]
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
class _OtherCalls:
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


def _usual_of(counts: Mapping[int, Counter[str]]) -> int:
    """Return a rank that ran cells as often as most did; if no two did, the one that ran most."""
    kinds = Counter(frozenset(count.items()) for count in counts.values())
    most = max(kinds.values())
    if most == 1:
        return max(counts, key=lambda rank: (len(counts[rank]), counts[rank].total(), -rank))
    return next(rank for rank in counts if kinds[frozenset(counts[rank].items())] == most)


#: Section of run.json → the settings of it in which ranks should not differ; (): all.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "versions": (),
    "determinism": (),
    "seeds": ("mindspore", "PYTHONHASHSEED"),
}


_MOST_SHOWN = 4
_FEW = 0.2  # of the parameters: so many may be shards, of experts say

_UNKNOWN = -(1 << 40)  # no leader yet; other negative numbers: a rank that diverged

#: What tells two tensors apart.
_Identity = Any


@rule(
    "ranks.replicas",
    needs=(ranks(2), PARAMETERS),
    severity=Severity.ERROR,
    follows=("non_finite.*", "ranks.replicas"),
    causes=("check_ranks.cause_reduction", "check_ranks.cause_nondeterministic"),
)
class Replicas:
    """Ranks that once held the same parameters hold the same ones in every later step.

    Which ranks are replicas shows when a parameter is first seen: those that agree are. Ranks that
    agree in none and were given other data are replicas of another seed or checkpoint; those that
    were given the same are shards. Tables that no seed draws may agree: it is enough that every
    matrix differs which is whole, not a slice, by what its cell took and returned.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._groups: dict[str, _Groups] = {}
        self._given: dict[tuple[str, int], _Identity] = {}
        self._whole: dict[str, set[str]] = {}
        self._begun: set[str] = set()

    def journal(self, journal: Columns) -> None:
        """Note what the first cell with parameters was given, until its phase was compared."""
        if journal.phase not in self._begun:
            given = _given(journal)
            if given:
                self._given[journal.phase, journal.rank] = given
            self._whole.setdefault(journal.phase, set()).update(_whole_matrices(journal))

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the replicas that diverged in a step, and those that never were the same."""
        phases: dict[str, dict[int, Records]] = {}
        for (rank, phase), records in step.parameters.items():
            phases.setdefault(phase, {})[rank] = records
        for phase, of_ranks in phases.items():
            seen = _Seen(step.number, phase, of_ranks)
            if phase not in self._begun and seen.are_several:
                self._begun.add(phase)
                yield from self._unlike(seen)
            groups = self._groups.setdefault(phase, _Groups())
            diverged: dict[int, list[str]] = {}
            for name, rank in groups.take(seen):
                diverged.setdefault(rank, []).append(name)
            for rank, names in diverged.items():
                yield self._differs("parted", seen, rank, names)
        self._given.clear()
        self._whole.clear()

    def _unlike(self, seen: _Seen) -> Iterator[Found]:
        """Yield the ranks that hold other parameters than the rest from the first."""
        known = sorted(rank for rank, floats in seen.tensors.items() if floats.names)
        varied = {
            name: identities
            for name in seen.names
            if len(identities := seen.identities(name)) == len(known)
            and not any(leaf.get("Max") == leaf.get("Min") for leaf in seen.leaves(name).values())
        }
        if len(known) < 2 or not varied:
            return
        if len(known) == 2:
            yield from self._two(seen, varied, known)
            return
        alone: dict[int, list[str]] = {}
        for name, identities in varied.items():
            counts = Counter(identities.values())
            single = [rank for rank, identity in identities.items() if counts[identity] == 1]
            if len(single) == 1:
                alone.setdefault(single[0], []).append(name)
        for rank, names in alone.items():
            yield self._differs("other_weights", seen, rank, names)

    def _two(
        self, seen: _Seen, varied: Mapping[str, Mapping[int, _Identity]], known: Sequence[int]
    ) -> Iterator[Found]:
        phase = seen.phase
        differ = [name for name, of in varied.items() if len(set(of.values())) > 1]
        # Few parameters, or all whole matrices: not shards of them.
        few = len(differ) <= _FEW * len(varied) and not any("expert" in name for name in differ)
        matrices = {name for name in varied if name in self._whole[phase] and "expert" not in name}
        shapes = all(
            len({tuple(leaf["shape"]) for leaf in seen.leaves(name).values()}) == 1
            for name in differ
        )
        if not differ or not (few or {*(matrices or varied)} <= {*differ}):
            return
        given = [self._given.get((phase, rank)) for rank in known]
        same_data = len({one for one in given if one is not None}) < 2
        if same_data or not shapes:
            self._check.not_checked(message("check_ranks.shards", phase=phase))
            return
        yield self._differs("other_weights", seen, known[1], differ)

    def _differs(self, code: str, seen: _Seen, rank: int, names: Sequence[str]) -> Found:
        self._check.checked()
        named = sorted(names, key=lambda name: seen.place(name, rank).order)
        first = seen.leaves(named[0])
        others = [other for other in sorted(first) if other != rank]
        evidence = []
        for name in named[:_MOST_SHOWN]:
            for one in (rank, *others[:1]):
                leaf = seen.leaves(name)[one]
                shown = {**numbers_of(leaf), "fingerprint": leaf.get("fingerprint", "")}
                evidence.append(Evidence(seen.place(name, one), shown))
        causes = self._check.rule.causes
        if code == "other_weights":
            causes = ("check_ranks.cause_seed", "check_ranks.cause_checkpoint")
        return self._check.finding(
            message(
                f"check_ranks.{code}",
                rank=rank,
                others=others,
                parameters=len(names),
                of=len(seen.names),
            ),
            seen.place(named[0], rank),
            evidence=evidence,
            causes=causes,
            same=(code, seen.phase, rank),
            next_step=self._check.next_recording(
                Place(seen.step, None, seen.phase), first=max(0, seen.step - 1)
            ),
        )


class _Seen:
    """The parameters of one phase and step, on all ranks.

    Attributes:
        records: rank → its parameters.
        tensors: the same, by name.
        names: of all of them.
    """

    def __init__(self, step: int, phase: str, records: Mapping[int, Records]) -> None:
        self.step, self.phase, self.records = step, phase, records
        self.tensors = {rank: one.kinds.tensors for rank, one in records.items()}
        first, *others = self.tensors.values()
        are_one = all(one is first for one in others)
        several = [first] if are_one else [*self.tensors.values()]
        self.names = [*dict.fromkeys(name for one in several for name in one.names)]
        counted = sum(len(one.names) for one in self.tensors.values())
        self.are_several = counted > len(self.names)

    def numbers(self, name: str) -> dict[int, int]:
        """Return which record a parameter is of each rank that has it."""
        return {rank: one.of[name][0] for rank, one in self.tensors.items() if name in one.of}

    def identities(self, name: str) -> dict[int, _Identity]:
        """Return what tells a parameter of each rank apart."""
        return {rank: self.records[rank].identities[n] for rank, n in self.numbers(name).items()}

    def leaves(self, name: str) -> dict[int, LeafJson]:
        """Return the leaf of a parameter on each rank."""
        return {rank: self.records[rank].leaves[n] for rank, n in self.numbers(name).items()}

    def place(self, name: str, rank: int) -> Place:
        """Return where a parameter of a rank is."""
        return self.records[rank].place(self.tensors[rank].of[name][0])


class _Groups:
    """Which ranks held the same parameter when it was first seen: the lowest of them, by rank."""

    def __init__(self) -> None:
        self._named = Named()

    def take(self, seen: _Seen) -> Iterator[tuple[str, int]]:
        """Yield the parameters that are no more those of their group, each with its rank."""
        slots = {rank: self._named.places(one.names, rank) for rank, one in seen.tensors.items()}
        names = self._named.names
        held: dict[int, np.ndarray] = {}
        for rank, own in slots.items():
            found = held[rank] = np.full(len(names), None, object)
            found[own] = seen.records[rank].identities[seen.tensors[rank].first]
        looked = np.zeros(len(names), bool)
        for rank, own in slots.items():
            leaders = self._named.column(rank, _UNKNOWN)
            for leader in np.unique(leaders[own]).tolist():
                of_leader = leaders == leader
                if leader == _UNKNOWN or (leader >= 0 and leader not in held):
                    looked |= of_leader
                elif leader >= 0:
                    looked |= of_leader & (held[rank] != held[leader])
        for slot in np.flatnonzero(looked).tolist():
            yield from self._look(slot, names[slot], seen.identities(names[slot]))

    def _look(
        self, slot: int, name: str, identities: Mapping[int, _Identity]
    ) -> Iterator[tuple[str, int]]:
        leaders = {rank: self._named.column(rank, _UNKNOWN) for rank in identities}
        groups = {rank: int(of_rank[slot]) for rank, of_rank in leaders.items()}
        members: dict[int, list[int]] = {}
        for rank, leader in groups.items():
            if leader != _UNKNOWN:
                members.setdefault(leader, []).append(rank)
        for together in members.values():
            usual = Counter(identities[rank] for rank in together).most_common(1)[0][0]
            for rank in together:
                if identities[rank] != usual:
                    yield name, rank
                    leaders[rank][slot] = -1 - rank  # named once
        for rank, leader in groups.items():
            if leader == _UNKNOWN:
                same = [r for r, other in identities.items() if other == identities[rank]]
                leaders[rank][slot] = min(same)


def _given(journal: Columns) -> _Identity | None:
    """Return what the first entry with parameters was given, of those that were given anything."""
    with_parameters = {*journal.records("parameters").rows.lines}
    records = journal.records("input_args", "input_kwargs")
    found: dict[int, list[int]] = {}
    for number, line in enumerate(records.rows.lines):
        if line in with_parameters:
            found.setdefault(line, []).append(number)
    if not found:
        return None
    first = min(found, key=lambda line: records.place(found[line][0]).order)
    return tuple(records.identities[number] for number in found[first])


def _whole_matrices(journal: Columns) -> Iterator[str]:
    """Yield the (n, m) parameters of cells that were given m or n features and returned the other.

    A slice of one, as an optimizer or a group of ranks may hold it, has not both sizes. Of a cell
    with others in it nothing is known: its own parameter may be a table that is added, say.
    """
    features: dict[tuple[str, int], set[int]] = {}
    for parts in (("input_args", "input_kwargs"), ("output",)):
        records = journal.records(*parts)
        for line, shape in zip(records.rows.lines, records.kinds.shapes):
            if isinstance(shape, list) and shape:
                features.setdefault((parts[-1], line), set()).add(shape[-1])
    records = journal.records("parameters")
    rows = zip(records.rows.parameters, records.rows.lines, records.kinds.shapes)
    parents = {*journal.heads.parents}
    for name, line, shape in rows:
        if journal.layout.names[line] in parents:
            continue
        given = features.get(("input_kwargs", line), set())
        returned = features.get(("output", line), set())
        if isinstance(shape, list) and len(shape) == 2:
            n, m = shape
            if (m in given and n in returned) or (n in given and m in returned):
                yield name


@rule("ranks.settings", causes=("check_ranks.cause_launch",))
def same_settings(step: Step, check: Check) -> Iterator[Found]:
    """Every rank of the job recorded, and one does not run with another seed or version.

    Where each rank has a seed of its own that is meant so.
    """
    if check.memory.setdefault("done", False):
        return
    check.memory["done"] = True
    run = check.run
    files = {file.rank: file for file in run.run_files if file.rank is not None}
    if not files:
        check.not_checked(message("check_ranks.no_manifest"))
        return
    if run.missing_ranks:
        at = Place(step.number, run.missing_ranks[0])
        said = message("check_ranks.missing", ranks=run.missing_ranks, of=len(files))
        yield check.finding(said, at, same="missing", ranks=run.missing_ranks)
    for section, wanted in _SECTIONS.items():
        content = {rank: getattr(file, section) or {} for rank, file in files.items()}
        for name in sorted({name for of in content.values() for name in wanted or of}):
            values = {rank: of.get(name) for rank, of in content.items()}
            yield from _differing(check, step, section, name, values)


def _differing(
    check: Check, step: Step, section: str, name: str, values: dict[int, Any]
) -> Iterator[Found]:
    texts = {rank: json.dumps(value, sort_keys=True) for rank, value in values.items()}
    counts = Counter(texts.values())
    if len(counts) < 2:
        return
    usual, most = counts.most_common(1)[0]
    own_each = section == "seeds" and most == 1
    others = [rank for rank, text in sorted(texts.items()) if text != usual]
    if own_each and len(texts) > 2:
        return
    at = Place(step.number, others[0])
    yield check.finding(
        message("check_ranks.setting", section=section, name=name, ranks=others),
        at,
        severity=Severity.NOTE if own_each else Severity.WARNING,
        shown={name: {str(rank): text for rank, text in texts.items()}},
        same=(section, name),
        ranks=others,
    )
