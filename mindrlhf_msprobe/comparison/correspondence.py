"""What of A is what of B in one step, before names and calls are paired: one planner a kind.

To add a kind of correspondence, write its planner in a file of its own and enter it here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mindrlhf_msprobe.comparison.pairing.key_pieces import CutStep
from mindrlhf_msprobe.comparison.pairing.planner import StepData

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.steps.step_of_rank import Job


def other_framework(job: Job, made: CutStep) -> CutStep | None:
    """Bring networks of two frameworks together: names, fused cells, the layout of weights."""
    a, b = made.data
    if job.msprobe_mapping is not None or a.dialect is b.dialect:
        return None
    from mindrlhf_msprobe.comparison.pairing.frameworks.step import translate

    return translate(a, b, job.mapping, job.fused)


def other_keys(job: Job, made: CutStep) -> CutStep | None:
    """Cut the saves of a key to those of the one that it is compared with."""
    keys = {key: own for key, own in job.sides[1].keys.items() if key != own}
    if not keys:
        return None
    from mindrlhf_msprobe.comparison.pairing.key_pieces import cut_keys

    return cut_keys(*made.data, keys)


def other_micro_batches(job: Job, made: CutStep) -> CutStep | None:
    """Cut larger micro-batches, of ranks that were put together, to the smaller ones."""
    if not job.laid_out:
        return None
    from mindrlhf_msprobe.comparison.pairing.micro_batches import regrouped

    a, b = (getattr(side.layout, "micro_batches", None) for side in job.sides)  # type: ignore[attr-defined]
    return regrouped(*made.data, made.rules, (a, b))


def other_phase(job: Job, made: CutStep) -> CutStep | None:
    """Cut the larger batches of a phase to those of the one that it is compared with."""
    for shown, own in job.sides[1].phases.items():  # one phase, if any
        if shown != own:
            from mindrlhf_msprobe.comparison.pairing.micro_batches import cut

            return cut(*made.data, made.rules, (shown, own))
    return None


#: Those that give records other names or forms, each upon what the one before has made.
RENAMING = (other_framework,)
#: Those that cut records into other pieces: the first that finds something to cut.
CUTTING = (other_keys, other_micro_batches, other_phase)


def brought_together(job: Job, a: StepData, b: StepData) -> CutStep:
    """Return both sides of a step as they are compared."""
    made = CutStep((a, b), rules=job.mapping)
    for planner in RENAMING:
        made = planner(job, made) or made
    found = next((cut for planner in CUTTING if (cut := planner(job, made)) is not None), None)
    if found is None:
        return made
    notes = (*made.notes, *found.notes)
    return replace(found, rules=made.rules, across=made.across, notes=notes)
