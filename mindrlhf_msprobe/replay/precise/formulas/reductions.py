"""Sums, means, extremes, orders."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas import (
    Floats,
    NoFormulaError,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import NoGradientError, Value, where

Found = namedtuple("Found", ("values", "indices"))


@formula("", "ReduceSum", "keep_dims")
@formula("sum", "SumExt")
def _sum(input: Value, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Value:
    if not isinstance(keepdim, bool):  # Tensor.sum(axis, dtype, keepdims)
        keepdim = bool(dtype)
    value = input.cast(np.dtype(np.int64)) if input.exact.dtype == bool else input
    return value.sum(dim, bool(keepdim))


@formula("", "ReduceMean", "keep_dims")
@formula("mean", "MeanExt")
def _mean(input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return input.mean(dim, keepdim)


@formula("nansum")
def _nansum(input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    known = input.plain(lambda a: ~np.isnan(a))
    return where(known, input, 0.0).sum(dim, keepdim)


@formula("prod", "ReduceProd", "keep_dims")
def _prod(input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    over = input.axes(dim)

    def pull(g: Value, out: Value, a: Value) -> Any:
        if np.any(a.exact == 0):
            raise NoGradientError("prod")
        whole = tuple(1 if i in over else n for i, n in enumerate(a.shape))
        return (g.reshape(whole) * out.reshape(whole) / a,)

    return input.tape.apply(
        lambda a: np.prod(a, axis=over, keepdims=keepdim),
        [input],
        pull,
        scale=lambda out, a: np.abs(out) * np.sqrt(a.size / max(1, out.size)),
    )


def _extreme(function: Any, which: Any, input: Value, dim: Any, keepdim: Any) -> Any:
    if dim is None and input.tape.kind == "Functional":  # with the place 0, whatever it is
        return Found(input.extreme(function), np.asarray(0))
    if dim is None:
        return input.extreme(function)
    if isinstance(dim, (tuple, list)) or (isinstance(dim, Value) and dim.floating):
        raise NoFormulaError
    axis = int(number(dim))
    _note_ties(function, input, axis)
    indices = input.plain(lambda a: np.expand_dims(which(a, axis=axis), axis))
    values = input.along(indices, axis)
    if not keepdim:
        values, indices = values.squeeze((axis,)), indices.squeeze((axis,))
    return Found(values, indices)


def _note_ties(function: Any, value: Value, axis: int | None) -> None:
    top = function(value.exact, axis=axis, keepdims=True)
    value.tape.ties |= bool(np.any(np.sum(value.exact == top, axis=axis) > 1))


def _ordered(value: Value, axis: int, order: Any) -> Found:
    """Return elements in an order, and their places."""
    ordered = np.sort(value.exact, axis=axis)
    first, last = np.delete(ordered, 0, axis), np.delete(ordered, -1, axis)
    value.tape.ties |= bool(np.any(first == last))
    indices = value.plain(order)
    return Found(value.along(indices, axis), indices)


def _register_extremes(name: str, function: Any, which: Any, choice: Any) -> None:
    """Register what gives the largest (`max`) or smallest (`min`) elements, or their places."""

    @formula(name)
    def extreme(input: Value, dim: Any = None, keepdim: Any = False, **_: Any) -> Any:
        if isinstance(dim, Value) and (dim.ndim or dim.floating):
            return choice(input, dim)
        return _extreme(function, which, input, dim, keepdim)

    @formula(f"a{name}", f"Reduce{name.title()}", "keep_dims")
    def values(input: Value, dim: Any = None, keepdim: bool = False) -> Value:
        return input.extreme(function, dim, keepdim)

    @formula(f"arg{name}")
    def places(input: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        return _place(which, input, dim, keepdim)

    @primitive(f"Arg{name.title()}WithValue")
    def with_places(p: Any, input: Value) -> Any:
        return tuple(_extreme(function, which, input, p.axis, p.keep_dims))[::-1]


def _place(function: Any, input: Value, axis: int | None, keepdim: bool) -> Value:
    _note_ties(np.max if function is np.argmax else np.min, input, axis)
    return input.plain(lambda a: function(a, axis=axis, keepdims=keepdim))


def _test(function: Any) -> Any:
    def computed(input: Value, dim: Any = None, keepdim: bool = False) -> Value:
        over = input.axes(dim)
        return input.plain(lambda a: function(a, axis=over, keepdims=keepdim))

    return computed


_register_extremes("max", np.max, np.argmax, Value.maximum)
_register_extremes("min", np.min, np.argmin, Value.minimum)
formula("all", "ReduceAll", "keep_dims")(_test(np.all))
formula("any", "ReduceAny", "keep_dims")(_test(np.any))


@primitive("Argmax ArgMax")
def _arg_max(p: Any, input: Value) -> Value:
    return _place(np.argmax, input, p.axis, False)


@formula("count_nonzero")
def _count_nonzero(input: Value, dim: Any = None) -> Value:
    over = input.axes(dim)
    return input.plain(lambda a: np.count_nonzero(a, axis=over))


@formula("cumsum", "CumsumExt")
def _cumsum(input: Value, dim: int, dtype: Any = None) -> Value:
    return input.cumsum(dim)


@primitive("CumSum")
def _cum_sum(p: Any, input: Value, dim: int) -> Value:
    if p.exclusive or p.reverse:
        raise NoFormulaError
    return input.cumsum(dim)


@formula("logsumexp", "LogSumExp")
def _logsumexp(input: Floats, dim: Any = None, keepdim: Any = False) -> Value:
    over = input.axes(dim)
    top = input.extreme(np.max, over, True).detached()
    top = where(top.plain(np.isfinite), top, 0.0)
    total = (input - top).exp().sum(over, True).log() + top
    return total if keepdim else total.squeeze(over)


@formula("var")
def _var(input: Floats, dim: Any = None, *ddof: Any, keepdim: bool = False, **named: Any) -> Value:
    less = named.get("correction", named.get("ddof", ddof[0] if ddof else None))
    if less is None and input.tape.kind == "Mint":
        less = 1
    elif less is None and (input.tape.kind == "Functional" or "axis" in input.tape.keywords):
        less = 0
    elif less is None:
        raise NoFormulaError
    over = input.axes(dim)
    away = input - input.mean(over, True)
    count = np.prod([input.shape[axis] for axis in over]) - int(less)
    return away.square().sum(over, keepdim) / float(count)


@formula("std")
def _std(input: Floats, *args: Any, **named: Any) -> Value:
    return _var(input, *args, **named).sqrt()


@formula("norm vector_norm")
def _norm(
    input: Floats, ord: Any = None, dim: Any = None, keepdim: bool = False, **named: Any
) -> Value:
    if named.get("p", ord) not in (None, 2, 2.0, "fro"):
        raise NoFormulaError
    return input.square().sum(dim, keepdim).sqrt()


@formula("var_mean")
def _var_mean(input: Floats, dim: Any = None, **named: Any) -> Any:
    return _var(input, dim, **named), input.mean(dim, bool(named.get("keepdim", False)))


@formula("std_mean")
def _std_mean(input: Floats, dim: Any = None, **named: Any) -> Any:
    variance, mean = _var_mean(input, dim, **named)
    return variance.sqrt(), mean


@formula("cumprod")
def _cumprod(input: Floats, dim: int, dtype: Any = None) -> Value:
    def pull(g: Value, out: Value, a: Value) -> Any:
        if np.any(a.exact == 0):
            raise NoGradientError("cumprod")
        return ((g * out).flip((dim,)).cumsum(dim).flip((dim,)) / a,)

    def scale(out: np.ndarray, a: np.ndarray) -> np.ndarray:
        return np.abs(out) * np.sqrt(np.cumsum(np.ones(a.shape), axis=dim))

    return input.tape.apply(lambda a: np.cumprod(a, axis=dim), [input], pull, scale=scale)


@formula("trace")
def _trace(input: Value) -> Value:
    places = input.tape.value(np.arange(min(input.shape)))
    return input.index((places, places)).sum()


@formula("topk", "TopkExt TopK")
def _topk(
    input: Value, k: int, dim: int | None = -1, largest: Any = True, sorted: Any = True
) -> Any:
    axis, sign = -1 if dim is None else dim, -1 if largest else 1

    def first(a: np.ndarray) -> np.ndarray:
        order = np.argsort(sign * a, axis=axis, kind="stable")
        return np.take(order, np.arange(k), axis=axis)

    return _ordered(input, axis, first)


@formula("", "Sort", "axis descending")
@formula("sort")
def _sort(input: Value, dim: int = -1, descending: Any = False, stable: Any = False) -> Found:
    sign = -1 if descending else 1
    return _ordered(input, dim, lambda a: np.argsort(sign * a, axis=dim, kind="stable"))


@formula("argsort")
def _argsort(input: Value, dim: int = -1, descending: Any = False, stable: Any = False) -> Value:
    places: Value = _sort(input, dim, descending).indices
    return places
