"""Arithmetic, comparisons and functions of single elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    as_function,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value


@formula("add", "__add__", "__radd__")
def _add(b: Basic, input: Any, other: Any, alpha: Any = 1) -> Value:
    return b.add(input, other if alpha == 1 else b.multiply(other, number(alpha)))


@formula("sub", "subtract", "__sub__")
def _sub(b: Basic, input: Any, other: Any, alpha: Any = 1) -> Value:
    return b.subtract(input, other if alpha == 1 else b.multiply(other, number(alpha)))


def _of_two(function: Any, *, swapped: bool = False) -> Any:
    """Return the formula of an operation on two operands, or on them in the other order."""

    def computed(b: Basic, input: Any, other: Any) -> Value:
        return function(b, other, input) if swapped else function(b, input, other)

    return computed


formula("mul", "multiply", "__mul__", "__rmul__")(_of_two(Basic.multiply))
formula("pow", "__pow__", "float_power")(_of_two(Basic.power))
formula("maximum")(_of_two(Basic.maximum))
formula("minimum")(_of_two(Basic.minimum))
formula("matmul", "bmm", "mm", "dot", "mv", "__matmul__")(_of_two(Basic.matmul))
formula("__rsub__")(_of_two(Basic.subtract, swapped=True))
formula("__rtruediv__")(_of_two(Basic.divide, swapped=True))
formula("__rpow__")(_of_two(Basic.power, swapped=True))
formula("__rmatmul__")(_of_two(Basic.matmul, swapped=True))


@formula("div", "divide", "true_divide", "__truediv__")
def _div(b: Basic, input: Any, other: Any, rounding_mode: Any = None) -> Value:
    if rounding_mode is not None:
        rounded = np.floor_divide if rounding_mode == "floor" else _truncated
        return b.compare(rounded, input, other)
    return b.divide(input, other)


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = np.trunc(a / b)
    return quotient if a.dtype.kind == "f" or b.dtype.kind == "f" else quotient.astype(a.dtype)


@formula("remainder", "__mod__", "floor_mod")
def _remainder(b: Basic, input: Any, other: Any) -> Value:
    if not (b.of(input).floating or b.of(other).floating):
        return b.compare(np.mod, input, other)
    whole = b.compare(np.floor_divide, input, other)
    return b.subtract(input, b.multiply(whole, other))  # MindSpore rounds the product


@formula("logit")
def _logit(b: Basic, input: Any, eps: Any = None) -> Value:
    """log(x / (1 - x)); 1 - eps, at which x ends, has few bits left in its own precision."""
    if eps is not None and eps >= 0:
        input = b.minimum(b.maximum(input, eps), b.subtract(1.0, eps))
    return b.log(b.divide(input, b.subtract(1.0, input)))


@formula("clamp", "clip", "clip_by_value")
def _clamp(b: Basic, input: Any, min: Any = None, max: Any = None, **named: Any) -> Value:
    min, max = named.get("clip_value_min", min), named.get("clip_value_max", max)
    result = b.of(input)
    if min is not None:
        result = b.maximum(result, min)
    return b.minimum(result, max) if max is not None else result


@formula("lerp")
def _lerp(b: Basic, input: Any, end: Any, weight: Any) -> Value:
    return b.add(input, b.multiply(weight, b.subtract(end, input)))


@formula("addcmul")
def _addcmul(b: Basic, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Value:
    return b.add(input, b.multiply(value, b.multiply(tensor1, tensor2)))


@formula("addcdiv")
def _addcdiv(b: Basic, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Value:
    return b.add(input, b.multiply(value, b.divide(tensor1, tensor2)))


_ONE = {
    "exp": Basic.exp,
    "log": Basic.log,
    "sqrt": Basic.sqrt,
    "square": Basic.square,
    "expm1": Basic.expm1,
    "tanh": Basic.tanh,
    "sigmoid": Basic.sigmoid,
    "erf": Basic.erf,
    "abs": Basic.absolute,
    "absolute": Basic.absolute,
    "__abs__": Basic.absolute,
    "neg": Basic.negative,
    "negative": Basic.negative,
    "__neg__": Basic.negative,
    "positive": Basic.of,
    "__pos__": Basic.of,
    "float": Basic.floating,
    "double": Basic.floating,
    "stop_gradient": Basic.detached,
    "detach": Basic.detached,
}


def _unary(function: Any) -> Any:
    def computed(b: Basic, input: Any) -> Value:
        return function(b, input)

    return computed


for _name, _function in _ONE.items():
    formula(_name)(_unary(_function))


@formula("rsqrt")
def _rsqrt(b: Basic, input: Any) -> Value:
    return b.divide(1.0, b.sqrt(input))


@formula("reciprocal", "inv")
def _reciprocal(b: Basic, input: Any) -> Value:
    return b.divide(1.0, input)


@formula("exp2")
def _exp2(b: Basic, input: Any) -> Value:
    return b.exp(b.multiply(input, math.log(2)))


@formula("log1p")
def _log1p(b: Basic, input: Any) -> Value:
    return b.elementwise(np.log1p, input, lambda a, out: b.divide(1.0, b.add(a, 1.0)))


@formula("log2")
def _log2(b: Basic, input: Any) -> Value:
    return b.divide(b.log(input), math.log(2))


@formula("log10")
def _log10(b: Basic, input: Any) -> Value:
    return b.divide(b.log(input), math.log(10))


@formula("sin")
def _sin(b: Basic, input: Any) -> Value:
    return b.elementwise(np.sin, input, lambda a, out: _cos(b, a), scale=_by_argument)


@formula("cos")
def _cos(b: Basic, input: Any) -> Value:
    return b.elementwise(np.cos, input, lambda a, out: b.negative(_sin(b, a)), scale=_by_argument)


def _by_argument(out: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return a scale for periodic functions, whose argument is reduced in its own precision."""
    return np.abs(out) + 0.25 * np.abs(a)


@formula("tan")
def _tan(b: Basic, input: Any) -> Value:
    return b.divide(_sin(b, input), _cos(b, input))


@formula("sinh")
def _sinh(b: Basic, input: Any) -> Value:
    return b.elementwise(np.sinh, input, lambda a, out: _cosh(b, a), scale=_of_powers)


@formula("cosh")
def _cosh(b: Basic, input: Any) -> Value:
    return b.elementwise(np.cosh, input, lambda a, out: _sinh(b, a), scale=_of_powers)


def _of_powers(out: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.abs(out) * (4 + 0.25 * np.abs(a))


@formula("asin", "arcsin")
def _asin(b: Basic, input: Any) -> Value:
    return b.elementwise(np.arcsin, input, lambda a, out: _over_root(b, a), scale=_of_angle)


@formula("acos", "arccos")
def _acos(b: Basic, input: Any) -> Value:
    return b.elementwise(
        np.arccos, input, lambda a, out: b.negative(_over_root(b, a)), scale=_of_angle
    )


def _over_root(b: Basic, a: Any) -> Value:
    return b.divide(1.0, b.sqrt(b.subtract(1.0, b.square(a))))


def _of_angle(out: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.abs(out) + 1


@formula("atan", "arctan")
def _atan(b: Basic, input: Any) -> Value:
    return b.elementwise(
        np.arctan,
        input,
        lambda a, out: b.divide(1.0, b.add(1.0, b.square(a))),
        scale=lambda out, a: 2 * np.abs(out),
    )


@formula("erfc")
def _erfc(b: Basic, input: Any) -> Value:
    return b.subtract(1.0, b.erf(input))


@formula("fmod")
def _fmod(b: Basic, input: Any, other: Any) -> Value:
    whole = b.compare(lambda a, d: np.trunc(a / d), input, other)
    return b.subtract(input, b.multiply(whole, other))


@formula("frac")
def _frac(b: Basic, input: Any) -> Value:
    return b.subtract(input, b.compare(np.trunc, input))


@formula("xlogy")
def _xlogy(b: Basic, input: Any, other: Any) -> Value:
    nothing = b.compare(lambda a: a == 0, input)
    safe = b.where(nothing, 1.0, other)
    return b.multiply(input, b.log(safe))


@formula("logaddexp")
def _logaddexp(b: Basic, input: Any, other: Any) -> Value:
    return b.add(other, b.softplus(b.subtract(input, other)))


@formula("addn", "accumulate_n")
def _addn(b: Basic, input: Any) -> Value:
    total = b.of(input[0])
    for one in input[1:]:
        total = b.add(total, one)
    return total


@formula("isclose")
def _isclose(
    b: Basic, input: Any, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False
) -> Value:
    return b.compare(
        lambda x, y: np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan), input, other
    )


_FLAT = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "sign": np.sign,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "logical_not": np.logical_not,
    "bitwise_not": np.invert,
    "__invert__": np.invert,
}
_PAIRS = {
    "floor_divide": np.floor_divide,
    "floor_div": np.floor_divide,
    "__floordiv__": np.floor_divide,
    "eq": np.equal,
    "equal": np.equal,
    "__eq__": np.equal,
    "ne": np.not_equal,
    "not_equal": np.not_equal,
    "__ne__": np.not_equal,
    "gt": np.greater,
    "greater": np.greater,
    "__gt__": np.greater,
    "ge": np.greater_equal,
    "greater_equal": np.greater_equal,
    "__ge__": np.greater_equal,
    "lt": np.less,
    "less": np.less,
    "__lt__": np.less,
    "le": np.less_equal,
    "less_equal": np.less_equal,
    "__le__": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and,
    "__and__": np.bitwise_and,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_or": np.bitwise_or,
    "__or__": np.bitwise_or,
    "__xor__": np.bitwise_xor,
}


def _without_gradient(function: Any) -> Any:
    def computed(b: Basic, *operands: Any, **named: Any) -> Value:
        return b.compare(function, *operands, *named.values())

    return computed


for _name, _flat in [*_FLAT.items(), *_PAIRS.items()]:
    formula(_name)(_without_gradient(_flat))


@formula("where")
def _where(b: Basic, condition: Any, input: Any, other: Any) -> Value:
    return b.where(condition, input, other)


@formula("select")
def _select(b: Basic, condition: Any, input: Any, other: Any) -> Any:
    if not isinstance(condition, Value) or condition.exact.dtype != bool:  # (input, dim, index)
        key = (slice(None),) * (int(number(input)) % b.of(condition).ndim)
        return b.index(condition, (*key, int(number(other))))
    return b.where(condition, input, other)


@formula("masked_fill")
def _masked_fill(b: Basic, input: Any, mask: Any, value: Any) -> Value:
    return b.where(mask, value, input)


@formula("cast", "to", "astype", "type")
def _cast(b: Basic, input: Any, dtype: Any, *_: Any, **__: Any) -> Value:
    if isinstance(dtype, Value):
        raise OtherFormError
    return b.rounded_to(input, dtype)


@formula("type_as", "view_as_dtype")
def _type_as(b: Basic, input: Any, other: Any) -> Value:
    return b.cast(input, b.of(other).exact.dtype)


@formula("half", "bfloat16")
def _half(b: Basic, input: Any) -> Value:
    return b.rounded_to(input, "bfloat16")


def _cast_to(dtype: Any) -> Any:
    def computed(b: Basic, input: Any) -> Value:
        return b.cast(input, np.dtype(dtype))

    return computed


for _name, _dtype in (("int", np.int32), ("long", np.int64), ("bool", bool)):
    formula(_name)(_cast_to(_dtype))


@formula("identity", "clone", "copy", "contiguous", "depend", "deepcopy")
def _identity(b: Basic, input: Any, *_: Any, **__: Any) -> Value:
    return b.move(input, lambda x: x, lambda g, a: g)


@formula("nan_to_num")
def _nan_to_num(
    b: Basic, input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Value:
    if posinf is None or neginf is None:
        raise OtherFormError
    known = b.compare(np.isfinite, input)
    other = b.compare(
        lambda a: np.nan_to_num(a, nan=nan or 0.0, posinf=posinf, neginf=neginf), input
    )
    return b.where(known, input, b.detached(other))


#: Primitives that are called as functions are, and have no attributes.
_CLASSES = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Muls": "mul",
    "Div": "div",
    "RealDiv": "div",
    "FloorDiv": "floor_divide",
    "Pow": "pow",
    "Neg": "neg",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Exp": "exp",
    "Log": "log",
    "Log1p": "log1p",
    "Expm1": "expm1",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Square": "square",
    "Reciprocal": "reciprocal",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Erf": "erf",
    "Abs": "abs",
    "Sin": "sin",
    "Cos": "cos",
    "ReLU": "relu",
    "SiLU": "silu",
    "Equal": "eq",
    "NotEqual": "ne",
    "Greater": "gt",
    "GreaterEqual": "ge",
    "Less": "lt",
    "LessEqual": "le",
    "LogicalAnd": "logical_and",
    "LogicalOr": "logical_or",
    "LogicalNot": "logical_not",
    "Floor": "floor",
    "Ceil": "ceil",
    "Sign": "sign",
    "Select": "select",
    "MaskedFill": "masked_fill",
    "Cast": "cast",
    "Identity": "identity",
    "Depend": "identity",
    "ClampTensor": "clamp",
    "ClampScalar": "clamp",
    "AddExt": "add",
    "SubExt": "sub",
    "AddN": "addn",
    "Mod": "fmod",
    "FloorMod": "remainder",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tan": "tan",
    "Asin": "asin",
    "ACos": "acos",
    "Atan": "atan",
    "Atan2": "atan2",
    "Erfc": "erfc",
    "Xlogy": "xlogy",
    "IsFinite": "isfinite",
    "IsNan": "isnan",
    "IsInf": "isinf",
    "Trunc": "trunc",
    "Round": "round",
    "ReLU6": "relu6",
    "PReLU": "prelu",
    "HSwish": "hardswish",
    "HSigmoid": "hardsigmoid",
    "SeLU": "selu",
    "Mish": "mish",
    "Softsign": "softsign",
    "Softplus": "softplus",
    "FastGeLU": "fast_gelu",
    "GeluExt": "gelu",
    "Swiglu": "swiglu",
    "GLU": "glu",
    "Dense": "dense",
    "SumExt": "sum",
    "MeanExt": "mean",
    "LogSumExp": "logsumexp",
    "CumsumExt": "cumsum",
    "TopkExt": "topk",
    "SplitWithSize": "split",
    "IndexSelect": "index_select",
    "GatherNd": "gather_nd",
    "ZerosLikeExt": "zeros_like",
    "OnesLikeExt": "ones_like",
    "GroupNorm": "group_norm",
    "AddLayerNorm": "add_layer_norm",
    "BiasAdd": "bias_add",
    "ZerosLike": "zeros_like",
    "OnesLike": "ones_like",
    "Reshape": "reshape",
    "Transpose": "permute",
    "ExpandDims": "expand_dims",
    "Tile": "tile",
    "GatherD": "gather_elements",
    "TopK": "topk",
}
for _class_name, _name in _CLASSES.items():
    primitive(_class_name)(as_function(_name))
