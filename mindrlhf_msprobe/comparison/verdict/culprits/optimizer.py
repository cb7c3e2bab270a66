"""Whether the optimizer's step made a parameter differ: what it was given, and what it left."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.comparison.verdict.culprits.weights import (
    Differing,
    agreement_of,
    is_trained_here,
    step_of,
    trained_agreement,
    trained_now,
    update_before,
)
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference, StepFindings
from mindrlhf_msprobe.comparison.verdict.history import Opened, Parameter, matched, same
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Status
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name


def optimizer(differing: Differing, first: FirstDifference) -> Culprit | None:
    """Return what is known of the update before a parameter that differs; None without any.

    The details: `phase`, `step` and `micro_step` of the update, `updates` (how many that step has),
    `parameters` and `of` (how many differ now), `unmoved` (the run in which the update changed
    nothing, or None), `clipped` (whether the gradients were recorded as they entered the
    optimizer), `filtered` (cells were left out) and `ranks_unseen` (the gradients of other ranks
    were not recorded).
    """
    phases = differing.history.training_phases(differing.role)
    here = differing.opened(0)
    if here is None or not phases:
        return None
    after = _after(differing, here, phases)
    if after is Status.IDENTICAL:
        return None  # the trained network is right
    update = update_before(differing, here, phases)
    if update is None:
        return _not_recorded(differing, phases)
    step = step_of(differing, update)
    if step is None:
        return None
    name = matched(here.weights, update.weights).get(differing.names[0])
    begun, gradients = agreement_of(step, update, name), _gradients(step, update, name)
    if any(finding is None and not clipped for finding, clipped in gradients):
        return None  # left out of the comparison
    parameters, of = differing.counts()
    details = {
        "phase": update.phase,
        "step": update.step,
        "micro_step": update.number,
        "updates": len(differing.history.opened(0, update.step, [update.phase])),
        "parameters": parameters,
        "of": of,
        "unmoved": _unmoved(differing, phases, update),
        "clipped": bool(gradients) and all(f is not None and c for f, c in gradients),
        "filtered": first.filtered,
        "ranks_unseen": any(_ranks_unseen(run) for run in first.runs),
    }
    code = _code(begun, [finding for finding, _ in gradients], after)
    if code is CulpritCode.GRADIENTS_NOT_RECORDED:
        details["weights"] = begun is not None
    return Culprit(code, details)


def _after(differing: Differing, here: Opened, phases: Sequence[str]) -> Status | None:
    """Return the status of the parameter of the trained network after the update, if known."""
    if is_trained_here(differing, here):
        return Status.DIFFERENT
    return trained_agreement(differing, trained_now(differing, 0, phases))


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
    if any(status is not Status.IDENTICAL for status in (begun, *known)):
        return CulpritCode.UPDATE_CLOSE
    if after is not None and not after.agrees:
        return CulpritCode.OPTIMIZER
    return CulpritCode.OPTIMIZER_OR_SYNCHRONISATION


def _not_recorded(differing: Differing, phases: Sequence[str]) -> Culprit | None:
    """Return which update ought to be recorded; None if there may have been none."""
    before = differing.step.plan.step - 1
    configs = [view.config(differing.history.rank) for view in differing.history.sides]
    if any(config is None or before < config.initial_step for config in configs):
        return None
    details = {"phase": phases[0], "step": before}
    return Culprit(CulpritCode.UPDATE_NOT_RECORDED, details)


def _gradients(
    step: StepFindings, update: Opened, name: Parameter | None
) -> list[tuple[Finding | None, bool]]:
    """Return what was found of a parameter's gradients in an update, and whether they are clipped.

    With them the gradients of other parameters that do not agree bit for bit: through a norm of all
    they act on this one, too.
    """
    found: list[tuple[Finding | None, bool]] = []
    others: list[tuple[Finding | None, bool]] = []
    for pair, finding in step.pairs:
        entry = pair.entry
        if entry is None or entry.direction != PARAMETERS_GRAD or pair.a is None:
            continue
        if (entry.phase, entry.opening) != (update.phase, update.number):
            continue
        path = pair.a.path.partition(".")[0]
        cell = cell_name(pair.a.name.removesuffix(f".{pair.a.path}"))
        if (cell, path) == name and (finding is None or pair.b is not None):
            found.append((finding, pair.a.leaf.at_optimizer))
        elif finding is not None and finding.status is not Status.IDENTICAL:
            others.append((finding, pair.a.leaf.at_optimizer))
    return [*found, *others] if found else []


def _unmoved(differing: Differing, phases: Sequence[str], update: Opened) -> str | None:
    """Return the run in which the update changed no parameter, if it did so in the other one."""
    moved: list[int | None] = []
    for side in (0, 1):
        here = differing.opened(side)
        after = here
        if here is not None and not is_trained_here(differing, here):
            after = trained_now(differing, side, phases)
        began = differing.history.same_opening(side, update)
        if after is None or began is None:
            return None
        pairs = matched(began.weights, after.weights)
        answers = [same(began.weights[p], after.weights[q]) for p, q in pairs.items()]
        unknown = not answers or None in answers
        moved.append(None if unknown else sum(not answer for answer in answers))
    if None in moved or moved.count(0) != 1:
        return None
    return "AB"[moved.index(0)]


def _ranks_unseen(run: Run) -> bool:
    """Return whether the job has ranks of which nothing was recorded."""
    if run.missing_ranks:
        return True
    return any(config.ranks for rank in run.ranks[:1] if (config := run.config(rank)) is not None)
