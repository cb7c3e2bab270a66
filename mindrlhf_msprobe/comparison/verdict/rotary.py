"""Tables of a rotary position embedding: of which base they were made."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mindrlhf_msprobe.findings import Change

_NEAR = 2e-2  # of a cosine: tables may be bfloat16
_MOST_ROWS = 64  # positions that are looked at


def rotary_bases(a: np.ndarray, b: np.ndarray) -> Change | None:
    """Return that two tables of cosines, or of sines, are those of two bases; else None.

    Args:
        a, b: [positions, size of a head] or [samples, positions, size of a head].
    """
    for function in (np.cos, np.sin):
        bases = [_base(table, function) for table in (a, b)]
        if None not in bases and bases[0] != bases[1]:
            return Change("rotary_base", {"a": bases[0], "b": bases[1]})
    return None


def _base(table: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> float | None:
    """Return the base of a table; None of what is no table of that function."""
    table = table[0] if table.ndim == 3 else table
    if table.ndim != 2 or table.dtype.kind != "f" or table.shape[0] < 2 or table.shape[1] < 4:
        return None
    if table.shape[1] % 2:
        return None
    rows = table[:_MOST_ROWS].astype(np.float64)
    half = rows.shape[1] // 2
    # Two halves with the same angles, or every two neighbours.
    for angles in (rows[:, :half], rows[:, ::2]):
        inverse = np.arccos if function is np.cos else np.arcsin
        with np.errstate(all="ignore"):
            angle = inverse(angles[1, 1])
            base = float(angle ** -float(half))
        if not 0 < angle < 1:
            continue
        if not math.isfinite(base):
            continue
        powers = base ** (-np.arange(half) / half)
        expected = function(np.outer(np.arange(len(rows)), powers))
        if np.allclose(angles, expected, rtol=0, atol=_NEAR):
            return float(f"{base:.4g}")
    return None
