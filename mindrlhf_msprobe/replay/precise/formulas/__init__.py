"""Formulas by the names of operators; each is given what its parameters are annotated with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mindrlhf_msprobe.replay.precise.tape import Tape
from mindrlhf_msprobe.replay.precise.values import Value, dtype_name

#: A value of floating numbers.
Floats: TypeAlias = Value
#: Whole numbers, given as a tensor, a sequence or one.
Ints: TypeAlias = tuple[int, ...]
#: Tensors in a tuple or list.
Values: TypeAlias = Sequence[Value]

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


#: Annotation of a parameter → what makes an argument of it; others are given as they are.
_MADE: dict[str, Callable[[Tape, Any], Any]] = {
    "Value": lambda tape, given: tape.of(given),
    "Floats": lambda tape, given: tape.of(given).floats(),
    "Values": lambda tape, given: [tape.of(one) for one in given],
    "int": lambda tape, given: int(number(given)),
    "float": lambda tape, given: float(number(given)),
    "bool": lambda tape, given: bool(given),
    "Ints": lambda tape, given: numbers(given),
}


class Formula:
    """What an operator computes.

    Args:
        function: takes values, and numbers, as its parameters are annotated; None stays None where
            that is allowed. A `*shape: int` is given one by one or as a sequence, by any name.
        attributes: of a primitive, those that it is given as keyword arguments.
        settings: whether it is given the primitive first.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        attributes: Sequence[str] = (),
        *,
        settings: bool = False,
    ) -> None:
        self._function, self._attributes, self._settings = function, attributes, settings
        parameters = [*inspect.signature(function).parameters.values()][settings:]
        self._signature = inspect.Signature(parameters)
        annotations = {one.name: str(one.annotation) for one in parameters}
        self._optional = {name for name, kind in annotations.items() if kind.endswith("| None")}
        kinds = {name: kind.removesuffix(" | None") for name, kind in annotations.items()}
        self._made = {name: _MADE[kind] for name, kind in kinds.items() if kind in _MADE}
        last = parameters[-1]
        self._listed = last.name if last.kind is last.VAR_POSITIONAL else ""
        if self._listed in self._made:
            # One by one, or as one sequence.
            self._made[self._listed] = lambda tape, given: numbers(
                given[0] if len(given) == 1 else given
            )

    def compute(
        self, tape: Tape, settings: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return what it gives of arguments, with values in the place of tensors."""
        named = {ALIASES.get(name, name): value for name, value in kwargs.items()}
        for name in self._attributes:
            named[ALIASES.get(name, name)] = getattr(settings, name)
        if self._listed:
            others = [name for name in named if name not in self._signature.parameters]
            args = [*args, *(named.pop(name) for name in [*others, self._listed] if name in named)]
        bound = self._signature.bind(*args, **named)
        for name, value in bound.arguments.items():
            if name in self._made and (value is not None or name not in self._optional):
                bound.arguments[name] = self._made[name](tape, value)
        if self._settings:
            return self._function(settings, *bound.args, **bound.kwargs)
        return self._function(*bound.args, **bound.kwargs)


#: By name; of primitives, by that of their class.
FUNCTIONS: dict[str, Formula] = {}
PRIMITIVES: dict[str, Formula] = {}

_Registers = Callable[[Callable[..., Any]], Callable[..., Any]]


def formula(functions: str, primitives: str = "", attributes: str = "") -> _Registers:
    """Register what functions and methods compute, and primitives that are called as they are.

    Args:
        functions, primitives: names, separated by blanks; of primitives, those of their classes.
        attributes: of the primitives, those that are keyword arguments of the function.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(functions.split(), Formula(function)))
        of_class = Formula(function, attributes.split())
        PRIMITIVES.update(dict.fromkeys(primitives.split(), of_class))
        return function

    return register


def primitive(classes: str) -> _Registers:
    """Register what primitives of these classes compute; it is given the primitive first."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PRIMITIVES.update(dict.fromkeys(classes.split(), Formula(function, settings=True)))
        return function

    return register


def of_one(functions: str, primitives: str, computed: Callable[[Value], Value]) -> None:
    """Register a function of one tensor."""

    @formula(functions, primitives)
    def function(input: Value) -> Value:
        return computed(input)


def of_two(functions: str, primitives: str, computed: Callable[[Value, Any], Value]) -> None:
    """Register a function of two; the second may be a number."""

    @formula(functions, primitives)
    def function(input: Value, other: Any) -> Value:
        return computed(input, other)


def numpy_dtype(dtype: Any) -> np.dtype:
    """Return numpy's dtype for one of MindSpore; any floating one is float64 here."""
    name = dtype_name(dtype)
    return np.dtype(np.float64 if "float" in name else name)
