"""Softmax, attention as one operator, and what normalises by means, variances and norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas import (
    Floats,
    Ints,
    NoFormulaError,
    formula,
    number,
    numbers,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value, where


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
            raise NoFormulaError
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
        raise NoFormulaError
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
        raise NoFormulaError
    eps = float(p.epsilon)
    out = _batch_norm(input, mean, variance, weight, bias, p.is_training, eps=eps)
    return out, None, None, None, None  # what it keeps for its gradient differs by device


#: Layouts that can be told apart by their axes; N heads, D numbers of each, H all numbers.
_LAYOUTS = ("BSH", "BNSD", "SBH", "BSND")
_OUTPUTS = 4
#: What is given behind query, key and value, in order.
_BESIDE = ("real_shift", "drop_mask", "padding_mask", "attn_mask")


def _heads(value: Value, layout: str, heads: int) -> Value:
    """Return an operand as [batch, heads, sequence, numbers]."""
    if layout == "BNSD":
        return value
    if layout == "BSND":
        return value.transpose((0, 2, 1, 3))
    split = value.reshape((*value.shape[:2], heads, -1))
    return split.transpose((0, 2, 1, 3) if layout == "BSH" else (1, 2, 0, 3))


def _attention(
    queries: Value,
    keys: Value,
    values: Value,
    mask: Value | None,
    *,
    heads: int,
    scale: float,
    layout: str,
) -> Value:
    """Return attention; where the mask is not 0, nothing is looked at."""
    if layout not in _LAYOUTS:
        raise NoFormulaError
    flat = layout in ("BSH", "SBH")
    queries = _heads(queries, layout, heads)
    shared = keys.shape[-1] // queries.shape[-1] if flat else heads
    keys, values = _heads(keys, layout, shared), _heads(values, layout, shared)
    times = queries.shape[1] // keys.shape[1]
    if times > 1:
        keys, values = keys.repeat(times, 1), values.repeat(times, 1)
    scores = queries @ keys.swap() * scale
    if mask is not None:
        hidden = mask.plain(lambda m: m != 0)
        if hidden.ndim == 3:
            hidden = hidden.reshape((hidden.shape[0], 1, *hidden.shape[1:]))
        if np.any(np.all(np.broadcast_to(hidden.exact, scores.shape), axis=-1)):
            raise NoFormulaError  # what a row gives that looks at nothing differs by device
        scores = where(hidden, -1e30, scores)
    out = softmax(scores, -1) @ values
    if layout == "BNSD":
        return out
    out = out.transpose((2, 0, 1, 3) if layout == "SBH" else (0, 2, 1, 3))
    return out.reshape((*out.shape[:2], -1)) if flat else out


def _mask_of(told: dict[str, Any], others: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the mask; nothing else may be given beside query, key and value, or told."""
    beside = dict(zip(_BESIDE, others)) | {n: named.pop(n) for n in _BESIDE if n in named}
    mask = beside.pop("attn_mask", None)
    rest = (*beside.values(), *others[len(_BESIDE) :], *named.values())
    if any(other is not None for other in rest):
        raise NoFormulaError
    if float(told["keep_prob"]) != 1.0 or int(told["sparse_mode"]) not in (0, 1):
        raise NoFormulaError
    if min(int(told["pre_tokens"]), int(told["next_tokens"])) < 65535:
        raise NoFormulaError
    return mask


@primitive("FlashAttentionScore")
def _flash_attention(
    p: Any, query: Floats, key: Floats, value: Floats, *others: Any, **named: Any
) -> Any:
    names = ("keep_prob", "sparse_mode", "pre_tokens", "next_tokens")
    mask = _mask_of({name: getattr(p, name) for name in names}, others, named)
    layout = p.input_layout if isinstance(p.input_layout, str) else ""
    out = _attention(
        *(query, key, value, mask), heads=int(p.head_num), scale=float(p.scale_value), layout=layout
    )
    return (*[None] * (_OUTPUTS - 1), out)


@formula("flash_attention_score")
def _flash_attention_score(
    query: Floats, key: Floats, value: Floats, head_num: int, *others: Any, **named: Any
) -> Value:
    usual = {"keep_prob": 1.0, "sparse_mode": 0, "pre_tokens": 1 << 31, "next_tokens": 1 << 31}
    told = {name: number(named.pop(name, usual[name])) for name in usual}
    scale = float(number(named.pop("scalar_value", 1.0)))
    layout = named.pop("input_layout", "BSH")
    named.pop("inner_precise", None)
    mask = _mask_of(told, others, named)
    return _attention(*(query, key, value, mask), heads=head_num, scale=scale, layout=layout)
