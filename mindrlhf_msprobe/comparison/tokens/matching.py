"""Which row of one phase is the same token as a row of another."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.tokens.beginnings import longest_common
from mindrlhf_msprobe.comparison.tokens.sequences import UNKNOWN, PhaseTokens, TokenCall


@dataclass(frozen=True)
class Partner:
    """Where the rows of one call are found on the other side.

    Attributes:
        call: int64 [rows], the number of the other side's call; -1 where the row has no partner.
        row: int64 [rows], the row in that call; -1 likewise.
    """

    call: np.ndarray
    row: np.ndarray

    @cached_property
    def by_call(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """For each call of the other side: its number, rows of this call, and its rows for them."""
        return [
            (other, at, self.row[at])
            for other in np.unique(self.call[self.call >= 0]).tolist()
            if len(at := np.flatnonzero(self.call == other))
        ]


@dataclass(frozen=True)
class Matched:
    """The rows of one phase and their partners in another.

    Attributes:
        partners: of each call of the first phase.
        sequences: int64 [sequences of the first phase], the sequence of the second that begins
            like it; -1 without one.
        common: int64 [sequences of the first phase], how many tokens both begin with.
    """

    partners: tuple[Partner, ...]
    sequences: np.ndarray
    common: np.ndarray

    @property
    def rows(self) -> int:
        """How many rows have a partner."""
        return sum(int((partner.row >= 0).sum()) for partner in self.partners)


def match(mine: PhaseTokens, other: PhaseTokens) -> Matched:
    """Find the rows of `mine` in `other`: the same token behind the same tokens.

    A sequence goes with the one that it shares the most first tokens with; of several alike, each
    with one of its own as far as there are as many. All rows of what they share are partners, but
    for those behind the end of a response in either.
    """
    sequences, common = longest_common(mine.sequences, other.sequences)
    places = _Places(other)
    within = np.minimum(common, mine.last)
    known = sequences >= 0
    within[known] = np.minimum(within[known], other.last[sequences[known]])
    partners = tuple(_partner(call, sequences, within, places) for call in mine.calls)
    return Matched(partners, sequences, common)


class _Places:
    """Where the tokens of all sequences are, one sequence behind the other.

    Attributes:
        starts: int64 [sequences], the number of the first token of each.
        call, row: int64 [tokens].
    """

    def __init__(self, of: PhaseTokens) -> None:
        sizes = [len(sequence) for sequence in of.sequences]
        self.starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        empty = np.zeros(0, np.int64)
        self.call, self.row = (np.concatenate([empty, *found]) for found in of.places)


def _partner(
    call: TokenCall, sequences: np.ndarray, common: np.ndarray, places: _Places
) -> Partner:
    found_call = np.full(call.sequence.size, UNKNOWN, np.int64)
    found_row = np.full(call.sequence.size, UNKNOWN, np.int64)
    known = np.flatnonzero(call.sequence >= 0)
    of = call.sequence[known]
    shared = (sequences[of] >= 0) & (call.position[known] < common[of])
    known, of = known[shared], of[shared]
    at = places.starts[sequences[of]] + call.position[known]
    found_call[known], found_row[known] = places.call[at], places.row[at]
    return Partner(found_call, found_row)
