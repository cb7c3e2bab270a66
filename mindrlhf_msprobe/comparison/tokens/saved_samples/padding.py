"""Which of a call's token ids are tokens, and which are padding.

A mask may be what is wrong in a network. What was saved as prompts and responses says better where
the tokens of a sample stand; what the network was given says it where nothing was saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindrlhf_msprobe.comparison.tokens.beginnings import shared_length
from mindrlhf_msprobe.comparison.tokens.inputs import CallInputs
from mindrlhf_msprobe.comparison.tokens.saved_samples.windows import SavedSample


class Padding:
    """Tells padding from tokens.

    Args:
        pad: the token id of padding, or None.
        samples: prompts and responses of the step.

    Attributes:
        let_in: in how many rows of the last call its mask lets padding before the tokens in.
    """

    def __init__(self, pad: int | None, samples: Sequence[SavedSample] = ()) -> None:
        self._pad = pad
        self.let_in = 0
        self._known: dict[bytes, list[SavedSample]] = {}
        for sample in samples:
            if len(sample.prompt):
                self._known.setdefault(sample.prompt.tobytes(), []).append(sample)
        self._lengths = {len(sample.prompt) for sample in samples if len(sample.prompt)}

    def tokens(self, inputs: CallInputs) -> np.ndarray | None:
        """Return which of the ids of a padded call are tokens, bool [batch, width].

        None where what was given fits several sides, and it matters.
        """
        self.let_in = 0
        valid = _as_given(inputs, self._pad)
        width = inputs.ids.shape[1]
        if width == 1 or not self._known:
            return valid
        found = np.ones(inputs.ids.shape, bool) if valid is None else valid.copy()
        for row, mine in zip(inputs.ids.astype(np.int64), found):
            first = self._first(row, mine)
            if first is None and valid is None:
                return None
            if first is not None:
                self.let_in += valid is inputs.mask and bool(mine[:first].any() and mine[first])
                last = width - 1 - int(mine[::-1].argmax()) if mine.any() else -1
                mine[:] = np.arange(width) >= first
                if first <= last:
                    mine[last + 1 :] = False
        return found

    def _first(self, row: np.ndarray, valid: np.ndarray) -> int | None:
        """Return the column of a row's first token by what was saved.

        None where nothing of that stands in it, or where the columns that are given begin with it.
        """
        if self._begins(row[valid]):
            return None
        unlike = row != (row[0] if self._pad is None else self._pad)
        filled = int(unlike.argmax()) if unlike.any() else len(row)
        fitting = [(self._begins(row[at:]), -at) for at in range(filled + 1)]
        length, at = max(fitting)
        return -at if length else None

    def _begins(self, tokens: np.ndarray) -> int:
        """Return how many tokens are a saved prompt and its response; 0 if not the whole prompt."""
        found = 0
        for length in self._lengths:
            for sample in self._known.get(tokens[:length].tobytes(), ()):
                found = max(found, shared_length(tokens, sample.tokens))
        return found


def _as_given(inputs: CallInputs, pad: int | None) -> np.ndarray | None:
    """Return which of the token ids are tokens, bool [batch, width]; the others are padding.

    Lengths are those of samples that begin in the first column, unless the positions of all samples
    rise from 0 in the last ones. None where the positions fit both, and it matters. Where nothing
    but ids is given, a network that pads on the left masks what its configuration calls padding.
    """
    batch, width = inputs.ids.shape
    if inputs.mask is not None and inputs.mask.shape[1] == width and width > 1:
        return inputs.mask
    lengths = inputs.lengths
    if width > 1 and lengths is None and inputs.positions is None and pad is not None:
        return np.logical_or.accumulate(inputs.ids != pad, axis=1)
    if width > 1 and lengths is None and inputs.positions is not None:
        return _by_positions(inputs.positions, inputs.ids, pad)
    if width == 1 or lengths is None or len(lengths) != batch or (lengths > width).any():
        return np.ones((batch, width), bool)
    return _by_lengths(lengths, inputs.positions, width)


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
        elif first and bool((row[:first] == row[0]).all()):
            valid[number, :first] = False
    for number in single:
        row = ids[number]
        filled = pad is not None and bool((row[:-1] == pad).all()) and int(row[-1]) != pad
        if filled or not valid[:, 0].all():
            valid[number, :-1] = False
    return valid


def _by_lengths(lengths: np.ndarray, positions: np.ndarray | None, width: int) -> np.ndarray | None:
    """Return which of the token ids are tokens, by their number and positions; None if both fit."""
    columns = np.arange(width)
    right = columns < lengths[:, None]
    left = columns >= width - lengths[:, None]
    if positions is None or np.array_equal(left, right):
        return right
    fits_right = bool(((positions == columns) | ~right).all())
    fits_left = bool(((positions == np.cumsum(left, axis=1) - 1) | ~left).all())
    if fits_left and fits_right:
        return None
    if not (fits_left or fits_right):  # counted from another number than 0
        first = np.take_along_axis(positions, left.argmax(axis=1)[:, None], axis=1)
        fits_left = bool(((positions - first == np.cumsum(left, axis=1) - 1) | ~left).all())
        fits_left &= not ((positions - positions[:, :1] == columns) | ~right).all()
    return left if fits_left else right
