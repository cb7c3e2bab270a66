"""Wrappers in the place of a cell's `construct`: how they get there, and how they go."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.cells import CONSTRUCT, WRAPPER, is_wrapped
from mindrlhf_msprobe.capture.framework.generated_modules import load
from mindrlhf_msprobe.capture.framework.hooks import left_out_of_copies

#: The cell's attribute that holds its number.
NUMBER = "msprobe_cell"


@dataclass(frozen=True)
class Asked:
    """What a wrapper hands over.

    Attributes:
        tensors: the call's inputs and outputs, not only that it happened.
        parameters: the attributes that hold the cell's own parameters.
        gradients: the gradients of inputs and outputs.
        elements: tensors as they are, where the graph would hand over their statistics alone.
    """

    tensors: bool = True
    parameters: tuple[str, ...] = ()
    gradients: bool = False
    elements: bool = False

    def __or__(self, other: Asked) -> Asked:
        return Asked(
            self.tensors or other.tensors,
            tuple(dict.fromkeys((*self.parameters, *other.parameters))),
            self.gradients or other.gradients,
            self.elements or other.elements,
        )


_HEAD = """\
\"\"\"Probes of {what}.\"\"\"

from mindrlhf_msprobe.capture.graph.compiled import ENTERING, LEAVING, UPDATING
from mindrlhf_msprobe.capture.graph.probes import HOLDS_PARAMETER, LEFT_ALONE


def construct(self, *args, **kwargs):
    if LEFT_ALONE(self.{NUMBER}):
        return self.{CONSTRUCT}(*args, **kwargs)
"""


def cell_source(asked: Asked) -> str:
    """Return the source of a module whose `construct` wraps a cell's.

    What it calls hands over where it stands, not where its result is used: as a statement of its
    own, or in every branch. MindSpore leaves out what only a branch that is never taken would use.
    """
    given = asked.tensors, asked.gradients, asked.parameters
    watches = asked.tensors and asked.gradients
    parameters = "".join(f"self.{name}, " for name in asked.parameters)
    lines = [
        f"parameters = ({parameters})",
        f"enter, constants = ENTERING(self.{NUMBER}, {given}, args, kwargs, parameters)",
    ]
    enter = "enter(args, kwargs, parameters, constants)"
    leave = "leave(returned, call, constants)"
    # Parameters are never passed on by a function of ours: see HOLDS_PARAMETER.
    if watches:
        lines += [
            f"call, seen_args, seen_kwargs = {enter}",
            f"if HOLDS_PARAMETER(self.{NUMBER}, (args, kwargs)):",
            f"    returned = self.{CONSTRUCT}(*args, **kwargs)",
            "else:",
            f"    returned = self.{CONSTRUCT}(*seen_args, **seen_kwargs)",
        ]
    else:
        lines += [f"call = {enter}", f"returned = self.{CONSTRUCT}(*args, **kwargs)"]
    lines.append(f"leave, constants = LEAVING(self.{NUMBER}, {given[:2]}, returned)")
    if watches:
        lines += [
            f"if HOLDS_PARAMETER(self.{NUMBER}, returned):",
            f"    {leave}",
            "    return returned",
            f"return {leave}",
        ]
    else:
        lines += [leave, "return returned"]
    return _source(f"a cell with the parameters {list(asked.parameters)}", lines)


def optimizer_source() -> str:
    """Return the source of a module whose `construct` wraps an optimizer's."""
    return _source(
        "an optimizer",
        [
            f"enter, constants = UPDATING(self.{NUMBER}, args)",
            "call = enter(args, constants)",
            f"leave, constants = LEAVING(self.{NUMBER}, (False, False), ())",
            "leave((), call, constants)",
            f"return self.{CONSTRUCT}(*args, **kwargs)",
        ],
    )


def _source(what: str, lines: list[str]) -> str:
    head = _HEAD.format(what=what, CONSTRUCT=CONSTRUCT, NUMBER=NUMBER)
    return head + "".join(f"    {x}\n" for x in lines)


def function_of(source: str, *, like: Callable[..., Any] | None) -> FunctionType:
    """Return a function of `source`; each source is written once.

    Args:
        like: the bound method whose signature it shows, so that who looks at a cell's
            arguments finds them; None shows `(*args, **kwargs)`, which makes MindSpore
            compile a call as it was made, without the arguments that were left out.
    """
    made = _construct_of(source)
    if like is None:
        return made
    copy = FunctionType(made.__code__, made.__globals__, made.__name__)
    copy.__qualname__, copy.__module__ = made.__qualname__, made.__module__
    signature = inspect.signature(like)
    arguments = list(signature.parameters.values())
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    vars(copy)["__signature__"] = signature.replace(parameters=[itself, *arguments])
    return copy


@functools.cache
def _construct_of(source: str) -> FunctionType:
    construct: FunctionType = load(source).construct
    return construct


_ASKED = "msprobe_asked"
#: A cell is wrapped as what takes gradients, not as a cell among others.
OPTIMIZER = "msprobe_optimizer"
#: A cell lies inside a recomputed one, and is computed again as a part of it.
INSIDE_RECOMPUTED = "msprobe_inside_recomputed"
_OWN_CONSTRUCT = "msprobe_own_construct"  # what stood in the cell's own attributes before
_ALL = (CONSTRUCT, NUMBER, _ASKED, WRAPPER, OPTIMIZER, INSIDE_RECOMPUTED, _OWN_CONSTRUCT)
_numbers = itertools.count(1)


class _Number(int):
    """A cell's number; a copy of the cell has none, for it is not watched."""

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return 0


def number_of(cell: nn.Cell) -> int:
    """Return the number by which the probes of a cell know it; 0 where it has never had any."""
    return int(vars(cell).get(NUMBER, 0))


def has_been_asked(cell: nn.Cell, asked: Asked) -> bool:
    """Return whether a cell has, or had while MindSpore compiled, a wrapper for what is asked."""
    before: Asked | None = vars(cell).get(_ASKED)
    return before is not None and before | asked == before


def wrap(
    cell: nn.Cell, source: Callable[[Asked], str], asked: Asked, *, shows_signature: bool
) -> None:
    """Put a wrapper in the place of a cell's construct, for what is asked and was asked before.

    Args:
        source: returns the source of the wrapper's module.
        shows_signature: whether the wrapper shows the construct's own signature, not `(*args,
            **kwargs)`.
    """
    attributes = vars(cell)
    if is_wrapped(cell) and has_been_asked(cell, asked):
        return
    if _ASKED not in attributes:
        attributes[NUMBER] = _Number(next(_numbers))
        left_out_of_copies(cell, _without)
    else:
        asked = asked | attributes[_ASKED]
    if not is_wrapped(cell):
        known = attributes.get(CONSTRUCT)
        _note_own(cell)
        if known == attributes[CONSTRUCT] and asked == attributes.get(_ASKED):
            wrapper = attributes[WRAPPER]
            if hasattr(wrapper, "__signature__") == shows_signature:
                attributes["construct"] = wrapper
                return
    attributes[_ASKED] = asked
    like = attributes[CONSTRUCT] if shows_signature else None
    attributes[WRAPPER] = MethodType(function_of(source(asked), like=like), cell)
    attributes["construct"] = attributes[WRAPPER]


def unwrap(cell: nn.Cell) -> None:
    """Give a cell its own construct back; what was compiled keeps its probes."""
    if is_wrapped(cell):
        _restore(vars(cell))


def put_back(cell: nn.Cell) -> None:
    """Put back the wrapper that `unwrap` took off."""
    if WRAPPER in vars(cell) and not is_wrapped(cell):
        _note_own(cell)
        vars(cell)["construct"] = vars(cell)[WRAPPER]


def mark(cell: nn.Cell, name: str) -> None:
    """Note something of a cell: `OPTIMIZER` or `INSIDE_RECOMPUTED`."""
    vars(cell)[name] = True


def has_mark(cell: nn.Cell, name: str) -> bool:
    """Return whether `mark` noted something of a cell."""
    return bool(vars(cell).get(name))


def _note_own(cell: nn.Cell) -> None:
    attributes = vars(cell)
    if "construct" in attributes:
        attributes[_OWN_CONSTRUCT] = attributes["construct"]
    else:
        attributes.pop(_OWN_CONSTRUCT, None)
    attributes[CONSTRUCT] = cell.construct


def _restore(attributes: dict[str, Any]) -> None:
    attributes.pop("construct", None)
    if _OWN_CONSTRUCT in attributes:
        attributes["construct"] = attributes.pop(_OWN_CONSTRUCT)


def _without(attributes: dict[str, Any]) -> None:
    """Take out of a copy's attributes what stands in a wrapped cell's."""
    if attributes.get("construct") is attributes.get(WRAPPER):
        _restore(attributes)
    for name in _ALL:
        attributes.pop(name, None)
