"""Where the weights of a network come from, run by run: whether they were synchronised at all.

A network that is not trained itself, the one that generates say, is compared with what is known of
the same run: the weights that the trained network has now, those it had in earlier steps, and the
initial ones. No run need be right for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.culprits.sampling import counts_tokens
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference, event, status
from mindrlhf_msprobe.comparison.verdict.history import (
    History,
    Opened,
    Parameter,
    StepFindings,
    matched,
    parameter_of,
    same,
)
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Status
from mindrlhf_msprobe.phases import PHASES, UPDATE_PHASES, key_data_home
from mindrlhf_msprobe.storage.leaves import Leaf

_RUNS = "AB"


_IS_OTHER = status(Status.DIFFERENT, Status.NON_FINITE)


@dataclass(frozen=True)
class Differing:
    """A parameter that is the first difference of two runs.

    Attributes:
        role: whose network holds it.
        names: the parameter in each run.
    """

    first: FirstDifference
    role: str
    phase: str
    opening: int
    names: tuple[Parameter, Parameter]

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
        if role is None:
            return None
        return cls(first, role, pair.entry.phase, pair.entry.opening, names)

    @property
    def step(self) -> StepFindings:
        """The step of the rank, with what was found of each pair."""
        return self.first.step

    @property
    def history(self) -> History:
        """The steps of its rank."""
        return self.first.history

    def is_discrete(self) -> bool:
        """Return whether it holds integers or bool, which have no gradient."""
        return self.first.record.leaf.is_discrete

    def is_continuous(self) -> bool:
        """Return whether it may have a gradient."""
        return not self.is_discrete()

    def is_copied(self) -> bool:
        """Return whether its network is not trained in the phase in which it differs."""
        here = self.opened(0)
        return here is not None and not is_trained_here(self, here)

    def opened(self, side: int) -> Opened | None:
        """Return the opening of the phase in which it differs, in one run."""
        found = self.history.opened(side, self.step.plan.step, [self.phase])
        return next((opened for opened in found if opened.number == self.opening), None)

    def counts(self) -> tuple[int, int]:
        """Return how many parameters of this opening differ, and how many were compared."""
        agree: dict[tuple[str, str], bool] = {}
        for pair, finding in self.step.pairs:
            if pair.entry is None or pair.record.io != "parameters":
                continue
            if (pair.entry.phase, pair.entry.opening) != (self.phase, self.opening):
                continue
            known = finding.status.agrees if finding is not None else _alike(pair)
            if known is not None:
                agree.setdefault((pair.entry.cell, pair.record.path), known)
        return sum(not known for known in agree.values()), len(agree)


def _alike(pair: Pair) -> bool | None:
    """Return whether a pair after the first difference agrees, which was not compared."""
    if (
        pair.a is None
        or pair.b is None
        or None in (pair.a.leaf.fingerprint, pair.b.leaf.fingerprint)
    ):
        return None
    return same(pair.a.leaf, pair.b.leaf)


def is_trained_here(differing: Differing, opened: Opened) -> bool:
    """Return whether the phase in which a parameter differs is one that trains its network."""
    return differing.phase in UPDATE_PHASES or opened.trains


def trained_now(differing: Differing, side: int, phases: Sequence[str]) -> Opened | None:
    """Return the first update after the step, which begins with the weights of that time.

    None where an update that was not recorded may lie between.
    """
    here = differing.opened(side)
    if here is None:
        return None
    step = differing.step.plan.step
    updates = _updates(differing.history.opened(side, step, phases))
    after = [opened for opened in updates if opened.begin > here.begin]
    if after:
        return after[0]
    if not updates:
        return None
    return next(iter(_updates(differing.history.opened(side, step + 1, phases))), None)


def _updates(opened: Sequence[Opened]) -> list[Opened]:
    return [one for one in opened if one.phase in UPDATE_PHASES or one.trains]


def agreement_of(step: StepFindings, opened: Opened, name: Parameter | None) -> Status | None:
    """Return the status of a parameter of A as an opening of a phase began, None if not known."""
    status = None
    for pair, finding in step.pairs:
        if pair.entry is None or pair.record.io != "parameters" or pair.a is None:
            continue
        until = pair.entry.phase == opened.phase and pair.entry.opening <= opened.number
        if until and parameter_of(pair.a) == name:
            alike = _alike(pair)
            if finding is not None:
                status = finding.status
            elif alike is not None:
                status = Status.IDENTICAL if alike else Status.DIFFERENT
    return status


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
    phases = differing.history.training_phases(differing.role)
    frozen = not phases
    if frozen:
        phases = differing.history.training_phases("actor")
    nows = [trained_now(differing, side, phases) for side in (0, 1)]
    origins = [_origin(differing, side, phases, nows[side]) for side in (0, 1)]
    if frozen:
        return _follows(differing, origins, nows) or _moved(differing)
    return (
        _moved(differing, origins)
        or _stale(differing, origins, nows)
        or _otherwise(differing, origins, nows)
    )


def _stale(
    differing: Differing, origins: Sequence[_Origin], nows: Sequence[Opened | None]
) -> Culprit | None:
    if {"other", "unknown"} & {origin.kind for origin in origins}:
        return None  # what the other run has instead is not known to be right
    if origins[0].state == origins[1].state:
        return None
    stale = [side for side in (0, 1) if origins[side].kind == "stale"]
    side = min(stale, key=lambda side: origins[side].state.get("step", -1))
    return _culprit(CulpritCode.NOT_SYNCHRONISED, differing, side, origins, nows)


def _follows(
    differing: Differing, origins: Sequence[_Origin], nows: Sequence[Opened | None]
) -> Culprit | None:
    """Return that in one run a frozen network was changed to the weights of the trained one."""
    kinds = [origin.kind for origin in origins]
    if kinds.count("current") != 1:
        return None
    side = kinds.index("current")
    here = differing.opened(side)
    if here is None:
        return None
    first = differing.names[side]
    own = [weights for _, weights in _own(differing, side)]
    for then in (*own, _initial(differing, side)):
        name = matched(here.weights, then).get(first)
        if name is not None and same(here.weights[first], then[name]) is False:
            return _culprit(CulpritCode.FOLLOWS_TRAINED, differing, side, origins, nows)
    return None  # it may have begun with them


def _moved(differing: Differing, origins: Sequence[_Origin] = ()) -> Culprit | None:
    """Return that in one run a network was changed after the start, and in the other it was not.

    By the weights that it had when it was first entered, which agree.

    Args:
        origins: of a network that may follow a trained one. Then it is said only of weights that
            are none of that network's; of an old policy also where it followed in one run alone.
    """
    apart: list[list[Parameter]] = []  # of each run, what it has otherwise than at first
    known: list[int] = []
    first: list[Leaf] = []
    for side in (0, 1):
        here, then = differing.opened(side), _initial(differing, side)
        if not differing.history.is_one_network(side, differing.phase, differing.phase):
            return None
        pairs = {} if here is None else matched(here.weights, then)
        if here is None or differing.names[side] not in pairs:
            return None
        answers = {p: same(here.weights[p], then[q]) for p, q in pairs.items()}
        if answers[differing.names[side]] is None:
            return None
        first.append(then[pairs[differing.names[side]]])
        known.append(sum(answer is not None for answer in answers.values()))
        apart.append([p for p, answer in answers.items() if answer is False])
    moved = [differing.names[side] in apart[side] for side in (0, 1)]
    if moved[0] == moved[1] or not same(*first):
        return None
    side = moved.index(True)
    if origins and origins[side].kind != "other":
        alone = origins[side].kind == "current" and origins[1 - side].kind == "stale"
        if counts_tokens(differing.phase) or not alone:
            return None
    details: dict[str, Any] = {"run": _RUNS[side], "phase": differing.phase}
    details |= {"parameters": len(apart[side]), "of": known[side]}
    return Culprit(CulpritCode.MOVED, details)


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
        differing = None if seen is None else _first_parameter(history, seen, phase)
        if differing is None:
            continue
        phases = history.training_phases(differing.role)
        nows = [trained_now(differing, side, phases) for side in (0, 1)]
        origins = [_origin(differing, side, phases, nows[side]) for side in (0, 1)]
        moved = _moved(differing, origins if phases else ())
        if moved is not None:
            details = {**moved.details, "seen": seen, "step": step, "record": (phase,)}
            return Culprit(CulpritCode.MOVED_SINCE, details)
    return None


def _may_have_made(first: FirstDifference) -> list[str]:
    """Return the phase that key data come of; of an update, or of none, those of frozen networks.

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


def _first_parameter(history: History, step: int, phase: str) -> Differing | None:
    """Return the first parameter of a phase that differs in a step."""
    compared = history.compared(step)
    if compared is None:
        return None
    of_phase = (
        FirstDifference(compared, index, history)
        for index, (pair, finding) in enumerate(compared.pairs)
        if finding is not None and pair.event.phase == phase
    )
    return next((one for one in map(Differing.of, of_phase) if one is not None), None)


def _culprit(
    code: CulpritCode,
    differing: Differing,
    side: int,
    origins: Sequence[_Origin],
    nows: Sequence[Opened | None],
) -> Culprit:
    origin, other, now = origins[side], origins[1 - side], nows[side]
    theirs: Any = {"current": "current", "stale": dict(other.state)}.get(other.kind)
    return Culprit(
        code,
        {
            "run": _RUNS[side],
            "phase": differing.phase,
            "trained": now.phase if now else None,
            **origin.state,
            "parameters": origin.parameters,
            "of": origin.of,
            "other": theirs,
            "exact": origin.exact and other.exact,
        },
    )


def _otherwise(
    differing: Differing, origins: Sequence[_Origin], nows: Sequence[Opened | None]
) -> Culprit | None:
    """Return that the weights differ here while those of the trained network agree."""
    now = nows[0]
    if now is None or trained_agreement(differing, now) is not Status.IDENTICAL:
        return None
    still = not_moved(differing)
    if still is not None:  # in another dtype, say, in which its origin is not known
        return Culprit(still.code, {**still.details, "trained_agrees": True})
    current = [side for side in (0, 1) if origins[side].kind == "current"]
    parameters, of = differing.counts()
    details = {
        "run": _RUNS[1 - current[0]] if len(current) == 1 else None,
        "phase": differing.phase,
        "trained": now.phase,
        "parameters": parameters,
        "of": of,
    }
    return Culprit(CulpritCode.SYNCHRONISATION, details)


def step_of(differing: Differing, opened: Opened | None) -> StepFindings | None:
    """Return the compared step of an opening; None without one, or where it was not compared."""
    if opened is None:
        return None
    if opened.step == differing.step.plan.step:
        return differing.step
    return differing.history.compared(opened.step)


def trained_agreement(differing: Differing, now: Opened | None) -> Status | None:
    """Return the status of the same parameter in the trained network, as an update of A began."""
    here, step = differing.opened(0), step_of(differing, now)
    if here is None or now is None or step is None:
        return None
    return agreement_of(step, now, matched(here.weights, now.weights).get(differing.names[0]))


def _origin(differing: Differing, side: int, phases: Sequence[str], now: Opened | None) -> _Origin:
    here = differing.opened(side)
    if here is None or now is None:
        return _Origin("unknown")
    pairs = matched(here.weights, now.weights)
    first = differing.names[side]
    fresh = same(here.weights[first], now.weights[pairs[first]]) if first in pairs else None
    if fresh is None:
        return _Origin("unknown")
    exact = here.weights[first].fingerprint is not None
    if fresh:
        answers = [same(here.weights[p], now.weights[q]) for p, q in pairs.items()]
        known = [answer for answer in answers if answer is not None]
        return _Origin("current", sum(known), len(known), exact=exact)
    best = _Origin("other")
    for states in _earlier(differing, side, phases, here):
        for state, weights in states:
            origin = _stale_since(here, now, weights, state, first, exact)
            if origin is not None and origin.parameters > best.parameters:
                best = origin
        if best.parameters:
            break
    return best


def _stale_since(
    here: Opened,
    now: Opened,
    then: Mapping[Parameter, Leaf],
    state: Mapping[str, Any],
    first: Parameter,
    exact: bool,
) -> _Origin | None:
    """Return how many of the parameters that were updated since are still those of an earlier time.

    None if the first one that differs was there and is not among them.
    """
    to_now, to_then = matched(here.weights, now.weights), matched(here.weights, then)
    held: dict[Parameter, bool] = {}
    for parameter in to_now.keys() & to_then.keys():
        leaf, old = here.weights[parameter], then[to_then[parameter]]
        new, still = now.weights[to_now[parameter]], same(leaf, old)
        if still is not None and same(old, new) is False and same(leaf, new) is not None:
            held[parameter] = still
    if first in to_then and not held.get(first):
        return None
    stale = sum(held.values())
    return _Origin("stale", stale, len(held), state, exact) if stale else None


#: A state of weights, by its details, and the weights themselves.
_State = tuple[Mapping[str, Any], Mapping[Parameter, Leaf]]


def _earlier(
    differing: Differing, side: int, phases: Sequence[str], here: Opened
) -> Iterator[list[_State]]:
    """Yield what weights there were: the trained network's, those of this network, initial ones.

    Each the latest first.
    """
    step = differing.step.plan.step
    trained: list[_State] = []
    for other in (step, *differing.history.before(step)):
        for opened in reversed(_updates(differing.history.opened(side, other, phases))):
            if other == step and opened.begin >= here.begin:
                continue
            state = {"step": other}
            if opened.number:
                state["micro_step"] = opened.number
            trained.append((state, opened.weights))
    yield trained
    yield _own(differing, side)
    initial = [_initial(differing, one) for one in (side, 1 - side)]
    # The first network that a role enters may be this one, loaded otherwise: no earlier state then.
    alike = {name: leaf for name, leaf in initial[0].items() if initial[1].get(name) == leaf}
    loaded_otherwise = differing.names[side] in initial[0].keys() - alike.keys()
    yield [] if loaded_otherwise else [({"initial": True}, alike)]


def _initial(differing: Differing, side: int) -> Mapping[Parameter, Leaf]:
    return differing.history.initial_weights(side, differing.role, differing.phase)


def _own(differing: Differing, side: int) -> list[_State]:
    """Return what weights the network itself had in steps before, the latest first."""
    return [
        ({"step": other}, opened.weights)
        for other in differing.history.before(differing.step.plan.step)
        for opened in differing.history.opened(side, other, [differing.phase])[:1]
    ]


def update_before(differing: Differing, here: Opened, phases: Sequence[str]) -> Opened | None:
    """Return the last update of the network before the step; None if it was not recorded."""
    step = differing.step.plan.step
    for other in (step, step - 1):
        updates = [
            opened
            for opened in _updates(differing.history.opened(0, other, phases))
            if other < step or opened.begin < here.begin
        ]
        if updates:
            return updates[-1]
    return None


def changed_between(differing: Differing) -> Culprit | None:
    """Return that a parameter was changed where nothing is updated, between two phases of a run.

    The same network held it in a phase before, without an update between: the same in both runs,
    and in one run the same as now. So did another network, which had a copy of what the last update
    made of it (`copied`). The details: `run` (in which it was changed), `phase`, `since` (the phase
    before), `parameters` and `of`.
    """
    heres = [differing.opened(side) for side in (0, 1)]
    here = heres[0]
    phases = differing.history.training_phases(differing.role)
    if here is None or heres[1] is None or not phases:
        return None
    update = update_before(differing, here, phases)
    if update is None and not differing.history.is_first(differing.step.plan.step):
        return None
    if update is not None and update.step == differing.step.plan.step:
        return None  # the phases after it are no others than this one
    around = differing.history.opened(0, here.step, differing.history.phases_of(differing.role))
    for last in reversed(around):
        if last.begin >= here.begin or last.phase == here.phase:
            continue
        own = {differing.history.is_one_network(s, here.phase, last.phase) for s in (0, 1)}
        copied = own == {False} and is_trained_here(differing, here)
        if own != {True} and not (copied and _is_made_by(update, differing, last)):
            continue
        changed = _changed_since(differing, heres, last)
        if changed is not None:
            parameters, of = differing.counts()
            details = {
                "run": changed,
                "phase": here.phase,
                "since": last.phase,
                "parameters": parameters,
                "of": of,
            }
            more = {"copied": True} if copied else {}
            return Culprit(CulpritCode.CHANGED_BETWEEN, details | more)
    return None


def _is_made_by(update: Opened | None, differing: Differing, copy: Opened) -> bool:
    """Return whether a network holds another value of a parameter than an update began with."""
    here = differing.opened(0)
    if update is None or here is None:
        return False
    name = differing.names[0]
    began, held = (matched(here.weights, of.weights).get(name) for of in (update, copy))
    if began is None or held is None:
        return False
    return same(update.weights[began], copy.weights[held]) is False


def _changed_since(
    differing: Differing, heres: Sequence[Opened | None], last: Opened
) -> str | None:
    """Return the run in which a parameter changed since an opening before; None if not known."""
    answers = []
    for side in (0, 1):
        here = heres[side]
        held = differing.history.same_opening(side, last)
        if here is None or held is None:
            return None
        name = matched(here.weights, held.weights).get(differing.names[side])
        if name is None:
            return None
        if side == 0 and agreement_of(differing.step, last, name) is not Status.IDENTICAL:
            return None
        answers.append(same(here.weights[differing.names[side]], held.weights[name]))
    return _RUNS[answers.index(False)] if sorted(answers, key=str) == [False, True] else None


def not_moved(differing: Differing) -> Culprit | None:
    """Return that a network did not change in one run since an earlier step, and did in the other.

    The details: `run` (that in which nothing changed), `phase`, `trained` (the phase that would
    train it, or None), `step` (since which), `parameters` (how many changed in the other run),
    `of`, `exact`, `trained_agrees` (whether the trained network's weights are known to agree).
    """
    earlier = differing.history.before(differing.step.plan.step)
    if not earlier:
        return None
    changes = [_changed(differing, side, earlier[0]) for side in (0, 1)]
    for side in (0, 1):
        still, moved = changes[side], changes[1 - side]
        if still is None or moved is None or still.names:
            continue
        if differing.names[1 - side] not in moved.names:
            continue
        since = earlier[0]
        for before in earlier[1:]:
            change = _changed(differing, side, before)
            if change is None or change.names:
                break
            since = before
        details = {
            "run": _RUNS[side],
            "phase": differing.phase,
            "trained": next(iter(differing.history.training_phases(differing.role)), None),
            "step": since,
            "parameters": len(moved.names),
            "of": moved.of,
            "exact": still.exact and moved.exact,
            "trained_agrees": False,
        }
        return Culprit(CulpritCode.NOT_MOVED, details)
    return None


@dataclass(frozen=True)
class _Changes:
    """The parameters of a network that changed since an earlier step, and how many there are."""

    names: frozenset[Parameter]
    of: int
    exact: bool


def _changed(differing: Differing, side: int, step: int) -> _Changes | None:
    """Return which parameters differ from those of an earlier step; None if that is not known."""
    here = differing.opened(side)
    before = differing.history.opened(side, step, [differing.phase])[:1]
    if here is None or not before:
        return None
    answers = {
        name: same(leaf, before[0].weights[name])
        for name, leaf in here.weights.items()
        if name in before[0].weights
    }
    if answers.get(differing.names[side]) is None or None in answers.values():
        return None
    changed = frozenset(name for name, answer in answers.items() if not answer)
    exact = here.weights[differing.names[side]].fingerprint is not None
    return _Changes(changed, len(answers), exact)


@rule(Differing.is_discrete)
def written(differing: Differing) -> Culprit | None:
    """Return in which run alone a parameter of integers or bool was changed, which has no gradient.

    The details: `run`, `phase`, `dtype`, and `step`, since which the other run has not changed it;
    without it since the start.
    """
    kept = differing.history.kept(differing.first.pair, differing.step.plan.step)
    if kept is None or kept[0].alike is kept[1].alike:
        return None
    side = int(kept[0].alike)
    details: dict[str, Any] = {"run": _RUNS[side], "phase": differing.phase}
    details["dtype"] = differing.first.record.leaf.dtype
    if (since := kept[1 - side].step) is not None:
        details["step"] = since
    return Culprit(CulpritCode.WRITTEN, details)
