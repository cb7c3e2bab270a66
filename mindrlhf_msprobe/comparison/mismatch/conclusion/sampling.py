"""What lies behind both networks: the log-probabilities of the sampled tokens, and temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
_LEAST_LOGITS, _MOST_ELEMENTS = 8, 400_000  # tokens, and elements, that a temperature is read of
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

    def temperatures(self, walk: Walk) -> Message | None:
        """Say by which temperatures both sides divide their own logits; None where they are alike.

        None, too, where the rollout's is not known: it stored no elements of its logits.
        """
        if not self.rows:
            return None
        own = [self._temperature(walk, of, of) for of in ("rollout", "training")]
        rollout, training = (of if of is None else round(of, 4) for of in own)
        if rollout is None or abs(rollout / (training or 1.0) - 1) < _UNLIKE:
            return None
        return message("mismatch.also_temperature", rollout=rollout, training=training)

    def _temperature(self, walk: Walk, side: str, of: str = "rollout") -> float | None:
        """Return the temperature at which logits give the log-probabilities of a side.

        Args:
            of: whose logits; those of both where they agree.
        """
        rows = self.rows[0]
        wanted = np.asarray(getattr(rows, side), np.float64)
        counts = np.ones(wanted.shape, bool) if rows.mask is None else np.asarray(rows.mask) != 0
        counts &= np.isfinite(wanted)
        found = _logits(walk, counts, of)
        if found is None or not found.at.size:
            return None
        logits, ids, wanted = found.logits, found.ids, wanted.reshape(-1)[found.at]
        best, width = 1.0, _TEMPERATURES
        for _ in range(3):
            errors = [_error(logits, ids, wanted, t) for t in width]
            best = float(width[int(np.argmin(errors))])
            width = best * np.exp(np.linspace(-1, 1, 41) * np.log(width[1] / width[0]))
        return best if _error(logits, ids, wanted, best) < _FITS else None


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


class _Logits(NamedTuple):
    """Logits of some of the sampled tokens.

    Attributes:
        at: int64 [found], places in [samples × tokens].
        logits: float64 [found, vocabulary].
        ids: int64 [found], the tokens.
    """

    at: np.ndarray
    logits: np.ndarray
    ids: np.ndarray


def _logits(walk: Walk, counts: np.ndarray, of: str = "rollout") -> _Logits | None:
    """Return a side's logits of sampled tokens, as many as a temperature needs.

    None unless elements of the network's output were stored, and its sequences are the samples of
    the log-probabilities: by what was saved, else in their order.

    Args:
        counts: which tokens count, bool [samples, tokens].
    """
    sequences = walk.rollout.tokens.sequences
    of_rows = [walk.sample(sequence) for sequence in range(len(sequences))]
    side = walk.training if of == "training" else walk.rollout
    value = side.values.get(Name("root", 0, "output", "0"))
    shape = counts.shape
    if value is None or len(shape) != 2 or shape[0] != len({*of_rows}) or max(of_rows) >= shape[0]:
        return None
    source, tokens = Source(side, value), side.tokens.rows
    sequence_of = _sequences_of(walk, of)
    found: dict[int, tuple[np.ndarray, int]] = {}
    wanted: set[int] | None = None
    for number in source.calls:
        try:
            rows = source.rows(number)
        except (ArrayFileError, Unfit):
            return None
        if wanted is None:
            wanted = _some_of(counts, rows.values.shape[1])
        for at, row in enumerate((tokens.starts[number] + rows.at).tolist()):
            sequence, position = int(sequence_of[tokens.sequence[row]]), int(tokens.position[row])
            place = position + 1 - walk.prompt(sequence) if sequence >= 0 else -1
            if not (0 <= place < shape[1] and of_rows[sequence] * shape[1] + place in wanted):
                continue
            values = np.asarray(rows.values[at], np.float64)
            token = _sampled_behind(walk, sequence, position)
            if 0 <= token < len(values) and np.isfinite(values).all():
                found[of_rows[sequence] * shape[1] + place] = values, token
    if not found:
        return None
    logits = np.stack([values for values, _ in found.values()])
    ids = np.array([token for _, token in found.values()])
    return _Logits(np.array([*found]), logits, ids)


def _some_of(counts: np.ndarray, columns: int) -> set[int]:
    """Return the places of tokens that count: as many as may be held, through all samples."""
    known = np.flatnonzero(counts)
    most = max(_LEAST_LOGITS, _MOST_ELEMENTS // max(columns, 1))
    chosen = np.linspace(0, len(known) - 1, min(most, len(known))).astype(np.int64)
    return {*known[chosen].tolist()}


def _sampled_behind(walk: Walk, sequence: int, position: int) -> int:
    """Return the token behind one of a sequence of the rollout; -1 where it is not known."""
    tokens = walk.rollout.tokens.sequences[sequence]
    if position + 1 < len(tokens):
        return int(tokens[position + 1])
    return walk.next_token(sequence, position)  # the last is given to no further call


def _sequences_of(walk: Walk, side: str) -> np.ndarray:
    """Return the rollout's sequence of each of a side, int64; -1 of none, and last of all."""
    mine = walk.matched.sequences
    if side == "rollout":
        return np.append(np.arange(len(mine)), -1)
    found = np.full(len(walk.training.tokens.sequences) + 1, -1)
    known = mine >= 0
    found[mine[known]] = np.flatnonzero(known)
    return found
