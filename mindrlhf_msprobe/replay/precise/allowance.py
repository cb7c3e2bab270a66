"""What rounding explains: is the distance of a result from the exact one ordinary, or wrong?

The exact result was computed in float64, and again in draws that are disturbed, operation by
operation, as the precision of the judged computation rounds (replay/precise/tape.py). Let e be
the error of an element, s the root mean square of its draws' distances, u the unit of rounding, x
the exact element:

    explained² = s² + (u·|x| + tiny)² + share²
    ratio      = e / explained

`share` lends an element what the others of its row and column have (the product of the mean squares
of both, over the mean of all), since few draws may happen to agree at one element. A result is
wrong if the root mean square of the ratio over a row, or over single elements in number, is above
`MOST`. That leaves room for kernels that approximate functions to some units of rounding and for
sums in any order; a result that was rounded to float16 on its way is thousands of units away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from mindrlhf_msprobe.replay.precise.tape import Precision

#: How many times what a rounding explains is still ordinary.
MOST = 64.0

#: Of single elements: a few may be this many times further than `MOST`.
_OUTLIER = 16.0

#: How many elements of a million may be above `MOST`, below `_OUTLIER` times it.
_PER_MILLION = 2000.0

#: How many times larger than what the exact computation meets a kernel's numbers may be.
_ON_THE_WAY = 16

#: An element may be wrong by this much of one rounding of the tensor's root mean square.
_SMALL = 1e-3


class Opinion(Enum):
    """What is thought of a result."""

    ORDINARY = "ordinary"
    WRONG = "wrong"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """How far one tensor is from the exact one, and whether rounding explains it.

    Attributes:
        opinion: ordinary, wrong or undecided.
        error: the norm of the error over the norm of the exact tensor.
        explained: the norm of what rounding explains over that of the exact tensor, once.
        ratio: the error in units of what rounding explains, where it is worst; above `MOST` it is
            wrong.
        worst: the index of the element that is furthest beyond what is explained.
        actual, exact: that element.
        reason: a code that says why it is undecided, or what is wrong but distance; "".
    """

    opinion: Opinion
    error: float = 0.0
    explained: float = 0.0
    ratio: float = 0.0
    worst: tuple[int, ...] = ()
    actual: float = 0.0
    exact: float = 0.0
    reason: str = ""


def judge(
    actual: np.ndarray,
    computed: Sequence[np.ndarray],
    precision: Precision,
    beside: np.ndarray | float = 0.0,
) -> Judgement:
    """Judge a result by the exact one.

    Args:
        actual: what was computed; any floating dtype numpy has, bfloat16 as float32.
        computed: the exact result in float64, then draws of it, disturbed by rounding.
        precision: of the computation that is judged: the lowest of its dtypes.
        beside: an error that is known to have been added to `actual` by its measurement.

    Returns:
        The judgement; `undecided` where the exact result is not finite and the actual one is, or
        where what is compared differs in shape.
    """
    actual, (exact, *draws) = np.asarray(actual, np.float64), computed
    if actual.shape != exact.shape:
        return Judgement(Opinion.WRONG, reason="shape", ratio=np.inf, error=np.inf)
    if exact.dtype.kind != "f":
        return _whole(actual, exact, draws)
    exact = np.asarray(exact, np.float64)
    if not actual.size:
        return Judgement(Opinion.ORDINARY)
    with np.errstate(all="ignore"):
        return _judge(actual, exact, draws, precision, np.asarray(beside, np.float64))


def by_reach(found: Judgement, reach: float, precision: Precision) -> Judgement:
    """Judge a result that is not finite, by the largest number on the way to the exact one.

    It is right where the dtype does not hold that either, and undecided where it just does: a
    kernel may go another way.
    """
    if not reach < precision.largest:
        return replace(found, opinion=Opinion.ORDINARY, ratio=0.0, error=0.0, reason="overflowed")
    if reach * _ON_THE_WAY < precision.largest:
        return found
    return replace(found, opinion=Opinion.UNDECIDED, reason="overflowed")


def _whole(actual: np.ndarray, exact: np.ndarray, draws: Sequence[np.ndarray]) -> Judgement:
    """Judge numbers that are not floating: equal, or such as rounding may decide."""
    differs = actual != exact
    if not np.any(differs):
        return Judgement(Opinion.ORDINARY)
    for draw in draws:
        differs &= actual != draw
    worst = tuple(int(i) for i in np.argwhere(actual != exact)[0])
    found = float(actual[worst]), float(exact[worst])
    share = float(np.mean(actual != exact))
    opinion = Opinion.WRONG if np.any(differs) else Opinion.ORDINARY
    ratio = np.inf if opinion is Opinion.WRONG else 1.0
    return Judgement(opinion, share, 0.0, ratio, worst, *found, reason="not_equal")


def _judge(
    actual: np.ndarray,
    exact: np.ndarray,
    draws: Sequence[np.ndarray],
    precision: Precision,
    beside: np.ndarray,
) -> Judgement:
    actual = np.where(np.isfinite(beside), actual, exact)  # nothing is known of the others
    finite = np.isfinite(exact)
    same = (actual == exact) | ~(np.isfinite(actual) | np.isfinite(exact))
    for draw in draws:
        finite &= np.isfinite(draw)
    known = finite & np.isfinite(actual)
    lost = finite & ~np.isfinite(actual)
    largest = precision.largest * (1 - 4 * precision.unit)
    reach = np.maximum(np.abs(exact), np.max([np.abs(d) for d in draws] or [np.abs(exact)], axis=0))
    lost &= reach < largest
    same |= ~np.isfinite(actual) & (reach >= largest)
    if np.any(lost):
        worst = tuple(int(i) for i in np.argwhere(lost)[0])
        found = float(actual[worst]), float(exact[worst])
        return Judgement(Opinion.WRONG, np.inf, 0.0, np.inf, worst, *found, reason="not_finite")
    if not np.any(known):
        if np.all(same):
            return Judgement(Opinion.ORDINARY)
        return Judgement(Opinion.UNDECIDED, reason="exact_not_finite")
    error = np.where(known, np.abs(actual - exact), 0.0)
    square = np.where(known, np.square(np.abs(exact)), 0.0)
    explained = _explained(exact, draws, precision, known, square, beside)
    ratios = np.where(known & (error > 0), error / np.sqrt(explained), 0.0)
    ratio = _ratio(ratios, error, explained)
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    norm = float(np.sqrt(np.sum(square))) or 1.0
    opinion = Opinion.WRONG if ratio > MOST else Opinion.ORDINARY
    if opinion is Opinion.ORDINARY and np.any(~known & ~same & ~np.isfinite(exact)):
        opinion = Opinion.UNDECIDED
    return Judgement(
        opinion,
        float(np.sqrt(np.sum(np.square(error)))) / norm,
        float(np.sqrt(np.sum(np.where(known, explained, 0.0)))) / norm,
        ratio,
        worst,
        float(actual[worst]),
        float(exact[worst]),
        reason="exact_not_finite" if opinion is Opinion.UNDECIDED else "",
    )


def _explained(
    exact: np.ndarray,
    draws: Sequence[np.ndarray],
    precision: Precision,
    known: np.ndarray,
    square: np.ndarray,
    beside: np.ndarray,
) -> np.ndarray:
    """Return the square of what rounding explains of each element."""
    small = _SMALL * precision.unit * np.sqrt(np.mean(square))
    own = precision.unit * np.abs(exact) + precision.tiny + beside
    least = np.square(own) + small * small + precision.tiny**2
    moved = [d for d in draws if d is not exact]
    if not moved:
        return np.where(known & np.isfinite(least), least, np.inf)
    spread = sum(np.square(np.abs(d - exact)) for d in moved) / len(moved)
    spread = np.where(known & np.isfinite(spread), spread, 0.0)
    rows = spread.reshape(-1, spread.shape[-1]) if spread.ndim else spread.reshape(1, 1)
    mean = np.mean(rows)
    if mean > 0:
        if min(rows.shape) > 1:
            shared = np.mean(rows, 1, keepdims=True) * (np.mean(rows, 0, keepdims=True) / mean)
        else:
            shared = np.full(rows.shape, 0.1 * mean)
        spread = spread + shared.reshape(spread.shape)
    explained = spread + least
    return np.where(np.isfinite(explained), explained, np.inf)


def _ratio(ratios: np.ndarray, error: np.ndarray, explained: np.ndarray) -> float:
    """Return the largest ratio of rows, and of elements where they are many or far."""
    flat = np.sort(ratios, axis=None)
    few = int(ratios.size * _PER_MILLION / 1e6)
    many = flat[-1 - few] if few < flat.size else 0.0
    single = flat[-1] / _OUTLIER if ratios.size > 8 else flat[-1] / 2
    rows = np.square(ratios).reshape(-1, ratios.shape[-1]) if ratios.ndim else ratios.reshape(1, 1)
    row = 0.0
    if rows.shape[1] >= 8:
        row = float(np.sqrt(np.max(np.mean(np.minimum(rows, np.square(many * _OUTLIER)), axis=1))))
    return float(max(many, single, row))
