"""What lies behind both networks: the log-probabilities of the sampled tokens, and temperature.

And what the saved ones alone say: not finite, of other rows, of other tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.mismatch.rows import NotAligned, Source
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.findings.mismatch import LogProbs, SampledToken
from mindrlhf_msprobe.phases import ROLLOUT_LOG_PROB, ROLLOUT_PROMPTS, ROLLOUT_TOKENS
from mindrlhf_msprobe.sequences.batch import Sample, Sequences
from mindrlhf_msprobe.sequences.beginnings import prefix_names
from mindrlhf_msprobe.sequences.log_probs import KEYS_READ, RolloutRows
from mindrlhf_msprobe.sequences.step_data import Settings, StepData, Unavailable
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, roundoff
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import is_around
from mindrlhf_msprobe.trends.rollout_correction import DIFF_MEAN, rollout_gaps

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

    def worst(self) -> Iterator[SampledToken]:
        """Yield the tokens furthest apart, the worst first; one that is not finite is the worst."""
        far = np.where(self.odd, np.inf, self.apart).reshape(-1)
        for at in np.argsort(-far, kind="stable")[:_WORST].tolist():
            if not far[at]:
                return
            row, place = divmod(at, self.apart.shape[1])
            both = float(self.rollout[row, place]), float(self.training[row, place])
            yield SampledToken(self.first + row, place, None, *both)

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
        for token in table.worst():
            if not np.isfinite([token.rollout, token.training]).all():
                values = {"rollout": token.rollout, "training": token.training}
                where = {"row": token.row, "place": token.place}
                return message("mismatch.log_prob_not_finite", count=count, **where, **values)
    return None


_OF_ROLLOUT = {*ROLLOUT_LOG_PROB, *ROLLOUT_TOKENS, *ROLLOUT_PROMPTS}
_LEAST_NATS = 1e-4  # float32 rounds log-probabilities by 1e-6 to 1e-5
_ROUNDINGS = 16.0
_TEMPERATURES = np.exp(np.linspace(-3, 3, 241))
_FITS = 1e-3  # nats: of a temperature that explains the log-probabilities
_WORST = 5
_MOST_SEEN = 0.95  # of the tokens that differ: of so many the logits must have been compared
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
            run = runs[0] if name in _OF_ROLLOUT else runs[-1]
            if found := run.key_data(name, step, rank):
                saves[name] = found
        try:
            data = StepData(saves, saves.__getitem__, Settings.read(runs[-1]))
            gaps = rollout_gaps(Sequences(data))
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

    def worst(self, samples: Sequence[Sample]) -> tuple[SampledToken, ...]:
        """Return the tokens furthest apart, the worst first; those that are not finite before.

        Args:
            samples: prompts and responses of the step; their order is that of the rows.
        """
        found = [token for table in self.tables for token in table.worst()]
        apart = np.array([abs(token.rollout - token.training) for token in found])
        order = np.argsort(np.where(np.isfinite(apart), -apart, -np.inf), kind="stable")
        rows = sum(len(table.counts) for table in self.tables)
        ids = [sample.ids for sample in samples] if len(samples) == rows else [()] * rows
        return tuple(
            replace(of, id=int(ids[of.row][of.place])) if of.place < len(ids[of.row]) else of
            for of in (found[at] for at in order[:_WORST])
        )

    def misplaced(self, walk: Walk) -> Message | None:
        """Say that log-probabilities are those of other rows, or of other tokens; or None."""
        limit = _limit(walk)
        for table in self.tables:
            if (said := table.exchanged(limit) or table.shifted(limit)) is not None:
                return said
        return None

    def without_logits(self, walk: Walk) -> Message | None:
        """Say that logits of tokens whose log-probabilities differ were not compared; or None.

        Where nothing says which sequences the log-probabilities are of, all sampled tokens count.
        """
        compared, limit = _logits_compared(walk), _limit(walk)
        samples = _samples(walk)
        if sum(len(table.counts) for table in self.tables) != len(samples):
            counts = walk.coverage
            is_known = len(compared) and counts.sampled_aligned == counts.sampled
            few = {"count": counts.sampled_aligned, "of": counts.sampled}
            return None if is_known else message("mismatch.logits_unknown", **few)
        places = {
            (table.first + row, place)
            for table in self.tables
            for row, place in np.argwhere(table.apart > limit).tolist()
        }
        # The places of the sampled tokens that rows whose logits were compared are before; samples
        # that share a pass over their prompt have one row of it.
        names = walk.rollout.tokens.names
        known = np.flatnonzero(walk.tokens.sequence >= 0)
        # A call may be given padding behind its tokens: such a row is of no token of the sample.
        every = zip(walk.samples(known).tolist(), names[known].tolist())
        own, seen = dict(zip(every, known.tolist())), {*compared.tolist()}
        shared = {*names[compared].tolist()}
        behind = {
            (sample, at + 1 - size)
            for sample, (tokens, size) in samples.items()
            for at, name in enumerate(prefix_names(tokens).tolist())
            if (own[sample, name] in seen if (sample, name) in own else name in shared)
        }
        count = len(places & behind)
        if count >= _MOST_SEEN * len(places):
            return None
        return message("mismatch.logits_unknown", count=count, of=len(places))

    def why(self, walk: Walk) -> Message:
        """Say by what the log-probabilities differ, though the logits agree."""
        both = [self._temperature(walk, side) for side in ("rollout", "training")]
        apart = {"mean": self.apart}
        if None in both or abs(both[0] / both[1] - 1) < _UNLIKE:  # type: ignore[operator]
            return message("mismatch.sampling", **apart)
        values = {"rollout": round(both[0] or 0, 4), "training": round(both[1] or 0, 4)}
        return message("mismatch.temperature", **values, **apart)

    def temperatures(self, walk: Walk) -> Message | None:
        """Say by which temperatures both sides divide their own logits; None where they are equal.

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
        if found is None:
            return None
        at, logits, ids = found
        wanted = wanted.reshape(-1)[at]
        best, width = 1.0, _TEMPERATURES
        for _ in range(3):
            errors = [_error(logits, ids, wanted, t) for t in width]
            best = float(width[int(np.argmin(errors))])
            width = best * np.exp(np.linspace(-1, 1, 41) * np.log(width[1] / width[0]))
        return best if _error(logits, ids, wanted, best) < _FITS else None


def _logits_compared(walk: Walk) -> np.ndarray:
    """Return the rows of the rollout whose logits were compared, int64."""
    name = _logits_of_both(walk)
    if name is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(~np.isnan(walk.growth.of_layers[name]))


def _logits_of_both(walk: Walk) -> Name | None:
    """Return what both networks return, or the last that their cells beside the layers do.

    Behind that, cells around it alone may return: a training may call a backbone and a head of its
    network in turn, and not the cell around both, whose `generate` the rollout calls.
    """
    outputs = [name for name in walk.rollout.values if name.io == "output"]
    last = None
    for own in reversed(outputs):
        name = own._replace(cell=walk.names.common_a(own.cell) or own.cell)
        if last is not None and not is_around(last, name.cell):
            return None
        if name in walk.growth.of_layers:
            return name
        last = name.cell
    return None


def _samples(walk: Walk) -> dict[int, tuple[np.ndarray, int]]:
    """Return the tokens of each sample, and how many are its prompt: as saved, else as given."""
    if walk.rollout.samples:
        return {n: (one.tokens, len(one.prompt)) for n, one in enumerate(walk.rollout.samples)}
    sequences = walk.rollout.tokens.sequences
    return {walk.sample(n): (tokens, walk.prompt(n)) for n, tokens in enumerate(sequences)}


def _limit(walk: Walk) -> float:
    """Return the mean difference in nats that rounding explains."""
    lowest = min((side.lowest("root") for side in walk.sides), key=roundoff)
    return max(_LEAST_NATS, _ROUNDINGS * roundoff(lowest))


def _error(logits: np.ndarray, ids: np.ndarray, wanted: np.ndarray, temperature: float) -> float:
    scaled = logits / temperature
    top = scaled.max(axis=-1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=-1))
    return float(np.median(np.abs(scaled[np.arange(len(ids)), ids] - total - wanted)))


def _logits(
    walk: Walk, counts: np.ndarray, of: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return a side's logits of sampled tokens, as many as a temperature needs.

    None unless elements of them were stored, and its sequences are the samples of
    the log-probabilities: by what was saved, else in their order.

    Args:
        counts: which tokens count, bool [samples, tokens].

    Returns:
        int64 [found], places in [samples × tokens]; float64 [found, vocabulary], the logits; int64
        [found], the tokens.
    """
    sequences = walk.rollout.tokens.sequences
    of_rows = [walk.sample(sequence) for sequence in range(len(sequences))]
    side = walk.training if of == "training" else walk.rollout
    shape, samples = counts.shape, _samples(walk)
    source: Source | None = None
    if (name := _logits_of_both(walk)) is not None:
        source = walk.sources[name][side is walk.training]
    elif (value := side.values.get(Name("root", 0, "output", "0"))) is not None:
        source = Source(side, value)  # what it returns, where no logits were compared
    if source is None or len(shape) != 2 or shape[0] != len(samples) or max(of_rows) >= shape[0]:
        return None
    tokens = side.tokens.rows
    # Behind padding that a call was given there are logits, too; those are of no sampled token.
    compared = {*_logits_compared(walk).tolist()} if side is walk.rollout else set()
    # The rollout's sequence of each of the side's; -1 where there is none, and at the end.
    mine = walk.matched.sequences
    sequence_of = np.append(np.arange(len(mine)), -1)
    if of != "rollout":
        sequence_of = np.full(len(walk.training.tokens.sequences) + 1, -1)
        sequence_of[mine[mine >= 0]] = np.flatnonzero(mine >= 0)
    found: dict[int, tuple[np.ndarray, int]] = {}
    wanted: set[int] | None = None
    for number in source.calls:
        try:
            rows = source.rows(number)
        except NotAligned:
            return None
        if wanted is None:  # as many tokens that count as may be held, through all samples
            known_places = np.flatnonzero(counts)
            most = max(_LEAST_LOGITS, _MOST_ELEMENTS // max(rows.values.shape[1], 1))
            some = np.linspace(0, len(known_places) - 1, min(most, len(known_places)))
            wanted = {*known_places[some.astype(np.int64)].tolist()}
        for at, row in enumerate((tokens.starts[number] + rows.at).tolist()):
            if compared and row not in compared:
                continue
            sequence, position = int(sequence_of[tokens.sequence[row]]), int(tokens.position[row])
            place = position + 1 - walk.prompt(sequence) if sequence >= 0 else -1
            if not (0 <= place < shape[1] and of_rows[sequence] * shape[1] + place in wanted):
                continue
            values = np.asarray(rows.values[at], np.float64)
            ids, size = samples[of_rows[sequence]]
            known = size + place < len(ids)  # the last is given to no further call
            token = int(ids[size + place]) if known else walk.next_token(sequence, position)
            if 0 <= token < len(values) and np.isfinite(values).all():
                found[of_rows[sequence] * shape[1] + place] = values, token
    if not found:
        return None
    logits = np.stack([values for values, _ in found.values()])
    ids = np.array([token for _, token in found.values()])
    return np.array([*found]), logits, ids
