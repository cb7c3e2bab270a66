"""Does the rollout network have the parameters of the training network, fused ones included?

Also those that were rounded to a lower dtype on their way, or of which sketches were recorded. And
low-rank adapters (LoRA) beside a weight of one network that the other has merged into its own:
W' = W + f · B A, where A is [r, inputs] and B [outputs, r], or either is transposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import permutations, product

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.judging.arrays import Lower, compare_tensors
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.comparison.mismatch.rows import explained, sketch_of_rows, sums_in_order
from mindrlhf_msprobe.comparison.pairing.composed import joined
from mindrlhf_msprobe.comparison.pairing.frameworks.records import parameter_names_of
from mindrlhf_msprobe.comparison.pairing.fused import Fused, find_fused, find_reordered, parts_of
from mindrlhf_msprobe.comparison.pairing.mapping import NONE_FUSED, FusedRules
from mindrlhf_msprobe.comparison.pairing.names import Names, around
from mindrlhf_msprobe.storage.arrays.npy import ROUNDED, ArrayFileError, rounded, roundoff
from mindrlhf_msprobe.storage.arrays.sketches import COLUMNS, SIGNS
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter, is_around, network_name

_CACHE = "cache"  # part of the name of a parameter that holds keys or values


_Shape = tuple[int, ...]
_Pair = tuple[str, str]
#: The cell in which PEFT wraps the layer that gets adapters.
_WRAPPED = ".base_layer"
#: Times a roundoff, relative to the weight: so far may merging round, and a cast behind it.
_OF_MERGING, _OF_A_CAST = 8.0, 1.01


@dataclass(frozen=True)
class Adapters:
    """What one network has beside a weight, and the other has merged into it.

    Attributes:
        names: of both factors, of each part of the weight that has them.
        of_training: whether the training network has them; else the rollout network.
        factor: times what the first product was added; None where no elements say it: then what
            the cell returns must.
    """

    names: tuple[str, ...]
    of_training: bool
    factor: float | None = None


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
    rules: FusedRules = NONE_FUSED,
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
    held = next((p.adapters for p in found if p.adapters and p.adapters.factor), None)
    if held is None or not held.of_training:
        return found
    factor = held.factor or 0.0
    for at, pair in enumerate(found):
        if pair.equal and len(pair.training) == 1:
            lacks = lacking(pair.training[0], pair.theirs[0], left[1], factor)
            if lacks is not None:
                found[at] = replace(pair, equal=False, relative=lacks[1], lacks=lacks[0])
    return found


def _adapters(pair: WeightPair, fused: Mapping[str, Fused], left: _Left) -> Adapters | None:
    """Return the adapters by which a pair that differs may do so; None if there are none."""
    if pair.equal is not False:
        return None
    mine, theirs = pair.mine, dict(zip(pair.training, pair.theirs))
    of = fused.get(cell_of_parameter(pair.rollout))
    if of is not None:
        turned = of.transposed, of.parts_transposed
        return merged(mine, theirs, left[1], of_training=True, order=of.order, turned=turned)
    (other,) = theirs.values()
    tried = (
        merged(whole, parts, beside, of_training=beside is left[1], turned=(is_turned, False))
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


def _plain(name: str, a: Record, b: Record) -> WeightPair:
    prints = a.leaf.fingerprint, b.leaf.fingerprint
    comparable = None not in prints and a.leaf.dtype == b.leaf.dtype
    if comparable and prints[0] == prints[1]:
        return WeightPair(name, (name,), True, 0.0, a, (b,))
    pair = _judged(name, (name,), a, (b,))
    if not pair.equal and len(a.leaf.shape or ()) == 2:
        both = pair, _judged(name, (name,), a, (b,), turned=(True, False))
        known = [of for of in both if of.relative is not None]
        pair = min(known, key=lambda of: (not of.equal, of.relative or 0.0), default=pair)
    if pair.relative is None:
        algorithms = {(of or "").partition(":")[0] for of in prints}
        known_unequal = comparable and len(algorithms) == 1 and a.leaf.shape == b.leaf.shape
        return replace(pair, equal=False if known_unequal else None)
    return pair


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
        sizes = [(part.leaf.shape or (0,))[-1 if of.parts_transposed else 0] for part in parts]
        starts = np.cumsum([0, *sizes])
        for cell, part, start, end in zip(of.parts, parts, starts, starts[1:]):
            rows = np.flatnonzero((of.order >= start) & (of.order < end))
            rows = rows[np.argsort(of.order[rows])]
            own = f"{cell}.{name.rpartition('.')[2]}"
            turned = of.parts_transposed, of.transposed
            found.append(_judged(own, (name,), part, (record,), rows, turned))
    return found


def _fused_pair(
    name: str, record: Record, fused: Fused, training: Mapping[str, Record]
) -> WeightPair:
    """Compare a parameter of the rollout with its parts in the training."""
    names = tuple(f"{part}.{name.rpartition('.')[2]}" for part in fused.parts)
    parts = parts_of(fused, name, training)
    if parts is None:
        return WeightPair(name, names, None, None, record, ())
    turned = fused.transposed, fused.parts_transposed
    pair = _judged(name, names, record, parts, fused.order, turned)
    # Largest and smallest elements that are not those of the parts, nor when rounded.
    if pair.equal is None and _extremes_agree(record, parts, (None, *ROUNDED)) == []:
        return replace(pair, equal=False)
    return pair


def _judged(
    name: str,
    names: tuple[str, ...],
    mine: Record,
    theirs: Sequence[Record],
    order: np.ndarray | None = None,
    turned: tuple[bool, bool] = (False, False),
) -> WeightPair:
    """Compare a weight with one that has the rows of others, one behind the other.

    Of two dtypes they are equal where the one is the other rounded to its lower dtype. Nothing is
    known where neither elements nor sketches were stored, or they have other rows.

    Args:
        order: which of their rows each row is; None: as they are.
        turned: whether columns of either side's matrices are its rows; a vector is what it is.
    """
    unknown = WeightPair(name, names, None, None, mine, tuple(theirs))
    own, others = mine.leaf.dtype, theirs[0].leaf.dtype
    low = max(own, others, key=roundoff)
    rounds = roundoff(own) != roundoff(others)
    is_matrix = len(mine.leaf.shape or ()) == 2
    turned = (turned[0] and is_matrix, turned[1] and is_matrix)
    every = (mine, *theirs)
    try:
        if all(record.location is not None for record in every):
            a = joined([mine], name, turned=turned[0])
            b = joined(theirs, name, turned=turned[1])
            if order is not None:
                if int(order.max(initial=0)) >= (b.leaf.shape or (0,))[0]:
                    return unknown
                b = joined([b], name, order=order.tolist())
            if a.leaf.shape != b.leaf.shape:
                return unknown
            lowers = [Lower(str(low), low == own)] if rounds else []
            if own == others == "Float32":
                lowers = [Lower(dtype, is_of_a=True) for dtype in ROUNDED]
            found = compare_tensors(a.opened(), b.opened(), Tolerance(), lowers=lowers)
            same = found.rounded_to is not None if rounds else found.equal
            is_odd = found.one_sided or found.unlike
            apart = math.nan if is_odd else found.metrics.euclidean or 0.0
            relative = _ratio(apart, found.norms[1])
            to = None if same or rounds else found.rounded_to
            return replace(unknown, equal=same, relative=relative, rounded=to)
        by_sums = _by_sketches(mine, theirs, order, turned=any(turned))
    except ArrayFileError:
        return unknown
    if by_sums is None or (rounds and by_sums[1] <= roundoff(low)):
        return unknown  # sums do not tell rounding from a small difference
    same, relative = by_sums[0] and not rounds, by_sums[1]
    near = [dtype for dtype in ROUNDED if relative <= _OF_ROUNDING * roundoff(dtype)]
    to = None if same else next(iter(_extremes_agree(mine, theirs, near) or ()), None)
    return replace(unknown, equal=same, relative=relative, rounded=to)


_OF_ROUNDING = 2.0  # times a roundoff: as far apart may rounding alone be, by an estimate


def _by_sketches(
    mine: Record, theirs: Sequence[Record], order: np.ndarray | None, *, turned: bool
) -> tuple[bool, float] | None:
    """Return whether weights are equal by their sketches, and their relative distance.

    Sums of 64 columns with signs, added up over 64 rows with the same signs, are those of the
    transposed matrix, but for the order in which they were added. A vector is one row: its sums are
    those of others in an order only where whole blocks of 64 elements stand beside each other.

    Returns:
        None where the sums do not line up.

    Raises:
        ArrayFileError: one cannot be read.
    """
    sketches = [sketch_of_rows(record) for record in (mine, *theirs)]
    if not all(sketch.block for sketch in sketches):
        return None
    own, *parts = (sketch.sums.astype(np.float64) for sketch in sketches)
    if turned:
        if order is not None:
            return None
        signed = (of * np.resize(SIGNS, len(of))[:, None] for of in (own, parts[0]))
        x, y = (np.add.reduceat(of, np.arange(0, len(of), COLUMNS), axis=0) for of in signed)
        relative = _relative(x, y.T, theirs[0].leaf.norm)
        explains = relative is not None and relative <= explained("float32", COLUMNS * COLUMNS)
        return None if relative is None else (explains, relative)
    if order is not None and len(mine.leaf.shape or ()) == 1:
        at = None if any(of.columns % COLUMNS for of in sketches[1:]) else sums_in_order(order)
        others = np.concatenate(parts, axis=1)
        if at is None or int(at.max(initial=0)) >= others.shape[1]:
            return None
        relative = _relative(own, others[:, at])
        return None if relative is None else (relative == 0, relative)
    others = np.concatenate(parts)
    prints = np.concatenate([sketch.fingerprints for sketch in sketches[1:]])
    if order is not None:
        if int(order.max(initial=0)) >= len(others):
            return None
        others, prints = others[order], prints[order]
    relative = _relative(own, others)
    same = np.array_equal(sketches[0].fingerprints, prints)
    return None if relative is None else (same, relative)


def _relative(own: np.ndarray, others: np.ndarray, norm: object = None) -> float | None:
    """Return how far sums are from others, relative to the norm of these; None of other shapes."""
    if own.shape != others.shape:
        return None
    return _ratio(
        float(np.linalg.norm(own - others)),
        norm if isinstance(norm, float) else float(np.linalg.norm(others)),
    )


def _ratio(apart: float, norm: float) -> float:
    return apart / norm if norm else (0.0 if apart == 0 else math.inf)


def _extremes_agree(
    mine: Record, theirs: Sequence[Record], dtypes: Iterable[str | None]
) -> list[str | None] | None:
    """Return rounded to which dtypes the largest and smallest elements are those of others.

    Rounding keeps the order of values: the largest of the rounded ones is the largest one, rounded.

    Args:
        dtypes: some of which to try; None: not rounded.

    Returns:
        None where these elements of float32 are not known.
    """
    records = (mine, *theirs)
    bounds = [(record.leaf.max, record.leaf.min) for record in records]
    known = all(isinstance(x, float) and math.isfinite(x) for pair in bounds for x in pair)
    if not known or any(record.leaf.dtype != "Float32" for record in records):
        return None
    others = np.array([max(x for x, _ in bounds[1:]), min(x for _, x in bounds[1:])], np.float32)
    own = np.array(bounds[0], np.float32)
    return [dtype for dtype in dtypes if np.array_equal(own, rounded(others, dtype))]


def merged(
    whole: Record,
    parts: Mapping[str, Record],
    others: Mapping[str, Record],
    *,
    of_training: bool,
    order: np.ndarray | None = None,
    turned: tuple[bool, bool] = (False, False),
) -> Adapters | None:
    """Return the adapters that a weight holds, or may where no elements say it; None if none.

    Args:
        parts: those that it is made of, one behind the other, by name; one, unless it is fused.
        others: what the network of the parts has, and the other network has not, by name.
        of_training: whether that is the training network.
        order: which row of the parts each row of the weight is; None: as they are.
        turned: whether its columns are its rows; and those of the parts theirs.
    """
    fitting = {
        n: [*_fitting(n, shape_of(part, turned=turned[1]), others)] for n, part in parts.items()
    }
    near = tuple(name for pairs in fitting.values() for pair in pairs[:1] for name in pair)
    if not near:
        return None
    stored = (whole, *parts.values(), *(others[name] for name in near))
    if any(record.location is None for record in stored):
        return Adapters(near, of_training)
    held: list[tuple[_Pair, float]] = []
    try:
        own = _values(whole, turned=turned[0])
        if order is not None:
            own = own[np.argsort(order)]
        read = {n: _values(part, turned=turned[1]) for n, part in parts.items()}
        pieces = np.split(own, np.cumsum([len(part) for part in read.values()])[:-1])
        for (name, part), piece in zip(read.items(), pieces):
            added = piece - part
            lowest = max(roundoff(record.leaf.dtype) for record in (whole, parts[name]))
            rounding = max(_OF_MERGING * roundoff("float32"), _OF_A_CAST * lowest)
            allowed = rounding * float(np.linalg.norm(part))
            if (pair := _of_adapters(added, fitting[name], others, allowed)) is not None:
                held.append(pair)
            elif not np.linalg.norm(added) <= allowed:
                return None  # it has more than its part, and that is something else
    except ArrayFileError:
        return Adapters(near, of_training)
    if not held:
        return None
    return Adapters(tuple(n for pair, _ in held for n in pair), of_training, held[0][1])


def lacking(
    name: str, part: Record, others: Mapping[str, Record], factor: float
) -> tuple[_Pair, float] | None:
    """Return the adapters of a weight's cell that nothing holds, and how large their product is.

    None where there are none in its own cell or inside it, or they add nothing.

    Args:
        others: as of `merged`.
        factor: times what the products of other weights were added.

    Returns:
        their names, and the norm of what they add relative to that of the weight.
    """
    cell = cell_of_parameter(outer_name(name))
    own = {
        other: record
        for other, record in others.items()
        if cell == cell_of_parameter(other) or is_around(cell, cell_of_parameter(other))
    }
    try:
        size = float(np.linalg.norm(_values(part)))
        for pair in _fitting(name, shape_of(part), own):
            x, y = (_values(own[of]) for of in pair)
            for both in _products(x, y, shape_of(part)):
                added = abs(factor) * float(np.linalg.norm(both))
                return (pair, added / size) if added and size else None
    except ArrayFileError:
        pass
    return None


def _of_adapters(
    added: np.ndarray, pairs: Sequence[_Pair], others: Mapping[str, Record], allowed: float
) -> tuple[_Pair, float] | None:
    """Return the adapters whose product was added to a weight, and times what; None if none was.

    Raises:
        ArrayFileError: they cannot be read.
    """
    for pair in pairs if added.any() else ():
        x, y = (_values(others[of]) for of in pair)
        for both in _products(x, y, added.shape):
            squared = np.vdot(both, both)
            factor = float(np.vdot(both, added) / squared) if squared else 0.0
            if np.linalg.norm(added - factor * both) <= allowed:
                return pair, factor
    return None


def shape_of(record: Record, *, turned: bool = False) -> _Shape:
    """Return the shape of a weight, with outputs before inputs: it is `turned` where it has not."""
    return (record.leaf.shape or ())[:: -1 if turned else 1]


def outer_name(parameter: str) -> str:
    """Return the name that a parameter would have if no adapters wrapped its layer.

    `q_proj.base_layer.weight` is `q_proj.weight`.
    """
    cell, _, own = parameter.rpartition(".")
    return network_name(cell.removesuffix(_WRAPPED), own)


def _values(record: Record, *, turned: bool = False) -> np.ndarray:
    values = np.asarray(record.array(), np.float64)
    return values.T if turned else values


def _fitting(name: str, shape: _Shape, others: Mapping[str, Record]) -> Iterator[_Pair]:
    """Yield matrices of a weight's cell, inside it or beside it, whose product has its shape."""
    cell = cell_of_parameter(outer_name(name))
    near = {
        other: own
        for other, record in others.items()
        if len(own := record.leaf.shape or ()) == 2
        and (
            (near_cell := cell_of_parameter(other)) == cell
            or is_around(cell, near_cell)
            or around(cell)[:1] == around(near_cell)[:1]
        )
    }
    for pair in permutations(near, 2):
        if len(shape) == 2 and [*_oriented(near[pair[0]], near[pair[1]], shape)]:
            yield pair


def _oriented(x: _Shape, y: _Shape, shape: _Shape) -> Iterator[tuple[bool, bool]]:
    """Yield whether two matrices are transposed to multiply to a shape, with a rank below it."""
    for of_x, of_y in product((False, True), repeat=2):
        (rows, rank), (also, columns) = x[:: -1 if of_x else 1], y[:: -1 if of_y else 1]
        if rank == also < min(shape) and (rows, columns) == shape:
            yield of_x, of_y


def _products(x: np.ndarray, y: np.ndarray, shape: _Shape) -> Iterator[np.ndarray]:
    for turned in _oriented(x.shape, y.shape, shape):
        a, b = (of.T if t else of for of, t in zip((x, y), turned))
        yield a @ b
