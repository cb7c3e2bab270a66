"""Losses, and embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.normalisation import log_softmax
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value

_REDUCTIONS = {0: "sum", 1: "mean", 2: "none"}


def _reduced(b: Basic, loss: Value, reduction: Any) -> Value:
    if reduction == "none":
        return loss
    return b.mean(loss) if reduction == "mean" else b.sum(loss)


@formula("embedding")
def _embedding(
    b: Basic, input: Any, weight: Any, padding_idx: Any = None, *_: Any, **__: Any
) -> Value:
    if padding_idx is not None or _ or __:
        raise OtherFormError
    return b.take(weight, input, 0)


def _nll(
    b: Basic, input: Value, target: Any, weight: Any, ignored: Any, reduction: Any
) -> tuple[Value, Value]:
    value, target = b.floating(input), b.of(target)
    axis = 0 if value.ndim == 1 else 1
    target = b.cast(target, np.dtype(np.int64))
    chosen = b.compare(lambda t: np.expand_dims(t, axis), target)
    kept = b.compare(lambda t: (t != int(number(ignored))).astype(b.tape.dtype), target)
    inside = b.compare(lambda t: np.clip(t, 0, value.shape[axis] - 1), chosen)
    picked = b.negative(b.squeeze(b.along(value, inside, axis), (axis,)))
    if weight is not None:
        kept = b.multiply(kept, b.take(weight, b.compare(np.squeeze, inside), 0))
    loss = b.multiply(picked, kept)
    total = b.sum(kept)
    if reduction == "none":
        return loss, total
    summed = b.sum(loss)
    return (b.divide(summed, total) if reduction == "mean" else summed), total


@formula("nll_loss")
def _nll_loss(
    b: Basic,
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: Any = -100,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> Value:
    if number(label_smoothing):
        raise OtherFormError
    return _nll(b, b.floating(input), target, weight, ignore_index, reduction)[0]


@primitive("NLLLoss")
def _nll_primitive(b: Basic, p: Any, input: Any, target: Any, weight: Any) -> Any:
    reduction = _REDUCTIONS.get(p.reduction, p.reduction)
    return _nll(b, b.floating(input), target, weight, p.ignore_index, reduction)


@formula("cross_entropy")
def _cross_entropy(
    b: Basic,
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: Any = -100,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> Value:
    value, target = b.floating(input), b.of(target)
    if number(label_smoothing):
        raise OtherFormError
    logarithms = log_softmax(b, value, 0 if value.ndim == 1 else 1)
    if target.floating:
        if weight is not None:
            raise OtherFormError
        axis = 0 if value.ndim == 1 else 1
        loss = b.negative(b.sum(b.multiply(logarithms, target), axis))
        return _reduced(b, loss, reduction)
    return _nll(b, logarithms, target, weight, ignore_index, reduction)[0]


@primitive("SoftmaxCrossEntropyWithLogits")
def _softmax_cross_entropy(b: Basic, p: Any, input: Any, target: Any) -> Any:
    logarithms = log_softmax(b, input, -1)
    loss = b.negative(b.sum(b.multiply(logarithms, b.detached(target)), -1))
    return loss, b.detached(b.subtract(b.exp(logarithms), target))


@formula("mse_loss")
def _mse_loss(b: Basic, input: Any, target: Any, reduction: Any = "mean") -> Value:
    return _reduced(b, b.square(b.subtract(b.floating(input), target)), reduction)


@formula("l1_loss")
def _l1_loss(b: Basic, input: Any, target: Any, reduction: Any = "mean") -> Value:
    return _reduced(b, b.absolute(b.subtract(b.floating(input), target)), reduction)


@formula("smooth_l1_loss")
def _smooth_l1_loss(
    b: Basic, input: Any, target: Any, beta: Any = 1.0, reduction: Any = "none"
) -> Value:
    away, beta = b.subtract(b.floating(input), target), float(number(beta))
    size = b.absolute(away)
    small = b.compare(lambda s: s < beta, size)
    loss = b.where(
        small, b.divide(b.multiply(0.5, b.square(away)), beta), b.subtract(size, 0.5 * beta)
    )
    return _reduced(b, loss, reduction)


@formula("kl_div")
def _kl_div(
    b: Basic, input: Any, target: Any, reduction: Any = "mean", log_target: Any = False
) -> Value:
    target = b.detached(target)  # MindSpore's has no gradient there
    if reduction == "batchmean":
        total = _kl_div(b, input, target, "sum", log_target)
        return b.divide(total, float(b.of(input).shape[0]))
    if log_target:
        loss = b.multiply(b.exp(target), b.subtract(target, input))
        return _reduced(b, loss, reduction)
    target = b.floating(target)
    positive = b.compare(lambda t: t > 0, target)
    safe = b.where(positive, target, 1.0)
    loss = b.where(positive, b.multiply(target, b.subtract(b.log(safe), input)), 0.0)
    return _reduced(b, loss, reduction)


@formula("binary_cross_entropy_with_logits")
def _bce_with_logits(
    b: Basic,
    input: Any,
    target: Any,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: Any = "mean",
) -> Value:
    if pos_weight is not None:
        raise OtherFormError
    soft = b.log(b.add(1.0, b.exp(b.negative(b.absolute(input)))))
    loss = b.add(b.subtract(b.maximum(input, 0.0), b.multiply(input, target)), soft)
    return _reduced(b, loss if weight is None else b.multiply(loss, weight), reduction)
