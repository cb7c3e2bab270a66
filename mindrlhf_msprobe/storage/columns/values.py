"""The values of one phase, step and rank, field by field: a row a value."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.columns.leaf_json import (
    COUNTS,
    STATISTICS,
    LeafJson,
    are_moderate,
    is_ordinary,
    is_usual,
    statistic,
)

_TEXT, _COUNT, _NUMBER = (str, NoneType), (int, NoneType), (float, int, bool, str, NoneType)
#: The types of what is read of a leaf.
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("dtype", "fingerprint", "md5", "data_name", "signs"), _TEXT),
    **dict.fromkeys(COUNTS, _COUNT),
    **dict.fromkeys(STATISTICS, _NUMBER),
    "shape": (list, NoneType),
}
_FINGERPRINTS = ("fingerprint", "md5")


class Values:
    """Values as JSON objects, of which a field is a list, or an array."""

    def __init__(self, leaves: list[LeafJson]) -> None:
        self._leaves = leaves
        self._fields: dict[str, list[Any]] = {}
        self._numbers: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._leaves)

    def leaf(self, row: int) -> LeafJson:
        """Return a value as JSON."""
        return self._leaves[row]

    def field(self, name: str) -> list[Any]:
        """Return one field of all values as JSON has it, or None."""
        found = self._fields.get(name)
        if found is None:
            found = self._fields[name] = [leaf.get(name) for leaf in self._leaves]
        return found

    def holds(self, name: str) -> bool:
        """Return whether a value has a field of this name that is not None."""
        return any(value is not None for value in self.field(name))

    @cached_property
    def are_whole(self) -> bool:
        """Whether fields have the types that those of values have, in no damaged line."""
        for name in {*chain.from_iterable({*self._forms})} & _TYPES.keys():
            if not {*map(type, self.field(name))} <= {*_TYPES[name]}:
                return False
        sizes = [*chain.from_iterable(filter(None, self.field("shape")))]
        return {*map(type, sizes)} <= {int} and min(sizes, default=0) >= 0

    def numbers(self, name: str) -> np.ndarray:
        """Return a statistic (`Max`, `Min`, `Mean`, `Norm`) as float64; NaN where there is none."""
        if name not in self._numbers:
            try:
                found = np.array(self.field(name), np.float64)
            except (TypeError, ValueError):
                found = np.array([statistic(leaf, name) for leaf in self._leaves], np.float64)
            self._numbers[name] = found
        return self._numbers[name]

    @cached_property
    def fingerprints(self) -> list[str | None]:
        """The fingerprint of each value, or None."""
        if "md5" in chain.from_iterable({*self._forms}):
            pairs = zip(*map(self.field, _FINGERPRINTS))
            return [own or checksum for own, checksum in pairs]
        return [fingerprint or None for fingerprint in self.field("fingerprint")]

    @cached_property
    def _forms(self) -> list[tuple[str, ...]]:
        """The names of the fields of each value."""
        return [*map(tuple, self._leaves)]

    @cached_property
    def _are_usual(self) -> np.ndarray:
        """Which values are tensors of which fields say all that JSON does."""
        usual = {form: is_usual(form) for form in {*self._forms}}
        found = np.array([usual[form] for form in self._forms], bool)
        for name in ("dtype", "shape", "fingerprint"):
            if None in self.field(name):
                found &= np.array([value is not None for value in self.field(name)], bool)
        if "str" in self.field("type"):
            found &= np.array([kind != "str" for kind in self.field("type")], bool)
        return found

    @property
    def are_told(self) -> np.ndarray:
        """Which values are such tensors with statistics of the type float."""
        found = self._are_usual
        for name in STATISTICS:
            if {*map(type, self.field(name))} != {float}:
                found = found & np.array([type(v) is float for v in self.field(name)], bool)
        return found

    @cached_property
    def _are_finite(self) -> np.ndarray:
        """Which values of these have finite statistics of no unusual size."""
        found = np.ones(len(self), bool)
        for name in STATISTICS:
            moderate = are_moderate(self.numbers(name))
            if not moderate.all():
                moderate |= np.array([value is None for value in self.field(name)], bool)
            found &= moderate
        for name in COUNTS:
            if any(self.field(name)):
                found &= np.array([not count for count in self.field(name)], bool)
        return found

    def are_identical(self, rows: np.ndarray, other: Values, there: np.ndarray) -> np.ndarray:
        """Return which values are those of another place, and deserve no look.

        A tensor has the same fingerprint, dtype, shape and finite statistics; any other value is
        at hand and finite.

        Args:
            rows, there: the numbers of the values here, and of those in the other place.
        """
        usual = self._are_usual[rows] & other._are_usual[there]
        same = usual & self._are_finite[rows]
        if self is not other:
            for name in STATISTICS:
                one, two = self.numbers(name)[rows], other.numbers(name)[there]
                same &= one.view(np.int64) == two.view(np.int64)
            for name in ("fingerprint", "dtype", "shape", "type"):
                same &= self._equal(name, rows, other, there)
        for number in np.flatnonzero(~usual).tolist():
            leaf, theirs = self.leaf(int(rows[number])), other.leaf(int(there[number]))
            same[number] = is_ordinary(leaf) and _text(leaf) == _text(theirs)
        return same

    def _equal(
        self, name: str, rows: np.ndarray, other: Values, there: np.ndarray
    ) -> np.ndarray | bool:
        """Return where a field is the same."""
        one, two = self.field(name), other.field(name)
        whole = len(rows) == len(one) == len(two)
        if whole and one == two and (rows == there).all():
            return True
        pairs = zip(rows.tolist(), there.tolist())
        return np.array([one[n] == two[m] for n, m in pairs], bool)


def _text(leaf: LeafJson) -> bytes:
    return dump_json(dict(sorted(leaf.items())))
