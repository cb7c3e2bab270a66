"""Wrappers in the place of a cell's `construct`: how they get there, and how they go."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import MethodType
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.copies import left_out_of_copies
from mindrlhf_msprobe.capture.graph_source import CONSTRUCT, NUMBER, Asked, WrapperSources

_ASKED = "msprobe_asked"
_WRAPPER = "msprobe_wrapper"
_OPTIMIZER = "msprobe_optimizer"  # wrapped as what takes gradients, not as a cell among others
_INSIDE_RECOMPUTED = "msprobe_inside_recomputed"
_OWN_CONSTRUCT = "msprobe_own_construct"  # what stood in the cell's own attributes before
_ALL = (CONSTRUCT, NUMBER, _ASKED, _WRAPPER, _OPTIMIZER, _INSIDE_RECOMPUTED, _OWN_CONSTRUCT)
_numbers = itertools.count(1)
_sources = WrapperSources()


class _Number(int):
    """A cell's number; a copy of the cell has none, for it is not watched."""

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return 0


def number_of(cell: nn.Cell) -> int:
    """Return the number by which the probes of a cell know it; 0 where it has never had any."""
    return int(vars(cell).get(NUMBER, 0))


def is_wrapped(cell: nn.Cell) -> bool:
    """Tell whether a wrapper stands in the place of a cell's construct at this moment."""
    attributes = vars(cell)
    return _WRAPPER in attributes and attributes.get("construct") is attributes[_WRAPPER]


def has_been_asked(cell: nn.Cell, asked: Asked) -> bool:
    """Tell whether a cell has, or had while MindSpore compiled, a wrapper for what is asked."""
    return _ASKED in vars(cell) and bool(vars(cell)[_ASKED].covers(asked))


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
            wrapper = attributes[_WRAPPER]
            if hasattr(wrapper, "__signature__") == shows_signature:
                attributes["construct"] = wrapper
                return
    attributes[_ASKED] = asked
    like = attributes[CONSTRUCT] if shows_signature else None
    attributes[_WRAPPER] = MethodType(_sources.function(source(asked), like=like), cell)
    attributes["construct"] = attributes[_WRAPPER]


def unwrap(cell: nn.Cell) -> None:
    """Give a cell its own construct back; what was compiled keeps its probes."""
    if is_wrapped(cell):
        _restore(vars(cell))


def put_back(cell: nn.Cell) -> None:
    """Put back the wrapper that `unwrap` took off."""
    if _WRAPPER in vars(cell) and not is_wrapped(cell):
        _note_own(cell)
        vars(cell)["construct"] = vars(cell)[_WRAPPER]


def own_construct(cell: nn.Cell) -> Callable[..., Any]:
    """Return a cell's construct, as it is without a wrapper."""
    construct: Callable[..., Any] = vars(cell)[CONSTRUCT] if is_wrapped(cell) else cell.construct
    return construct


def is_jitted(cell: nn.Cell) -> bool:
    """Tell whether a cell's construct is compiled also where Python runs the cell."""
    construct = own_construct(cell)
    return hasattr(getattr(construct, "__func__", construct), "__wrapped_by_jit__")


def note_optimizer(cell: nn.Cell) -> None:
    """Note that a cell is wrapped as what takes gradients."""
    vars(cell)[_OPTIMIZER] = True


def is_optimizer(cell: nn.Cell) -> bool:
    """Tell whether a cell is wrapped as what takes gradients."""
    return bool(vars(cell).get(_OPTIMIZER))


def note_inside_recomputed(cell: nn.Cell) -> None:
    """Note that a cell lies inside a recomputed one, and is computed again as a part of it."""
    vars(cell)[_INSIDE_RECOMPUTED] = True


def is_inside_recomputed(cell: nn.Cell) -> bool:
    """Tell whether a cell lies inside a recomputed one."""
    return bool(vars(cell).get(_INSIDE_RECOMPUTED))


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
    if attributes.get("construct") is attributes.get(_WRAPPER):
        _restore(attributes)
    for name in _ALL:
        attributes.pop(name, None)
