"""Names of values and of cells: what is inside what, and what they are called in any layer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from mindrlhf_msprobe.findings.mismatch import is_around

__all__ = ["NUMBER", "Name", "around", "is_around", "of_any_layer", "with_numbers"]

#: A part between dots that is a number, such as that of a layer.
NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")


class Name(NamedTuple):
    """Which value: of a cell, the n-th time it runs in one call of the network."""

    cell: str
    nth: int
    io: str
    path: str

    def __str__(self) -> str:
        again = f" (call {self.nth})" if self.nth else ""
        return f"{self.cell}{again} {self.io}.{self.path}"


def around(cell: str) -> list[str]:
    """Return the names of the cells around one, the innermost first; the network itself is root."""
    if cell == "root":
        return []
    parts = cell.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)] + ["root"]


def of_any_layer(cell: str) -> str:
    """Return what a cell is called in every layer, with `*` for the numbers."""
    return NUMBER.sub("*", cell)


def with_numbers(cell: str, numbers: Iterable[str]) -> str:
    """Return what a cell is called in a layer, given the numbers in its name."""
    left = iter(numbers)
    return NUMBER.sub(lambda _: next(left), cell)
