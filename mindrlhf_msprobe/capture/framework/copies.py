"""Copies of cells on which something of ours lies: they are what they would be without it.

A trainer may copy a network (`copy.deepcopy`, `pickle`) while a phase is open. What lies on the
cells then must neither go with the copy, where nobody would take it off, nor make copying fail.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from mindspore import nn

#: Takes ours out of the attributes of a copy that is about to be made.
Clean = Callable[[dict[str, Any]], None]

# `copy` and `pickle` ask an object for it before they ask its class.
_REDUCE = "__reduce_ex__"


def left_out_of_copies(cell: nn.Cell, clean: Clean) -> Callable[[], None]:
    """Have `clean` called with the attributes of each copy of a cell; return what ends that."""
    reduce = vars(cell).get(_REDUCE)
    if not isinstance(reduce, _Reduce):
        reduce = vars(cell)[_REDUCE] = _Reduce(cell)
    reduce.cleaners.append(clean)

    def end() -> None:
        reduce.cleaners.remove(clean)
        if not reduce.cleaners and vars(cell).get(_REDUCE) is reduce:
            del vars(cell)[_REDUCE]

    return end


class _Reduce:
    """Stands in for `__reduce_ex__` of a cell."""

    def __init__(self, cell: nn.Cell) -> None:
        self._cell = weakref.ref(cell)
        self.cleaners: list[Clean] = []

    def __call__(self, protocol: int) -> Any:
        cell = self._cell()
        assert cell is not None
        reduce: Any = type(cell).__reduce_ex__
        reduced = reduce(cell, protocol)
        if isinstance(reduced, str):
            return reduced
        return tuple(self._cleaned(part, vars(cell)) for part in reduced)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A class may copy its attributes itself; then the copy is made by its class from now on.
        cell = self._cell()
        return MethodType(type(cell).__reduce_ex__, memo[id(cell)])

    def _cleaned(self, part: Any, attributes: dict[str, Any]) -> Any:
        """Return a part of what a copy is made from; the cell's attributes may stand in a tuple."""
        if type(part) is tuple:
            return tuple(self._cleaned(item, attributes) for item in part)
        if part is not attributes:
            return part
        cleaned = {name: value for name, value in attributes.items() if name != _REDUCE}
        for clean in self.cleaners:
            clean(cleaned)
        return cleaned
