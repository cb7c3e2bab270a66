"""What else differs where a rollout and a training part: faults that the first one does not hide.

Only what can be told from the first: parameters, positions, dtypes, masks and whole numbers that a
cell is given are compared by themselves, temperature by each side's own logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.mismatch.conclusion.births import GROWTH
from mindrlhf_msprobe.comparison.mismatch.conclusion.conclude import (
    OF_ROUNDING,
    lower_of,
    other_numbers,
    said_of_mask,
    said_of_weights,
    unlike_dtypes,
)
from mindrlhf_msprobe.comparison.mismatch.conclusion.positions import position_drift
from mindrlhf_msprobe.comparison.mismatch.conclusion.sampling import Sampled
from mindrlhf_msprobe.comparison.mismatch.rows.distance import roundoff
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.findings.mismatch import Cause, Stage, Weight


def also_different(
    walk: Walk,
    weights: Sequence[Weight],
    sampled: Sampled,
    cause: Cause | None,
    first: Stage | None,
    said: Messages,
) -> Messages:
    """Return what differs beside what is named first, one sentence each.

    Args:
        cause, first, said: what is named first, where, and what is said of it.
    """
    found = [*_weights(weights, cause)]
    if (drift := position_drift(walk)) is not None:
        found.append(drift)
    found += _given(walk, first)
    if cause is Cause.DTYPE and first is not None:
        found += _beyond(walk, first)
    elif not any(weight.rounded for weight in weights):
        found += _dtypes(walk)
    if cause is not Cause.SAMPLING and (temperature := sampled.temperatures(walk)) is not None:
        found.append(temperature)
    known = {one.code for one in said} | {"mismatch.rounded_weights"}
    return tuple(
        message("mismatch.also", what=one)
        for one in dict.fromkeys(found)
        if one not in said and one.code not in known
    )


def _weights(weights: Sequence[Weight], cause: Cause | None) -> list[Message]:
    """Say which parameters differ, where something else is named."""
    return [] if cause is Cause.WEIGHTS or not weights else said_of_weights(weights)


def _given(walk: Walk, first: Stage | None) -> Iterator[Message]:
    """Yield what masks let in, and whole numbers that cells are given, where error is born."""
    for name, stage in walk.stages.items():
        if stage is first or not (stage.born and stage.lasting):
            continue
        if name in walk.masks:
            yield from said_of_mask(name, walk.masks[name])
        elif name.io == "output" and (numbers := other_numbers(walk, name)) is not None:
            yield numbers


def _beyond(walk: Walk, first: Stage) -> Iterator[Message]:
    """Yield the first value, behind that named for its dtype, that no such rounding explains."""
    at = next(name for name, stage in walk.stages.items() if stage is first)
    dtype = lower_of(walk, at, first)
    for name, stage in walk.stages.items() if dtype is not None else ():
        limit = max(OF_ROUNDING * roundoff(str(dtype)), GROWTH * stage.entered)
        is_born = stage.born and stage.lasting and name not in walk.masks
        if is_born and stage is not first and stage.apart > limit:
            values = {"apart": stage.apart, "entered": stage.entered, "dtype": dtype}
            yield message("mismatch.also_beyond", name=str(name), **values)
            return


def _dtypes(walk: Walk) -> Iterator[Message]:
    """Yield the first cell that one side computes in a lower precision."""
    for name, stage in walk.stages.items():
        dtypes = unlike_dtypes(walk, name, stage) if name.io == "output" else None
        if dtypes is not None and name not in walk.masks:
            yield message("mismatch.also_dtype", cell=name.cell, **dtypes)
            return
