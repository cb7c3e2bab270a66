"""Replicas that must hold the same parameters and do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.values import LeafJson, numbers_of
from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.checks.registry.rule import PARAMETERS, ranks, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.health import Evidence, Place, Severity

_MOST_SHOWN = 4
_FEW = 0.2  # of the parameters: so many may be shards, of experts say
_STATISTICS = ("Max", "Min", "Mean", "Norm")

#: What tells two tensors apart: their fingerprint, else dtype, shape and statistics.
_Identity = tuple[Any, ...]
_Seen = dict[str, dict[int, tuple[_Identity, EntryView, str, LeafJson]]]


@rule(
    "ranks.replicas",
    needs=(ranks(2), PARAMETERS),
    severity=Severity.ERROR,
    marks=(b'"parameters":',),
    follows=("non_finite.*", "ranks.replicas"),
    causes=("check_ranks.cause_reduction", "check_ranks.cause_nondeterministic"),
    live=True,
)
class Replicas:
    """Ranks that once held the same parameters hold the same ones in every later step.

    Which ranks are replicas shows when a parameter is first seen: those that agree are. Ranks that
    agree in none and were given other data are replicas of another seed or checkpoint; those that
    were given the same are shards.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._seen: dict[str, _Seen] = {}
        self._given: dict[str, dict[int, tuple[int, _Identity]]] = {}
        self._groups: dict[tuple[str, str], dict[int, int]] = {}
        self._begun: set[str] = set()

    def entry(self, entry: EntryView) -> None:
        """Note the parameters of a cell where they are first seen in a phase and step."""
        rank = entry.rank
        seen = self._seen.setdefault(entry.phase, {})
        for path, leaf in entry.part("parameters"):
            if "shape" in leaf:
                by_rank = seen.setdefault(f"{entry.cell}.{path}", {})
                if rank not in by_rank:
                    by_rank[rank] = _identity(leaf), entry, path, leaf
        first = self._given.setdefault(entry.phase, {})
        if rank not in first or entry.seq < first[rank][0]:
            given = entry.part("input_args") + entry.part("input_kwargs")
            if given:
                first[rank] = entry.seq, tuple(_identity(leaf) for _, leaf in given)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the replicas that parted in a step, and those that never were alike."""
        all_seen, self._seen = self._seen, {}
        given, self._given = self._given, {}
        for phase, seen in all_seen.items():
            if phase not in self._begun and any(len(by_rank) > 1 for by_rank in seen.values()):
                self._begun.add(phase)
                yield from self._unlike(step, phase, seen, given.get(phase, {}))
            yield from self._parted(step, phase, seen)
            for name, by_rank in seen.items():
                groups = self._groups.setdefault((phase, name), {})
                for rank, (identity, *_) in by_rank.items():
                    if rank not in groups:
                        alike = [r for r, other in by_rank.items() if other[0] == identity]
                        groups[rank] = min(alike)

    def _parted(self, step: Step, phase: str, seen: _Seen) -> Iterator[Found]:
        """Yield the ranks whose parameters are no more those of their replicas."""
        parted: dict[int, list[str]] = {}
        for name, by_rank in seen.items():
            groups = self._groups.get((phase, name))
            if groups is None:
                continue
            members: dict[int, list[int]] = {}
            for rank in by_rank:
                if rank in groups:
                    members.setdefault(groups[rank], []).append(rank)
            for together in members.values():
                usual = _usual([by_rank[rank][0] for rank in together])
                for rank in together:
                    if by_rank[rank][0] != usual:
                        parted.setdefault(rank, []).append(name)
                        groups[rank] = -1 - rank  # told once
        for rank, names in parted.items():
            yield self._told("parted", step, phase, seen, rank, names)

    def _unlike(
        self, step: Step, phase: str, seen: _Seen, given: Mapping[int, tuple[int, _Identity]]
    ) -> Iterator[Found]:
        """Yield the ranks that hold other parameters than the rest from the first."""
        known = sorted({rank for by_rank in seen.values() for rank in by_rank})
        varied = {
            name: {rank: found[0] for rank, found in by_rank.items()}
            for name, by_rank in seen.items()
            if len(by_rank) == len(known) and not any(map(_is_constant, by_rank.values()))
        }
        if len(known) < 2 or not varied:
            return
        if len(known) == 2:
            yield from self._two(step, phase, seen, varied, known, given)
            return
        alone: dict[int, list[str]] = {}
        for name, identities in varied.items():
            counts = Counter(identities.values())
            single = [rank for rank, identity in identities.items() if counts[identity] == 1]
            if len(single) == 1:
                alone.setdefault(single[0], []).append(name)
        for rank, names in alone.items():
            yield self._told("other_weights", step, phase, seen, rank, names)

    def _two(
        self,
        step: Step,
        phase: str,
        seen: _Seen,
        varied: Mapping[str, Mapping[int, _Identity]],
        known: Sequence[int],
        given: Mapping[int, tuple[int, _Identity]],
    ) -> Iterator[Found]:
        differ = [name for name, of in varied.items() if len(set(of.values())) > 1]
        shapes = all(
            len({tuple(found[3]["shape"]) for found in seen[name].values()}) == 1 for name in differ
        )
        few = len(differ) <= _FEW * len(varied) and not any("expert" in name for name in differ)
        if not differ or not (few or len(differ) == len(varied)):
            return
        same_data = len({given[rank][1] for rank in known if rank in given}) < 2
        if same_data or not shapes:
            self._check.not_checked(message("check_ranks.shards", phase=phase))
            return
        yield self._told("other_weights", step, phase, seen, known[1], differ)

    def _told(
        self, code: str, step: Step, phase: str, seen: _Seen, rank: int, names: Sequence[str]
    ) -> Found:
        self._check.checked()
        named = sorted(names, key=lambda name: seen[name][rank][1].seq)
        _, entry, path, _ = seen[named[0]][rank]
        others = [other for other in sorted(seen[named[0]]) if other != rank]
        evidence = []
        for name in named[:_MOST_SHOWN]:
            for one in (rank, *others[:1]):
                _, of, at, leaf = seen[name][one]
                shown = {**numbers_of(leaf), "fingerprint": leaf.get("fingerprint", "")}
                evidence.append(Evidence(of.place("parameters", at), shown))
        causes = self._check.rule.causes
        if code == "other_weights":
            causes = ("check_ranks.cause_seed", "check_ranks.cause_checkpoint")
        return self._check.finding(
            message(
                f"check_ranks.{code}",
                rank=rank,
                others=others,
                parameters=len(names),
                of=len(seen),
            ),
            entry.place("parameters", path),
            evidence=evidence,
            causes=causes,
            same=(code, phase, rank),
            next_step=self._check.next_recording(
                Place(step.number, None, phase), first=max(0, step.number - 1)
            ),
        )


def _identity(leaf: LeafJson) -> _Identity:
    fingerprint = leaf.get("fingerprint") or leaf.get("md5")
    if fingerprint:
        return (fingerprint,)
    shape = leaf.get("shape")
    at = tuple(shape) if isinstance(shape, list) else None
    return (leaf.get("dtype"), at, *(leaf.get(name) for name in _STATISTICS), leaf.get("value"))


def _is_constant(found: tuple[_Identity, EntryView, str, LeafJson]) -> bool:
    """Tell whether all elements are equal, as those of biases and norms are at first."""
    leaf = found[3]
    return leaf.get("Max") == leaf.get("Min")


def _usual(identities: Sequence[_Identity]) -> _Identity:
    first = identities[0]
    if all(identity == first for identity in identities):
        return first
    return Counter(identities).most_common(1)[0][0]
