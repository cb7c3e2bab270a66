"""Whole numbers that a cell is given, such as positions: are they why its rows part?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.mismatch.rows.pairs import Source, Unfit
from mindrlhf_msprobe.comparison.tokens.matching import Matched
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError


class Numbers(NamedTuple):
    """The numbers of one token.

    Attributes:
        row: of the rollout.
    """

    row: int
    rollout: int
    training: int


def other_numbers(
    rollout: Source, training: Source, matched: Matched, apart: np.ndarray
) -> Numbers | None:
    """Return other numbers that were given for one token, if they explain which rows part.

    Positions may be counted otherwise in both, with the padding or without, and no row parts by
    it. They explain rows that part if they are others for all of these and for no other row.

    Args:
        rollout, training: a value with one whole number for each token.
        apart: int64 [any], rows of the rollout that part.
    """
    found: dict[int, tuple[int, int]] = {}
    starts = rollout.side.tokens.rows.starts
    try:
        theirs = {number: _numbers(training, number) for number in training.values[0].calls}
        for number in rollout.values[0].calls:
            mine = _numbers(rollout, number)
            for other, at, wanted in matched.partners[number].by_call:
                if other in theirs:
                    pairs = zip(mine[at].tolist(), theirs[other][wanted].tolist())
                    found |= zip((starts[number] + at).tolist(), pairs)
    except (ArrayFileError, Unfit):
        return None
    differ = {row for row, (x, y) in found.items() if x != y}
    if not differ or differ != {*apart.tolist()}:
        return None
    row = min(differ)
    return Numbers(row, *found[row])


def _numbers(source: Source, number: int) -> np.ndarray:
    """Return a number for each token of a call, in the order of its rows.

    Raises:
        ArrayFileError: they were not stored.
        Unfit: it has other shapes, or no whole numbers.
    """
    call, value = source.side.tokens.calls[number], source.values[0]
    if len(source.values) == 1 and value.has_elements:
        found = value.record(number).array()
        if found.dtype.kind in "iu" and found.size == call.batch * call.width:
            turned = found.shape == (call.width, call.batch) and call.width != call.batch
            return (found.T if turned else found).reshape(-1)
        if found.dtype.kind in "iu" and found.size == call.width:
            return np.tile(found.reshape(-1), call.batch)
    raise Unfit(message("mismatch.no_layout"))
