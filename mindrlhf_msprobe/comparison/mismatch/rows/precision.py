"""The precision that both sides compute with in a cell, and what of their distance it explains."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from mindrlhf_msprobe.comparison.mismatch.names import around
from mindrlhf_msprobe.comparison.mismatch.rows.distance import Distances, explained, roundoff
from mindrlhf_msprobe.comparison.mismatch.sides import Side
from mindrlhf_msprobe.storage.records import cell_of_parameter

_EXACT = "float32"


class Precision:
    """The lowest floating dtype of each cell of one side: its parameters and inner cells too."""

    def __init__(self, side: Side) -> None:
        self._own: dict[str, str] = {}
        self._inside: dict[str, int] = defaultdict(int)
        for name, value in side.values.items():
            self._note(name.cell, str(value.form(value.calls[0]).dtype))
        for parameter, record in side.parameters.items():
            self._note(cell_of_parameter(parameter), str(record.leaf.dtype))
        for cell in side.cells:
            for outer in around(cell):
                self._inside[outer] += 1

    def _note(self, cell: str, dtype: str) -> None:
        """Take note of a dtype that a cell computes with."""
        if roundoff(dtype):
            for outer in (cell, *around(cell)):
                self._own[outer] = max(self._own.get(outer, dtype), dtype, key=roundoff)

    def lowest(self, cell: str) -> str:
        """Return the lowest dtype of a cell and of all inside it."""
        return self._own.get(cell, _EXACT)

    def inside(self, cell: str) -> int:
        """Return how many cells are inside one."""
        return self._inside[cell]


def allowed(cell: str, value: Distances, columns: int, a: Precision, b: Precision) -> float:
    """Return the relative distance of rows that rounding explains in a cell and all inside it.

    Roundings of n cells one behind the other are independent: √n times that of one.
    """
    dtype = min(a.lowest(cell), b.lowest(cell), key=roundoff)
    cells = 1 + max(a.inside(cell), b.inside(cell))
    return explained(dtype, columns, value.sampled) * math.sqrt(cells)


def shown_dtype(values: np.ndarray) -> str | None:
    """Return the lower dtype that all values of a float32 tensor are numbers of, or None."""
    if values.dtype != np.float32 or not np.any(values):
        return None
    bits = np.ascontiguousarray(values).view(np.uint32)
    if not np.any(bits & 0xFFFF):
        return "bfloat16"
    with np.errstate(over="ignore"):
        exact = np.array_equal(values.astype(np.float16).astype(np.float32), values)
    return "float16" if exact else None
