"""What of A is what of B in one step, before names and calls are paired: one planner a kind.

To add a kind of correspondence, write its planner in a file of its own and enter it here.
"""

from __future__ import annotations

from dataclasses import replace

from mindrlhf_msprobe.comparison.pairing.mapping import CellMapping
from mindrlhf_msprobe.comparison.pairing.planner import CutStep, StepData
from mindrlhf_msprobe.comparison.pairing.view import View

_Sides = tuple[View, View]


def other_framework(mapping: CellMapping, made: CutStep) -> CutStep | None:
    """Bring networks of two frameworks together: names, fused cells, the layout of weights."""
    a, b = made.data
    if a.dialect is b.dialect:
        return None
    from mindrlhf_msprobe.comparison.pairing.frameworks.step import translate

    return translate(a, b, mapping.names, mapping.fused)


def other_keys(sides: _Sides, made: CutStep) -> CutStep | None:
    """Cut the saves of a key to those of the one that it is compared with."""
    keys = {key: own for key, own in sides[1].keys.items() if key != own}
    if not keys:
        return None
    from mindrlhf_msprobe.comparison.pairing.micro_batches import cut_keys

    return cut_keys(*made.data, keys)


def other_micro_batches(sides: _Sides, made: CutStep) -> CutStep | None:
    """Cut larger micro-batches, of ranks that were put together, to the smaller ones."""
    if type(sides[0]) is View:
        return None
    from mindrlhf_msprobe.comparison.pairing.micro_batches import regrouped

    a, b = (getattr(side.layout, "micro_batches", None) for side in sides)  # type: ignore[attr-defined]
    return regrouped(*made.data, made.rules, (a, b))


def other_phase(sides: _Sides, made: CutStep) -> CutStep | None:
    """Cut the larger batches of a phase to those of the one that it is compared with."""
    for shown, own in sides[1].phases.items():  # one phase, if any
        if shown != own:
            from mindrlhf_msprobe.comparison.pairing.micro_batches import cut

            return cut(*made.data, made.rules, (shown, own))
    return None


#: Those that give records other names or forms, each upon what the one before has made.
RENAMING = (other_framework,)
#: Those that cut records into other pieces: the first that finds something to cut.
CUTTING = (other_keys, other_micro_batches, other_phase)


def brought_together(
    sides: _Sides, mapping: CellMapping, a: StepData, b: StepData, *, by_name: bool
) -> CutStep:
    """Return both sides of a step as they are compared.

    Args:
        mapping: what the caller says of names, and of cells that are several.
        by_name: entries of one name are compared, and no others.
    """
    made = CutStep((a, b), rules=mapping.names)
    for planner in () if by_name else RENAMING:
        made = planner(mapping, made) or made
    found = next((cut for planner in CUTTING if (cut := planner(sides, made)) is not None), None)
    if found is None:
        return made
    notes = (*made.notes, *found.notes)
    return replace(found, rules=made.rules, across=made.across, notes=notes)
