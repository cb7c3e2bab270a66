"""What the elements of stored tensors show: the first values, and where two tensors differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.records import Record

_FIRST = 8  # elements
_MOST_ELEMENTS = 1 << 22  # of a tensor whose error is shown
_MOST_TENSORS = 400  # of a page whose error is shown
_MOST_FIRST = 20_000  # of a page whose first values are
_BINS = 40
_MOST_EXACT = 2**53  # of the integers of JavaScript
_SIDE = 64  # cells of the map of a tensor's error, each way


def exact_number(value: Any) -> Any:
    """Return a number as JSON takes it; an integer that JavaScript would round as a text."""
    if isinstance(value, int) and abs(value) > _MOST_EXACT:
        return str(value)
    return number_to_json(value)


class Elements:
    """Reads stored tensors, so many in all.

    Attributes:
        left_out: how many tensors that differ were not read, as they are too large or too many.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._errors = self._firsts = 0

    def first(self, record: Record | None) -> list[Any] | None:
        """Return the first elements of a stored tensor; None where there are none."""
        if record is None or record.location is None or self._firsts >= _MOST_FIRST:
            return None
        self._firsts += 1
        try:
            found = record.array()
            return [exact_number(value) for value in found.flat[:_FIRST].tolist()]
        except (ArrayFileError, OSError, ValueError):
            return None

    def error(self, a: Record, b: Record) -> dict[str, Any] | None:
        """Return where two stored tensors of one shape differ: a histogram, and a map over rows.

        The histogram is of log10 |a−b| of the elements that are finite in both; the map shows the
        largest |a−b| of each part of the tensor, its last axis along the columns, to four digits.
        """
        if a.location is None or b.location is None:
            return None
        shape = a.leaf.shape
        if shape is None or shape != b.leaf.shape or 0 in shape:
            return None
        if self._errors >= _MOST_TENSORS or np.prod(shape, dtype=np.float64) > _MOST_ELEMENTS:
            self.left_out += 1
            return None
        self._errors += 1
        try:
            return _error(a.array(), b.array())
        except (ArrayFileError, OSError, ValueError, TypeError):
            return None


def _error(a: np.ndarray, b: np.ndarray) -> dict[str, Any] | None:
    if a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return None
    with np.errstate(all="ignore"):
        difference = _difference(a, b)
    return {
        "histogram": _histogram(difference),
        "rows": _map(difference),
        "different": int(np.count_nonzero(difference)),
        "size": int(difference.size),
        "first_mismatch": _first(difference),
    }


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a−b| of each element as float64; of integers also where float64 has not both."""
    if a.dtype.kind == b.dtype.kind and a.dtype.kind in "iu":
        high, low = (of(a, b).astype(np.uint64) for of in (np.maximum, np.minimum))
        return (high - low).astype(np.float64)
    x, y = (np.asarray(side, np.float64) for side in (a, b))
    difference = np.abs(x - y)
    difference[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    return difference


def _histogram(difference: np.ndarray) -> dict[str, Any] | None:
    some = difference[(difference > 0) & np.isfinite(difference)]
    if not some.size:
        return None
    counts, edges = np.histogram(np.log10(some), _BINS)
    return {"edges": [round(edge, 4) for edge in edges.tolist()], "counts": counts.tolist()}


def _map(difference: np.ndarray) -> dict[str, Any]:
    rows = difference.reshape(-1, difference.shape[-1] if difference.ndim else 1)
    shown = _largest(_largest(rows, 0), 1)
    values = [number_to_json(float(f"{value:.4g}")) for value in shown.ravel().tolist()]
    return {"shape": [*shown.shape], "of": [*rows.shape], "values": values}


def _largest(found: np.ndarray, axis: int) -> np.ndarray:
    """Return the largest of each of at most 64 parts along an axis; a NaN is the largest."""
    size = found.shape[axis]
    if size <= _SIDE:
        return found
    starts = np.linspace(0, size, _SIDE, endpoint=False).astype(np.intp)
    return np.maximum.reduceat(found, starts, axis=axis)


def _first(difference: np.ndarray) -> list[int] | None:
    unlike = difference.ravel() != 0
    if not unlike.any():
        return None
    return [int(i) for i in np.unravel_index(int(unlike.argmax()), difference.shape)]
