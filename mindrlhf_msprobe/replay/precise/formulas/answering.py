"""One operator computed again by its formula.

Outputs and gradients come with what rounding does to them (`Precise`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.formulas import (  # noqa: F401  # modules register theirs
    FUNCTIONS,
    PRIMITIVES,
    NoFormulaError,
    convolutions,
    elementwise,
    losses,
    moving,
    normalisation,
    reductions,
)
from mindrlhf_msprobe.replay.precise.tape import DRAWS, Precision, Tape, backward
from mindrlhf_msprobe.replay.precise.values import Value, leaves_of, replaced


def has_formula(kind: str, name: str) -> bool:
    """Return whether there is a formula for an operator.

    Args:
        kind: as entries have it: Mint, MintFunctional, Functional, Tensor, Primitive.
        name: of a primitive, its class.
    """
    return name in (PRIMITIVES if kind == "Primitive" else FUNCTIONS)


def answer(
    tape: Tape,
    kind: str,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
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
    formula = (PRIMITIVES if kind == "Primitive" else FUNCTIONS).get(name)
    if formula is None:
        raise NoFormulaError(name)
    tape.kind, tape.name, tape.keywords = kind, name, frozenset(kwargs)
    try:
        found = formula.compute(tape, settings, args, kwargs)
    except (TypeError, AttributeError) as error:
        raise NoFormulaError(f"{name}: {error}") from error
    return replaced(found, lambda one: tape.of(one) if isinstance(one, np.ndarray) else one)


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

    def lifted(leaf: Any) -> Any:
        if isinstance(leaf, slice):
            return slice(*map(lifted, (leaf.start, leaf.stop, leaf.step)))
        if not isinstance(leaf, np.ndarray):
            return leaf
        inputs.append(tape.value(leaf))
        return inputs[-1]

    given, named = replaced([*args], lifted), replaced(dict(kwargs), lifted)
    result = answer(tape, kind, name, given, named, settings)
    outputs = [leaf if isinstance(leaf, Value) else None for leaf in leaves_of(result)]
    return Precise(outputs, inputs, tape)
