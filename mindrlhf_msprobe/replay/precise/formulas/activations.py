"""Activations, and gates made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas.table import (
    Floats,
    formula,
    number,
    of_one,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value, where

_SELU, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


@formula("relu", "ReLU")
def _relu(input: Value, inplace: bool = False) -> Value:
    return input.bent(lambda a: np.maximum(a, 0), lambda a: 1.0 * (a > 0), lambda a: 1.0 * (a >= 0))


@formula("silu swish", "SiLU")
def _silu(input: Value, inplace: bool = False) -> Value:
    return input * input.sigmoid()


@formula("gelu", "GeluExt")
def _gelu(input: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        cubic = 0.044715 * (input * (input * input))
        inner = math.sqrt(2 / math.pi) * (input + cubic)
        return (0.5 * input) * (1.0 + inner.tanh())
    inner = 1.0 + (input * math.sqrt(0.5)).erf()
    return (0.5 * input) * inner


@primitive("GeLU")
def _gelu_tanh(p: Any, input: Value) -> Value:
    return _gelu(input, "tanh")


@formula("softplus", "Softplus")
def _softplus(input: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = input * beta
    return where(scaled.plain(lambda a: a > threshold), input, scaled.softplus() / beta)


@formula("leaky_relu", "LeakyReLU", "alpha")
def _leaky_relu(input: Floats, slope: Any = None, inplace: Any = False, **named: Any) -> Value:
    slope = named.get("alpha", named.get("negative_slope", slope))
    if slope is None:
        slope = 0.2 if input.tape.kind == "Functional" else 0.01
    below = float(number(slope))
    return input.bent(
        lambda a: np.where(a > 0, a, below * a),
        lambda a: np.where(a > 0, 1.0, below),
        lambda a: np.where(a >= 0, 1.0, below),
        rounds=True,
    )


@formula("prelu", "PReLU")
def _prelu(input: Value, weight: Value) -> Value:
    if input.ndim > 1:
        weight = weight.reshape((-1, *[1] * (input.ndim - 2)))
    return where(input.plain(lambda a: a > 0), input, input * weight)


def _exponential(input: Value, alpha: float) -> Value:
    """Return alpha·(e^x - 1) where x is below 0, else x."""
    small = where(input.plain(lambda a: a > 0), 0.0, input)
    return where(input.plain(lambda a: a > 0), input, alpha * small.expm1())


@formula("elu", "Elu", "alpha")
def _elu(input: Value, alpha: float = 1.0, inplace: Any = False) -> Value:
    return _exponential(input, alpha)


@formula("celu", "CeLU", "alpha")
def _celu(input: Value, alpha: float = 1.0) -> Value:
    return alpha * _exponential(input / alpha, 1.0)


def _clamped(input: Value, least: float, most: float) -> Value:
    return input.bent(
        lambda a: np.clip(a, least, most),
        lambda a: 1.0 * ((a >= least) & (a <= most)),
        lambda a: 1.0 * ((a > least) & (a < most)),
    )


@formula("hardtanh")
def _hardtanh(
    input: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: Any = False
) -> Value:
    return _clamped(input, min_val, max_val)


@formula("relu6", "ReLU6")
def _relu6(input: Value, inplace: Any = False) -> Value:
    return _clamped(input, 0.0, 6.0)


@formula("softshrink", "SoftShrink", "lambd")
def _softshrink(input: Value, lambd: float = 0.5) -> Value:
    return input - _clamped(input, -lambd, lambd)


@formula("hardshrink", "HShrink", "lambd")
def _hardshrink(input: Value, lambd: float = 0.5) -> Value:
    return where(input.plain(lambda a: np.abs(a) > lambd), input, 0.0)


@formula("threshold")
def _threshold(input: Value, threshold: Any, value: Any, inplace: Any = False) -> Value:
    least = number(threshold)
    return where(input.plain(lambda a: a > least), input, value)


def _halves(value: Value, axis: int) -> tuple[Value, Value]:
    half = value.shape[axis] // 2
    return value.part(axis, slice(0, half)), value.part(axis, slice(half, None))


@formula("glu", "GLU")
def _glu(input: Floats, dim: int = -1) -> Value:
    left, right = _halves(input, dim)
    return left * right.sigmoid()


@formula("swiglu", "Swiglu")
def _swiglu(input: Floats, dim: int = -1) -> Value:
    left, right = _halves(input, dim)
    return _silu(left) * right


def _size(a: Value) -> Value:
    """Return the magnitude; its slope at 0 is 0."""
    return a.elementwise(np.abs, lambda a, out: a.plain(np.sign), rounds=False)


def _fast_gelu(a: Value) -> Value:
    size = _size(a)
    factor = (0.851 * (a - size)).exp()
    return a / (1.0 + (-1.702 * size).exp()) * factor


def _hardsigmoid(a: Value) -> Value:
    return _clamped(a + 3.0, 0.0, 6.0) / 6.0


for _names, _classes, _function in (
    ("fast_gelu", "FastGeLU", _fast_gelu),
    ("hardsigmoid", "HSigmoid", _hardsigmoid),
    ("hardswish", "HSwish", lambda a: a * _hardsigmoid(a)),
    ("logsigmoid", "", lambda a: -(-a).softplus()),
    ("mish", "Mish", lambda a: a * a.softplus().tanh()),
    ("selu", "SeLU", lambda a: _SELU * _exponential(a, _SELU_ALPHA)),
    ("softsign", "Softsign", lambda a: a / (1.0 + _size(a))),
    ("tanhshrink", "", lambda a: a - a.tanh()),
):
    of_one(_names, _classes, _function)
