"""Which row of one phase is the same token as a row of another, and how many of all have one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.sequences.batch import Sample
from mindrlhf_msprobe.sequences.beginnings import longest_common, prefix_names, run_at_end
from mindrlhf_msprobe.sequences.calls import UNKNOWN, PhaseTokens, TokenRows


class CallPair(NamedTuple):
    """Rows of two calls that are the same tokens.

    Attributes:
        mine, other: the numbers of the calls, of the first phase and of the second.
        rows, partners: int64 [any], rows of the token ids of either.
    """

    mine: int
    other: int
    rows: np.ndarray
    partners: np.ndarray


@dataclass(frozen=True)
class Matched:
    """The rows of one phase and their partners in another.

    Attributes:
        partners: int64 [rows of the first phase], the row of the second that is the same token; -1
            without one. Rows are numbered through all calls, see `TokenRows`.
        sequences: int64 [sequences of the first phase], the sequence of the second that begins
            like it; -1 without one.
        common: int64 [sequences of the first phase], how many tokens both begin with.
        calls: those that have tokens in common.
    """

    partners: np.ndarray
    sequences: np.ndarray
    common: np.ndarray
    calls: tuple[CallPair, ...]

    @cached_property
    def aligned(self) -> np.ndarray:
        """The rows of the first phase that have a partner, int64."""
        return np.flatnonzero(self.partners >= 0)

    @property
    def rows(self) -> int:
        """How many rows have a partner."""
        return len(self.aligned)


def match(mine: PhaseTokens, other: PhaseTokens) -> Matched:
    """Find the rows of `mine` in `other`: the same token behind the same tokens.

    A sequence goes with the one that it shares the most first tokens with; of several such, each
    with one of its own as far as there are as many. All rows of what they share are partners, but
    for those behind the end of a response in either.
    """
    sequences, common = longest_common(mine.sequences, other.sequences)
    within = np.minimum(common, mine.last)
    matched = sequences >= 0
    within[matched] = np.minimum(within[matched], other.last[sequences[matched]])
    rows = mine.rows
    known = np.flatnonzero(rows.sequence >= 0)
    of = rows.sequence[known]
    shared = (sequences[of] >= 0) & (rows.position[known] < within[of])
    known, of = known[shared], of[shared]
    partners = np.full(rows.count, UNKNOWN, np.int64)
    partners[known] = other.places[other.starts[sequences[of]] + rows.position[known]]
    return Matched(partners, sequences, common, tuple(_call_pairs(rows, other.rows, partners)))


def _call_pairs(mine: TokenRows, other: TokenRows, partners: np.ndarray) -> Iterator[CallPair]:
    """Yield the calls of two phases that have tokens in common, by their numbers."""
    rows = np.flatnonzero(partners >= 0)
    calls = np.stack([mine.call[rows], other.call[partners[rows]]])
    order = np.lexsort(calls[::-1])  # rows of one pair stay in their order
    begins = np.flatnonzero(np.diff(calls[:, order], axis=1, prepend=-1).any(axis=0))
    for of_pair in np.split(order, begins[1:]) if len(rows) else ():
        own, there = (int(number) for number in calls[:, of_pair[0]])
        at = rows[of_pair]
        yield CallPair(own, there, at - mine.starts[own], partners[at] - other.starts[there])


def goes_on_with_padding(tokens: np.ndarray, size: int, pad: int | None) -> bool:
    """Return whether nothing but padding follows behind the first tokens of a sequence.

    Padding is its id, or the last token over and over again.

    Args:
        tokens: int64 [tokens].
        size: how many come before.
        pad: the token id of padding, or None.
    """
    behind = tokens[size:]
    if not len(behind) or (pad is not None and bool((behind == pad).all())):
        return True
    return size > 0 and bool((behind == tokens[size - 1]).all())


def without_padding(mine: PhaseTokens, other: PhaseTokens) -> PhaseTokens:
    """Return the tokens of a phase whose sequences end where padding alone follows on both sides.

    The training may have one token more: the last one, which need not be given to the rollout.
    Saved responses say better where a sequence ends: those that are one are left as they are.
    """
    partners, common = longest_common(mine.sequences, other.sequences)
    ends = mine.last.tolist()
    for number, (partner, shared) in enumerate(zip(partners.tolist(), common.tolist())):
        if partner < 0 or (mine.samples and mine.samples[number] >= 0):
            continue
        tokens, theirs = mine.sequences[number], other.sequences[partner]
        theirs = theirs[: int(other.last[partner])]
        if _end_together(tokens, theirs, shared, mine.pad) or _end_together(
            theirs, tokens, shared, other.pad
        ):
            # Before the padding that they end with; all of them if all are padding.
            ends[number] = shared - run_at_end(tokens[:shared], mine.pad) or shared
    return mine if ends == mine.last.tolist() else replace(mine, ends=tuple(ends))


def _end_together(one: np.ndarray, other: np.ndarray, shared: int, pad: int | None) -> bool:
    """Return whether one sequence goes on with padding, and so does another, or behind a token."""
    if not goes_on_with_padding(one, shared, pad):
        return False
    is_id = shared < len(one) and int(one[shared]) == pad
    return goes_on_with_padding(other, shared + (is_id and shared < len(other)), pad)


@dataclass(frozen=True)
class Coverage:
    """Counts of tokens.

    Attributes:
        rows, tokens: rows of the rollout that were aligned, of all that are tokens.
        saved_aligned, saved: tokens of saved prompts and responses that were aligned, of all whose
            rows both phases should have; 0 of 0 where nothing was saved.
        sampled_aligned, sampled: rows whose next token was sampled, the last of a prompt and those
            of a response: how many were aligned, of how many. Of the rollout's, or of the saved
            samples', whichever share is smaller.
    """

    rows: int
    tokens: int
    saved_aligned: int = 0
    saved: int = 0
    sampled_aligned: int = 0
    sampled: int = 0

    @property
    def sampled_share(self) -> float:
        """The share of rows whose next token was sampled that was aligned, 0 to 1."""
        return self.sampled_aligned / self.sampled if self.sampled else self.share

    @property
    def share(self) -> float:
        """The smaller share that was aligned, 0 to 1; of no tokens 0."""
        shares = [self.rows / self.tokens if self.tokens else 0.0]
        if self.saved:
            shares.append(self.saved_aligned / self.saved)
        return min(shares)


def coverage(
    rollout: PhaseTokens,
    training: PhaseTokens,
    matched: Matched,
    samples: Sequence[Sample] = (),
    window: tuple[int, float] = (0, np.inf),
) -> Coverage:
    """Count the tokens of a rollout that have a row in the training.

    The last token of a response is sampled, and need not be given to a network. Samples whose
    prompts neither phase was given are another rank's, and not counted.

    Args:
        matched: of both phases.
        samples: prompts and responses of the step.
        window: the first and the last token that were to be recorded: 0 is the call with the
            prompts, n the one that is given the response's n-th token.
    """
    count = rollout.count
    # How many rows whose next token was sampled are aligned, and of how many. Of a phase that was
    # given whole samples, of which nothing says where a response begins, all rows count.
    known = rollout.within(rollout.rows)
    begun = np.array([*rollout.begun, *[0] * (len(rollout.sequences) - len(rollout.begun))])
    behind = rollout.rows.position[known] - begun[rollout.rows.sequence[known]]
    if rollout.lost or bool((behind >= 0).any()):
        known = known[behind >= -1]
    sampled = int((matched.partners[known] >= 0).sum()), len(known) + rollout.lost
    there = [prefix_names(tokens) for side in (rollout, training) for tokens in side.sequences]
    given = np.unique(np.concatenate([np.zeros(0, np.uint64), *there]))
    aligned = np.unique(rollout.names[matched.aligned])
    found = wanted = found_next = wanted_next = 0
    for sample in samples:
        size = len(sample.prompt)
        names = prefix_names(sample.tokens)
        if not size or not np.isin(names[size - 1], given):
            continue
        generated = np.maximum(np.arange(len(names)) - size + 1, 0)
        wanted_rows = (window[0] <= generated) & (generated <= window[1])
        wanted_rows[-1] &= len(names) == size
        found += int(np.isin(names[wanted_rows], aligned).sum())
        wanted += int(wanted_rows.sum())
        wanted_rows[: size - 1] = False
        wanted_rows[-1] &= len(names) == size  # behind the last token none was sampled
        found_next += int(np.isin(names[wanted_rows], aligned).sum())
        wanted_next += int(wanted_rows.sum())
    if wanted_next and found_next * sampled[1] <= sampled[0] * wanted_next:
        sampled = found_next, wanted_next
    return Coverage(matched.rows, count, found, wanted, *sampled)
