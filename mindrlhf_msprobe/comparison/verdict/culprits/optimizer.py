"""Whether the optimizer's step made a parameter differ: what it was given, and what it left."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.comparison.verdict.compared_place import JudgedStep, is_filtered
from mindrlhf_msprobe.comparison.verdict.culprits.weights import (
    Differing,
    agreement_of,
    is_trained_here,
    trained_agreement,
    trained_now,
    update_before,
)
from mindrlhf_msprobe.comparison.verdict.history import History, Opened, Parameter, matched, same
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Status
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name


def optimizer(differing: Differing, history: History, runs: tuple[Run, Run]) -> Culprit | None:
    """Return what is known of the update before a parameter that differs; None without any.

    The details: `phase`, `step` and `micro_step` of the update, `updates` (how many that step has),
    `parameters` and `of` (how many differ now), `unmoved` (the run in which the update changed
    nothing, or None), `clipped` (whether the gradients were recorded as they entered the
    optimizer), `filtered` (cells were left out) and `ranks_unseen` (the gradients of other ranks
    were not recorded).
    """
    phases = history.training_phases(differing.role)
    here = differing.opened(history, 0)
    if here is None or not phases:
        return None
    if not is_trained_here(differing, here):
        after = trained_agreement(differing, history, phases)
        if after is Status.IDENTICAL:
            return None  # the trained network is right
    else:
        after = Status.DIFFERENT
    update = update_before(differing, history, here, phases)
    if update is None:
        return _not_recorded(differing, history, phases)
    step = differing.step
    if update.step != step.plan.step:
        judged = history.judged(update.step)
        if judged is None:
            return None
        step = judged
    name = matched(here.weights, update.weights).get(differing.names[0])
    begun = None if name is None else agreement_of(step, update, name)
    gradients = [] if name is None else _gradients(step, update, name)
    parameters, of = differing.counts()
    details = {
        "phase": update.phase,
        "step": update.step,
        "micro_step": update.number,
        "updates": len(history.opened(0, update.step, [update.phase])),
        "parameters": parameters,
        "of": of,
        "unmoved": _unmoved(differing, history, phases, update),
        "clipped": bool(gradients) and all(f is not None and c for f, c in gradients),
        "filtered": is_filtered(runs),
        "ranks_unseen": any(_ranks_unseen(run) for run in runs),
    }
    if any(finding is None and not clipped for finding, clipped in gradients):
        return None  # left out of the comparison
    known = [finding.status for finding, _ in gradients if finding is not None]
    if begun is None or not known or len(known) != len(gradients):
        details["weights"] = begun is not None
        return Culprit(CulpritCode.GRADIENTS_NOT_RECORDED, details)
    if any(status is not Status.IDENTICAL for status in (begun, *known)):
        return Culprit(CulpritCode.UPDATE_CLOSE, details)
    sure = after is not None and not after.agrees
    code = CulpritCode.OPTIMIZER if sure else CulpritCode.OPTIMIZER_OR_SYNCHRONISATION
    return Culprit(code, details)


def _not_recorded(differing: Differing, history: History, phases: Sequence[str]) -> Culprit | None:
    """Return which update ought to be recorded; None if there may have been none."""
    before = differing.step.plan.step - 1
    configs = [view.config(history.rank) for view in history.sides]
    if any(config is None or before < config.initial_step for config in configs):
        return None
    details = {"phase": phases[0], "step": before}
    return Culprit(CulpritCode.UPDATE_NOT_RECORDED, details)


def _gradients(
    step: JudgedStep, update: Opened, name: Parameter
) -> list[tuple[Finding | None, bool]]:
    """Return what was found of a parameter's gradients in an update, and whether they are clipped.

    With them the gradients of other parameters that do not agree bit for bit: through a norm of all
    they act on this one, too.
    """
    found: list[tuple[Finding | None, bool]] = []
    others: list[tuple[Finding | None, bool]] = []
    for pair, finding in step.judged:
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


def _unmoved(
    differing: Differing, history: History, phases: Sequence[str], update: Opened
) -> str | None:
    """Return the run in which the update changed no parameter, if it did so in the other one."""
    moved: list[int | None] = []
    for side in (0, 1):
        here = differing.opened(history, side)
        after = here
        if here is not None and not is_trained_here(differing, here):
            after = trained_now(differing, history, side, phases)
        began = [
            opened
            for opened in history.opened(side, update.step, [update.phase])
            if opened.number == update.number
        ]
        if after is None or not began:
            return None
        pairs = matched(began[0].weights, after.weights)
        answers = [same(began[0].weights[p], after.weights[q]) for p, q in pairs.items()]
        unknown = not answers or None in answers
        moved.append(None if unknown else sum(not answer for answer in answers))
    if None in moved or moved.count(0) != 1:
        return None
    return "AB"[moved.index(0)]


def _ranks_unseen(run: Run) -> bool:
    """Tell whether the job has ranks of which nothing was recorded."""
    if run.missing_ranks:
        return True
    return any(config.ranks for rank in run.ranks[:1] if (config := run.config(rank)) is not None)
