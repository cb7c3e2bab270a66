"""Some records of a place, by the part of their entries: parameters, gradients, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.storage.columns.layouts import Layout, Shared
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, is_float_dtype
from mindrlhf_msprobe.storage.journal_line import IO_OF
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name, network_name, record_name

if TYPE_CHECKING:
    from mindrlhf_msprobe.storage.columns.columns import Columns

_IDENTITY = ("dtype", "Max", "Min", "Mean", "Norm", "value")


class Rows(Shared):
    """Which records of a layout some parts are, in order; not those of operators.

    The n-th call of an operator is another one in another step, or on another rank.

    Attributes:
        names: the entry and the path of each.
        lines: the number of the entry of each.
        index: which of all records of the journal they are.
        parts: the part of its entry that each is in.
    """

    def __init__(self, layout: Layout, parts: Sequence[str]) -> None:
        super().__init__()
        self.names: list[tuple[str, str]] = []
        self.lines: list[int] = []
        self.index: list[int] = []
        self.parts: list[str] = []
        number = 0
        for line, structure in enumerate(layout.structures):
            counts = not is_operator(layout.names[line])
            for part, path in structure.places:
                if counts and part in parts:
                    self.names.append((layout.names[line], path))
                    self.lines.append(line)
                    self.index.append(number)
                    self.parts.append(part)
                number += 1
        self._kinds: Kinds | None = None
        self._kinds_of: object = None

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def numbers(self) -> np.ndarray:
        """`index` as an array."""
        return np.array(self.index, np.intp)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The parameter of each, by its name in the network."""
        found = []
        for (entry, path), part in zip(self.names, self.parts):
            own = path.removesuffix(".0") if part == PARAMETERS_GRAD else path
            found.append(network_name(cell_name(entry), own))
        return tuple(found)

    def kinds(self, of_all: tuple[list[Any], list[Any]]) -> Kinds:
        """Return dtypes and shapes of these rows, of those of all values of a journal."""
        known = self._kinds
        if known is None or self._kinds_of is not of_all:
            dtypes, shapes = ([field[index] for index in self.index] for field in of_all)
            if known is None or known.dtypes != dtypes or known.shapes != shapes:
                known = self._kinds = Kinds(self, dtypes, shapes)
            self._kinds_of = of_all
        return known


class Kinds(Shared):
    """Dtypes and shapes of rows, as JSON has them."""

    def __init__(self, rows: Rows, dtypes: list[Any], shapes: list[Any]) -> None:
        super().__init__()
        self.rows, self.dtypes, self.shapes = rows, dtypes, shapes

    @cached_property
    def are_floats(self) -> np.ndarray:
        """Which are of floating numbers."""
        return np.array([*map(is_float_dtype, self.dtypes)], bool)

    @cached_property
    def floats(self) -> Parameters:
        """The parameters of floating numbers."""
        return Parameters(self.rows, np.flatnonzero(self.are_floats))

    @cached_property
    def tensors(self) -> Parameters:
        """The parameters of any dtype."""
        return Parameters(
            self.rows, np.array([n for n, s in enumerate(self.shapes) if s is not None])
        )

    @cached_property
    def dimensions(self) -> np.ndarray:
        """How many dimensions each has; a single number has none."""
        return np.array([0 if not s or s == [1] else len(s) for s in self.shapes], np.intp)


class Parameters:
    """Parameters, or gradients of them, by name: each may have been recorded several times.

    Attributes:
        names: the parameters.
        rounds: of each parameter in turn its first record, of those that have one the second, ….
        last: the last record of each.
    """

    def __init__(self, rows: Rows, numbers: np.ndarray) -> None:
        found: dict[str, list[int]] = {}
        for number in numbers.tolist():
            found.setdefault(rows.parameters[number], []).append(number)
        self.names = tuple(found)
        rounds = zip_longest(*found.values()) if found else ()
        self.rounds = [np.array([n for n in one if n is not None], np.intp) for one in rounds]
        self.last = np.array([of[-1] for of in found.values()], np.intp)
        self.of = found
        self._other: tuple[Parameters, np.ndarray, np.ndarray] | None = None

    @property
    def first(self) -> np.ndarray:
        """The first record of each."""
        return self.rounds[0] if self.rounds else self.last

    def common(self, other: Parameters) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the names that both have, here and in the other."""
        if self._other is None or self._other[0] is not other:
            there = {name: position for position, name in enumerate(other.names)}
            pairs = [(i, there[name]) for i, name in enumerate(self.names) if name in there]
            both = np.array(pairs, np.intp).reshape(-1, 2)
            self._other = other, both[:, 0], both[:, 1]
        return self._other[1:]


class Records:
    """Some records of one phase, step and rank.

    Attributes:
        rows: which they are; one object for places with the same layout.
        kinds: their dtypes and shapes; one object for places with the same.
    """

    def __init__(self, columns: Columns, rows: Rows) -> None:
        self._values = columns.values  # the columns themselves hold these records
        self._at, self._heads = columns.at, columns.heads
        self.rows, self.kinds = rows, rows.kinds(columns.kinds)
        self._numbers: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def leaves(self) -> list[LeafJson]:
        """Their values as JSON."""
        return [self._values.leaf(index) for index in self.rows.index]

    def numbers(self, name: str) -> np.ndarray:
        """Return a statistic (`Max`, `Min`, `Mean`, `Norm`) as float64; NaN where there is none."""
        if name not in self._numbers:
            self._numbers[name] = self._values.numbers(name)[self.rows.numbers]
        return self._numbers[name]

    @cached_property
    def fingerprints(self) -> np.ndarray:
        """Their fingerprints, as objects: a text, or None."""
        found = self._values.fingerprints
        return objects([found[index] for index in self.rows.index])

    @cached_property
    def identities(self) -> np.ndarray:
        """What tells them apart, as objects: the fingerprint, else dtype, shape and statistics."""
        found = []
        for fingerprint, index in zip(self.fingerprints, self.rows.index):
            leaf = self._values.leaf(index)
            told = str(leaf.get("shape")), *(leaf.get(name) for name in _IDENTITY)
            found.append(fingerprint or told)
        return objects(found)

    def without_leaves(self) -> Records:
        """Return them with the columns that were used alone, to be kept."""
        kept = copy(self)
        del kept._values
        kept.__dict__.pop("leaves", None)
        return kept

    def place(self, number: int) -> Place:
        """Return where one of them is."""
        phase, step, rank = self._at
        (entry, path), io = self.rows.names[number], IO_OF[self.rows.parts[number]]
        time = self._heads.time(self.rows.lines[number], io)
        return Place(step, rank, phase, entry, record_name(entry, io, path), seq=time)


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return values as an array of objects of one dimension, whatever they are."""
    found = np.empty(len(values), object)
    found[:] = values
    return found
