"""Cells of two runs as a proposal of a mapping looks at them: each by its first call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import Entry, Record


@dataclass(frozen=True)
class Cell:
    """What is known of a cell by its first call.

    Attributes:
        place: when it ran first: 0 for the first cell, 1 for the last one.
        weights: its parameters by name, as they were recorded.
    """

    name: str
    class_name: str
    place: float
    weights: Mapping[str, Record]
    outputs: tuple[Leaf, ...]

    @property
    def parameters(self) -> dict[str, Leaf]:
        """The descriptions of its parameters, by name."""
        return {name: record.leaf for name, record in self.weights.items()}


def cells_of(entries: Iterable[Entry]) -> list[Cell]:
    """Return the cells that ran, in the order of their first calls."""
    first: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda e: e.seq):
        if entry.direction == "forward" and not is_operator(entry.name) and entry.cell != ROOT:
            first.setdefault(entry.cell, entry)
    found = []
    for number, entry in enumerate(first.values()):
        tensors = [record for record in entry.records if record.leaf.is_tensor]
        weights = {record.path: record for record in tensors if record.io == "parameters"}
        outputs = tuple(record.leaf for record in tensors if record.io == "output")
        place = number / max(len(first) - 1, 1)
        found.append(Cell(entry.cell, entry.class_name, place, weights, outputs))
    return found


def elements(leaf: Leaf) -> int:
    """Return how many elements a tensor has."""
    return math.prod(leaf.shape or ())
