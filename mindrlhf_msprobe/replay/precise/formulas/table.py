"""Formulas by the names of operators, and what they take their arguments apart with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic, dtype_name
from mindrlhf_msprobe.replay.precise.values import Value

#: Takes the basic operations and what the operator is called with.
Formula = Callable[..., Any]

#: By name; of primitives, by that of their class.
FUNCTIONS: dict[str, Formula] = {}
PRIMITIVES: dict[str, Formula] = {}


#: Other names of parameters, as mint, ops and Tensor have them.
ALIASES = {
    "axis": "dim",
    "axes": "dim",
    "keepdims": "keepdim",
    "keep_dims": "keepdim",
    "x": "input",
    "self": "input",
    "logits": "input",
    "input_x": "input",
    "tensor": "input",
    "y": "other",
    "exponent": "other",
    "labels": "target",
    "mat2": "other",
    "tensors": "input",
    "size": "shape",
}


class NoFormulaError(Exception):
    """There is no formula for an operator, or not for such a call of it."""


class OtherFormError(Exception):
    """A formula does not hold for the form in which its operator is called."""


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register what functions and methods of these names compute."""
    return _register(FUNCTIONS, names)


def primitive(*names: str) -> Callable[[Formula], Formula]:
    """Register what primitives of these classes compute; it is given the primitive first."""
    return _register(PRIMITIVES, names)


def as_function(name: str) -> Formula:
    """Return the formula of a primitive that is called as a function is, and has no attributes."""

    def computed(basic: Basic, settings: Any, *args: Any, **kwargs: Any) -> Any:
        renamed = {ALIASES.get(key, key): value for key, value in kwargs.items()}
        return FUNCTIONS[name](basic, *args, **renamed)

    return computed


def with_attribute(function: Formula, attribute: str) -> Formula:
    """Return the formula of a primitive that gives a function one of its attributes."""

    def computed(basic: Basic, settings: Any, input: Any) -> Any:
        return function(basic, input, getattr(settings, attribute))

    return computed


def _register(table: dict[str, Formula], names: Sequence[str]) -> Callable[[Formula], Formula]:
    def register(function: Formula) -> Formula:
        table.update(dict.fromkeys(names, function))
        return function

    return register


def number(value: Any) -> Any:
    """Return a Python number of a value, or what it is."""
    return value.exact.item() if isinstance(value, Value) else value


def numbers(value: Any) -> tuple[int, ...]:
    """Return whole numbers of a value, a sequence or one of them."""
    if isinstance(value, Value):
        value = value.exact.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(int(number(item)) for item in value)
    return (int(number(value)),)


def given(args: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape or axes that were given one by one or as one sequence."""
    return numbers(args[0]) if len(args) == 1 else numbers(args)


def numpy_dtype(dtype: Any) -> np.dtype:
    """Return numpy's dtype for one of MindSpore; any floating one is float64 here."""
    name = dtype_name(dtype)
    return np.dtype(np.float64 if "float" in name else name)
