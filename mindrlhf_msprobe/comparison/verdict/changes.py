"""One change of a cell that may explain a first difference.

A normalisation with another epsilon, tables of a rotary position embedding made of another base, a
parameter that one run holds in the place of another one, values that were divided by another
standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.judging.moves import swapped
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference, of_entries, part
from mindrlhf_msprobe.findings import Change
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.records import Record, cell_name

_DTYPES = ("Float32", "Float64")
_WEIGHTS = ("weight", "gamma")
_BIASES = ("bias", "beta")
_RUNNING = ("moving_mean", "moving_variance", "running_mean", "running_var")
_NEAR = 1e-4  # relative, of an output computed again
_UNCERTAIN = 2.0**-20  # relative, of the mean square of a row in float32
_CLEAR = 8.0
_MOST_ELEMENTS = 1 << 24


@rule(part("output"))
def epsilons(first: FirstDifference) -> Change | None:
    """Return that a norm was computed with another epsilon, where that is all.

    Over the last axis, or of a batch: over all but the second one, by the statistics of that batch.
    Its elements and those of its input and weight have to be at hand, in float32 or float64.
    """
    if first.entry is None or first.finding.path != "0":
        return None
    try:
        a, b = map(_epsilon, _operands(first))
    except (ArrayFileError, OSError, ValueError, TypeError):
        return None
    if a is None or b is None or abs(a[0] - b[0]) <= _CLEAR * max(a[1], b[1]):
        return None
    values = [float(f"{max(value, 0.0):.2g}") for value, _ in (a, b)]
    return Change("epsilon", {"a": values[0], "b": values[1]})


def _operands(first: FirstDifference) -> tuple[dict[str, Record], dict[str, Record]]:
    """Return what the norm was given in either run and agrees, by name, and what it made, as y."""
    place = (first.event.phase, first.event.name)
    pairs = [("y", first.pair)]
    for pair, finding in first.before:
        io, path = pair.record.io, pair.record.path
        if (pair.event.phase, pair.event.name) != place or not finding:
            continue
        if finding.status.agrees and io == "parameters":
            name = "weight" if path in _WEIGHTS else "bias" if path in _BIASES else path
            pairs.append((name, pair))
        elif finding.status.agrees and (io, path) == ("input", "0"):
            pairs.append(("x", pair))
    sides = ("a", "b")
    found: list[dict[str, Record]] = [
        {name: record for name, pair in pairs if name and (record := getattr(pair, side))}
        for side in sides
    ]
    return found[0], found[1]


def _epsilon(records: Mapping[str, Record]) -> tuple[float, float] | None:
    """Return the epsilon of a norm and how uncertain it is; None of what is no norm."""
    records = {name: record for name, record in records.items() if name not in _RUNNING}
    if not {"x", "y", "weight"} <= {*records} or not {*records} <= {"x", "y", "weight", "bias"}:
        return None
    if any(
        r.location is None or r.leaf.dtype not in ("Float32", "Float64") for r in records.values()
    ):
        return None
    arrays = {name: np.asarray(record.array(), np.float64) for name, record in records.items()}
    x, y, weight = arrays["x"], arrays["y"], arrays["weight"]
    if x.size != y.size or weight.ndim != 1 or not 1 < x.size <= _MOST_ELEMENTS:
        return None
    for rows in _forms(x, y, weight, arrays.get("bias", np.zeros(weight.size))):
        value = _of_rows(*rows)
        if value is not None:
            return value
    return None


def _forms(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield what may be normalised row by row: x, y without its bias, and the weight."""
    if x.size % weight.size == 0:
        of_last, plain = x.reshape(-1, weight.size), y.reshape(-1, weight.size) - bias
        yield of_last, plain, weight
        yield of_last - of_last.mean(axis=1, keepdims=True), plain, weight
    if x.ndim >= 2 and x.shape == y.shape and x.shape[1] == weight.size == bias.size:
        rows, made = (np.moveaxis(v, 1, 0).reshape(weight.size, -1) for v in (x, y))
        yield rows - rows.mean(axis=1, keepdims=True), made - bias[:, None], weight[:, None]


def _of_rows(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float] | None:
    """Return the epsilon with which every row is weight · x / √(mean x² + epsilon).

    Args:
        x, y: [rows, elements].
        weight: [elements], or one of each row, [rows, 1].
    """
    scaled = x * weight
    squares, norms = (x * x).mean(axis=1), (scaled * scaled).sum(axis=1)
    if not (norms > 0).all():
        return None
    factors = (scaled * y).sum(axis=1) / norms
    left = y - scaled * factors[:, None]
    if not (factors > 0).all() or (abs(left) > _NEAR * abs(y).max()).any():
        return None
    row = int(squares.argmin())
    value = float(factors[row] ** -2 - squares[row])
    again = scaled / np.sqrt(squares + value)[:, None]
    if not np.isfinite(again).all() or (abs(again - y) > _NEAR * abs(y).max()).any():
        return None
    return value, float(squares[row] + abs(value)) * _UNCERTAIN


_NEAR_SHARE = 2e-2  # of a cosine: tables may be bfloat16
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
        x = _Table.read(a, function)
        y = None if x is None else _Table.read(b, function)
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
        half, positions = rows.shape[1] // 2, function(np.arange(len(rows)))
        # Two halves with the same angles, or every two neighbours.
        for angles in (rows[:, :half], rows[:, ::2]):
            # Whatever the base, the first angle of a position is the position.
            if not (abs(angles[:, 0] - positions) <= _NEAR_SHARE).all():
                continue
            every = max(1, half // _MOST_COLUMNS)
            some = cls(angles[:, ::every], np.arange(0, half, every) / half, function)
            base = some.fit()
            whole = cls(angles, np.arange(half) / half, function, base)
            if whole.error(base) <= _NEAR_SHARE:
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


@rule(part("parameters"))
def of_another_cell(first: FirstDifference) -> Change | None:
    """Return that a parameter of A is, in B, that of another cell, or the other way round.

    Cells of one phase are looked at: another network may well hold the same values, as the
    reference does those of the actor.
    """
    pair = first.pair
    if pair.a is None or pair.b is None:
        return None
    others = (
        (other.a, other.b, _named(other.a), _named(other.b))
        for other, finding, _ in of_entries(first.pairs, first.finding.phase, io="parameters")
        if finding is not None and other.a is not None and other.b is not None
        if _named(other.a) != _named(pair.a)
    )
    return swapped(pair.a, pair.b, others)


def _named(record: Record) -> str:
    """Return its own name, also where it was put at the place of another framework's."""
    entry, _, path = record.name.rpartition(f".{record.io}.")
    return f"{cell_name(entry)}.{path}"


_MOST_EPSILON = 0.05  # of the deviation
_OF_FLOAT32 = 4e-7  # of a deviation of float32
_CENTRED = 1e-5  # of a deviation: what a mean of nothing may be
_FEWEST = 4  # values that tell
_MOST_STANDARDISED = 1 << 22


def standardised(a: np.ndarray, b: np.ndarray) -> Change | None:
    """Return that two arrays are the same values, standardised by unlike standard deviations.

    They were divided by n in one run and by n − 1 in the other. A small epsilon, beside the
    deviation or beside the variance under the root, makes the factor another one in each group, and
    none of them √(n / (n − 1)). It is solved for: values divided by their own deviation would have
    one of 1.

    The change: `a` and `b` are the ddof of each run, `n` how many values a group has, and `epsilon`
    the smallest and the largest one, of the deviation of their group, or where it stands under the
    root (`root`) of the variance; empty where there is none.
    """
    if a.dtype.kind != "f" or a.itemsize < 4 or not _FEWEST <= a.size <= _MOST_STANDARDISED:
        return None
    for x, y in _groups(a.astype(np.float64), b.astype(np.float64)):
        n = x.shape[1]
        for ddof in (0, 1) if n > 1 and x.size >= _FEWEST else ():
            less, more = (x, y) if ddof == 0 else (y, x)
            for power in (1, 2):
                epsilons = _epsilons_of(less, more, power)
                if epsilons is None:
                    continue
                known: dict[str, Any] = {"a": ddof, "b": 1 - ddof, "n": n}
                known["epsilon"] = [*epsilons] if max(epsilons) > 2 * power * _OF_FLOAT32 else []
                return Change("ddof", known | ({"root": True} if power > 1 else {}))
    return None


def _groups(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield how values may have been standardised together: [groups, values of each]."""
    counted = (a != 0) & (b != 0)  # a mask leaves 0
    if not counted.any() or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return
    yield a[counted][None], b[counted][None]
    if a.ndim == 2:
        if counted.all() and _centred(a, b):
            yield a, b
            yield a.T, b.T
        # One value a sample, the same for each of its tokens.
        a, b = (np.abs(x).max(axis=1) * np.sign(x.sum(axis=1)) for x in (a, b))
    for n in range(2, a.size + 1) if a.ndim == 1 and _centred(a, b) else ():
        if a.size % n == 0:
            yield a.reshape(-1, n), b.reshape(-1, n)


def _centred(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether the mean of all values is 0, as it is where each group has a mean of 0."""
    return all(abs(x.mean()) <= 2 * _CENTRED for x in (a, b))


def _epsilons_of(less: np.ndarray, more: np.ndarray, power: int) -> tuple[float, float] | None:
    """Return the smallest and the largest epsilon over the groups, of their deviations.

    Args:
        less: of the run that divides by n.
        more: of the one that divides by n − 1.
        power: 2 where it stands beside the variance, of which it is then.
    """
    n = less.shape[1]
    if any((np.abs(x.mean(axis=1)) > _CENTRED).any() for x in (less, more)):
        return None
    deviations = [np.sqrt((x * x).sum(axis=1) / m) for x, m in ((less, n), (more, n - 1))]
    if any((d <= 1 / (1 + _MOST_EPSILON)).any() for d in deviations):
        return None
    of_less, of_more = (d**-power - 1.0 for d in deviations)
    of_more = of_more * math.sqrt(n / (n - 1)) ** power  # of the same deviation as the other one
    rounding = 2 * power * _OF_FLOAT32
    if (np.abs(of_less - of_more) > rounding).any() or (of_less < -rounding).any():
        return None
    return float(max(of_less.min(), 0.0)), float(of_less.max())
