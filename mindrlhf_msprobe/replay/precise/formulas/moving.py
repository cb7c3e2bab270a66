"""What takes, joins and rearranges elements, and what makes tensors of shapes and numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas import (
    Floats,
    Ints,
    NoFormulaError,
    Values,
    formula,
    number,
    numbers,
    numpy_dtype,
    of_one,
    of_two,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Operand, Value, concatenate, where

# --- of shapes and numbers -----------------------------------------------------------------------


def _filled(shape: tuple[int, ...], value: Any, dtype: Any) -> np.ndarray:
    return np.full(shape, number(value), np.float64 if dtype is None else numpy_dtype(dtype))


def _like(input: Value, value: Any, dtype: Any = None) -> np.ndarray:
    return np.full(
        input.shape, number(value), input.exact.dtype if dtype is None else numpy_dtype(dtype)
    )


def _register_filled(name: str, value: int) -> None:
    """Register what makes tensors of one number."""

    @formula(name)
    def made(*shape: Any, dtype: Any = None, **named: Any) -> np.ndarray:
        dtype = dtype or (shape[1] if len(shape) == 2 and not isinstance(shape[1], int) else None)
        given = named.get("shape", shape[0] if len(shape) < 3 else shape)
        return _filled(numbers(given), value, dtype)

    @formula(f"{name}_like", f"{name.title()}Like {name.title()}LikeExt")
    def made_like(input: Value, dtype: Any = None) -> np.ndarray:
        return _like(input, value, dtype)


_register_filled("zeros", 0)
_register_filled("ones", 1)
formula("full_like")(_like)


@formula("full")
def _full(shape: Ints, fill_value: Any, dtype: Any = None) -> np.ndarray:
    kind = dtype or ("int64" if isinstance(number(fill_value), int) else None)
    return _filled(shape, fill_value, kind)


@formula("arange")
def _arange(*bounds: Any, dtype: Any = None, **named: Any) -> np.ndarray:
    named_bounds = (named[name] for name in ("start", "end", "step") if name in named)
    made = np.arange(*map(number, (*bounds, *named_bounds)))
    return made if dtype is None else made.astype(numpy_dtype(dtype))


@formula("eye")
def _eye(n: int, m: int | None = None, dtype: Any = None) -> np.ndarray:
    return np.eye(n, m)


@formula("one_hot")
def _one_hot(input: Value, num_classes: int = -1, *values: Any) -> Value:
    if input.tape.kind == "Functional" and len(values) < 3:
        return _chosen(input, num_classes, *values)
    if values or num_classes < 1:
        raise NoFormulaError
    return _chosen(input, num_classes).cast(np.dtype(np.int64))


def _chosen(input: Value, classes: int, on: Operand = 1, off: Operand = 0) -> Value:
    return where(input.plain(lambda a: a[..., None] == np.arange(classes)), on, off)


@primitive("OneHot OneHotExt")
def _one_hot_ext(p: Any, input: Value, depth: int, on: Operand, off: Operand) -> Value:
    if p.axis != -1 or depth < 1:
        raise NoFormulaError
    return _chosen(input, depth, on, off)


@formula("sequence_mask")
def _sequence_mask(lengths: Value, maxlen: int | None = None) -> Value:
    most = int(np.max(lengths.exact)) if maxlen is None else maxlen
    return lengths.plain(lambda a: np.arange(most) < a[..., None])


# --- other shapes --------------------------------------------------------------------------------


@formula("reshape view", "Reshape")
def _reshape(input: Value, *shape: int) -> Value:
    return input.reshape(shape)


of_two("view_as reshape_as", "", lambda a, b: a.reshape(b.shape))
of_two("expand_as", "", lambda a, b: a.broadcast(b.shape))
of_one("t T", "", lambda a: a.transpose(range(a.ndim)[::-1]))


@formula("flatten")
def _flatten(
    input: Value, *dims: Any, start_dim: int | None = None, end_dim: int | None = None
) -> Value:
    usual = 1 if input.tape.kind == "Functional" and not dims else 0
    first = start_dim if start_dim is not None else int(dims[0] if dims else usual)
    last = end_dim if end_dim is not None else int(dims[1] if len(dims) > 1 else -1)
    first, last = (axis % max(1, input.ndim) for axis in (first, last))
    return input.reshape((*input.shape[:first], -1, *input.shape[last + 1 :]))


@formula("permute", "Transpose")
def _permute(input: Value, *dims: int) -> Value:
    return input.transpose(dims)


@formula("transpose swapaxes swapdims")
def _transpose(input: Value, *dims: Any, **named: Any) -> Value:
    dims = tuple(named.values()) or dims
    order = numbers(dims[0] if len(dims) == 1 else dims) if dims else range(input.ndim)[::-1]
    if len(order) != 2 and len(order) != input.ndim:
        raise NoFormulaError
    if len(order) == 2 and len(dims) == 2:
        return input.swap(*order)
    return input.transpose(order)  # ops.transpose(x, (1, 0))


@formula("unsqueeze expand_dims", "ExpandDims")
def _unsqueeze(input: Value, dim: int) -> Value:
    axis = dim % (input.ndim + 1)
    return input.reshape((*input.shape[:axis], 1, *input.shape[axis:]))


@formula("", "Squeeze", "axis")
@formula("squeeze")
def _squeeze(input: Value, dim: Any = None) -> Value:
    axes = range(input.ndim) if dim is None else input.axes(dim)
    return input.squeeze(tuple(a for a in axes if input.shape[a] == 1))


@formula("broadcast_to expand")
def _expand(input: Value, *shape: int) -> Value:
    own = (1,) * (len(shape) - input.ndim) + input.shape
    return input.broadcast([n if n != -1 else own[i] for i, n in enumerate(shape)])


@primitive("BroadcastTo")
def _broadcast_to_primitive(p: Any, input: Value, *shape: Any) -> Value:
    return _expand(input, *numbers(shape[0] if shape else p.shape))


@formula("moveaxis movedim")
def _moveaxis(input: Value, source: Ints, destination: Ints) -> Value:
    axes = [axis % input.ndim for axis in source]
    order = [axis for axis in range(input.ndim) if axis not in axes]
    for at, axis in sorted(zip((place % input.ndim for place in destination), axes)):
        order.insert(at, axis)
    return input.transpose(order)


# --- repeated, and joined ------------------------------------------------------------------------


@formula("tile", "Tile")
def _tile(input: Value, *times: int) -> Value:
    counts = (1,) * (input.ndim - len(times)) + times
    value = input.reshape((1,) * (len(counts) - input.ndim) + input.shape)
    for axis, count in enumerate(counts):
        if count != 1:
            value = concatenate([value] * count, axis)
    return value


@formula("repeat_interleave")
def _repeat_interleave(input: Value, repeats: Any, dim: int | None = None, **_: Any) -> Value:
    if isinstance(repeats, Value) and repeats.ndim:
        raise NoFormulaError
    if dim is None:
        input, dim = input.reshape((-1,)), 0
    return input.repeat(int(number(repeats)), dim % input.ndim)


@formula("flip")
def _flip(input: Value, *dims: int) -> Value:
    return input.flip(dims)


@formula("roll")
def _roll(input: Value, shifts: Ints, dim: Any = None, **named: Any) -> Value:
    if named.get("dims", dim) is None:
        raise NoFormulaError
    axes, opposite = numbers(named.get("dims", dim)), tuple(-s for s in shifts)
    return input.move(lambda x: np.roll(x, shifts, axes), lambda g, a: _roll(g, opposite, axes))


@formula("cat concat concatenate")
def _cat(input: Values, dim: int = 0) -> Value:
    return concatenate(input, dim)


@formula("stack", "StackExt", "dim")
def _stack(input: Values, dim: int = 0) -> Value:
    axis = dim if dim >= 0 else dim + input[0].ndim + 1
    return concatenate([_unsqueeze(item, axis) for item in input], axis)


def _register_joined(name: str, computed: Any) -> None:
    """Register a primitive that takes tensors one by one, or as one tuple."""

    @primitive(name)
    def joined(p: Any, *values: Any) -> Value:
        listed = values[0] if isinstance(values[0], (tuple, list)) else values
        result: Value = computed(listed, p.axis)
        return result


_register_joined("Concat", concatenate)
_register_joined("Stack", _stack)


# --- parts ---------------------------------------------------------------------------------------


@formula("split", "SplitWithSize")
def _split(input: Value, split_size_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    whole, size = input.shape[dim], split_size_or_sections
    if isinstance(size, (tuple, list)):
        sizes = [int(n) for n in size]
    else:
        size = int(number(size))
        sizes = [min(size, whole - i) for i in range(0, whole, size)]
    ends = np.cumsum(sizes)
    return tuple(input.part(dim, slice(int(end) - n, int(end))) for end, n in zip(ends, sizes))


@primitive("Split")
def _split_primitive(p: Any, input: Value) -> tuple[Value, ...]:
    return _split(input, input.shape[p.axis] // p.output_num, p.axis)


@formula("chunk")
def _chunk(input: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    return _split(input, -(-input.shape[dim] // chunks), dim)


@formula("unbind unstack")
def _unbind(input: Value, dim: int = 0) -> tuple[Value, ...]:
    return tuple(input.part(dim, i) for i in range(input.shape[dim]))


@formula("narrow")
def _narrow(input: Value, dim: int, start: int, length: int) -> Value:
    return input.part(dim, slice(start, start + length))


@primitive("StridedSlice")
def _strided_slice(p: Any, input: Value, begin: Ints, end: Ints, strides: Ints) -> Value:
    masks = (p.begin_mask, p.end_mask, p.ellipsis_mask, p.new_axis_mask, p.shrink_axis_mask)
    if any(masks):
        raise NoFormulaError
    return input.index(tuple(slice(*bounds) for bounds in zip(begin, end, strides)))


@formula("", "Slice")
def _slice(input: Value, begin: Ints, size: Ints) -> Value:
    bounds = zip(begin, size)
    return input.index(tuple(slice(i, None if n == -1 else i + n) for i, n in bounds))


def _register_triangle(name: str, keep: Any) -> None:
    """Register what keeps the elements on one side of a diagonal."""

    @formula("", name.title(), "diagonal")
    @formula(name)
    def kept(input: Value, diagonal: int = 0) -> Value:
        result: Value = input.move(lambda a: keep(a, diagonal), lambda g, a: kept(g, diagonal))
        return result


_register_triangle("triu", np.triu)
_register_triangle("tril", np.tril)


# --- elements at places --------------------------------------------------------------------------


def _key(tape: Any, key: Any) -> Any:
    """Return what an array is indexed by."""
    if isinstance(key, tuple):
        return tuple(_key(tape, part) for part in key)
    if isinstance(key, slice):
        ends = (number(end) for end in (key.start, key.stop, key.step))
        return slice(*(None if end is None else int(end) for end in ends))
    if isinstance(key, list):
        return tape.value([number(k) for k in key])
    if isinstance(key, Value) and not key.ndim and key.exact.dtype.kind in "iu":
        return int(number(key))
    return key


@formula("__getitem__")
def _getitem(input: Value, key: Any) -> Value:
    return input.index(_key(input.tape, key))


@formula("__setitem__")
def _setitem(input: Value, key: Any, source: Value) -> Value:
    """Return the tensor with elements replaced; as a value of its own."""
    key = _key(input.tape, key)
    parts = key if isinstance(key, tuple) else (key,)
    exact = tuple(p.exact if isinstance(p, Value) else p for p in parts)
    places = np.arange(input.exact.size).reshape(input.shape)[exact]
    new, taken = np.zeros(input.exact.size, bool), np.zeros(input.exact.size, np.int64)
    new[places.ravel()] = True
    taken[places.ravel()] = np.arange(places.size)
    given = source.broadcast(places.shape).reshape((-1,))
    if not places.size:
        return input
    of = input.tape.value
    return where(of(new.reshape(input.shape)), given.index(of(taken.reshape(input.shape))), input)


@formula("gather_elements gather_d", "GatherD")
def _gather_elements(input: Value, dim: int, index: Value) -> Value:
    cut = [slice(0, n) for n in index.shape]  # to the indices, but along their axis
    cut[dim % input.ndim] = slice(None)
    value = input if input.shape == index.shape else input.index(tuple(cut))
    return value.along(index, dim)


@formula("gather")
def _gather(input: Value, second: Any = None, third: Any = None, *more: Any, **named: Any) -> Value:
    """Return mint's and Tensor's gather(dim, index), or ops' gather(indices, axis)."""
    if {"dim", "index"} == {*named}:
        second, third = named["dim"], named["index"]
    elif "input_indices" in named and "dim" in named:
        second, third = named["input_indices"], named["dim"]
    elif more or {*named} - {"dim", "index"}:
        raise NoFormulaError
    else:
        third = named.get("index", named.get("dim", third))
    if isinstance(third, Value) and third.ndim:
        return _gather_elements(input, int(number(second)), third)
    return input.take(second, int(number(third)))


@primitive("Gather")
def _gather_primitive(p: Any, input: Value, indices: Value, dim: int) -> Value:
    if p.batch_dims:
        raise NoFormulaError
    return input.take(indices, dim)


@formula("index_select take", "IndexSelect")
def _index_select(input: Value, *rest: Any, dim: Any = None, index: Any = None) -> Value:
    left = [*rest]
    if dim is None and index is None:
        if len(left) != 2:
            raise NoFormulaError
        left = left if not (isinstance(left[0], Value) and left[0].ndim) else left[::-1]
    axis = left.pop(0) if dim is None else dim
    return input.take(left.pop(0) if index is None else index, int(number(axis)))


@formula("gather_nd", "GatherNd")
def _gather_nd(input: Value, indices: Value) -> Value:
    places = indices.exact
    return input.index(tuple(map(input.tape.value, np.moveaxis(places, -1, 0))))


@formula("masked_select")
def _masked_select(input: Value, mask: Value) -> Value:
    shape = np.broadcast_shapes(input.shape, mask.shape)
    places = np.flatnonzero(np.broadcast_to(mask.exact, shape))
    return input.broadcast(shape).reshape((-1,)).take(places, 0)


@formula("nonzero argwhere")
def _nonzero(input: Value, as_tuple: Any = False) -> Value:
    if as_tuple:
        raise NoFormulaError
    return input.plain(np.argwhere)


@formula("scatter")
def _scatter(input: Floats, dim: int, index: Value, src: Any) -> Value:
    if not isinstance(src, Value) or not src.ndim:
        raise NoFormulaError
    tape = input.tape

    def put(a: np.ndarray, i: np.ndarray, s: np.ndarray) -> np.ndarray:
        into = a.copy()
        np.put_along_axis(into, i, s, dim)
        return into

    def pull(g: Value, out: Value, a: Value, i: Value, s: Value) -> Any:
        nothing = np.zeros(s.shape)
        kept = tape.apply(lambda g, i: put(g, i, nothing), (g, i), rounds=False)
        return kept, None, g.along(i, dim)

    return tape.apply(put, (input, index, src.floats()), pull, rounds=False)


@formula("index_add scatter_add")
def _added_at(input: Floats, dim: Any, index: Value, source: Any = None, **named: Any) -> Value:
    """Return mint's index_add (whole slices) or scatter_add (elements): sums at places."""
    source = named.get("src", source)
    if not isinstance(source, Value) or isinstance(dim, Value):
        raise NoFormulaError
    if number(named.get("alpha", 1)) != 1:
        raise NoFormulaError
    axis, places = int(dim) % input.ndim, index.exact
    if input.tape.name == "index_add":
        shape = [-1 if i == axis else 1 for i in range(input.ndim)]
        places = np.broadcast_to(places.reshape(shape), source.shape)
    if places.shape != source.shape:
        raise NoFormulaError
    grids = np.indices(places.shape, sparse=True)
    key = tuple(places if i == axis else grids[i] for i in range(input.ndim))

    def add(a: np.ndarray, s: np.ndarray) -> np.ndarray:
        into = a.copy()
        np.add.at(into, key, s)
        return into

    def scale(out: np.ndarray, a: np.ndarray, s: np.ndarray) -> np.ndarray:
        times = np.max(add(np.zeros(a.shape), np.ones(s.shape)), initial=1)
        return input.tape.summed_scale(out, add(np.square(a), np.square(s)), int(times) + 1)

    def pull(g: Value, out: Value, a: Value, s: Value) -> Any:
        return g, g.index(tuple(map(g.tape.value, key)))

    return input.tape.apply(add, (input, source.floats()), pull, scale=scale)


@formula("diag diagflat")
def _diag(input: Value, diagonal: int = 0) -> Value:
    if input.ndim != 1 or diagonal:
        raise NoFormulaError
    return input.reshape((-1, 1)) * np.eye(input.shape[0])


@formula("meshgrid")
def _meshgrid(*inputs: Any, indexing: Any = None) -> Any:
    values = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else inputs
    indexing = indexing or ("ij" if values[0].tape.kind == "Mint" else "xy")
    order = [*range(len(values))]
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    shape = [values[i].exact.size for i in order]
    return tuple(
        one.reshape([-1 if at == i else 1 for at in order]).broadcast(shape)
        for i, one in enumerate(values)
    )


@formula("pad")
def _pad(input: Value, padding: Ints, mode: Any = "constant", value: float | None = None) -> Value:
    if mode != "constant" or min(padding, default=0) < 0:
        raise NoFormulaError
    pairs = [(0, 0)] * input.ndim
    for i in range(len(padding) // 2):
        pairs[-1 - i] = padding[2 * i], padding[2 * i + 1]
    return input.pad(pairs, value or 0.0)
