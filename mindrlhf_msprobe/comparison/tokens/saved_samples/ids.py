"""The prompts and responses that were saved as token ids, held against the tokens of a phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.tokens.saved_samples.windows import SavedSample
from mindrlhf_msprobe.phases import PROMPTS
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.trends.derived import MASK, RESPONSES

_MOST_ROWS = 4096
_TOKEN = 8  # bytes of an id
_FILLED = -1  # behind the end of what our integrations save
#: Keys that hold prompts, and those that hold the responses to them.
_PAIRS = ((("rollout_prompts",), ("rollout_tokens",)), (PROMPTS, RESPONSES))


def unlike_saved(saves: Iterable[KeyDatum], sequences: Sequence[np.ndarray]) -> Message | None:
    """Say that most saved rows of token ids stand in no sequence; None where they do, or are texts.

    Of a row, what it ends and begins with again and again is taken for padding.

    Args:
        saves: of `prompts` and `responses`.
        sequences: the tokens of a phase, int64.
    """
    found, key, missing = 0, "", 0
    known = [sequence.astype(np.int64).tobytes() for sequence in sequences]
    for datum in saves:
        for row in map(_without_runs, _rows(datum)[:_MOST_ROWS]):
            found += 1
            if not any(_holds(sequence, row) for sequence in known):
                key, missing = datum.key, missing + 1
    if 2 * missing <= found:
        return None
    return message("tokens.unlike_saved", key=key, missing=missing, rows=found)


def saved_samples(
    saved: Callable[[str], Sequence[KeyDatum]], pad: int | None
) -> tuple[SavedSample, ...]:
    """Return the prompts and responses of a step; none where they are texts, or do not go together.

    Prompts of one save that have one length may be padded: they are taken where it is known with
    what. Of those of unlike lengths nothing is taken away.

    Args:
        saved: returns the saves of a key.
        pad: the token id of padding, or None.
    """
    masks = next((rows for name in MASK if (rows := [_numbers(d) for d in saved(name)])), [])
    for names in _PAIRS:
        both = [[_rows(d) for name in keys for d in saved(name)] for keys in names]
        prompts = _all_prompts(both[0], pad)
        responses = [row for rows in both[1] for row in rows]
        if prompts is not None and 0 < len(prompts) == len(responses) < _MOST_ROWS:
            return tuple(map(SavedSample, prompts, responses, _sizes(both[1], masks, pad)))
    return ()


def _sizes(
    responses: list[list[np.ndarray]], masks: list[list[np.ndarray]], pad: int | None
) -> list[int]:
    """Return how many tokens each response has, up to the last that counts or is no padding.

    Args:
        responses: the rows of each save.
        masks: those of each save of what says which tokens count.
        pad: the token id of padding, or None.
    """
    found = []
    fits = [[*map(len, rows)] for rows in masks] == [[*map(len, rows)] for rows in responses]
    for number, rows in enumerate(responses):
        filled = len({len(row) for row in rows}) == 1
        for at, row in enumerate(rows):
            tokens = row != _FILLED
            if fits and masks[number][at].any():
                tokens = masks[number][at] != 0
            elif filled and tokens.all() and pad is not None:
                tokens = row != pad
            found.append(len(row) - int(tokens[::-1].argmax()) if tokens.any() else 0)
    return found


def _all_prompts(saves: list[list[np.ndarray]], pad: int | None) -> list[np.ndarray] | None:
    """Return the prompts of all saves; None where one's padding is not known."""
    found: list[np.ndarray] = []
    for rows in saves:
        prompts = _prompts(rows, pad)
        if prompts is None:
            return None
        found += prompts
    return found


def _prompts(rows: list[np.ndarray], pad: int | None) -> list[np.ndarray] | None:
    """Return the prompts of one save without padding; None where it is not known what that is."""
    if any((row == _FILLED).any() for row in rows):
        pad = _FILLED
    elif len({len(row) for row in rows}) > 1:
        return rows
    if pad is None:
        return None
    before = any(len(row) and row[0] == pad for row in rows)  # they end in one column
    return [_unpadded(row, pad, before=before) for row in rows]


def _unpadded(row: np.ndarray, pad: int, *, before: bool) -> np.ndarray:
    """Return a row without the padding before or behind its tokens."""
    tokens = np.flatnonzero(row != pad)
    if not len(tokens):
        return row[:0]
    return row[tokens[0] :] if before else row[: tokens[-1] + 1]


def _numbers(datum: KeyDatum) -> list[np.ndarray]:
    """Return the rows of a mask of any dtype, int64 [tokens] each."""
    return _rows(datum, "iufb")


def _rows(datum: KeyDatum, kinds: str = "iu") -> list[np.ndarray]:
    """Return the rows of ids of a save, int64 [tokens] each; none of texts."""
    try:
        value: Any = datum.value
    except ArrayFileError:
        return []
    rows = value if isinstance(value, list) else [value] if np.ndim(value) == 1 else value
    if not isinstance(rows, (list, np.ndarray)):
        return []
    arrays = [np.asarray(row) for row in rows[:_MOST_ROWS]]
    return [row.astype(np.int64) for row in arrays if row.ndim == 1 and row.dtype.kind in kinds]


def _without_runs(row: np.ndarray) -> np.ndarray:
    """Return a row without runs of one id at its ends; of each the innermost may be a token."""
    changes = np.flatnonzero(np.diff(row))
    return row[changes[0] + 1 : changes[-1] + 1] if len(changes) else row[:0]


def _holds(sequence: bytes, row: np.ndarray) -> bool:
    wanted, start = row.tobytes(), -1
    while (start := sequence.find(wanted, start + 1)) >= 0:
        if start % _TOKEN == 0:
            return True
    return False
