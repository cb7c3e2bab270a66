"""Arithmetic, comparisons, functions of single elements; activations, and gates of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas import (
    Floats,
    NoFormulaError,
    Values,
    formula,
    number,
    of_one,
    of_two,
)
from mindrlhf_msprobe.replay.precise.values import Operand, Value, where


@formula("add __add__ __radd__", "Add AddExt")
def _add(input: Value, other: Operand, alpha: Any = 1) -> Value:
    return input + (other if alpha == 1 else input.tape.of(other) * number(alpha))


@formula("sub subtract __sub__", "Sub SubExt")
def _sub(input: Value, other: Operand, alpha: Any = 1) -> Value:
    return input - (other if alpha == 1 else input.tape.of(other) * number(alpha))


_Function = Callable[[Value], Value]
_Scale = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _smooth(
    function: Callable[[np.ndarray], np.ndarray],
    slope: Callable[[Value], Value],
    scale: _Scale | None = None,
) -> _Function:
    """Return a function of single elements, given that of numpy and its derivative."""
    return lambda a: a.elementwise(function, lambda a, out: slope(a), scale=scale)


def _by_argument(out: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return a scale for periodic functions, whose argument is reduced in its own precision."""
    return np.abs(out) + 0.25 * np.abs(a)


def _of_powers(out: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.abs(out) * (4 + 0.25 * np.abs(a))


def _of_angle(out: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.abs(out) + 1


def _over_root(a: Value) -> Value:
    return 1.0 / (1.0 - a.square()).sqrt()


_sin: _Function = _smooth(np.sin, lambda a: _cos(a), _by_argument)
_cos: _Function = _smooth(np.cos, lambda a: -_sin(a), _by_argument)
_sinh: _Function = _smooth(np.sinh, lambda a: _cosh(a), _of_powers)
_cosh: _Function = _smooth(np.cosh, lambda a: _sinh(a), _of_powers)
_atan = _smooth(np.arctan, lambda a: 1.0 / (1.0 + a.square()), lambda out, a: 2 * np.abs(out))


def _remainder(a: Value, b: Operand) -> Value:
    if not (a.floating or a.tape.of(b).floating):
        return a.plain(np.mod, b)
    return a - a.plain(np.floor_divide, b) * b  # MindSpore rounds the product


for _names, _classes, _operation in (
    ("mul multiply __mul__ __rmul__", "Mul Muls", lambda a, b: a * b),
    ("pow __pow__ float_power", "Pow", lambda a, b: a**b),
    ("matmul bmm mm dot mv __matmul__", "", lambda a, b: a @ b),
    ("maximum", "Maximum", lambda a, b: a.maximum(b)),
    ("minimum", "Minimum", lambda a, b: a.minimum(b)),
    ("__rsub__", "", lambda a, b: b - a),
    ("__rtruediv__", "", lambda a, b: b / a),
    ("__rpow__", "", lambda a, b: b**a),
    ("__rmatmul__", "", lambda a, b: b @ a),
    ("logaddexp", "", lambda a, b: b + (a - b).softplus()),
    ("fmod", "Mod", lambda a, b: a - a.plain(lambda a, d: np.trunc(a / d), b) * b),
    ("remainder __mod__ floor_mod", "FloorMod", _remainder),
    ("xlogy", "Xlogy", lambda a, b: a * where(a.plain(lambda a: a == 0), 1.0, b).log()),
    ("type_as view_as_dtype", "", lambda a, b: a.cast(a.tape.of(b).exact.dtype)),
    ("floor_divide floor_div __floordiv__", "FloorDiv", lambda a, b: a.plain(np.floor_divide, b)),
    ("eq equal __eq__", "Equal", lambda a, b: a.plain(np.equal, b)),
    ("ne not_equal __ne__", "NotEqual", lambda a, b: a.plain(np.not_equal, b)),
    ("gt greater __gt__", "Greater", lambda a, b: a.plain(np.greater, b)),
    ("ge greater_equal __ge__", "GreaterEqual", lambda a, b: a.plain(np.greater_equal, b)),
    ("lt less __lt__", "Less", lambda a, b: a.plain(np.less, b)),
    ("le less_equal __le__", "LessEqual", lambda a, b: a.plain(np.less_equal, b)),
    ("logical_and", "LogicalAnd", lambda a, b: a.plain(np.logical_and, b)),
    ("logical_or", "LogicalOr", lambda a, b: a.plain(np.logical_or, b)),
    ("logical_xor", "", lambda a, b: a.plain(np.logical_xor, b)),
    ("bitwise_and __and__", "", lambda a, b: a.plain(np.bitwise_and, b)),
    ("bitwise_or __or__", "", lambda a, b: a.plain(np.bitwise_or, b)),
    ("bitwise_xor __xor__", "", lambda a, b: a.plain(np.bitwise_xor, b)),
):
    of_two(_names, _classes, _operation)


for _names, _classes, _function in (
    ("exp", "Exp", Value.exp),
    ("log", "Log", Value.log),
    ("sqrt", "Sqrt", Value.sqrt),
    ("square", "Square", Value.square),
    ("expm1", "Expm1", Value.expm1),
    ("tanh", "Tanh", Value.tanh),
    ("sigmoid", "Sigmoid", Value.sigmoid),
    ("erf", "Erf", Value.erf),
    ("abs absolute __abs__", "Abs", Value.absolute),
    ("neg negative __neg__", "Neg", lambda a: -a),
    ("positive __pos__", "", lambda a: a),
    ("float double", "", Value.floats),
    ("stop_gradient detach", "", Value.detached),
    ("rsqrt", "Rsqrt", lambda a: 1.0 / a.sqrt()),
    ("reciprocal inv", "Reciprocal", lambda a: 1.0 / a),
    ("exp2", "", lambda a: (a * math.log(2)).exp()),
    ("log1p", "Log1p", _smooth(np.log1p, lambda a: 1.0 / (a + 1.0))),
    ("log2", "", lambda a: a.log() / math.log(2)),
    ("log10", "", lambda a: a.log() / math.log(10)),
    ("sin", "Sin", _sin),
    ("cos", "Cos", _cos),
    ("tan", "Tan", lambda a: _sin(a) / _cos(a)),
    ("sinh", "Sinh", _sinh),
    ("cosh", "Cosh", _cosh),
    ("asin arcsin", "Asin", _smooth(np.arcsin, _over_root, _of_angle)),
    ("acos arccos", "ACos", _smooth(np.arccos, lambda a: -_over_root(a), _of_angle)),
    ("atan arctan", "Atan", _atan),
    ("erfc", "Erfc", lambda a: 1.0 - a.erf()),
    ("frac", "", lambda a: a - a.plain(np.trunc)),
    ("floor", "Floor", lambda a: a.plain(np.floor)),
    ("ceil", "Ceil", lambda a: a.plain(np.ceil)),
    ("trunc", "Trunc", lambda a: a.plain(np.trunc)),
    ("sign", "Sign", lambda a: a.plain(np.sign)),
    ("isnan", "IsNan", lambda a: a.plain(np.isnan)),
    ("isinf", "IsInf", lambda a: a.plain(np.isinf)),
    ("isfinite", "IsFinite", lambda a: a.plain(np.isfinite)),
    ("logical_not", "LogicalNot", lambda a: a.plain(np.logical_not)),
    ("bitwise_not __invert__", "", lambda a: a.plain(np.invert)),
    ("half bfloat16", "", lambda a: a.rounded_to("bfloat16")),
    ("int", "", lambda a: a.cast(np.dtype(np.int32))),
    ("long", "", lambda a: a.cast(np.dtype(np.int64))),
    ("bool", "", lambda a: a.cast(np.dtype(bool))),
):
    of_one(_names, _classes, _function)


@formula("round", "Round")
def _round(input: Value, decimals: int = 0) -> Value:
    return input.plain(lambda a: np.round(a, decimals))


@formula("div divide true_divide __truediv__", "Div RealDiv")
def _div(input: Value, other: Value, rounding_mode: Any = None) -> Value:
    def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        quotient = np.trunc(a / b)
        return quotient if "f" in (a.dtype.kind, b.dtype.kind) else quotient.astype(a.dtype)

    if rounding_mode is not None:
        return input.plain(np.floor_divide if rounding_mode == "floor" else truncated, other)
    return input / other


@formula("logit")
def _logit(input: Value, eps: Any = None) -> Value:
    """log(x / (1 - x)); 1 - eps, at which x ends, has few bits left in its own precision."""
    if eps is not None and eps >= 0:
        input = input.maximum(eps).minimum(1.0 - input.tape.of(eps))
    return (input / (1.0 - input)).log()


@formula("clamp clip clip_by_value", "ClampTensor ClampScalar")
def _clamp(input: Value, min: Any = None, max: Any = None, **named: Any) -> Value:
    min, max = named.get("clip_value_min", min), named.get("clip_value_max", max)
    result = input if min is None else input.maximum(min)
    return result if max is None else result.minimum(max)


@formula("lerp")
def _lerp(input: Value, end: Value, weight: Operand) -> Value:
    return input + weight * (end - input)


@formula("addcmul")
def _addcmul(input: Value, tensor1: Value, tensor2: Value, value: Operand = 1) -> Value:
    return input + value * (tensor1 * tensor2)


@formula("addcdiv")
def _addcdiv(input: Value, tensor1: Value, tensor2: Value, value: Operand = 1) -> Value:
    return input + value * (tensor1 / tensor2)


@formula("addn accumulate_n", "AddN")
def _addn(input: Values) -> Value:
    total = input[0]
    for one in input[1:]:
        total = total + one
    return total


@formula("isclose")
def _isclose(
    input: Value, other: Value, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False
) -> Value:
    return input.plain(
        lambda x, y: np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan), other
    )


formula("where")(where)


@formula("select", "Select")
def _select(condition: Value, input: Operand, other: Operand) -> Value:
    if condition.exact.dtype != bool:  # (input, dim, index)
        return condition.part(int(number(input)), int(number(other)))
    return where(condition, input, other)


@formula("masked_fill", "MaskedFill")
def _masked_fill(input: Value, mask: Value, value: Operand) -> Value:
    return where(mask, value, input)


@formula("cast to astype type", "Cast")
def _cast(input: Value, dtype: Any, *_: Any, **__: Any) -> Value:
    if isinstance(dtype, Value):
        raise NoFormulaError
    return input.rounded_to(dtype)


@formula("identity clone copy contiguous depend deepcopy", "Identity Depend")
def _identity(input: Value, *_: Any, **__: Any) -> Value:
    return input.move(lambda x: x, lambda g, a: g)


@formula("nan_to_num")
def _nan_to_num(input: Value, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Value:
    if posinf is None or neginf is None:
        raise NoFormulaError
    known = input.plain(np.isfinite)
    other = input.plain(lambda a: np.nan_to_num(a, nan=nan or 0.0, posinf=posinf, neginf=neginf))
    return where(known, input, other.detached())


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


@formula("elu", "Elu", "alpha")
def _elu(input: Value, alpha: float = 1.0, inplace: Any = False) -> Value:
    """Return alpha·(e^x - 1) where x is below 0, else x."""
    small = where(input.plain(lambda a: a > 0), 0.0, input)
    return where(input.plain(lambda a: a > 0), input, alpha * small.expm1())


@formula("celu", "CeLU", "alpha")
def _celu(input: Value, alpha: float = 1.0) -> Value:
    return alpha * _elu(input / alpha)


@formula("hardtanh")
def _clamped(
    input: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: Any = False
) -> Value:
    return input.bent(
        lambda a: np.clip(a, min_val, max_val),
        lambda a: 1.0 * ((a >= min_val) & (a <= max_val)),
        lambda a: 1.0 * ((a > min_val) & (a < max_val)),
    )


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
    ("", "GeLU", lambda a: _gelu(a, "tanh")),
    ("fast_gelu", "FastGeLU", _fast_gelu),
    ("hardsigmoid", "HSigmoid", _hardsigmoid),
    ("hardswish", "HSwish", lambda a: a * _hardsigmoid(a)),
    ("logsigmoid", "", lambda a: -(-a).softplus()),
    ("mish", "Mish", lambda a: a * a.softplus().tanh()),
    ("selu", "SeLU", lambda a: _SELU * _elu(a, _SELU_ALPHA)),
    ("softsign", "Softsign", lambda a: a / (1.0 + _size(a))),
    ("tanhshrink", "", lambda a: a - a.tanh()),
):
    of_one(_names, _classes, _function)
