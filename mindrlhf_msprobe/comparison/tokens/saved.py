"""Do the tokens that a phase went through stand in the prompts and responses that were saved?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum

_MOST_ROWS = 4096
_TOKEN = 8  # bytes of an id


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
        for row in _rows(datum)[:_MOST_ROWS]:
            found += 1
            if not any(_holds(sequence, row) for sequence in known):
                key, missing = datum.key, missing + 1
    if 2 * missing <= found:
        return None
    return message("tokens.unlike_saved", key=key, missing=missing, rows=found)


def _rows(datum: KeyDatum) -> list[np.ndarray]:
    """Return the rows of ids of a save, without padding; none of texts."""
    try:
        value: Any = datum.value
    except ArrayFileError:
        return []
    rows = value if isinstance(value, list) else [value] if np.ndim(value) == 1 else value
    if not isinstance(rows, (list, np.ndarray)):
        return []
    arrays = [np.asarray(row) for row in rows[:_MOST_ROWS]]
    return [_unpadded(row) for row in arrays if row.ndim == 1 and row.dtype.kind in "iu"]


def _unpadded(row: np.ndarray) -> np.ndarray:
    """Return a row without runs of one id at its ends; of each the innermost may be a token."""
    row = row.astype(np.int64)
    changes = np.flatnonzero(np.diff(row))
    return row[changes[0] + 1 : changes[-1] + 1] if len(changes) else row[:0]


def _holds(sequence: bytes, row: np.ndarray) -> bool:
    wanted, start = row.tobytes(), -1
    while (start := sequence.find(wanted, start + 1)) >= 0:
        if start % _TOKEN == 0:
            return True
    return False
