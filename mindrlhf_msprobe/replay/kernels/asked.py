"""What is said between the training and the process that computes by kernels of float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class NamedDtype:
    """A dtype among the arguments of an operator, by its name."""

    name: str


@dataclass(frozen=True)
class Asked:
    """One operator on several sets of the same arguments.

    Attributes:
        operator: its name in the installed list.
        attributes: of a primitive, what it is made with.
        args, kwargs: what it is called with, arrays in the place of tensors.
        draws: for each computation the arrays, in the order in which they stand in the arguments.
        arriving: for each computation the gradient that arrives at one output; none: the outputs
            are asked for.
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


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays in a structure, in order."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from arrays_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays_of(item)


def filled(value: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """Return a structure with each leaf replaced, in order."""
    if isinstance(value, Mapping):
        return {key: filled(item, of_leaf) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(filled(item, of_leaf) for item in value)
    return of_leaf(value)
