"""Parameters and their gradients: what must agree, what must move and what must not.

A parameter is known by its fingerprint: parameters are recorded at a cell's first call in a
phase and step, and again where they changed.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import (
    FINGERPRINTS,
    GRADIENTS,
    PARAMETERS,
    Found,
    Named,
    Need,
    phase,
    rule,
    steps,
)
from mindrlhf_msprobe.checks.rules.rows import actor_and_reference, begins_with_random_weights
from mindrlhf_msprobe.checks.views import Step, value_of
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.phases import GENERATE, UPDATE_PHASES, role_of
from mindrlhf_msprobe.storage.columns.leaf_json import statistic
from mindrlhf_msprobe.storage.columns.rows import Parameters, Records, Rows
from mindrlhf_msprobe.storage.manifest.run_file import COUNTER, Attempt, counted_at
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.records import Entry, cell_name, is_optimizer_state

_TRAINING = "actor_update"
_FOLLOWING = (GENERATE, "actor_compute_log_prob")
_REFERENCE = "reference_compute_log_prob"
_INITIAL = ("actor_compute_log_prob", GENERATE, _TRAINING)  # where step 0 has the initial actor
_COMPUTING = (*_FOLLOWING, _REFERENCE, "critic_compute_values")
_SHOWN = 5  # parameters of one finding
_KEPT = 16  # earlier versions of a parameter
_EXPERT = re.compile(r"(?i)expert[^.]*\.\d+\.")
_LORA_B = re.compile(r"(?i)(^|[._])lora_?b([._]|$)|(^|[._])lora_embedding_b([._]|$)")
#: What layers that normalise keep of earlier batches, and write themselves in every forward pass.
_AVERAGE = re.compile(r"(^|\.)(moving|running)_(mean|variance|var)$|(^|\.)num_batches_tracked$")
#: Optimizers of MindSpore and MindFormers that count every update; one of a trainer's may not.
_COUNTING = (
    *("ASGD", "AdaFactor", "AdaMax", "Adadelta", "Adagrad", "Adam", "AdamOffload", "AdamW"),
    *("AdamWeightDecay", "Came", "FTRL", "FusedAdamW", "Lamb", "LazyAdam", "Momentum"),
    *("ProximalAdagrad", "RMSProp", "Rprop", "SGD"),
)
_MOST_GROWTH = 4  # times its norm, in one update of what began with 0 a few updates before
_STILL = 2  # updates in a row that must not have moved it


class Version(NamedTuple):
    """A parameter, or the gradient of one, as it was recorded once."""

    fingerprint: str | None
    norm: float | None
    place: Place


#: Of the last steps: their number, and the parameters that the training began them with.
_Earlier = deque[tuple[int, Parameters, np.ndarray]]


def _versions(records: Records, numbers: Iterable[int]) -> dict[str, Version]:
    """Return some of the records by the names of their parameters."""
    names, found = records.rows.parameters, {}
    for number in numbers:
        norm = float(records.numbers("Norm")[number])
        shown = None if math.isnan(norm) else norm
        found[names[number]] = Version(records.fingerprints[number], shown, records.place(number))
    return found


def _finding(
    check: Check,
    code: str,
    versions: dict[str, Version],
    same: object,
    idle: bool = False,
    severity: Severity | None = None,
    causes: tuple[str, ...] | None = None,
    next_step: Callable[[Place], dict[str, Any] | None] | None = None,
    **params: object,
) -> Found:
    """Return a finding about parameters, at the first of them.

    Args:
        idle: they are those of experts without tokens, which is no fault of theirs.
        severity, causes: others than the rule's.
        next_step: what to record next of a place; None: its phase.
    """
    names = sorted(versions, key=lambda name: versions[name].place.order)
    shown = [versions[name] for name in names[:_SHOWN]]
    return check.finding(
        message(f"check_weights.{code}", count=len(versions), first=names[0], **params),
        shown[0].place,
        evidence=[Evidence(v.place, {"fingerprint": v.fingerprint, "norm": v.norm}) for v in shown],
        severity=Severity.NOTE if idle else severity,
        causes=("check_weights.cause_no_tokens",) if idle else causes,
        next_step=(next_step or check.next_recording)(shown[0].place),
        same=(same, idle),
    )


def _are_idle_experts(names: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether parameters are those of some experts, while other experts learn."""
    return all(map(_EXPERT.search, names)) and any(map(_EXPERT.search, others))


_BY_FINGERPRINT: tuple[Need, ...] = (PARAMETERS, FINGERPRINTS)


@rule(
    "weights.not_synchronised",
    needs=(*_BY_FINGERPRINT, phase(_TRAINING), phase(*_FOLLOWING)),
    severity=Severity.ERROR,
    causes=("check_weights.cause_no_synchronisation", "check_weights.cause_partly_synchronised"),
    live=True,
)
def not_synchronised(step: Step, check: Check) -> Iterator[Found]:
    """What generates, and the old policy, have the weights of the network that is trained."""
    for rank in step.ranks:
        training = step.parameters.get((rank, _TRAINING))
        if training is None:
            continue
        earlier: _Earlier = check.memory.setdefault(str(rank), deque(maxlen=_KEPT))
        for name in _FOLLOWING:
            following = step.parameters.get((rank, name))
            found, total = ({}, 0) if following is None else _unlike(following, training)
            if found:
                since = [_first_step(earlier, p, version) for p, version in found.items()]
                still = None if None in since else max(s for s in since if s is not None)
                same = (name,)
                yield _finding(check, "not_synchronised", found, same, total=total, still=still)
        floats, now = training.kinds.floats, training.fingerprints
        known = earlier[-1] if earlier else None
        if known is None or known[1] is not floats or (known[2] != now).any():
            earlier.append((step.number, floats, now))


def _unlike(one: Records, other: Records) -> tuple[dict[str, Version], int]:
    """Return the weights of one network that differ in another, and how many both have."""
    ours, theirs = one.kinds.floats, other.kinds.floats
    here, there = ours.common(theirs)
    first, second = ours.first[here], theirs.first[there]
    weights = ~one.rows.once(_are_averages)[first]
    first, second = first[weights], second[weights]
    differ = one.fingerprints[first] != other.fingerprints[second]
    if not differ.any():
        return {}, len(first)
    comparable = np.array(
        [
            one.kinds.dtypes[n] == other.kinds.dtypes[m]
            and one.kinds.shapes[n] == other.kinds.shapes[m]
            and bool(one.fingerprints[n] and other.fingerprints[m])
            for n, m in zip(first, second)
        ],
        bool,
    )
    return _versions(one, first[differ & comparable].tolist()), int(comparable.sum())


def _are_averages(rows: Rows) -> np.ndarray:
    return np.array([_AVERAGE.search(name) is not None for name in rows.parameters], bool)


def _first_step(earlier: _Earlier, name: str, version: Version) -> int | None:
    """Return the first step whose training had a parameter like this."""
    for step, floats, fingerprints in earlier:
        if any(fingerprints[number] == version.fingerprint for number in floats.of.get(name, ())):
            return step
    return None


@rule(
    "weights.reference",
    needs=(*_BY_FINGERPRINT, phase(_REFERENCE), phase(*_INITIAL)),
    causes=("check_rl.cause_reference_weights",),
    live=True,
)
def reference(step: Step, check: Check) -> Iterator[Found]:
    """Before the first update the reference has the parameters of the actor, bit for bit.

    Of the same name, dtype and shape; their log-probabilities may be too close to tell.
    """
    if step.number:
        return
    for rank in step.ranks:
        own = step.parameters.get((rank, _REFERENCE))
        of_actor = (step.parameters.get((rank, name)) for name in _INITIAL)
        actor = next((one for one in of_actor if one is not None), None)
        if own is None or actor is None:
            continue
        found, total = _unlike(own, actor)
        if found:
            random = begins_with_random_weights(check.run)
            severity = Severity.NOTE if random else None
            yield _finding(
                check,
                "reference",
                found,
                (),
                severity=severity,
                next_step=lambda at: actor_and_reference(check, at, cell_name(at.entry or "")),
                total=total,
                random=random,
            )


_MOVED = ("check_weights.cause_shared", "check_weights.cause_in_place")


@rule("weights.moved", needs=_BY_FINGERPRINT, severity=Severity.ERROR, causes=_MOVED, live=True)
def moved(step: Step, check: Check) -> Iterator[Found]:
    """Only updates change weights, and nothing changes the reference's.

    Phases of the trainer's own may train.
    """
    for (rank, name), records in step.parameters.items():
        if name not in _COMPUTING:
            continue
        floats, fingerprints = records.kinds.floats, records.fingerprints
        several = floats.of.values() if len(floats.rounds) > 1 else ()
        inside = [of[-1] for of in several if len({fingerprints[number] for number in of}) > 1]
        if name != _REFERENCE:
            averages = records.rows.once(_are_averages)
            inside = [number for number in inside if not averages[number]]
        if inside:
            yield _finding(check, "moved_inside", _versions(records, inside), (name,))
        if name != _REFERENCE:
            continue
        named = check.memory.setdefault(str(rank), Named())
        begins = not named.names
        places, last = named.places(floats.names), named.column("last", "")
        if begins:
            last[places] = _first_weights(check, records, rank, name)
        differ = (last[places] != fingerprints[floats.first]) & (last[places] != "")
        if differ.any() and not inside:
            found = _versions(records, floats.first[differ].tolist())
            network = check.run.network_of(name, rank)
            if network is not None and network.same_as is not None:
                yield _finding(check, "moved_as_shared", found, (name,), other=network.same_as)
            elif trained := _trained_the_same(step, rank, found):
                causes = ("check_weights.cause_synchronised", *_MOVED)
                severity = Severity.WARNING
                yield _finding(
                    check, "moved_to_trained", found, (name,), False, severity, causes, of=trained
                )
            else:
                yield _finding(check, "moved_reference", found, (name,))
        last[places] = fingerprints[floats.last]


def _trained_the_same(step: Step, rank: int, versions: Mapping[str, Version]) -> str | None:
    """Return the first phase of the trained network that has the same weights in this step."""
    for (own, name), records in step.parameters.items():
        if own != rank or role_of(name) != role_of(_TRAINING):
            continue
        floats, fingerprints = records.kinds.floats, records.fingerprints
        held = dict(zip(floats.names, (fingerprints[number] for number in floats.first)))
        if all(held.get(one) == version.fingerprint for one, version in versions.items()):
            return name
    return None


def _first_weights(check: Check, records: Records, rank: int, phase: str) -> list[str]:
    """Return the fingerprints that a phase's network had at first; "" where it is not known."""
    floats, fingerprints = records.kinds.floats, records.fingerprints
    first = check.run.first_weights(phase, role_of(phase), rank)
    now = (str(fingerprints[number]).partition(":")[0] for number in floats.first)
    pairs = zip((first.get(name, "") for name in floats.names), now)
    return [then if then.partition(":")[0] == algorithm else "" for then, algorithm in pairs]


@rule(
    "weights.frozen",
    needs=(*_BY_FINGERPRINT, phase(*UPDATE_PHASES), steps(2)),
    causes=("check_weights.cause_not_in_optimizer", "check_weights.cause_requires_grad"),
    follows=("non_finite.*", "history.dead", "history.routing"),
)
class Frozen:
    """Updates move the parameters, unless most of them are not trained at all (LoRA, for one)."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._before: dict[tuple[int, str], Records] = {}
        self._known: dict[tuple[int, str], _Still] = {}
        self._idle: dict[tuple[int, str], bool] = {}

    def step(self, step: Step) -> None:
        """Note what moved since the step before."""
        for at, records in step.parameters.items():
            if at[1] not in UPDATE_PHASES:
                continue
            known = self._known.setdefault(at, _Still())
            if at in self._before and not self._idle.get(at):
                known.look(self._before[at], records)
            known.learns[:] = False
            records.numbers("Norm"), records.fingerprints
            self._before[at] = records.without_leaves()
            if at in step.gradients:
                known.with_gradient(step.gradients[at])
            # No update of the step may move anything: lr 0, or all of them overflowed.
            rates, overflows = (
                [value_of(datum) for datum in step.key_data(key, rank=at[0])]
                for key in ("lr", "overflow")
            )
            self._idle[at] = _all(rates, lambda value: value == 0) or _all(overflows, bool)

    def end(self) -> Iterator[Found]:
        """Yield what never moved while others did."""
        for at, known in self._known.items():
            if not known.first:
                continue
            network = self._check.run.network_of(at[1], at[0])
            known.leave_out({*(() if network is None else network.untrained or ())})
            stayed = known.stayed()
            updates, moved = int(known.still.max()), int(known.moved.sum())
            if not stayed or not (moved or updates >= _STILL):
                continue
            total = int(((known.still > 0) | known.moved).sum())
            if learned := known.stayed(learned=True):
                yield _finding(self._check, "frozen", learned, at[1:], total=total, updates=updates)
            elif moved and len(stayed) < moved:
                code, idle = "frozen_without_gradient", known.are_idle_experts(stayed)
                yield _finding(
                    self._check, code, stayed, at[1:], idle, total=total, updates=updates
                )


class _Still:
    """What is known of the parameters of one phase and rank.

    Attributes:
        first: those that did not move in an update, as they were before it.
    """

    def __init__(self) -> None:
        self._named = Named()
        self.first: dict[str, Version] = {}

    @property
    def still(self) -> np.ndarray:
        """In how many updates each did not move."""
        return self._named.column("still", 0)

    @property
    def moved(self) -> np.ndarray:
        """Whether it ever did."""
        return self._named.column("moved", False)

    @property
    def learns(self) -> np.ndarray:
        """Whether each has a gradient that is not zero in the step looked at last."""
        return self._named.column("learns", False)

    def look(self, before: Records, now: Records) -> None:
        """Note what moved between two steps, and what should have, by its gradients."""
        learned = self._named.column("learned", False)
        learned |= self.learns
        ours, theirs = now.kinds.floats, before.kinds.floats
        here, there = ours.common(theirs)
        one, other = ours.first[here], theirs.last[there]
        places = self._named.places(ours.names)[here]
        # A single number counts, or weighs a loss; what has no fingerprint is not known.
        known = now.fingerprints[one].astype(bool) & before.fingerprints[other].astype(bool)
        are = (now.kinds.dimensions[one] > 0) & known
        same = now.fingerprints[one] == before.fingerprints[other]
        self.moved[places[are & ~same]] = True
        new = other[are & same & (self.still[places] == 0)]
        self.first |= _versions(before, new.tolist())
        self.still[places[are & same]] += 1

    def with_gradient(self, gradients: Records) -> None:
        """Note which have a gradient that is not zero."""
        places = self._named.places(gradients.rows.parameters, "gradients")
        learned = gradients.kinds.are_floats & (gradients.numbers("Norm") != 0)
        self.learns[places[learned]] = True
        self._named.column("given", False)[places] = True

    def are_idle_experts(self, stayed: Iterable[str]) -> bool:
        """Return whether what stayed are experts whose gradients were recorded, and zero."""
        given = self._named.column("given", False)
        of = dict(zip(self._named.names, zip(given.tolist(), self.moved.tolist())))
        others = [name for name, (_, moved) in of.items() if moved]
        return all(of[name][0] for name in stayed) and _are_idle_experts(stayed, others)

    def leave_out(self, untrained: Collection[str]) -> None:
        """Forget what the trainer says that it does not train, unless it had a gradient."""
        learned = self.stayed(learned=True)
        self.first = {p: v for p, v in self.first.items() if p in learned or p not in untrained}

    def stayed(self, *, learned: bool = False) -> dict[str, Version]:
        """Return what never moved; on request, of that what ever had a gradient."""
        are = ~self.moved & (self._named.column("learned", False) | (not learned))
        names = {name for name, one in zip(self._named.names, are.tolist()) if one}
        return {p: version for p, version in self.first.items() if p in names}


def _all(values: list[object], holds: object) -> bool:
    try:
        return bool(values) and all(bool(holds(float(value))) for value in values)  # type: ignore
    except (TypeError, ValueError):
        return False


@rule(
    "weights.zero_gradient",
    needs=(GRADIENTS,),
    causes=("check_weights.cause_detached", "check_weights.cause_dead"),
    follows=("non_finite.*", "weights.frozen", "history.dead", "history.routing"),
    live=True,
)
def zero_gradient(step: Step, check: Check) -> Iterator[Found]:
    """No parameter's gradient is all zero in every update of two steps while others' are not."""
    for at, records in step.gradients.items():
        floats, norms = records.kinds.floats, records.numbers("Norm")
        before = check.memory.pop(str(at), set())
        zero = set() if norms.all() else {p for p, of in floats.of.items() if not norms[of].any()}
        if not zero or len(zero) == len(floats.names):  # nothing is learned: others name that
            continue
        check.memory[str(at)] = zero
        again = [of[0] for p, of in floats.of.items() if p in zero & before]
        if again:
            found, total = _versions(records, again), len(floats.names)
            idle = _are_idle_experts(found, {*floats.names} - zero)
            yield _finding(check, "zero_gradient", found, at[1:], idle, total=total)


@rule(
    "weights.counter",
    needs=(phase(*UPDATE_PHASES), steps(2)),
    severity=Severity.ERROR,
    causes=("check_weights.cause_not_restored",),
    names=lambda entry: is_optimizer_state(cell_name(entry)),
    live=True,
)
class Counter:
    """What counts the updates of an optimizer never falls from one step to the next.

    In its recorded state; without that, in what each attempt at the run began with, where it has
    grown if the weights have changed.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._last: dict[tuple[int, str, str], float] = {}
        self._before: dict[tuple[int, str, str], float] = {}  # the last, when a step begins
        self._fallen: list[tuple[Place, str, float, float]] = []

    def entry(self, entry: Entry) -> None:
        """Take the state of an optimizer."""
        for io, path, leaf in entry.values:
            count = statistic(leaf, "Max")
            if path.rpartition(".")[2] == COUNTER and count is not None:
                at = entry.rank, entry.phase, f"{entry.name}.{path}"
                before = self._last.get(at, count)
                if count < before:
                    self._fallen.append((entry.place(io, path), COUNTER, before, count))
                self._last[at] = count

    def step(self, step: Step) -> Iterator[Found]:
        """Yield what fell in this step, or was lower when an attempt began with it."""
        fallen, self._fallen = self._fallen, []
        seen = {place.rank for place, *_ in fallen}
        fallen += [one for one in self._restored_low(step) if one[0].rank not in seen]
        self._before = {**self._last}
        recorded = {rank for rank, *_ in self._last}
        fallen += [
            (Place(step.number, rank, None, None, None), f"{optimizer}: {COUNTER}", *counts)
            for (rank, optimizer), counts in _not_restored(step).items()
            if rank in step.ranks and rank not in recorded
        ]
        for place, name, before, now in fallen:
            code = "counter" if now < before else "not_counted"
            said = message(f"check_weights.{code}", name=name, before=before, now=now)
            yield self._check.finding(said, place, same=(place.rank, name))

    def _restored_low(self, step: Step) -> Iterator[tuple[Place, str, float, float]]:
        """Yield what began an attempt with a lower count than its state of the step before."""
        for (rank, of_phase, _), before in self._before.items():
            states = [at for at in self._before if at[:2] == (rank, of_phase)]
            counts = counted_at(step.run.run_files, rank, step.number, role_of(of_phase))
            for optimizer, count in counts.items():
                if len(states) == len(counts) == 1 and count < before:
                    place = Place(step.number, rank, None, None, None)
                    yield place, f"{optimizer}: {COUNTER}", before, count


def _not_restored(step: Step) -> dict[tuple[int, str], tuple[float, float]]:
    """Return, by rank, the optimizers with too low a count when an attempt began with a step.

    Lower than when an attempt before began with that step or an earlier one; or as it was then
    though the weights have changed since, of an optimizer that is known to count. That is no
    resumed training whose steps begin again where the run began.
    """
    found: dict[tuple[int, str], tuple[float, float]] = {}
    for file in step.run.run_files:
        most: dict[str, float] = {}
        first = file.attempts[0].begins_with if file.attempts else None
        for settings in (file, *file.attempts[1:]):
            begins = settings.begins_with if isinstance(settings, Attempt) else None
            if (begins or 0) > step.number:
                continue
            for name, count in settings.counted.items():
                optimizer = settings.optimizers[name]
                # With other weights of its network than the run.
                role = name.partition(".")[0]
                weights = [(of.initial_weights or {}).get(role) for of in (file, settings)]
                changed = None not in weights and weights[0] != weights[1]
                goes_on = (begins or 0) > (first or 0) and changed
                counted = goes_on and optimizer.kind in _COUNTING
                if begins == step.number and count < most.get(name, count) + counted:
                    found[file.rank or 0, name] = most[name], count
                most[name] = max(most.get(name, count), count)
    return found


@rule(
    "weights.large_update",
    needs=(PARAMETERS, phase(*UPDATE_PHASES), steps(2)),
    thresholds={"share": 0.5},
    causes=("check_weights.cause_learning_rate", "check_weights.cause_clipping"),
    follows=("non_finite.*", "history.*"),
    live=True,
)
def large_update(step: Step, check: Check) -> Iterator[Found]:
    """An update is small against the weight: its norm changes by less than half.

    The norm of the difference is not recorded; that of the norms is a lower bound of it.
    """
    share = check.threshold("share")
    for at, records in step.parameters.items():
        if at[1] not in UPDATE_PHASES:
            continue
        named = check.memory.setdefault(str(at), Named())
        norms, large, most = records.numbers("Norm"), [], 0.0
        floats = records.kinds.floats
        for numbers in floats.rounds:
            names: Sequence[str] = floats.names
            if len(numbers) < len(names):
                names = [records.rows.parameters[n] for n in numbers.tolist()]
            places, last = named.places(names, len(numbers)), named.column("norm", math.nan)
            old, now = last[places], norms[numbers]
            last[places] = now
            # A bias may begin with 0, and what is not finite is for others to name.
            matrix = (records.kinds.dimensions[numbers] > 1) & np.isfinite(now)
            with np.errstate(invalid="ignore"):
                grown = np.abs(now - old) > share * old
                found = matrix & (old > 0) & grown
            # What began with 0, as LoRA's B does, grows by large shares until it has its size.
            new, growing = np.isnan(old), named.column("growing", False)
            grown &= now / _MOST_GROWTH <= old
            growing[places] = (growing[places] & (grown | (old == 0))) | (new & (now == 0))
            if new.any():
                growing[places] |= new & [_LORA_B.search(name) is not None for name in names]
            found &= ~growing[places]
            if found.any():
                large += numbers[found].tolist()
                most = max(most, float((np.abs(now - old)[found] / old[found]).max()))
        if large:
            shown = _versions(records, large)
            yield _finding(check, "large_update", shown, at[1:], share=most)
