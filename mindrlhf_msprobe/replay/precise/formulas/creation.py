"""Tensors that are made of nothing but shapes and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    formula,
    number,
    numbers,
    numpy_dtype,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value


def _filled(b: Basic, shape: Any, value: Any, dtype: Any) -> Value:
    number_of = number(value)
    kind = np.dtype(np.float64) if dtype is None else numpy_dtype(dtype)
    return b.of(np.full(numbers(shape), number_of, kind))


def _like(b: Basic, input: Any, value: Any, dtype: Any) -> Value:
    given_dtype = b.of(input).exact.dtype if dtype is None else numpy_dtype(dtype)
    return b.of(np.full(b.of(input).shape, number(value), given_dtype))


@formula("zeros")
def _zeros(b: Basic, *shape: Any, dtype: Any = None, **named: Any) -> Value:
    dtype = dtype or (shape[1] if len(shape) == 2 and not isinstance(shape[1], int) else None)
    return _filled(b, named.get("shape", shape[0] if len(shape) < 3 else shape), 0, dtype)


@formula("ones")
def _ones(b: Basic, *shape: Any, dtype: Any = None, **named: Any) -> Value:
    dtype = dtype or (shape[1] if len(shape) == 2 and not isinstance(shape[1], int) else None)
    return _filled(b, named.get("shape", shape[0] if len(shape) < 3 else shape), 1, dtype)


@formula("full")
def _full(b: Basic, shape: Any, fill_value: Any, dtype: Any = None) -> Value:
    kind = dtype or ("int64" if isinstance(number(fill_value), int) else None)
    return _filled(b, shape, fill_value, kind)


@formula("zeros_like")
def _zeros_like(b: Basic, input: Any, dtype: Any = None) -> Value:
    return _like(b, input, 0, dtype)


@formula("ones_like")
def _ones_like(b: Basic, input: Any, dtype: Any = None) -> Value:
    return _like(b, input, 1, dtype)


@formula("full_like")
def _full_like(b: Basic, input: Any, fill_value: Any, dtype: Any = None) -> Value:
    return _like(b, input, fill_value, dtype)


@primitive("ZerosLike")
def _zeros_like_primitive(b: Basic, p: Any, input: Any) -> Value:
    return _like(b, input, 0, None)


@primitive("OnesLike")
def _ones_like_primitive(b: Basic, p: Any, input: Any) -> Value:
    return _like(b, input, 1, None)


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


@primitive("OneHotExt")
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


@primitive("OneHot")
def _one_hot_primitive(b: Basic, p: Any, input: Any, depth: Any, on: Any, off: Any) -> Value:
    if p.axis != -1:
        raise OtherFormError
    classes = np.arange(int(number(depth)))
    chosen = b.compare(lambda a: a[..., None] == classes, input)
    return b.where(chosen, on, off)
