"""What several ranks hold of one value → the value of the whole."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.comparison.layouts.assembly import (
    Assembly,
    known_of,
    same_value,
    scaled,
)
from mindrlhf_msprobe.comparison.layouts.layout import (
    ANY,
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    Layout,
    Modes,
)
from mindrlhf_msprobe.comparison.pairing.composed import composed, gap_of, together
from mindrlhf_msprobe.storage.arrays.expression import Tile
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Record, cell_name, network_name
from mindrlhf_msprobe.storage.shards import COPY, MEAN, SUM

#: Codes of what the layout is to blame for, and no file.
UNFIT, UNLIKE_PARTS = "layout.dimension", "layout.shapes"
_MOST_TRIED = 4096  # ways in which a shape may be cut
_PREFERRED = {DATA: 0, CONTEXT: 1}

#: A row of the whole, in this order: its number where the ranks' rows follow each other.
Order = Sequence[int]


@dataclass(frozen=True)
class Held:
    """What the ranks of a run hold of one value.

    Attributes:
        name: in the whole network.
        records: by rank.
        layout: of the run; None: it is whole, and `records` has one.
        recorded: the ranks of which the step was recorded.
        open_axes: those over which a value may be in some places alone.
        divided: those over which samples or tokens are divided.
    """

    name: str
    records: Mapping[int, Record]
    layout: Layout | None
    recorded: frozenset[int]
    open_axes: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset({DATA, CONTEXT})

    @property
    def first(self) -> Record:
        """What the lowest rank holds."""
        return self.records[min(self.records)]

    @property
    def batches(self) -> tuple[str, ...]:
        """The axes over which samples are divided, the outermost first."""
        return batch_axes(self.layout, self.divided)

    @property
    def wanted(self) -> list[int]:
        """The ranks that should hold it."""
        assert self.layout is not None
        present: dict[str, set[int]] = {
            axis: {self.layout.place(rank, axis) for rank in self.records}
            for axis in self.open_axes
        }
        return [
            rank
            for rank in self.layout.places
            if all(self.layout.place(rank, axis) in at for axis, at in present.items())
        ]

    @cached_property
    def strategy(self) -> Mapping[int, tuple[int, ...]] | Message | None:
        """Which part of each dimension the ranks hold of a parameter, by the network's strategy.

        A message: why it is not known. None where no strategy says it, or a pattern does.
        """
        layout, io = self.layout, self.first.io
        if layout is None or not layout.strategy or io not in ("parameters", PARAMETERS_GRAD):
            return None
        if layout.rule(self.name):
            return None
        entry, _, path = self.name.rpartition(f".{io}.")
        parameter = network_name(cell_name(entry), path)
        found: dict[int, tuple[int, ...]] = {}
        for rank, record in self.records.items():
            cut = layout.cut_of(parameter, rank)
            if cut is None:
                return None
            if isinstance(cut[0], Message):
                return cut[0]
            found[rank] = cut[0].part_of(cut[1])
            if len(found[rank]) != len(record.leaf.shape or ()):
                return message("checkpoint.layout")
        return found

    def is_gradient_of_shared(self, experts: int | str) -> bool:
        """Return whether it is the gradient of what every rank of an expert's axis has.

        Each of these has the gradient of its own samples.
        """
        copies = experts in (COPY, ANY)
        return copies and self.first.io == PARAMETERS_GRAD and self.strategy is None

    def modes(self) -> dict[str, int | str]:
        """Return how it is cut over each axis, as far as that is said; see `Layout.modes`."""
        if self.layout is None:
            return {}
        if self.strategy is not None:  # of ranks with the same part each has a copy
            return dict.fromkeys(self.layout.cut, COPY)
        modes = self.layout.modes(self.name, self.first.io, self.first.leaf.shard)
        own = _without_open(modes)
        size = len(self.first.leaf.shape or ())
        found: dict[str, int | str] = {}
        for axis, how in modes.items():
            if axis in self.open_axes or (how == ANY and (axis == PIPELINE or not size)):
                how = own[axis]
            found[axis] = how + size if isinstance(how, int) and how < 0 else how
        return found


def batch_axes(layout: Layout | None, divided: frozenset[str]) -> tuple[str, ...]:
    """Return the axes over which a run's samples are divided, the outermost first."""
    cut = layout.cut if layout is not None else ()
    return tuple(axis for axis in cut if axis in divided and axis != CONTEXT)


def join_both(
    held: tuple[Held | None, Held | None],
    orders: tuple[Order, Order] = ((), ()),
    calls: tuple[int, int] = (1, 1),
    like: tuple[Held | None, Held | None] = (None, None),
) -> tuple[Record | None, Record | None]:
    """Return what two runs have of one value, each as a whole.

    Over an axis of which nothing says how a value is cut, the shapes decide; over one that both
    runs have in the same size, what they hold at one place is compared with each other.

    Args:
        orders: of each run, its rows in the order in which they are compared.
        calls: how often each run made the call; where it did so less often, with more rows.
        like: what each has of another such call, where it did not make this one.
    """
    modes = [{} if one is None else one.modes() for one in held]
    a, b = (one or other for one, other in zip(held, like))
    if a is not None and b is not None:
        modes = [a.modes(), b.modes()]
        unsaid = [of.get(EXPERT) == ANY for of in modes]
        _resolve((a, b), modes, calls)
        for one, of, by_shape in zip((a, b), modes, unsaid):
            if by_shape and one.is_gradient_of_shared(of[EXPERT]):
                of[EXPERT] = MEAN
    found = [
        None if one is None else _join(one, how, order)
        for one, how, order in zip(held, modes, orders)
    ]
    if found[0] is not None and found[1] is not None:
        return _without_sizes(found[0], found[1], (a, b))  # type: ignore[arg-type]
    return found[0], found[1]


def _resolve(
    held: tuple[Held, Held], modes: list[dict[str, int | str]], calls: tuple[int, int]
) -> None:
    """Decide how two values are cut over the axes of which nothing says it."""
    shapes = [one.first.leaf.shape for one in held]
    if None in shapes or len(shapes[0] or ()) != len(shapes[1] or ()):
        return
    _place_by_place(held, modes)
    free = [(side, axis) for side in (0, 1) for axis, how in modes[side].items() if how == ANY]
    dims = range(len(shapes[0] or ()))
    if not free or (len(dims) + 1) ** len(free) > _MOST_TRIED:
        return
    fitting = []
    for choice in itertools.product([COPY, *dims], repeat=len(free)):
        tried = _chosen(modes, free, choice)
        if _fit(_whole_shape(held[0], tried[0]), _whole_shape(held[1], tried[1]), calls):
            unlike = sum(map(_unlike_copies, held, tried))
            fitting.append((unlike, _odd(free, choice), tried))
    if fitting:
        modes[0], modes[1] = min(fitting, key=lambda one: one[:2])[2]


def _chosen(
    modes: Sequence[Modes], free: Sequence[tuple[int, str]], choice: Sequence[int | str]
) -> list[dict[str, int | str]]:
    """Return both runs' ways to cut, the free ones as they were chosen."""
    tried = [{**of} for of in modes]
    for (side, axis), how in zip(free, choice):
        tried[side][axis] = how
    return tried


def _place_by_place(held: tuple[Held, Held], modes: list[dict[str, int | str]]) -> None:
    """Let parts that both runs have in the same number stand for each other."""
    for axis in [axis for axis, how in modes[0].items() if how == ANY == modes[1].get(axis)]:
        of = [one.layout.axes[axis] for one in held if one.layout is not None]
        if len(of) == 2 and of[0] == of[1]:
            modes[0][axis] = modes[1][axis] = 0


def _fit(a: tuple[int, ...] | None, b: tuple[int, ...] | None, calls: tuple[int, int]) -> bool:
    """Return whether two shapes are equal, or hold equally many rows in all calls together."""
    if a is None or b is None:
        return False
    unlike = [(m * calls[0], n * calls[1]) for m, n in zip(a, b) if m != n]
    return not unlike or (len(unlike) == 1 and unlike[0][0] == unlike[0][1])


def _odd(free: Sequence[tuple[int, str]], choice: Sequence[int | str]) -> int:
    """Return how unusual it is to cut these axes so: batches are rows, contexts columns."""
    cost = 0
    for (_, axis), how in zip(free, choice):
        if isinstance(how, int):
            cost += 1 + 2 * abs(how - _PREFERRED[axis]) if axis in _PREFERRED else 2
    return cost


def _whole_shape(held: Held, modes: Modes) -> tuple[int, ...] | None:
    """Return the shape of the whole, if it is cut so; None where it cannot be."""
    if held.layout is None:
        return held.first.leaf.shape
    sizes = _sizes(held, modes)
    return None if sizes is None else _shape_of(sizes)


def _shape_of(sizes: Sequence[Mapping[int, int]]) -> tuple[int, ...]:
    return tuple(sum(of.values()) for of in sizes)


def _sizes(held: Held, modes: Modes) -> list[dict[int, int]] | None:
    """Return for each dimension the size of each part; None where parts do not fit together."""
    shape = held.first.leaf.shape or ()
    found: list[dict[int, int]] = [{} for _ in shape]
    for rank, record in held.records.items():
        own = record.leaf.shape or ()
        if len(own) != len(shape):
            return None
        parts = _parts(held, modes, rank)
        for dim, size in enumerate(own):
            if found[dim].setdefault(parts[dim], size) != size:
                return None
    return found


def _parts(held: Held, modes: Modes, rank: int) -> list[int]:
    """Return which part of each dimension a rank holds."""
    assert held.layout is not None
    if isinstance(held.strategy, Mapping):
        return [*held.strategy[rank]]
    parts = [0] * len(held.first.leaf.shape or ())
    for axis, how in modes.items():
        if isinstance(how, int) and how < len(parts):
            parts[how] = parts[how] * held.layout.axes[axis] + held.layout.place(rank, axis)
    return parts


def _unlike_copies(held: Held, modes: Modes) -> int:
    """Return how many ranks say something else of a part than most that hold the same."""
    if held.layout is None:
        return 0
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for rank, record in held.records.items():
        terms = (held.layout.place(rank, x) for x, how in modes.items() if how in (SUM, MEAN))
        part = (*_parts(held, modes, rank), -1, *terms)
        groups[part].append(repr(known_of(record.leaf)))
    return sum(len(said) - max(map(said.count, said)) for said in groups.values())


def _without_sizes(
    a: Record, b: Record, held: tuple[Held, Held]
) -> tuple[Record | None, Record | None]:
    """Leave numbers that count what one rank has out of the comparison with those of another."""
    values = _count(a.leaf), _count(b.leaf)
    if not all(type(v) is int and v > 0 for v in values):
        return a, b
    (small, large), side = (values, 0) if values[0] < values[1] else (values[::-1], 1)
    layout = held[side].layout
    if small == large or layout is None or gap_of((a,)):
        return a, b
    sizes = [layout.axes[axis] for axis in layout.cut]
    some = (c for n in range(1, len(sizes) + 1) for c in itertools.combinations(sizes, n))
    if not any(small * math.prod(c) == large for c in some):
        return a, b
    gap = message("layout.size_of_part", small=small, large=large)
    return composed(a, leaf=a.leaf, gap=gap), b


def _count(leaf: Leaf) -> Any:
    """Return the value of a Python number, or of a whole number that is a tensor."""
    return leaf.max if leaf.shape == () and leaf.is_integer else leaf.value


def _join(held: Held, modes: Modes, order: Order) -> Record:
    """Return what the ranks hold as a whole."""
    first = _named(held.first, held.name)
    layout = held.layout
    if layout is None:
        return first
    if isinstance(held.strategy, Message):
        return composed(first, leaf=first.leaf, gap=held.strategy)
    modes = _without_open(modes)
    leaves = [record.leaf for record in held.records.values()]
    unread = next((leaf for leaf in leaves if leaf.why is not None), None)
    if unread is not None:
        return composed(first, leaf=unread)
    if (lacking := _without_ranks(first, held, modes)) is not None:
        return lacking
    if any(leaf.is_tensor != leaves[0].is_tensor for leaf in leaves):
        return composed(
            first, leaf=replace(first.leaf, why=message("layout.unlike", name=held.name))
        )
    if not leaves[0].is_tensor:
        return _join_values(first, held, modes)
    if not leaves[0].shape and not same_value(leaves) and _by_batch(held, modes):
        gap = message("layout.values_differ", ranks=few_numbers([*held.records]))
        return composed(first, leaf=first.leaf, gap=gap)
    return _join_tensors(first, held, modes, order)


def _without_open(modes: Modes) -> dict[str, int | str]:
    """Return how a value is cut where nothing says more: each rank has a copy."""
    return {axis: COPY if how == ANY else how for axis, how in modes.items()}


def _without_ranks(first: Record, held: Held, modes: Modes) -> Record | None:
    """Return what stands for a value that ranks lack; None where none does, or others have it."""
    missing = [rank for rank in held.wanted if rank not in held.records]
    leaves = [record.leaf for record in held.records.values()]
    cut = any(how != COPY for how in modes.values())
    cut |= isinstance(held.strategy, Mapping) and any(map(any, held.strategy.values()))
    if not missing or not (cut or not same_value(leaves) or held.recorded.issuperset(missing)):
        return None
    said = message("layout.missing", ranks=few_numbers(missing))
    if held.recorded.isdisjoint(missing):
        return composed(first, leaf=first.leaf, gap=said)
    return composed(first, leaf=replace(first.leaf, why=said))


def _by_batch(held: Held, modes: Modes) -> bool:
    """Return whether ranks that were given other samples hold unlike numbers."""
    assert held.layout is not None
    groups: dict[tuple[int, ...], list[Leaf]] = defaultdict(list)
    axes = [axis for axis in held.layout.cut if axis in held.divided and modes.get(axis) == COPY]
    for rank, record in held.records.items():
        groups[tuple(held.layout.place(rank, axis) for axis in axes)].append(record.leaf)
    return len(groups) > 1 and all(map(same_value, groups.values()))


def _join_values(first: Record, held: Held, modes: Modes) -> Record:
    """Return a Python value that ranks have in common, or a mean of numbers."""
    leaves = [record.leaf for record in held.records.values()]
    if same_value(leaves):
        return first
    values = [leaf.value for leaf in leaves]
    if all(type(v) is float for v in values) and MEAN in modes.values():
        return composed(first, leaf=replace(first.leaf, value=math.fsum(values) / len(values)))
    ranks = few_numbers([*held.records])
    if _by_batch(held, modes):
        return composed(first, leaf=first.leaf, gap=message("layout.values_differ", ranks=ranks))
    odd = few_numbers([r for r, x in held.records.items() if not same_value([x.leaf, first.leaf])])
    why = message("layout.copies_differ", ranks=odd, first=min(held.records))
    return composed(first, leaf=replace(first.leaf, why=why))


#: Of each part of the whole, the numbers of the shards that hold it: those of one copy are terms of
#: a sum or mean.
_Groups = Mapping[tuple[int, ...], Mapping[tuple[int, ...], Sequence[int]]]


def _join_tensors(first: Record, held: Held, modes: Modes, order: Order) -> Record:
    unlike = _why_not_one(held, modes)
    if unlike is not None:
        return composed(first, leaf=replace(first.leaf, why=unlike))
    layout = held.layout
    assert layout is not None
    ranks = tuple(sorted(held.records))
    shards = tuple(held.records[rank] for rank in ranks)
    groups = _grouped(held, modes, ranks)
    sizes = _sizes(held, modes)
    assert sizes is not None
    shape = _shape_of(sizes)
    stored = all(shard.location is not None for shard in shards)
    terms, gap = _terms_of_copies(groups), None
    if not stored and {SUM, MEAN} & {*modes.values()}:
        if _is_mean_of_equals(groups, shards, modes):
            terms = [[one[:1] for one in parts] for parts in terms]  # one stands for the mean
        else:
            gap = message("layout.partial_statistics")
    alone = frozenset(axis for axis in held.open_axes if axis != PIPELINE)
    times = layout.times(held.name, modes, held.divided, alone)
    leaves = tuple(scaled(_leaf(shards, of, shape), times) for of in terms)
    return composed(
        first,
        leaf=leaves[0],
        location=first.location if stored else None,
        sketches=None,
        expression=Assembly(
            ranks,
            shards,
            tuple(tuple(map(tuple, copies.values())) for copies in groups.values()),
            _tiles_of_whole(held, modes, order, groups, sizes),
            leaves=leaves,
            divided_by=math.prod(layout.axes[axis] for axis, how in modes.items() if how == MEAN),
            times=times,
            of=layout.size,
        ),
        gap=gap,
    )


def _grouped(held: Held, modes: Modes, ranks: Sequence[int]) -> _Groups:
    """Return which shards hold which part, by copies of it."""
    assert held.layout is not None
    kept = [axis for axis, how in modes.items() if how == COPY]
    groups: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for number, rank in enumerate(ranks):
        part = tuple(_parts(held, modes, rank))
        copy = tuple(held.layout.place(rank, axis) for axis in kept)
        groups.setdefault(part, {}).setdefault(copy, []).append(number)
    return groups


def _terms_of_copies(groups: _Groups) -> list[list[Sequence[int]]]:
    """Return of each copy of the whole the shards of its parts; the last copy of a part is used
    again where other parts have more."""
    count = max(map(len, groups.values()))
    return [
        [list(copies.values())[min(n, len(copies) - 1)] for copies in groups.values()]
        for n in range(count)
    ]


def _is_mean_of_equals(groups: _Groups, shards: Sequence[Record], modes: Modes) -> bool:
    """Return whether what is averaged is the same on all ranks, so that it is the mean."""
    return SUM not in modes.values() and all(
        same_value([shards[number].leaf for copy in copies.values() for number in copy])
        for copies in groups.values()
    )


def _tiles_of_whole(
    held: Held, modes: Modes, order: Order, groups: _Groups, sizes: Sequence[Mapping[int, int]]
) -> tuple[Tile, ...]:
    """Return where the parts stand in the whole."""
    assert held.layout is not None
    tiles = [_tile(part, sizes, number) for number, part in enumerate(groups)]
    for axis in held.layout.zigzag:
        how = modes.get(axis)
        if isinstance(how, int):
            tiles = [t for tile in tiles for t in _zigzag(tile, how, sizes[how])]
    rows = next((modes[axis] for axis in held.batches if isinstance(modes[axis], int)), None)
    if isinstance(rows, int) and len(order):
        tiles = [t for tile in tiles for t in _in_order(tile, rows, sizes[rows], order)]
    return tuple(tiles)


def _leaf(shards: Sequence[Record], parts: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Leaf:
    """Return the description of the whole by those of its parts; of a sum none follows."""
    first = shards[parts[0][0]].leaf
    if any(len(terms) > 1 for terms in parts):
        return Leaf(first.type, first.dtype, shape, data_name=first.data_name)
    if len(parts) == 1:
        return first
    return together([shards[terms[0]].leaf for terms in parts], shape)


def _why_not_one(held: Held, modes: Modes) -> Message | None:
    """Return why what the ranks hold does not fit together; None if it does."""
    records = held.records
    first = held.first.leaf
    for rank, record in records.items():
        if record.leaf.dtype != first.dtype:
            what = {"rank": rank, "first": min(records)}
            own = {"dtype": record.leaf.dtype, "other": first.dtype}
            return message("layout.dtypes", **what, **own)
    size = len(first.shape or ())
    for axis, how in modes.items():
        if isinstance(how, int) and not 0 <= how < size:
            assert held.layout is not None
            dim = held.layout.rule(held.name).get(axis, how)  # as it was given, e.g. -3
            given = {"axis": axis, "dim": dim, "pattern": held.layout.pattern_of(held.name)}
            return message(UNFIT, **given, shape=str(list(first.shape or ())))
    if _sizes(held, modes) is None:
        shapes = {rank: str(list(record.leaf.shape or ())) for rank, record in records.items()}
        said = "; ".join(f"{rank}: {shape}" for rank, shape in [*shapes.items()][:8])
        return message(UNLIKE_PARTS, shapes=said)
    return None


def _tile(part: tuple[int, ...], sizes: Sequence[Mapping[int, int]], number: int) -> Tile:
    """Return where a part lies in the whole; `number` is its own."""
    start = tuple(sum(n for p, n in of.items() if p < at) for at, of in zip(part, sizes))
    shape = tuple(of[at] for at, of in zip(part, sizes))
    return Tile(start, shape, number, (0,) * len(part))


def _zigzag(tile: Tile, dim: int, sizes: Mapping[int, int]) -> Iterable[Tile]:
    """Return the two chunks of a part: the n-th from the front and the n-th from the end."""
    parts, size = len(sizes), tile.shape[dim]
    if len({*sizes.values()}) > 1 or size % 2:
        return [tile]
    number, half = tile.start[dim] // size, size // 2
    places = number * half, (2 * parts - 1 - number) * half
    return [_moved(tile, dim, place, i * half, half) for i, place in enumerate(places)]


def _in_order(tile: Tile, dim: int, sizes: Mapping[int, int], order: Order) -> Iterable[Tile]:
    """Return the rows of a part where they belong."""
    total = sum(sizes.values())
    if total % len(order):
        return [tile]
    each = total // len(order)
    where = {own: at for at, own in enumerate(order)}
    begin, end = tile.start[dim], tile.start[dim] + tile.shape[dim]
    if begin % each or end % each:
        return [tile]
    return [
        _moved(tile, dim, where[row] * each, row * each - begin, each)
        for row in range(begin // each, end // each)
    ]


def _moved(tile: Tile, dim: int, start: int, begin: int, size: int) -> Tile:
    def at(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:dim], value, *values[dim + 1 :])

    own = at(tile.begin, tile.begin[dim] + begin)
    return Tile(at(tile.start, start), at(tile.shape, size), tile.source, own)


def _named(record: Record, name: str) -> Record:
    return record if record.name == name else replace(record, name=name)
