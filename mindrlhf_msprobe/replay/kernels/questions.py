"""What is said between the training and the process that computes by kernels of float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class NamedDtype:
    """A dtype among the arguments of an operator, by its name."""

    name: str


@dataclass(frozen=True)
class Question:
    """One operator on several sets of the same arguments.

    Attributes:
        operator: its name in the installed list.
        attributes: of a primitive, what it is made with.
        args, kwargs: what it is called with, arrays in the place of tensors.
        draws: for each computation the arrays, in the order in which they stand in the arguments.
        arriving: for each computation the gradient that arrives at one output; none: the outputs
            are wanted.
        output: of which output.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    draws: tuple[tuple[np.ndarray, ...], ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    arriving: tuple[np.ndarray, ...] = ()
    output: int = 0


@dataclass(frozen=True)
class Answer:
    """What kernels gave.

    Attributes:
        results: for each computation an array for each output, or for each array that was given a
            gradient, None for one that has none.
        several: whether the operator returns a tuple.
    """

    results: tuple[tuple[np.ndarray | None, ...], ...] = ()
    several: bool = False


@dataclass(frozen=True)
class Refused:
    """That there is no kernel, or none that computes in float64; why, for those who develop."""

    why: str
