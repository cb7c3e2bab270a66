"""Tables of a rotary position embedding: of which base they were made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.findings import Change

_NEAR = 2e-2  # of a cosine: tables may be bfloat16
_MOST_ROWS = 32  # positions that are looked at
_MOST_COLUMNS = 64  # angles
_BASES = np.geomspace(50.0, 1e9, 800)
_ROUNDS = 4  # each finds another digit or two
_UNLIKE = 2.0  # how many times its own error a table lies away from the other base
_ROUNDED = 1.3  # how much more error a rounder base may leave
_EXACT = 1e-6

_Function = Callable[[np.ndarray], np.ndarray]


def rotary_bases(a: np.ndarray, b: np.ndarray) -> Change | None:
    """Return that two tables of cosines, or of sines, are those of two bases; else None.

    Args:
        a, b: [positions, size of a head] or [samples, positions, size of a head].
    """
    for function in (np.cos, np.sin):
        x, y = _Table.read(a, function), _Table.read(b, function)
        if x is None or y is None:
            continue
        apart = x.error(y.base) > _UNLIKE * x.error(x.base) + _EXACT
        if apart and y.error(x.base) > _UNLIKE * y.error(y.base) + _EXACT:
            return Change("rotary_base", {"a": x.shown, "b": y.shown})
    return None


@dataclass(frozen=True)
class _Table:
    """The cosines or sines of angles, [positions, angles], and which powers of a base these are.

    Attributes:
        powers: of each column.
        base: the one that fits best.
    """

    values: np.ndarray
    powers: np.ndarray
    function: _Function
    base: float = 0.0

    @classmethod
    def read(cls, table: np.ndarray, function: _Function) -> _Table | None:
        """Return a table with its base; None of what is no table of that function."""
        table = table[0] if table.ndim == 3 else table
        if table.ndim != 2 or table.dtype.kind != "f" or table.shape[0] < 2 or table.shape[1] < 4:
            return None
        if table.shape[1] % 2:
            return None
        rows = table[:_MOST_ROWS].astype(np.float64)
        if not (abs(rows[0] - function(np.zeros(1))) <= _NEAR).all():
            return None
        half = rows.shape[1] // 2
        # Two halves with the same angles, or every two neighbours.
        for angles in (rows[:, :half], rows[:, ::2]):
            every = max(1, half // _MOST_COLUMNS)
            some = cls(angles[:, ::every], np.arange(0, half, every) / half, function)
            base = some.fit()
            whole = cls(angles, np.arange(half) / half, function, base)
            if whole.error(base) <= _NEAR:
                return whole
        return None

    def fit(self) -> float:
        """Return the base whose table is nearest."""
        bases = _BASES
        for _ in range(_ROUNDS):
            errors = [self.error(base, squared=True) for base in bases]
            best = int(np.argmin(errors))
            low, high = bases[max(best - 1, 0)], bases[min(best + 1, len(bases) - 1)]
            bases = np.geomspace(low, high, 41)
        return float(bases[20])

    def error(self, base: float, *, squared: bool = False) -> float:
        """Return how far the table of a base lies away: at most, or the sum of all squares."""
        angles = np.outer(np.arange(len(self.values)), base**-self.powers)
        apart = self.function(angles) - self.values
        return float((apart * apart).sum() if squared else abs(apart).max())

    @property
    def shown(self) -> float:
        """The base with as many digits as the table tells: 10000 and not 9998.7."""
        own = self.error(self.base)
        for digits in range(1, 5):
            rounded = float(f"{self.base:.{digits}g}")
            if self.error(rounded) <= own * _ROUNDED + _EXACT:
                return rounded
        return float(f"{self.base:.4g}")
