"""Does the rollout network have the parameters of the training network, fused ones included?

Also those that were rounded to a lower dtype on their way, or of which sketches were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import permutations

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.adapters import Adapters, Merging, outer_name, shape_of
from mindrlhf_msprobe.comparison.mismatch.rows.pairs import distances, explained, sums_in_order
from mindrlhf_msprobe.comparison.pairing.composed import joined
from mindrlhf_msprobe.comparison.pairing.frameworks.records import parameter_names_of
from mindrlhf_msprobe.comparison.pairing.fused import Fused, find_fused, find_reordered, parts_of
from mindrlhf_msprobe.comparison.pairing.mapping import FusedRule
from mindrlhf_msprobe.comparison.pairing.names import Names
from mindrlhf_msprobe.storage.arrays.npy import ROUNDED, ArrayFileError, rounded, roundoff
from mindrlhf_msprobe.storage.arrays.sketches import COLUMNS, SIGNS, sketch_of
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter, network_name

_CACHE = "cache"  # part of the name of a parameter that holds keys or values


@dataclass(frozen=True)
class WeightPair:
    """One parameter of the rollout network, and what it is in the training network.

    Attributes:
        rollout: its name.
        training: the names of its parts; one, unless it is fused.
        equal: whether all values are equal, of two dtypes those that are left when both are
            rounded to the lower one; None where nothing says so.
        relative: the L2 distance relative to the training's norm; None where it is not known.
        mine, theirs: the record of the rollout, and those of its parts; none if one is missing.
        rounded: the lower dtype to which the training's values are rounded in the rollout, where
            that is all they differ by; None where it is not.
        adapters: what either network has beside it, and the other holds in it, where they differ.
        lacks: the adapters of the training network that it does not hold, while others hold theirs:
            it is another weight then, though without them it is the same.
    """

    rollout: str
    training: tuple[str, ...]
    equal: bool | None
    relative: float | None
    mine: Record
    theirs: tuple[Record, ...]
    rounded: str | None = None
    adapters: Adapters | None = None
    lacks: tuple[str, ...] = ()

    @property
    def dtypes(self) -> tuple[str, str]:
        """Those of the rollout's and the training's."""
        return (
            (str(self.mine.leaf.dtype), str(self.theirs[0].leaf.dtype)) if self.theirs else ("", "")
        )

    @property
    def is_brought_over(self) -> bool:
        """Whether it is the training's: as it is, rounded, or with adapters merged into it."""
        is_merged = self.adapters is not None and self.adapters.factor is not None
        return bool(self.equal) or self.rounded is not None or is_merged


@dataclass(frozen=True)
class Weights:
    """The parameters of both networks.

    Attributes:
        pairs: those that both have, in the order of the rollout network.
        fused: cell of the rollout network → its parts.
        split: cell of the training network → its parts in the rollout network.
        alone: parameters of the rollout network that the training network has not, and the other
            way round, each by its own network's names; without the caches of either.
    """

    pairs: tuple[WeightPair, ...] = ()
    fused: Mapping[str, Fused] = field(default_factory=dict)
    alone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    split: Mapping[str, Fused] = field(default_factory=dict)

    @property
    def unequal(self) -> tuple[WeightPair, ...]:
        """Those that differ."""
        return tuple(pair for pair in self.pairs if pair.equal is False)

    @property
    def unknown(self) -> tuple[WeightPair, ...]:
        """Those of which nothing says whether they are equal."""
        return tuple(pair for pair in self.pairs if pair.equal is None)


def compare_weights(
    rollout: Mapping[str, Record],
    training: Mapping[str, Record],
    names: Names,
    rules: Sequence[FusedRule] = (),
) -> Weights:
    """Compare the parameters of both networks.

    Args:
        rollout, training: by name in their networks.
        names: what cells of the rollout are called in the training.
        rules: what a user says of fused cells.
    """
    common_b = _common(training, names.common_b)
    common_a = _with_names_of(common_b, _common(rollout, names.common_a))
    shapes = (
        (n, r.leaf.shape, common_b[n].leaf.shape) for n, r in common_a.items() if n in common_b
    )
    both = [name for name, a, b in shapes if a in (b, (b or ())[::-1])]
    every = [_plain(name, common_a[name], common_b[name]) for name in both]
    unlike = {pair.rollout: common_a[pair.rollout] for pair in every if pair.equal is False}
    reordered = find_reordered(unlike, common_b)  # cells of both, with rows in another order
    for at, pair in enumerate(every):
        of = reordered.get(cell_of_parameter(pair.rollout))
        if of is not None:
            every[at] = _fused_pair(pair.rollout, common_a[pair.rollout], of, common_b)

    def left() -> tuple[dict[str, Record], dict[str, Record]]:
        """Return the parameters of either that are in no pair yet."""
        used = {name for pair in every for name in (pair.rollout, *pair.training)}
        of_a, of_b = ({n: r for n, r in s.items() if n not in used} for s in (common_a, common_b))
        return of_a, of_b

    left_a, left_b = left()
    outer = {outer_name(name): name for name in left_b}
    parts = {name: left_b[inner] for name, inner in outer.items()}
    fused = find_fused(left_a, parts, rules)
    every += [
        replace(pair, training=tuple(outer.get(name, name) for name in pair.training))
        for name, record in left_a.items()
        if cell_of_parameter(name) in fused
        for pair in [_fused_pair(name, record, fused[cell_of_parameter(name)], parts)]
    ]
    left_a, left_b = left()
    parted = find_fused(left_b, left_a)
    every += _split(left_a, left_b, parted)
    every += _wrapped(*left())
    left_a, left_b = left()
    fused |= reordered
    every = _with_adapters(every, fused, (left_a, left_b))
    known = {n for p in every if p.adapters and p.is_brought_over for n in p.adapters.names}
    alone = [
        _alone(own, {id(record) for name, record in of.items() if name not in known}, common)
        for own, of, common in (
            (rollout, left_a, names.common_a),
            (training, left_b, names.common_b),
        )
    ]
    return Weights(tuple(every), fused, (alone[0], alone[1]), parted)


#: The parameters of the rollout and of the training that the other has not, by the names of both.
_Left = tuple[Mapping[str, Record], Mapping[str, Record]]


def _with_adapters(
    pairs: Sequence[WeightPair], fused: Mapping[str, Fused], left: _Left
) -> list[WeightPair]:
    """Return pairs with the adapters by which they differ, or which they lack.

    What agrees differs, if adapters were to be merged into it as they were into others.
    """
    found = [replace(pair, adapters=_adapters(pair, fused, left)) for pair in pairs]
    merged = next((p.adapters for p in found if p.adapters and p.adapters.factor), None)
    if merged is None or not merged.of_training:
        return found
    for at, pair in enumerate(found):
        if pair.equal and len(pair.training) == 1:
            merging = Merging(pair.mine, {pair.training[0]: pair.theirs[0]})
            lacking = merging.lacks(left[1], merged.factor or 0.0)
            if lacking is not None:
                found[at] = replace(pair, equal=False, relative=lacking[1], lacks=lacking[0])
    return found


def _adapters(pair: WeightPair, fused: Mapping[str, Fused], left: _Left) -> Adapters | None:
    """Return the adapters by which a pair that differs may do so; None if there are none."""
    if pair.equal is not False:
        return None
    mine, theirs = pair.mine, dict(zip(pair.training, pair.theirs))
    of = fused.get(cell_of_parameter(pair.rollout))
    if of is not None:
        turned = of.transposed, of.parts_transposed
        return Merging(mine, theirs, of.order, turned).by(left[1], of_training=True)
    (other,) = theirs.values()
    tried = (
        Merging(whole, parts, turned=(is_turned, False)).by(beside, of_training=beside is left[1])
        for whole, parts, beside in (
            (mine, theirs, left[1]),
            (other, {pair.rollout: mine}, left[0]),
        )
        for is_turned in (False, True)
        if shape_of(whole, turned=is_turned) == shape_of(*parts.values())
    )
    return next((found for found in tried if found is not None), None)


def _wrapped(rollout: Mapping[str, Record], training: Mapping[str, Record]) -> Iterator[WeightPair]:
    """Yield what is the parameter of a cell in one network, and of one cell inside it in the other.

    Such as `q.weight` and `q.base_layer.weight`, beside which adapters stand.
    """
    for names, others in permutations((rollout, training)):
        for name, record in names.items():
            cell, _, own = name.rpartition(".")
            inside = [
                n
                for n, other in others.items()
                if n.startswith(f"{cell}.") and n.rpartition(".")[2] == own
                if shape_of(other) == shape_of(record)
            ]
            if len(inside) == 1:
                mine, theirs = (name, inside[0])[:: 1 if names is rollout else -1]
                yield replace(_plain(mine, rollout[mine], training[theirs]), training=(theirs,))


def _alone(
    records: Mapping[str, Record], left: Collection[int], common: Callable[[str], str | None]
) -> tuple[str, ...]:
    """Return the names of parameters that are left, or outside of what both networks have.

    Args:
        left: identities of records.
    """
    return tuple(
        name
        for name, record in records.items()
        if (id(record) in left or common(cell_of_parameter(name)) is None)
        and _CACHE not in name.rpartition(".")[2]
    )


def _common(
    records: Mapping[str, Record], common: Callable[[str], str | None]
) -> dict[str, Record]:
    """Return parameters by the names that both networks have."""
    found = {}
    for name, record in records.items():
        if (cell := common(cell_of_parameter(name))) is not None:
            found[network_name(cell, name.rpartition(".")[2])] = record
    return found


def _with_names_of(
    training: Mapping[str, Record], rollout: Mapping[str, Record]
) -> dict[str, Record]:
    """Return parameters of the rollout under the names that the training's classes have for them.

    A table of embeddings is `weight`, `embedding_weight` or `embedding_table` of its cell.
    """
    found = {}
    for name, record in rollout.items():
        cell, _, own = name.rpartition(".")
        names = (f"{cell}.{other}".lstrip(".") for other in parameter_names_of(own))
        known = [other for other in names if other in training]
        found[known[0] if name not in training and len(known) == 1 else name] = record
    return found


@dataclass(frozen=True)
class _Rows:
    """A weight as rows: those of one record, or of several, one behind the other.

    Attributes:
        order: which of them each row is; None: as they are.
        turned: whether columns of a matrix are its rows.
    """

    records: tuple[Record, ...]
    order: np.ndarray | None = None
    turned: bool = False

    @property
    def dtype(self) -> str | None:
        """That of the first record."""
        return self.records[0].leaf.dtype

    @property
    def are_stored(self) -> bool:
        """Whether elements were stored, and not sketches or statistics alone."""
        return all(record.location is not None for record in self.records)

    def read(self, *, sketched: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, or their sketches; and the fingerprints of these.

        Raises:
            ArrayFileError: they were not stored, or are fewer than the order has.
        """
        if sketched:
            sketches = [record.sketch() for record in self.records]
            if not all(sketch.block for sketch in sketches):
                raise ArrayFileError.saying("unread.no_sketch")
            rows = np.concatenate([sketch.sums for sketch in sketches])
            prints = np.concatenate([sketch.fingerprints for sketch in sketches])
        else:
            values = joined(self.records, "", turned=self.turned).array()
            rows = values.reshape(len(values), -1) if values.ndim > 1 else values.reshape(-1, 1)
            prints = np.zeros(len(rows))
        if self.order is None:
            return rows, prints
        if int(self.order.max(initial=0)) >= len(rows):
            raise ArrayFileError.saying("unread.no_sketch")
        return rows[self.order], prints[self.order]


def _plain(name: str, a: Record, b: Record) -> WeightPair:
    prints = a.leaf.fingerprint, b.leaf.fingerprint
    comparable = None not in prints and a.leaf.dtype == b.leaf.dtype
    if comparable and prints[0] == prints[1]:
        return WeightPair(name, (name,), True, 0.0, a, (b,))
    mine, theirs = _Rows((a,)), _Rows((b,))
    measured = _measured(mine, theirs)
    if (measured is None or not measured[0]) and len(a.leaf.shape or ()) == 2:
        both = measured, _measured(replace(mine, turned=True), theirs)
        measured = min(filter(None, both), key=lambda m: (not m[0], m[1]), default=None)
    if measured is None:
        algorithms = {(of or "").partition(":")[0] for of in prints}
        known = comparable and len(algorithms) == 1 and a.leaf.shape == b.leaf.shape
        return WeightPair(name, (name,), False if known else None, None, a, (b,))
    return WeightPair(name, (name,), *measured[:2], a, (b,), measured[2])


def _split(
    rollout: Mapping[str, Record], training: Mapping[str, Record], fused: Mapping[str, Fused]
) -> list[WeightPair]:
    """Compare parameters of the rollout that are parts of fused ones of the training."""
    found = []
    for name, record in training.items():
        of = fused.get(cell_of_parameter(name))
        parts = None if of is None else parts_of(of, name, rollout)
        if of is None or parts is None:
            continue
        starts = np.cumsum(
            [0, *((part.leaf.shape or (0,))[-1 if of.parts_transposed else 0] for part in parts)]
        )
        for cell, part, start, end in zip(of.parts, parts, starts, starts[1:]):
            rows = np.flatnonzero((of.order >= start) & (of.order < end))
            rows = rows[np.argsort(of.order[rows])]
            matrix = len(part.leaf.shape or ()) == 2  # a bias is what it is
            own = f"{cell}.{name.rpartition('.')[2]}"
            mine = _Rows((part,), turned=matrix and of.parts_transposed)
            found.append(
                _judged(own, (name,), mine, _Rows((record,), rows, matrix and of.transposed))
            )
    return found


def _fused_pair(
    name: str, record: Record, fused: Fused, training: Mapping[str, Record]
) -> WeightPair:
    """Compare a parameter of the rollout with its parts in the training."""
    names = tuple(f"{part}.{name.rpartition('.')[2]}" for part in fused.parts)
    parts = parts_of(fused, name, training)
    if parts is None:
        return WeightPair(name, names, None, None, record, ())
    matrix = len(record.leaf.shape or ()) == 2
    mine = _Rows((record,), turned=matrix and fused.transposed)
    theirs = _Rows(parts, fused.order, matrix and fused.parts_transposed)
    pair = _judged(name, names, mine, theirs)
    if pair.equal is None and (extremes := _extremes(record, parts)) is not None:
        # Largest and smallest elements that are not those of the parts, nor when rounded.
        own, others = extremes
        if not any(np.array_equal(own, rounded(others, low)) for low in (None, *ROUNDED)):
            return replace(pair, equal=False)
    return pair


def _judged(name: str, names: tuple[str, ...], mine: _Rows, theirs: _Rows) -> WeightPair:
    equal, relative, low = _measured(mine, theirs) or (None, None, None)
    return WeightPair(name, names, equal, relative, mine.records[0], theirs.records, low)


def _measured(mine: _Rows, theirs: _Rows) -> tuple[bool, float, str | None] | None:
    """Return whether weights are equal, row by row, and their relative distance.

    Of two dtypes they are where both are equal when rounded to the lower one.

    Returns:
        Also the lower dtype that the second one is rounded to, if that is why they differ. None
        where neither elements nor sketches were stored, or they have other rows.
    """
    low = max(mine.dtype, theirs.dtype, key=roundoff)
    rounds = roundoff(mine.dtype) != roundoff(theirs.dtype)
    sketched = not (mine.are_stored and theirs.are_stored)
    first, others = mine.records[0], theirs.records
    relative: float | None = None
    try:
        if sketched and (mine.turned or theirs.turned):
            if theirs.order is None:
                relative = turned_distance(first, others[0])
            same = relative is not None and rounding_explains(relative)
        elif sketched and theirs.order is not None and len(first.leaf.shape or ()) == 1:
            relative = fused_vector_distance(first, others, theirs.order)
            same = relative == 0
        else:
            (own, prints), (rows, of_others) = (x.read(sketched=sketched) for x in (mine, theirs))
            if own.shape != rows.shape:
                return None
            found = distances(own, rows)
            norm, apart = float(found.norms.sum()), float(found.squared.sum())
            relative = math.sqrt(apart / norm) if norm else (0.0 if apart == 0 else math.inf)
            if not sketched:
                lower = rounded(own, low), rounded(rows, low)
                same = np.array_equal(*lower, equal_nan=True) if rounds else not found.unequal.any()
                return same, relative, None if same else rounded_to(own, rows)
            same = not rounds and np.array_equal(prints, of_others)
    except ArrayFileError:
        return None
    if relative is None or (rounds and relative <= roundoff(low)):
        return None  # sums do not tell rounding from a small difference
    return same, relative, None if same else rounded_by_extremes(first, others, relative)


def rounded_to(values: np.ndarray, others: np.ndarray) -> str | None:
    """Return the lower dtype to which others are rounded in float32 values; None if to none."""
    if (values.dtype, others.dtype) != (np.float32, np.float32):
        return None
    return next((d for d in ROUNDED if np.array_equal(values, rounded(others, d))), None)


_OF_ROUNDING = 2.0  # times a roundoff: as far apart may rounding alone be, by an estimate


def turned_distance(a: Record, b: Record) -> float | None:
    """Return the relative distance of a matrix from the transposed other one.

    Sums of 64 columns with signs, added up over 64 rows with the same signs, are those of the
    transposed matrix, but for the order in which they were added. The distance is estimated from
    them.

    Returns:
        None where there are no sums of either.

    Raises:
        ArrayFileError: one cannot be read.
    """
    mine, theirs = _block_sums(a), _block_sums(b)
    if mine is None or theirs is None or mine.shape != theirs.T.shape:
        return None
    norm = b.leaf.norm if isinstance(b.leaf.norm, float) else float(np.linalg.norm(theirs))
    apart = float(np.linalg.norm(mine - theirs.T))
    return apart / norm if norm else (0.0 if apart == 0 else math.inf)


def rounding_explains(relative: float) -> bool:
    """Return whether adding in another order explains the distance of transposed sketches."""
    return relative <= explained("float32", COLUMNS * COLUMNS)


def fused_vector_distance(a: Record, parts: Sequence[Record], order: np.ndarray) -> float | None:
    """Return the relative distance of a bias from others in an order, of float sketches.

    A vector is one row: its sums are those of the others only where whole blocks of 64 elements
    stand beside each other. Equal sums are a distance of 0.

    Args:
        order: int64 [elements], which element of the others, one behind the other, each is.

    Returns:
        None where the sums do not line up.

    Raises:
        ArrayFileError: one cannot be read.
    """
    if any((part.leaf.shape or (1,))[0] % COLUMNS for part in parts):
        return None
    at = sums_in_order(order)
    sums = []  # of each one axis, float64 [blocks]
    for record in (a, *parts):
        sketch = sketch_of(record.array()) if record.leaf.sketch is None else record.sketch()
        if not sketch.block:
            raise ArrayFileError.saying("unread.no_sketch")
        sums.append(sketch.sums[0].astype(np.float64))
    mine, *others = sums
    theirs = np.concatenate(others)
    if at is None or len(at) != len(mine) or int(at.max(initial=0)) >= len(theirs):
        return None
    apart = float(np.linalg.norm(mine - theirs[at]))
    norm = float(np.linalg.norm(theirs[at]))
    return apart / norm if norm else (0.0 if apart == 0 else math.inf)


def rounded_by_extremes(a: Record, parts: Sequence[Record], relative: float) -> str | None:
    """Return the lower dtype to which others are rounded in float32 weights; None if to none.

    Rounding keeps the order of values: the largest of the rounded ones is the largest one, rounded.

    Args:
        relative: the estimated distance of both.
    """
    extremes = _extremes(a, parts)
    if extremes is None:
        return None
    own, others = extremes
    for dtype in ROUNDED:
        near = relative <= _OF_ROUNDING * roundoff(dtype)
        if near and np.array_equal(own, rounded(others, dtype)):
            return dtype
    return None


def _extremes(a: Record, parts: Sequence[Record]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the largest and smallest elements of both, float32 [2]; None where not known."""
    records = (a, *parts)
    bounds = [(record.leaf.max, record.leaf.min) for record in records]
    known = all(isinstance(x, float) and math.isfinite(x) for pair in bounds for x in pair)
    if not known or any(record.leaf.dtype != "Float32" for record in records):
        return None
    others = [max(x for x, _ in bounds[1:]), min(x for _, x in bounds[1:])]
    return np.array(bounds[0], np.float32), np.array(others, np.float32)


def _block_sums(record: Record) -> np.ndarray | None:
    """Return sums of 64 rows and 64 columns, float64 [row blocks, column blocks]; None: none."""
    if record.leaf.sketch is None:
        if record.location is None:
            raise ArrayFileError.saying("unread.no_sketch")
        sketch = sketch_of(np.ascontiguousarray(record.array()))
    else:
        sketch = record.sketch()
    if not sketch.block:
        return None
    sums = sketch.sums.astype(np.float64) * np.resize(SIGNS, len(sketch.sums))[:, None]
    return np.add.reduceat(sums, np.arange(0, len(sums), COLUMNS), axis=0)
