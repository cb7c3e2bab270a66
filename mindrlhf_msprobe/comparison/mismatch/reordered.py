"""Rows of a rollout that are those of other samples: a cache whose rows were put in another order.

Beam search replaces hypotheses by others between two calls. Nothing that the network is given says
so: its rows have the same places. What it computes of a token depends on all tokens before it, so
the row of the training network that it equals says behind which tokens it stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field, replace
from itertools import islice

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.mismatch.conclude import OF_ROUNDING
from mindrlhf_msprobe.comparison.mismatch.growth import GROWTH
from mindrlhf_msprobe.comparison.mismatch.rows import NotAligned, Source
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.sequences.calls import UNKNOWN, PhaseTokens
from mindrlhf_msprobe.sequences.saved import of_saved
from mindrlhf_msprobe.storage.arrays.npy import roundoff

_MOST = 0.95  # of the rows that part: so many must be those of others
_LOOKED_AT = 96  # values: the first attention is among them
_TOLD_BY = 16  # tokens and positions that several samples have
_WIDEST = 1 << 13  # columns of a value that is read whole


@dataclass(frozen=True)
class Reordered:
    """Rows of a rollout that continue other samples than those in whose places they stand.

    Attributes:
        tokens: of the rollout, with the rows behind the tokens that they were computed behind.
        count: how many rows are those of others.
        call: the first call that has one.
        row, sample: the row of this call's batch, and the sample that it continues; -1 of one that
            was not saved.
        left: how many rows are those of no sequence of the training.
        contradicted: whether the rows in their places are no samples of the training.
    """

    tokens: PhaseTokens
    count: int
    call: int
    row: int
    sample: int
    left: int
    contradicted: bool


#: Of each position and token, by what stands before: the sequence and row of the training.
_Index = Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]


def reordered(walk: Walk, parted: Name | None, *, contradicted: bool) -> Reordered | None:
    """Return where the rows of a rollout stand, by what was computed; None if in their places.

    Args:
        parted: the value at which both part.
        contradicted: whether sequences of the rollout go on with other tokens in the training.
    """
    tokens = walk.rollout.tokens
    single = np.array([call.width == 1 and call.batch > 1 for call in tokens.calls], bool)
    rows = tokens.within(tokens.rows)
    rows = rows[single[tokens.rows.call[rows]] & (tokens.rows.position[rows] > 0)]
    begins = np.zeros(0, np.int64) if parted is None else walk.growth.begins_at(parted)
    by_place = not len(begins) or bool(single[tokens.rows.call[begins]].all())
    if not len(rows) or not (contradicted or (len(begins) and by_place)):
        return None
    index = _index(walk.training.tokens)
    last = None if contradicted else parted
    for name in islice((name for name in walk.stages if name not in walk.masks), _LOOKED_AT):
        found = _content(walk, name, index, rows)
        if found is not None:
            of_others = sum(row in found.moved for row in begins.tolist())
            is_why = found.moved and (contradicted or of_others >= _MOST * len(begins))
            return _moved(walk, found, contradicted=contradicted) if is_why else None
        if name == last:
            return None
    return None


def _index(training: PhaseTokens) -> _Index:
    found: dict[tuple[int, int], dict[int, tuple[int, int]]] = defaultdict(dict)
    for number, tokens in enumerate(training.sequences):
        start = int(training.starts[number])
        for at in range(int(training.last[number])):
            if (row := int(training.places[start + at])) >= 0:
                name = int(training.names[row])
                found[at, int(tokens[at])].setdefault(name, (number, row))
    return found


@dataclass(frozen=True)
class _Content:
    """The rows of one value: which of the training's each of the rollout's is.

    Attributes:
        moved: the rows that are those of others, and the sequence and row of the training
            that they are.
        unlike: rows that are none of the training's, which has not the tokens before them either.
    """

    moved: dict[int, tuple[int, int]] = field(default_factory=dict)
    unlike: list[int] = field(default_factory=list)


def _content(walk: Walk, name: Name, index: _Index, rows: np.ndarray) -> _Content | None:
    """Return what the rows of a value are; None where it does not tell what stands before a token.

    Args:
        rows: int64 [rows], of the rollout.
    """
    # Up to which distance a row is that of the training, of its own sample or another.
    stage = walk.stages[name]
    dtypes = zip(stage.dtypes, (side.lowest(name.cell) for side in walk.sides))
    low, high = sorted(max(roundoff(dtype) for dtype in of_side) for of_side in dtypes)
    cast = 2 * OF_ROUNDING * high if low < high else 0.0
    agreed = 0.0 if stage.arising else 2 * stage.most
    bound = max(stage.allowed + GROWTH * stage.entered, agreed, cast)
    mine, theirs = walk.sources[name]
    tokens, at = walk.rollout.tokens, walk.rollout.tokens.rows
    sketched = not (mine.has_elements and theirs.has_elements)
    held, others = _Held(mine, sketched), _Held(theirs, sketched)
    found = _Content()
    try:
        if not _tells(others, index, bound):
            return None
        for row in rows.tolist():
            sequence, position = int(at.sequence[row]), int(at.position[row])
            values = held.row(row)
            if values is None or not np.isfinite(values).all():
                continue
            places = index.get((position, int(tokens.sequences[sequence][position])), {})
            near = [  # those of its token in the training that it is
                name
                for name, (_, place) in places.items()
                if (there := others.row(place)) is not None
                and there.shape == values.shape
                and _distance(values, there) <= bound
            ]
            own = int(tokens.names[row])
            if own in near or len(near) > 1:
                continue
            if near:
                found.moved[row] = places[near[0]]
            elif own not in places:
                found.unlike.append(row)
    except NotAligned:
        return None
    finally:
        mine.close()
        theirs.close()
    return found


class _Held:
    """The rows of a value, a call at a time."""

    def __init__(self, source: Source, sketched: bool) -> None:
        self._source, self._sketched = source, sketched
        self._calls: dict[int, dict[int, np.ndarray]] = {}

    def row(self, number: int) -> np.ndarray | None:
        """Return a row of the phase; None where it is not known.

        Raises:
            NotAligned: it was not stored, or its value is of another kind, or too wide.
        """
        of_phase = self._source.side.tokens.rows
        call = int(of_phase.call[number])
        if call not in self._calls:
            found = {}
            if call in self._source.calls:
                rows = self._source.rows(call, sketched=self._sketched)
                if rows.values.shape[1] > _WIDEST:
                    raise NotAligned(message("mismatch.no_rows"))
                values = np.asarray(rows.values, np.float32)
                found = dict(zip(rows.at.tolist(), values))
            self._calls[call] = found
        return self._calls[call].get(number - int(of_phase.starts[call]))


def _tells(others: _Held, index: _Index, bound: float) -> bool:
    """Return whether the training's rows of one token and position are told by those before."""
    several = (places for places in index.values() if len(places) > 1)
    for places in islice(several, _TOLD_BY):
        held = (others.row(place) for _, place in places.values())
        rows = [row for row in held if row is not None]
        if len(rows) < 2 or any(_distance(row, rows[0]) <= 2 * bound for row in rows[1:]):
            return False
    return any(len(places) > 1 for places in index.values())


def _distance(mine: np.ndarray, theirs: np.ndarray) -> float:
    norm = float(np.linalg.norm(theirs.astype(np.float64)))
    apart = float(np.linalg.norm(mine.astype(np.float64) - theirs))
    return apart / norm if norm else (0.0 if apart == 0 else math.inf)


def _moved(walk: Walk, content: _Content, *, contradicted: bool) -> Reordered:
    """Put rows behind the tokens that they were computed behind."""
    tokens = walk.rollout.tokens
    at = tokens.rows
    sequence, position = at.sequence.copy(), at.position.copy()
    whole = [of.tolist() for of in tokens.sequences]
    begun = [*tokens.begun]
    numbers: dict[int, int] = {}  # of the training's sequences
    for row, (of_training, _) in content.moved.items():
        if of_training not in numbers:
            numbers[of_training] = len(whole)
            whole.append(walk.training.tokens.sequences[of_training].tolist())
            begun.append(walk.prompt(int(at.sequence[row])))
        sequence[row] = numbers[of_training]
    sequence[content.unlike] = position[content.unlike] = UNKNOWN
    known = np.flatnonzero(sequence >= 0)
    sizes = np.zeros(len(whole), np.int64)
    np.maximum.at(sizes, sequence[known], position[known] + 1)
    kept = np.flatnonzero(sizes)
    made = tuple(np.array(whole[n][: int(sizes[n])], np.int64) for n in kept.tolist())
    sequence[known] = np.searchsorted(kept, sequence[known])
    calls = [
        replace(call, sequence=sequence[first:end], position=position[first:end])
        for call, first, end in zip(tokens.calls, at.starts[:-1].tolist(), at.starts[1:].tolist())
    ]
    samples, ends = of_saved(made, walk.rollout.samples)
    found = replace(
        tokens,
        calls=tuple(calls),
        sequences=made,
        begun=tuple(min(begun[n], int(sizes[n])) for n in kept.tolist()),
        samples=samples,
        ends=ends,
    )
    first = min(content.moved)
    saved = walk.training.tokens.samples or (UNKNOWN,) * len(walk.training.tokens.sequences)
    return Reordered(
        found,
        len(content.moved),
        int(at.call[first]),
        first - int(at.starts[at.call[first]]),
        saved[content.moved[first][0]],
        len(content.unlike),
        contradicted,
    )
