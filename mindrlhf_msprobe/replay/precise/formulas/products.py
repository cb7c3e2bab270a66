"""Products of matrices, and what stands on them."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import (
    OtherFormError,
    formula,
    number,
    primitive,
)
from mindrlhf_msprobe.replay.precise.values import Value


@formula("matmul", "bmm", "mm", "dot", "mv", "__matmul__")
def _matmul(b: Basic, input: Any, other: Any) -> Value:
    return b.matmul(input, other)


@formula("linear", "dense")
def _linear(b: Basic, input: Any, weight: Any, bias: Any = None) -> Value:
    product = b.matmul(input, b.swap(weight) if b.of(weight).ndim > 1 else weight)
    return product if bias is None else b.add(product, bias)


@formula("__rmatmul__")
def _rmatmul(b: Basic, input: Any, other: Any) -> Value:
    return b.matmul(other, input)


@formula("bias_add")
def _bias_add_function(b: Basic, input: Any, bias: Any) -> Value:
    return _bias_add(b, None, input, bias)


@formula("baddbmm", "addmm", "addmv")
def _addmm(b: Basic, input: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    product = b.multiply(number(alpha), b.matmul(left, right))
    return b.add(b.multiply(number(beta), input), product)


@formula("outer")
def _outer(b: Basic, input: Any, other: Any) -> Value:
    left, right = b.of(input), b.of(other)
    return b.multiply(b.reshape(left, (-1, 1)), b.reshape(right, (1, -1)))


@primitive("MatMul", "BatchMatMul", "MatMulExt", "BatchMatMulExt")
def _matmul_primitive(b: Basic, p: Any, input: Any, other: Any) -> Value:
    left = b.swap(input) if getattr(p, "transpose_a", False) else input
    right = b.swap(other) if getattr(p, "transpose_b", False) else other
    return b.matmul(left, right)


@primitive("BiasAdd")
def _bias_add(b: Basic, p: Any, input: Any, bias: Any) -> Value:
    value = b.of(input)
    shape = (1, -1) + (1,) * (value.ndim - 2)
    return b.add(value, b.reshape(bias, shape))


@formula("einsum")
def _einsum(b: Basic, equation: str, *operands: Any) -> Value:
    """Return a sum of products without traces: each operand has an index once."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    indices = left.split(",")
    listed = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else None
    values = [b.of(operand) for operand in (operands if listed is None else listed)]
    if not arrow or "." in equation or len(values) != len(indices):
        raise OtherFormError
    if any(len({*one}) != len(one) for one in [*indices, result]):
        raise OtherFormError
    total, known = values[0], indices[0]
    for value, one in zip(values[1:], indices[1:]):
        every = known + "".join(i for i in one if i not in known)
        later = "".join(indices[indices.index(one) + 1 :]) + result
        total = b.multiply(_spread(b, total, known, every), _spread(b, value, one, every))
        total, known = _summed(b, total, every, later)
    total, known = _summed(b, total, known, result)
    return b.transpose(total, [known.index(i) for i in result])


def _spread(b: Basic, value: Value, own: str, every: str) -> Value:
    """Return a value with an axis for every index."""
    order = [own.index(i) for i in every if i in own]
    lengths = iter([value.shape[i] for i in order])
    return b.reshape(b.transpose(value, order), [next(lengths) if i in own else 1 for i in every])


def _summed(b: Basic, value: Value, own: str, needed: str) -> tuple[Value, str]:
    """Return a value summed over the indices that are not needed, and those that are left."""
    over = tuple(i for i, index in enumerate(own) if index not in needed)
    return (b.sum(value, over) if over else value), "".join(i for i in own if i in needed)
