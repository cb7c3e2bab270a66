"""What the saved log-probabilities alone say: not finite, of other rows, of other tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.findings.mismatch import SampledToken
from mindrlhf_msprobe.trends.rollout_rows import RolloutRows

_WORST = 5
_MOST_ROWS = 256  # that are apart and held against each other
_CLEARLY = 0.1  # of the distance: what is nearer is meant
_LEAST_TOKENS = 2  # of a row, or of all for a shift


class LogProbTable:
    """The log-probabilities of one save, a response a row.

    Args:
        rows: as they were saved.
        first: the number of the first row among those of all saves.
    """

    def __init__(self, rows: RolloutRows, first: int = 0) -> None:
        self.first = first
        width = rows.rollout.shape[-1]
        self.rollout, self.training = (
            np.asarray(of, np.float64).reshape(-1, width) for of in (rows.rollout, rows.training)
        )
        counts = np.ones(self.rollout.shape, bool)
        if rows.mask is not None:
            counts = np.asarray(rows.mask).reshape(-1, width) != 0
        self.counts = counts
        with np.errstate(invalid="ignore"):
            self.apart = np.abs(self.training - self.rollout)
        same = (self.training == self.rollout) | (np.isnan(self.training) & np.isnan(self.rollout))
        self.apart[same] = 0
        self.apart[~counts] = 0

    @property
    def odd(self) -> np.ndarray:
        """Where one side is not finite and the other is not the same, bool [rows, tokens]."""
        return ~np.isfinite(self.apart)

    def worst(self, token_id: Callable[[int, int], int | None]) -> Iterator[SampledToken]:
        """Yield the tokens furthest apart, the worst first; one that is not finite is the worst.

        Args:
            token_id: returns the id of a row's token, or None.
        """
        far = np.where(self.odd, np.inf, self.apart).reshape(-1)
        for at in np.argsort(-far, kind="stable")[:_WORST].tolist():
            if not far[at]:
                return
            row, place = divmod(at, self.apart.shape[1])
            number = self.first + row
            both = float(self.rollout[row, place]), float(self.training[row, place])
            yield SampledToken(number, place, token_id(number, place), *both)

    def exchanged(self, limit: float) -> Message | None:
        """Say that rows of the rollout are other rows of the training; None if they are not.

        Args:
            limit: the mean distance in nats that rounding explains.
        """
        sizes = np.maximum(self.counts.sum(axis=1), 1)
        means = np.where(self.odd, 0, self.apart).sum(axis=1) / sizes
        far = np.flatnonzero((means > limit) & (self.counts.sum(axis=1) >= _LEAST_TOKENS))
        if not 2 <= len(far) <= _MOST_ROWS:
            return None
        found = [(row, other) for row in far.tolist() if (other := self._is(row, far, limit))]
        if 2 * len(found) < len(far):
            return None
        row, other = found[0][0], found[0][1] - 1
        numbers = {"row": self.first + row, "other": self.first + other}
        return message("mismatch.rows_exchanged", count=len(found), **numbers)

    def _is(self, row: int, others: np.ndarray, limit: float) -> int:
        """Return 1 + the row of the training that one of the rollout is; 0 if it is none."""
        counts, sizes = self.counts[others], self.counts[others].sum(axis=1)
        apart = np.where(counts, np.abs(self.training[others] - self.rollout[row]), 0)
        means = apart.sum(axis=1) / sizes
        own = float(means[others == row][0])
        means[others == row] = np.inf
        nearest = int(np.argmin(np.where(np.isnan(means), np.inf, means)))
        return int(others[nearest]) + 1 if means[nearest] <= min(limit, _CLEARLY * own) else 0

    def shifted(self, limit: float) -> Message | None:
        """Say that the rollout's log-probabilities are those of tokens before or behind.

        Args:
            limit: the mean distance in nats that rounding explains.
        """
        for by in (-1, 1):
            mine, theirs = (slice(1, None), slice(-1)) if by < 0 else (slice(-1), slice(1, None))
            both = self.counts[:, mine] & self.counts[:, theirs] & ~self.odd[:, mine]
            if int(both.sum()) < _LEAST_TOKENS:
                continue
            apart = np.abs(self.rollout[:, mine] - self.training[:, theirs])[both].mean()
            own = self.apart[:, mine][both].mean()
            if own > limit and apart <= min(limit, _CLEARLY * own):
                return message("mismatch.log_probs_shifted", by=by)
        return None


def not_finite(tables: Sequence[LogProbTable]) -> Message | None:
    """Say that a log-probability is not finite on one side alone; None if none is."""
    count = sum(int(table.odd.sum()) for table in tables)
    for table in tables if count else ():
        for token in table.worst(lambda row, place: None):
            if not np.isfinite([token.rollout, token.training]).all():
                values = {"rollout": token.rollout, "training": token.training}
                where = {"row": token.row, "place": token.place}
                return message("mismatch.log_prob_not_finite", count=count, **where, **values)
    return None
