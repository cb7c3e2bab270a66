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


@formula("__rmatmul__")
def _rmatmul(b: Basic, input: Any, other: Any) -> Value:
    return b.matmul(other, input)


@formula("bias_add")
def _bias_add_function(b: Basic, input: Any, bias: Any) -> Value:
    return _bias_add(b, None, input, bias)


@formula("baddbmm", "addmm", "addmv")
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


@formula("einsum")
def _einsum(b: Basic, equation: str, *operands: Any) -> Value:
    """Return a sum of products without traces: each operand has an index once."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    indices = left.split(",")
    listed = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else None
    values = [b.of(operand) for operand in (operands if listed is None else listed)]
    if not arrow or "." in equation or len(values) != len(indices):
        raise OtherFormError
    if any(len({*one}) != len(one) for one in [*indices, result]):
        raise OtherFormError
    total, known = values[0], indices[0]
    for value, one in zip(values[1:], indices[1:]):
        every = known + "".join(i for i in one if i not in known)
        later = "".join(indices[indices.index(one) + 1 :]) + result
        total = b.multiply(_spread(b, total, known, every), _spread(b, value, one, every))
        total, known = _summed(b, total, every, later)
    total, known = _summed(b, total, known, result)
    return b.transpose(total, [known.index(i) for i in result])


def _spread(b: Basic, value: Value, own: str, every: str) -> Value:
    """Return a value with an axis for every index."""
    order = [own.index(i) for i in every if i in own]
    lengths = iter([value.shape[i] for i in order])
    return b.reshape(b.transpose(value, order), [next(lengths) if i in own else 1 for i in every])


def _summed(b: Basic, value: Value, own: str, needed: str) -> tuple[Value, str]:
    """Return a value summed over the indices that are not needed, and those that are left."""
    over = tuple(i for i, index in enumerate(own) if index not in needed)
    return (b.sum(value, over) if over else value), "".join(i for i in own if i in needed)


def _patches(
    b: Basic,
    image: Value,
    kernel: tuple[int, ...],
    steps: tuple[int, ...],
    gaps: tuple[int, ...] = (1, 1),
) -> Value:
    """Return what a kernel covers: [batch, channel, row, column, kernel row, kernel column]."""
    reach = [(n - 1) * gap + 1 for n, gap in zip(kernel, gaps)]
    rows = np.arange((image.shape[2] - reach[0]) // steps[0] + 1) * steps[0]
    columns = np.arange((image.shape[3] - reach[1]) // steps[1] + 1) * steps[1]
    down = b.of(rows[:, None, None, None] + np.arange(kernel[0])[:, None] * gaps[0])
    across = b.of(columns[None, :, None, None] + np.arange(kernel[1]) * gaps[1])
    return b.index(image, (slice(None), slice(None), down, across))


def _pooled(b: Basic, p: Any, input: Any) -> Value:
    if str(p.data_format) not in ("NCHW", "0") or str(p.pad_mode).lower() not in ("valid", "2"):
        raise OtherFormError
    steps = numbers(p.strides)[-2:]
    return _patches(b, b.floating(input), _two(p.kernel_size)[-2:], steps * (3 - len(steps)))


@primitive("AvgPool")
def _avg_pool(b: Basic, p: Any, input: Any) -> Value:
    return b.mean(_pooled(b, p, input), (-2, -1))


@primitive("MaxPool")
def _max_pool(b: Basic, p: Any, input: Any) -> Value:
    return b.extreme(np.max, _pooled(b, p, input), (-2, -1))


def _convolved(
    b: Basic,
    input: Any,
    weight: Any,
    bias: Any,
    *,
    steps: tuple[int, ...],
    widths: tuple[int, ...],
    gaps: tuple[int, ...],
    groups: int,
) -> Value:
    """Return a convolution in two dimensions.

    Args:
        widths: of the zeros around: above, below, left, right.
    """
    x, w = b.of(input), b.of(weight)
    if any(widths):
        above, below, left, right = widths
        x = b.pad(x, ((0, 0), (0, 0), (above, below), (left, right)))
    patches = b.transpose(_patches(b, x, w.shape[2:], steps, gaps), (0, 2, 3, 1, 4, 5))
    parts, channels, outputs = [], x.shape[1] // groups, w.shape[0] // groups
    for i in range(groups):
        own = b.index(
            patches, (Ellipsis, slice(i * channels, (i + 1) * channels), slice(None), slice(None))
        )
        flat = b.reshape(own, (*own.shape[:3], math.prod(w.shape[1:])))
        kernels = b.index(w, (slice(i * outputs, (i + 1) * outputs),))
        parts.append(b.matmul(flat, b.swap(b.reshape(kernels, (outputs, -1)))))
    product = parts[0] if groups == 1 else b.concatenate(parts, -1)
    if bias is not None:
        product = b.add(product, bias)
    return b.transpose(product, (0, 3, 1, 2))


def _two(value: Any) -> tuple[int, ...]:
    found = numbers(value)
    return found * 2 if len(found) == 1 else found


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
    padding = named.pop("padding", 0)
    if more or isinstance(padding, str) or {*named} - {"dilation", "groups"}:
        raise OtherFormError
    above, left = _two(padding) if len(numbers(padding)) < 3 else (None, None)
    if above is None or left is None or (b.kind == "Functional" and (above or left)):
        raise OtherFormError  # ops.conv2d pads by its pad_mode
    return _convolved(
        *(b, input, weight, bias),
        steps=_two(stride),
        widths=(above, above, left, left),
        gaps=_two(named.get("dilation", 1)),
        groups=int(number(named.get("groups", 1))),
    )


@primitive("Conv2D")
def _conv2d_primitive(b: Basic, p: Any, input: Any, weight: Any) -> Value:
    if str(p.data_format) not in ("NCHW", "0") or p.mode != 1:
        raise OtherFormError
    steps, gaps = numbers(p.stride)[-2:], numbers(p.dilation)[-2:]
    mode = str(p.pad_mode).lower()
    if mode in ("valid", "2"):
        widths: tuple[int, ...] = (0, 0, 0, 0)
    elif mode in ("same", "1"):
        widths = ()
        for size, kernel, step, gap in zip(
            b.of(input).shape[2:], b.of(weight).shape[2:], steps, gaps
        ):
            whole = max(0, (-(-size // step) - 1) * step + (kernel - 1) * gap + 1 - size)
            widths += (whole // 2, whole - whole // 2)
    else:
        widths = numbers(p.pad)
    return _convolved(
        b, input, weight, None, steps=steps, widths=widths, gaps=gaps, groups=int(p.group)
    )
