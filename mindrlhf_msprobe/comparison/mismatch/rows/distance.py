"""How far rows of one tensor are from rows of another: by their elements, or by their sketches."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.compiled import library_beside
from mindrlhf_msprobe.common.frozen import dataclass

#: Rows are taken together up to as many bytes.
BLOCK = 4 << 20
#: Half the distance of 1 to the next number: how far rounding moves a value of 1 at most.
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8 / 2,
}
_ROUNDINGS = 8  # of one operation's values
_SUM_ROUNDINGS = 4  # times the root of how many values are summed, in float32
#: A row shorter than that, against the mean of its tensor, has no relative distance of its own.
_SHORTEST = 1e-3


@dataclass(frozen=True)
class Distances:
    """The distances of the rows of two tensors.

    Attributes:
        squared: float64 [rows], the squared L2 distance of each pair of rows; NaN where either has
            a NaN or an infinity and they are not equal.
        norms: float64 [rows], the squared L2 norm of each row of the second.
        unequal: bool [rows], whether any element differs; NaN is equal to NaN.
        sampled: columns of the sketch from which distances are estimated; 0: they are exact.
    """

    squared: np.ndarray
    norms: np.ndarray
    unequal: np.ndarray
    sampled: int = 0

    def relative(self) -> np.ndarray:
        """Return each row's distance relative to its norm, float64 [rows].

        Very short rows are measured by the mean norm of all. Infinity where the distance is NaN.
        """
        finite = self.norms[np.isfinite(self.norms)]
        typical = float(finite.mean()) if finite.size else 0.0
        norms = np.maximum(np.nan_to_num(self.norms, posinf=typical), _SHORTEST**2 * typical)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.sqrt(self.squared / norms)
        found = np.where(self.unequal, found, 0.0)
        return np.where(np.isnan(found), np.inf, found)


def distances(
    a: np.ndarray, b: np.ndarray, rows: tuple[np.ndarray, np.ndarray] | None = None
) -> Distances:
    """Measure rows against rows of the same number.

    Args:
        a, b: [rows, columns], floating; read block by block.
        rows: int64 [any] each, which rows of a and of b; None: all.
    """
    at_a, at_b = rows if rows is not None else (np.arange(len(a)), np.arange(len(b)))
    count = len(at_a)
    found = Distances(np.empty(count), np.empty(count), np.empty(count, bool))
    if _COMPILED is not None and _is_plain(a) and _is_plain(b):
        _measure_compiled(a, b, at_a, at_b, found)
        return found
    for block in blocks(count, a.shape[1] * 8):
        x, y = _floating(a[at_a[block]]), _floating(b[at_b[block]])
        with np.errstate(invalid="ignore", over="ignore"):
            apart = x - y
            found.squared[block] = squared = np.einsum("ij,ij->i", apart, apart)
            found.norms[block] = np.einsum("ij,ij->i", y, y)
        found.unequal[block] = squared != 0
        # What is too small to be squared differs, too; NaN is equal to NaN.
        for row in np.flatnonzero((squared == 0) | np.isnan(squared)):
            found.unequal[block.start + row] = not np.array_equal(x[row], y[row], equal_nan=True)
    return found


def sketch_distances(
    a: np.ndarray,
    b: np.ndarray,
    prints_a: np.ndarray,
    prints_b: np.ndarray,
    typical: float,
    rows: tuple[np.ndarray, np.ndarray],
) -> Distances:
    """Estimate the distances of rows from their sketches.

    Args:
        a, b: float32 [rows, sums].
        prints_a, prints_b: uint64 [rows, any], fingerprints of the rows. Where they are not of the
            same parts, no row is known to be equal.
        typical: the mean squared norm of b's rows; NaN: it is estimated from b. A row whose own
            sums say that it is longer is measured by those.
        rows: int64 [any] each, which rows of a and of b.
    """
    found = distances(a, b, rows)
    count = len(rows[0])
    unequal = np.ones(count, bool)
    if prints_a.shape[1] == prints_b.shape[1] > 0:
        unequal = (prints_a[rows[0]] != prints_b[rows[1]]).any(axis=1)
    if not np.isfinite(typical):
        typical = float(found.norms.mean()) if count else 0.0
    norms = np.fmax(found.norms, typical)
    return Distances(found.squared, norms, unequal, sampled=a.shape[1])


def _load() -> Any:
    """Return the library's function, None where it was not built."""
    function = getattr(library_beside(__file__, "_rows"), "msprobe_float32_rows", None)
    if function is not None:
        address, number = ctypes.c_void_p, ctypes.c_int64
        function.argtypes = (*[address] * 4, *[number] * 4, *[address] * 3)
        function.restype = number
    return function


_COMPILED = _load()


def _is_plain(array: np.ndarray) -> bool:
    flags = array.flags
    return array.dtype == np.float32 and flags.c_contiguous and flags.aligned


def _measure_compiled(
    a: np.ndarray, b: np.ndarray, at_a: np.ndarray, at_b: np.ndarray, found: Distances
) -> None:
    at_a, at_b = (np.ascontiguousarray(at, np.int64) for at in (at_a, at_b))
    inputs = [array.ctypes.data for array in (a, b, at_a, at_b)]
    outputs = [array.ctypes.data for array in (found.squared, found.norms, found.unequal)]
    measured = _COMPILED(*inputs, len(a), len(b), len(at_a), a.shape[1], *outputs)
    if measured < len(at_a):
        raise IndexError(int(at_a[measured]), int(at_b[measured]))


def _floating(values: np.ndarray) -> np.ndarray:
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)


def blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield slices of rows that fit into a block."""
    step = max(1, BLOCK // max(1, row_bytes))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def explained(dtype: str, columns: int, sampled: int = 0) -> float:
    """Return the relative distance of two rows that rounding explains, in one cell.

    Both compute with unit roundoff u and add in any order in float32, as kernels do: 8 u for the
    roundings of its values, and 4 √n u₃₂ for sums of n values. The error of a sum of n values in
    any order grows as √n u for independent roundings (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 4.2).

    Args:
        dtype: the lowest that both sides compute with, by MindSpore's or numpy's name.
        columns: how many values a sum may have.
        sampled: how many sums of a sketch the distance is estimated from; 0: it is exact. The
            square of an estimate is spread as χ² of so many degrees of freedom: hardly one in a
            thousand is more than 1 + 3 / √k times too long.
    """
    unit = UNIT_ROUNDOFF.get(dtype.lower(), UNIT_ROUNDOFF["float32"])
    sums = min(unit, UNIT_ROUNDOFF["float32"])
    spread = 1 + 3 / np.sqrt(sampled) if sampled else 1
    return float(spread * (_ROUNDINGS * unit + _SUM_ROUNDINGS * np.sqrt(max(1, columns)) * sums))


def roundoff(dtype: str | None) -> float:
    """Return the unit roundoff of a floating dtype; 0 of any other."""
    return UNIT_ROUNDOFF.get((dtype or "").lower(), 0.0)
