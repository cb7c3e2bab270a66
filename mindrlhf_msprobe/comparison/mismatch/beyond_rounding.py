"""What is wrong beside what parts first: below the rounding of a lower dtype, and further faults.

Of further faults only what can be told from the first: parameters, positions, dtypes, masks and
whole numbers that a cell is given are compared by themselves, temperature by each side's logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.mismatch.conclude import (
    OF_ROUNDING,
    Parted,
    lower_of,
    other_numbers,
    position_drift,
    said_of_mask,
    said_of_weights,
    unlike_dtypes,
)
from mindrlhf_msprobe.comparison.mismatch.growth import GROWTH, kind_of
from mindrlhf_msprobe.comparison.mismatch.rows.pairs import explained
from mindrlhf_msprobe.comparison.mismatch.sampling import Sampled
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.pairing.names import Name, around
from mindrlhf_msprobe.findings.mismatch import Cause, Stage, Weight
from mindrlhf_msprobe.storage.arrays.npy import roundoff

_UNUSUAL = 4.0  # times what the others of its kind make of what enters them
_PASSED_ON = 4.0  # times what entered: what a cell of any kind may make of it


def beyond_rounding(walk: Walk, dtype: str) -> Message | None:
    """Say of which value rounding to a dtype does not explain how far apart it is.

    It is further apart than one operation's rounding and what entered explain, and grew more than
    in all other layers, and so did the cell around it: what does not last is nobody's fault.

    Returns:
        None where there is none.
    """
    stages = walk.stages
    unusual = {name: of for name in stages if (of := _usual(stages, name, dtype)) is not None}
    for name, usual in unusual.items():
        # The nearest cell around it that returned something must have returned that, too.
        cells = [cell for cell in around(name.cell) if cell != "root"]
        each = ([n for n in stages if n.cell == cell and n.io == "output"] for cell in cells)
        returned = next(filter(None, each), [name])
        if unusual.keys().isdisjoint(returned):
            continue
        known = {other.cell for other in stages}
        outer = next((cell for cell in around(name.cell) if cell in known), "root")
        values = {"name": str(name), "cell": name.cell, "io": name.io, "around": outer}
        times = {"growth": stages[name].growth, "usual": usual, "dtype": dtype.lower()}
        return message("mismatch.beyond_rounding", **values, **times)
    return None


def _usual(stages: Mapping[Name, Stage], name: Name, dtype: str) -> float | None:
    """Return how much values of its kind grow at most, of one that grew unusually; None of others.

    Args:
        dtype: whose rounding explains a distance, beside what entered.
    """
    stage = stages[name]
    if stage.apart <= explained(dtype, 1) + _PASSED_ON * stage.entered:
        return None
    kind = kind_of(name)
    others = [of.growth for n, of in stages.items() if n != name and kind_of(n) == kind]
    return max(others) if others and stage.growth > _UNUSUAL * max(others) else None


def rounded_to(weights: Sequence[Weight]) -> str | None:
    """Return the lowest dtype to which weights are rounded; None where one differs by more."""
    dtypes = [weight.rounded for weight in weights]
    if not dtypes or None in dtypes:
        return None
    return max((str(dtype) for dtype in dtypes), key=roundoff)


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
    found = [] if cause is Cause.WEIGHTS else said_of_weights(weights)
    if (drift := position_drift(walk)) is not None:
        found.append(drift)
    found += _given(walk, first)
    if cause is Cause.DTYPE and first is not None:
        found += _beyond(walk, first)
    elif not any(weight.rounded for weight in weights):
        # The first cell that one side computes in a lower precision.
        outputs = (n for n in walk.stages if n.io == "output" and n not in walk.masks)
        unlike = ((name.cell, unlike_dtypes(walk, name, walk.stages[name])) for name in outputs)
        cell, dtypes = next((of for of in unlike if of[1] is not None), ("", None))
        found += [] if dtypes is None else [message("mismatch.also_dtype", cell=cell, **dtypes)]
    if cause is not Cause.SAMPLING and (temperature := sampled.temperatures(walk)) is not None:
        found.append(temperature)
    known = {one.code for one in said} | {"mismatch.rounded_weights"}
    return tuple(
        message("mismatch.also", what=one)
        for one in dict.fromkeys(found)
        if one not in said and one.code not in known
    )


def _given(walk: Walk, first: Stage | None) -> Iterator[Message]:
    """Yield what masks let in, and whole numbers that cells are given, where an error begins."""
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
    dtype = lower_of(Parted(walk, at, first))
    for name, stage in walk.stages.items() if dtype is not None else ():
        limit = max(OF_ROUNDING * roundoff(str(dtype)), GROWTH * stage.entered)
        begins = stage.born and stage.lasting and name not in walk.masks
        if begins and stage is not first and stage.apart > limit:
            values = {"apart": stage.apart, "entered": stage.entered, "dtype": dtype}
            yield message("mismatch.also_beyond", name=str(name), **values)
            return
