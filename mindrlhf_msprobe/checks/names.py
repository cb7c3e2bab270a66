"""What rules keep of names from step to step."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np


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


_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=1 << 16)
def pattern_of(name: str) -> str:
    """Return what names have in common that differ in numbers alone."""
    return _NUMBER.sub("#", name)
