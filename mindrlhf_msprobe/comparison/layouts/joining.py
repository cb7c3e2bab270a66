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
from mindrlhf_msprobe.comparison.judging.tolerance import is_number
from mindrlhf_msprobe.comparison.layouts.layout import (
    ANY,
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    Layout,
    Modes,
)
from mindrlhf_msprobe.comparison.pairing.composed import Assembly, Shard, composed, gap_of, together
from mindrlhf_msprobe.storage.arrays.expression import Tile
from mindrlhf_msprobe.storage.leaves import COPY, MEAN, SUM, Leaf
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Record, cell_name, network_name

#: Codes of what the layout is to blame for, and no file.
NO_SUCH_DIMENSION, UNLIKE_PARTS = "layout.dimension", "layout.shapes"
_MOST_TRIED = 4096  # cuts of a shape
_PREFERRED = {DATA: 0, CONTEXT: 1}

#: A row of the whole, in this order: its number where the ranks' rows follow each other.
Order = Sequence[int]


@dataclass(frozen=True)
class Held:
    """What the ranks of a run hold of one value.

    Attributes:
        name: in the whole network.
        records: by rank.
        layout: of the run; without axes it is whole, and `records` has one.
        recorded: the ranks of which the step was recorded.
        open_axes: those over which a value may be in some places alone.
        divided: those over which samples or tokens are divided.
    """

    name: str
    records: Mapping[int, Record]
    layout: Layout
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
        if not layout.strategy or io not in ("parameters", PARAMETERS_GRAD):
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

    def modes(self) -> dict[str, int | str]:
        """Return how it is cut over each axis, as far as that is said; see `Layout.modes`."""
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


def batch_axes(layout: Layout, divided: frozenset[str]) -> tuple[str, ...]:
    """Return the axes over which a run's samples are divided, the outermost first."""
    return tuple(axis for axis in layout.cut if axis in divided and axis != CONTEXT)


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
            # The gradient of what every rank of the axis has is that of its own samples.
            gradient = one.first.io == PARAMETERS_GRAD and one.strategy is None
            if by_shape and gradient and of[EXPERT] in (COPY, ANY):
                of[EXPERT] = MEAN
    found: list[Record | None] = []
    for own, how, order in zip(held, modes, orders):
        found.append(None if own is None else _Cut(own, _without_open(how)).whole(order))
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
    # Parts that both runs have in the same number stand for each other.
    for axis in [axis for axis, how in modes[0].items() if how == ANY == modes[1].get(axis)]:
        if held[0].layout.axes[axis] == held[1].layout.axes[axis]:
            modes[0][axis] = modes[1][axis] = 0
    free = [(side, axis) for side in (0, 1) for axis, how in modes[side].items() if how == ANY]
    dims = range(len(shapes[0] or ()))
    if not free or (len(dims) + 1) ** len(free) > _MOST_TRIED:
        return
    fitting = []
    for choice in itertools.product([COPY, *dims], repeat=len(free)):
        tried = [{**of} for of in modes]
        for (side, axis), how in zip(free, choice):
            tried[side][axis] = how
        cuts = _Cut(held[0], tried[0]), _Cut(held[1], tried[1])
        mine, theirs = (cut.shape for cut in cuts)
        if mine is None or theirs is None:
            continue
        # Equal shapes, or equally many rows in all calls together.
        rows = [(m * calls[0], n * calls[1]) for m, n in zip(mine, theirs) if m != n]
        if not rows or (len(rows) == 1 and rows[0][0] == rows[0][1]):
            unlike = sum(cut.unlike_copies() for cut in cuts)
            odd = 0  # how unusual it is to cut the axes so: batches are rows, contexts columns
            for (_, axis), how in zip(free, choice):
                if isinstance(how, int):
                    odd += 1 + 2 * abs(how - _PREFERRED[axis]) if axis in _PREFERRED else 2
            fitting.append((unlike, odd, tried))
    if fitting:
        modes[0], modes[1] = min(fitting, key=lambda one: one[:2])[2]


def _without_sizes(
    a: Record, b: Record, held: tuple[Held, Held]
) -> tuple[Record | None, Record | None]:
    """Leave numbers that count what one rank has out of the comparison with those of another."""
    # A Python number, or a whole number that is a tensor.
    values = [x.max if x.shape == () and x.is_integer else x.value for x in (a.leaf, b.leaf)]
    if not all(type(v) is int and v > 0 for v in values):
        return a, b
    (small, large), side = (values, 0) if values[0] < values[1] else (values[::-1], 1)
    layout = held[side].layout
    if small == large or gap_of((a,)):
        return a, b
    sizes = [layout.axes[axis] for axis in layout.cut]
    some = (c for n in range(1, len(sizes) + 1) for c in itertools.combinations(sizes, n))
    if not any(small * math.prod(c) == large for c in some):
        return a, b
    gap = message("layout.size_of_part", small=small, large=large)
    return composed(a, leaf=a.leaf, gap=gap), b


def _without_open(modes: Modes) -> dict[str, int | str]:
    """Return how a value is cut where nothing says more: each rank has a copy."""
    return {axis: COPY if how == ANY else how for axis, how in modes.items()}


class _Cut:
    """What the ranks of a run hold of a value that is cut over each axis as `modes` say."""

    def __init__(self, held: Held, modes: Modes) -> None:
        self._held, self._layout, self._modes = held, held.layout, modes
        self._leaves = [record.leaf for record in held.records.values()]
        first = held.first
        self._first = first if first.name == held.name else replace(first, name=held.name)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the whole; None where the parts do not fit together."""
        return None if self._sizes is None else tuple(sum(of.values()) for of in self._sizes)

    def unlike_copies(self) -> int:
        """Return how many ranks say something else of a part than most that hold the same."""
        groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        terms = [axis for axis, how in self._modes.items() if how in (SUM, MEAN)]
        for rank, record in self._held.records.items():
            part = (*self._part(rank), -1, *(self._layout.place(rank, axis) for axis in terms))
            groups[part].append(repr(known_of(record.leaf)))
        return sum(len(said) - max(map(said.count, said)) for said in groups.values())

    def whole(self, order: Order) -> Record:
        """Return what the ranks hold as a whole."""
        leaves, held = self._leaves, self._held
        if not held.layout.axes:
            return self._first
        if isinstance(held.strategy, Message):
            return self._not_compared(held.strategy)
        unread = next((leaf for leaf in leaves if leaf.why is not None), None)
        if unread is not None:
            return composed(self._first, leaf=unread)
        missing = [rank for rank in held.wanted if rank not in held.records]
        cut = any(how != COPY for how in self._modes.values())
        cut |= isinstance(held.strategy, Mapping) and any(map(any, held.strategy.values()))
        if missing and (cut or not same_value(leaves) or held.recorded.issuperset(missing)):
            said = message("layout.missing", ranks=few_numbers(missing))
            none_recorded = held.recorded.isdisjoint(missing)
            return self._not_compared(said) if none_recorded else self._unreadable(said)
        if any(leaf.is_tensor != leaves[0].is_tensor for leaf in leaves):
            return self._unreadable(message("layout.unlike", name=held.name))
        if not leaves[0].is_tensor:
            return self._value()
        if not leaves[0].shape and not same_value(leaves) and self._differ_by_batch():
            ranks = few_numbers([*held.records])
            return self._not_compared(message("layout.values_differ", ranks=ranks))
        unlike = self._why_not_one()
        return self._tensor(order) if unlike is None else self._unreadable(unlike)

    def _not_compared(self, gap: Message) -> Record:
        return composed(self._first, leaf=self._first.leaf, gap=gap)

    def _unreadable(self, why: Message) -> Record:
        return composed(self._first, leaf=replace(self._first.leaf, why=why))

    def _part(self, rank: int) -> tuple[int, ...]:
        """Return which part of each dimension a rank holds."""
        if isinstance(self._held.strategy, Mapping):
            return self._held.strategy[rank]
        parts = [0] * len(self._held.first.leaf.shape or ())
        for axis, how in self._modes.items():
            if isinstance(how, int) and how < len(parts):
                parts[how] = parts[how] * self._layout.axes[axis] + self._layout.place(rank, axis)
        return tuple(parts)

    @cached_property
    def _sizes(self) -> list[dict[int, int]] | None:
        """For each dimension the size of each part; None where parts do not fit together."""
        shape = self._held.first.leaf.shape or ()
        found: list[dict[int, int]] = [{} for _ in shape]
        for rank, record in self._held.records.items():
            own = record.leaf.shape or ()
            if len(own) != len(shape):
                return None
            parts = self._part(rank)
            for dim, size in enumerate(own):
                if found[dim].setdefault(parts[dim], size) != size:
                    return None
        return found

    def _differ_by_batch(self) -> bool:
        """Return whether ranks that were given other samples hold unlike numbers."""
        groups: dict[tuple[int, ...], list[Leaf]] = defaultdict(list)
        cut, divided = self._layout.cut, self._held.divided
        axes = [axis for axis in cut if axis in divided and self._modes.get(axis) == COPY]
        for rank, record in self._held.records.items():
            groups[tuple(self._layout.place(rank, axis) for axis in axes)].append(record.leaf)
        return len(groups) > 1 and all(map(same_value, groups.values()))

    def _value(self) -> Record:
        """Return a Python value that ranks have in common, or a mean of numbers."""
        records, first = self._held.records, self._first
        if same_value(self._leaves):
            return first
        values = [leaf.value for leaf in self._leaves]
        if all(type(v) is float for v in values) and MEAN in self._modes.values():
            return composed(first, leaf=replace(first.leaf, value=math.fsum(values) / len(values)))
        if self._differ_by_batch():
            return self._not_compared(
                message("layout.values_differ", ranks=few_numbers([*records]))
            )
        odd = few_numbers([r for r, x in records.items() if not same_value([x.leaf, first.leaf])])
        return self._unreadable(message("layout.copies_differ", ranks=odd, first=min(records)))

    def _why_not_one(self) -> Message | None:
        """Return why what the ranks hold does not fit together; None if it does."""
        records, first = self._held.records, self._held.first.leaf
        for rank, record in records.items():
            if record.leaf.dtype != first.dtype:
                what = {"rank": rank, "first": min(records)}
                own = {"dtype": record.leaf.dtype, "other": first.dtype}
                return message("layout.dtypes", **what, **own)
        size, name = len(first.shape or ()), self._held.name
        for axis, how in self._modes.items():
            if isinstance(how, int) and not 0 <= how < size:
                dim = self._layout.rule(name).get(axis, how)  # as it was given, e.g. -3
                given = {"axis": axis, "dim": dim, "pattern": self._layout.pattern_of(name)}
                return message(NO_SUCH_DIMENSION, **given, shape=str(list(first.shape or ())))
        if self._sizes is None:
            shapes = {rank: str(list(record.leaf.shape or ())) for rank, record in records.items()}
            said = "; ".join(f"{rank}: {shape}" for rank, shape in [*shapes.items()][:8])
            return message(UNLIKE_PARTS, shapes=said)
        return None

    def _tensor(self, order: Order) -> Record:
        """Return the parts as one tensor; of each there may be copies, of each copy terms."""
        layout, modes, held = self._layout, self._modes, self._held
        kept = [axis for axis, how in modes.items() if how == COPY]
        groups: dict[tuple[int, ...], dict[tuple[int, ...], list[Shard]]] = {}
        for rank in sorted(held.records):
            copy = tuple(layout.place(rank, axis) for axis in kept)
            shard = Shard(rank, held.records[rank])
            groups.setdefault(self._part(rank), {}).setdefault(copy, []).append(shard)
        stored = all(record.location is not None for record in held.records.values())
        parts = [tuple(map(tuple, copies.values())) for copies in groups.values()]
        # Of each copy of the whole the shards of its parts; the last copy of a part is used again
        # where other parts have more.
        terms = [
            [copies[min(n, len(copies) - 1)] for copies in parts]
            for n in range(max(map(len, parts)))
        ]
        gap = None
        if not stored and {SUM, MEAN} & {*modes.values()}:
            if SUM not in modes.values() and all(
                same_value([shard.record.leaf for copy in copies for shard in copy])
                for copies in parts
            ):
                terms = [[one[:1] for one in parts] for parts in terms]  # one stands for the mean
            else:
                gap = message("layout.partial_statistics")
        alone = frozenset(axis for axis in held.open_axes if axis != PIPELINE)
        times = layout.times(held.name, modes, held.divided, alone)
        leaves = [scaled(_leaf(of, self.shape or ()), times) for of in terms]
        made_of = Assembly(
            parts,
            self._tiles([*groups], order),
            leaves=leaves,
            divided_by=math.prod(layout.axes[axis] for axis, how in modes.items() if how == MEAN),
            times=times,
            of=layout.size,
        )
        found = {"leaf": leaves[0], "sketches": None, "expression": made_of, "gap": gap}
        return composed(self._first, location=self._first.location if stored else None, **found)

    def _tiles(self, parts: Sequence[tuple[int, ...]], order: Order) -> tuple[Tile, ...]:
        """Return where parts stand in the whole."""
        sizes = self._sizes
        assert sizes is not None
        tiles = []
        for number, part in enumerate(parts):
            start = tuple(sum(n for p, n in of.items() if p < at) for at, of in zip(part, sizes))
            shape = tuple(of[at] for at, of in zip(part, sizes))
            tiles.append(Tile(start, shape, number, (0,) * len(part)))
        for axis in self._layout.zigzag:
            how = self._modes.get(axis)
            if isinstance(how, int):
                tiles = [t for tile in tiles for t in _zigzag(tile, how, sizes[how])]
        batches = (self._modes[axis] for axis in self._held.batches)
        rows = next((how for how in batches if isinstance(how, int)), None)
        if rows is not None and len(order):
            tiles = [t for tile in tiles for t in _in_order(tile, rows, sizes[rows], order)]
        return tuple(tiles)


def _leaf(parts: Sequence[Sequence[Shard]], shape: tuple[int, ...]) -> Leaf:
    """Return the description of the whole by those of its parts; of a sum none follows."""
    first = parts[0][0].record.leaf
    if any(len(terms) > 1 for terms in parts):
        return Leaf(first.type, first.dtype, shape, data_name=first.data_name)
    if len(parts) == 1:
        return first
    return together([terms[0].record.leaf for terms in parts], shape)


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


def same_value(leaves: Sequence[Leaf]) -> bool:
    """Return whether ranks say the same of a value, as far as they say anything."""
    return all(known_of(leaf) == known_of(leaves[0]) for leaf in leaves[1:])


def known_of(leaf: Leaf) -> tuple[Any, ...]:
    """Return what a description says of a value, as far as it can be compared."""
    of = (leaf.type, leaf.dtype, leaf.shape, leaf.fingerprint, leaf.value, leaf.opaque)
    return (*of, leaf.why, *(repr(v) for v in (leaf.max, leaf.min, leaf.mean, leaf.norm)))


def scaled(leaf: Leaf, times: float) -> Leaf:
    """Return the description of a tensor whose elements are multiplied by a number above zero."""
    if times == 1.0:
        return leaf
    known = {name: getattr(leaf, name) for name in ("max", "min", "mean", "norm")}
    changed = {name: v * times if is_number(v) else v for name, v in known.items()}
    return replace(leaf, fingerprint=None, md5=None, **changed)
