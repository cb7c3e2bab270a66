"""Softmax and what normalises by means, variances and norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas.table import (
    Floats,
    Ints,
    OtherFormError,
    formula,
    number,
    numbers,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value


def softmax(value: Value, axis: int) -> Value:
    """Return the softmax over an axis."""
    powers = (value - value.extreme(np.max, axis, True).detached()).exp()
    return powers / powers.sum(axis, True)


def log_softmax(value: Value, axis: int) -> Value:
    """Return the logarithm of the softmax over an axis."""
    with value.tape.without_gradients():
        away = value - value.extreme(np.max, axis, True)
        out = away - away.exp().sum(axis, True).log()

    def pull(g: Value, out: Value, a: Value) -> Any:  # kernels take powers of what they returned
        return (g - out.exp() * g.sum(axis, True),)

    return value.tape.made_of(out, (value,), pull)


def _register_softmax(name: str, classes: str, computed: Any) -> None:
    """Register a softmax; that of mint has an axis that depends on the number of axes."""

    @formula(name)
    def function(input: Floats, dim: int | None = None, dtype: Any = None) -> Value:
        if dim is None and input.tape.kind == "MintFunctional":
            raise OtherFormError
        result: Value = computed(input, -1 if dim is None else dim)
        return result

    @primitive(classes)
    def of_class(p: Any, input: Floats, *axis: Any) -> Value:
        result: Value = computed(input, numbers(axis[0] if axis else p.axis)[0])
        return result


_register_softmax("softmax", "Softmax SoftmaxExt", softmax)
_register_softmax("log_softmax", "LogSoftmax LogSoftmaxExt", log_softmax)
_register_softmax("softmin", "", lambda value, axis: softmax(-value, axis))


def _normalised(value: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value, Value]:
    """Return a value less its mean over its deviation, the mean and the variance."""
    mean = value.mean(axes, True)
    away = value - mean
    variance = away.square().mean(axes, True)
    return away / (variance + eps).sqrt(), mean, variance


def _scaled(value: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        value = value * weight
    return value if bias is None else value + bias


@formula("layer_norm")
def _layer_norm(
    input: Floats,
    normalized_shape: Ints,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    return _scaled(_normalised(input, axes, eps)[0], weight, bias)


@primitive("LayerNorm")
def _layer_norm_primitive(p: Any, input: Floats, weight: Value, bias: Value) -> Any:
    axes = tuple(range(p.begin_norm_axis % input.ndim, input.ndim))
    result, mean, variance = _normalised(input, axes, float(p.epsilon))
    return _scaled(result, weight, bias), mean.detached(), variance.detached()


@formula("group_norm", "GroupNorm")
def _group_norm(
    input: Floats,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Any:
    along = (-1,) + (1,) * (input.ndim - 2)
    parts = input.reshape((input.shape[0], num_groups, -1))
    result = _normalised(parts, (2,), eps)[0].reshape(input.shape)
    weight = None if weight is None else weight.reshape(along)
    bias = None if bias is None else bias.reshape(along)
    result = _scaled(result, weight, bias)
    return (result, None, None) if input.tape.kind == "Primitive" else result


@formula("rms_norm", "RmsNorm", "epsilon")
def _rms_norm(input: Floats, gamma: Value, epsilon: float = 1e-6) -> Any:
    axes = tuple(range(input.ndim - gamma.ndim, input.ndim))
    over = 1.0 / (input.square().mean(axes, True) + epsilon).sqrt()
    return input * over * gamma, over.detached()


@formula("normalize")
def _normalize(input: Value, p: Any = 2.0, dim: Any = 1, eps: float = 1e-12) -> Value:
    if number(p) != 2:
        raise OtherFormError
    norm = input.floats().square().sum(dim, True).sqrt()
    return input / norm.maximum(eps)


@formula("batch_norm")
def _batch_norm(
    input: Floats,
    running_mean: Value | None,
    running_var: Value | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Value:
    axes = tuple(i for i in range(input.ndim) if i != 1)
    shape = tuple(-1 if i == 1 else 1 for i in range(input.ndim))

    def along(operand: Value | None) -> Any:
        return None if operand is None else operand.reshape(shape)

    if training:
        result = _normalised(input, axes, eps)[0]
    else:
        deviation = (along(running_var) + eps).sqrt()
        result = (input - along(running_mean)) / deviation
    return _scaled(result, along(weight), along(bias))


@primitive("BatchNorm")
def _batch_norm_primitive(
    p: Any, input: Floats, weight: Value, bias: Value, mean: Value, variance: Value
) -> Any:
    if p.data_format not in (0, "NCHW"):
        raise OtherFormError
    eps = float(p.epsilon)
    out = _batch_norm(input, mean, variance, weight, bias, p.is_training, eps=eps)
    return out, None, None, None, None  # what it keeps for its gradient differs by device
