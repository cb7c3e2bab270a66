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
    reduction = _REDUCTIONS.get(reduction, reduction)
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
    if _REDUCTIONS.get(reduction, reduction) == "mean":
        return b.divide(b.sum(loss), total), total
    return _reduced(b, loss, reduction), total


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
    return _nll(b, b.floating(input), target, weight, p.ignore_index, p.reduction)


@formula("cross_entropy")
def _cross_entropy(
    b: Basic, input: Any, target: Any, weight: Any = None, *rest: Any, **named: Any
) -> Value:
    value, target = b.floating(input), b.of(target)
    axis = 0 if value.ndim == 1 else 1
    logarithms = log_softmax(b, value, axis)
    if not target.floating:
        return _nll_loss(b, logarithms, target, weight, *rest, **named)
    reduction = named.get("reduction", rest[1] if len(rest) > 1 else "mean")
    smoothing = named.get("label_smoothing", rest[2] if len(rest) > 2 else 0.0)
    if weight is not None or number(smoothing):
        raise OtherFormError
    loss = b.negative(b.sum(b.multiply(logarithms, target), axis))
    if reduction == "mean":  # over all but the classes
        return b.mean(loss)
    return _reduced(b, loss, reduction)


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
def _smooth_l1_loss(b: Basic, input: Any, target: Any, *rest: Any, **named: Any) -> Value:
    names, usual = ("beta", "reduction"), {"beta": 1.0, "reduction": "none"}
    if b.kind == "MintFunctional":
        names, usual = names[::-1], {"beta": 1.0, "reduction": "mean"}
    given = usual | dict(zip(names, rest)) | named
    return _smooth_l1(b, input, target, given["beta"], given["reduction"])


def _smooth_l1(b: Basic, input: Any, target: Any, beta: Any, reduction: Any) -> Value:
    away, beta = b.subtract(b.floating(input), target), float(number(beta))
    size = b.absolute(away)
    small = b.compare(lambda s: s < beta, size)
    loss = b.where(
        small, b.divide(b.multiply(0.5, b.square(away)), beta), b.subtract(size, 0.5 * beta)
    )
    return _reduced(b, loss, reduction)


@primitive("SmoothL1Loss")
def _smooth_l1_loss_primitive(b: Basic, p: Any, input: Any, target: Any) -> Value:
    return _smooth_l1(b, input, target, p.beta, p.reduction)


@formula("huber_loss")
def _huber_loss(
    b: Basic, input: Any, target: Any, reduction: Any = "mean", delta: Any = 1.0
) -> Value:
    delta = float(number(delta))
    return b.multiply(delta, _smooth_l1(b, input, target, delta, reduction))


@formula("binary_cross_entropy")
def _binary_cross_entropy(
    b: Basic, input: Any, target: Any, weight: Any = None, reduction: Any = "mean"
) -> Value:
    value, target = b.floating(input), b.detached(target)

    def logarithm(a: Any) -> Value:  # MindSpore's is bounded from below
        return b.log(b.where(b.compare(lambda a: a > 0, a), a, 1.0))

    if np.any((value.exact <= 1e-12) | (value.exact >= 1 - 1e-12)):
        raise OtherFormError
    hit = b.multiply(target, logarithm(value))
    miss = b.multiply(b.subtract(1.0, target), logarithm(b.subtract(1.0, value)))
    loss = b.negative(b.add(hit, miss))
    return _reduced(b, loss if weight is None else b.multiply(loss, weight), reduction)


@primitive("BinaryCrossEntropy")
def _binary_cross_entropy_primitive(
    b: Basic, p: Any, input: Any, target: Any, weight: Any = None
) -> Value:
    return _binary_cross_entropy(b, input, target, weight, p.reduction)


@primitive("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_softmax_cross_entropy(b: Basic, p: Any, input: Any, target: Any) -> Value:
    if p.is_grad:
        raise OtherFormError
    return _nll(b, log_softmax(b, input, -1), target, None, -100, "mean")[0]


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
    b: Basic, input: Any, target: Any, weight: Any = None, *rest: Any, **named: Any
) -> Value:
    names = (
        ("reduction", "pos_weight") if b.kind == "MintFunctional" else ("pos_weight", "reduction")
    )
    given = dict(zip(names, rest)) | named
    if given.get("pos_weight") is not None:
        raise OtherFormError
    reduction = given.get("reduction", "mean")
    sharp, round_off = b.parts_of_softplus(input)
    loss = b.add(b.subtract(sharp, b.multiply(input, target)), round_off)
    return _reduced(b, loss if weight is None else b.multiply(loss, weight), reduction)
