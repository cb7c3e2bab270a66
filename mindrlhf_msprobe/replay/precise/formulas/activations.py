"""Activations, and gates made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import (
    formula,
    number,
    primitive,
    with_attribute,
)
from mindrlhf_msprobe.replay.precise.values import Value

_SELU, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


@formula("relu")
def _relu(b: Basic, input: Any, inplace: bool = False) -> Value:
    return b.bent(
        lambda a: np.maximum(a, 0), input, lambda a: 1.0 * (a > 0), lambda a: 1.0 * (a >= 0)
    )


@formula("silu", "swish")
def _silu(b: Basic, input: Any, inplace: bool = False) -> Value:
    return b.multiply(input, b.sigmoid(input))


@formula("gelu")
def _gelu(b: Basic, input: Any, approximate: str = "none") -> Value:
    if approximate == "tanh":
        cubic = b.multiply(0.044715, b.multiply(input, b.multiply(input, input)))
        inner = b.multiply(math.sqrt(2 / math.pi), b.add(input, cubic))
        return b.multiply(b.multiply(0.5, input), b.add(1.0, b.tanh(inner)))
    inner = b.add(1.0, b.erf(b.multiply(input, math.sqrt(0.5))))
    return b.multiply(b.multiply(0.5, input), inner)


@formula("fast_gelu")
def _fast_gelu(b: Basic, input: Any) -> Value:
    away = b.elementwise(np.abs, input, lambda a, out: b.compare(np.sign, a), rounds=False)
    factor = b.exp(b.multiply(0.851, b.subtract(input, away)))
    return b.multiply(b.divide(input, b.add(1.0, b.exp(b.multiply(-1.702, away)))), factor)


@formula("softplus")
def _softplus(b: Basic, input: Any, beta: Any = 1, threshold: Any = 20) -> Value:
    beta = float(number(beta))
    scaled = b.multiply(input, beta)
    linear = b.compare(lambda a: a > number(threshold), scaled)
    return b.where(linear, input, b.divide(b.softplus(scaled), beta))


@formula("logsigmoid")
def _logsigmoid(b: Basic, input: Any) -> Value:
    return b.negative(b.softplus(b.negative(input)))


def _below(b: Basic, name: str, input: Any, slope: float) -> Value:
    """Return the elements, those below 0 times a slope."""

    def pull(g: Value, out: Value, a: Value) -> Any:
        ways = [lambda a: np.where(a > 0, 1.0, slope), lambda a: np.where(a >= 0, 1.0, slope)]
        return (b.multiply(g, b.share(name, ways, (a,))),)

    return b.tape.apply(lambda a: np.where(a > 0, a, slope * a), [b.floating(input)], pull)


@formula("leaky_relu")
def _leaky_relu(
    b: Basic, input: Any, slope: Any = None, inplace: Any = False, **named: Any
) -> Value:
    slope = named.get("alpha", named.get("negative_slope", slope))
    if slope is None:
        slope = 0.2 if b.kind == "Functional" else 0.01
    return _below(b, b.name, input, float(number(slope)))


@formula("prelu")
def _prelu(b: Basic, input: Any, weight: Any) -> Value:
    value, weight = b.of(input), b.of(weight)
    if value.ndim > 1:
        weight = b.reshape(weight, (-1, *[1] * (value.ndim - 2)))
    return b.where(b.compare(lambda a: a > 0, value), value, b.multiply(value, weight))


def _exponential(b: Basic, input: Any, alpha: float) -> Value:
    """Return alpha·(e^x - 1) where x is below 0, else x."""
    small = b.where(b.compare(lambda a: a > 0, input), 0.0, input)
    return b.where(b.compare(lambda a: a > 0, input), input, b.multiply(alpha, b.expm1(small)))


@formula("elu")
def _elu(b: Basic, input: Any, alpha: Any = 1.0, inplace: Any = False) -> Value:
    return _exponential(b, input, float(number(alpha)))


@formula("celu")
def _celu(b: Basic, input: Any, alpha: Any = 1.0) -> Value:
    alpha = float(number(alpha))
    return b.multiply(alpha, _exponential(b, b.divide(input, alpha), 1.0))


@formula("selu")
def _selu(b: Basic, input: Any) -> Value:
    return b.multiply(_SELU, _exponential(b, input, _SELU_ALPHA))


@formula("mish")
def _mish(b: Basic, input: Any) -> Value:
    return b.multiply(input, b.tanh(b.softplus(input)))


@formula("softsign")
def _softsign(b: Basic, input: Any) -> Value:
    size = b.elementwise(np.abs, input, lambda a, out: b.compare(np.sign, a), rounds=False)
    return b.divide(input, b.add(1.0, size))


@formula("tanhshrink")
def _tanhshrink(b: Basic, input: Any) -> Value:
    return b.subtract(input, b.tanh(input))


def _clamped(b: Basic, input: Any, least: float, most: float) -> Value:
    def outside(a: np.ndarray) -> np.ndarray:
        return 1.0 * ((a > least) & (a < most))

    def inside(a: np.ndarray) -> np.ndarray:
        return 1.0 * ((a >= least) & (a <= most))

    return b.bent(lambda a: np.clip(a, least, most), input, inside, outside)


@formula("hardtanh")
def _hardtanh(
    b: Basic, input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: Any = False
) -> Value:
    return _clamped(b, input, float(number(min_val)), float(number(max_val)))


@formula("relu6")
def _relu6(b: Basic, input: Any, inplace: Any = False) -> Value:
    return _clamped(b, input, 0.0, 6.0)


@formula("hardsigmoid")
def _hardsigmoid(b: Basic, input: Any) -> Value:
    return b.divide(_clamped(b, b.add(input, 3.0), 0.0, 6.0), 6.0)


@formula("hardswish")
def _hardswish(b: Basic, input: Any) -> Value:
    return b.multiply(input, _hardsigmoid(b, input))


@formula("softshrink")
def _softshrink(b: Basic, input: Any, lambd: Any = 0.5) -> Value:
    size = float(number(lambd))
    inner = _clamped(b, input, -size, size)
    return b.subtract(input, inner)


@formula("hardshrink")
def _hardshrink(b: Basic, input: Any, lambd: Any = 0.5) -> Value:
    size = float(number(lambd))
    return b.where(b.compare(lambda a: np.abs(a) > size, input), input, 0.0)


@formula("threshold")
def _threshold(b: Basic, input: Any, threshold: Any, value: Any, inplace: Any = False) -> Value:
    least = number(threshold)
    return b.where(b.compare(lambda a: a > least, input), input, value)


def _halves(b: Basic, input: Any, axis: Any) -> tuple[Value, Value]:
    value = b.floating(input)
    along = int(number(axis)) % value.ndim
    half = value.shape[along] // 2
    key = (slice(None),) * along
    return b.index(value, (*key, slice(0, half))), b.index(value, (*key, slice(half, None)))


@formula("glu")
def _glu(b: Basic, input: Any, dim: Any = -1) -> Value:
    left, right = _halves(b, input, dim)
    return b.multiply(left, b.sigmoid(right))


@formula("swiglu")
def _swiglu(b: Basic, input: Any, dim: Any = -1) -> Value:
    left, right = _halves(b, input, dim)
    return b.multiply(_silu(b, left), right)


@primitive("GeLU")
def _gelu_tanh(b: Basic, settings: Any, input: Any) -> Value:
    return _gelu(b, input, "tanh")


for _name, _function, _attribute in (
    ("LeakyReLU", _leaky_relu, "alpha"),
    ("Elu", _elu, "alpha"),
    ("CeLU", _celu, "alpha"),
    ("SoftShrink", _softshrink, "lambd"),
    ("HShrink", _hardshrink, "lambd"),
):
    primitive(_name)(with_attribute(_function, _attribute))
