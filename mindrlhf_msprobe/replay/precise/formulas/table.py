"""Formulas by the names of operators, and one operator computed again by its formula.

Outputs and gradients come with what rounding does to them (`Precise`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.basic import Basic, dtype_name
from mindrlhf_msprobe.replay.precise.values import (
    DRAWS,
    Precision,
    Tape,
    Value,
    backward,
)

#: Takes the basic operations and what the operator is called with.
Formula = Callable[..., Any]

_FUNCTIONS: dict[str, Formula] = {}
_PRIMITIVES: dict[str, Formula] = {}

#: Other names of parameters, as mint, ops and Tensor have them.
_ALIASES = {
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
    return _register(_FUNCTIONS, names)


def primitive(*names: str) -> Callable[[Formula], Formula]:
    """Register what primitives of these classes compute; it is given the primitive first."""
    return _register(_PRIMITIVES, names)


def as_function(name: str) -> Formula:
    """Return the formula of a primitive that is called as a function is, and has no attributes."""

    def computed(basic: Basic, settings: Any, *args: Any, **kwargs: Any) -> Any:
        renamed = {_ALIASES.get(key, key): value for key, value in kwargs.items()}
        return _FUNCTIONS[name](basic, *args, **renamed)

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


def has_formula(kind: str, name: str) -> bool:
    """Return whether there is a formula for an operator.

    Args:
        kind: as entries have it: Mint, MintFunctional, Functional, Tensor, Primitive.
        name: of a primitive, its class.
    """
    _load()
    return name in (_PRIMITIVES if kind == "Primitive" else _FUNCTIONS)


def answer(
    basic: Basic,
    kind: str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    settings: Any = None,
) -> Any:
    """Return what an operator computes of values.

    Args:
        kind: as in `has_formula`.
        args, kwargs: with values in the place of tensors.
        settings: of a primitive: what has its attributes.

    Returns:
        A value, or a tuple or list of values, as the operator returns tensors.

    Raises:
        NoFormulaError: there is none, or not for such a call.
    """
    if not has_formula(kind, name):
        raise NoFormulaError(name)
    basic.kind, basic.name, basic.given = kind, name, frozenset(kwargs)
    try:
        if kind == "Primitive":
            return _PRIMITIVES[name](basic, settings, *args, **kwargs)
        renamed = {_ALIASES.get(key, key): value for key, value in kwargs.items()}
        return _FUNCTIONS[name](basic, *args, **renamed)
    except (TypeError, AttributeError, OtherFormError) as error:
        raise NoFormulaError(f"{name}: {error}") from error


def _load() -> None:
    if not _FUNCTIONS:
        from mindrlhf_msprobe.replay.precise.formulas import (  # noqa: F401
            activations,
            attention,
            convolutions,
            elementwise,
            losses,
            moving,
            normalisation,
            reductions,
        )


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


def leaves_of(value: Any) -> list[Any]:
    """Return what stands in tuples, lists and dicts, in order; one value where it is one."""
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


@dataclass
class Precise:
    """What was computed again.

    Attributes:
        outputs: a value for each tensor among the outputs, None for what is no tensor.
        inputs: a value for each array among the arguments, in their order, then of the keywords.
        tape: what they were computed on.
    """

    outputs: list[Value | None]
    inputs: list[Value]
    tape: Tape = field(repr=False)

    def gradients(self, arriving: Sequence[np.ndarray | None]) -> list[Value | None]:
        """Return the gradient of each input, given those that arrive at the outputs.

        Args:
            arriving: one for each output; None: no gradient arrives there.
        """
        pairs = [
            (output, self.tape.value(gradient))
            for output, gradient in zip(self.outputs, arriving)
            if output is not None and gradient is not None and output.floating
        ]
        return backward(self.tape, pairs, self.inputs).of


def compute_operator(
    kind: str,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    precision: Precision,
    *,
    settings: Any = None,
    seed: int = 0,
    draws: int = DRAWS,
    dtype: Any = np.float64,
) -> Precise:
    """Compute an operator by its formula; no MindSpore is needed.

    Args:
        kind, name: of the operator, as entries have them (`Mint`, `softmax`); of a primitive its
            class (`Primitive`, `MatMul`).
        args, kwargs: numpy arrays in the place of tensors, also in tuples and lists; a dtype may be
            given by name.
        precision: of the computation that is judged; the draws are disturbed by it.
        settings: of a primitive: what has its attributes.

    Raises:
        NoFormulaError: there is no formula for the operator, or not for this call of it.
    """
    tape = Tape(precision, seed=seed, draws=draws, dtype=dtype)
    inputs: list[Value] = []

    def lifted(array: np.ndarray) -> Value:
        inputs.append(tape.value(array))
        return inputs[-1]

    given = [replaced(argument, lifted) for argument in args]
    named = {key: replaced(argument, lifted) for key, argument in kwargs.items()}
    result = answer(Basic(tape), kind, name, given, named, settings)
    outputs = [leaf if isinstance(leaf, Value) else None for leaf in leaves_of(result)]
    return Precise(outputs, inputs, tape)


def replaced(value: Any, of_array: Callable[[np.ndarray], Any]) -> Any:
    """Return a structure with each array in it replaced."""
    if isinstance(value, np.ndarray):
        return of_array(value)
    if isinstance(value, slice):
        return slice(*(replaced(end, of_array) for end in (value.start, value.stop, value.step)))
    if isinstance(value, (tuple, list)):
        return type(value)(replaced(item, of_array) for item in value)
    if isinstance(value, Mapping):
        return {key: replaced(item, of_array) for key, item in value.items()}
    return value
