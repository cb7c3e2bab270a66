"""Which of a call's token ids are tokens, and which are padding.

A mask may be what is wrong in a network. What was saved as prompts and responses says better where
the tokens of a sample stand; what the network was given says it where nothing was saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindrlhf_msprobe.sequences.batch import Sample
from mindrlhf_msprobe.sequences.beginnings import run_at_start, shared_length
from mindrlhf_msprobe.sequences.inputs import CallInputs
from mindrlhf_msprobe.sequences.saved import SavedSamples


class Padding:
    """Tells padding from tokens.

    Args:
        pad: the token id of padding, or None.
        saved: prompts and responses of the step.

    Attributes:
        pad, saved: the same.
        let_in: in how many rows of the last call its mask lets padding before the tokens in.
        fillers: the ids that stand in padding before tokens, by what was given or saved.
        is_unsure: whether nothing says what is padding in the last call; it may be none.
        own: by the tokens of saved samples that stood behind padding, how many ids of it the
            network was given as tokens before them: in samples one behind the other, which need no
            padding; else, or None of either.
    """

    def __init__(self, pad: int | None, saved: SavedSamples) -> None:
        self.pad, self.saved = pad, saved
        self.let_in = 0
        self.fillers: set[int] = set()
        self.is_unsure = False
        self.own: dict[bytes, tuple[int | None, int | None]] = {}
        self._filled: dict[int, list[Sample]] = {}
        for sample in saved.all:
            if len(sample.filler) and len(sample.prompt):
                self._filled.setdefault(int(sample.prompt[0]), []).append(sample)
        self._start: int | None = None  # the first position of sequences

    def tokens(self, inputs: CallInputs) -> np.ndarray | None:
        """Return which of the ids of a padded call are tokens, bool [batch, width].

        None where what was given fits several sides, and it matters.
        """
        self.let_in = 0
        valid = as_given(inputs, self.pad)
        self.is_unsure = (
            inputs.ids.shape[1] > 1 and self.pad is None and valid is not None and bool(valid.all())
        )
        found = self._by_saved(inputs, valid)
        for row, mine in zip(inputs.ids, () if found is None or not found.size else found):
            self.fillers.update(row[: int(mine.argmax())].tolist())
        return found

    @property
    def may_be_own(self) -> bool:
        """Whether what stood before saved prompts may be tokens of theirs."""
        return bool(self._filled)

    def begin(self, inputs: CallInputs, parts: Sequence[np.ndarray], packed: bool) -> None:
        """Take note of the ids of padding that samples of a call begin with as they were given.

        Args:
            parts: int64 [tokens] each, the rows of their tokens.
            packed: whether they stand one behind the other.
        """
        ids = inputs.ids.reshape(-1).astype(np.int64)
        positions = None if inputs.positions is None else inputs.positions.reshape(-1)
        parts = [rows for rows in parts if len(rows) > 1]
        if positions is not None and parts:
            if self._start is None:
                self._start = min(int(positions[rows[0]]) for rows in parts)
            parts = [rows for rows in parts if positions[rows[0]] == self._start]
        for tokens in (ids[rows] for rows in parts):
            count = run_at_start(tokens, self.pad)
            behind = tokens[count:]
            for sample in self._filled.get(int(behind[0]), ()) if len(behind) else ():
                same = shared_length(behind, sample.tokens)
                if count <= len(sample.filler) and same >= min(len(behind), len(sample.prompt)):
                    key, at = sample.tokens.tobytes(), int(not packed)
                    found = [*self.own.get(key, (None, None))]
                    found[at] = count if found[at] is None else min(count, found[at] or 0)
                    self.own[key] = found[0], found[1]

    def _by_saved(self, inputs: CallInputs, valid: np.ndarray | None) -> np.ndarray | None:
        """Return which of the ids are tokens by what was saved, where that says it."""
        width = inputs.ids.shape[1]
        if width == 1 or not self.saved.prompted:
            return valid
        found = np.ones(inputs.ids.shape, bool) if valid is None else valid.copy()
        for row, mine in zip(inputs.ids.astype(np.int64), found):
            first = None
            if not self.saved.held_by(row[mine]):  # the columns that are given begin with none
                filled = run_at_start(row, int(row[0]) if self.pad is None else self.pad)
                fitting = [(self.saved.held_by(row[at:]), -at) for at in range(filled + 1)]
                length, at = max(fitting)
                first = -at if length else None
            if first is None and valid is None:
                return None
            self.is_unsure &= first is None and not self.saved.held_by(row[mine])
            if first is not None:
                self.let_in += valid is inputs.mask and bool(mine[:first].any() and mine[first])
                last = width - 1 - int(mine[::-1].argmax()) if mine.any() else -1
                mine[:] = np.arange(width) >= first
                if first <= last:
                    mine[last + 1 :] = False
        return found


def as_given(inputs: CallInputs, pad: int | None) -> np.ndarray | None:
    """Return which of the token ids are tokens, bool [batch, width]; the others are padding.

    Lengths are those of samples that begin in the first column, unless the positions of all samples
    rise from 0 in the last ones, or the ids before are one and the same. None where the positions
    fit both, and it matters. Where nothing but ids is given, a network that pads on the left masks
    what its configuration calls padding.
    """
    batch, width = inputs.ids.shape
    lengths, mask = inputs.lengths, inputs.mask
    every = np.ones((batch, width), bool)
    if width == 1:
        return every
    if mask is not None and mask.shape[1] == width:
        return mask
    if lengths is not None:
        if len(lengths) != batch or (lengths > width).any():
            return every
        return _by_lengths(lengths, inputs.positions, inputs.ids)
    found = every if inputs.positions is None else _by_positions(inputs.positions, inputs.ids, pad)
    if found.all() and (sees := inputs.sees) is not None:
        # What follows columns of one id that no token behind them sees.
        seen = np.any(sees & np.tril(np.ones((width, width), bool), -1), axis=1)
        first = np.where(seen.any(axis=1), seen.argmax(axis=1), 0)
        found = np.arange(width) >= np.broadcast_to(first, batch)[:, None]
        for row, mine in zip(inputs.ids, found):
            mine |= bool((row[~mine] != row[0]).any())
    if inputs.positions is None and found.all() and pad is not None:
        return np.logical_or.accumulate(inputs.ids != pad, axis=1)
    return found


def _by_positions(positions: np.ndarray, ids: np.ndarray, pad: int | None) -> np.ndarray:
    """Return what follows padding whose positions do not count, bool [batch, width].

    Such padding has one position in all its columns, and what follows counts up. Of one token
    behind padding the other samples say the side, or the token id of padding.
    """
    batch, width = positions.shape
    valid = np.ones((batch, width), bool)
    single = []
    for number, row in enumerate(positions):
        edges = np.flatnonzero(np.diff(row) != 1) + 1
        begins = np.concatenate([[0], edges])
        sizes = np.diff(np.concatenate([begins, [width]]))
        first = int(begins[sizes.argmax()])
        if sizes.max() == 1 and bool((row[:-1] == row[0]).all()):
            single.append(number)
        elif first and bool((row[:first] == row[0]).all()) and _is_one(ids[number][:first]):
            valid[number, :first] = False
    for number in single:
        row = ids[number]
        filled = pad is not None and bool((row[:-1] == pad).all()) and int(row[-1]) != pad
        if filled or not valid[:, 0].all():
            valid[number, :-1] = False
    return valid


def _is_one(ids: np.ndarray) -> bool:
    return bool((ids == ids[0]).all())


def _by_lengths(
    lengths: np.ndarray, positions: np.ndarray | None, ids: np.ndarray
) -> np.ndarray | None:
    """Return which of the token ids are tokens, by their number and positions; None if both fit.

    Without positions they stand last where one id alone stands before them in all rows, and in some
    row several stand behind them if they stood first.
    """
    width = ids.shape[1]
    columns = np.arange(width)
    right = columns < lengths[:, None]
    left = columns >= width - lengths[:, None]
    if np.array_equal(left, right):
        return right
    if positions is None:
        before, behind = ids[~left], ids[~right]
        return left if _is_one(before) and not _is_one(behind) else right
    fits_right = bool(((positions == columns) | ~right).all())
    fits_left = bool(((positions == np.cumsum(left, axis=1) - 1) | ~left).all())
    if fits_left and fits_right:
        return None
    if not (fits_left or fits_right):  # counted from another number than 0
        first = np.take_along_axis(positions, left.argmax(axis=1)[:, None], axis=1)
        fits_left = bool(((positions - first == np.cumsum(left, axis=1) - 1) | ~left).all())
        fits_left &= not ((positions - positions[:, :1] == columns) | ~right).all()
    return left if fits_left else right
