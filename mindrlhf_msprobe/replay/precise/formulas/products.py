"""Products of matrices, and what stands on them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    formula,
    number,
    numbers,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value


@formula("matmul", "bmm", "mm", "dot", "mv", "__matmul__")
def _matmul(b: Basic, input: Any, other: Any) -> Value:
    return b.matmul(input, other)


@formula("linear", "dense")
def _linear(b: Basic, input: Any, weight: Any, bias: Any = None) -> Value:
    product = b.matmul(input, b.swap(weight) if b.of(weight).ndim > 1 else weight)
    return product if bias is None else b.add(product, bias)


@formula("baddbmm", "addmm", "addbmm")
def _addmm(b: Basic, input: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    product = b.multiply(number(alpha), b.matmul(left, right))
    return b.add(b.multiply(number(beta), input), product)


@formula("outer")
def _outer(b: Basic, input: Any, other: Any) -> Value:
    left, right = b.of(input), b.of(other)
    return b.multiply(b.reshape(left, (-1, 1)), b.reshape(right, (1, -1)))


@primitive("MatMul", "BatchMatMul", "MatMulExt", "BatchMatMulExt")
def _matmul_primitive(b: Basic, p: Any, input: Any, other: Any) -> Value:
    left = b.swap(input) if getattr(p, "transpose_a", False) else input
    right = b.swap(other) if getattr(p, "transpose_b", False) else other
    return b.matmul(left, right)


@primitive("BiasAdd")
def _bias_add(b: Basic, p: Any, input: Any, bias: Any) -> Value:
    value = b.of(input)
    shape = (1, -1) + (1,) * (value.ndim - 2)
    return b.add(value, b.reshape(bias, shape))


@formula("conv2d")
def _conv2d(
    b: Basic,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    *more: Any,
    **named: Any,
) -> Value:
    if more or {k for k, v in named.items() if k != "padding"} or number(named.get("padding", 0)):
        raise OtherFormError
    x, w = b.of(input), b.of(weight)
    steps = numbers(stride) * (2 if len(numbers(stride)) == 1 else 1)
    rows = np.arange((x.shape[2] - w.shape[2]) // steps[0] + 1) * steps[0]
    columns = np.arange((x.shape[3] - w.shape[3]) // steps[1] + 1) * steps[1]
    patches = b.index(
        x,
        (
            slice(None),
            slice(None),
            b.of(rows[:, None, None, None] + np.arange(w.shape[2])[:, None]),
            b.of(columns[None, :, None, None] + np.arange(w.shape[3])),
        ),
    )  # [batch, channel, row, column, kernel row, kernel column]
    patches = b.transpose(patches, (0, 2, 3, 1, 4, 5))
    flat = b.reshape(patches, (*patches.shape[:3], math.prod(w.shape[1:])))
    product = b.matmul(flat, b.swap(b.reshape(w, (w.shape[0], -1))))
    if bias is not None:
        product = b.add(product, bias)
    return b.transpose(product, (0, 3, 1, 2))
