"""Experts of a mixture that one network keeps one by one, and the other one in one weight.

MindFormers' `GroupedMLP` has the first projections of all experts as `weight1`, [experts, hidden,
2 · intermediate], gate and up side by side, and the second ones as `weight2`, [experts,
intermediate, hidden]; its parallel core of graph mode has both with the first two axes as one.
Hugging Face has a matrix [outputs, inputs] for each. Source: `ExpertsConvertOp` of MindFormers'
`checkpoint/converter/convert_op.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mindrlhf_msprobe.comparison.pairing.composed import joined, reshaped
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import own_names
from mindrlhf_msprobe.storage.records import Record

_STACKED = re.compile(r"(.*\bexperts)\.(weight[12])")
_EXPERT = re.compile(r"(.*\bexperts)\.([0-9]+)\.([^.]+)\.weight")
#: Of each stacked weight, what networks call the projections of one expert that it holds.
_PARTS = {"weight1": own_names("gate", "up"), "weight2": own_names("down")}


class Stacked(NamedTuple):
    """A weight of all experts, and the same of the weights of each.

    Attributes:
        parts: what the projections of one expert are called.
        experts: how many there are.
    """

    whole: Record
    made: Record
    parts: tuple[str, ...]
    experts: int


def stacked_experts(wholes: Mapping[str, Record], parts: Mapping[str, Record]) -> Iterator[Stacked]:
    """Yield the stacked weights of one network that the other one has by expert.

    Args:
        wholes, parts: parameters of either network, by the names that both have of the cells.
    """
    experts: dict[str, dict[int, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    for name, record in parts.items():
        if match := _EXPERT.fullmatch(name):
            experts[match[1]][int(match[2])][match[3]] = record
    for name, record in wholes.items():
        match = _STACKED.fullmatch(name)
        if match is None or match[1] not in experts:
            continue
        own = experts[match[1]]
        for names in _PARTS[match[2]]:
            made = _stacked(record, own, names)
            if made is not None:
                yield Stacked(record, made, names, len(own))
                break


def _stacked(
    whole: Record, experts: Mapping[int, Mapping[str, Record]], names: tuple[str, ...]
) -> Record | None:
    """Return the projections of all experts as one weight; None where these are not its parts."""
    shape = whole.leaf.shape or ()
    numbers = range(len(experts))
    if any(number not in experts or not {*names} <= {*experts[number]} for number in numbers):
        return None
    each = [[experts[number][name] for name in names] for number in numbers]
    shapes = {record.leaf.shape or () for records in each for record in records}
    if len(shapes) != 1 or len(matrix := shapes.pop()) != 2:
        return None
    rows, columns = matrix[1], matrix[0] * len(names)
    if shape not in ((len(experts), rows, columns), (len(experts) * rows, columns)):
        return None
    turned = [joined(records, whole.name, turned_back=True) for records in each]
    return reshaped(joined(turned, whole.name), shape)
