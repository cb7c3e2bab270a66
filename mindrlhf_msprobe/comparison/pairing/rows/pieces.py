"""Records that are pieces of larger ones, and what is known of them where they cannot be cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.storage.records import Record


@dataclass(frozen=True)
class Piece(Record):
    """A record of a phase with larger batches, as it stands against one of smaller ones.

    Attributes:
        sources: the records, and the rows of each, that make it up in this order; () for all of it.
        axis, each: along which axis the rows lie, and how many places each has there.
        gap: why it is not compared; None if it is.
        gap_if_unlike: why it does not count if it differs; None if it does.
    """

    sources: tuple[tuple[Record, tuple[int, ...]], ...] = ()
    axis: int = 0
    each: int = 1
    gap: Message | None = None
    gap_if_unlike: Message | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.sources, self.axis, self.each, self.gap, self.gap_if_unlike)
        return Piece, (*Record.__reduce__(self)[1], *own)

    def array(self) -> np.ndarray:
        """Return the elements of its rows; see `Record.array`."""
        if not self.sources:
            return Record.array(self)
        parts = [_rows_of(r.array(), rows, self.axis, self.each) for r, rows in self.sources]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)


def _rows_of(array: np.ndarray, rows: Sequence[int], axis: int, each: int) -> np.ndarray:
    first, last = rows[0], rows[-1]
    if list(rows) == list(range(first, last + 1)):  # no copy
        return array[(slice(None),) * axis + (slice(first * each, (last + 1) * each),)]
    places = [row * each + i for row in rows for i in range(each)]
    return np.take(array, places, axis)


def gap_of(pair: Iterable[Record | None]) -> Message | None:
    """Return why two records are not compared, None if they are."""
    return next((r.gap for r in pair if isinstance(r, Piece) and r.gap), None)


def gap_if_unlike(*pair: Record) -> Message | None:
    """Return why two records that differ do not count, None if they do."""
    return next((r.gap_if_unlike for r in pair if isinstance(r, Piece) and r.gap_if_unlike), None)
