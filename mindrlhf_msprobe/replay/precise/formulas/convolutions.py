"""Products of matrices and what stands on them; convolutions and pooling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas import (
    Floats,
    Ints,
    NoFormulaError,
    formula,
    number,
    numbers,
    of_two,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value, concatenate


@formula("linear dense", "Dense")
def _linear(input: Value, weight: Value, bias: Value | None = None) -> Value:
    product = input @ (weight.swap() if weight.ndim > 1 else weight)
    return product if bias is None else product + bias


@formula("baddbmm addmm addmv")
def _addmm(input: Value, left: Value, right: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    product = number(alpha) * (left @ right)
    return number(beta) * input + product


of_two("outer", "", lambda a, b: a.reshape((-1, 1)) * b.reshape((1, -1)))


@primitive("MatMul BatchMatMul MatMulExt BatchMatMulExt")
def _matmul_primitive(p: Any, input: Value, other: Value) -> Value:
    left = input.swap() if getattr(p, "transpose_a", False) else input
    right = other.swap() if getattr(p, "transpose_b", False) else other
    return left @ right


@formula("bias_add", "BiasAdd")
def _bias_add(input: Value, bias: Value) -> Value:
    return input + bias.reshape((1, -1) + (1,) * (input.ndim - 2))


@formula("einsum")
def _einsum(equation: str, *operands: Any) -> Value:
    """Return a sum of products without traces: each operand has an index once."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    indices = left.split(",")
    listed = isinstance(operands[0], (tuple, list)) and len(operands) == 1
    values = operands[0] if listed else operands
    if not arrow or "." in equation or len(values) != len(indices):
        raise NoFormulaError
    if any(len({*one}) != len(one) for one in [*indices, result]):
        raise NoFormulaError
    total, known = values[0], indices[0]
    for value, one in zip(values[1:], indices[1:]):
        every = known + "".join(i for i in one if i not in known)
        later = "".join(indices[indices.index(one) + 1 :]) + result
        total = _spread_over(total, known, every) * _spread_over(value, one, every)
        total, known = _summed(total, every, later)
    total, known = _summed(total, known, result)
    return total.transpose([known.index(i) for i in result])


def _spread_over(value: Value, own: str, every: str) -> Value:
    """Return a value with an axis for every index."""
    order = [own.index(i) for i in every if i in own]
    lengths = iter([value.shape[i] for i in order])
    return value.transpose(order).reshape([next(lengths) if i in own else 1 for i in every])


def _summed(value: Value, own: str, needed: str) -> tuple[Value, str]:
    """Return a value summed over the indices that are not needed, and those that are left."""
    over = tuple(i for i, index in enumerate(own) if index not in needed)
    return (value.sum(over) if over else value), "".join(i for i in own if i in needed)


# --- what a kernel is moved over -----------------------------------------------------------------


@dataclass(frozen=True)
class _Window:
    """How a kernel is moved over an image.

    Attributes:
        steps: axis by axis, from place to place.
        widths: of the zeros before and behind, axis by axis.
        gaps: from element to element of the kernel, axis by axis.
    """

    steps: tuple[int, ...]
    widths: tuple[int, ...]
    gaps: tuple[int, ...]
    groups: int = 1


def _window(p: Any, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> _Window:
    """Return how a primitive moves its kernel over an image of some sizes."""
    axes = len(kernel)
    if str(p.data_format) not in ("0", "NCHW" if axes == 2 else "NCDHW") or p.mode != 1:
        raise NoFormulaError
    found = [numbers(a)[-axes:] for a in (p.stride, p.dilation)]
    steps, gaps = (one * axes if len(one) == 1 else one for one in found)
    mode, widths = str(p.pad_mode).lower(), tuple[int, ...]()
    if mode in ("valid", "2"):
        widths = (0,) * (2 * axes)
    elif mode not in ("same", "1"):
        widths = numbers(p.pad)
    else:
        for size, n, step, gap in zip(sizes, kernel, steps, gaps):
            whole = max(0, (-(-size // step) - 1) * step + (n - 1) * gap + 1 - size)
            widths += (whole // 2, whole - whole // 2)
    return _Window(steps, widths, gaps, int(p.group))


def _patches(image: Value, kernel: tuple[int, ...], window: _Window) -> Value:
    """Return what a kernel covers: [batch, channel, its places by axis, places in it by axis]."""
    axes, covered = len(kernel), []
    sizes = zip(image.shape[2:], kernel, window.steps, window.gaps)
    for axis, (size, n, step, gap) in enumerate(sizes):
        places = np.arange((size - (n - 1) * gap - 1) // step + 1) * step
        shape, inside = [1] * (2 * axes), [1] * (2 * axes)
        shape[axis], inside[axes + axis] = len(places), n
        at = places.reshape(shape) + (np.arange(n) * gap).reshape(inside)
        covered.append(image.tape.value(at))
    return image.index((slice(None), slice(None), *covered))


def _two(value: Any) -> tuple[int, ...]:
    found = numbers(value)
    return found * 2 if len(found) == 1 else found


def _pooled(p: Any, input: Value) -> Value:
    if str(p.data_format) not in ("NCHW", "0") or str(p.pad_mode).lower() not in ("valid", "2"):
        raise NoFormulaError
    window = _Window(_two(numbers(p.strides)[-2:]), (), (1, 1))
    return _patches(input, _two(p.kernel_size)[-2:], window)


@primitive("AvgPool")
def _avg_pool(p: Any, input: Floats) -> Value:
    return _pooled(p, input).mean((-2, -1))


@primitive("MaxPool")
def _max_pool(p: Any, input: Floats) -> Value:
    return _pooled(p, input).extreme(np.max, (-2, -1))


def _convolved(x: Value, w: Value, bias: Value | None, window: _Window) -> Value:
    """Return a convolution in as many dimensions as the weight has."""
    axes, widths = w.ndim - 2, window.widths
    if any(widths):
        around = [(widths[2 * i], widths[2 * i + 1]) for i in range(axes)]
        x = x.pad(((0, 0), (0, 0), *around))
    places, inside = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
    patches = _patches(x, w.shape[2:], window).transpose((0, *places, 1, *inside))
    channels, outputs = x.shape[1] // window.groups, w.shape[0] // window.groups
    parts = []
    for i in range(window.groups):
        of_group = patches.part(axes + 1, slice(i * channels, (i + 1) * channels))
        flat = of_group.reshape((*of_group.shape[: axes + 1], math.prod(w.shape[1:])))
        kernels = w.part(0, slice(i * outputs, (i + 1) * outputs)).reshape((outputs, -1))
        parts.append(flat @ kernels.swap())
    product = parts[0] if len(parts) == 1 else concatenate(parts, -1)
    if bias is not None:
        product = product + bias
    return product.transpose((0, axes + 1, *range(1, axes + 1)))


def _spread(x: Value, axis: int, step: int) -> Value:
    """Return an image with zeros between its elements along an axis."""
    if step == 1:
        return x
    size = x.shape[axis]
    apart = x.reshape((*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    around = [(0, 0)] * apart.ndim
    around[axis + 1] = (0, step - 1)
    wide = apart.pad(around).reshape((*x.shape[:axis], size * step, *x.shape[axis + 1 :]))
    return wide.part(axis, slice(0, (size - 1) * step + 1))


@formula("conv2d")
def _conv2d(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    *,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    if isinstance(padding, str) or len(numbers(padding)) > 2:
        raise NoFormulaError
    above, left = _two(padding)
    if input.tape.kind == "Functional" and (above or left):
        raise NoFormulaError  # ops.conv2d pads by its pad_mode
    window = _Window(_two(stride), (above, above, left, left), _two(dilation), groups)
    return _convolved(input, weight, bias, window)


@primitive("Conv2D Conv3D")
def _convolution(p: Any, input: Value, weight: Value) -> Value:
    return _convolved(input, weight, None, _window(p, input.shape[2:], weight.shape[2:]))


@primitive("Conv2DTranspose Conv2DBackpropInput")
def _conv2d_transpose(p: Any, out: Value, weight: Value, shape: Ints) -> Value:
    """Return the gradient of a convolution by its input: the image is spread, then convolved.

    Args:
        weight: [channels of `out`, channels of the result, …].
        shape: of the result.
    """
    x, w, sizes, axes = out, weight, shape[-2:], weight.ndim - 2
    window = _window(p, sizes, w.shape[2:])
    for axis, step in enumerate(window.steps):
        x = _spread(x, axis + 2, step)
    widths: list[int] = []
    for axis in range(axes):
        reach = (w.shape[axis + 2] - 1) * window.gaps[axis]
        first = reach - window.widths[2 * axis]
        last = sizes[axis] + reach - first - x.shape[axis + 2]
        x = x.part(axis + 2, slice(max(0, -first), x.shape[axis + 2] - max(0, -last)))
        widths += [max(0, first), max(0, last)]
    w = w.flip(tuple(range(2, 2 + axes)))
    outputs, size = w.shape[0] // window.groups, w.shape[1]
    w = w.reshape((window.groups, outputs, *w.shape[1:])).swap(1, 2)
    w = w.reshape((window.groups * size, outputs, *w.shape[3:]))
    plain = _Window((1,) * axes, tuple(widths), window.gaps, window.groups)
    return _convolved(x, w, None, plain)
