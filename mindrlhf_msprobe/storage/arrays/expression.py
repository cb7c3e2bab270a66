"""A tensor that is made of stored ones, and read where it is wanted.

An expression knows its shape without reading; a box of it, or a span of its elements in row-major
order, is read from its sources in memory of about that size. `str` says what it is made of.
"""

from __future__ import annotations

import copy
import itertools
import math
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import SpokenError
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, give_back, map_elements

Shape = tuple[int, ...]
#: Where it begins, and its sizes.
Box = tuple[Shape, Shape]

#: Elements that are put together at a time.
CHUNK = 1 << 21
#: Bytes of a tensor that is put together in memory; a larger one is in a file.
WHOLE = 32 << 20

_Expression = TypeVar("_Expression", bound="Expression")


class ShapeError(SpokenError, ValueError):
    """Shapes that do not add up, as where shards overlap or leave a hole."""


class Expression:
    """A tensor that is read where it is wanted. Reading raises what reading its sources does.

    Attributes:
        shape: of the whole.
        sources: what it is made of directly; a stored tensor is made of nothing.
    """

    def __init__(self, shape: Sequence[int], sources: Sequence[Expression] = ()) -> None:
        self.shape: Shape = tuple(shape)
        self.sources = tuple(sources)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        return np.result_type(*(source.numpy_dtype for source in self.sources))

    @property
    def is_view(self) -> bool:
        """Whether its elements lie in an array as they are, so that no box is a copy."""
        return False

    def over(self: _Expression, sources: Sequence[Expression]) -> _Expression:
        """Return the same of other sources, of the same shapes."""
        found = copy.copy(self)
        found.sources = tuple(sources)
        return found

    def opened(self) -> Expression:
        """Return the same with each stored tensor opened once, to be read often."""
        if not self.sources:
            return self
        opened = {id(source): source for source in self.sources}
        opened = {key: source.opened() for key, source in opened.items()}
        return self.over([opened[id(source)] for source in self.sources])

    def stored(self) -> Iterator[Expression]:
        """Yield the stored tensors that it is made of, in their order."""
        if not self.sources:
            yield self
        for source in self.sources:
            yield from source.stored()

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box: where it begins, and its sizes."""
        raise NotImplementedError

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, in row-major order: 1-d."""
        parts = [self.box(*box).reshape(-1) for box in boxes_of_span(self.shape, start, stop)]
        if not parts:
            return np.empty(0, self.numpy_dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """Yield the whole in row-major order: 1-d copies of `size` elements, the last of fewer."""
        total = math.prod(self.shape)
        for start in range(0, total, size):
            block = np.array(self.read(start, min(start + size, total)))
            self.give_back()
            yield block

    def array(self) -> np.ndarray:
        """Return the whole; a large one that is no view lies in a file that is gone with it.

        Raises:
            ArrayFileError: that file cannot be written; or what reading the sources raises.
        """
        opened = self.opened()
        dtype = opened.numpy_dtype
        if opened.is_view or math.prod(opened.shape) * dtype.itemsize <= WHOLE:
            return opened.box((0,) * len(opened.shape), opened.shape)
        try:
            with tempfile.TemporaryFile() as file:
                for block in opened.blocks(CHUNK):
                    file.write(block.astype(dtype, copy=False).data)
                file.flush()
                return map_elements(file.fileno(), dtype, opened.shape)
        except OSError as error:
            raise ArrayFileError.saying("unread.failed", why=error.strerror or error) from None

    def give_back(self) -> None:
        """Take the pages of all opened files out of this process's memory."""
        for source in self.sources:
            source.give_back()


class InMemory(Expression):
    """An array, or a file that is mapped."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__(values.shape)
        self._values = values

    def __str__(self) -> str:
        return f"array{[*self.shape]}"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        return self._values.dtype

    @property
    def is_view(self) -> bool:
        """Whether its elements lie in an array as they are."""
        return True

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        return np.asarray(self._values[slices((start, shape))])  # of one without axes, too

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`; no copy where it is row-major."""
        if self._values.flags.c_contiguous:
            return self._values.reshape(-1)[start:stop]
        return super().read(start, stop)

    def give_back(self) -> None:
        """Take the pages of the file out of this process's memory."""
        give_back(self._values)


class BySpans(Expression):
    """A tensor that is read by spans."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `Expression.read` says."""
        raise NotImplementedError

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says, each run by itself."""
        if 0 in shape:
            return np.empty(tuple(shape), self.numpy_dtype)
        axis = len(shape)  # of what all axes from here on hold, elements follow each other
        while axis and shape[axis - 1] == self.shape[axis - 1]:
            axis -= 1
        axis = max(axis - 1, 0)
        run = math.prod(shape[axis:])
        strides = [math.prod(self.shape[i + 1 :]) for i in range(len(shape))]
        first = _dot(start, strides)
        outer = itertools.product(*(range(n) for n in shape[:axis]))
        begins = [first + _dot(places, strides) for places in outer]
        runs = [self.read(begin, begin + run) for begin in begins]
        return (runs[0] if len(runs) == 1 else np.concatenate(runs)).reshape(tuple(shape))


def _dot(places: Sequence[int], strides: Sequence[int]) -> int:
    return sum(place * stride for place, stride in zip(places, strides))


@dataclass(frozen=True)
class Tile:
    """A box of a whole, and where its elements are.

    Attributes:
        start, shape: where it lies in the whole.
        source: number of the source that has it.
        begin: where it begins in the source.
    """

    start: Shape
    shape: Shape
    source: int
    begin: Shape


class Tiled(Expression):
    """Boxes of tensors, which cover the whole once: one behind the other, a grid, a cut.

    Raises:
        ValueError: they overlap, leave a hole, or reach beyond the whole.
    """

    def __init__(
        self, sources: Sequence[Expression], tiles: Sequence[Tile], shape: Sequence[int]
    ) -> None:
        super().__init__(shape, sources)
        self.tiles = tuple(tiles)
        if not _cover_once(self.tiles, self.shape):
            raise ShapeError.saying(
                "unread.shapes", given=[[*tile.shape] for tile in tiles], wanted=[*shape]
            )

    def __str__(self) -> str:
        boxes = []
        for tile in self.tiles:
            cut = (f"{begin}:{begin + n}" for begin, n in zip(tile.begin, tile.shape))
            boxes.append(f"{self.sources[tile.source]}[{', '.join(cut)}]")
        return boxes[0] if len(boxes) == 1 else f"({' | '.join(boxes)})"

    @property
    def is_view(self) -> bool:
        """Whether its elements lie in an array as they are."""
        return len(self.tiles) == 1 and self.sources[self.tiles[0].source].is_view

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        found: np.ndarray | None = None
        near: Sequence[Tile] = self.tiles
        if shape:  # those that may have elements in it, by their places on the first axis
            near, starts, tallest = self._by_start
            first = bisect_left(starts, start[0] - tallest + 1)
            near = near[first : bisect_left(starts, start[0] + shape[0])]
        for tile in near:
            common = overlap((start, shape), (tile.start, tile.shape))
            if common is None:
                continue
            low, sizes = common
            begin = [at - t + b for at, t, b in zip(low, tile.start, tile.begin)]
            elements = self.sources[tile.source].box(begin, sizes)
            if sizes == tuple(shape):
                return elements
            if found is None:
                found = np.empty(tuple(shape), self.numpy_dtype)
            found[slices(([at - b for at, b in zip(low, start)], sizes))] = elements
        return np.empty(tuple(shape), self.numpy_dtype) if found is None else found

    @cached_property
    def _by_start(self) -> tuple[list[Tile], list[int], int]:
        tiles = sorted(self.tiles, key=lambda tile: tile.start[:1])
        tallest = max((tile.shape[0] for tile in tiles), default=0)
        return tiles, [tile.start[0] for tile in tiles], tallest


def _cover_once(tiles: Sequence[Tile], shape: Shape) -> bool:
    """Return whether boxes cover a whole, each element once.

    They are drawn in a grid that has a cell between any two ends of boxes along each axis.
    """
    if sum(math.prod(tile.shape) for tile in tiles) != math.prod(shape):
        return False
    boxes = [[(at, at + n) for at, n in zip(tile.start, tile.shape)] for tile in tiles]
    cuts = [
        sorted({0, size}.union(*(box[axis] for box in boxes))) for axis, size in enumerate(shape)
    ]
    if any((of_axis[0], of_axis[-1]) != (0, size) for of_axis, size in zip(cuts, shape)):
        return False
    places = [{cut: number for number, cut in enumerate(of_axis)} for of_axis in cuts]
    times = np.zeros([len(of_axis) - 1 for of_axis in cuts], np.int32)
    for box in boxes:
        times[tuple(slice(at[low], at[high]) for at, (low, high) in zip(places, box))] += 1
    return bool((times == 1).all())


class Reordered(Expression):
    """A tensor whose places along an axis are taken in an order."""

    def __init__(self, source: Expression, order: Sequence[int], axis: int = 0) -> None:
        own = source.shape
        super().__init__((*own[:axis], len(order), *own[axis + 1 :]), (source,))
        self._order, self._axis = tuple(order), axis

    def __str__(self) -> str:
        return f"{self.sources[0]}.take({len(self._order)} places, axis={self._axis})"

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        (source,), axis = self.sources, self._axis
        taken = self._order[start[axis] : start[axis] + shape[axis]]
        if not taken:
            return np.empty(tuple(shape), self.numpy_dtype)
        first, count = min(taken), max(taken) + 1 - min(taken)
        if count <= _NEAR * len(taken):  # what lies between is read, too
            around = source.box(_with(start, axis, first), _with(shape, axis, count))
            return np.take(around, np.array(taken) - first, axis)
        rows = [
            source.box(_with(start, axis, begin), _with(shape, axis, n))
            for begin, n in runs_of(taken)
        ]
        return np.concatenate(rows, axis)


_NEAR = 4  # times as many places as are wanted may be read at once


def _with(values: Sequence[int], axis: int, value: int) -> Shape:
    return (*values[:axis], value, *values[axis + 1 :])


class Permuted(Expression):
    """A tensor with its axes in another order."""

    def __init__(self, source: Expression, axes: Sequence[int]) -> None:
        super().__init__([source.shape[axis] for axis in axes], (source,))
        self._axes = tuple(axes)

    def __str__(self) -> str:
        return f"{self.sources[0]}.transpose{self._axes}"

    @property
    def is_view(self) -> bool:
        """Whether its elements lie in an array as they are."""
        return self.sources[0].is_view

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        at = [self._axes.index(axis) for axis in range(len(self._axes))]
        own = self.sources[0].box([start[i] for i in at], [shape[i] for i in at])
        return own.transpose(self._axes)


class Reshaped(BySpans):
    """A tensor with the same elements, in the same order, in another shape.

    Raises:
        ValueError: that shape has another number of elements.
    """

    def __init__(self, source: Expression, shape: Sequence[int]) -> None:
        super().__init__(shape, (source,))
        if math.prod(shape) != math.prod(source.shape):
            raise ShapeError.saying("unread.shapes", given=[[*source.shape]], wanted=[*shape])

    def __str__(self) -> str:
        return f"{self.sources[0]}.reshape{self.shape}"

    @property
    def is_view(self) -> bool:
        """Whether its elements lie in an array as they are."""
        return isinstance(self.sources[0], InMemory)

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        if tuple(shape) == self.shape:
            own = self.sources[0].shape
            return self.sources[0].box((0,) * len(own), own).reshape(self.shape)
        return super().box(start, shape)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `Expression.read` says."""
        return self.sources[0].read(start, stop)


class Sum(Expression):
    """The sum of tensors of one shape, or their mean, in their dtype.

    Args:
        divided_by: by what the sum is divided.
    """

    def __init__(self, terms: Sequence[Expression], divided_by: int = 1) -> None:
        super().__init__(terms[0].shape, terms)
        self._divided_by = divided_by

    def __str__(self) -> str:
        total = f"({' + '.join(map(str, self.sources))})"
        return total if self._divided_by == 1 else f"{total} / {self._divided_by}"

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says; floats are added in float64."""
        terms = [term.box(start, shape) for term in self.sources]
        dtype = np.result_type(*(term.dtype for term in terms))
        wide = dtype if dtype.kind in "biu" else np.result_type(dtype, np.float64)
        total = sum(term.astype(wide) for term in terms)
        divided = total if self._divided_by == 1 else total / self._divided_by
        return np.asarray(divided).astype(dtype)


class Scaled(Expression):
    """A tensor whose elements are multiplied by a number, in its dtype."""

    def __init__(self, source: Expression, times: float) -> None:
        super().__init__(source.shape, (source,))
        self._times = times

    def __str__(self) -> str:
        return f"{self._times} * {self.sources[0]}"

    def box(self, start: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        """Return the elements of a box, as `Expression.box` says."""
        found = np.array(self.sources[0].box(start, shape))
        np.multiply(found, self._times, out=found, casting="unsafe")
        return found


def concatenated(parts: Sequence[Expression], axis: int = 0) -> Expression:
    """Return tensors one behind the other along an axis.

    Raises:
        ValueError: they are not of one size along the others.
    """
    if len(parts) == 1:
        return parts[0]
    if len({_with(part.shape, axis, 0) for part in parts}) > 1:
        given = [[*part.shape] for part in parts]
        raise ShapeError.saying("unread.shapes_along", given=given, axis=axis)
    return rows_of([(part, range(part.shape[axis])) for part in parts], axis)


def rows_of(
    parts: Sequence[tuple[Expression, Sequence[int]]], axis: int = 0, each: int = 1
) -> Tiled:
    """Return rows of several tensors, one behind the other.

    Args:
        parts: each tensor, and the numbers of its rows.
        axis: along which the rows lie.
        each: how many places a row has along it.
    """
    tiles, at = [], 0
    zeros = (0,) * len(parts[0][0].shape)
    for number, (part, rows) in enumerate(parts):
        for begin, count in runs_of(rows):
            shape = _with(part.shape, axis, count * each)
            own = _with(zeros, axis, begin * each)
            tiles.append(Tile(_with(zeros, axis, at), shape, number, own))
            at += count * each
    return Tiled([part for part, _ in parts], tiles, _with(parts[0][0].shape, axis, at))


def runs_of(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first of numbers that follow each other, and how many do."""
    if isinstance(numbers, range) and numbers.step == 1:
        if numbers:
            yield numbers.start, len(numbers)
        return
    for _, group in itertools.groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        run = [number for _, number in group]
        yield run[0], len(run)


def slices(box: tuple[Sequence[int], Sequence[int]]) -> tuple[slice, ...]:
    """Return a box as numpy's index."""
    return tuple(slice(at, at + n) for at, n in zip(*box))


def overlap(
    a: tuple[Sequence[int], Sequence[int]], b: tuple[Sequence[int], Sequence[int]]
) -> Box | None:
    """Return what two boxes of one tensor have in common; None for nothing."""
    low = tuple(map(max, a[0], b[0]))
    ends = ([at + n for at, n in zip(*box)] for box in (a, b))
    sizes = tuple(high - at for high, at in zip(map(min, *ends), low))
    return None if any(n <= 0 for n in sizes) else (low, sizes)


def boxes_of_span(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Cut the elements from `start` to before `stop`, in row-major order, into boxes."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:  # all in one row
        for at, sizes in boxes_of_span(shape[1:], start - last * row, stop - last * row):
            yield (last, *at), (1, *sizes)
        return
    if start < first * row:
        for at, sizes in boxes_of_span(shape[1:], start - (first - 1) * row, row):
            yield (first - 1, *at), (1, *sizes)
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    if last * row < stop:
        for at, sizes in boxes_of_span(shape[1:], 0, stop - last * row):
            yield (last, *at), (1, *sizes)
