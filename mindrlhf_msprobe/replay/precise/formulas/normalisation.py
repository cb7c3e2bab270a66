"""Softmax and what normalises by means, variances and norms."""

from __future__ import annotations

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


def softmax(b: Basic, input: Any, axis: int) -> Value:
    """Return the softmax over an axis."""
    value = b.floating(input)
    top = b.detached(b.extreme(np.max, value, axis, True))
    powers = b.exp(b.subtract(value, top))
    return b.divide(powers, b.sum(powers, axis, True))


def log_softmax(b: Basic, input: Any, axis: int) -> Value:
    """Return the logarithm of the softmax over an axis."""
    value = b.floating(input)
    with b.tape.without_gradients():
        away = b.subtract(value, b.extreme(np.max, value, axis, True))
        out = b.subtract(away, b.log(b.sum(b.exp(away), axis, True)))

    def pull(g: Value, out: Value, a: Value) -> Any:  # kernels take powers of what they returned
        return (b.subtract(g, b.multiply(b.exp(out), b.sum(g, axis, True))),)

    return b.tape.made_of(out, (value,), pull)


def _axis(b: Basic, dim: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Return the axis of a softmax; mint's that is not given depends on the number of axes."""
    axis = named.get("dim", dim[0] if dim else (-1 if b.kind != "MintFunctional" else None))
    if axis is None:
        raise OtherFormError
    return int(number(axis))


@formula("softmin")
def _softmin(b: Basic, input: Any, *dim: Any, dtype: Any = None, **named: Any) -> Value:
    return softmax(b, b.negative(input), _axis(b, dim, named))


@formula("softmax")
def _softmax(b: Basic, input: Any, *dim: Any, dtype: Any = None, **named: Any) -> Value:
    return softmax(b, input, _axis(b, dim, named))


@formula("log_softmax")
def _log_softmax(b: Basic, input: Any, *dim: Any, dtype: Any = None, **named: Any) -> Value:
    return log_softmax(b, input, _axis(b, dim, named))


@primitive("Softmax", "SoftmaxExt")
def _softmax_primitive(b: Basic, p: Any, input: Any, *axis: Any) -> Value:
    return softmax(b, input, numbers(axis[0] if axis else p.axis)[0])


@primitive("LogSoftmax", "LogSoftmaxExt")
def _log_softmax_primitive(b: Basic, p: Any, input: Any, *axis: Any) -> Value:
    return log_softmax(b, input, numbers(axis[0] if axis else p.axis)[0])


def _normalised(b: Basic, value: Value, axes: tuple[int, ...], eps: Any) -> tuple[Value, ...]:
    """Return a value less its mean over its deviation, the mean and the variance."""
    mean = b.mean(value, axes, True)
    away = b.subtract(value, mean)
    variance = b.mean(b.square(away), axes, True)
    return b.divide(away, b.sqrt(b.add(variance, float(number(eps))))), mean, variance


def _scaled(b: Basic, value: Value, weight: Any, bias: Any) -> Value:
    if weight is not None:
        value = b.multiply(value, weight)
    return value if bias is None else b.add(value, bias)


@formula("layer_norm")
def _layer_norm(
    b: Basic,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-5,
) -> Value:
    value = b.floating(input)
    axes = tuple(range(value.ndim - len(numbers(normalized_shape)), value.ndim))
    return _scaled(b, _normalised(b, value, axes, eps)[0], weight, bias)


@primitive("LayerNorm")
def _layer_norm_primitive(b: Basic, p: Any, input: Any, weight: Any, bias: Any) -> Any:
    value = b.floating(input)
    axes = tuple(range(p.begin_norm_axis % value.ndim, value.ndim))
    result, mean, variance = _normalised(b, value, axes, p.epsilon)
    return _scaled(b, result, weight, bias), b.detached(mean), b.detached(variance)


@formula("group_norm")
def _group_norm(
    b: Basic, input: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> Any:
    value = b.floating(input)
    groups, along = int(number(num_groups)), (-1,) + (1,) * (value.ndim - 2)
    parts = b.reshape(value, (value.shape[0], groups, -1))
    result, _, _ = _normalised(b, parts, (2,), eps)
    result = b.reshape(result, value.shape)
    weight = None if weight is None else b.reshape(weight, along)
    bias = None if bias is None else b.reshape(bias, along)
    result = _scaled(b, result, weight, bias)
    if b.kind != "Primitive":
        return result
    return result, None, None


def _by_norm(b: Basic, input: Any, weight: Any, eps: Any) -> tuple[Value, Value]:
    value = b.floating(input)
    axes = tuple(range(value.ndim - b.of(weight).ndim, value.ndim))
    mean = b.add(b.mean(b.square(value), axes, True), float(number(eps)))
    over = b.divide(1.0, b.sqrt(mean))
    return b.multiply(b.multiply(value, over), weight), b.detached(over)


@formula("rms_norm")
def _rms_norm(b: Basic, input: Any, gamma: Any, epsilon: Any = 1e-6) -> Any:
    return _by_norm(b, input, gamma, epsilon)


@primitive("RmsNorm")
def _rms_norm_primitive(b: Basic, p: Any, input: Any, gamma: Any) -> Any:
    return _by_norm(b, input, gamma, p.epsilon)


@formula("normalize")
def _normalize(b: Basic, input: Any, p: Any = 2.0, dim: Any = 1, eps: Any = 1e-12) -> Value:
    if number(p) != 2:
        raise OtherFormError
    norm = b.sqrt(b.sum(b.square(b.floating(input)), dim, True))
    return b.divide(input, b.maximum(norm, float(number(eps))))


def _batch_norm_of(
    b: Basic,
    input: Any,
    mean: Any,
    variance: Any,
    weight: Any,
    bias: Any,
    training: Any,
    eps: Any,
) -> Value:
    value = b.floating(input)
    axes = tuple(i for i in range(value.ndim) if i != 1)
    shape = tuple(-1 if i == 1 else 1 for i in range(value.ndim))

    def along(operand: Any) -> Any:
        return None if operand is None else b.reshape(operand, shape)

    if training:
        result = _normalised(b, value, axes, eps)[0]
    else:
        deviation = b.sqrt(b.add(along(variance), float(number(eps))))
        result = b.divide(b.subtract(value, along(mean)), deviation)
    return _scaled(b, result, along(weight), along(bias))


@formula("batch_norm")
def _batch_norm(
    b: Basic,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Value:
    return _batch_norm_of(b, input, running_mean, running_var, weight, bias, training, eps)


@primitive("BatchNorm")
def _batch_norm_primitive(
    b: Basic, p: Any, input: Any, weight: Any, bias: Any, mean: Any, variance: Any
) -> Any:
    if p.data_format not in (0, "NCHW"):
        raise OtherFormError
    out = _batch_norm_of(b, input, mean, variance, weight, bias, p.is_training, p.epsilon)
    return out, None, None, None, None  # what it keeps for its gradient differs by device
