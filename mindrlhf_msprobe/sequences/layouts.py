"""Which axes of a tensor are its tokens, and which token each column of a mask or of scores is.

A layout is read from the shape, by the batch and width of the token ids of its call. Where a shape
fits several, the shapes of the same value in other calls decide; where they do not, nobody does.

The columns of a query's row are all tokens that the network holds: those of its own call, behind
those that a cache holds from the calls before. Which column is which token follows from how many
there are; where it does not, nobody says it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.sequences.beginnings import shared_length
from mindrlhf_msprobe.sequences.calls import UNKNOWN, PhaseTokens, TokenCall


class Layout(Enum):
    """How the axes of a tensor stand: b batch, s sequence, t both in one, h heads, d the others."""

    BATCH_FIRST = "b s d"
    TOKENS = "t d"
    SEQUENCE_FIRST = "s b d"
    HEADS = "b h s d"
    SAMPLES = "b d"  # of the last token of each sample
    POSITIONS = "s d"  # the same for all samples


Shape = tuple[int, ...]


def layouts_of(shape: Shape, batch: int, width: int, *, heads: bool = False) -> set[Layout]:
    """Return the layouts that a shape fits; those that are one and the same are named once.

    Args:
        heads: a last axis as long as the sequence has features, no keys.
    """
    found = {layout for layout, fits in _FITS.items() if shape and fits(shape, batch, width)}
    if heads and len(shape) == 4 and (shape[0], shape[2]) == (batch, width):
        found.add(Layout.HEADS)
    if Layout.BATCH_FIRST in found and 1 in (batch, width):
        found.discard(Layout.TOKENS)
    return found


def _is_heads(shape: Shape, batch: int, width: int) -> bool:
    # A last axis as long as the sequence may be that of keys, whose columns are no features.
    return len(shape) == 4 and (shape[0], shape[2]) == (batch, width) and shape[3] != width


def _is_positions(shape: Shape, batch: int, width: int) -> bool:
    leading = shape.index(width) if width in shape else len(shape)
    alone = len(shape) - leading == 2 and set(shape[:leading]) <= {1}
    return alone and batch > 1 and width > 1


_FITS: dict[Layout, Callable[[Shape, int, int], bool]] = {
    Layout.BATCH_FIRST: lambda shape, batch, width: shape[:2] == (batch, width),
    Layout.TOKENS: lambda shape, batch, width: shape[0] == batch * width and len(shape) in (2, 3),
    Layout.SEQUENCE_FIRST: lambda shape, batch, width: (
        shape[:2] == (width, batch) and 1 not in (batch, width)
    ),
    Layout.HEADS: _is_heads,
    Layout.SAMPLES: lambda shape, batch, width: len(shape) == 2 and shape[0] == batch and width > 1,
    Layout.POSITIONS: _is_positions,
}


def only_layout(
    seen: Iterable[tuple[Shape, int, int]], *, heads: bool = False
) -> dict[tuple[Shape, int, int], Layout]:
    """Return the layout of each call of one value; without those that nothing decides.

    Args:
        seen: of each call, the shape of the value, and the batch and width of the token ids.
        heads: a last axis as long as the sequence has features, no keys.
    """
    fits = {call: layouts_of(*call, heads=heads) for call in seen}
    alone = {next(iter(found)) for found in fits.values() if len(found) == 1}
    chosen = {}
    for call, found in fits.items():
        wanted = found & alone if len(found) > 1 else found
        if len(wanted) != 1:  # those of other calls go with one
            wanted = found & ({Layout.SEQUENCE_FIRST} & alone or {Layout.BATCH_FIRST} & alone)
        if not wanted and found <= {Layout.BATCH_FIRST, Layout.SEQUENCE_FIRST}:
            wanted = found & {Layout.BATCH_FIRST}  # as the token ids themselves stand
        if len(wanted) == 1:
            chosen[call] = next(iter(wanted))
    return chosen


def rows_of_tokens(
    values: np.ndarray, layout: Layout, call: TokenCall
) -> tuple[np.ndarray, np.ndarray]:
    """Return a tensor with a row for each token, [rows, columns], and which rows of the call.

    Args:
        values: as recorded; or its sketch, whose last axis is shorter.

    Returns:
        A view where that is possible; and int64 [rows], rows of the call's token ids.
    """
    batch, width = call.batch, call.width
    every = np.arange(batch * width)
    if layout is Layout.HEADS:
        values = values.transpose(0, 2, 1, 3)
    elif layout is Layout.SEQUENCE_FIRST:
        values = values.swapaxes(0, 1)
    elif layout is Layout.SAMPLES:
        last = call.last_rows()
        known = last != UNKNOWN
        return values[known], last[known]
    elif layout is Layout.POSITIONS:
        values = values.reshape(width, -1)
        return np.broadcast_to(values, (batch, *values.shape)).reshape(batch * width, -1), every
    return values.reshape(batch * width, math.prod(values.shape) // max(1, batch * width)), every


KeyShape = tuple[int, int, int, int]


def key_form(shape: tuple[int, ...], batch: int, width: int) -> KeyShape | None:
    """Return a shape as [samples, heads, queries, keys]; samples are 1 where all share one.

    None where the shape has no axis of queries: [b, h, s, k], [b, s, k], [h, s, k] of one sample
    and [s, k] have one. Of as many samples as tokens, two axes may be [b, k].
    """
    if not 2 <= len(shape) <= 4 or 0 in shape or shape[-2] != width:
        return None
    if len(shape) == 2 and batch == width > 1:
        return None
    first = shape[0] if len(shape) > 2 else 1
    if len(shape) == 3 and first != batch and batch == 1:
        return 1, first, width, shape[-1]
    if first not in (1, batch):
        return None
    return first, shape[1] if len(shape) == 4 else 1, width, shape[-1]


@dataclass(frozen=True)
class Queries:
    """Rows of a call, and the columns of the tokens up to each.

    Rows of one sequence in one sample have their columns in common: they are a group.

    Attributes:
        rows: int64 [rows], rows of the call's token ids; only those all of whose tokens are known.
        sample, position, group: int64 [rows], of each: the number of the sample in the call, the
            place of the token in its sequence, and the group.
        columns: int64 [groups, tokens], the column of each token of a sequence; -1 where there is
            none.
        padding, others: bool [groups, columns], which columns are no token, or of other sequences.
        packed: bool [groups], whether several sequences stand in the row of the sample.
    """

    rows: np.ndarray
    sample: np.ndarray
    position: np.ndarray
    group: np.ndarray
    columns: np.ndarray
    padding: np.ndarray
    others: np.ndarray
    packed: np.ndarray

    def take(self, rows: np.ndarray) -> Queries:
        """Return some of the rows, in this order; int64 [rows]."""
        found = {name: getattr(self, name)[rows] for name in ("rows", "sample")}
        return replace(self, **found, position=self.position[rows], group=self.group[rows])


class Keys:
    """The columns of a phase's calls, by how many there are.

    Args:
        tokens: of the phase.
    """

    def __init__(self, tokens: PhaseTokens) -> None:
        self._tokens = tokens
        self._cached: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._first: dict[tuple[int, int], int | None] = {}

    def known(self, number: int, count: int) -> bool:
        """Return whether it is known which token each of so many columns of a call is."""
        return self._first_of(number, count) is not None

    def queries(self, number: int, count: int) -> Queries | None:
        """Return the rows of a call; None where it is not known what its columns are."""
        first = self._first_of(number, count)
        if first is None:
            return None
        call = self._tokens.calls[number]
        found = [of.reshape(call.batch, call.width) for of in (call.sequence, call.position)]
        if first != number:  # columns of earlier calls stand before its own
            sequence, position, starts = self._since(first)
            end = int(starts[number - first + 1])
            found = [sequence[:, :end], position[:, :end]]
        rows = np.flatnonzero(call.sequence >= 0)
        sample, sequences = rows // max(1, call.width), call.sequence[rows]
        most = len(self._tokens.sequences)
        groups, group = np.unique(sample * most + sequences, return_inverse=True)
        return self._grouped((rows, sample, call.position[rows], group), groups, *found)

    def _grouped(
        self,
        of_rows: tuple[np.ndarray, ...],
        groups: np.ndarray,
        sequence: np.ndarray,
        position: np.ndarray,
    ) -> Queries:
        """Return rows with the columns of their groups.

        Args:
            of_rows: what `Queries` has of each row.
            groups: int64 [groups], rising: the sample times the number of sequences, and the
                sequence.
            sequence, position: int64 [batch, columns], of each column.
        """
        rows, sample, places, group = of_rows
        most = len(self._tokens.sequences)
        in_sample, own = sequence[groups // most], groups % most
        size = int(places.max(initial=-1)) + 1
        columns = np.full((len(groups), size), UNKNOWN, np.int64)
        times = np.zeros((len(groups), size), np.int64)
        position = position[groups // most]
        # Of a sequence that goes on behind the first tokens of others, the columns of these.
        going_on = [n for n, begun in enumerate(self._tokens.begun) if not begun]
        for number in np.flatnonzero(np.isin(own, going_on)).tolist():
            of_group, mine = in_sample[number], int(own[number])
            for other in np.unique(of_group[of_group >= 0]).tolist():
                shared = shared_length(*(self._tokens.sequences[n] for n in (mine, other)))
                shared = 0 if other == mine else min(shared, size)
                at = np.flatnonzero((of_group == other) & (position[number] < shared))
                columns[number, position[number, at]] = at
        at, column = np.nonzero((in_sample == own[:, None]) & (position < size))
        place = position[at, column]
        columns[at, place] = column
        np.add.at(times, (at, place), 1)
        known = np.logical_and.accumulate((columns >= 0) & (times < 2), axis=1)
        kept = known[group, places]
        used = np.zeros(in_sample.shape, bool)
        at, place = np.nonzero(columns >= 0)
        used[at, columns[at, place]] = True
        others = (in_sample >= 0) & (in_sample != own[:, None]) & ~used
        padding = in_sample == UNKNOWN
        packed = np.bincount(groups // most)[groups // most] > 1
        found = Queries(rows, sample, places, group, columns, padding, others, packed)
        return found.take(np.flatnonzero(kept))

    def _first_of(self, number: int, count: int) -> int | None:
        """Return the first of the calls whose tokens are so many columns; None if none is."""
        key = number, count
        if key not in self._first:
            calls = self._tokens.calls
            first, have = number, calls[number].width
            while have < count and first > 0 and self._goes_on(first):
                first -= 1
                have += calls[first].width
            self._first[key] = first if have == count else None
        return self._first[key]

    def _goes_on(self, number: int) -> bool:
        """Return whether a call's columns may stand behind those of the call before.

        Not behind padding: the next token may as well take its place.
        """
        before, call = self._tokens.calls[number - 1], self._tokens.calls[number]
        known = (before.sequence >= 0).reshape(before.batch, before.width)
        padded = known.any(axis=1) & ~known[:, -1] if before.width else known.any(axis=1)
        return before.batch == call.batch and not padded.any()

    def _since(self, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the columns of all calls that go on behind one, and where those of each begin."""
        if first not in self._cached:
            calls = self._tokens.calls
            last = first + 1
            while last < len(calls) and self._goes_on(last):
                last += 1
            chosen = calls[first:last]
            sequence, position = (
                np.concatenate([of.reshape(c.batch, c.width) for c, of in each], axis=1)
                for each in ([(c, c.sequence) for c in chosen], [(c, c.position) for c in chosen])
            )
            starts = np.concatenate([[0], np.cumsum([c.width for c in chosen])])
            self._cached = {first: (sequence, position, starts)}
        return self._cached[first]
