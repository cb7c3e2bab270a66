"""Does the rollout network have the parameters of the training network, fused ones included?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.rows.pairs import distances
from mindrlhf_msprobe.comparison.mismatch.sides import read_parameters
from mindrlhf_msprobe.comparison.mismatch.weights.adapters import (
    Adapters,
    Merging,
    outer_name,
    shape_of,
)
from mindrlhf_msprobe.comparison.mismatch.weights.sketched import (
    extremes_differ,
    fused_vector_distance,
    rounded_by_extremes,
    rounded_to,
    turned_alike,
    turned_distance,
)
from mindrlhf_msprobe.comparison.pairing.frameworks.records import alike_parameters
from mindrlhf_msprobe.comparison.pairing.fused import Fused, find_fused, find_reordered, parts_of
from mindrlhf_msprobe.comparison.pairing.mapping import FusedRule
from mindrlhf_msprobe.comparison.pairing.names import Names
from mindrlhf_msprobe.findings.mismatch import InFlight, Weight
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, rounded, roundoff
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter, network_name

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.mismatch.walk import Walk

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
        dtypes: of the rollout's and the training's.
        rounded: the lower dtype to which the training's values are rounded in the rollout, where
            that is all they differ by; None where it is not.
        adapters: what either network has beside it, and the other holds in it, where they differ.
        lacks: the adapters of the training network that it does not hold, while others hold theirs:
            it is another weight then, though without them it is the same.
    """

    rollout: str
    training: tuple[str, ...]
    equal: bool | None
    relative: float | None = None
    dtypes: tuple[str, str] = ("", "")
    rounded: str | None = None
    adapters: Adapters | None = None
    lacks: tuple[str, ...] = ()

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
    both = [n for n in common_a if n in common_b and _same_shape(common_a, common_b, n)]
    left_a, left_b = _without(common_a, both), _without(common_b, both)
    outer = {outer_name(name): name for name in left_b}
    parts = {name: left_b[inner] for name, inner in outer.items()}
    fused = find_fused(left_a, parts, rules)
    pairs, reordered = _pairs_of_both(both, common_a, common_b)
    joined = [
        replace(pair, training=tuple(outer.get(name, name) for name in pair.training))
        for name, record in left_a.items()
        if cell_of_parameter(name) in fused
        for pair in [_fused_pair(name, record, fused[cell_of_parameter(name)], parts)]
    ]
    used = _names_of(joined)
    parted = find_fused(_without(left_b, used), _without(left_a, used))
    joined += _split(_without(left_a, used), _without(left_b, used), parted)
    joined += _wrapped(_without(left_a, _names_of(joined)), _without(left_b, _names_of(joined)))
    used = {*both, *_names_of(joined)}
    left_a, left_b = _without(common_a, used), _without(common_b, used)
    fused |= reordered
    every = [
        replace(pair, adapters=_adapters(pair, fused, (common_a, common_b), (left_a, left_b)))
        for pair in (*pairs, *joined)
    ]
    merged = [p.adapters for p in every if p.adapters and p.adapters.factor]
    if merged and merged[0].of_training:
        factor = merged[0].factor or 0.0
        every = [_without_adapters(pair, common_a, common_b, left_b, factor) for pair in every]
    known = {n for p in every if p.adapters and p.is_brought_over for n in p.adapters.names}
    alone = (
        _alone(rollout, {*map(id, _without(left_a, known).values())}, names.common_a),
        _alone(training, {*map(id, _without(left_b, known).values())}, names.common_b),
    )
    return Weights(tuple(every), fused, alone, parted)


def _without_adapters(
    pair: WeightPair,
    rollout: Mapping[str, Record],
    training: Mapping[str, Record],
    beside: Mapping[str, Record],
    factor: float,
) -> WeightPair:
    """Return a pair that agrees as one that differs, if adapters were to be merged into it.

    Args:
        rollout, training: the parameters of both networks, by the names of both.
        beside: those that the training network has alone.
        factor: times what the adapters of other weights were added.
    """
    if not pair.equal or len(pair.training) != 1:
        return pair
    mine, theirs = rollout.get(pair.rollout), training.get(pair.training[0])
    if mine is None or theirs is None:
        return pair
    lacking = Merging(mine, {pair.training[0]: theirs}).lacks(beside, factor)
    if lacking is None:
        return pair
    return replace(pair, equal=False, relative=lacking[1], lacks=lacking[0])


def _adapters(
    pair: WeightPair,
    fused: Mapping[str, Fused],
    networks: tuple[Mapping[str, Record], Mapping[str, Record]],
    left: tuple[Mapping[str, Record], Mapping[str, Record]],
) -> Adapters | None:
    """Return the adapters by which a pair that differs may do so; None if there are none.

    Args:
        networks: the parameters of the rollout and of the training, by the names of both.
        left: those of either that the other has not.
    """
    mine = networks[0].get(pair.rollout)
    theirs = {name: networks[1][name] for name in pair.training if name in networks[1]}
    if pair.equal is not False or mine is None or len(theirs) < len(pair.training):
        return None
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


def _names_of(pairs: Iterable[WeightPair]) -> set[str]:
    return {name for pair in pairs for name in (pair.rollout, *pair.training)}


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


def _pairs_of_both(
    names: Sequence[str], rollout: Mapping[str, Record], training: Mapping[str, Record]
) -> tuple[list[WeightPair], dict[str, Fused]]:
    """Compare parameters that both have; return them, and cells whose rows are in another order."""
    pairs = [_plain(name, rollout[name], training[name]) for name in names]
    unlike = {pair.rollout for pair in pairs if pair.equal is False}
    reordered = find_reordered({n: r for n, r in rollout.items() if n in unlike}, training)
    for at, pair in enumerate(pairs):
        of = reordered.get(cell_of_parameter(pair.rollout))
        if of is not None:
            pairs[at] = _fused_pair(pair.rollout, rollout[pair.rollout], of, training)
    return pairs, reordered


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


def _without(records: Mapping[str, Record], names: Collection[str]) -> dict[str, Record]:
    return {name: record for name, record in records.items() if name not in names}


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
        names = (f"{cell}.{alike}".lstrip(".") for alike in alike_parameters(own))
        known = [other for other in names if other in training]
        found[known[0] if name not in training and len(known) == 1 else name] = record
    return found


def _same_shape(a: Mapping[str, Record], b: Mapping[str, Record], name: str) -> bool:
    shapes = a[name].leaf.shape, b[name].leaf.shape
    return shapes[0] == shapes[1] or shapes[0] == (shapes[1] or ())[::-1]


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
        found = []
        for record in self.records:
            if sketched:
                sketch = record.sketch()
                if not sketch.block:
                    raise ArrayFileError.saying("unread.no_sketch")
                found.append((sketch.sums, sketch.fingerprints))
                continue
            values = np.asarray(record.array())
            rows = values.reshape(len(values), -1) if values.ndim > 1 else values.reshape(-1, 1)
            rows = rows.T if self.turned else rows
            found.append((rows, np.zeros(len(rows))))
        if self.order is None and len(found) == 1:
            return found[0]
        rows, prints = (np.concatenate(each) for each in zip(*found))
        if self.order is None:
            return rows, prints
        if int(self.order.max(initial=0)) >= len(rows):
            raise ArrayFileError.saying("unread.no_sketch")
        return rows[self.order], prints[self.order]


def _plain(name: str, a: Record, b: Record) -> WeightPair:
    dtypes = (str(a.leaf.dtype), str(b.leaf.dtype))
    prints = a.leaf.fingerprint, b.leaf.fingerprint
    comparable = None not in prints and dtypes[0] == dtypes[1]
    if comparable and prints[0] == prints[1]:
        return WeightPair(name, (name,), True, 0.0, dtypes)
    mine, theirs = _Rows((a,)), _Rows((b,))
    measured = _measured(mine, theirs)
    if (measured is None or not measured[0]) and len(a.leaf.shape or ()) == 2:
        both = measured, _measured(replace(mine, turned=True), theirs)
        measured = min(filter(None, both), key=lambda m: (not m[0], m[1]), default=None)
    if measured is None:
        algorithms = {(of or "").partition(":")[0] for of in prints}
        alike = comparable and len(algorithms) == 1 and a.leaf.shape == b.leaf.shape
        return WeightPair(name, (name,), False if alike else None, None, dtypes)
    return WeightPair(name, (name,), *measured[:2], dtypes, measured[2])


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
    names = tuple(f"{part}.{name.rpartition('.')[2]}" for part in fused.parts)
    parts = parts_of(fused, name, training)
    if parts is None:
        return WeightPair(name, names, None)
    matrix = len(record.leaf.shape or ()) == 2
    mine = _Rows((record,), turned=matrix and fused.transposed)
    theirs = _Rows(parts, fused.order, matrix and fused.parts_transposed)
    pair = _judged(name, names, mine, theirs)
    unlike = pair.equal is None and extremes_differ(record, parts)
    return replace(pair, equal=False) if unlike else pair


def _judged(name: str, names: tuple[str, ...], mine: _Rows, theirs: _Rows) -> WeightPair:
    equal, relative, low = _measured(mine, theirs) or (None, None, None)
    return WeightPair(name, names, equal, relative, (str(mine.dtype), str(theirs.dtype)), low)


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
            same = relative is not None and turned_alike(relative)
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


def unlike_weights(walk: Walk, runs: Sequence[Run], phases: tuple[str, str]) -> list[Weight]:
    """Return the parameters that differ: since when, and whose they still are.

    Args:
        runs, phases: of the rollout and of the training.
    """
    unlike, in_flight = _in_flight(walk)
    unlike += [p for p in walk.weights.unequal if p.rollout not in walk.merged]
    since = {pair.rollout: walk.rollout.step for pair in unlike}
    stale: dict[str, int] = {}
    differing = {*since}
    for step in _steps_before(walk, runs, phases) if unlike else ():
        rollout, training = (
            read_parameters(run, phase, step, walk.rollout.rank) for run, phase in zip(runs, phases)
        )
        for pair in _pairs(walk, walk.rollout.parameters, training):
            if pair.is_brought_over and pair.rollout in since:
                stale.setdefault(pair.rollout, step)
        differing &= {p.rollout for p in _pairs(walk, rollout, training) if p.equal is False}
        since |= dict.fromkeys(differing, step)
        if not differing and len(stale) == len(unlike):
            break
    return [
        Weight(
            *(p.rollout, p.training, p.relative, p.dtypes),
            *(since[p.rollout], stale.get(p.rollout), p.rounded, in_flight.get(p.rollout)),
            p.lacks,
        )
        for p in unlike
    ]


def _in_flight(walk: Walk) -> tuple[list[WeightPair], dict[str, InFlight]]:
    """Return what updates changed while the rollout generated.

    Returns:
        The parameters that agree at first and differ later; and when each parameter, by name,
        began to agree, or to differ.
    """
    held = dict(walk.rollout.parameters)
    before = {pair.rollout: pair for pair in walk.weights.pairs}
    changes: dict[str, tuple[int, WeightPair]] = {}  # the call of the last change, and since then
    for call, update in sorted(walk.rollout.updates.items()):
        held |= update
        for pair in _pairs(walk, held, walk.training.parameters):
            known = changes.get(pair.rollout, (0, before.get(pair.rollout, pair)))[1]
            if known.is_brought_over != pair.is_brought_over:
                changes[pair.rollout] = call, pair
    unlike = []
    found = {}
    places = {call: walk.last_place(call) for call in {call for call, _ in changes.values()}}
    for name, (call, pair) in changes.items():
        was, brought = before[name], pair.is_brought_over
        if was.is_brought_over == brought:
            continue  # changed twice: it ends as it began
        found[name] = InFlight(call, places[call], brought)
        if not brought:
            unlike.append(pair)
    return unlike, found


def _steps_before(walk: Walk, runs: Sequence[Run], phases: tuple[str, str]) -> Iterator[int]:
    """Yield the steps before that of a walk, the last first, as long as both phases are there."""
    rank = walk.rollout.rank
    before = {step for run in runs for step in run.steps if step < walk.rollout.step}
    for step in sorted(before, reverse=True):
        if not all(phase in run.phases_at(step, rank) for run, phase in zip(runs, phases)):
            return
        yield step


def _pairs(
    walk: Walk, rollout: Mapping[str, Record], training: Mapping[str, Record]
) -> tuple[WeightPair, ...]:
    return compare_weights(rollout, training, walk.names, walk.mapping.fused).pairs
