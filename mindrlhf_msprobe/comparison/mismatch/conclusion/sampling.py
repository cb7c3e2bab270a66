"""What lies behind both networks: the log-probabilities of the sampled tokens, and temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.mismatch.conclusion.log_probs import LogProbTable
from mindrlhf_msprobe.comparison.mismatch.names import Name
from mindrlhf_msprobe.comparison.mismatch.rows.distance import roundoff
from mindrlhf_msprobe.comparison.mismatch.rows.pairs import Source, Unfit
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.tokens.saved_samples.windows import SavedSample
from mindrlhf_msprobe.findings.mismatch import LogProbs, SampledToken
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.trends.derived import ROLLOUT_LOG_PROB, KeyPlace, Settings, Unavailable
from mindrlhf_msprobe.trends.rollout_correction import DIFF_MEAN
from mindrlhf_msprobe.trends.rollout_rows import KEYS_READ, RolloutRows, rollout_gaps

_LEAST_NATS = 1e-4  # float32 rounds log-probabilities by 1e-6 to 1e-5
_ROUNDINGS = 16.0
_TEMPERATURES = np.exp(np.linspace(-3, 3, 241))
_FITS = 1e-3  # nats: of a temperature that explains the log-probabilities
_WORST = 5
_UNLIKE = 1e-3  # relative difference of two temperatures


class Sampled:
    """The log-probabilities of the sampled tokens, of both sides.

    Attributes:
        rows: what belongs together, by save; empty where it was not saved.
        tables: what belongs together, as rows of responses.
        metrics: by the names that verl uses, of the first save.
        notes: what they rest on, or why there are none.
    """

    def __init__(self, runs: Sequence[Run], step: int, rank: int) -> None:
        self.rows: list[RolloutRows] = []
        self.tables: list[LogProbTable] = []
        self._means: list[float] = []
        self.metrics: Mapping[str, float] = {}
        self.notes: Messages = ()
        saves = {}
        for name in KEYS_READ:
            run = runs[0] if name in ROLLOUT_LOG_PROB else runs[-1]
            if found := run.key_data(name, step, rank):
                saves[name] = found
        try:
            gaps = rollout_gaps(KeyPlace(saves, Settings.read(runs[-1].configurations())))
        except (Unavailable, ArrayFileError) as error:
            self.notes = (message("mismatch.no_metrics", why=error),)
            return
        self.rows = [rows for rows, _, _ in gaps]
        self._means = [gap.metrics.get(DIFF_MEAN, 0.0) for _, gap, _ in gaps]
        first = 0
        for rows in self.rows:
            self.tables.append(LogProbTable(rows, first))
            first += len(self.tables[-1].counts)
        if gaps:
            self.metrics, self.notes = gaps[0][1].metrics, gaps[0][2]

    @property
    def log_probs(self) -> LogProbs | None:
        """What the metrics are of; None where nothing belongs together."""
        if not self.rows:
            return None
        return LogProbs(self.rows[0].rollout, self.rows[0].training, self.rows[0].mask)

    @property
    def apart(self) -> float:
        """The mean difference in nats, of the save in which it is the largest."""
        return max(self._means, default=0.0)

    def is_apart(self, walk: Walk) -> bool:
        """Return whether rounding does not explain the difference."""
        return self.apart > _limit(walk)

    def worst(self, samples: Sequence[SavedSample]) -> tuple[SampledToken, ...]:
        """Return the tokens furthest apart, the worst first; those that are not finite before.

        Args:
            samples: prompts and responses of the step; their order is that of the rows.
        """

        def token_id(row: int, place: int) -> int | None:
            if len(samples) != rows or place >= len(samples[row].response):
                return None
            return int(samples[row].response[place])

        rows = sum(len(table.counts) for table in self.tables)
        found = [token for table in self.tables for token in table.worst(token_id)]
        return tuple(sorted(found, key=_nearness)[:_WORST])

    def misplaced(self, walk: Walk) -> Message | None:
        """Say that log-probabilities are those of other rows, or of other tokens; or None."""
        limit = _limit(walk)
        for table in self.tables:
            if (said := table.exchanged(limit) or table.shifted(limit)) is not None:
                return said
        return None

    def why(self, walk: Walk) -> Message:
        """Say by what the log-probabilities differ, though the logits agree."""
        both = [self._temperature(walk, side) for side in ("rollout", "training")]
        apart = {"mean": self.apart}
        if None in both or abs(both[0] / both[1] - 1) < _UNLIKE:  # type: ignore[operator]
            return message("mismatch.sampling", **apart)
        values = {"rollout": round(both[0] or 0, 4), "training": round(both[1] or 0, 4)}
        return message("mismatch.temperature", **values, **apart)

    def _temperature(self, walk: Walk, side: str) -> float | None:
        """Return the temperature at which the logits give the log-probabilities of a side."""
        rows = self.rows[0]
        wanted = np.asarray(getattr(rows, side), np.float64)
        found = _logits(walk, wanted.shape)
        if found is None:
            return None
        logits, ids = found
        counts = np.ones(wanted.shape, bool) if rows.mask is None else np.asarray(rows.mask) != 0
        counts &= np.isfinite(wanted) & np.isfinite(logits).all(axis=-1)
        if not counts.any():
            return None
        best, width = 1.0, _TEMPERATURES
        for _ in range(3):
            errors = [_error(logits[counts], ids[counts], wanted[counts], t) for t in width]
            best = float(width[int(np.argmin(errors))])
            width = best * np.exp(np.linspace(-1, 1, 41) * np.log(width[1] / width[0]))
        error = _error(logits[counts], ids[counts], wanted[counts], best)
        return best if error < _FITS else None


def _limit(walk: Walk) -> float:
    """Return the mean difference in nats that rounding explains."""
    lowest = min((p.lowest("root") for p in walk.precision), key=roundoff)
    return max(_LEAST_NATS, _ROUNDINGS * roundoff(lowest))


def _nearness(token: SampledToken) -> float:
    apart = abs(token.rollout - token.training)
    return -apart if math.isfinite(apart) else -math.inf


def _error(logits: np.ndarray, ids: np.ndarray, wanted: np.ndarray, temperature: float) -> float:
    scaled = logits / temperature
    top = scaled.max(axis=-1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=-1))
    return float(np.median(np.abs(scaled[np.arange(len(ids)), ids] - total - wanted)))


def _logits(walk: Walk, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rollout's logits of each sampled token, float64 [samples, tokens, vocabulary].

    And the tokens, int64 [samples, tokens]. None unless elements of the network's output were
    stored, and its sequences are the samples of the log-probabilities: by what was saved, else in
    their order.
    """
    sequences = walk.rollout.tokens.sequences
    of_rows = [walk.sample(sequence) for sequence in range(len(sequences))]
    value = walk.rollout.values.get(Name("root", 0, "output", "0"))
    if value is None or len(shape) != 2 or shape[0] != len({*of_rows}) or max(of_rows) >= shape[0]:
        return None
    source, tokens = Source(walk.rollout, value), walk.tokens
    logits: np.ndarray | None = None
    ids = np.zeros(shape, np.int64)
    for number in source.calls:
        try:
            rows = source.rows(number)
        except (ArrayFileError, Unfit):
            return None
        if logits is None:
            logits = np.full((*shape, rows.values.shape[1]), np.nan)
        for at, row in enumerate((tokens.starts[number] + rows.at).tolist()):
            sequence, position = int(tokens.sequence[row]), int(tokens.position[row])
            place = position + 1 - walk.prompt(sequence) if sequence >= 0 else -1
            if 0 <= place < shape[1]:
                logits[of_rows[sequence], place] = rows.values[at]
                if position + 1 < len(sequences[sequence]):
                    token = int(sequences[sequence][position + 1])
                else:  # the last token that was sampled is given to no further call
                    token = walk.next_token(sequence, position)
                ids[of_rows[sequence], place] = token
    if logits is None or int(ids.max(initial=0)) >= logits.shape[-1]:
        return None
    unknown = ids < 0
    logits[unknown] = np.nan
    return logits, np.where(unknown, 0, ids)
