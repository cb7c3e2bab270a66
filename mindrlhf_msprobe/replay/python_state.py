"""The Python attributes of cells, which a second run may depend on and change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.framework.private import HOOK_PREFIX, OF_EVERY_CELL

_ABSENT = object()
_CONTAINERS = (list, dict, set)


class PythonState:
    """The attributes of cells, and what lists, dicts and sets among them hold, as they are now.

    What MindSpore keeps on every cell is left out.
    """

    def __init__(self, cells: Iterable[nn.Cell]) -> None:
        self._cells = [*cells]
        self._kept = [_OfCell(cell) for cell in self._cells]

    def values(self) -> Iterator[Any]:
        """Yield the attributes, and what lists, dicts and sets among them hold."""
        for kept in self._kept:
            yield from kept.values()

    def now(self) -> PythonState:
        """Return those of the same cells at this moment."""
        return PythonState(self._cells)

    def put_back(self) -> None:
        """Let them be as they were when this was made; what has not changed is not touched."""
        for kept in self._kept:
            kept.put_back()

    @contextmanager
    def as_they_were(self) -> Iterator[None]:
        """Let them be as they were for a while, and then as they are now."""
        after = self.now()
        self.put_back()
        try:
            yield
        finally:
            after.put_back()


class _OfCell:
    """The Python attributes of one cell, and what its lists, dicts and sets hold."""

    def __init__(self, cell: nn.Cell) -> None:
        self._cell = cell
        self._values = {
            name: value for name, value in vars(cell).items() if not _is_of_every_cell(name)
        }
        self._held = {
            name: type(value)(value)
            for name, value in self._values.items()
            if type(value) in _CONTAINERS
        }

    def values(self) -> Iterator[Any]:
        """Yield the attributes, and what lists, dicts and sets among them hold."""
        yield from self._values.values()
        for held in self._held.values():
            yield from held.values() if isinstance(held, dict) else held

    def put_back(self) -> None:
        attributes = vars(self._cell)
        for name, value in self._values.items():
            if attributes.get(name, _ABSENT) is not value:
                attributes[name] = value
        for name in [*attributes]:
            if name not in self._values and not _is_of_every_cell(name):
                del attributes[name]
        for name, held in self._held.items():
            container = self._values[name]
            if not _same_items(container, held):
                container.clear()
                with suppress(AttributeError):
                    container.extend(held) if isinstance(held, list) else container.update(held)


def _is_of_every_cell(name: str) -> bool:
    return name in OF_EVERY_CELL or name.startswith(HOOK_PREFIX) or name[:2] == "__"


def _same_items(container: Any, held: Any) -> bool:
    """Return whether a container holds the very same objects."""
    if len(container) != len(held):
        return False
    if isinstance(held, dict):
        return all(container.get(name, _ABSENT) is value for name, value in held.items())
    if isinstance(held, set):
        return bool(container == held)
    return all(a is b for a, b in zip(container, held))
