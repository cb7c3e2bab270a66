"""Parameters and their gradients: what must agree, what must move and what must not.

What a parameter is, is told by its fingerprint: parameters are recorded at a cell's first call in a
phase and step, and again where they changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.values import LeafJson, statistic
from mindrlhf_msprobe.checks.reading.views import EntryView, Step, value_of
from mindrlhf_msprobe.checks.registry.rule import (
    FINGERPRINTS,
    GRADIENTS,
    PARAMETERS,
    Need,
    phase,
    rule,
    steps,
)
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.health import Evidence, Place, Severity
from mindrlhf_msprobe.phases import GENERATE, UPDATE_PHASES
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

_TRAINING = "actor_update"
_FOLLOWING = (GENERATE, "actor_compute_log_prob")
_REFERENCE = "reference_compute_log_prob"
_SHOWN = 5  # parameters of one finding
_KEPT = 16  # earlier versions of a parameter
_STILL = 2  # updates in a row that must not have moved it


class Version(NamedTuple):
    """A parameter, or the gradient of one, as it was recorded once."""

    fingerprint: str | None
    norm: float | None
    kind: tuple[str, list[int]]  # dtype and shape
    at: tuple[int, int, str, str, str, int]  # step, rank, phase, entry, io and path, time

    @property
    def is_zero(self) -> bool:
        """Whether every element is 0."""
        return self.norm == 0

    @property
    def place(self) -> Place:
        """Where it was recorded."""
        step, rank, phase, entry, path, seq = self.at
        return Place(step, rank, phase, entry, f"{entry}.{path}", seq=seq)


#: Parameter → its versions in the order in which they were recorded.
Versions = dict[str, list[Version]]


class Collected:
    """A step's parameters and gradients by rank and phase."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin the next step."""
        self.parameters: dict[tuple[int, str], Versions] = {}
        self.gradients: dict[tuple[int, str], Versions] = {}

    def entry(self, entry: EntryView) -> None:
        """Take the parameters or gradients of an entry."""
        cell = "" if entry.cell == "root" else f"{entry.cell}."
        if holds_gradients(entry.name):
            into = self.gradients.setdefault((entry.rank, entry.phase), {})
            for io, path, leaf in entry.records:
                if io == PARAMETERS_GRAD:
                    name = cell + path.removesuffix(".0")
                    _take(into, name, entry, path, entry.end, leaf)
            return
        parameters = entry.part("parameters")
        if parameters:
            into = self.parameters.setdefault((entry.rank, entry.phase), {})
            for path, leaf in parameters:
                _take(into, cell + path, entry, f"parameters.{path}", entry.seq, leaf)


def _take(into: Versions, name: str, entry: EntryView, path: str, seq: int, leaf: LeafJson) -> None:
    dtype = leaf.get("dtype")
    if not isinstance(dtype, str) or "loat" not in dtype:
        return
    fingerprint = leaf.get("fingerprint") or leaf.get("md5")
    version = Version(
        fingerprint if isinstance(fingerprint, str) else None,
        statistic(leaf, "Norm"),
        (dtype, leaf.get("shape") or []),
        (entry.step, entry.rank, entry.phase, entry.name, path, seq),
    )
    into.setdefault(name, []).append(version)


class _OfSteps:
    """A rule about the parameters and gradients of steps."""

    def __init__(self, check: Check) -> None:
        self.check = check

    def taken(self) -> tuple[dict[tuple[int, str], Versions], dict[tuple[int, str], Versions]]:
        """Return the parameters and gradients of the step."""
        collected: Collected = self.check.collected
        return collected.parameters, collected.gradients

    def finding(
        self, code: str, versions: dict[str, Version], same: object, **params: object
    ) -> Found:
        """Return a finding about parameters, at the first of them."""
        first = min(versions.values(), key=lambda version: version.place.order)
        names = sorted(versions, key=lambda name: versions[name].place.order)
        shown = [versions[name] for name in names[:_SHOWN]]
        return self.check.finding(
            message(f"check_weights.{code}", count=len(versions), first=names[0], **params),
            first.place,
            evidence=[
                Evidence(v.place, {"fingerprint": v.fingerprint, "norm": v.norm}) for v in shown
            ],
            next_step=self.check.next_recording(first.place),
            same=same,
        )


_MARKS = (b'"parameters":', b".parameters_grad.")
_BY_FINGERPRINT: tuple[Need, ...] = (PARAMETERS, FINGERPRINTS)


@rule(
    "weights.not_synchronised",
    needs=(*_BY_FINGERPRINT, phase(_TRAINING), phase(*_FOLLOWING)),
    severity=Severity.ERROR,
    causes=("check_weights.cause_no_synchronisation", "check_weights.cause_partly_synchronised"),
    marks=_MARKS,
    collects=Collected,
    live=True,
)
class NotSynchronised(_OfSteps):
    """What generates, and the old policy, have the weights of the network that is trained."""

    def __init__(self, check: Check) -> None:
        super().__init__(check)
        self._earlier: dict[int, dict[str, dict[str, int]]] = {}

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the networks that have other weights than the training began the step with."""
        parameters, _ = self.taken()
        for rank in step.ranks:
            training = parameters.get((rank, _TRAINING), {})
            earlier = self._earlier.setdefault(rank, {})
            for name in _FOLLOWING:
                yield from self._compared(parameters.get((rank, name), {}), training, earlier, name)
            for p, versions in training.items():
                kept = earlier.setdefault(p, {})
                for version in versions:
                    kept.setdefault(version.fingerprint or "", step.number)
                while len(kept) > _KEPT:
                    del kept[next(iter(kept))]

    def _compared(
        self, following: Versions, training: Versions, earlier: dict[str, dict[str, int]], name: str
    ) -> Iterator[Found]:
        common = [p for p in following if p in training and _alike(p, following, training)]
        other = {
            p: following[p][0]
            for p in common
            if following[p][0].fingerprint != training[p][0].fingerprint
        }
        if other:
            since = [earlier.get(p, {}).get(v.fingerprint or "", -1) for p, v in other.items()]
            still = max(since) if min(since) >= 0 else None
            yield self.finding("not_synchronised", other, (name,), total=len(common), still=still)


def _alike(name: str, one: Versions, other: Versions) -> bool:
    first, second = one[name][0], other[name][0]
    return bool(first.fingerprint and second.fingerprint) and first.kind == second.kind


@rule(
    "weights.moved",
    needs=_BY_FINGERPRINT,
    severity=Severity.ERROR,
    causes=("check_weights.cause_shared", "check_weights.cause_in_place"),
    marks=_MARKS,
    collects=Collected,
    live=True,
)
class Moved(_OfSteps):
    """Only updates change weights, and nothing changes the reference's."""

    def __init__(self, check: Check) -> None:
        super().__init__(check)
        self._reference: dict[tuple[int, str], str | None] = {}

    def step(self, step: Step) -> Iterator[Found]:
        """Yield what moved within a phase that only computes, and in the reference at all."""
        parameters, _ = self.taken()
        for (rank, name), versions in parameters.items():
            if name in UPDATE_PHASES or self._is_own(name):
                continue
            inside = {
                p: found[-1] for p, found in versions.items() if len({v[0] for v in found}) > 1
            }
            if inside:
                yield self.finding("moved_inside", inside, (name,))
            elif name == _REFERENCE:
                between = {
                    p: found[0]
                    for p, found in versions.items()
                    if self._reference.get((rank, p), found[0][0]) != found[0][0]
                }
                if between:
                    yield self.finding("moved_reference", between, (name,))
            if name == _REFERENCE:
                self._reference |= {(rank, p): found[-1][0] for p, found in versions.items()}

    def _is_own(self, name: str) -> bool:
        """Tell whether a phase is the trainer's own, which may train."""
        return name not in (*_FOLLOWING, _REFERENCE, "critic_compute_values")


@rule(
    "weights.frozen",
    needs=(*_BY_FINGERPRINT, phase(*UPDATE_PHASES), steps(2)),
    severity=Severity.WARNING,
    causes=("check_weights.cause_not_in_optimizer", "check_weights.cause_requires_grad"),
    follows=("non_finite.*",),
    marks=_MARKS,
    collects=Collected,
)
class Frozen(_OfSteps):
    """Updates move the parameters, unless most of them are not trained at all (LoRA, for one)."""

    def __init__(self, check: Check) -> None:
        super().__init__(check)
        self._before: dict[tuple[int, str], dict[str, Version]] = {}
        self._with_gradient: dict[tuple[int, str], set[str]] = {}
        self._still: dict[tuple[int, str], dict[str, tuple[int, Version]]] = {}
        self._moved: dict[tuple[int, str], set[str]] = {}
        self._idle: dict[tuple[int, str], bool] = {}

    def step(self, step: Step) -> None:
        """Note what moved since the step before."""
        parameters, gradients = self.taken()
        for at, versions in parameters.items():
            if at[1] not in UPDATE_PHASES:
                continue
            if not self._idle.get(at):
                self._look(at, versions)
            self._before[at] = {p: found[-1] for p, found in versions.items()}
            self._with_gradient.setdefault(at, set()).update(
                p
                for p, found in gradients.get(at, {}).items()
                if not all(version.is_zero for version in found)
            )
            self._idle[at] = _nothing_happens(step, at[0])

    def _look(self, at: tuple[int, str], versions: Versions) -> None:
        before = self._before.get(at, {})
        for p, found in versions.items():
            if _is_number(found[0]) or p not in before:
                continue
            if found[0].fingerprint != before[p].fingerprint:
                self._moved.setdefault(at, set()).add(p)
            else:
                count, first = self._still.setdefault(at, {}).get(p, (0, before[p]))
                self._still[at][p] = count + 1, first

    def end(self) -> Iterator[Found]:
        """Yield what never moved while others did."""
        for at, still in self._still.items():
            moved = self._moved.get(at, set())
            stayed = {p: v for p, (_, v) in still.items() if p not in moved}
            updates = max(count for count, _ in still.values())
            if not stayed or not (moved or updates >= _STILL):
                continue
            with_gradient = self._with_gradient.get(at, set())
            learned = {p: v for p, v in stayed.items() if p in with_gradient}
            if learned:
                yield self.finding("frozen", learned, at[1:], total=len(still), updates=updates)
            elif moved and len(stayed) < len(moved):
                yield self.finding(
                    "frozen_without_gradient", stayed, at[1:], total=len(still), updates=updates
                )


def _is_number(version: Version) -> bool:
    """Tell whether a parameter is a single number: a counter, or a coefficient of a loss."""
    return version.kind[1] in ([], [1])


def _nothing_happens(step: Step, rank: int) -> bool:
    """Tell whether no update of a step may move anything: lr 0, or all of them overflowed."""
    rates = [value_of(datum) for datum in step.key_data("lr", rank=rank)]
    overflows = [value_of(datum) for datum in step.key_data("overflow", rank=rank)]
    return _all(rates, lambda value: value == 0) or _all(overflows, bool)


def _all(values: list[object], holds: object) -> bool:
    try:
        return bool(values) and all(bool(holds(float(value))) for value in values)  # type: ignore
    except (TypeError, ValueError):
        return False


@rule(
    "weights.zero_gradient",
    needs=(GRADIENTS,),
    severity=Severity.WARNING,
    causes=("check_weights.cause_detached", "check_weights.cause_dead"),
    follows=("non_finite.*", "weights.frozen"),
    marks=_MARKS,
    collects=Collected,
    live=True,
)
class ZeroGradient(_OfSteps):
    """No parameter's gradient is all zero in every update of two steps while others' are not."""

    def __init__(self, check: Check) -> None:
        super().__init__(check)
        self._before: dict[tuple[int, str], set[str]] = {}

    def step(self, step: Step) -> Iterator[Found]:
        """Yield parameters whose gradients were all zero, in the step before too."""
        _, gradients = self.taken()
        for at, versions in gradients.items():
            zero = {p for p, found in versions.items() if all(v.is_zero for v in found)}
            if len(zero) == len(versions):  # nothing to learn from, which other rules name
                zero = set()
            again = {p: versions[p][0] for p in zero & self._before.get(at, set())}
            self._before[at] = zero
            if again:
                yield self.finding("zero_gradient", again, at[1:], total=len(versions))


@rule(
    "weights.large_update",
    needs=(PARAMETERS, phase(*UPDATE_PHASES), steps(2)),
    severity=Severity.WARNING,
    thresholds={"share": 0.5},
    causes=("check_weights.cause_learning_rate", "check_weights.cause_clipping"),
    follows=("non_finite.*", "history.*"),
    marks=_MARKS,
    collects=Collected,
    live=True,
)
class LargeUpdate(_OfSteps):
    """An update is small against the weight: its norm changes by less than half.

    The norm of the difference is not recorded; that of the norms is a lower bound of it.
    """

    def __init__(self, check: Check) -> None:
        super().__init__(check)
        self._before: dict[tuple[int, str], dict[str, Version]] = {}

    def step(self, step: Step) -> Iterator[Found]:
        """Yield parameters whose norm changed by a large share since they were recorded last."""
        parameters, _ = self.taken()
        share = self.check.threshold("share")
        for at, versions in parameters.items():
            if at[1] not in UPDATE_PHASES:
                continue
            before = self._before.setdefault(at, {})
            large, most = {}, 0.0
            for p, found in versions.items():
                for version in found:
                    old, now = before[p].norm if p in before else None, version.norm
                    before[p] = version
                    matrix = len(version.kind[1]) > 1  # a bias may begin with 0
                    if matrix and old and now is not None and abs(now - old) > share * old:
                        large[p], most = version, max(most, abs(now - old) / old)
            if large:
                yield self.finding("large_update", large, at[1:], share=most)
