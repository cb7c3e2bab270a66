"""Which token each column of a mask or of attention scores is: the keys of a causal network.

The columns of a query's row are all tokens that the network holds: those of its own call, behind
those that a cache holds from the calls before. Which column is which token follows from how many
there are; where it does not, nobody says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.tokens.sequences import UNKNOWN, PhaseTokens

Form = tuple[int, int, int, int]


def key_form(shape: tuple[int, ...], batch: int, width: int) -> Form | None:
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
    """Rows of one sequence in one sample of a call, and the columns of the tokens up to each.

    Attributes:
        sample: the number of the sample in the call.
        sequence: of the phase.
        rows: int64 [rows], rows of the call's token ids; only those all of whose tokens are known.
        position: int64 [rows], of each row's token in its sequence.
        columns: int64 [tokens], the column of each token of the sequence; -1 where there is none.
        padding: bool [columns], which columns are no token.
        others: bool [columns], which columns are tokens of other sequences.
    """

    sample: int
    sequence: int
    rows: np.ndarray
    position: np.ndarray
    columns: np.ndarray
    padding: np.ndarray
    others: np.ndarray

    def take(self, rows: np.ndarray) -> Queries:
        """Return some of the rows, in this order; int64 [rows]."""
        return replace(self, rows=self.rows[rows], position=self.position[rows])


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

    def queries(self, number: int, count: int) -> Iterator[Queries]:
        """Yield the rows of a call, by sample and sequence; none where columns are not known."""
        found = self._columns(number, count)
        if found is None:
            return
        call = self._tokens.calls[number]
        of_rows = call.sequence.reshape(call.batch, call.width)
        for sample in range(call.batch):
            sequence, position = found[0][sample], found[1][sample]
            for one in np.unique(of_rows[sample][of_rows[sample] >= 0]).tolist():
                rows = np.flatnonzero(of_rows[sample] == one) + sample * call.width
                yield self._of_sequence(sample, one, rows, call.position[rows], sequence, position)

    def _of_sequence(
        self,
        sample: int,
        one: int,
        rows: np.ndarray,
        places: np.ndarray,
        sequence: np.ndarray,
        position: np.ndarray,
    ) -> Queries:
        columns = np.full(int(places.max()) + 1, UNKNOWN, np.int64)
        own = sequence == one
        mine = own.copy()
        for other in np.unique(sequence[(sequence >= 0) & ~own]).tolist():
            mine |= (sequence == other) & (position < self._shared(one, other))
        inside = mine & (position < len(columns))
        for these in (inside & ~own, inside & own):  # a sequence may go on behind another's tokens
            at = np.flatnonzero(these)
            columns[position[at]] = at
        doubled = np.bincount(position[inside & own], minlength=len(columns)) > 1
        known = np.cumprod((columns >= 0) & ~doubled[: len(columns)]).astype(bool)
        kept = known[places]
        used = np.zeros(len(sequence), bool)
        used[columns[columns >= 0]] = True
        others = (sequence >= 0) & ~own & ~used
        return Queries(sample, one, rows[kept], places[kept], columns, sequence == UNKNOWN, others)

    def _shared(self, one: int, other: int) -> int:
        """Return how many tokens two sequences begin with alike."""
        a, b = (self._tokens.sequences[number] for number in (one, other))
        length = min(len(a), len(b))
        unlike = a[:length] != b[:length]
        return int(unlike.argmax()) if unlike.any() else length

    def _columns(self, number: int, count: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the sequence and the position of each column, int64 [batch, count]; or None."""
        first = self._first_of(number, count)
        if first is None:
            return None
        if first == number:
            call = self._tokens.calls[number]
            shape = call.batch, call.width
            return call.sequence.reshape(shape), call.position.reshape(shape)
        sequence, position, starts = self._since(first)
        end = int(starts[number - first + 1])
        return sequence[:, :end], position[:, :end]

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
                for each in (
                    [(c, c.sequence) for c in chosen],
                    [(c, c.position) for c in chosen],
                )
            )
            starts = np.concatenate([[0], np.cumsum([c.width for c in chosen])])
            self._cached = {first: (sequence, position, starts)}
        return self._cached[first]
