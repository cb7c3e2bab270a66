"""The records of a journal as columns: read once, shared by rules.

From step to step a journal holds the same records with other numbers. What follows from their names
alone is computed once for all journals that are alike (`Layout`, `Rows`); the rest are arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np

from mindrlhf_msprobe.findings.health import Place
from mindrlhf_msprobe.storage.journal_line import PARTS, holds_gradients
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.leaf_json import (
    DEEPEST,
    LeafJson,
    LeafKinds,
    is_float_dtype,
    statistic,
    values_of,
)
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

_T = TypeVar("_T")
_MOST_STRUCTURES = 4096
_IDENTITY = ("dtype", "Max", "Min", "Mean", "Norm", "value")

#: What the values of one entry are: part (`output`, `parameters`, …) and path of each, in order.
Structure = tuple[tuple[str, str], ...]


class _Shared:
    """Something that journals have in common, with what was computed of it."""

    def __init__(self) -> None:
        self._computed: dict[Callable[..., Any], Any] = {}

    def once(self, function: Callable[[Any], _T]) -> _T:
        """Return a function of it, which is called the first time alone."""
        if function not in self._computed:
            self._computed[function] = function(self)
        found: _T = self._computed[function]
        return found


class Layout(_Shared):
    """What journals that are alike have in common.

    Attributes:
        names: of the entries, in the order of the lines.
        structures: theirs.
    """

    def __init__(self, names: list[str], structures: list[Structure]) -> None:
        super().__init__()
        self.names, self.structures = names, structures
        self._rows: dict[tuple[str, ...], Rows] = {}
        self._kinds: LeafKinds | None = None

    def kinds(self, leaves: Sequence[LeafJson]) -> LeafKinds | None:
        """Return what the leaves of such a journal are; None if some are none.

        It is the same object for journals that are alike: then nothing more is looked at.
        """
        kinds = LeafKinds.of(leaves)
        if kinds != self._kinds:
            if not kinds.are_of_leaves():
                return None
            self._kinds = kinds
        return self._kinds

    @cached_property
    def of_cells(self) -> list[str]:
        """The names of the entries that are not those of operators."""
        return [name for name in self.names if not is_operator(name)]

    def rows(self, *parts: str) -> Rows:
        """Return the records of these parts."""
        if parts not in self._rows:
            self._rows[parts] = Rows(self, parts)
        return self._rows[parts]


class Layouts:
    """The last layout of each phase and rank: those that are alike are one object."""

    def __init__(self) -> None:
        self._last: dict[str, dict[int, Layout]] = {}
        self._structures: dict[tuple[Any, ...], Structure] = {}

    def structure(self, line: Mapping[str, Any], leaves: list[LeafJson]) -> Structure:
        """Return what a line holds, and add its leaves."""
        name, start = line["entry"], len(leaves)
        parts: Sequence[str] = PARTS
        if PARAMETERS_GRAD in name and holds_gradients(name):
            parts = (PARAMETERS_GRAD,) if type(line.get(PARAMETERS_GRAD)) is dict else ()
        shape: list[Any] = []
        for part in parts:
            value = line.get(part)
            if value:
                shape.append(part)
                _add(value, shape, leaves, start, 0)
        key = tuple(shape)
        structure = self._structures.get(key)
        if structure is None:
            if len(self._structures) >= _MOST_STRUCTURES:
                self._structures.clear()
            structure = self._structures[key] = _structure(line)
        return structure

    def layout(
        self, phase: str, rank: int, names: list[str], structures: list[Structure]
    ) -> Layout:
        """Return the layout of a journal: that of the step before, or of another rank, if alike."""
        known = self._last.setdefault(phase, {})
        own = known.get(rank)
        others = {id(one): one for one in known.values() if one is not own}
        for one in ([] if own is None else [own]) + [*others.values()]:
            if one.structures == structures and one.names == names:
                known[rank] = one
                return one
        made = known[rank] = Layout(names, structures)
        return made


def _add(value: Any, shape: list[Any], leaves: list[LeafJson], start: int, depth: int) -> None:
    """Add the leaves of a value, as `values.flat` finds them, and what tells where they are."""
    items: Iterable[Any]
    if type(value) is list:
        shape.append(len(value))
        items = value
    elif type(value) is dict:
        if type(value.get("type")) is str:
            leaves.append(value)
            return
        shape.append(tuple(value))
        items = value.values()
    else:
        shape.append(None)
        return
    for item in items:
        if type(item) is dict and type(item.get("type")) is str:
            leaves.append(item)
        else:
            shape.append(len(leaves) - start)
            if item and depth < DEEPEST:
                _add(item, shape, leaves, start, depth + 1)
            else:
                shape.append(None)


def _structure(line: Mapping[str, Any]) -> Structure:
    return tuple((part, path) for part, path, _ in values_of(line))


class Rows(_Shared):
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
            for part, path in structure:
                if counts and part in parts:
                    self.names.append((layout.names[line], path))
                    self.lines.append(line)
                    self.index.append(number)
                    self.parts.append(part)
                number += 1
        self._kinds: Kinds | None = None
        self._kinds_of: LeafKinds | None = None

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The parameter of each, by its name in the network."""
        return tuple(map(_parameter_of, self.names, self.parts))

    def kinds(self, leaves: LeafKinds) -> Kinds:
        """Return dtypes and shapes of these rows of a journal's leaves."""
        known = self._kinds
        if known is None or self._kinds_of is not leaves:
            dtypes = [leaves.dtypes[index] for index in self.index]
            shapes = [leaves.shapes[index] for index in self.index]
            if known is None or known.dtypes != dtypes or known.shapes != shapes:
                known = self._kinds = Kinds(self, dtypes, shapes)
            self._kinds_of = leaves
        return known


def _parameter_of(name: tuple[str, str], part: str) -> str:
    entry, path = name
    cell = Entry(entry, "", 0, 0, 0, None).cell
    own = path.removesuffix(".0") if part == PARAMETERS_GRAD else path
    return own if cell == "root" else f"{cell}.{own}"


class Kinds(_Shared):
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
    """Records of one journal as columns.

    Attributes:
        rows: which they are; the same object for journals that are alike.
        leaves: their leaves.
        kinds: their dtypes and shapes; the same object for journals that are alike.
    """

    def __init__(
        self,
        at: tuple[str, int, int],
        rows: Rows,
        leaves: list[LeafJson],
        times: list[tuple[int, int | None]],
        kinds: Kinds,
    ) -> None:
        self._at, self.rows, self.leaves, self._times = at, rows, leaves, times
        self.kinds = kinds
        self._numbers: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.leaves)

    def numbers(self, name: str) -> np.ndarray:
        """Return a statistic (`Max`, `Min`, `Mean`, `Norm`) as float64; NaN where there is none."""
        if name not in self._numbers:
            values = [leaf.get(name) for leaf in self.leaves]
            try:
                found = np.array(values, np.float64)
            except (TypeError, ValueError):
                found = np.array([statistic(leaf, name) for leaf in self.leaves], np.float64)
            self._numbers[name] = found
        return self._numbers[name]

    @cached_property
    def fingerprints(self) -> np.ndarray:
        """Their fingerprints, as objects: a text, or None."""
        return objects([leaf.get("fingerprint") or leaf.get("md5") for leaf in self.leaves])

    @cached_property
    def identities(self) -> np.ndarray:
        """What tells them apart, as objects: the fingerprint, else dtype, shape and statistics."""
        return objects(
            [found or _identity(leaf) for found, leaf in zip(self.fingerprints, self.leaves)]
        )

    def without_leaves(self) -> Records:
        """Return them with the columns that were asked for alone, to be kept."""
        kept = copy(self)
        kept.leaves = []
        return kept

    def place(self, number: int) -> Place:
        """Return where one of them is."""
        phase, step, rank = self._at
        (entry, path), part = self.rows.names[number], self.rows.parts[number]
        io = part.partition("_")[0]
        head = entry if part == PARAMETERS_GRAD else f"{entry}.{io}"
        seq, end = self._times[number]
        begins = end is None or (io in ("input", "parameters") and part != PARAMETERS_GRAD)
        time = seq if begins else end
        return Place(step, rank, phase, entry, f"{head}.{path}" if path else head, seq=time)


def _identity(leaf: LeafJson) -> tuple[Any, ...]:
    return str(leaf.get("shape")), *(leaf.get(name) for name in _IDENTITY)


class Named:
    """Arrays with a place for each name, as rules keep them from step to step."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}
        self._last: dict[Hashable, tuple[Any, np.ndarray]] = {}
        self._columns: dict[Hashable, np.ndarray] = {}

    @property
    def names(self) -> list[Any]:
        """The names in the order of their places."""
        return [*self._places]

    def places(self, names: Sequence[Hashable], whose: Hashable = None) -> np.ndarray:
        """Return the place of each name, a new one for those that were never seen.

        Args:
            whose: for the same names, one object, as last time of the same the answer is at hand.
        """
        last = self._last.get(whose)
        if last is None or last[0] is not names:
            known = self._places
            found = np.array([known.setdefault(name, len(known)) for name in names], np.intp)
            last = self._last[whose] = names, found
        return last[1]

    def column(self, name: Hashable, fill: Any) -> np.ndarray:
        """Return an array, a row a place, to be changed in place; new rows hold `fill`."""
        array = self._columns.get(name)
        count = len(self._places) - (0 if array is None else len(array))
        if array is None or count:
            kind = object if isinstance(fill, str) else None
            new = np.full((count, *np.shape(fill)), fill, kind)
            array = self._columns[name] = new if array is None else np.concatenate([array, new])
        return array


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return values as an array of objects of one dimension, whatever they are."""
    found = np.empty(len(values), object)
    found[:] = values
    return found


_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=1 << 16)
def pattern_of(name: str) -> str:
    """Return what names have in common that differ in numbers alone."""
    return _NUMBER.sub("#", name)
