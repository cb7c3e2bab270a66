"""Replicas that must hold the same parameters and do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.reading.records import Named, Records
from mindrlhf_msprobe.checks.reading.views import Step
from mindrlhf_msprobe.checks.registry.rule import PARAMETERS, ranks, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, numbers_of

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

    def journal(self, journal: Journal) -> None:
        """Note what the first cell with parameters was given, until its phase was compared."""
        if journal.phase not in self._begun:
            given = _given(journal)
            if given:
                self._given[journal.phase, journal.rank] = given
            self._whole.setdefault(journal.phase, set()).update(_whole_matrices(journal))

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the replicas that diverged in a step, and those that never were alike."""
        phases: dict[str, dict[int, Records]] = {}
        for (rank, phase), records in step.parameters.items():
            phases.setdefault(phase, {})[rank] = records
        for phase, of_ranks in phases.items():
            seen = _Seen(of_ranks)
            if phase not in self._begun and seen.are_several:
                self._begun.add(phase)
                yield from self._unlike(step, phase, seen)
            groups = self._groups.setdefault(phase, _Groups())
            diverged: dict[int, list[str]] = {}
            for name, rank in groups.take(seen):
                diverged.setdefault(rank, []).append(name)
            for rank, names in diverged.items():
                yield self._differs("parted", step, phase, seen, rank, names)
        self._given.clear()
        self._whole.clear()

    def _unlike(self, step: Step, phase: str, seen: _Seen) -> Iterator[Found]:
        """Yield the ranks that hold other parameters than the rest from the first."""
        known = sorted(rank for rank, floats in seen.tensors.items() if floats.names)
        varied = {
            name: identities
            for name in seen.names
            if len(identities := seen.identities(name)) == len(known)
            and not any(map(_is_constant, seen.leaves(name).values()))
        }
        if len(known) < 2 or not varied:
            return
        if len(known) == 2:
            yield from self._two(step, phase, seen, varied, known)
            return
        alone: dict[int, list[str]] = {}
        for name, identities in varied.items():
            counts = Counter(identities.values())
            single = [rank for rank, identity in identities.items() if counts[identity] == 1]
            if len(single) == 1:
                alone.setdefault(single[0], []).append(name)
        for rank, names in alone.items():
            yield self._differs("other_weights", step, phase, seen, rank, names)

    def _two(
        self,
        step: Step,
        phase: str,
        seen: _Seen,
        varied: Mapping[str, Mapping[int, _Identity]],
        known: Sequence[int],
    ) -> Iterator[Found]:
        differ = [name for name, of in varied.items() if len(set(of.values())) > 1]
        shapes = all(
            len({tuple(leaf["shape"]) for leaf in seen.leaves(name).values()}) == 1
            for name in differ
        )
        if not differ or not self._tells(phase, differ, varied):
            return
        given = [self._given.get((phase, rank)) for rank in known]
        same_data = len({one for one in given if one is not None}) < 2
        if same_data or not shapes:
            self._check.not_checked(message("check_ranks.shards", phase=phase))
            return
        yield self._differs("other_weights", step, phase, seen, known[1], differ)

    def _tells(self, phase: str, differ: Sequence[str], varied: Iterable[str]) -> bool:
        """Return whether few parameters differ, or all whole matrices: not shards of them."""
        names = [*varied]
        few = len(differ) <= _FEW * len(names) and not any("expert" in name for name in differ)
        matrices = [name for name in names if name in self._whole[phase] and "expert" not in name]
        return few or {*(matrices or names)} <= {*differ}

    def _differs(
        self, code: str, step: Step, phase: str, seen: _Seen, rank: int, names: Sequence[str]
    ) -> Found:
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
            same=(code, phase, rank),
            next_step=self._check.next_recording(
                Place(step.number, None, phase), first=max(0, step.number - 1)
            ),
        )


class _Seen:
    """The parameters of one phase and step, on all ranks.

    Attributes:
        records: rank → its parameters.
        tensors: the same, by name.
        names: of all of them.
    """

    def __init__(self, records: Mapping[int, Records]) -> None:
        self.records = records
        self.tensors = {rank: one.kinds.tensors for rank, one in records.items()}
        first, *others = self.tensors.values()
        alike = all(one is first for one in others)
        several = [first] if alike else [*self.tensors.values()]
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
            leaders = self._leaders(rank)
            for leader in np.unique(leaders[own]).tolist():
                alike = leaders == leader
                if leader == _UNKNOWN or (leader >= 0 and leader not in held):
                    looked |= alike
                elif leader >= 0:
                    looked |= alike & (held[rank] != held[leader])
        for slot in np.flatnonzero(looked).tolist():
            yield from self._look(slot, names[slot], seen.identities(names[slot]))

    def _leaders(self, rank: int) -> np.ndarray:
        return self._named.column(rank, _UNKNOWN)

    def _look(
        self, slot: int, name: str, identities: Mapping[int, _Identity]
    ) -> Iterator[tuple[str, int]]:
        groups = {rank: int(self._leaders(rank)[slot]) for rank in identities}
        members: dict[int, list[int]] = {}
        for rank, leader in groups.items():
            if leader != _UNKNOWN:
                members.setdefault(leader, []).append(rank)
        for together in members.values():
            usual = _usual([identities[rank] for rank in together])
            for rank in together:
                if identities[rank] != usual:
                    yield name, rank
                    self._leaders(rank)[slot] = -1 - rank  # named once
        for rank, leader in groups.items():
            if leader == _UNKNOWN:
                alike = [r for r, other in identities.items() if other == identities[rank]]
                self._leaders(rank)[slot] = min(alike)


def _given(journal: Journal) -> _Identity | None:
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


def _whole_matrices(journal: Journal) -> Iterator[str]:
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
    for name, line, shape in rows:
        if journal.layout.names[line] in journal.parents:
            continue
        given = features.get(("input_kwargs", line), set())
        returned = features.get(("output", line), set())
        if isinstance(shape, list) and len(shape) == 2:
            n, m = shape
            if (m in given and n in returned) or (n in given and m in returned):
                yield name


def _is_constant(leaf: LeafJson) -> bool:
    """Return whether all elements are equal, as those of biases and norms are at first."""
    return leaf.get("Max") == leaf.get("Min")


def _usual(identities: Sequence[_Identity]) -> _Identity:
    first = identities[0]
    if all(identity == first for identity in identities):
        return first
    return Counter(identities).most_common(1)[0][0]
