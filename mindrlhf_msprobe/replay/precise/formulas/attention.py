"""Attention as one operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.normalisation import softmax
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value

#: Layouts that can be told apart by their axes; N heads, D numbers of each, H all numbers.
_LAYOUTS = ("BSH", "BNSD", "SBH", "BSND")
_OUTPUTS = 4
#: What is given behind query, key and value, in order.
_BESIDE = ("real_shift", "drop_mask", "padding_mask", "attn_mask")


def _heads(b: Basic, operand: Any, layout: str, heads: int) -> Value:
    """Return an operand as [batch, heads, sequence, numbers]."""
    value = b.floating(operand)
    if layout == "BNSD":
        return value
    if layout == "BSND":
        return b.transpose(value, (0, 2, 1, 3))
    split = b.reshape(value, (*value.shape[:2], heads, -1))
    return b.transpose(split, (0, 2, 1, 3) if layout == "BSH" else (1, 2, 0, 3))


def _joined(b: Basic, value: Value, layout: str) -> Value:
    """Return [batch, heads, sequence, numbers] in a layout."""
    if layout == "BNSD":
        return value
    if layout == "BSND":
        return b.transpose(value, (0, 2, 1, 3))
    moved = b.transpose(value, (0, 2, 1, 3) if layout == "BSH" else (2, 0, 1, 3))
    return b.reshape(moved, (*moved.shape[:2], -1))


def _attention(
    b: Basic,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    *,
    heads: int,
    scale: float,
    layout: str,
) -> Value:
    """Return attention; where the mask is not 0, nothing is looked at."""
    if layout not in _LAYOUTS:
        raise OtherFormError
    queries = _heads(b, query, layout, heads)
    width = queries.shape[-1]
    shared = heads
    if layout in ("BSH", "SBH"):
        shared = b.of(key).shape[-1] // width
    keys, values = (_heads(b, one, layout, shared) for one in (key, value))
    times = queries.shape[1] // keys.shape[1]
    if times > 1:
        keys, values = b.repeat(keys, times, 1), b.repeat(values, times, 1)
    scores = b.multiply(b.matmul(queries, b.swap(keys)), scale)
    if mask is not None:
        hidden = b.compare(lambda m: m != 0, mask)
        if hidden.ndim == 3:
            hidden = b.reshape(hidden, (hidden.shape[0], 1, *hidden.shape[1:]))
        if np.any(np.all(np.broadcast_to(hidden.exact, scores.shape), axis=-1)):
            raise OtherFormError  # what a row gives that looks at nothing differs by device
        scores = b.where(hidden, -1e30, scores)
    return _joined(b, b.matmul(softmax(b, scores, -1), values), layout)


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
    b: Basic, p: Any, query: Any, key: Any, value: Any, *others: Any, **named: Any
) -> Any:
    names = ("keep_prob", "sparse_mode", "pre_tokens", "next_tokens")
    mask, rest = _beside(others, named)
    _check({name: getattr(p, name) for name in names}, (*rest, *named.values()))
    layout = p.input_layout if isinstance(p.input_layout, str) else ""
    out = _attention(
        *(b, query, key, value, mask),
        heads=int(p.head_num),
        scale=float(p.scale_value),
        layout=layout,
    )
    return (*[None] * (_OUTPUTS - 1), out)


@formula("flash_attention_score")
def _flash_attention_score(
    b: Basic, query: Any, key: Any, value: Any, head_num: Any, *others: Any, **named: Any
) -> Value:
    usual = {"keep_prob": 1.0, "sparse_mode": 0, "pre_tokens": 1 << 31, "next_tokens": 1 << 31}
    told = {name: number(named.pop(name, usual[name])) for name in usual}
    scale = float(number(named.pop("scalar_value", 1.0)))
    layout = named.pop("input_layout", "BSH")
    named.pop("inner_precise", None)
    mask, rest = _beside(others, named)
    _check(told, (*rest, *named.values()))
    return _attention(
        *(b, query, key, value, mask), heads=int(number(head_num)), scale=scale, layout=layout
    )
