"""Any expression over stored tensors says and reads what numpy makes of them."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe.storage.arrays import expression as expressions
from mindrlhf_msprobe.storage.arrays.expression import (
    BySpans,
    InMemory,
    Permuted,
    Reordered,
    Reshaped,
    Scaled,
    Sum,
    Tile,
    Tiled,
    concatenated,
    rows_of,
)
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError


class Stored(BySpans):
    """A stored tensor that is read by spans, as those of a checkpoint are."""

    def __init__(self, values):
        super().__init__(values.shape)
        self._flat = np.ascontiguousarray(values).reshape(-1)

    @property
    def numpy_dtype(self):
        return self._flat.dtype

    def __str__(self):
        return f"stored{[*self.shape]}"

    def read(self, start, stop):
        return self._flat[start:stop]


@st.composite
def sources(draw, shape):
    values = np.arange(math.prod(shape), dtype=draw(st.sampled_from([np.int64, np.float32])))
    values = values.reshape(shape)
    return draw(st.sampled_from([InMemory, Stored]))(values), values


@st.composite
def made(draw, depth=3):
    """Draw an expression and what numpy makes of its sources."""
    if not depth or draw(st.integers(0, 5)) == 0:
        return draw(sources(draw(st.lists(st.integers(0, 4), max_size=3))))
    found, values = draw(made(depth - 1))
    kinds = ["reshape", "scale", "mean"]
    if values.ndim:
        kinds += ["take", "permute", "concatenate", "rows", "grid"]
    kind = draw(st.sampled_from(kinds))
    if kind == "reshape":
        shape = draw(st.sampled_from([(values.size,), (1, values.size, 1), values.shape[::-1]]))
        return Reshaped(found, shape), values.reshape(shape)
    if kind == "scale":
        return Scaled(found, 2.0), values + values
    if kind == "mean":
        return Sum([found, Scaled(found, 3.0)], 2), values + values
    if kind == "permute":
        axes = draw(st.permutations(range(values.ndim)))
        return Permuted(found, axes), values.transpose(axes)
    axis = draw(st.integers(0, values.ndim - 1))
    size = values.shape[axis]
    if kind == "concatenate":
        return concatenated([found, found], axis), np.concatenate([values, values], axis)
    order = draw(st.lists(st.integers(0, size - 1), max_size=6)) if size else []
    if kind == "take":
        return Reordered(found, order, axis), np.take(values, np.array(order, int), axis)
    if kind == "rows":
        rows = rows_of([(found, order), (found, range(size))], axis)
        taken = np.take(values, np.array(order, int), axis)
        return rows, np.concatenate([taken, values], axis)
    half = size // 2  # a grid: both parts of an axis change places
    first, second = (0,) * axis, (0,) * (values.ndim - axis - 1)

    def part(start, begin, n):
        shape = (*values.shape[:axis], n, *values.shape[axis + 1 :])
        return Tile((*first, start, *second), shape, 0, (*first, begin, *second))

    tiles = [part(0, half, size - half), part(size - half, 0, half)]
    return Tiled([found], tiles, values.shape), np.roll(values, size - half, axis)


@given(made(), st.data())
def test_shape_boxes_and_spans_are_those_of_numpy(both, data):
    found, values = both

    assert found.shape == values.shape
    assert found.numpy_dtype == values.dtype
    assert np.array_equal(found.array(), values)
    start = data.draw(st.integers(0, values.size))
    stop = data.draw(st.integers(start, values.size))
    assert np.array_equal(found.read(start, stop), values.reshape(-1)[start:stop])
    begin = [data.draw(st.integers(0, n)) for n in values.shape]
    sizes = [data.draw(st.integers(0, n - b)) for n, b in zip(values.shape, begin)]
    box = values[tuple(slice(b, b + n) for b, n in zip(begin, sizes))]
    assert np.array_equal(found.opened().box(begin, sizes), box)
    blocks = [*found.blocks(3)]
    assert all(block.size == 3 for block in blocks[:-1])
    assert np.array_equal(np.concatenate([*blocks, box.reshape(-1)[:0]]), values.reshape(-1))
    assert str(found)


def test_a_large_tensor_is_put_together_in_a_file(monkeypatch):
    monkeypatch.setattr(expressions, "WHOLE", 64)
    monkeypatch.setattr(expressions, "CHUNK", 7)
    values = np.arange(60, dtype=np.float32).reshape(5, 12)
    turned = Permuted(concatenated([InMemory(values), Stored(values)], axis=1), (1, 0))

    assert np.array_equal(turned.array(), np.concatenate([values, values], 1).T)
    assert str(turned) == "(array[5, 12][0:5, 0:12] | stored[5, 12][0:5, 0:12]).transpose(1, 0)"


def test_a_file_for_a_large_tensor_that_cannot_be_written_is_an_unreadable_array(monkeypatch):
    monkeypatch.setattr(expressions, "WHOLE", 0)
    monkeypatch.setattr(expressions.tempfile, "TemporaryFile", partial(open, "/dev/full", "wb"))

    with pytest.raises(ArrayFileError, match="No space left"):
        Scaled(InMemory(np.ones(9)), 2.0).array()


def twice(x, start):
    """Return a tensor at the beginning of a whole, and once more elsewhere."""
    return [Tile(at, x.shape, 0, (0, 0)) for at in ((0, 0), start)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: concatenated([x, Permuted(x, (1, 0))]), "along axis 0"),
        (lambda x: Reshaped(x, (4, 2)), r"2, 3.* add up to \[4, 2\]"),
        (lambda x: Tiled([x], [Tile((0, 0), (2, 2), 0, (0, 0))], (2, 3)), "do not add up"),
        (lambda x: Tiled([x], twice(x, (0, 0)), (2, 6)), "do not add up"),  # and leave a hole
        (lambda x: Tiled([x], twice(x, (0, 4)), (2, 6)), "do not add up"),  # beyond the whole
    ],
)
def test_shapes_that_do_not_add_up_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong(InMemory(np.zeros((2, 3))))
