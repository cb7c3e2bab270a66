"""Several weights of one network that are one weight of the other: by a user's mapping or by rows.

A fused projection (`w_qkv` of `wq`, `wk` and `wv`) has the rows of its parts, in whatever order:
one behind the other, or interleaved by head. Which row is which is read from the values. Where they
differ in one layer, because it was not synchronised, the order of the other layers holds for it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.judging.moves import keys_of_rows
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import FUSED, is_of_fused
from mindrlhf_msprobe.comparison.pairing.mapping import NONE_FUSED, FusedRules, interleaved
from mindrlhf_msprobe.comparison.pairing.names import NUMBER, of_any_layer, with_numbers
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays import npy
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter

_MOST_ROWS = 1 << 22
_ENOUGH_COLUMNS = 64  # that tell in which order the rows are
_NEAR = 0.5  # of its norm, that a row may be away from the one that it is; others are further
#: Of the fused weight and of its parts: whether they are [inputs, outputs]. The first that fits.
_ORIENTATIONS = ((False, False), (True, True), (True, False), (False, True))


@dataclass(frozen=True)
class Fused:
    """One cell of the rollout network that does what several of the training network do.

    Attributes:
        cell: of the rollout network.
        parts: the cells of the training network.
        order: int64 [rows of the fused weight], which row of the parts, one behind the other, each
            of its rows is. Columns of its output are in the same order.
        transposed: whether the fused weight is [inputs, outputs]: its columns are then its rows.
        parts_transposed: whether the weights of the parts are.
    """

    cell: str
    parts: tuple[str, ...]
    order: np.ndarray
    transposed: bool = False
    parts_transposed: bool = False


def find_fused(
    rollout: Mapping[str, Record], training: Mapping[str, Record], rules: FusedRules = NONE_FUSED
) -> dict[str, Fused]:
    """Return the fused cells of the rollout network.

    Args:
        rollout, training: parameters by name that the other network has not.
        rules: what a user says of fused cells; it counts where the values of no layer say it.
    """
    found: dict[str, Fused] = {}
    left = {name: record for name, record in rollout.items() if _matrix(record)}
    for dtype, transposed in product((None, *npy.ROUNDED), _ORIENTATIONS):
        found |= _by_values(left, training, transposed, dtype)
        left = {n: record for n, record in left.items() if cell_of_parameter(n) not in found}
    shapes: dict[str, tuple[int, int]] = {}
    for name, record in training.items():  # a cell's own weight stands before its adapters
        if shape := _matrix(record):
            shapes.setdefault(cell_of_parameter(name), shape)
    cells = [cell_of_parameter(name) for name, record in rollout.items() if _matrix(record)]
    found = _in_their_layers(found, cells, rules, shapes)
    usual: dict[str, Fused] = {}
    for name, record in left.items():
        shape, cell = _matrix(record), cell_of_parameter(name)
        assert shape is not None
        said = by_rule(cell, shape, rules, shapes)
        if said is None and (other := _as_in_other_layers(cell, found.values())) is not None:
            rows = _rows_as(shape, other.parts, shapes, (other.transposed, other.parts_transposed))
            said = other if rows and sum(rows) == len(other.order) else None
        fused = said or _by_preset(cell, shape, shapes)
        if fused:
            of = usual if not said else found
            of[cell] = _as_it_agrees(fused, name, record, training, shapes, any_groups=not said)
    for cell, fused in usual.items():
        most = _as_in_other_layers(cell, usual.values())
        found[cell] = most if most and len(most.order) == len(fused.order) else fused
    return found


def find_usual(wholes: Mapping[str, Record], parts: Mapping[str, Record]) -> list[Fused]:
    """Return the fused cells of a checkpoint, by what such cells are usually called.

    Their parts stand one behind the other, or alternate in groups, as those of heads do. All layers
    are read in the number of groups that brings most of their rows together, and more than half of
    all. No output tells whether weights are right, so any other order is an error of the weights.

    Args:
        wholes, parts: parameters by name, those of fused cells and those of others.
    """
    shapes = {cell_of_parameter(n): shape for n, r in parts.items() if (shape := _matrix(r))}
    layers: dict[str, dict[str, Fused]] = defaultdict(dict)
    for name, record in wholes.items():
        if shape := _matrix(record):
            fused = _by_preset(cell_of_parameter(name), shape, shapes)
            if fused and not (fused.transposed or fused.parts_transposed):
                layers[of_any_layer(fused.cell)][name] = fused
    found = []
    for of_layer in layers.values():
        together: Counter[int] = Counter()
        for name, fused in of_layer.items():
            as_stored = _ORIENTATIONS[:1]
            fitting = _candidates(fused, name, wholes[name], parts, as_stored, any_groups=True)
            for groups, _, mine, apart in fitting:
                near = np.linalg.norm(apart, axis=1) <= _NEAR * np.linalg.norm(mine, axis=1)
                together[groups] += int(np.count_nonzero(near))
        groups = max(together, key=lambda groups: (together[groups], -groups), default=1)
        if 2 * together[groups] <= sum(len(fused.order) for fused in of_layer.values()):
            groups = 1
        for fused in of_layer.values():
            order = interleaved([shapes[part][0] for part in fused.parts], groups)
            found.append(fused if order is None else replace(fused, order=order))
    return found


def _candidates(
    fused: Fused,
    name: str,
    record: Record,
    training: Mapping[str, Record],
    turns: Sequence[tuple[bool, bool]],
    *,
    any_groups: bool,
) -> Iterator[tuple[int, Fused, np.ndarray, np.ndarray]]:
    """Yield how a fused weight may be made of its parts, by their first columns.

    Each is how many times the parts alternate in its rows (1: as `fused` says), the cell so made,
    the rows of its weight, and how far those of the parts are from them. There is none where a part
    is missing, or elements cannot be read.

    Args:
        name, record: the fused weight.
        training: parameters of the parts.
        turns: whether the fused weight is transposed, and whether its parts are.
        any_groups: whether the parts may alternate in any number of groups.
    """
    parts = parts_of(fused, name, training)
    if parts is None or any(of.leaf.why is not None for of in (record, *parts)):
        return
    try:
        read = [
            [_first_columns(record, own), *(_first_columns(part, others) for part in parts)]
            for own, others in turns
        ]
    except (npy.ArrayFileError, RunError):
        return
    for (own, others), (mine, *theirs) in zip(turns, read):
        rows, sizes = np.concatenate(theirs), [len(part) for part in theirs]
        for groups in range(1, (math.gcd(*sizes) if any_groups else 1) + 1):
            order = fused.order if groups == 1 else interleaved(sizes, groups)
            if order is not None:
                made = replace(fused, order=order, transposed=own, parts_transposed=others)
                yield groups, made, mine, mine - rows[order]


def _first_columns(record: Record, transposed: bool) -> np.ndarray:
    rows, columns = _matrix(record) or (0, 0)
    if transposed:
        box = record.opened().box((0, 0), (min(rows, _ENOUGH_COLUMNS), columns)).T
    else:
        box = record.opened().box((0, 0), (rows, min(columns, _ENOUGH_COLUMNS)))
    return np.asarray(box, np.float32)


def find_reordered(
    rollout: Mapping[str, Record], training: Mapping[str, Record]
) -> dict[str, Fused]:
    """Return the fused cells of both networks that have the same rows in another order.

    Heads stand together in one, queries, keys and values in the other. Only cells that are called
    as fused ones usually are: of any other, rows in another order are an error.

    Args:
        rollout, training: parameters of the same names and shapes that are unlike.
    """
    found: dict[str, Fused] = {}
    for name, record in rollout.items():
        if is_of_fused(name) and _matrix(record):
            own, other = {name: record}, {name: training[name]}
            read = (_by_values(own, other, _ORIENTATIONS[0], r) for r in (None, *npy.ROUNDED))
            found |= next(filter(None, read), {})
    return found


def _as_it_agrees(
    fused: Fused,
    name: str,
    record: Record,
    training: Mapping[str, Record],
    shapes: Mapping[str, tuple[int, int]],
    *,
    any_groups: bool,
) -> Fused:
    """Return a fused cell, its weights transposed as they are nearest to each other.

    Of square ones the shapes do not say it.

    Args:
        name, record: the fused weight.
        training: parameters of the parts, and `shapes` of the weights of their cells.
        any_groups: whether the parts may also alternate in its rows, in any number of groups.
    """
    turns = [
        turned
        for turned in _ORIENTATIONS
        if _rows_as(_matrix(record) or (0, 0), fused.parts, shapes, turned)
    ]
    if len(turns) < 2 and not any_groups:
        return fused
    fitting = _candidates(fused, name, record, training, turns, any_groups=any_groups)
    known = [(float(np.linalg.norm(apart)), made) for _, made, _, apart in fitting]
    return min(known, key=lambda one: one[0], default=(0.0, fused))[1]  # of NaN the first one


def _matrix(record: Record) -> tuple[int, int] | None:
    """Return the shape of a matrix; None of any other."""
    shape = record.leaf.shape or ()
    return (shape[0], shape[1]) if len(shape) == 2 and all(shape) else None


def by_rule(
    cell: str, shape: tuple[int, int], rules: FusedRules, shapes: Mapping[str, tuple[int, int]]
) -> Fused | None:
    """Return what a user says of a fused cell; None where nothing is said, or it does not fit.

    Args:
        shape: of its weight.
        shapes: of the weights of the training network's cells.
    """
    fitting = (one for one in rules.meaning(cell) if all(part in shapes for part in one[1]))
    rule, parts = next(fitting, (None, ()))
    return None if rule is None else _of_parts(cell, shape, parts, shapes, rule.order)


def _of_parts(
    cell: str,
    shape: tuple[int, int],
    parts: tuple[str, ...],
    shapes: Mapping[str, tuple[int, int]],
    order_of: Callable[[Sequence[int]], np.ndarray | None],
) -> Fused | None:
    """Return a cell that is made of parts, read as the shapes fit first."""
    for transposed in _ORIENTATIONS:
        rows = _rows_as(shape, parts, shapes, transposed)
        order = order_of(rows) if rows else None
        if order is not None:
            return Fused(cell, parts, order, *transposed)
    return None


def _rows_as(
    shape: tuple[int, int],
    parts: Sequence[str],
    shapes: Mapping[str, tuple[int, int]],
    transposed: tuple[bool, bool],
) -> list[int] | None:
    """Return how many rows each part has in a fused weight; None where the shapes do not fit."""
    turned = [shapes.get(part, (0, 0))[:: -1 if transposed[1] else 1] for part in parts]
    rows = [of_part[0] for of_part in turned]
    inputs = {of_part[1] for of_part in turned}
    whole = shape[:: -1 if transposed[0] else 1]
    return rows if all(rows) and (sum(rows), {whole[1]}) == (whole[0], inputs) else None


def _by_values(
    rollout: Mapping[str, Record],
    training: Mapping[str, Record],
    transposed: tuple[bool, bool],
    rounded: str | None = None,
) -> dict[str, Fused]:
    """Return the cells whose weights have exactly the rows of others.

    Args:
        rounded: a dtype to which all are rounded before.
        transposed: whether the rollout's columns are taken for its rows; and the training's.
    """
    found = {}
    known: dict[tuple[str, str | None], np.ndarray | None] = {}
    own, others = transposed
    columns = {n: shape[0 if others else 1] for n, r in training.items() if (shape := _matrix(r))}
    for name, record in rollout.items():
        wide = (record.leaf.shape or (0, 0))[0 if own else 1]
        fitting: dict[str | None, dict[str, np.ndarray]] = defaultdict(dict)
        for other, theirs in training.items():
            # The one that rounds most.
            dtype = max((record.leaf.dtype, theirs.leaf.dtype, rounded), key=npy.roundoff)
            if columns.get(other) == wide:
                if (other, dtype) not in known:
                    known[other, dtype] = row_keys(theirs, transposed=others, dtype=dtype)
                if (keys := known[other, dtype]) is not None:
                    fitting[dtype][other] = keys
        for dtype, matrices in fitting.items():
            mine = row_keys(record, transposed=own, dtype=dtype)
            if mine is not None and (fused := _by_rows(name, mine, matrices)) is not None:
                found[fused.cell] = replace(fused, transposed=own, parts_transposed=others)
    return found


def _in_their_layers(
    found: Mapping[str, Fused],
    cells: Sequence[str],
    rules: FusedRules,
    shapes: Mapping[str, tuple[int, int]],
) -> dict[str, Fused]:
    """Return the fused cells with the parts of their own layers.

    Rows that are those of another layer than a user or the other layers say are weights that were
    mixed up: they tell the order of the rows, and are no reason to compare with that layer. Layers
    are counted from another number only where each of them has its parts under that number.

    Args:
        cells: all of the rollout network that have a matrix.
    """
    usual: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for cell, fused in found.items():
        usual[of_any_layer(cell)].update({s for part in fused.parts if (s := _shift(cell, part))})
    by_kind: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        by_kind[of_any_layer(cell)].append(cell)
    shifts: dict[str, tuple[int, ...]] = {}  # of most layers

    def holds(shift: Sequence[int], of: Fused) -> bool:
        """Return whether the cells of all layers have their parts so far from their numbers."""
        cells = by_kind[of_any_layer(of.cell)]
        return all(_own_part(c, part, (), shift) in shapes for c in cells for part in of.parts)

    result = {}
    for cell, fused in found.items():
        named = rules.parts_of(cell)
        kind = of_any_layer(cell)
        if kind not in shifts:
            seen = usual[kind]  # by the rows, how often
            own_layers = {(0,) * len(shift) for shift in seen}
            fitting = [s for s in seen if holds(s, fused)]
            fitting = fitting or [s for s in own_layers if holds(s, fused)] or [*seen]
            shifts[kind] = max(fitting, key=lambda s: (seen[s], not any(s)), default=())
        shift = shifts[kind]
        own = tuple(_own_part(cell, part, named or (), shift) for part in fused.parts)
        fits = len({*own}) == len(own) and all(
            shapes.get(mine) == shapes[part] for mine, part in zip(own, fused.parts)
        )
        result[cell] = replace(fused, parts=own) if fits else fused
    return result


def _own_part(cell: str, part: str, named: Sequence[str], shift: Sequence[int]) -> str:
    """Return the part of a cell's own layer that stands where a part of any layer does."""
    for other in named:
        if of_any_layer(other) == of_any_layer(part):
            return other
    if named or not _shift(cell, part):
        return part
    return with_numbers(part, (str(int(n) + by) for n, by in zip(NUMBER.findall(cell), shift)))


def _shift(cell: str, part: str) -> tuple[int, ...]:
    """Return how far the numbers in a part's name are from those in its cell's; () if unknown."""
    of_cell, of_part = NUMBER.findall(cell), NUMBER.findall(part)
    if len(of_cell) != len(of_part):
        return ()
    return tuple(int(y) - int(x) for x, y in zip(of_cell, of_part))


def parts_of(
    fused: Fused, parameter: str, training: Mapping[str, Record]
) -> tuple[Record, ...] | None:
    """Return what a fused parameter is made of in the training network; None if one is missing."""
    own = parameter.rpartition(".")[2]
    found = [training.get(f"{part}.{own}") for part in fused.parts]
    return tuple(record for record in found if record) if all(found) else None


def row_keys(
    record: Record, *, transposed: bool = False, dtype: str | None = None
) -> np.ndarray | None:
    """Return a fingerprint of each row of a matrix of weights, uint64; None if none can be had.

    Args:
        transposed: of each column instead.
        dtype: to which the values are rounded before; None: to none.
    """
    own = record.leaf.dtype
    rounds = dtype is not None and npy.roundoff(dtype) > npy.roundoff(own)
    shape = record.leaf.shape or ()
    if len(shape) != 2 or not 0 < shape[0] <= _MOST_ROWS or not shape[1]:
        return None
    try:
        if record.leaf.sketch is not None:
            return None if transposed or rounds else record.sketch().fingerprints
        values = np.ascontiguousarray(record.array().T if transposed else record.array())
    except (npy.ArrayFileError, RunError):  # of a run, or of a checkpoint
        return None
    if npy.BFLOAT16 in (own, dtype):
        values = npy.float32_to_bfloat16_bits(values)
    elif rounds:
        with np.errstate(over="ignore"):
            values = values.astype(str(dtype).lower())
    return keys_of_rows(values)


def _by_rows(name: str, mine: np.ndarray, training: Mapping[str, np.ndarray]) -> Fused | None:
    """Return the parts whose rows are exactly those of a weight, or None."""
    places: dict[int, list[tuple[str, int]]] = {}
    wanted = {*mine.tolist()}
    for other, keys in training.items():
        for number, key in enumerate(keys.tolist()):
            if key in wanted:
                places.setdefault(key, []).append((other, number))
    taken: list[tuple[str, int]] = []
    for key in mine.tolist():
        left = places.get(key)
        if not left:
            return None
        taken.append(left.pop(0) if len(left) > 1 else left[0])
    names = [*dict.fromkeys(other for other, _ in taken)]
    sizes = [len(training[other]) for other in names]
    if sum(sizes) != len(mine) or len({*taken}) != len(mine):
        return None
    starts = dict(zip(names, np.cumsum([0, *sizes]).tolist()))
    order = np.array([starts[other] + number for other, number in taken], np.int64)
    return Fused(cell_of_parameter(name), tuple(map(cell_of_parameter, names)), order)


def _as_in_other_layers(cell: str, known: Iterable[Fused]) -> Fused | None:
    """Return what holds for the cells of the same name in most other layers."""
    numbers = NUMBER.findall(cell)
    others = []
    for fused in known:
        if of_any_layer(fused.cell) == of_any_layer(cell):
            before = NUMBER.findall(fused.cell)
            if all(NUMBER.findall(part) == before for part in fused.parts):
                parts = tuple(with_numbers(part, numbers) for part in fused.parts)
                others.append(replace(fused, cell=cell, parts=parts))
    said = [(one.parts, one.order.tobytes()) for one in others]
    return max(others, key=lambda one: said.count((one.parts, one.order.tobytes())), default=None)


def _by_preset(
    cell: str, shape: tuple[int, int], shapes: Mapping[str, tuple[int, int]]
) -> Fused | None:
    """Return what a preset says of a cell: its parts one behind the other."""
    around, _, own = cell.rpartition(".")
    for names, each in FUSED:
        for parts in each if own in names else ():
            cells = tuple(f"{around}.{part}" if around else part for part in parts)
            if all(part in shapes for part in cells):
                return _of_parts(cell, shape, cells, shapes, lambda rows: np.arange(sum(rows)))
    return None


def as_most(found: Iterable[Fused], rules: FusedRules = NONE_FUSED) -> list[Fused]:
    """Return fused cells whose rows are in the order that most layers have.

    A network reads the rows of all its layers in one order: of one that has queries where the
    others have keys, the weight is wrong. Of orders that as many layers have, what the caller says
    counts, then the usual one.

    Args:
        rules: what the caller says.
    """
    cells = [*found]
    votes: dict[str, Counter[_RowOrder]] = defaultdict(Counter)
    for fused in cells:
        votes[of_any_layer(fused.cell)][_row_order(fused)] += 1
    result = []
    for fused in cells:
        said = [*map(of_any_layer, rules.parts_of(fused.cell) or ())] or _USUAL
        of_kind = votes[of_any_layer(fused.cell)]
        best = max(of_kind, key=lambda found: (of_kind[found], _stands_as(found, said)))
        names, order, turned = best
        own = [p for name in names for p in fused.parts if of_any_layer(p) == name]
        if len(own) == len(fused.parts) and best != _row_order(fused):
            fused = Fused(fused.cell, tuple(own), np.array(order), *turned)
        result.append(fused)
    return result


#: The parts by their names in any layer, the order of their rows, and what is transposed.
_RowOrder = tuple[tuple[str, ...], tuple[int, ...], tuple[bool, bool]]
_USUAL = [part for _, each in FUSED for parts in each for part in parts]


def _row_order(fused: Fused) -> _RowOrder:
    names = tuple(map(of_any_layer, fused.parts))
    return names, tuple(fused.order.tolist()), (fused.transposed, fused.parts_transposed)


def _stands_as(found: _RowOrder, said: Sequence[str]) -> bool:
    """Return whether parts stand in an order of names: whole ones, or what cells are called."""
    names = [next((n for n in (p, p.rpartition(".")[2]) if n in said), "") for p in found[0]]
    places = [said.index(name) for name in names if name]
    return len(places) == len(found[0]) and places == sorted(places)
