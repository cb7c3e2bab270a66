"""Values by kernels of float64: what an operator without a formula gives, with its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.replay.kernels.asked import Answer, Asked, NamedDtype, filled
from mindrlhf_msprobe.replay.kernels.asking import KERNELS, NoAnswerError, attributes_of
from mindrlhf_msprobe.replay.precise.basic import Basic, dtype_name
from mindrlhf_msprobe.replay.precise.values import (
    PRECISIONS,
    NoGradientError,
    Tape,
    Value,
)

_DTYPES = {*PRECISIONS, "bool", "int8", "int16", "int32", "int64", "uint8"}
_PLAIN = (bool, int, float, str, type(None))


def by_kernel(
    basic: Basic,
    operator: Operator,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    settings: Any = None,
) -> Any:
    """Return what an operator computes of values, by the installed kernel of float64.

    What rounding does on its way is not known: its inputs and its result are disturbed by one
    rounding each.

    Args:
        settings: of a primitive: the primitive.

    Raises:
        NoAnswerError: there is no such kernel.
    """
    tape, operands = basic.tape, list[Value]()

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            operands.append(leaf)
            return leaf.exact
        if isinstance(leaf, _PLAIN):
            return leaf
        name = dtype_name(leaf)
        if name not in _DTYPES:
            raise NoAnswerError(type(leaf).__name__)
        return NamedDtype(name)

    given, named = filled(tuple(args), plain), filled(dict(kwargs), plain)
    attributes = {} if settings is None else attributes_of(settings)
    draws = _disturbed(tape, operands)
    asked = Asked(operator.full_name, given, named, draws, attributes)
    answer = KERNELS.ask(asked)
    values = [
        _output(basic, asked, answer, number, operands) for number in range(len(answer.results[0]))
    ]
    return tuple(values) if answer.several else values[0]


def _output(
    basic: Basic, asked: Asked, answer: Answer, number: int, operands: Sequence[Value]
) -> Value:
    """Return one output."""
    arrays = [np.asarray(result[number]) for result in answer.results]

    def pull(g: Value, out: Value, *parents: Value) -> list[Value | None]:
        draws = zip(asked.draws, _all(g, len(asked.draws)))
        arriving = tuple(np.asarray(arrived, np.float64) for _, arrived in draws)
        try:
            found = KERNELS.ask(replace(asked, arriving=arriving, output=number))
        except NoAnswerError:
            raise NoGradientError(asked.operator) from None
        gradients: list[Value | None] = []
        for at in range(len(parents)):
            of_draws = [result[at] for result in found.results]
            known = [one for one in of_draws if one is not None]
            gradients.append(_rounded(basic.tape, known) if known else None)
        return gradients

    value = _rounded(basic.tape, arrays)
    return basic.tape.made_of(value, operands, pull)


def _all(value: Value, count: int) -> list[np.ndarray]:
    return [value.draws[min(i, len(value.draws) - 1)] for i in range(count)]


def _rounded(tape: Tape, arrays: Sequence[np.ndarray]) -> Value:
    """Return a value of its draws, each but the exact one disturbed by one rounding."""
    exact = arrays[0]
    if exact.dtype.kind != "f":
        return Value([*arrays])
    scales = [np.where(np.isfinite(a), np.abs(a), 0) for a in arrays[1:]]
    return Value([exact, *tape.disturbed(arrays[1:], scales)])


def _disturbed(tape: Tape, operands: Sequence[Value]) -> tuple[tuple[np.ndarray, ...], ...]:
    """Return the arrays of each draw, those but the exact ones disturbed by one rounding."""
    found = []
    for number in range(tape.draws + 1):
        arrays = [np.ascontiguousarray(operand.draws[number]) for operand in operands]
        arrays = [a.reshape(operand.shape) for a, operand in zip(arrays, operands)]
        if number:
            scales = [np.abs(a) * (a.dtype.kind == "f") for a in arrays]
            moved = tape.disturbed(arrays, scales)
            arrays = [m if a.dtype.kind == "f" else a for a, m in zip(arrays, moved)]
        else:
            arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        found.append(tuple(np.asarray(a) for a in arrays))
    return tuple(found)
