"""Attention as one operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas.normalisation import softmax
from mindrlhf_msprobe.replay.precise.formulas.table import (
    Floats,
    OtherFormError,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value, where

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
        raise OtherFormError
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
            raise OtherFormError  # what a row gives that looks at nothing differs by device
        scores = where(hidden, -1e30, scores)
    out = softmax(scores, -1) @ values
    if layout == "BNSD":
        return out
    out = out.transpose((2, 0, 1, 3) if layout == "SBH" else (0, 2, 1, 3))
    return out.reshape((*out.shape[:2], -1)) if flat else out


def _check(p: Any, others: Any) -> None:
    if any(other is not None for other in others):
        raise OtherFormError
    if float(p["keep_prob"]) != 1.0 or int(p["sparse_mode"]) not in (0, 1):
        raise OtherFormError
    if min(int(p["pre_tokens"]), int(p["next_tokens"])) < 65535:
        raise OtherFormError


def _beside(others: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the mask, and all else that is given beside query, key and value."""
    beside = dict(zip(_BESIDE, others)) | {n: named.pop(n) for n in _BESIDE if n in named}
    mask = beside.pop("attn_mask", None)
    return mask, [*beside.values(), *others[len(_BESIDE) :]]


@primitive("FlashAttentionScore")
def _flash_attention(
    p: Any, query: Floats, key: Floats, value: Floats, *others: Any, **named: Any
) -> Any:
    names = ("keep_prob", "sparse_mode", "pre_tokens", "next_tokens")
    mask, rest = _beside(others, named)
    _check({name: getattr(p, name) for name in names}, (*rest, *named.values()))
    layout = p.input_layout if isinstance(p.input_layout, str) else ""
    out = _attention(
        *(query, key, value, mask),
        heads=int(p.head_num),
        scale=float(p.scale_value),
        layout=layout,
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
    mask, rest = _beside(others, named)
    _check(told, (*rest, *named.values()))
    return _attention(*(query, key, value, mask), heads=head_num, scale=scale, layout=layout)
