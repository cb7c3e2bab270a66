"""What journals have in common: names of entries, and which values each holds.

From step to step a journal holds the same records with other numbers. What follows from their names
alone is computed once for all journals with the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson
from mindrlhf_msprobe.storage.journal_line import PARTS, JournalLine, holds_gradients
from mindrlhf_msprobe.storage.leaves import child_path
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

_T = TypeVar("_T")


class Structure(NamedTuple):
    """What the values of one entry are.

    Attributes:
        places: part (`output`, `parameters`, …) and path of each, in order.
        whole: whether its line holds nothing else, such as null.
    """

    places: tuple[tuple[str, str], ...]
    whole: bool


class Shared:
    """Something that journals have in common, with what was computed of it."""

    def __init__(self) -> None:
        self._computed: dict[tuple[Any, ...], Any] = {}

    def once(self, function: Callable[..., _T], *more: Hashable) -> _T:
        """Return a function of it, and of more, which is called the first time alone."""
        key = function, *more
        if key not in self._computed:
            self._computed[key] = function(self, *more)
        found: _T = self._computed[key]
        return found


class Layout(Shared):
    """What journals with the same entries and values have in common.

    Attributes:
        names: of the entries, in the order of the lines.
        structures: theirs, in the same order.
        first: the number of the first row of each entry, then that of all rows.
        kinds: dtype and shape of each value of the last journal of which they were wanted.
    """

    def __init__(self, names: list[str], structures: list[Structure]) -> None:
        super().__init__()
        self.names, self.structures = names, structures
        self.first = np.cumsum([0, *(len(one.places) for one in structures)])
        self.kinds: tuple[list[Any], list[Any]] | None = None

    @cached_property
    def of_cells(self) -> list[str]:
        """The names of the entries that are not those of operators."""
        return [name for name in self.names if not is_operator(name)]


class Layouts:
    """The last layout of each phase and rank: equal ones are one object."""

    def __init__(self) -> None:
        self._last: dict[str, dict[Hashable, Layout]] = {}
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
            if len(self._structures) >= 4096:
                self._structures.clear()
            of_parts = [(part, "", line.get(part)) for part in parts]
            if parts == (PARAMETERS_GRAD,):
                of_parts = [*JournalLine(name, 0, values=dict(line)).parts()]
            places = tuple((part, path) for part, at, held in of_parts for path in _paths(held, at))
            structure = self._structures[key] = Structure(places, None not in key)
        return structure

    def layout(
        self, phase: str, whose: Hashable, names: list[str], structures: list[Structure]
    ) -> Layout:
        """Return the layout of a journal: that of the step before, or of another rank, if equal.

        Args:
            whose: the run and the rank.
        """
        known = self._last.setdefault(phase, {})
        own = known.get(whose)
        others = {id(one): one for one in known.values() if one is not own}
        for one in ([] if own is None else [own]) + [*others.values()]:
            if one.structures == structures and one.names == names:
                known[whose] = one
                return one
        made = known[whose] = Layout(names, structures)
        return made


def _add(value: Any, shape: list[Any], leaves: list[LeafJson], start: int, depth: int) -> None:
    """Add the leaves of a value, as `_paths` finds them, and what tells where they are."""
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
            if item and depth < bounds.DEPTH:
                _add(item, shape, leaves, start, depth + 1)
            else:
                shape.append(None)


def _paths(value: Any, path: str, depth: int = 0) -> Iterator[str]:
    """Yield the paths of the leaves of a value, those that are tensors or hold a value."""
    if type(value) is dict and type(value.get("type")) is str:
        yield path
    elif type(value) in (dict, list) and depth <= bounds.DEPTH:
        for name, item in value.items() if type(value) is dict else enumerate(value):
            yield from _paths(item, child_path(path, name), depth + 1)


def record_names(layout: Layout) -> list[str]:
    """Return the full name of each record."""
    return [
        f"{name}.{path}" if part == PARAMETERS_GRAD else f"{name}.{part.partition('_')[0]}.{path}"
        for name, structure in zip(layout.names, layout.structures)
        for part, path in structure.places
    ]
