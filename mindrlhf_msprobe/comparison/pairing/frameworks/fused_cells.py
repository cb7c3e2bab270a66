"""Which cell of one run may be several of the other: by shapes that sum up, and by statistics."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.names import NUMBER
from mindrlhf_msprobe.comparison.mismatch.weights.fused import PRESETS, find_fused
from mindrlhf_msprobe.comparison.mismatch.weights.mapping import interleaved
from mindrlhf_msprobe.comparison.pairing.frameworks.cells import Cell, elements
from mindrlhf_msprobe.comparison.pairing.frameworks.joined import together
from mindrlhf_msprobe.comparison.pairing.operators import may_be_one
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import network_name

_MOST_PARTS = 4
_MOST_CANDIDATES = 16  # of one layer


@dataclass(frozen=True)
class FusedCell:
    """A cell of one run that does what several of the other do.

    Attributes:
        groups: how many times the parts alternate in its rows; 0 where only their elements, which
            were not recorded, would tell it.
        values, compared: of the weights and outputs that were compared, how many agree.
        usual: whether cells that are fused are usually called so.
    """

    cell: Cell
    parts: tuple[Cell, ...]
    groups: int
    values: int
    compared: int
    usual: bool


def fused_cells(fused: Sequence[Cell], parts: Sequence[Cell]) -> Iterator[FusedCell]:
    """Yield the cells of one run that are several of the other one.

    Only cells are looked at whose weights the other run has in no cell of its own.
    """
    left, whole = _alone(parts, fused), _alone(fused, parts)
    by_layer: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for part in left:
        by_layer[tuple(NUMBER.findall(part.name))].append(part)
    taken: set[str] = set()
    for cell in whole:
        near = [p for p in by_layer[tuple(NUMBER.findall(cell.name))] if p.name not in taken]
        if len(near) > _MOST_CANDIDATES:
            continue
        found = next(_made_of(cell, near), None)
        if found is not None:
            taken |= {part.name for part in found.parts}
            yield found


def _alone(cells: Sequence[Cell], others: Sequence[Cell]) -> list[Cell]:
    """Return the cells with a matrix that no cell of the other run has."""
    theirs = [leaf for other in others if (leaf := _matrix(other)) is not None]
    return [
        cell
        for cell in cells
        if (own := _matrix(cell)) is not None and not any(may_be_one(own, leaf) for leaf in theirs)
    ]


def _matrix(cell: Cell) -> Leaf | None:
    """Return the weight of a cell that has one matrix, and no table of an embedding."""
    found = [leaf for leaf in cell.parameters.values() if len(leaf.shape or ()) == 2]
    return found[0] if len(found) == 1 and not found[0].is_discrete else None


def _made_of(cell: Cell, near: Sequence[Cell]) -> Iterator[FusedCell]:
    own = _matrix(cell)
    assert own is not None
    for count in range(2, _MOST_PARTS + 1):
        for parts in itertools.combinations(near, count):
            leaves = [leaf for part in parts if (leaf := _matrix(part)) is not None]
            if len({part.name.rpartition(".")[0] for part in parts}) > 1:
                continue
            if not _sums_up(own, leaves) or not may_be_one(own, _whole(own, leaves)):
                continue
            outputs = [part.outputs[0] for part in parts if part.outputs]
            compared = values = 1
            if cell.outputs and len(outputs) == len(parts):
                compared += 1
                values += may_be_one(cell.outputs[0], _whole(cell.outputs[0], outputs))
            ordered, groups = _order(cell, parts)
            yield FusedCell(cell, ordered, groups, values, compared, _usual(cell, ordered))


def _sums_up(whole: Leaf, parts: Sequence[Leaf]) -> bool:
    """Return whether the rows of matrices sum up to those of one, either of them transposed."""
    shape = whole.shape or ()
    for own, others in itertools.product((1, -1), repeat=2):
        rows, inputs = shape[::own]
        turned = [(leaf.shape or ())[::others] for leaf in parts]
        if sum(part[0] for part in turned) == rows and {p[1] for p in turned} == {inputs}:
            return True
    return False


def _whole(whole: Leaf, parts: Sequence[Leaf]) -> Leaf:
    """Return what the statistics of parts say of the whole."""
    fits = sum(map(elements, parts)) == elements(whole)
    return together(parts, whole.shape or () if fits else (0,))


def _order(cell: Cell, parts: Sequence[Cell]) -> tuple[tuple[Cell, ...], int]:
    """Return the parts in the order in which they stand in the fused weight, and the groups."""
    mine = {network_name(cell.name, path): r for path, r in cell.weights.items()}
    theirs = {network_name(p.name, path): r for p in parts for path, r in p.weights.items()}
    stored = all(record.location is not None for record in (*mine.values(), *theirs.values()))
    fused = find_fused(mine, theirs).get(cell.name) if stored else None
    by_name = {part.name: part for part in parts}
    if fused is None or {*fused.parts} != {*by_name}:
        return tuple(parts), 0
    ordered = tuple(by_name[name] for name in fused.parts)
    axis = int(fused.parts_transposed)
    sizes = [(leaf.shape or ())[axis] for part in ordered if (leaf := _matrix(part)) is not None]
    return ordered, _groups(sizes, fused.order)


def _groups(sizes: Sequence[int], order: np.ndarray) -> int:
    """Return how many times parts of these rows alternate in an order; 0: they do not evenly."""
    for groups in range(1, math.gcd(*sizes) + 1):
        rows = interleaved(sizes, groups)
        if rows is not None and np.array_equal(rows, order):
            return groups
    return 0


def _usual(cell: Cell, parts: Sequence[Cell]) -> bool:
    own = cell.name.rpartition(".")[2]
    names = {part.name.rpartition(".")[2] for part in parts}
    return any(own in fused and any({*each} == names for each in of) for fused, of in PRESETS)
