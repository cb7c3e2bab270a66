"""Values of two phases that are the same, row by row: the rollout's rows and the training's.

How far rows are from each other is told by their elements, or by their sketches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.mismatch.sides import Side, Value
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.sequences.layouts import Layout, rows_of_tokens
from mindrlhf_msprobe.sequences.matching import Matched
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    UNIT_ROUNDOFF,
    ArrayFileError,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.arrays.sketches import COLUMNS, Sketch, sketch_of
from mindrlhf_msprobe.storage.records import Record

#: Rows are taken together up to as many bytes.
BLOCK = 4 << 20
_ROUNDINGS = 8  # of one operation's values
_SUM_ROUNDINGS = 4  # times the root of how many values are summed, in float32
#: A row shorter than that, against the mean of its tensor, has no relative distance of its own.
_SHORTEST = 1e-3


@dataclass(frozen=True)
class Distances:
    """The distances of the rows of two tensors.

    Attributes:
        squared: float64 [rows], the squared L2 distance of each pair of rows; NaN where either has
            a NaN or an infinity and they are not equal.
        norms: float64 [rows], the squared L2 norm of each row of the second.
        unequal: bool [rows], whether any element differs; NaN is equal to NaN.
        sampled: columns of the sketch from which distances are estimated; 0: they are exact.
    """

    squared: np.ndarray
    norms: np.ndarray
    unequal: np.ndarray
    sampled: int = 0

    def relative(self) -> np.ndarray:
        """Return each row's distance relative to its norm, float64 [rows].

        Very short rows are measured by the mean norm of all. Infinity where the distance is NaN.
        """
        finite = self.norms[np.isfinite(self.norms)]
        typical = float(finite.mean()) if finite.size else 0.0
        norms = np.maximum(np.nan_to_num(self.norms, posinf=typical), _SHORTEST**2 * typical)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.sqrt(self.squared / norms)
        found = np.where(self.unequal, found, 0.0)
        return np.where(np.isnan(found), np.inf, found)


def distances(
    a: np.ndarray, b: np.ndarray, rows: tuple[np.ndarray, np.ndarray] | None = None
) -> Distances:
    """Measure rows against rows of the same number.

    Args:
        a, b: [rows, columns], floating; read block by block.
        rows: int64 [any] each, which rows of a and of b; None: all.
    """
    at_a, at_b = rows if rows is not None else (np.arange(len(a)), np.arange(len(b)))
    count = len(at_a)
    found = Distances(np.empty(count), np.empty(count), np.empty(count, bool))
    for block in blocks(count, a.shape[1] * 8):
        x, y = _taken(a, at_a[block]), _taken(b, at_b[block])
        with np.errstate(invalid="ignore", over="ignore"):
            apart = x - y
            found.squared[block] = squared = np.einsum("ij,ij->i", apart, apart)
            found.norms[block] = np.einsum("ij,ij->i", y, y)
        found.unequal[block] = squared != 0
        # What is too small to be squared differs, too; NaN is equal to NaN.
        unsure = (squared == 0) | np.isnan(squared)
        if unsure.any():
            p, q = x[unsure], y[unsure]
            unlike = (p != q) & ~(np.isnan(p) & np.isnan(q))
            found.unequal[block][unsure] = unlike.any(axis=1)
    return found


def sketch_distances(
    a: Rows, b: Rows, typical: float, rows: tuple[np.ndarray, np.ndarray]
) -> Distances:
    """Estimate the distances of rows from their sketches.

    Where these are not of the same parts, no row is known to be equal.

    Args:
        typical: the mean squared norm of b's rows; NaN: it is estimated from b. A row whose own
            sums say that it is longer is measured by those.
        rows: int64 [any] each, which rows of a and of b.
    """
    assert a.prints is not None
    assert b.prints is not None
    found = distances(a.values, b.values, rows)
    count = len(rows[0])
    unequal = np.ones(count, bool)
    if a.prints.shape[1] == b.prints.shape[1] > 0:
        unequal = (a.prints[rows[0]] != b.prints[rows[1]]).any(axis=1)
    if not np.isfinite(typical):
        typical = float(found.norms.mean()) if count else 0.0
    norms = np.fmax(found.norms, typical)
    return Distances(found.squared, norms, unequal, sampled=a.values.shape[1])


def _taken(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return rows as floats; those that follow each other are a view."""
    rows = slice(int(at[0]), int(at[-1]) + 1)
    follow = rows.start >= 0 and rows.stop <= len(values) and bool((np.diff(at) == 1).all())
    taken = values[rows] if follow else np.take(values, at, axis=0)
    return taken if taken.dtype in (np.float32, np.float64) else taken.astype(np.float32)


def blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield slices of rows that fit into a block."""
    step = max(1, BLOCK // max(1, row_bytes))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def explained(dtype: str, columns: int, sampled: int = 0) -> float:
    """Return the relative distance of two rows that rounding explains, in one cell.

    Both compute with unit roundoff u and add in any order in float32, as kernels do: 8 u for the
    roundings of its values, and 4 √n u₃₂ for sums of n values. The error of a sum of n values in
    any order grows as √n u for independent roundings (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 4.2).

    Args:
        dtype: the lowest that both sides compute with, by MindSpore's or numpy's name.
        columns: how many values a sum may have.
        sampled: how many sums of a sketch the distance is estimated from; 0: it is exact. The
            square of an estimate is spread as χ² of so many degrees of freedom: hardly one in a
            thousand is more than 1 + 3 / √k times too long.
    """
    unit = UNIT_ROUNDOFF.get(dtype.lower(), UNIT_ROUNDOFF["float32"])
    sums = min(unit, UNIT_ROUNDOFF["float32"])
    spread = 1 + 3 / np.sqrt(sampled) if sampled else 1
    return float(spread * (_ROUNDINGS * unit + _SUM_ROUNDINGS * np.sqrt(max(1, columns)) * sums))


_OPEN = 4  # calls of one value that are kept open


@dataclass(frozen=True)
class Aligned:
    """The rows of one value that both phases have.

    Attributes:
        name: in the training network.
        token: int64 [rows], which token of the rollout each row is; see `PhaseTokens.rows`.
        distances: of the rows.
        dtypes: of the rollout's and of the training's.
        columns: values of a row.
    """

    name: Name
    token: np.ndarray
    distances: Distances
    dtypes: tuple[str, str]
    columns: int


class NotAligned(Exception):
    """A value of both phases cannot be brought together; `why` says the reason."""

    def __init__(self, why: Message) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Rows:
    """The rows of one value in one call.

    Attributes:
        values: [rows, columns]; of a sketch, its sums.
        at: int64 [rows], rows of the call's token ids.
        prints: of a sketch, the fingerprints of what a token's row is made of, uint64 [rows, any],
            none where they are of parts of a fused row; else None.
    """

    values: np.ndarray
    at: np.ndarray
    prints: np.ndarray | None = None


class Source:
    """Where the rows of one value come from: a value of a phase, or several beside each other.

    Args:
        side: the phase.
        values: one, or the parts of a fused one.
        order: of several, int64 [columns]: which of their columns, one behind the other, each is.
    """

    def __init__(self, side: Side, *values: Value, order: np.ndarray | None = None) -> None:
        self.side = side
        self.values = values
        self._order = order
        self._layouts = [value.layouts(side.tokens) for value in values]
        self._open: OrderedDict[tuple[int, bool], Rows] = OrderedDict()

    @property
    def is_fused(self) -> bool:
        """Whether its columns are those of a fused weight."""
        return self._order is not None

    def take_heads(self) -> None:
        """Take [b, h, s, s] for heads of that size: its last axis is no axis of keys."""
        self._layouts = [value.layouts(self.side.tokens, heads=True) for value in self.values]

    @cached_property
    def calls(self) -> Sequence[int]:
        """The calls of which the rows of all parts are known."""
        known = [
            {call for call in value.calls if self._layout(at, call) is not None}
            for at, value in enumerate(self.values)
        ]
        return sorted(set.intersection(*known))

    def _layout(self, part: int, number: int) -> Layout | None:
        """Return how the axes of a part stand in a call; None where nothing decides it."""
        call, shape = self.side.tokens.calls[number], self.values[part].shape(number)
        return self._layouts[part].get((shape, call.batch, call.width))

    @property
    def has_elements(self) -> bool:
        """Whether elements were stored in all calls."""
        return all(value.has_elements for value in self.values)

    def dtype(self, number: int) -> str:
        """Return the dtype in a call."""
        return self.values[0].dtype(number)

    def typical(self, number: int) -> float:
        """Return the mean squared norm of a token's row in a call; NaN where it is not known."""
        found = sum(value.norm(number) ** 2 for value in self.values)
        return found / max(1, self.side.tokens.calls[number].sequence.size)

    def rows(self, number: int, *, sketched: bool = False) -> Rows:
        """Return a call's rows.

        Args:
            sketched: by their sketches, also where elements were stored.

        Raises:
            NotAligned: they were not stored, cannot be read, or be put beside each other.
        """
        key = number, sketched
        if key not in self._open:
            try:
                parts = [self._part(at, number, sketched) for at in range(len(self.values))]
            except ArrayFileError as error:
                raise NotAligned(error.said) from None
            self._open[key] = parts[0] if self._order is None else self._beside(parts, sketched)
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return self._open[key]

    def at(self, number: int) -> np.ndarray:
        """Return which rows of a call's token ids there are, int64 [rows]."""
        return self.rows(number, sketched=not self.has_elements).at

    def row(self, number: int, at: int) -> np.ndarray | None:
        """Return the elements of a row of a call's token ids; None where there is no such row."""
        rows = self.rows(number)
        (there,) = np.nonzero(rows.at == at)
        return rows.values[there[0]] if len(there) else None

    def close(self) -> None:
        """Let go what is open; it is opened again when it is wanted."""
        self._open.clear()

    def _part(self, part: int, number: int, sketched: bool) -> Rows:
        call, layout = self.side.tokens.calls[number], self._layout(part, number)
        assert layout is not None
        record = self.values[part].record(number)
        if not sketched:
            return Rows(*rows_of_tokens(record.array(), layout, call))
        shape, made = record.leaf.shape or (), sketch_of_rows(record)
        if not (made.block and made.sums.size):
            raise NotAligned(message("mismatch.no_sums"))
        values, at = rows_of_tokens(made.sums.reshape(*shape[:-1], -1), layout, call)
        prints, _ = rows_of_tokens(made.fingerprints.reshape(*shape[:-1], 1), layout, call)
        return Rows(values, at, prints)

    def _beside(self, parts: Sequence[Rows], sketched: bool) -> Rows:
        """Return the columns of several values in the order of the fused one.

        Sums line up only where whole blocks of columns stand beside each other.
        """
        order = self._order
        assert order is not None
        values = np.concatenate([part.values for part in parts], axis=1)
        if sketched:
            whole = all(value_columns(value) % COLUMNS == 0 for value in self.values)
            sums = sums_in_order(order) if whole else None
            if sums is None or int(sums.max(initial=-1)) >= values.shape[1]:
                raise NotAligned(message("mismatch.fused_sketch"))
            return Rows(values[:, sums], parts[0].at, np.zeros((len(values), 0), np.uint64))
        if values.shape[1] != len(order):
            raise NotAligned(message("mismatch.no_layout"))
        return Rows(values[:, order], parts[0].at)


def sketch_of_rows(record: Record) -> Sketch:
    """Return a record's sketch; of stored elements without one, as recording makes it.

    Raises:
        ArrayFileError: there is neither, or it cannot be read.
    """
    if record.leaf.sketch is not None or record.location is None:
        return record.sketch()
    elements = np.ascontiguousarray(record.array())
    bfloat16 = record.leaf.dtype == BFLOAT16
    elements = float32_to_bfloat16_bits(elements) if bfloat16 else elements
    return sketch_of(elements, bfloat16=bfloat16)


def sums_in_order(order: np.ndarray) -> np.ndarray | None:
    """Return which sum each sum of a fused row is; None unless its blocks are those of the parts.

    Args:
        order: int64 [columns], which column of the parts each of its columns is.
    """
    first = order[::COLUMNS]
    whole = (first[:, None] + np.arange(COLUMNS)).reshape(-1)
    if not np.array_equal(order, whole) or (first % COLUMNS).any():
        return None
    return first // COLUMNS


def value_columns(value: Value) -> int:
    """Return the length of a value's last axis."""
    return max((leaf.shape or (0,))[-1] for leaf in value.leaves())


def align(name: Name, rollout: Source, training: Source, matched: Matched) -> Aligned:
    """Measure one value's rows of the rollout against the training's.

    Raises:
        NotAligned: the shapes do not say which axes are tokens, or rows are not of one length.
    """
    if not (rollout.calls and training.calls):
        raise NotAligned(message("mismatch.no_layout"))
    sketched = not (rollout.has_elements and training.has_elements)
    found: list[Distances] = []
    tokens: list[np.ndarray] = []
    dtypes: set[tuple[str, str]] = set()
    columns = 0
    for pair in row_pairs(rollout, training, matched):
        mine = rollout.rows(pair.mine, sketched=sketched)
        partner = training.rows(pair.other, sketched=sketched)
        widths = [side.values.shape[1] for side in (mine, partner)]
        if columns not in (0, widths[0]) or widths[0] != widths[1]:
            said = message("mismatch.columns", rollout=widths[0], training=widths[1])
            raise NotAligned(said)
        for side in (mine, partner):
            if side.values.dtype.kind not in "fbiu":
                raise NotAligned(message("mismatch.kind", dtype=str(side.values.dtype)))
        columns = widths[0]
        rows = pair.rows, pair.partners
        if mine.prints is None or partner.prints is None:
            found.append(distances(mine.values, partner.values, rows))
        else:  # of sketches, relative to the norm that statistics know
            found.append(sketch_distances(mine, partner, training.typical(pair.other), rows))
        tokens.append(pair.tokens)
        dtypes.add((rollout.dtype(pair.mine), training.dtype(pair.other)))
    if not sum(map(len, tokens)):
        raise NotAligned(message("mismatch.no_rows"))
    columns = sum(map(value_columns, rollout.values)) if sketched else columns
    return Aligned(name, np.concatenate(tokens), joined(found), max(dtypes), columns)


class _HasRows(Protocol):
    """What has rows of the token ids of some calls; `at` says which of a call."""

    side: Side

    @property
    def calls(self) -> Sequence[int]: ...

    def at(self, number: int) -> np.ndarray: ...


class RowPairs(NamedTuple):
    """Rows of two calls that are the same tokens.

    Attributes:
        mine, other: the numbers of the calls, of rollout and training.
        tokens: int64 [any], which tokens of the rollout they are; see `PhaseTokens.rows`.
        rows, partners: int64 [any], which of the rows that a value has in either call.
    """

    mine: int
    other: int
    tokens: np.ndarray
    rows: np.ndarray
    partners: np.ndarray


def row_pairs(rollout: _HasRows, training: _HasRows, matched: Matched) -> Iterator[RowPairs]:
    """Yield which rows of a value are the same tokens, call by call.

    Raises:
        NotAligned: as `Source.rows`.
    """
    mine, theirs = {*rollout.calls}, {*training.calls}
    for pair in matched.calls:
        if pair.mine not in mine or pair.other not in theirs:
            continue
        rows = _places(rollout, pair.mine, pair.rows)
        if not (rows >= 0).any():
            continue
        partners = _places(training, pair.other, pair.partners)
        both = (rows >= 0) & (partners >= 0)
        tokens = rollout.side.tokens.rows.starts[pair.mine] + pair.rows
        yield RowPairs(pair.mine, pair.other, tokens[both], rows[both], partners[both])


def _places(of: _HasRows, number: int, rows: np.ndarray) -> np.ndarray:
    """Return which of the rows that there are in a call are these of its token ids; -1: none."""
    at, size = of.at(number), of.side.tokens.calls[number].sequence.size
    if len(at) == size:  # all, in their order
        return rows
    places = np.full(size, -1, np.int64)
    places[at] = np.arange(len(at))
    return places[rows]


def joined(found: Sequence[Distances]) -> Distances:
    """Return the distances of all rows, one behind the other."""
    squared, norms, unequal = (
        np.concatenate([getattr(one, name) for one in found])
        for name in ("squared", "norms", "unequal")
    )
    return Distances(squared, norms, unequal, found[0].sampled)


def numbers_that_explain(
    rollout: Source, training: Source, matched: Matched, apart: np.ndarray
) -> tuple[int, int, int] | None:
    """Return other numbers that were given for one token, if they explain which rows part.

    The row of the rollout, and the number of either side.

    Positions may be counted in two ways, with the padding or without, and no row parts by it. They
    explain rows that part if they are others for all of these and for no other row.

    Args:
        rollout, training: a value with one whole number for each token.
        apart: int64 [any], rows of the rollout that part.
    """
    of_rows = []  # of each side, and whether it is known
    try:
        for source in (rollout, training):
            rows = source.side.tokens.rows
            numbers, known = np.zeros(rows.count, np.int64), np.zeros(rows.count, bool)
            for number in source.values[0].calls:
                of_call = slice(rows.starts[number], rows.starts[number + 1])
                numbers[of_call], known[of_call] = _numbers(source, number), True
            of_rows.append((numbers, known))
    except (ArrayFileError, NotAligned):
        return None
    (mine, known), (theirs, known_there) = of_rows
    both, partners = matched.aligned, matched.partners
    both = both[known[both] & known_there[partners[both]]]
    differ = both[mine[both] != theirs[partners[both]]]
    if not len(differ) or not np.array_equal(differ, np.unique(apart)):
        return None
    return int(differ[0]), int(mine[differ[0]]), int(theirs[partners[differ[0]]])


def _numbers(source: Source, number: int) -> np.ndarray:
    """Return a number for each token of a call, in the order of its rows.

    Raises:
        ArrayFileError: they were not stored.
        NotAligned: it has other shapes, or no whole numbers.
    """
    call, value = source.side.tokens.calls[number], source.values[0]
    if len(source.values) == 1 and value.has_elements:
        found = value.record(number).array()
        if found.dtype.kind in "iu" and found.size == call.batch * call.width:
            turned = found.shape == (call.width, call.batch) and call.width != call.batch
            return (found.T if turned else found).reshape(-1)
        if found.dtype.kind in "iu" and found.size == call.width:
            return np.tile(found.reshape(-1), call.batch)
    raise NotAligned(message("mismatch.no_layout"))
