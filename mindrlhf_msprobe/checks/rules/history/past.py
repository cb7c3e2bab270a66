"""What the numbers of records were in the steps before, and which jump against it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from mindrlhf_msprobe.checks.reading.records import Named

LEAST_PAST = 8  # values of a record's past with which another is compared
_PAST = 32  # that are kept
_DEVIATION = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_FLOOR = 0.02  # decades by which any norm may differ from its past


class Past:
    """The last norms of the records of one phase and rank, and between which all of them lie."""

    def __init__(self) -> None:
        self._named = Named()

    def take(self, names: Sequence[Hashable], norms: np.ndarray, factor: float) -> np.ndarray:
        """Add norms; return which may lie further than a factor from most of those before them.

        Args:
            names: of the records, each once.
            norms: (len(names),) float64; what is not a positive number is passed over.
        """
        at, column = self._named.places(names), self._named.column
        are = (norms > 0) & (norms < np.inf)
        if not are.all():
            at, norms = at[are], norms[are]
        past, seen = column("past", np.full(_PAST, np.nan)), column("seen", 0)
        low, high, count = column("low", np.inf), column("high", 0.0), seen[at]
        may = ((norms > factor * low[at]) | (norms * factor < high[at])) & (count >= LEAST_PAST)
        self._before = past[at[may]]
        past[at, count % _PAST], seen[at] = norms, count + 1
        low[at], high[at] = np.minimum(low[at], norms), np.maximum(high[at], norms)
        return np.flatnonzero(are)[may]

    def compared(self, norms: np.ndarray, deviations: float, factor: float) -> list[Jumped | None]:
        """Return how each of the norms that `take` returned stands to its past if it jumps."""
        if not norms.size:
            return []
        logs = np.log10(self._before)
        middle = _medians(logs)[:, None]
        spread = _DEVIATION * _medians(np.abs(logs - middle)) + _FLOOR
        away = np.abs(np.log10(norms) - middle[:, 0])
        jumps = (away > deviations * spread) & (away > math.log10(factor))
        before = 10 ** middle[:, 0]
        return [
            _jumped(float(norm), float(median)) if jumps_ else None
            for norm, median, jumps_ in zip(norms, before, jumps.tolist())
        ]


def _medians(rows: np.ndarray) -> np.ndarray:
    """Return the median of what each row has but NaN, one at least."""
    ordered, count = np.sort(rows, axis=1), np.count_nonzero(~np.isnan(rows), axis=1)
    each = np.arange(len(rows))
    return (ordered[each, (count - 1) // 2] + ordered[each, count // 2]) / 2


#: How a norm that jumps stands to its past.
Jumped = dict[str, float]


def _jumped(norm: float, before: float) -> Jumped:
    return {"norm": norm, "median": before, "factor": max(norm, before) / min(norm, before)}
