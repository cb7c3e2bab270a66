"""Products of matrices and what stands on them; convolutions and pooling."""

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


@formula("linear", "dense")
def _linear(b: Basic, input: Any, weight: Any, bias: Any = None) -> Value:
    product = b.matmul(input, b.swap(weight) if b.of(weight).ndim > 1 else weight)
    return product if bias is None else b.add(product, bias)


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


@formula("bias_add")
def _bias_add(b: Basic, input: Any, bias: Any) -> Value:
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
        total = b.multiply(_along(b, total, known, every), _along(b, value, one, every))
        total, known = _summed(b, total, every, later)
    total, known = _summed(b, total, known, result)
    return b.transpose(total, [known.index(i) for i in result])


def _along(b: Basic, value: Value, own: str, every: str) -> Value:
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
    gaps: tuple[int, ...] = (),
) -> Value:
    """Return what a kernel covers: [batch, channel, its places by axis, places in it by axis]."""
    axes, covered = len(kernel), []
    for axis, (size, n, step) in enumerate(zip(image.shape[2:], kernel, steps)):
        gap = gaps[axis] if gaps else 1
        places = np.arange((size - (n - 1) * gap - 1) // step + 1) * step
        shape, inside = [1] * (2 * axes), [1] * (2 * axes)
        shape[axis], inside[axes + axis] = len(places), n
        covered.append(b.of(places.reshape(shape) + (np.arange(n) * gap).reshape(inside)))
    return b.index(image, (slice(None), slice(None), *covered))


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
    """Return a convolution in as many dimensions as the weight has.

    Args:
        widths: of the zeros before and behind, axis by axis.
    """
    x, w = b.of(input), b.of(weight)
    axes = w.ndim - 2
    if any(widths):
        around = [(widths[2 * i], widths[2 * i + 1]) for i in range(axes)]
        x = b.pad(x, ((0, 0), (0, 0), *around))
    places, inside = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
    patches = b.transpose(_patches(b, x, w.shape[2:], steps, gaps), (0, *places, 1, *inside))
    parts, channels, outputs = [], x.shape[1] // groups, w.shape[0] // groups
    for i in range(groups):
        own = slice(i * channels, (i + 1) * channels)
        of_group = b.index(patches, (Ellipsis, own, *[slice(None)] * axes))
        flat = b.reshape(of_group, (*of_group.shape[: axes + 1], math.prod(w.shape[1:])))
        kernels = b.index(w, (slice(i * outputs, (i + 1) * outputs),))
        parts.append(b.matmul(flat, b.swap(b.reshape(kernels, (outputs, -1)))))
    product = parts[0] if groups == 1 else b.concatenate(parts, -1)
    if bias is not None:
        product = b.add(product, bias)
    return b.transpose(product, (0, axes + 1, *range(1, axes + 1)))


def _convolved_back(
    b: Basic,
    input: Any,
    weight: Any,
    shape: tuple[int, ...],
    *,
    steps: tuple[int, ...],
    before: tuple[int, ...],
    gaps: tuple[int, ...],
    groups: int,
) -> Value:
    """Return what a convolution's gradient by its input is: the image is spread, then convolved.

    Args:
        weight: [channels of `input`, channels of the result, …].
        shape: of the result, its axes alone.
        before: of the zeros that the convolution has before each axis.
    """
    x, w = b.of(input), b.of(weight)
    axes = w.ndim - 2
    for axis, step in enumerate(steps):
        x = _spread(b, x, axis + 2, step)
    widths: list[int] = []
    for axis in range(axes):
        reach = (w.shape[axis + 2] - 1) * gaps[axis]
        first = reach - before[axis]
        last = shape[axis] + reach - first - x.shape[axis + 2]
        kept = slice(max(0, -first), x.shape[axis + 2] - max(0, -last))
        x = b.index(x, (*[slice(None)] * (axis + 2), kept))
        widths += [max(0, first), max(0, last)]
    w = b.flip(w, tuple(range(2, 2 + axes)))
    outputs, size = w.shape[0] // groups, w.shape[1]
    w = b.reshape(w, (groups, outputs, *w.shape[1:]))
    w = b.reshape(b.swap(w, 1, 2), (groups * size, outputs, *w.shape[3:]))
    return _convolved(
        *(b, x, w, None),
        steps=(1,) * axes,
        widths=tuple(widths),
        gaps=gaps,
        groups=groups,
    )


def _spread(b: Basic, x: Value, axis: int, step: int) -> Value:
    """Return an image with zeros between its elements along an axis."""
    if step == 1:
        return x
    size = x.shape[axis]
    apart = b.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    around = [(0, 0)] * apart.ndim
    around[axis + 1] = (0, step - 1)
    wide = b.reshape(b.pad(apart, around), (*x.shape[:axis], size * step, *x.shape[axis + 1 :]))
    return b.index(wide, (*[slice(None)] * axis, slice(0, (size - 1) * step + 1)))


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


@primitive("Conv2DTranspose", "Conv2DBackpropInput")
def _conv2d_transpose(b: Basic, p: Any, out: Any, weight: Any, shape: Any) -> Value:
    sizes = numbers(shape)[-2:]
    widths, steps, gaps = _attributes(p, sizes, b.of(weight).shape[2:])
    return _convolved_back(
        *(b, out, weight, sizes),
        steps=steps,
        before=widths[::2],
        gaps=gaps,
        groups=int(p.group),
    )


@primitive("Conv2D", "Conv3D")
def _convolution(b: Basic, p: Any, input: Any, weight: Any) -> Value:
    sizes, kernel = b.of(input).shape[2:], b.of(weight).shape[2:]
    widths, steps, gaps = _attributes(p, sizes, kernel)
    return _convolved(
        b, input, weight, None, steps=steps, widths=widths, gaps=gaps, groups=int(p.group)
    )


def _attributes(
    p: Any, sizes: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the zeros around an image of some sizes, the steps, and the gaps of a primitive."""
    axes = len(kernel)
    if str(p.data_format) not in ("0", "NCHW" if axes == 2 else "NCDHW") or p.mode != 1:
        raise OtherFormError
    found = [numbers(a)[-axes:] for a in (p.stride, p.dilation)]
    steps, gaps = (one * axes if len(one) == 1 else one for one in found)
    mode = str(p.pad_mode).lower()
    if mode in ("valid", "2"):
        return (0,) * (2 * axes), steps, gaps
    if mode not in ("same", "1"):
        return numbers(p.pad), steps, gaps
    widths: tuple[int, ...] = ()
    for size, n, step, gap in zip(sizes, kernel, steps, gaps):
        whole = max(0, (-(-size // step) - 1) * step + (n - 1) * gap + 1 - size)
        widths += (whole // 2, whole - whole // 2)
    return widths, steps, gaps
