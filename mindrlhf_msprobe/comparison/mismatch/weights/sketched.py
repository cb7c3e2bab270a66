"""Weights of which sketches were recorded: transposed ones, and those that were rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mindrlhf_msprobe.comparison.mismatch.rows.distance import explained, roundoff
from mindrlhf_msprobe.comparison.mismatch.weights.rounding import ROUNDED, rounded
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.arrays.sketches import COLUMNS, SIGNS, sketch_of
from mindrlhf_msprobe.storage.records import Record

_OF_ROUNDING = 2.0  # times a roundoff: as far apart may rounding alone be, by an estimate


def turned_distance(a: Record, b: Record) -> float | None:
    """Return the relative distance of a matrix from the transposed other one.

    Sums of 64 columns with signs, added up over 64 rows with the same signs, are those of the
    transposed matrix, but for the order in which they were added. The distance is estimated from
    them.

    Returns:
        None where there are no sums of either.

    Raises:
        ArrayFileError: one cannot be read.
    """
    mine, theirs = _block_sums(a), _block_sums(b)
    if mine is None or theirs is None or mine.shape != theirs.T.shape:
        return None
    norm = b.leaf.norm if isinstance(b.leaf.norm, float) else float(np.linalg.norm(theirs))
    apart = float(np.linalg.norm(mine - theirs.T))
    return apart / norm if norm else (0.0 if apart == 0 else math.inf)


def turned_alike(relative: float) -> bool:
    """Return whether adding in another order explains the distance of transposed sketches."""
    return relative <= explained("float32", COLUMNS * COLUMNS)


def rounded_by_extremes(a: Record, parts: Sequence[Record], relative: float) -> str | None:
    """Return the lower dtype to which others are rounded in float32 weights; None if to none.

    Rounding keeps the order of values: the largest of the rounded ones is the largest one, rounded.

    Args:
        relative: the estimated distance of both.
    """
    records = (a, *parts)
    bounds = [(record.leaf.max, record.leaf.min) for record in records]
    known = all(isinstance(x, float) and math.isfinite(x) for pair in bounds for x in pair)
    if not known or any(record.leaf.dtype != "Float32" for record in records):
        return None
    own = np.array(bounds[0], np.float32)
    others = np.array([max(x for x, _ in bounds[1:]), min(x for _, x in bounds[1:])], np.float32)
    for dtype in ROUNDED:
        near = relative <= _OF_ROUNDING * roundoff(dtype)
        if near and np.array_equal(own, rounded(others, dtype)):
            return dtype
    return None


def _block_sums(record: Record) -> np.ndarray | None:
    """Return sums of 64 rows and 64 columns, float64 [row blocks, column blocks]; None: none."""
    if record.leaf.sketch is None:
        if record.location is None:
            raise ArrayFileError.saying("unread.no_sketch")
        sketch = sketch_of(np.ascontiguousarray(record.array()))
    else:
        sketch = record.sketch()
    if not sketch.block:
        return None
    sums = sketch.sums.astype(np.float64) * np.resize(SIGNS, len(sketch.sums))[:, None]
    return np.add.reduceat(sums, np.arange(0, len(sums), COLUMNS), axis=0)
