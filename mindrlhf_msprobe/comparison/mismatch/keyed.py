"""Attention masks and scores of two phases: their columns are tokens, and are aligned as such.

Of a mask it is compared what it lets in, whatever stands for that; of scores the values at the
tokens up to each one. What lets in padding, later tokens or those of other samples differs from
what does not.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.mismatch.rows import (
    Aligned,
    Distances,
    NotAligned,
    Source,
    blocks,
    distances,
    joined,
    row_pairs,
)
from mindrlhf_msprobe.comparison.mismatch.sides import Side
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.sequences.layouts import KeyShape, Queries, key_form
from mindrlhf_msprobe.sequences.matching import Matched
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError

_OPEN = 4  # calls of one side that are kept open
_FAR = -1e3  # added to a score, hides its token
_HIDDEN = -9e3  # a score that is hidden so


class Columns(Enum):
    """What the last axis of a value is."""

    KEYS = "keys"
    FEATURES = "features"
    EITHER = "either"  # features, or keys: nothing decides it


#: In how many rows the mask of the rollout, and that of the training, lets in more columns of
#: padding, of later tokens of the same sequence, of others' samples; and hides more tokens before.
LetsIn = Mapping[str, tuple[int, int]]


class _Keyed:
    """One side of a value whose columns are keys, as far as they are known."""

    def __init__(self, source: Source) -> None:
        self.side: Side = source.side
        (self._value,) = source.values
        self.every = [*self._value.calls]
        self._queries: dict[int, Queries] = {}
        self._open: OrderedDict[int, np.ndarray] = OrderedDict()

    @property
    def widths(self) -> set[int]:
        """The lengths of the last axis."""
        return {(leaf.shape or (0,))[-1] for leaf in self._value.leaves()}

    @cached_property
    def forms(self) -> dict[int, KeyShape]:
        """The shape of each call whose columns are known, in their order."""
        found = {number: self.form(number) for number in self.every}
        return {number: form for number, form in found.items() if form is not None}

    @property
    def calls(self) -> list[int]:
        """The calls whose columns are known."""
        return [*self.forms]

    @property
    def has_keys(self) -> bool:
        """Whether all calls have an axis of queries, and one of keys, as far as that is known.

        One that is as long in all calls, and known in some only, is no axis of keys.
        """
        if not self.forms or not all(map(self._form, self.every)):
            return False
        return len(self.widths) > 1 or len(self.forms) == len(self.every)

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape in a call."""
        return self._value.shape(number)

    def _form(self, number: int) -> KeyShape | None:
        call = self.side.tokens.calls[number]
        return key_form(self.shape(number), call.batch, call.width)

    def form(self, number: int) -> KeyShape | None:
        """Return the shape of a call as `key_form` has it; None where columns are not known."""
        form = self._form(number)
        known = form is not None and self.side.keys.known(number, form[-1])
        return form if known else None

    def values(self, number: int) -> np.ndarray:
        """Return the values of a call, [samples, heads, queries, keys].

        Raises:
            ArrayFileError: they were not stored, or cannot be read.
        """
        if number not in self._open:
            values = np.asarray(self._value.record(number).array())
            self._open[number] = values.reshape(self.forms[number])
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return self._open[number]

    def queries(self, number: int) -> Queries:
        """Return the rows of a call; those of the last one are kept."""
        if number not in self._queries:
            found = self.side.keys.queries(number, self.forms[number][-1])
            assert found is not None
            self._queries = {number: found}
        return self._queries[number]

    def at(self, number: int) -> np.ndarray:
        """Return which rows of a call's token ids there are, int64 [rows]."""
        return self.queries(number).rows


def columns_of(rollout: Source, training: Source) -> Columns | None:
    """Return what the last axis of a value is, from its shapes in all calls of both sides.

    Returns:
        None: features, as `tokens.layouts` has it.
    """
    if rollout.is_fused or training.is_fused:
        return None
    mine, theirs = _Keyed(rollout), _Keyed(training)
    widths = mine.widths | theirs.widths
    if len(widths) > 1:
        return Columns.KEYS if mine.has_keys and theirs.has_keys else None
    sides = mine, theirs
    if all(side.form(n) for side in sides for n in side.every):
        try:  # values may be those of a mask, or of scores behind one
            masks = [_is_mask(side) for side in sides]
            if all(masks) or (not any(masks) and all(map(_is_causal, sides))):
                return Columns.KEYS
        except ArrayFileError:
            pass
    # [b, h, s, s], where s may be keys or the size of a head.
    shapes = ((s.shape(n), s.side.tokens.calls[n].width) for s in sides for n in s.every)
    if not any(len(shape) == 4 and shape[-1] == shape[-2] == wide for shape, wide in shapes):
        return None
    (columns,) = widths
    # A sequence that has more tokens up to a call than there are columns.
    longer = any(
        int(side.side.tokens.calls[number].position.max(initial=-1)) + 1 > columns
        for side in (mine, theirs)
        for number in side.every
    )
    return Columns.FEATURES if longer else Columns.EITHER


def _is_mask(side: _Keyed) -> bool:
    """Return whether all values are such that let a token in or hide it."""
    for number in side.forms:
        values = side.values(number)
        for some in (values[0, 0, :1], values) if values.dtype != bool else ():
            if not ((some == 0) | (some == 1) | (some <= _FAR)).all():
                return False
    return True


def _is_causal(side: _Keyed) -> bool:
    """Return whether all later tokens are hidden, or weigh nothing, wherever there are any."""
    seen = 0
    for number in side.forms:
        for rows in _blocks(side, number, side.queries(number)):
            values = rows.at_tokens()
            later = values[np.broadcast_to(rows.later[:, None], values.shape)]
            if not bool(((later == 0) | (later <= _HIDDEN)).all()):
                return False
            seen += later.size
    return seen > 0


def align_keys(
    name: Name, rollout: Source, training: Source, matched: Matched
) -> tuple[Aligned, LetsIn | None]:
    """Measure a mask's or the scores' rows of the rollout against the training's, token by token.

    Returns:
        The rows; and of a mask in how many of them what is let in.

    Raises:
        NotAligned: what lets a token in is not decided, nothing can be brought together, or all
            that can agrees and samples of one row see each other, or padding of one side alone is
            seen.
    """
    mine, theirs = _Keyed(rollout), _Keyed(training)
    counts = Counter[tuple[str, int]]()
    try:
        masks = [_is_mask(side) for side in (mine, theirs)]
        if masks[0] != masks[1]:
            raise NotAligned(message("mismatch.mask_or_scores"))
        lets_in = [_value_that_lets_in(side) if masks[0] else None for side in (mine, theirs)]
        found: list[Distances] = []
        tokens: list[np.ndarray] = []
        dtypes: set[tuple[str, str]] = set()
        columns = 0
        unsure: set[str] = set()
        starts = rollout.side.tokens.rows.starts
        for number, queries, other, partners in _blocks_of_both(mine, theirs, matched):
            tokens.append(starts[number] + queries.rows)
            dtypes.add((rollout.dtype(number), training.dtype(other)))
            columns = max(columns, queries.columns.shape[1])
            rows = _Rows(mine, number, queries), _Rows(theirs, other, partners)
            if lets_in[0] is None or lets_in[1] is None:
                found.append(_of_scores(*rows))
                continue
            of_both = rows[0].mask(lets_in[0]), rows[1].mask(lets_in[1])
            found.append(_of_masks(*of_both, counts))
            if any(mask.unsure for mask in of_both):
                unsure.add("packed_mask")
            for one, another in (of_both, of_both[::-1]):
                # One leaves to something beside it what the other says itself.
                if bool((one.leaves_padding & ~another.sees_padding).any()):
                    unsure.add("shared_mask")
    except ArrayFileError:
        raise NotAligned(message("mismatch.keys_not_stored")) from None
    if not sum(map(len, tokens)):
        raise NotAligned(message("mismatch.no_rows"))
    aligned = Aligned(name, np.concatenate(tokens), joined(found), max(dtypes), columns)
    if unsure and not aligned.distances.unequal.any():
        raise NotAligned(message(f"mismatch.{min(unsure)}"))
    kinds = ("padding", "later", "others", "hidden")
    lets_in_more = {kind: (counts[kind, 0], counts[kind, 1]) for kind in kinds}
    return aligned, lets_in_more if masks[0] else None


def _blocks_of_both(
    mine: _Keyed, theirs: _Keyed, matched: Matched
) -> Iterator[tuple[int, Queries, int, Queries]]:
    """Yield rows of both sides that are the same tokens, block by block."""
    for pair in row_pairs(mine, theirs, matched):
        size = max(_width(mine, pair.mine), _width(theirs, pair.other))
        for block in blocks(len(pair.rows), size):
            rows = mine.queries(pair.mine).take(pair.rows[block])
            partners = theirs.queries(pair.other).take(pair.partners[block])
            yield pair.mine, rows, pair.other, partners


def _width(side: _Keyed, number: int) -> int:
    """Return the bytes of a row, as they are measured."""
    return 8 * side.forms[number][1] * side.forms[number][3]


def _blocks(side: _Keyed, number: int, queries: Queries) -> Iterator[_Rows]:
    for block in blocks(len(queries.rows), _width(side, number)):
        yield _Rows(side, number, queries.take(np.arange(len(queries.rows))[block]))


class _Rows:
    """The rows of some queries in one call of one side.

    Attributes:
        values: [rows, heads, columns].
        columns: int64 [rows, tokens], those of the tokens of each row's sequence, as far as any row
            has them up to itself; -1 where there is none.
        before: bool [rows, tokens], the tokens up to each row's own.
        later: bool [rows, tokens], those behind it.
    """

    def __init__(self, side: _Keyed, number: int, queries: Queries) -> None:
        self.queries = queries
        values = side.values(number)
        call = side.side.tokens.calls[number]
        inside = queries.rows - queries.sample * call.width
        self.values = values[queries.sample if len(values) > 1 else 0, :, inside]
        #: Whether the samples of the call have masks of their own.
        self.own = len(values) == call.batch
        self.columns = queries.columns[queries.group]
        places = np.arange(self.columns.shape[1])
        self.before = places <= queries.position[:, None]
        self.later = ~self.before & (self.columns >= 0)

    @property
    def longest(self) -> int:
        """How many tokens there are up to any row's own."""
        return int(self.queries.position.max(initial=-1)) + 1

    def at_tokens(self) -> np.ndarray:
        """Return the values at the tokens of each row's sequence, [rows, heads, tokens]."""
        return np.take_along_axis(self.values, self.columns[:, None], axis=2)

    def mask(self, attends: float) -> _Mask:
        """Return what a mask lets in.

        Args:
            attends: the value that lets in; less than that by far, or the other of two, hides.
        """
        queries, lets = self.queries, self.values == attends
        if lets.shape[1] > 1 and bool((lets == lets[:, :1]).all()):
            lets = lets[:, :1]
        at = np.take_along_axis(lets, self.columns[:, None], axis=2)
        own = np.take_along_axis(self.columns, queries.position[:, None], axis=1)
        earlier = np.arange(lets.shape[2]) < own
        padding, others = queries.padding[queries.group], queries.others[queries.group]
        # A mask that all samples share may leave padding to what is given beside it, and one of
        # samples in one row the other samples: as far as they stand before a token.
        seen = (lets & padding[:, None]).any(axis=(1, 2))
        left = seen & False
        if not self.own:
            left = (lets & (padding & earlier)[:, None]).any(axis=(1, 2))
            padding = padding & ~earlier
        hides = (~lets & (others & earlier)[:, None]).any(axis=(1, 2))
        knows = np.isin(queries.group, queries.group[hides])
        knows |= ~queries.packed[queries.group] & self.own
        unsure = bool((lets & (others & earlier & ~knows[:, None])[:, None]).any())
        others = others & (~earlier | knows[:, None])
        of_padding, of_others = ((lets & w[:, None]).sum(axis=2) for w in (padding, others))
        later = (at & self.later[:, None]).sum(axis=2)
        inside = (at & self.before[:, None])[..., : self.longest]
        return _Mask(inside, later, of_padding, of_others, seen, left, unsure)


@dataclass(frozen=True)
class _Mask:
    """What rows of a mask let in.

    Attributes:
        own: bool [rows, heads, tokens], the tokens up to each one.
        later, padding, others: int [rows, heads], how many columns of each kind.
        sees_padding: bool [rows], whether it lets in any padding.
        leaves_padding: bool [rows], whether it lets in padding that is not counted.
        unsure: whether it lets in earlier samples of the same row, and tells them nowhere apart.
            Either it is wrong, or something beside it does so, as the ends of the samples.
    """

    own: np.ndarray
    later: np.ndarray
    padding: np.ndarray
    others: np.ndarray
    sees_padding: np.ndarray
    leaves_padding: np.ndarray
    unsure: bool


def _value_that_lets_in(side: _Keyed) -> float:
    """Return the value with which a mask lets in.

    Raises:
        NotAligned: nothing decides it.
    """
    seen: set[float] = set()
    for number in side.forms:
        values = side.values(number)
        if values.dtype != bool and bool((values <= _FAR).any()):
            return 0.0
        queries, tokens = side.queries(number), side.side.tokens
        sequences = tokens.calls[number].sequence[queries.rows]
        places = zip(sequences.tolist(), queries.position.tolist())
        ids = np.array([tokens.sequences[one][place] for one, place in places], np.int64)
        for rows in _blocks(side, number, queries.take(np.flatnonzero(ids != tokens.pad))):
            own = rows.queries.position[:, None, None]
            seen |= {
                *np.unique(np.take_along_axis(rows.at_tokens(), own, 2)).astype(float).tolist()
            }
    if len(seen) != 1:
        raise NotAligned(message("mismatch.mask_convention"))
    return seen.pop()


def _of_scores(mine: _Rows, theirs: _Rows) -> Distances:
    """Measure scores at the tokens up to each one; those that are hidden count as 0."""
    both = []
    for rows in (mine, theirs):
        values = rows.at_tokens()[..., : rows.longest]
        if values.dtype.kind not in "fiu":
            raise NotAligned(message("mismatch.kind", dtype=str(values.dtype)))
        before = rows.before[:, None, : rows.longest]
        kept = np.where(before & ~(values <= _HIDDEN), values, 0)
        both.append(kept.reshape(len(kept), -1))
    if both[0].shape != both[1].shape:
        heads = mine.values.shape[1], theirs.values.shape[1]
        raise NotAligned(message("mismatch.heads", rollout=heads[0], training=heads[1]))
    return distances(both[0], both[1])


def _of_masks(mine: _Mask, theirs: _Mask, counts: Counter[tuple[str, int]]) -> Distances:
    """Measure how many tokens are let in by one mask alone; the norm is how many are let in.

    Count rows in which a mask lets in or hides what the other does not, by kind and side.
    """
    if mine.own.shape != theirs.own.shape:
        heads = mine.own.shape[1], theirs.own.shape[1]
        raise NotAligned(message("mismatch.heads", rollout=heads[0], training=heads[1]))
    hidden = [(a & ~b).sum(axis=2) for a, b in ((theirs.own, mine.own), (mine.own, theirs.own))]
    squared = hidden[0] + hidden[1]
    norms = theirs.own.sum(axis=2)
    differing = {"hidden": hidden}
    for kind in ("padding", "later", "others"):
        a, b = differing[kind] = [getattr(mask, kind) for mask in (mine, theirs)]
        squared = squared + np.abs(a - b)
        norms = norms + b
    for kind, (a, b) in differing.items():
        counts[kind, 0] += int((a > b).any(axis=1).sum())
        counts[kind, 1] += int((b > a).any(axis=1).sum())
    total = squared.sum(axis=1).astype(np.float64)
    return Distances(total, norms.sum(axis=1).astype(np.float64), total > 0)
