"""Rows of a sample that has ended: padding, or its last token again, until the longest one ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.comparison.tokens.beginnings import longest_common
from mindrlhf_msprobe.comparison.tokens.sequences import PhaseTokens


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
    for number, (partner, alike) in enumerate(zip(partners.tolist(), common.tolist())):
        if partner < 0 or (mine.samples and mine.samples[number] >= 0):
            continue
        tokens, theirs = mine.sequences[number], other.sequences[partner]
        theirs = theirs[: int(other.last[partner])]
        if _end_alike(tokens, theirs, alike, mine.pad) or _end_alike(
            theirs, tokens, alike, other.pad
        ):
            ends[number] = _without_pads(tokens[:alike], mine.pad)
    return mine if ends == mine.last.tolist() else replace(mine, ends=tuple(ends))


def _end_alike(one: np.ndarray, other: np.ndarray, alike: int, pad: int | None) -> bool:
    """Return whether one sequence goes on with padding, and so does another, or behind a token."""
    if not goes_on_with_padding(one, alike, pad):
        return False
    is_id = alike < len(one) and int(one[alike]) == pad
    return goes_on_with_padding(other, alike + (is_id and alike < len(other)), pad)


def _without_pads(tokens: np.ndarray, pad: int | None) -> int:
    """Return how many tokens come before the padding that they end with; all if all are."""
    others = np.flatnonzero(tokens != pad)
    return int(others[-1]) + 1 if pad is not None and len(others) else len(tokens)
