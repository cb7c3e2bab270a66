"""What beyond the record and its cell is to blame for the first divergence.

Gradients may diverge between the backward pass and the optimizer (clipping, unscaling, …), in the
optimizer's step, and key data of an update in its loss, or in how it is set, not in a network.

Of the differences before any tensor, one is named where it could have this effect, never as the
cause: a learning rate after an update of its role, an attribute of the cell that computed
another output, the mode of the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from mindrlhf_msprobe import phases
from mindrlhf_msprobe.common.message import Message, as_message
from mindrlhf_msprobe.common.rules import Rule, Rules, first_answer, rule
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.preflight.networks import CELLS, MODES, OPTIMIZERS, SEEDS
from mindrlhf_msprobe.comparison.preflight.preflight import GENERATOR_STATES, OwnStep, states_differ
from mindrlhf_msprobe.comparison.verdict import weights
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    FirstDifference,
    Opened,
    Parameter,
    StepFindings,
    of_entries,
    part,
    status,
)
from mindrlhf_msprobe.comparison.verdict.losses import aggregation, loss, schedule
from mindrlhf_msprobe.comparison.verdict.occasion import cell_of, earlier_update
from mindrlhf_msprobe.comparison.verdict.sampling import last_token, next_token
from mindrlhf_msprobe.config import phases_of
from mindrlhf_msprobe.findings import (
    Cause,
    CheckFirst,
    Culprit,
    CulpritCode,
    Difference,
    Finding,
    Nearness,
    Preflight,
    Status,
)
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name, network_name

#: What does not decide: what is known of the record itself is said as well.
_NOT_RECORDED = (
    CulpritCode.GRADIENTS_NOT_RECORDED,
    CulpritCode.UPDATE_NOT_RECORDED,
    CulpritCode.MOVED_SINCE,
)
#: What leaves it open where the weights diverge: another rule may know.
_UNDECIDED = (CulpritCode.UPDATE_NOT_RECORDED, CulpritCode.OPTIMIZER_OR_SYNCHRONISATION)
#: Arithmetic on values that agree bit for bit: nothing is drawn in it.
OF_WHAT_AGREES = (CulpritCode.LOSS, CulpritCode.AGGREGATION)


@rule(part("parameters"))
def parameter(first: FirstDifference) -> Culprit | None:
    """Return what changed a parameter, or did not, in one run alone."""
    differing = weights.Differing.of(first)
    return None if differing is None else first_answer(_OF_PARAMETERS, differing)


def culprit_reasons(
    culprit: Culprit, finding: Finding, why: Sequence[Message]
) -> tuple[Message, ...]:
    """Return what is to blame, and why.

    Args:
        finding: the first record that differs.
        why: what is said of the record where nothing else is known.
    """
    params = dict(culprit.details)
    if culprit.code == CulpritCode.EARLIER_UPDATE:
        params |= {"key": finding.key, "step": finding.step}
    said = as_message(culprit.said or Message(f"culprit.{culprit.code}", params))
    return (*why, said) if culprit.code in _NOT_RECORDED else (said,)


def enters_optimizer(pair: Pair) -> bool:
    """Return whether both sides of a pair are a gradient as it entered the optimizer."""
    return all(record is not None and record.leaf.at_optimizer for record in (pair.a, pair.b))


@rule(status(Status.DIFFERENT, Status.NON_FINITE), lambda first: enters_optimizer(first.pair))
def before_optimizer(first: FirstDifference) -> Culprit | None:
    """Return that all gradients of an update differ where they enter the optimizer, and none of
    its backward pass does.

    A cell that computes the gradient of its parameters in another way changes those alone. The
    details: `phase`, `gradients` (how many there are) and `backward` (how many records of the
    backward pass agree bit for bit).
    """
    entry = first.entry
    if entry is None or entry.direction != PARAMETERS_GRAD:
        return None
    gradients, backward = [], []  # of the update; and of its backward pass before the difference
    for _, finding, of in of_entries(first.pairs, entry.phase, opening=entry.opening):
        if finding is not None and (of.direction, of.call) == (PARAMETERS_GRAD, entry.call):
            gradients.append(finding.status)
    for _, finding, of in of_entries(first.before, entry.phase, opening=entry.opening):
        if finding is not None and of.direction == "backward":
            backward.append(finding.status)
    if len(gradients) < 2 or any(found.agrees for found in gradients):
        return None
    if not backward or any(found is not Status.IDENTICAL for found in backward):
        return None
    details = {"phase": entry.phase, "gradients": len(gradients), "backward": len(backward)}
    return Culprit(CulpritCode.BEFORE_OPTIMIZER, details)


def _is_undecided(culprit: Culprit) -> bool:
    return culprit.code in _UNDECIDED


@rule(weights.Differing.is_continuous, yields=_is_undecided)
def optimizer(differing: weights.Differing) -> Culprit | None:
    """Return what is known of the update before a parameter that differs; None without any.

    The details: `phase`, `step` and `micro_step` of the update, `updates` (how many that step has),
    `parameters` and `of` (how many differ now), `unmoved` (the run in which the update changed
    nothing, or None), `clipped` (whether the gradients were recorded as they entered the
    optimizer), `filtered` (cells were left out) and `ranks_unseen` (the gradients of other ranks
    were not recorded).
    """
    first, here, history = differing.first, differing.heres[0], differing.history
    if here is None or not differing.trained_in:
        return None
    # The status of the parameter of the trained network after the update.
    after = Status.DIFFERENT if here.is_update else differing.status_in(differing.nows[0])
    if after is Status.IDENTICAL:
        return None  # the trained network is right
    update = differing.update
    if update is None:
        before = differing.number - 1
        configs = [view.config(history.rank) for view in history.sides]
        if any(config is None or before < config.initial_step for config in configs):
            return None  # there may have been none
        details = {"phase": differing.trained_in[0], "step": before}
        return Culprit(CulpritCode.UPDATE_NOT_RECORDED, details)
    step = differing.step_of(update)
    if step is None:
        return None
    begun = differing.status_in(update)
    gradients = _gradients(step, update, differing.name_in(update))
    if any(finding is None and not clipped for finding, clipped in gradients):
        return None  # left out of the comparison
    own = [(run, run.config(run.ranks[0]) if run.ranks else None) for run in first.runs]
    # Whether the jobs have ranks of which nothing was recorded.
    ranks_unseen = [bool(run.missing_ranks or (c is not None and c.ranks)) for run, c in own]
    details = {
        "phase": update.phase,
        "step": update.step,
        "micro_step": update.number,
        "updates": len(history.opened(0, update.step, [update.phase])),
        **differing.counts(),
        "unmoved": _unmoved(differing, update),
        "clipped": bool(gradients) and all(f is not None and c for f, c in gradients),
        "filtered": first.filtered,
        "ranks_unseen": any(ranks_unseen),
    }
    code = _code(begun, [finding for finding, _ in gradients], after)
    if code is CulpritCode.GRADIENTS_NOT_RECORDED:
        details["weights"] = begun is not None
    return Culprit(code, details)


def _code(
    begun: Status | None, gradients: Sequence[Finding | None], after: Status | None
) -> CulpritCode:
    """Return what an update is known to have done.

    Args:
        begun: of the parameter as the update began; None where that is not known.
        gradients: of that parameter, and those of others that act on it.
        after: of the parameter of the trained network after the update.
    """
    known = [finding.status for finding in gradients if finding is not None]
    if begun is None or not known or len(known) != len(gradients):
        return CulpritCode.GRADIENTS_NOT_RECORDED
    if any(found is not Status.IDENTICAL for found in (begun, *known)):
        return CulpritCode.UPDATE_CLOSE
    if after is not None and not after.agrees:
        return CulpritCode.OPTIMIZER
    return CulpritCode.OPTIMIZER_OR_SYNCHRONISATION


def _gradients(
    step: StepFindings, update: Opened, name: Parameter | None
) -> list[tuple[Finding | None, bool]]:
    """Return what was found of a parameter's gradients in an update, and whether they are clipped.

    With them the gradients of other parameters that do not agree bit for bit: through a norm of all
    they act on this one, too.
    """
    found: list[tuple[Finding | None, bool]] = []
    others: list[tuple[Finding | None, bool]] = []
    pairs = of_entries(step.pairs, update.phase, opening=update.number, direction=PARAMETERS_GRAD)
    for pair, finding, _ in pairs:
        if pair.a is None:
            continue
        path = pair.a.path.partition(".")[0]
        cell = cell_name(pair.a.name.removesuffix(f".{pair.a.path}"))
        if (cell, path) == name and (finding is None or pair.b is not None):
            found.append((finding, pair.a.leaf.at_optimizer))
        elif finding is not None and finding.status is not Status.IDENTICAL:
            others.append((finding, pair.a.leaf.at_optimizer))
    return [*found, *others] if found else []


def _unmoved(differing: weights.Differing, update: Opened) -> str | None:
    """Return the run in which the update changed no parameter, if it did so in the other one."""
    stayed: list[bool] = []
    for side, here in enumerate(differing.heres):
        after = here if here is None or here.is_update else differing.nows[side]
        began = differing.history.same_opening(side, update)
        if after is None or began is None:
            return None
        answers = began.compared_with(after.weights).values()
        if not answers or None in answers:
            return None
        stayed.append(all(answers))
    return "AB"[stayed.index(True)] if stayed.count(True) == 1 else None


#: In the order in which they are tried.
_OF_PARAMETERS: tuple[Callable[[weights.Differing], Culprit | None], ...] = (
    *(weights.synchronisation, weights.changed_between, weights.written, optimizer),
    Rule(weights.not_moved, (weights.Differing.is_continuous,)),
)

#: What explains a first difference, in the order in which it is tried: the first answer counts
#: that yields to no other. The group is that of the entry points of other packages.
EXPLANATIONS: Rules[FirstDifference, Culprit] = Rules(
    "mindrlhf_msprobe.explanations",
    Culprit,
    *(parameter, next_token, last_token, before_optimizer, schedule, aggregation, loss),
    *(earlier_update, weights.moved_since),
)

MAX_CHECKS = 20


def check_first(
    preflight: Preflight, first: FirstDifference, cause: Cause, origin: str | None
) -> tuple[CheckFirst, ...]:
    """Return what to check before looking closer at the first difference, the nearest first.

    Args:
        cause, origin: what the explanation says of it.
    """
    if cause is Cause.UNREADABLE:
        return ()
    reached = _Reached(first, cause, origin)
    found = list(reached.weights(preflight))
    for difference in preflight.differences:
        near = reached.nearness(difference)
        if near is not None:
            found.append(CheckFirst(near, difference))
    found.sort(key=lambda check: tuple(Nearness).index(check.near))
    return tuple(found[:MAX_CHECKS])


class _Reached:
    """A finding, and what could have reached it."""

    def __init__(self, first: FirstDifference, cause: Cause, origin: str | None) -> None:
        finding, views = first.finding, first.history.sides
        self._cause, self._step, self._key = cause, finding.step, finding.key
        # Its step and rank in each of both runs.
        a, b = (OwnStep(view.run, *view.own(finding.step, finding.rank)) for view in views)
        self._sides = a, b
        self._cell = cell_of(first, origin) or None
        self._backward = first.entry is not None and first.entry.direction != "forward"
        config = a.run.config(a.rank)
        table = phases_of(config)
        self._phase: phases.Phase | None = table.get(finding.phase or "")
        self._recorded = {
            network_name(cell_name(entry.name), pair.record.path)
            for pair, _, entry in of_entries(first.pairs, io="parameters")
        }
        # The roles of which an update ran before.
        ran = {pair.event.phase for pair, f in first.before if f is not None} & {
            *phases.UPDATE_PHASES
        }
        is_later = self._step > (config.initial_step if config else 0)
        self._updated = {p.role for p in table.values() if is_later or p.name in ran}

    def weights(self, preflight: Preflight) -> Iterator[CheckFirst]:
        """Yield the initial weights that differ and are those of the finding's role."""
        for initial in preflight.weights:
            # With the cells at hand whose parameters agree, it is not the weights; but a container
            # may use those of a cell which it does not call, and which none recorded.
            cell, unrecorded = self._cell, {*initial.different} - self._recorded
            inside = "" if cell == ROOT else f"{cell}."
            unseen = cell is not None and any(name.startswith(inside) for name in unrecorded)
            may_be = self._cause is not Cause.COMPUTATION or unseen
            if initial.differ and self._concerns(phases.role_of(initial.role)) and may_be:
                yield CheckFirst(Nearness.ROLE, initial)

    def nearness(self, difference: Difference) -> Nearness | None:
        """Return how near a setting is to the finding; None if it cannot explain it."""
        if difference.is_of_recording:
            return None
        if difference.step is not None and difference.step > self._step:
            return None
        if difference.section in (MODES, CELLS):
            return self._of_cells(difference)
        if difference.section == "generation":
            return Nearness.PHASE if self._draws and self._concerns(difference.role) else None
        if difference.section == OPTIMIZERS:
            role = difference.role or ""
            after = role in self._updated and self._cause is not Cause.COMPUTATION
            return Nearness.ROLE if after and self._concerns(role) else None
        return Nearness.RUN if self._of_run(difference) else None

    def _of_cells(self, difference: Difference) -> Nearness | None:
        """Return how near an attribute of cells is, or the mode of a phase."""
        own = None if self._phase is None else self._phase.name
        if difference.section == MODES:
            if difference.phase is None:
                return Nearness.ROLE if self._concerns(difference.role) else None
            if difference.phase == own:
                return Nearness.PHASE if self._in_origin(difference) else None
            return Nearness.ROLE if self._came_of_update(difference) else None
        if difference.phases and own is not None:
            if own not in difference.phases:
                return Nearness.ROLE if self._came_of_update(difference) else None
        elif not self._concerns(difference.role):
            return None
        if not self._in_origin(difference):
            return None
        return Nearness.CELL if self._cause is Cause.COMPUTATION else Nearness.ROLE

    def _came_of_update(self, difference: Difference) -> bool:
        """Return whether it can have changed an update of the role before the finding."""
        role = difference.role
        return (
            (not difference.phases or any(p in phases.UPDATE_PHASES for p in difference.phases))
            and role in self._updated
            and self._concerns(role)
            and self._cause is not Cause.COMPUTATION
        )

    def _in_origin(self, difference: Difference) -> bool:
        """Return whether the cells of a setting are among those that the finding blames."""
        if self._cause is Cause.INPUT and self._key is None and not self._backward:
            return False  # it came from outside the cells
        if self._cause is Cause.PARAMETER:
            return (difference.role or "") in self._updated
        if self._cause is not Cause.COMPUTATION or self._cell is None or self._cell == "root":
            return True
        own = f"{self._cell}."
        if difference.section == MODES:  # a mode holds for all cells inside, too
            around = {"root", *accumulate(self._cell.split("."), "{}.{}".format)}
            if not difference.cells or around.intersection(difference.cells):
                return True
        cells = difference.cells or ("root",)
        return any(cell == self._cell or cell.startswith(own) for cell in cells)

    def _concerns(self, role: str | None) -> bool:
        """Return whether a role's network can have made what the finding shows."""
        if self._phase is not None:
            return role == self._phase.role and self._key not in phases.PROMPTS
        home = phases.key_data_home(self._key) if self._key is not None else None
        if home is not None:  # rewards, advantages, returns: from what agrees already
            return role not in phases.ROLES
        return True

    def _of_run(self, difference: Difference) -> bool:
        if difference.section == "determinism":
            return self._cause is Cause.COMPUTATION
        if difference.section == SEEDS:
            if difference.setting in GENERATOR_STATES:
                # Tokens may be drawn from a generator that was in other states then.
                drawn = self._draws and difference.setting != "random_state"
                return drawn and states_differ(*self._sides, difference.setting) is not False
            return True
        if difference.section != "configurations" or difference.is_place:
            return False
        if difference.is_of_saving:
            return False
        if self._phase is None or self._key in phases.PROMPTS:
            return True
        named = {role for role in phases.ROLES if role in difference.setting.split(".")}
        return not named or self._phase.role in named

    @property
    def _draws(self) -> bool:
        """Whether the finding is of what generation chose: responses, or a pass of its phase."""
        if self._key in phases.PROMPTS:
            return False
        return self._key in phases.INPUT_KEYS or bool(self._phase and self._phase.counts_tokens)
