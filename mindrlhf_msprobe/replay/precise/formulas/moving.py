"""What takes, joins and rearranges elements, and what makes tensors of shapes and numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    formula,
    given,
    number,
    numbers,
    numpy_dtype,
    primitive,
    with_attribute,
)
from mindrlhf_msprobe.replay.precise.values import Value


def _filled(b: Basic, shape: Any, value: Any, dtype: Any) -> Value:
    number_of = number(value)
    kind = np.dtype(np.float64) if dtype is None else numpy_dtype(dtype)
    return b.of(np.full(numbers(shape), number_of, kind))


def _like(b: Basic, input: Any, value: Any, dtype: Any) -> Value:
    given_dtype = b.of(input).exact.dtype if dtype is None else numpy_dtype(dtype)
    return b.of(np.full(b.of(input).shape, number(value), given_dtype))


def _of_shape(value: int) -> Any:
    def made(b: Basic, *shape: Any, dtype: Any = None, **named: Any) -> Value:
        dtype = dtype or (shape[1] if len(shape) == 2 and not isinstance(shape[1], int) else None)
        return _filled(b, named.get("shape", shape[0] if len(shape) < 3 else shape), value, dtype)

    return made


def _of_shape_like(value: int) -> Any:
    def made(b: Basic, input: Any, dtype: Any = None) -> Value:
        return _like(b, input, value, dtype)

    return made


for _name, _value in (("zeros", 0), ("ones", 1)):
    formula(_name)(_of_shape(_value))
    formula(f"{_name}_like")(_of_shape_like(_value))


@formula("full")
def _full(b: Basic, shape: Any, fill_value: Any, dtype: Any = None) -> Value:
    kind = dtype or ("int64" if isinstance(number(fill_value), int) else None)
    return _filled(b, shape, fill_value, kind)


@formula("full_like")
def _full_like(b: Basic, input: Any, fill_value: Any, dtype: Any = None) -> Value:
    return _like(b, input, fill_value, dtype)


@formula("arange")
def _arange(b: Basic, *bounds: Any, dtype: Any = None, **named: Any) -> Value:
    ends = [
        number(x) for x in (*bounds, *(named[k] for k in ("start", "end", "step") if k in named))
    ]
    made = np.arange(*ends)
    return b.of(made if dtype is None else made.astype(numpy_dtype(dtype)))


@formula("one_hot")
def _one_hot(b: Basic, input: Any, num_classes: Any = -1, *values: Any, **named: Any) -> Value:
    if b.kind == "Functional" and not named and len(values) < 3:
        on = values[0] if values else 1
        off = values[1] if len(values) > 1 else 0
        classes = np.arange(int(number(num_classes)))
        return b.where(b.compare(lambda a: a[..., None] == classes, input), on, off)
    if values or named or int(number(num_classes)) < 1:
        raise OtherFormError
    classes = np.arange(int(number(num_classes)))
    return b.compare(lambda a: (a[..., None] == classes).astype(np.int64), input)


@primitive("OneHot", "OneHotExt")
def _one_hot_ext(b: Basic, p: Any, input: Any, depth: Any, on: Any, off: Any) -> Value:
    classes = int(number(depth))
    if p.axis != -1 or classes < 1:
        raise OtherFormError
    chosen = b.compare(lambda a: a[..., None] == np.arange(classes), input)
    return b.where(chosen, on, off)


@formula("sequence_mask")
def _sequence_mask(b: Basic, lengths: Any, maxlen: Any = None) -> Value:
    most = int(np.max(b.of(lengths).exact)) if maxlen is None else int(number(maxlen))
    return b.compare(lambda a: np.arange(most) < a[..., None], lengths)


@formula("eye")
def _eye(b: Basic, n: Any, m: Any = None, dtype: Any = None) -> Value:
    return b.of(np.eye(int(number(n)), None if m is None else int(number(m))))


@formula("reshape", "view")
def _reshape(b: Basic, input: Any, *shape: Any, **named: Any) -> Value:
    return b.reshape(input, numbers(named["shape"]) if "shape" in named else given(shape))


@formula("view_as", "reshape_as")
def _view_as(b: Basic, input: Any, other: Any) -> Value:
    return b.reshape(input, b.of(other).shape)


@formula("flatten")
def _flatten(
    b: Basic, input: Any, *dims: Any, start_dim: Any = None, end_dim: Any = None, **named: Any
) -> Value:
    if named or any(isinstance(d, str) for d in dims):
        raise OtherFormError
    value = b.of(input)
    if start_dim is None and not dims:
        start_dim = 1 if b.kind == "Functional" else 0
    first = int(start_dim if start_dim is not None else dims[0]) % max(1, value.ndim)
    last = int(end_dim if end_dim is not None else (dims[1] if len(dims) > 1 else -1))
    last %= max(1, value.ndim)
    return b.reshape(value, (*value.shape[:first], -1, *value.shape[last + 1 :]))


@formula("permute")
def _permute(b: Basic, input: Any, *dims: Any, **named: Any) -> Value:
    order = numbers(named["dims"] if "dims" in named else named["dim"]) if named else given(dims)
    return b.transpose(input, order)


@formula("transpose", "swapaxes", "swapdims")
def _transpose(b: Basic, input: Any, *dims: Any, **named: Any) -> Value:
    if named:
        dims = tuple(named.values())
    value = b.of(input)
    if not dims:
        return b.transpose(value, range(value.ndim)[::-1])
    order = given(dims)
    if len(order) == value.ndim and len(order) != 2:
        return b.transpose(value, order)
    if len(order) != 2:
        raise OtherFormError
    if len(dims) == 1:
        return b.transpose(value, order)  # ops.transpose(x, (1, 0))
    return b.swap(value, *order)


@formula("t", "T")
def _t(b: Basic, input: Any) -> Value:
    value = b.of(input)
    return b.transpose(value, range(value.ndim)[::-1])


@formula("unsqueeze", "expand_dims")
def _unsqueeze(b: Basic, input: Any, dim: Any) -> Value:
    value, axis = b.of(input), int(number(dim))
    axis %= value.ndim + 1
    return b.reshape(value, (*value.shape[:axis], 1, *value.shape[axis:]))


@formula("squeeze")
def _squeeze(b: Basic, input: Any, dim: Any = None) -> Value:
    value = b.of(input)
    axes = range(value.ndim) if dim is None else b.axes(value, dim)
    return b.squeeze(value, tuple(a for a in axes if value.shape[a] == 1))


@formula("broadcast_to", "expand")
def _expand(b: Basic, input: Any, *shape: Any, **named: Any) -> Value:
    value = b.of(input)
    wanted = numbers(named["shape"]) if "shape" in named else given(shape)
    own = (1,) * (len(wanted) - value.ndim) + value.shape
    return b.broadcast(value, [n if n != -1 else own[i] for i, n in enumerate(wanted)])


@formula("expand_as")
def _expand_as(b: Basic, input: Any, other: Any) -> Value:
    return b.broadcast(input, b.of(other).shape)


@formula("tile")
def _tile(b: Basic, input: Any, *dims: Any, **named: Any) -> Value:
    value = b.of(input)
    times = numbers(next(iter(named.values()))) if named else given(dims)
    times = (1,) * (value.ndim - len(times)) + times
    shape = (1,) * (len(times) - value.ndim) + value.shape
    value = b.reshape(value, shape)
    for axis, count in enumerate(times):
        if count != 1:
            value = b.concatenate([value] * count, axis)
    return value


@formula("repeat_interleave")
def _repeat_interleave(b: Basic, input: Any, repeats: Any, dim: Any = None, **_: Any) -> Value:
    if isinstance(repeats, Value) and repeats.ndim:
        raise OtherFormError
    value = b.of(input)
    if dim is None:
        value, dim = b.reshape(value, (-1,)), 0
    return b.repeat(value, int(number(repeats)), int(number(dim)) % value.ndim)


@formula("flip")
def _flip(b: Basic, input: Any, *dims: Any, **named: Any) -> Value:
    return b.flip(input, numbers(next(iter(named.values()))) if named else given(dims))


@formula("roll")
def _roll(b: Basic, input: Any, shifts: Any, dim: Any = None, **named: Any) -> Value:
    axes = named.get("dims", dim)
    if axes is None:
        raise OtherFormError
    return b.roll(input, numbers(shifts), numbers(axes))


@formula("cat", "concat", "concatenate")
def _cat(b: Basic, input: Any, dim: Any = 0) -> Value:
    return b.concatenate(input, int(number(dim)))


@formula("stack")
def _stack(b: Basic, input: Any, dim: Any = 0) -> Value:
    axis = int(number(dim))
    axis = axis if axis >= 0 else axis + b.of(input[0]).ndim + 1
    return b.concatenate([_unsqueeze(b, item, axis) for item in input], axis)


def _parts(b: Basic, value: Value, sizes: list[int], axis: int) -> tuple[Value, ...]:
    axis %= value.ndim
    ends = np.cumsum(sizes)
    key = (slice(None),) * axis
    return tuple(b.index(value, (*key, slice(int(e) - n, int(e)))) for e, n in zip(ends, sizes))


@formula("split")
def _split(b: Basic, input: Any, split_size_or_sections: Any, dim: Any = 0) -> Any:
    value, axis = b.of(input), int(number(dim))
    whole = value.shape[axis]
    if isinstance(split_size_or_sections, (tuple, list)):
        return _parts(b, value, [int(n) for n in split_size_or_sections], axis)
    size = int(number(split_size_or_sections))
    return _parts(b, value, [min(size, whole - i) for i in range(0, whole, size)], axis)


@formula("chunk")
def _chunk(b: Basic, input: Any, chunks: Any, dim: Any = 0) -> Any:
    value, axis = b.of(input), int(number(dim))
    size = -(-value.shape[axis] // int(number(chunks)))
    return _split(b, value, size, axis)


@formula("unbind", "unstack")
def _unbind(b: Basic, input: Any, dim: Any = 0) -> Any:
    value, axis = b.of(input), int(number(dim))
    axis %= value.ndim
    return tuple(b.index(value, (slice(None),) * axis + (i,)) for i in range(value.shape[axis]))


@formula("narrow")
def _narrow(b: Basic, input: Any, dim: Any, start: Any, length: Any) -> Value:
    value, axis, first = b.of(input), int(number(dim)), int(number(start))
    key = (slice(None),) * (axis % value.ndim)
    return b.index(value, (*key, slice(first, first + int(number(length)))))


@formula("__getitem__")
def _getitem(b: Basic, input: Any, key: Any) -> Value:
    return b.index(input, _key(b, key))


def _key(b: Basic, key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_key(b, part) for part in key)
    if isinstance(key, slice):
        ends = (number(end) for end in (key.start, key.stop, key.step))
        return slice(*(None if end is None else int(end) for end in ends))
    if isinstance(key, list):
        return b.of(np.asarray([number(k) for k in key]))
    if isinstance(key, Value) and not key.ndim and key.exact.dtype.kind in "iu":
        return int(number(key))
    return key


@formula("__setitem__")
def _setitem(b: Basic, input: Any, key: Any, source: Any) -> Value:
    """Return the tensor with elements replaced; as a value of its own."""
    value, key = b.of(input), _key(b, key)
    parts = key if isinstance(key, tuple) else (key,)
    exact = tuple(p.exact if isinstance(p, Value) else p for p in parts)
    places = np.arange(value.exact.size).reshape(value.shape)[exact]
    new = np.zeros(value.exact.size, bool)
    new[places.ravel()] = True
    taken = np.zeros(value.exact.size, np.int64)
    taken[places.ravel()] = np.arange(places.size)
    given_elements = b.reshape(b.broadcast(source, places.shape), (-1,))
    if not places.size:
        return value
    spread_out = b.index(given_elements, (b.of(taken.reshape(value.shape)),))
    return b.where(new.reshape(value.shape), spread_out, value)


@formula("gather_elements", "gather_d")
def _gather_elements(b: Basic, input: Any, dim: Any, index: Any) -> Value:
    return b.along(_cut(b, b.of(input), int(number(dim)), b.of(index)), index, int(number(dim)))


def _cut(b: Basic, value: Value, axis: int, index: Value) -> Value:
    """Return a value cut to the shape of indices, but along the axis they index."""
    key = [slice(0, n) for n in index.shape]
    key[axis % value.ndim] = slice(None)
    return value if value.shape == index.shape else b.index(value, tuple(key))


@formula("gather")
def _gather(
    b: Basic, input: Any, second: Any = None, third: Any = None, *more: Any, **named: Any
) -> Value:
    """Return mint's and Tensor's gather(dim, index), or ops' gather(indices, axis)."""
    if {"dim", "index"} == {*named}:
        second, third = named["dim"], named["index"]
    elif "input_indices" in named and "dim" in named:
        second, third = named["input_indices"], named["dim"]
    elif more or {*named} - {"dim", "index"}:
        raise OtherFormError
    elif "index" in named:
        third = named["index"]
    elif "dim" in named:
        third = named["dim"]
    if isinstance(third, Value) and third.ndim:
        return _gather_elements(b, input, second, third)
    return b.take(input, second, int(number(third)))


@formula("index_select", "take")
def _index_select(b: Basic, input: Any, *rest: Any, **named: Any) -> Value:
    if "dim" in named or "index" in named:
        left = [*rest]
        axis = named["dim"] if "dim" in named else left.pop(0)
        index = named["index"] if "index" in named else left.pop(0)
    elif len(rest) == 2:
        axis, index = rest if not (isinstance(rest[0], Value) and rest[0].ndim) else rest[::-1]
    else:
        raise OtherFormError
    return b.take(input, index, int(number(axis)))


def _triangle(keep: Any) -> Any:
    def kept(b: Basic, input: Any, diagonal: Any = 0) -> Value:
        k = int(number(diagonal))
        return b.move(input, lambda a: keep(a, k), lambda g, a: kept(b, g, k))

    return kept


_triu, _tril = formula("triu")(_triangle(np.triu)), formula("tril")(_triangle(np.tril))


@formula("scatter")
def _scatter(b: Basic, input: Any, dim: Any, index: Any, src: Any) -> Value:
    if not isinstance(src, Value) or not src.ndim:
        raise OtherFormError
    axis = int(number(dim))

    def put(a: np.ndarray, i: np.ndarray, s: np.ndarray) -> np.ndarray:
        into = a.copy()
        np.put_along_axis(into, i, s, axis)
        return into

    def pull(g: Value, out: Value, a: Value, i: Value, s: Value) -> Any:
        nothing = np.zeros(s.shape)
        kept = b.tape.apply(lambda g, i: put(g, i, nothing), (g, i), rounds=False)
        return kept, None, b.along(g, i, axis)

    operands = (b.floating(input), b.of(index), b.floating(src))
    return b.tape.apply(put, operands, pull, rounds=False)


@formula("moveaxis", "movedim")
def _moveaxis(b: Basic, input: Any, source: Any, destination: Any) -> Value:
    value = b.of(input)
    order = np.moveaxis(np.arange(value.ndim), 0, 0).tolist()
    from_axes = [a % value.ndim for a in numbers(source)]
    order = [a for a in order if a not in from_axes]
    for at, axis in sorted(zip((a % value.ndim for a in numbers(destination)), from_axes)):
        order.insert(at, axis)
    return b.transpose(value, order)


@formula("masked_select")
def _masked_select(b: Basic, input: Any, mask: Any) -> Value:
    value, chosen = b.of(input), b.of(mask)
    shape = np.broadcast_shapes(value.shape, chosen.shape)
    places = np.flatnonzero(np.broadcast_to(chosen.exact, shape))
    return b.index(b.reshape(b.broadcast(value, shape), (-1,)), (b.of(places),))


@formula("nonzero", "argwhere")
def _nonzero(b: Basic, input: Any, as_tuple: Any = False) -> Any:
    if as_tuple:
        raise OtherFormError
    return b.compare(np.argwhere, input)


@formula("gather_nd")
def _gather_nd(b: Basic, input: Any, indices: Any) -> Value:
    places = b.of(indices).exact
    return b.index(input, tuple(b.of(places[..., i]) for i in range(places.shape[-1])))


@formula("index_add", "scatter_add")
def _added_at(
    b: Basic, input: Any, dim: Any, index: Any, source: Any = None, **named: Any
) -> Value:
    """Return mint's index_add (whole slices) or scatter_add (elements): sums at places."""
    source = named.get("src", named.get("source", source))
    value, places = b.floating(input), b.of(index)
    if (
        not isinstance(source, Value)
        or isinstance(dim, Value)
        or number(named.get("alpha", 1)) != 1
    ):
        raise OtherFormError
    axis = int(number(dim)) % value.ndim
    if b.name == "index_add":
        shape = [-1 if i == axis else 1 for i in range(value.ndim)]
        places = b.of(np.broadcast_to(places.exact.reshape(shape), source.shape))
    if places.shape != source.shape:
        raise OtherFormError
    grids = np.indices(places.shape, sparse=True)
    key = tuple(places.exact if i == axis else grids[i] for i in range(value.ndim))

    def add(a: np.ndarray, s: np.ndarray) -> np.ndarray:
        into = a.copy()
        np.add.at(into, key, s)
        return into

    def scale(out: np.ndarray, a: np.ndarray, s: np.ndarray) -> np.ndarray:
        times = np.max(add(np.zeros(a.shape), np.ones(s.shape)), initial=1)
        return b.tape.summed_scale(out, add(np.square(a), np.square(s)), int(times) + 1)

    def pull(g: Value, out: Value, a: Value, s: Value) -> Any:
        return g, b.index(g, tuple(b.of(part) for part in key))

    return b.tape.apply(add, (value, b.floating(source)), pull, scale=scale)


@formula("diag", "diagflat")
def _diag(b: Basic, input: Any, diagonal: Any = 0) -> Value:
    value, at = b.of(input), int(number(diagonal))
    if value.ndim != 1 or at:
        raise OtherFormError
    return b.multiply(b.reshape(value, (-1, 1)), b.of(np.eye(value.shape[0])))


@formula("meshgrid")
def _meshgrid(b: Basic, *inputs: Any, indexing: Any = None) -> Any:
    listed = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else inputs
    values = [b.of(one) for one in listed]
    indexing = indexing or ("ij" if b.kind == "Mint" else "xy")
    order = [*range(len(values))]
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    shape = [values[i].exact.size for i in order]
    return tuple(
        b.broadcast(b.reshape(one, [-1 if at == i else 1 for at in order]), shape)
        for i, one in enumerate(values)
    )


@formula("pad")
def _pad(
    b: Basic, input: Any, padding: Any, mode: Any = "constant", value: Any = None, **named: Any
) -> Value:
    if mode != "constant" or named:
        raise OtherFormError
    given_value, widths = b.of(input), numbers(padding)
    pairs = [(0, 0)] * given_value.ndim
    for i in range(len(widths) // 2):
        pairs[-1 - i] = widths[2 * i], widths[2 * i + 1]
    if min(widths, default=0) < 0:
        raise OtherFormError
    return b.pad(given_value, pairs, 0.0 if value is None else float(number(value)))


for _name, _function, _attribute in (
    ("Triu", _triu, "diagonal"),
    ("Tril", _tril, "diagonal"),
    ("StackExt", _stack, "dim"),
):
    primitive(_name)(with_attribute(_function, _attribute))


@primitive("Squeeze")
def _squeeze_primitive(b: Basic, p: Any, input: Any) -> Value:
    return _squeeze(b, input, p.axis if p.axis != () else None)


@primitive("BroadcastTo")
def _broadcast_to_primitive(b: Basic, p: Any, input: Any, *shape: Any) -> Value:
    return _expand(b, input, shape[0] if shape else p.shape)


@primitive("Concat")
def _concat_primitive(b: Basic, p: Any, *values: Any) -> Value:
    first = values[0]
    return b.concatenate(first if isinstance(first, (tuple, list)) else values, p.axis)


@primitive("Stack")
def _stack_primitive(b: Basic, p: Any, *values: Any) -> Value:
    first = values[0]
    return _stack(b, first if isinstance(first, (tuple, list)) else values, p.axis)


@primitive("Split")
def _split_primitive(b: Basic, p: Any, input: Any) -> Any:
    value = b.of(input)
    return _split(b, value, value.shape[p.axis] // p.output_num, p.axis)


@primitive("Gather")
def _gather_primitive(b: Basic, p: Any, input: Any, indices: Any, dim: Any) -> Value:
    if p.batch_dims:
        raise OtherFormError
    return b.take(input, indices, int(number(dim)))


@primitive("StridedSlice")
def _strided_slice(b: Basic, p: Any, input: Any, begin: Any, end: Any, strides: Any) -> Value:
    masks = (p.begin_mask, p.end_mask, p.ellipsis_mask, p.new_axis_mask, p.shrink_axis_mask)
    if any(masks):
        raise OtherFormError
    ends = zip(numbers(begin), numbers(end), numbers(strides))
    return b.index(input, tuple(slice(*bounds) for bounds in ends))


@primitive("Slice")
def _slice(b: Basic, p: Any, input: Any, begin: Any, size: Any) -> Value:
    bounds = zip(numbers(begin), numbers(size))
    return b.index(input, tuple(slice(i, None if n == -1 else i + n) for i, n in bounds))
