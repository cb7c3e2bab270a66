"""Where the weights of a network come from, run by run: whether they were synchronised at all.

A network that is not trained itself, the one that generates say, is compared with what is known of
the same run: the weights that the trained network has now, those it had in earlier steps, and the
initial ones. No run need be right for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    FirstDifference,
    Opened,
    Parameter,
    StepFindings,
    event,
    matched,
    of_entries,
    parameter_of,
    same,
    status,
)
from mindrlhf_msprobe.comparison.verdict.sampling import counts_tokens
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Status
from mindrlhf_msprobe.phases import PHASES, UPDATE_PHASES, key_data_home
from mindrlhf_msprobe.storage.leaves import Leaf

_RUNS = "AB"


_IS_OTHER = status(Status.DIFFERENT, Status.NON_FINITE)


class Differing:
    """A parameter that is the first difference of two runs, and what is known of its network.

    Attributes:
        role: whose network holds it.
        names: the parameter in each run.
        step, number: the step of the rank, with what was found of each pair; and its number.
        phase, opening: where it differs.
        history: the steps of its rank.
    """

    def __init__(
        self, first: FirstDifference, role: str, names: tuple[Parameter, Parameter]
    ) -> None:
        self.first, self.role, self.names = first, role, names
        self.step, self.history = first.step, first.history
        self.number = first.step.plan.step
        self.phase, self.opening = first.called.phase, first.called.opening

    @classmethod
    def of(cls, first: FirstDifference) -> Differing | None:
        """Return what is known of a parameter that differs in both runs; None of anything else."""
        pair, finding = first.pair, first.finding
        if pair.entry is None or finding.io != "parameters" or pair.a is None or pair.b is None:
            return None
        if not _IS_OTHER(first) or not first.history.comparable:
            return None
        role = first.history.role_of(pair.entry.phase)
        names = parameter_of(pair.a), parameter_of(pair.b)
        return None if role is None else cls(first, role, names)

    def is_discrete(self) -> bool:
        """Return whether it holds integers or bool, which have no gradient."""
        return self.first.record.leaf.is_discrete

    def is_continuous(self) -> bool:
        """Return whether it may have a gradient."""
        return not self.is_discrete()

    def is_exact(self, side: int) -> bool:
        """Return whether the parameters of a run are compared by fingerprints, not statistics."""
        here = self.heres[side]
        return here is not None and here.weights[self.names[side]].fingerprint is not None

    def blames(self, code: CulpritCode, run: int | None, **details: Any) -> Culprit:
        """Return a culprit in the phase in which it differs; `run`: which one, None for neither."""
        name = None if run is None else _RUNS[run]
        return Culprit(code, {"run": name, "phase": self.phase, **details})

    def is_copied(self) -> bool:
        """Return whether its network is not trained in the phase in which it differs."""
        here = self.heres[0]
        return here is not None and not here.is_update

    @cached_property
    def heres(self) -> tuple[Opened | None, Opened | None]:
        """The opening of the phase in which it differs, in each run."""
        found = [self.history.opened(side, self.number, [self.phase]) for side in (0, 1)]
        a, b = (next((o for o in of if o.number == self.opening), None) for of in found)
        return a, b

    @cached_property
    def trained_in(self) -> list[str]:
        """The phases that may train its network; none of a frozen one."""
        return self.history.training_phases(self.role)

    def _updates(self, side: int, step: int) -> list[Opened]:
        """Return the updates of its network in a step; of a frozen network those of the actor's."""
        phases = self.trained_in or self.history.training_phases("actor")
        return [one for one in self.history.opened(side, step, phases) if one.is_update]

    @cached_property
    def nows(self) -> tuple[Opened | None, Opened | None]:
        """Of each run the first update after the step: it begins with the weights of that time.

        None where an update that was not recorded may lie between.
        """
        found: list[Opened | None] = []
        for side, here in enumerate(self.heres):
            updates = [] if here is None else self._updates(side, self.number)
            after = [one for one in updates if here is not None and one.begin > here.begin]
            if updates and not after:
                after = self._updates(side, self.number + 1)
            found.append(after[0] if after else None)
        return found[0], found[1]

    @cached_property
    def update(self) -> Opened | None:
        """The last update of its network before it, in A; None if that was not recorded."""
        here = self.heres[0]
        for step in (self.number, self.number - 1):
            updates = self._updates(0, step)
            if step == self.number:
                updates = [one for one in updates if here is not None and one.begin < here.begin]
            if updates:
                return updates[-1]
        return None

    @cached_property
    def origins(self) -> tuple[_Origin, _Origin]:
        """Where the weights of each run come from."""
        return _origin(self, 0), _origin(self, 1)

    def initial(self, side: int) -> Mapping[Parameter, Leaf]:
        """Return the weights with which its network was first entered."""
        return self.history.initial_weights(side, self.role, self.phase)

    def own(self, side: int) -> list[_State]:
        """Return what weights its network itself had in steps before, the latest first."""
        return [
            ({"step": other}, opened.weights)
            for other in self.history.before(self.number)
            for opened in self.history.opened(side, other, [self.phase])[:1]
        ]

    def earlier(self, side: int) -> Iterator[list[_State]]:
        """Yield what weights there were: the trained network's, those of its own, initial ones.

        Each the latest first.
        """
        trained: list[_State] = []
        here = self.heres[side]
        for other in (self.number, *self.history.before(self.number)):
            for opened in reversed(self._updates(side, other)):
                if other == self.number and here is not None and opened.begin >= here.begin:
                    continue
                micro_step = {"micro_step": opened.number} if opened.number else {}
                trained.append(({"step": other, **micro_step}, opened.weights))
        yield trained
        yield self.own(side)
        initial = [self.initial(one) for one in (side, 1 - side)]
        # The first network that a role enters may be this one, which was loaded: no earlier state.
        shared = {name: leaf for name, leaf in initial[0].items() if initial[1].get(name) == leaf}
        was_loaded = self.names[side] in initial[0].keys() - shared.keys()
        yield [] if was_loaded else [({"initial": True}, shared)]

    def step_of(self, opened: Opened | None) -> StepFindings | None:
        """Return the compared step of an opening; None without one, or where it was not."""
        if opened is None:
            return None
        return self.step if opened.step == self.number else self.history.compared(opened.step)

    def name_in(self, opened: Opened) -> Parameter | None:
        """Return what the parameter is called in the network of another opening of A."""
        here = self.heres[0]
        return None if here is None else matched(here.weights, opened.weights).get(self.names[0])

    def status_in(self, opened: Opened | None) -> Status | None:
        """Return the status of the parameter as an opening of A began; None if not known."""
        step, status = self.step_of(opened), None
        if opened is None or step is None:
            return None
        name = self.name_in(opened)
        for pair, finding, entry in of_entries(step.pairs, opened.phase, io="parameters"):
            if pair.a is None or entry.opening > opened.number or parameter_of(pair.a) != name:
                continue
            agrees = _agrees(pair)
            if finding is not None:
                status = finding.status
            elif agrees is not None:
                status = Status.IDENTICAL if agrees else Status.DIFFERENT
        return status

    def counts(self) -> dict[str, int]:
        """Return how many parameters of this opening differ, and of how many that is known."""
        agree: dict[tuple[str, str], bool] = {}
        pairs = of_entries(self.step.pairs, self.phase, opening=self.opening, io="parameters")
        for pair, finding, entry in pairs:
            known = finding.status.agrees if finding is not None else _agrees(pair)
            if known is not None:
                agree.setdefault((entry.cell, pair.record.path), known)
        return {"parameters": sum(not known for known in agree.values()), "of": len(agree)}


def _agrees(pair: Pair) -> bool | None:
    """Return whether a pair after the first difference agrees, which was not compared."""
    leaves = [record.leaf for record in pair.records if record.leaf.fingerprint is not None]
    return same(*leaves) if len(leaves) == 2 else None


#: A state of weights, by its details, and the weights themselves.
_State = tuple[Mapping[str, Any], Mapping[Parameter, Leaf]]


@dataclass(frozen=True)
class _Origin:
    """Where a run's weights come from.

    Attributes:
        kind: current, stale, other (none of these), or unknown.
        of: how many parameters tell.
        parameters: how many of them have it so.
        state: of stale weights, when the trained network had them: `step`, where a step has several
            updates `micro_step`, or `initial`.
        exact: by fingerprints, not by statistics.
    """

    kind: str
    parameters: int = 0
    of: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True


@rule(Differing.is_copied)
def synchronisation(differing: Differing) -> Culprit | None:
    """Return what brought other weights into a network that is not trained itself, if that is it.

    The details: of `not_synchronised` and `follows_trained`, `run`, `phase`, `trained` (the phase
    that trains), the state the weights are of (`step`, `micro_step` or `initial`), `parameters` and
    `of`, `other` (what the other run has: `current`, a state, or None), `exact`; of
    `synchronisation`, `run` (or None), `phase`, `trained`, `parameters` and `of`; of `moved`,
    `run`, `phase`, `parameters` and `of`.
    """
    if not differing.trained_in:
        return _follows(differing) or _moved(differing)
    return _moved(differing) or _stale(differing) or _copied_wrong(differing)


def _stale(differing: Differing) -> Culprit | None:
    origins = differing.origins
    if {"other", "unknown"} & {origin.kind for origin in origins}:
        return None  # what the other run has instead is not known to be right
    if origins[0].state == origins[1].state:
        return None
    stale = [side for side in (0, 1) if origins[side].kind == "stale"]
    side = min(stale, key=lambda side: origins[side].state.get("step", -1))
    return _culprit(CulpritCode.NOT_SYNCHRONISED, differing, side)


def _follows(differing: Differing) -> Culprit | None:
    """Return that in one run a frozen network was changed to the weights of the trained one."""
    kinds = [origin.kind for origin in differing.origins]
    if kinds.count("current") != 1:
        return None
    side = kinds.index("current")
    here = differing.heres[side]
    for then in (*(weights for _, weights in differing.own(side)), differing.initial(side)):
        if here is not None and here.compared_with(then).get(differing.names[side]) is False:
            return _culprit(CulpritCode.FOLLOWS_TRAINED, differing, side)
    return None  # it may have begun with them


def _moved(differing: Differing) -> Culprit | None:
    """Return that in one run a network was changed after the start, and in the other it was not.

    By the weights that it had when it was first entered, which agree. Of a network that may follow
    a trained one it is said only of weights that are none of that network's; of an old policy also
    where it followed in one run alone.
    """
    answers: list[dict[Parameter, bool | None]] = []
    first: list[Leaf] = []
    for side, here in enumerate(differing.heres):
        then, name = differing.initial(side), differing.names[side]
        if not differing.history.is_one_network(side, differing.phase, differing.phase):
            return None
        answers.append({} if here is None else here.compared_with(then))
        if here is None or answers[-1].get(name) is None:
            return None
        first.append(then[matched(here.weights, then)[name]])
    moved = [not of[name] for of, name in zip(answers, differing.names)]
    if moved[0] == moved[1] or not same(*first):
        return None
    side = moved.index(True)
    if differing.trained_in and differing.origins[side].kind != "other":
        kinds = differing.origins[side].kind, differing.origins[1 - side].kind
        if counts_tokens(differing.phase) or kinds != ("current", "stale"):
            return None
    known = [answer for answer in answers[side].values() if answer is not None]
    counts = {"parameters": known.count(False), "of": len(known)}
    return differing.blames(CulpritCode.MOVED, side, **counts)


@rule(_IS_OTHER, event(DATA))
def moved_since(first: FirstDifference) -> Culprit | None:
    """Return that a network which may have made key data was changed after the start in one run.

    By the next step with its weights, where it did not record those of this one: they do not tell
    when it was changed. The details: `run`, `phase`, `parameters` and `of` as of `moved`; `seen`,
    the step with the weights, `step`, that of the key data, and `record`, the phases to record.
    """
    step, history = first.finding.step, first.history
    for phase in _may_have_made(first):
        if any(history.opened(side, step, [phase]) for side in (0, 1)):
            continue  # its weights here say more
        later = (s for s in history.steps if s > step and history.opened(0, s, [phase]))
        seen = next(later, None)
        compared = None if seen is None else history.compared(seen)
        if compared is None:
            continue
        of_phase = (
            Differing.of(FirstDifference(compared, index, history))
            for index, (pair, finding) in enumerate(compared.pairs)
            if finding is not None and pair.event.phase == phase
        )
        differing = next((one for one in of_phase if one is not None), None)
        moved = None if differing is None else _moved(differing)
        if moved is not None:
            details = {**moved.details, "seen": seen, "step": step, "record": (phase,)}
            return Culprit(CulpritCode.MOVED_SINCE, details)
    return None


def _may_have_made(first: FirstDifference) -> list[str]:
    """Return the phase that key data come of; for an update, or no phase, those of frozen networks.

    Without those of which other key data of the step agree.
    """
    home = key_data_home(first.event.name)
    if home is None:
        return []
    if home.phase is not None and home.phase not in UPDATE_PHASES:
        return [home.phase]
    agreed = {pair.event.phase for pair, f in first.before if f is not None and f.key is not None}
    frozen = (p.name for p in PHASES if not first.history.training_phases(p.role))
    return [phase for phase in frozen if phase not in agreed]


def _culprit(code: CulpritCode, differing: Differing, side: int) -> Culprit:
    origin, other = differing.origins[side], differing.origins[1 - side]
    now = differing.nows[side]
    theirs: Any = {"current": "current", "stale": dict(other.state)}.get(other.kind)
    known = {"trained": now.phase if now else None, **origin.state}
    known |= {"parameters": origin.parameters, "of": origin.of, "other": theirs}
    return differing.blames(code, side, **known, exact=origin.exact and other.exact)


def _copied_wrong(differing: Differing) -> Culprit | None:
    """Return that the weights differ here while those of the trained network agree."""
    now = differing.nows[0]
    if now is None or differing.status_in(now) is not Status.IDENTICAL:
        return None
    still = not_moved(differing)
    if still is not None:  # in another dtype, say, in which its origin is not known
        return Culprit(still.code, {**still.details, "trained_agrees": True})
    current = [side for side in (0, 1) if differing.origins[side].kind == "current"]
    side = 1 - current[0] if len(current) == 1 else None
    known = {"trained": now.phase, **differing.counts()}
    return differing.blames(CulpritCode.SYNCHRONISATION, side, **known)


def _origin(differing: Differing, side: int) -> _Origin:
    here, now, first = differing.heres[side], differing.nows[side], differing.names[side]
    if here is None or now is None:
        return _Origin("unknown")
    answers = here.compared_with(now.weights)
    if answers.get(first) is None:
        return _Origin("unknown")
    exact = differing.is_exact(side)
    if answers[first]:
        known = [answer for answer in answers.values() if answer is not None]
        return _Origin("current", sum(known), len(known), exact=exact)
    best = _Origin("other")
    to_now = matched(here.weights, now.weights)
    for states in differing.earlier(side):
        for state, then in states:
            # Of the parameters that were updated since, which are still those of that time.
            to_then = matched(here.weights, then)
            held: dict[Parameter, bool] = {}
            for parameter in to_now.keys() & to_then.keys():
                leaf, old = here.weights[parameter], then[to_then[parameter]]
                new, still = now.weights[to_now[parameter]], same(leaf, old)
                if still is not None and same(old, new) is False and same(leaf, new) is not None:
                    held[parameter] = still
            tells = held.get(first) or first not in to_then
            if tells and sum(held.values()) > best.parameters:
                best = _Origin("stale", sum(held.values()), len(held), state, exact)
        if best.parameters:
            break
    return best


def changed_between(differing: Differing) -> Culprit | None:
    """Return that a parameter was changed where nothing is updated, between two phases of a run.

    The same network held it in a phase before, without an update between: the same in both runs,
    and in one run the same as now. So did another network, which had a copy of what the last update
    made of it (`copied`). The details: `run` (in which it was changed), `phase`, `since` (the phase
    before), `parameters` and `of`.
    """
    here, update, history = differing.heres[0], differing.update, differing.history
    if here is None or differing.heres[1] is None or not differing.trained_in:
        return None
    if update is None and not history.is_first(differing.number):
        return None
    if update is not None and update.step == differing.number:
        return None  # the phases after it are no others than this one
    around = history.opened(0, here.step, history.phases_of(differing.role))
    for last in reversed(around):
        if last.begin >= here.begin or last.phase == here.phase:
            continue
        own = {history.is_one_network(s, here.phase, last.phase) for s in (0, 1)}
        copied = False
        if own == {False} and here.is_update and update is not None:
            # Whether the other network holds another value than the update began with.
            began, held = differing.name_in(update), differing.name_in(last)
            if began is not None and held is not None:
                copied = same(update.weights[began], last.weights[held]) is False
        changed = _changed_since(differing, last) if copied or own == {True} else None
        if changed is not None:
            known: dict[str, Any] = {"since": last.phase, **differing.counts()}
            known |= {"copied": True} if copied else {}
            return differing.blames(CulpritCode.CHANGED_BETWEEN, changed, **known)
    return None


def _changed_since(differing: Differing, last: Opened) -> int | None:
    """Return the run in which a parameter changed since an opening before; None if not known."""
    answers = []
    for side, here in enumerate(differing.heres):
        held = differing.history.same_opening(side, last)
        known = {} if here is None or held is None else here.compared_with(held.weights)
        if differing.names[side] not in known:
            return None
        answers.append(known[differing.names[side]])
    if differing.status_in(last) is not Status.IDENTICAL:
        return None
    return answers.index(False) if sorted(answers, key=str) == [False, True] else None


def not_moved(differing: Differing) -> Culprit | None:
    """Return that a network did not change in one run since an earlier step, and did in the other.

    The details: `run` (that in which nothing changed), `phase`, `trained` (the phase that would
    train it, or None), `step` (since which), `parameters` (how many changed in the other run),
    `of`, `exact`, `trained_agrees` (whether the trained network's weights are known to agree).
    """
    earlier = differing.history.before(differing.number)
    if not earlier:
        return None
    changes = [_kept(differing, side, earlier[0]) for side in (0, 1)]
    for side in (0, 1):
        still, moved = changes[side], changes[1 - side]
        if still is None or moved is None or not all(still.values()):
            continue
        if moved[differing.names[1 - side]]:
            continue
        since = earlier[0]
        for before in earlier[1:]:
            change = _kept(differing, side, before)
            if change is None or not all(change.values()):
                break
            since = before
        return differing.blames(
            CulpritCode.NOT_MOVED,
            side,
            trained=next(iter(differing.trained_in), None),
            step=since,
            parameters=list(moved.values()).count(False),
            of=len(moved),
            exact=all(differing.is_exact(one) for one in (0, 1)),
            trained_agrees=False,
        )
    return None


def _kept(differing: Differing, side: int, step: int) -> dict[Parameter, bool | None] | None:
    """Return which parameters are those of an earlier step; None unless that is known of all."""
    here, before = differing.heres[side], differing.history.opened(side, step, [differing.phase])
    if here is None or not before:
        return None
    answers = here.compared_with(before[0].weights)
    known = differing.names[side] in answers and None not in answers.values()
    return answers if known else None


@rule(Differing.is_discrete)
def written(differing: Differing) -> Culprit | None:
    """Return in which run alone a parameter of integers or bool was changed, which has no gradient.

    The details: `run`, `phase`, `dtype`, and `step`, since which the other run has not changed it;
    without it since the start.
    """
    kept = differing.history.kept(differing.first.pair, differing.number)
    if kept is None or kept[0].unchanged is kept[1].unchanged:
        return None
    side = int(kept[0].unchanged)
    details: dict[str, Any] = {"dtype": differing.first.record.leaf.dtype}
    if (since := kept[1 - side].step) is not None:
        details["step"] = since
    return differing.blames(CulpritCode.WRITTEN, side, **details)
