"""Losses, and embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas import (
    Floats,
    NoFormulaError,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.formulas.normalisation import log_softmax
from mindrlhf_msprobe.replay.precise.values import Operand, Value, where

_REDUCTIONS = {0: "sum", 1: "mean", 2: "none"}


def _reduced(loss: Value, reduction: Any, weight: Value | None = None) -> Value:
    loss = loss if weight is None else loss * weight
    reduction = _REDUCTIONS.get(reduction, reduction)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


@formula("embedding")
def _embedding(input: Value, weight: Value, padding_idx: Any = None) -> Value:
    if padding_idx is not None:
        raise NoFormulaError
    return weight.take(input, 0)


@formula("", "NLLLoss", "ignore_index reduction")
def _nll(
    input: Floats, target: Value, weight: Value | None, ignore_index: int, reduction: Any
) -> tuple[Value, Value]:
    axis = 0 if input.ndim == 1 else 1
    target = target.cast(np.dtype(np.int64))
    chosen = target.plain(lambda t: np.expand_dims(t, axis))
    kept = target.plain(lambda t: (t != ignore_index).astype(input.tape.dtype))
    inside = chosen.plain(lambda t: np.clip(t, 0, input.shape[axis] - 1))
    picked = -input.along(inside, axis).squeeze((axis,))
    if weight is not None:
        kept = kept * weight.take(inside.plain(np.squeeze), 0)
    loss, total = picked * kept, kept.sum()
    if _REDUCTIONS.get(reduction, reduction) == "mean":
        return loss.sum() / total, total
    return _reduced(loss, reduction), total


@formula("nll_loss")
def _nll_loss(
    input: Floats,
    target: Value,
    weight: Value | None = None,
    ignore_index: int = -100,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> Value:
    if number(label_smoothing):
        raise NoFormulaError
    return _nll(input, target, weight, ignore_index, reduction)[0]


@formula("cross_entropy")
def _cross_entropy(
    input: Floats,
    target: Value,
    weight: Value | None = None,
    ignore_index: int = -100,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> Value:
    axis = 0 if input.ndim == 1 else 1
    logarithms = log_softmax(input, axis)
    if not target.floating:
        return _nll_loss(logarithms, target, weight, ignore_index, reduction, label_smoothing)
    if weight is not None or number(label_smoothing):
        raise NoFormulaError
    return _reduced(-(logarithms * target).sum(axis), reduction)  # over all but the classes


@primitive("SoftmaxCrossEntropyWithLogits")
def _softmax_cross_entropy(p: Any, input: Floats, target: Value) -> Any:
    logarithms = log_softmax(input, -1)
    loss = -(logarithms * target.detached()).sum(-1)
    return loss, (logarithms.exp() - target).detached()


@primitive("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_softmax_cross_entropy(p: Any, input: Floats, target: Value) -> Value:
    if p.is_grad:
        raise NoFormulaError
    return _nll(log_softmax(input, -1), target, None, -100, "mean")[0]


@formula("mse_loss")
def _mse_loss(input: Floats, target: Value, reduction: Any = "mean") -> Value:
    return _reduced((input - target).square(), reduction)


@formula("l1_loss")
def _l1_loss(input: Floats, target: Value, reduction: Any = "mean") -> Value:
    return _reduced((input - target).absolute(), reduction)


@formula("smooth_l1_loss")
def _smooth_l1_loss(input: Floats, target: Value, *rest: Any, **named: Any) -> Value:
    names, usual = ("beta", "reduction"), {"beta": 1.0, "reduction": "none"}
    if input.tape.kind == "MintFunctional":
        names, usual = names[::-1], {"beta": 1.0, "reduction": "mean"}
    given = usual | dict(zip(names, rest)) | named
    return _smooth_l1(input, target, float(number(given["beta"])), given["reduction"])


@formula("", "SmoothL1Loss", "beta reduction")
def _smooth_l1(input: Floats, target: Value, beta: float, reduction: Any) -> Value:
    away = input - target
    size = away.absolute()
    small = size.plain(lambda s: s < beta)
    loss = where(small, (0.5 * away.square()) / beta, size - 0.5 * beta)
    return _reduced(loss, reduction)


@formula("huber_loss")
def _huber_loss(input: Floats, target: Value, reduction: Any = "mean", delta: float = 1.0) -> Value:
    return delta * _smooth_l1(input, target, delta, reduction)


@formula("binary_cross_entropy", "BinaryCrossEntropy", "reduction")
def _binary_cross_entropy(
    input: Floats, target: Value, weight: Value | None = None, reduction: Any = "mean"
) -> Value:
    target = target.detached()
    if np.any((input.exact <= 1e-12) | (input.exact >= 1 - 1e-12)):
        raise NoFormulaError

    def logarithm(a: Value) -> Value:  # MindSpore's is bounded from below
        return where(a.plain(lambda a: a > 0), a, 1.0).log()

    hit = target * logarithm(input)
    miss = (1.0 - target) * logarithm(1.0 - input)
    return _reduced(-(hit + miss), reduction, weight)


@formula("kl_div")
def _kl_div(input: Value, target: Value, reduction: Any = "mean", log_target: Any = False) -> Value:
    target = target.detached()  # MindSpore's has no gradient there
    if reduction == "batchmean":
        return _kl_div(input, target, "sum", log_target) / float(input.shape[0])
    if log_target:
        return _reduced(target.exp() * (target - input), reduction)
    target = target.floats()
    positive = target.plain(lambda t: t > 0)
    safe = where(positive, target, 1.0)
    return _reduced(where(positive, target * (safe.log() - input), 0.0), reduction)


@formula("binary_cross_entropy_with_logits")
def _bce_with_logits(
    input: Value, target: Operand, weight: Value | None = None, *rest: Any, **named: Any
) -> Value:
    mint = input.tape.kind == "MintFunctional"
    names = ("reduction", "pos_weight") if mint else ("pos_weight", "reduction")
    given = dict(zip(names, rest)) | named
    if given.get("pos_weight") is not None:
        raise NoFormulaError
    sharp, round_off = input.parts_of_softplus()
    loss = sharp - input * target + round_off
    return _reduced(loss, given.get("reduction", "mean"), weight)
