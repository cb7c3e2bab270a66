"""The calls of a journal with what the page's maps show of each: read fast, and from any run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.storage.arrays.atomic import number_from_json
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

_DEEPEST = 100  # of nested structures
_OUTPUTS = ("output", "output_kwargs")
_RETURNED = ("output", PARAMETERS_GRAD)  # records of what a call returned


class Call(NamedTuple):
    """One call of a cell, or the gradients of its parameters.

    Attributes:
        name: the entry's.
        seq: when it began.
        norm, largest: the largest L2 norm, and the largest |value|, of what it returned; None
            where none is known.
        non_finite: how many elements of what it returned are NaN or infinite; where they were not
            counted, 1 for each tensor that holds any.
        records: how many values it has in all.
    """

    name: str
    seq: int
    norm: float | None
    largest: float | None
    non_finite: int
    records: int


def calls_of(run: Run, phase: str, step: int, rank: int) -> Iterator[Call]:
    """Yield the calls of one place in the order of the journal."""
    lines = None if run.times_are_lost(step, rank) else run.journal_lines(phase, step, rank)
    if lines is not None:
        try:
            found = [_call_of_line(loads(line)) for line in lines]
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            found = None
        if found is not None and len({call.name for call in found}) == len(found):
            yield from found
            return
    for entry in run.entries(phase, step, rank):  # another tool's, damaged, or cut off
        returned = [r.leaf.to_json() for r in entry.records if r.io in _RETURNED]
        yield Call(entry.name, entry.seq or 0, *_measured(returned), len(entry.records))


def _call_of_line(line: Mapping[str, Any]) -> Call:
    name = line["entry"]
    returned: list[Mapping[str, Any]] = []
    others: list[Mapping[str, Any]] = []
    gradients = holds_gradients(name)
    for part, value in line.items():
        _collect(value, 0, returned if gradients or part in _OUTPUTS else others)
    return Call(name, line["seq"], *_measured(returned), len(returned) + len(others))


def _collect(value: Any, depth: int, found: list[Mapping[str, Any]]) -> None:
    if type(value) is dict:
        if type(value.get("type")) is str:
            found.append(value)
            return
        items: Any = value.values()
    elif type(value) is list:
        items = value
    else:
        return
    if depth < _DEEPEST:
        for item in items:
            _collect(item, depth + 1, found)


def _measured(leaves: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None, int]:
    norm = largest = None
    non_finite = 0
    for leaf in leaves:
        if "shape" not in leaf:
            continue
        of_leaf = number(leaf.get("Norm"))
        if of_leaf is not None and (norm is None or not of_leaf <= norm):
            norm = of_leaf
        for name in ("Max", "Min"):
            value = number(leaf.get(name))
            if value is not None and (largest is None or not abs(value) <= largest):
                largest = abs(value)
        counted = leaf.get("nan_count"), leaf.get("inf_count")
        if type(counted[0]) is int and type(counted[1]) is int:
            non_finite += counted[0] + counted[1]
        elif any(
            value is not None and not math.isfinite(value)
            for value in (
                number(leaf.get("Max")),
                number(leaf.get("Min")),
                number(leaf.get("Mean")),
            )
        ):
            non_finite += 1
    return norm, largest, non_finite


def number(value: Any) -> float | None:
    """Return a statistic, as JSON has it, as a float; None if it is no number."""
    if type(value) is str:
        value = number_from_json(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return None
