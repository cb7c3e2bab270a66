"""What proves that a rollout and a training are one computation: nothing may be left out.

A sampled token is aligned where the row that it was sampled from, that of the token before it, has
a partner in the training, and neither phase went on with another token.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.common.printable import spans
from mindrlhf_msprobe.comparison.mismatch.sampling import Sampled
from mindrlhf_msprobe.comparison.mismatch.sides import Side
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.mismatch.weights import WeightPair
from mindrlhf_msprobe.comparison.preflight.networks import cells_of, role_of
from mindrlhf_msprobe.findings.mismatch import Certificate, ExactPlace, Mismatch
from mindrlhf_msprobe.phases import LOSS_INPUTS, MASK, OLD_LOG_PROB, ROLLOUT_LOG_PROB
from mindrlhf_msprobe.sequences.batch import Sample
from mindrlhf_msprobe.sequences.beginnings import prefix_names
from mindrlhf_msprobe.sequences.saved import saved_samples
from mindrlhf_msprobe.sequences.step_data import Settings, Unavailable, array_of
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run

_OF_ROLLOUT = "rollout_"  # keys of the rollout's own prompts and tokens


@dataclass(frozen=True)
class Evidence:
    """What one step of one rank shows.

    Attributes:
        place: its counts, but for how many tokens are aligned.
        wanted: uint64 [tokens], the names of the rows that compared tokens were sampled from, if
            both phases go on with these tokens; see `prefix_names`. Those of first tokens, which
            samples of one prompt may share, and those of all others.
        aligned: uint64 [rows], the names of the tokens whose rows are aligned.
    """

    place: ExactPlace
    wanted: tuple[np.ndarray, np.ndarray]
    aligned: np.ndarray


def evidence(walk: Walk, sampled: Sampled) -> Evidence:
    """Return what a step of a rank shows whose tokens are known."""
    samples = walk.rollout.samples or walk.training.samples
    tables = sampled.tables
    width = max((table.counts.shape[1] for table in tables), default=0)
    counts, rollout, training = (
        np.concatenate(
            [np.zeros((0, width), bool), *(_wide(getattr(t, of), width) for t in tables)]
        )
        for of in ("counts", "rollout", "training")
    )
    # Whether a saved mask says which tokens count.
    masked, side = False, walk.training
    saves = (side.run.key_data(key, side.step, side.rank) for key in MASK)
    with contextlib.suppress(Unavailable):
        masks = [array_of(datum) != 0 for datum in next(filter(None, saves), ())]
        if masks and all(mask.ndim and mask.shape[-1] <= width for mask in masks):
            rows = [_wide(mask.reshape(-1, mask.shape[-1]), width) for mask in masks]
            masked = np.array_equal(np.concatenate(rows), counts)
    unequal = counts & ~(rollout == training)
    if len({*_dtypes(walk)}) != 1:
        unequal = counts
    odd = counts & ~(np.isfinite(rollout) & np.isfinite(training))
    aligned = walk.rollout.tokens.names[walk.matched.aligned]
    if samples:
        wanted, total = _by_ids(walk, samples, counts, masked=masked)
        # Rows that may have given a token, but none that was saved, and are unaligned; the last
        # token of a response gives none.
        names = np.concatenate([aligned, *(prefix_names(sample.tokens) for sample in samples)])
        tokens = walk.rollout.tokens
        total += tokens.lost
        for sequence, begun, last in zip(tokens.sequences, tokens.begun, tokens.last.tolist()):
            own = prefix_names(sequence[:last])[max(begun - 1, 0) :]
            total += int((~np.isin(own, names)).sum())
    else:
        # Each row from the last one of a prompt on gives a token; that of the last may give none.
        lasts = walk.rollout.tokens.last.tolist()
        sizes = [last - begun for last, begun in zip(lasts, walk.rollout.tokens.begun) if begun]
        least, most = (0 if masked else sum(sizes)), sum(sizes) + len(sizes)
        compared, total = int(counts.sum()), max(int(counts.sum()), least)
        lacking = walk.coverage.tokens - walk.coverage.rows
        wanted = aligned[:0], aligned[: max(0, min(compared, most) - lacking)]
    place = replace(
        _of_weights(walk),
        sampled=total,
        compared=int(counts.sum()),
        unequal=int(unequal.sum()),
        non_finite=int(odd.sum()),
    )
    return Evidence(place, wanted, aligned)


def certificate(
    runs: Sequence[Run],
    found: Sequence[Mismatch],
    shown: Sequence[Evidence],
    others: Sequence[ExactPlace],
) -> Certificate:
    """Return whether rollout and training are proved to be one computation.

    Args:
        found: what is said of the places that have both phases.
        shown: what those of them show whose tokens are known.
        others: the places that have not both phases.
    """
    places = {(place.step, place.rank): place for place in others}
    places |= {(one.step, one.rank): ExactPlace(one.step, one.rank) for one in found}
    for one in shown:
        step, rank = one.place.step, one.place.rank
        aligned = np.concatenate([other.aligned for other in shown if other.place.step == step])
        first, later = one.wanted
        count = Counter(later.tolist()) & Counter(aligned.tolist())
        count_of_both = int(np.isin(first, aligned).sum()) + count.total()
        places[step, rank] = replace(one.place, aligned=count_of_both)
    apart = [
        message("mismatch.exact_apart", step=one.step, rank=one.rank, status=one.status.value)
        for one in found
        if not one.status.agrees
    ]
    in_order = tuple(places[at] for at in sorted(places))
    return Certificate(in_order, (*apart, *_left_out(runs, in_order)))


def _left_out(runs: Sequence[Run], places: Sequence[ExactPlace]) -> Messages:
    """Return what the runs lost, lack, or did not finish, as far as it may concern the places."""
    found = []
    for run in dict.fromkeys(runs):
        at = [StepPlace(place.step, place.rank) for place in places]
        found += run.losses
        found += [
            problem.said
            for problem in run.problems
            if any(problem.is_at(place) for place in at) or problem.phase is problem.key is None
        ]
        if ranks := run.missing_ranks:
            found.append(message("mismatch.missing_ranks", run=str(run.path), ranks=spans(ranks)))
        if open_at := sorted({s for s, r in at if not run.completed(s, r)}):
            found.append(message("mismatch.not_completed", run=str(run.path), steps=spans(open_at)))
    return tuple(dict.fromkeys(found))


def _wide(values: np.ndarray, width: int) -> np.ndarray:
    """Return rows with as many columns, those behind their ends 0."""
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))


def _dtypes(walk: Walk) -> Iterator[str | None]:
    """Yield the dtypes of the log-probabilities of both sides, as they were saved."""
    for side, keys in zip(walk.sides, (ROLLOUT_LOG_PROB, OLD_LOG_PROB)):
        saves = [d for key in keys for d in side.run.key_data(key, side.step, side.rank)]
        records = [record for datum in saves for record in datum.records]
        if not saves and keys is OLD_LOG_PROB:
            given = side.run.key_data(LOSS_INPUTS, side.step, side.rank)
            records = [r for datum in given for r in datum.records if r.path in OLD_LOG_PROB]
        yield from (record.leaf.dtype for record in records)


def _by_ids(
    walk: Walk, samples: Sequence[Sample], counts: np.ndarray, *, masked: bool
) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """Return the names of rows that compared tokens were sampled from, and how many tokens were.

    Args:
        counts: bool [samples, tokens], which log-probabilities are compared.
        masked: whether a saved mask says which tokens were sampled; else all of a response were.
    """
    after = []  # of each side the names of the tokens, and of those that another one follows
    for side in walk.sides:
        ends = zip(side.tokens.sequences, side.tokens.last.tolist())
        of_tokens = [prefix_names(tokens[:last]) for tokens, last in ends]
        empty = np.zeros(0, np.uint64)
        going_on = np.concatenate([empty, *(names[:-1] for names in of_tokens)])
        after.append((np.concatenate([empty, *of_tokens]), going_on))
    others = [*_other_samples(walk, samples)]
    first, later = ([np.zeros(0, np.uint64)] for _ in range(2))
    total = 0
    fits = len(counts) == len(samples)
    for number, sample in enumerate(samples):
        names, begun = prefix_names(sample.tokens), len(sample.prompt)
        compared = counts[number] if fits else np.zeros(0, bool)
        expected = np.zeros(max(len(compared), len(names) - begun), bool)
        expected[: len(compared)] = compared
        expected[: len(names) - begun] |= not (masked and fits)
        places = np.flatnonzero(expected)
        there = places[(places < min(len(compared), len(names) - begun)) & (begun > 0)]
        there = there[compared[there]]
        before, own = names[begun - 1 + there], names[begun + there]
        good = np.ones(len(there), bool)
        for known, going_on in after:
            good &= np.isin(own, known) | ~np.isin(before, going_on)
        good &= all(_is_one(sample, other[number]) for other in others)
        first.append(before[good & (there == 0)])
        later.append(before[good & (there > 0)])
        total += len(places)
    return (np.concatenate(first), np.concatenate(later)), total


def _other_samples(walk: Walk, samples: Sequence[Sample]) -> Iterator[Sequence[Sample | None]]:
    """Yield what else was saved as prompts and responses: by the other run, or for the training."""
    for side in walk.sides:
        pad = Settings.read(side.run).pad

        def saved(key: str, side: Side = side) -> Sequence:
            return (
                () if key.startswith(_OF_ROLLOUT) else side.run.key_data(key, side.step, side.rank)
            )

        for others in (side.samples, saved_samples(saved, pad, side.own)):
            if others:
                yield others if len(others) == len(samples) else [None] * len(samples)


def _is_one(sample: Sample, other: Sample | None) -> bool:
    """Return whether two samples have the same tokens, but for one id that fills up the longer."""
    if other is None:
        return False
    short, long = sorted((sample.tokens, other.tokens), key=len)
    return np.array_equal(short, long[: len(short)]) and len({*long[len(short) :].tolist()}) < 2


def _of_weights(walk: Walk) -> ExactPlace:
    """Return how many parameters are compared, differ, and are unknown or left out."""
    weights = walk.weights
    same = {pair.rollout for pair in weights.pairs if _is_proved(pair)}
    unequal = {pair.rollout for pair in weights.pairs if pair.equal is False}
    unequal |= {pair.rollout for pair in weights.pairs if len({*pair.dtypes}) > 1}
    changed = sum(len(side.changed) for side in walk.sides)
    left_out = sum(map(len, weights.alone)) + sum(map(_not_recorded, walk.sides))
    unknown = len(weights.pairs) - len(same | unequal) + left_out
    return ExactPlace(
        walk.rollout.step,
        walk.rollout.rank,
        weights=len(weights.pairs),
        weights_different=len(unequal) + changed,
        weights_unknown=unknown,
    )


def _is_proved(pair: WeightPair) -> bool:
    """Return whether a parameter is equal bit for bit: by fingerprints, rows, or elements.

    Sums of a sketch are no proof, as those of a matrix that is held transposed.
    """
    if not pair.equal or pair.relative != 0 or len({*pair.dtypes}) > 1:
        return False
    mine, stored = pair.mine, [one.location is not None for one in (pair.mine, *pair.theirs)]
    if len(pair.training) > 1:
        return stored[0] or len(mine.leaf.shape or ()) > 1
    return mine.leaf.shape == pair.theirs[0].leaf.shape or all(stored)


def _not_recorded(side: Side) -> int:
    """Return how many cells of a network were not to be recorded; 1 where it is not known."""
    config = side.run.config(side.rank)
    if config is None or not config.parameters or not config.records_cells or config.entries:
        return 1
    cells = cells_of(side.run, role_of(side.run, side.rank, side.phase), side.phase)
    return sum(not config.records_cell(cell) for cell in cells)
