"""How many tokens a block of a paged cache holds: from block tables, slots and positions."""

from __future__ import annotations

import numpy as np

_MOST = 1024  # tokens of a block
_FITTING = 0.5  # of all tokens: so many must stand in the slots that a size says


class BlockSize:
    """Finds out the size of blocks, call by call."""

    def __init__(self) -> None:
        self._sizes = np.arange(1, _MOST + 1)
        self._fitting = np.zeros(_MOST, np.int64)
        self._seen = 0

    def add(self, tables: np.ndarray, slots: np.ndarray, positions: np.ndarray) -> None:
        """Add tokens of which it is known where they are written to.

        Args:
            tables: int64 [tokens, blocks], the blocks of each token's sample.
            slots, positions: int64 [tokens].
        """
        for at in range(len(slots)):
            place = positions[at] // self._sizes
            inside = place < tables.shape[1]
            block = tables[at][np.where(inside, place, 0)]
            slot = block * self._sizes + positions[at] % self._sizes
            self._fitting += inside & (slot == slots[at])
        self._seen += len(slots)
        kept = self._fitting >= _FITTING * self._seen
        if kept.any() and len(self._sizes) > 1:
            self._sizes, self._fitting = self._sizes[kept], self._fitting[kept]

    def found(self) -> int | None:
        """Return the size; None where nothing, or more than one size, fits."""
        fits = self._sizes[self._fitting >= _FITTING * max(1, self._seen)]
        return int(fits[0]) if len(fits) == 1 else None
