"""Weights that were rounded to a lower dtype on their way, or of which sketches were recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mindrlhf_msprobe.comparison.mismatch.rows.pairs import explained, sums_in_order
from mindrlhf_msprobe.storage.arrays.npy import (
    ROUNDED,
    ArrayFileError,
    rounded,
    roundoff,
)
from mindrlhf_msprobe.storage.arrays.sketches import COLUMNS, SIGNS, sketch_of
from mindrlhf_msprobe.storage.records import Record


def rounded_to(values: np.ndarray, others: np.ndarray) -> str | None:
    """Return the lower dtype to which others are rounded in float32 values; None if to none."""
    if (values.dtype, others.dtype) != (np.float32, np.float32):
        return None
    return next((d for d in ROUNDED if np.array_equal(values, rounded(others, d))), None)


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


def fused_vector_distance(a: Record, parts: Sequence[Record], order: np.ndarray) -> float | None:
    """Return the relative distance of a bias from others in an order, of float sketches.

    A vector is one row: its sums are those of the others only where whole blocks of 64 elements
    stand beside each other. Equal sums are a distance of 0.

    Args:
        order: int64 [elements], which element of the others, one behind the other, each is.

    Returns:
        None where the sums do not line up.

    Raises:
        ArrayFileError: one cannot be read.
    """
    if any((part.leaf.shape or (1,))[0] % COLUMNS for part in parts):
        return None
    at = sums_in_order(order)
    sums = []  # of each one axis, float64 [blocks]
    for record in (a, *parts):
        sketch = sketch_of(record.array()) if record.leaf.sketch is None else record.sketch()
        if not sketch.block:
            raise ArrayFileError.saying("unread.no_sketch")
        sums.append(sketch.sums[0].astype(np.float64))
    mine, *others = sums
    theirs = np.concatenate(others)
    if at is None or len(at) != len(mine) or int(at.max(initial=0)) >= len(theirs):
        return None
    apart = float(np.linalg.norm(mine - theirs[at]))
    norm = float(np.linalg.norm(theirs[at]))
    return apart / norm if norm else (0.0 if apart == 0 else math.inf)


def rounded_by_extremes(a: Record, parts: Sequence[Record], relative: float) -> str | None:
    """Return the lower dtype to which others are rounded in float32 weights; None if to none.

    Rounding keeps the order of values: the largest of the rounded ones is the largest one, rounded.

    Args:
        relative: the estimated distance of both.
    """
    extremes = _extremes(a, parts)
    if extremes is None:
        return None
    own, others = extremes
    for dtype in ROUNDED:
        near = relative <= _OF_ROUNDING * roundoff(dtype)
        if near and np.array_equal(own, rounded(others, dtype)):
            return dtype
    return None


def extremes_differ(a: Record, parts: Sequence[Record]) -> bool:
    """Return whether the largest or smallest elements say that float32 weights are unlike others.

    Those that are the others' when rounded do not say so.
    """
    own, others = _extremes(a, parts) or (np.zeros(2), np.zeros(2))
    return not any(np.array_equal(own, rounded(others, dtype)) for dtype in (None, *ROUNDED))


def _extremes(a: Record, parts: Sequence[Record]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the largest and smallest elements of both, float32 [2]; None where not known."""
    records = (a, *parts)
    bounds = [(record.leaf.max, record.leaf.min) for record in records]
    known = all(isinstance(x, float) and math.isfinite(x) for pair in bounds for x in pair)
    if not known or any(record.leaf.dtype != "Float32" for record in records):
        return None
    others = [max(x for x, _ in bounds[1:]), min(x for _, x in bounds[1:])]
    return np.array(bounds[0], np.float32), np.array(others, np.float32)


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
