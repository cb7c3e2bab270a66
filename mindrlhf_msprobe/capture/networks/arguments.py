"""What the positional arguments of a cell are called in its `construct`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.networks.constructs import own_construct

_LEFT_OUT = "msprobe_left_out_arguments"


def argument_names(cell: nn.Cell) -> tuple[str, ...]:
    """Return the names of a cell's positional arguments, in their order; () if it names none.

    A construct that was put in the place of the class's, and takes whatever it is given, says
    nothing: the class's own does.
    """
    return _names(own_construct(cell)) or _names(type(cell).construct)[1:]


def leave_out_arguments(network: nn.Cell, names: Collection[str]) -> None:
    """Let arguments of these names be left out of what is recorded of a network's cells.

    For what is no value of the computation, such as blocks of memory that are never written.
    """
    vars(network)[_LEFT_OUT] = frozenset(names)


def left_out_arguments(network: nn.Cell) -> frozenset[str]:
    """Return the names of a network's arguments that are left out."""
    found: frozenset[str] = vars(network).get(_LEFT_OUT, frozenset())
    return found


def _names(construct: Callable[..., Any]) -> tuple[str, ...]:
    function = inspect.unwrap(getattr(construct, "__func__", construct))
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    bound = getattr(construct, "__self__", None) is not None
    names: tuple[str, ...] = code.co_varnames[int(bound) : code.co_argcount]
    return names
