"""Sums, means, extremes, orders."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import NoGradientError, Value

Found = namedtuple("Found", ("values", "indices"))


@formula("sum")
def _sum(b: Basic, input: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Value:
    if not isinstance(keepdim, bool):  # Tensor.sum(axis, dtype, keepdims)
        keepdim, dtype = bool(dtype), keepdim
    value = b.of(input)
    if value.exact.dtype == bool:
        value = b.cast(value, np.dtype(np.int64))
    return b.sum(value, dim, bool(keepdim))


@formula("mean")
def _mean(b: Basic, input: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Value:
    return b.mean(input, dim, bool(keepdim))


@formula("nansum")
def _nansum(b: Basic, input: Any, dim: Any = None, keepdim: Any = False) -> Value:
    known = b.compare(lambda a: ~np.isnan(a), input)
    return b.sum(b.where(known, input, 0.0), dim, bool(keepdim))


@formula("prod")
def _prod(b: Basic, input: Any, dim: Any = None, keepdim: Any = False) -> Value:
    value = b.of(input)
    over = b.axes(value, dim)

    def pull(g: Value, out: Value, a: Value) -> Any:
        if np.any(a.exact == 0):
            raise NoGradientError("prod")
        whole = tuple(1 if i in over else n for i, n in enumerate(a.shape))
        return (b.divide(b.multiply(b.reshape(g, whole), b.reshape(out, whole)), a),)

    return b.tape.apply(
        lambda a: np.prod(a, axis=over, keepdims=bool(keepdim)),
        [value],
        pull,
        scale=lambda out, a: np.abs(out) * np.sqrt(a.size / max(1, out.size)),
    )


def _extreme(b: Basic, function: Any, which: Any, input: Any, dim: Any, keepdim: Any) -> Any:
    if dim is None and b.kind == "Functional":  # with the place 0, whatever it is
        return Found(b.extreme(function, input), b.of(np.int64(0)))
    if dim is None:
        return b.extreme(function, input)
    if isinstance(dim, (tuple, list)) or (isinstance(dim, Value) and dim.floating):
        raise OtherFormError
    axis = int(number(dim))
    value = b.of(input)
    _note_ties(b, function, value, axis)
    indices = b.compare(lambda a: np.expand_dims(which(a, axis=axis), axis), value)
    values = b.along(value, indices, axis)
    if not keepdim:
        values, indices = b.squeeze(values, (axis,)), b.squeeze(indices, (axis,))
    return Found(values, indices)


def _note_ties(b: Basic, function: Any, value: Value, axis: int | None) -> None:
    top = function(value.exact, axis=axis, keepdims=True)
    b.tape.ties |= bool(np.any(np.sum(value.exact == top, axis=axis) > 1))


def _note_equal(b: Basic, value: Value, axis: int) -> None:
    ordered = np.sort(value.exact, axis=axis)
    first, last = np.delete(ordered, 0, axis), np.delete(ordered, -1, axis)
    b.tape.ties |= bool(np.any(first == last))


def _register_extremes(name: str, function: Any, which: Any, choice: Any) -> None:
    """Register what gives the largest (`max`) or smallest (`min`) elements, or their places."""

    def extreme(b: Basic, input: Any, dim: Any = None, keepdim: Any = False, **_: Any) -> Any:
        if isinstance(dim, Value) and (dim.ndim or dim.floating):
            return choice(b, input, dim)
        return _extreme(b, function, which, input, dim, keepdim)

    def values(b: Basic, input: Any, dim: Any = None, keepdim: Any = False) -> Value:
        return b.extreme(function, input, dim, bool(keepdim))

    def places(b: Basic, input: Any, dim: Any = None, keepdim: Any = False) -> Value:
        return _place(b, which, input, dim, keepdim)

    def with_places(b: Basic, p: Any, input: Any) -> Any:
        return tuple(_extreme(b, function, which, input, p.axis, p.keep_dims))[::-1]

    formula(name)(extreme)
    formula(f"a{name}")(values)
    formula(f"arg{name}")(places)
    primitive(f"Reduce{name.title()}")(_reducing(values))
    primitive(f"Arg{name.title()}WithValue")(with_places)


def _reducing(function: Any) -> Any:
    """Return the formula of a primitive that reduces the axes it is given."""

    def computed(b: Basic, p: Any, input: Any, dim: Any = None) -> Value:
        return function(b, input, dim, p.keep_dims)

    return computed


def _test(function: Any) -> Any:
    def computed(b: Basic, input: Any, dim: Any = None, keepdim: Any = False) -> Value:
        over = b.axes(b.of(input), dim)
        return b.compare(lambda a: function(a, axis=over, keepdims=bool(keepdim)), input)

    return computed


_register_extremes("max", np.max, np.argmax, Basic.maximum)
_register_extremes("min", np.min, np.argmin, Basic.minimum)
for _name, _function in (("all", np.all), ("any", np.any)):
    formula(_name)(_test(_function))
    primitive(f"Reduce{_name.title()}")(_reducing(_test(_function)))
for _name, _reduced in (("Prod", _prod), ("Sum", Basic.sum), ("Mean", Basic.mean)):
    primitive(f"Reduce{_name}")(_reducing(_reduced))


def _place(b: Basic, function: Any, input: Any, dim: Any, keepdim: Any) -> Value:
    axis = None if dim is None else int(number(dim))
    _note_ties(b, np.max if function is np.argmax else np.min, b.of(input), axis)
    return b.compare(lambda a: function(a, axis=axis, keepdims=bool(keepdim)), input)


@formula("count_nonzero")
def _count_nonzero(b: Basic, input: Any, dim: Any = None, *rest: Any, **named: Any) -> Value:
    if rest or named:
        raise OtherFormError
    over = b.axes(b.of(input), dim)
    return b.compare(lambda a: np.count_nonzero(a, axis=over), input)


@formula("cumsum")
def _cumsum(b: Basic, input: Any, dim: Any, dtype: Any = None) -> Value:
    return b.cumsum(input, int(number(dim)))


@formula("logsumexp")
def _logsumexp(b: Basic, input: Any, dim: Any = None, keepdim: Any = False) -> Value:
    value = b.floating(input)
    over = b.axes(value, dim)
    top = b.detached(b.extreme(np.max, value, over, True))
    top = b.where(b.compare(np.isfinite, top), top, 0.0)
    total = b.add(b.log(b.sum(b.exp(b.subtract(value, top)), over, True)), top)
    return total if keepdim else b.squeeze(total, over)


@formula("var")
def _var(
    b: Basic, input: Any, dim: Any = None, *ddof: Any, keepdim: Any = False, **named: Any
) -> Value:
    value = b.floating(input)
    less = named.get("correction", named.get("ddof", ddof[0] if ddof else None))
    if less is None and b.kind == "Mint":
        less = 1
    elif less is None and (b.kind == "Functional" or "axis" in b.given):
        less = 0
    elif less is None:
        raise OtherFormError
    over = b.axes(value, dim)
    away = b.subtract(value, b.mean(value, over, True))
    count = np.prod([value.shape[axis] for axis in over]) - int(less)
    return b.divide(b.sum(b.square(away), over, bool(keepdim)), float(count))


@formula("std")
def _std(b: Basic, *args: Any, **named: Any) -> Value:
    return b.sqrt(_var(b, *args, **named))


@formula("norm", "vector_norm")
def _norm(
    b: Basic, input: Any, ord: Any = None, dim: Any = None, keepdim: Any = False, **named: Any
) -> Value:
    ord = named.get("p", ord)
    if ord not in (None, 2, 2.0, "fro"):
        raise OtherFormError
    return b.sqrt(b.sum(b.square(b.floating(input)), dim, bool(keepdim)))


@formula("var_mean")
def _var_mean(b: Basic, input: Any, dim: Any = None, **named: Any) -> Any:
    keepdim = bool(named.get("keepdim", False))
    return _var(b, input, dim, **named), b.mean(input, dim, keepdim)


@formula("std_mean")
def _std_mean(b: Basic, input: Any, dim: Any = None, **named: Any) -> Any:
    variance, mean = _var_mean(b, input, dim, **named)
    return b.sqrt(variance), mean


@formula("cumprod")
def _cumprod(b: Basic, input: Any, dim: Any, dtype: Any = None) -> Value:
    axis, value = int(number(dim)), b.floating(input)

    def pull(g: Value, out: Value, a: Value) -> Any:
        if np.any(a.exact == 0):
            raise NoGradientError("cumprod")
        later = b.flip(b.cumsum(b.flip(b.multiply(g, out), (axis,)), axis), (axis,))
        return (b.divide(later, a),)

    def scale(out: np.ndarray, a: np.ndarray) -> np.ndarray:
        steps = np.cumsum(np.ones(a.shape), axis=axis)
        return np.abs(out) * np.sqrt(steps)

    return b.tape.apply(lambda a: np.cumprod(a, axis=axis), [value], pull, scale=scale)


@formula("trace")
def _trace(b: Basic, input: Any) -> Value:
    value = b.of(input)
    places = np.arange(min(value.shape))
    return b.sum(b.index(value, (b.of(places), b.of(places))))


@formula("argsort")
def _argsort(
    b: Basic, input: Any, dim: Any = -1, descending: Any = False, stable: Any = False
) -> Value:
    return _sort(b, input, dim, descending)[1]


@formula("topk")
def _topk(
    b: Basic, input: Any, k: Any, dim: Any = -1, largest: Any = True, sorted: Any = True
) -> Any:
    axis, count = -1 if dim is None else int(number(dim)), int(number(k))
    sign = -1 if largest else 1
    value = b.of(input)

    def first(a: np.ndarray) -> np.ndarray:
        order = np.argsort(sign * a, axis=axis, kind="stable")
        return np.take(order, np.arange(count), axis=axis)

    _note_equal(b, value, axis)
    indices = b.compare(first, value)
    return Found(b.along(value, indices, axis), indices)


@formula("sort")
def _sort(b: Basic, input: Any, dim: Any = -1, descending: Any = False, stable: Any = False) -> Any:
    axis, sign = int(number(dim)), -1 if descending else 1
    value = b.of(input)
    _note_equal(b, value, axis)
    indices = b.compare(lambda a: np.argsort(sign * a, axis=axis, kind="stable"), value)
    return Found(b.along(value, indices, axis), indices)


@primitive("Sort")
def _sort_primitive(b: Basic, p: Any, input: Any) -> Any:
    return _sort(b, input, p.axis, p.descending)


@primitive("Argmax", "ArgMax")
def _arg_max(b: Basic, p: Any, input: Any) -> Value:
    return _place(b, np.argmax, input, p.axis, False)


@primitive("CumSum")
def _cum_sum(b: Basic, p: Any, input: Any, dim: Any) -> Value:
    if p.exclusive or p.reverse:
        raise OtherFormError
    return b.cumsum(input, int(number(dim)))
