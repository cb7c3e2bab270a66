"""Low-rank adapters (LoRA) beside a weight of one network that the other has merged into its own.

W' = W + f · B A, where A is [r, inputs] and B [outputs, r], or either is transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.names import around
from mindrlhf_msprobe.findings.mismatch import is_around
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, roundoff
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter, network_name

_Shape = tuple[int, ...]
_Pair = tuple[str, str]
#: The cell in which PEFT wraps the layer that gets adapters.
_WRAPPED = ".base_layer"
#: Times a roundoff, relative to the weight: so far may merging round, and a cast behind it.
_OF_MERGING, _OF_A_CAST = 8.0, 1.01


@dataclass(frozen=True)
class Adapters:
    """What one network has beside a weight, and the other has merged into it.

    Attributes:
        names: of both factors, of each part of the weight that has them.
        of_training: whether the training network has them; else the rollout network.
        factor: times what the first product was added; None where no elements say it: then what
            the cell returns must.
    """

    names: tuple[str, ...]
    of_training: bool
    factor: float | None = None


@dataclass(frozen=True)
class Merging:
    """A weight that may hold what adapters add to others.

    Attributes:
        whole: the weight.
        parts: those that it is made of, one behind the other, by name; one, unless it is fused.
        order: which row of the parts each of its rows is; None: as they are.
        turned: whether its columns are its rows; and those of the parts theirs.
    """

    whole: Record
    parts: Mapping[str, Record]
    order: np.ndarray | None = None
    turned: tuple[bool, bool] = (False, False)

    def by(self, others: Mapping[str, Record], *, of_training: bool) -> Adapters | None:
        """Return the adapters that it holds, or may where no elements say it; None if it does not.

        Args:
            others: what the network of the parts has, and the other network has not, by name.
            of_training: whether that is the training network.
        """
        turned = self.turned[1]
        fitting = {
            n: [*_fitting(n, shape_of(part, turned=turned), others)]
            for n, part in self.parts.items()
        }
        near = tuple(name for pairs in fitting.values() for pair in pairs[:1] for name in pair)
        if not near:
            return None
        stored = (self.whole, *self.parts.values(), *(others[name] for name in near))
        if any(record.location is None for record in stored):
            return Adapters(near, of_training)
        held: list[tuple[_Pair, float]] = []
        try:
            own = _values(self.whole, turned=self.turned[0])
            parts = {n: _values(part, turned=turned) for n, part in self.parts.items()}
            if self.order is not None:
                own = own[np.argsort(self.order)]
            pieces = np.split(own, np.cumsum([len(part) for part in parts.values()])[:-1])
            for (name, part), piece in zip(parts.items(), pieces):
                added = piece - part
                lowest = max(roundoff(r.leaf.dtype) for r in (self.whole, self.parts[name]))
                rounding = max(_OF_MERGING * roundoff("float32"), _OF_A_CAST * lowest)
                allowed = rounding * float(np.linalg.norm(part))
                if (pair := _of_adapters(added, fitting[name], others, allowed)) is not None:
                    held.append(pair)
                elif not np.linalg.norm(added) <= allowed:
                    return None  # it has more than its part, and that is something else
        except ArrayFileError:
            return Adapters(near, of_training)
        if not held:
            return None
        return Adapters(tuple(n for pair, _ in held for n in pair), of_training, held[0][1])

    def lacks(self, others: Mapping[str, Record], factor: float) -> tuple[_Pair, float] | None:
        """Return the adapters of its cell that it does not hold, and how large their product is.

        Of a weight that is its part, which has adapters in its own cell or inside it; None where it
        has none, or they add nothing.

        Args:
            others: as of `by`.
            factor: times what the products of other weights were added.

        Returns:
            their names, and the norm of what they add relative to that of the weight.
        """
        ((name, part),) = self.parts.items()
        cell = cell_of_parameter(outer_name(name))
        own = {
            other: record
            for other, record in others.items()
            if cell == cell_of_parameter(other) or is_around(cell, cell_of_parameter(other))
        }
        try:
            size = float(np.linalg.norm(_values(part)))
            for pair in _fitting(name, shape_of(part), own):
                x, y = (_values(own[of]) for of in pair)
                for both in _products(x, y, shape_of(part)):
                    added = abs(factor) * float(np.linalg.norm(both))
                    return (pair, added / size) if added and size else None
        except ArrayFileError:
            pass
        return None


def _of_adapters(
    added: np.ndarray, pairs: Sequence[_Pair], others: Mapping[str, Record], allowed: float
) -> tuple[_Pair, float] | None:
    """Return the adapters whose product was added to a weight, and times what; None if none was.

    Raises:
        ArrayFileError: they cannot be read.
    """
    for pair in pairs if added.any() else ():
        x, y = (_values(others[of]) for of in pair)
        for both in _products(x, y, added.shape):
            squared = np.vdot(both, both)
            factor = float(np.vdot(both, added) / squared) if squared else 0.0
            if np.linalg.norm(added - factor * both) <= allowed:
                return pair, factor
    return None


def shape_of(record: Record, *, turned: bool = False) -> _Shape:
    """Return the shape of a weight, with outputs before inputs: it is `turned` where it has not."""
    return (record.leaf.shape or ())[:: -1 if turned else 1]


def outer_name(parameter: str) -> str:
    """Return the name that a parameter would have if no adapters wrapped its layer.

    `q_proj.base_layer.weight` is `q_proj.weight`.
    """
    cell, _, own = parameter.rpartition(".")
    return network_name(cell.removesuffix(_WRAPPED), own)


def _values(record: Record, *, turned: bool = False) -> np.ndarray:
    values = np.asarray(record.array(), np.float64)
    return values.T if turned else values


def _fitting(name: str, shape: _Shape, others: Mapping[str, Record]) -> Iterator[_Pair]:
    """Yield matrices of a weight's cell, inside it or beside it, whose product has its shape."""
    cell = cell_of_parameter(outer_name(name))
    near = {
        other: own
        for other, record in others.items()
        if len(own := record.leaf.shape or ()) == 2
        and (
            (near_cell := cell_of_parameter(other)) == cell
            or is_around(cell, near_cell)
            or around(cell)[:1] == around(near_cell)[:1]
        )
    }
    for pair in permutations(near, 2):
        if len(shape) == 2 and [*_oriented(near[pair[0]], near[pair[1]], shape)]:
            yield pair


def _oriented(x: _Shape, y: _Shape, shape: _Shape) -> Iterator[tuple[bool, bool]]:
    """Yield whether two matrices are transposed to multiply to a shape, with a rank below it."""
    for of_x, of_y in product((False, True), repeat=2):
        (rows, rank), (also, columns) = x[:: -1 if of_x else 1], y[:: -1 if of_y else 1]
        if rank == also < min(shape) and (rows, columns) == shape:
            yield of_x, of_y


def _products(x: np.ndarray, y: np.ndarray, shape: _Shape) -> Iterator[np.ndarray]:
    for turned in _oriented(x.shape, y.shape, shape):
        a, b = (of.T if t else of for of, t in zip((x, y), turned))
        yield a @ b
