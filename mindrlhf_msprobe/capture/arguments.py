"""What the positional arguments of a cell are called in its `construct`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.graph_wrappers import own_construct


def argument_names(cell: nn.Cell) -> tuple[str, ...]:
    """Return the names of a cell's positional arguments, in their order; () if it names none.

    A construct that was put in the place of the class's, and takes whatever it is given, says
    nothing: the class's own does.
    """
    return _names(own_construct(cell)) or _names(type(cell).construct)[1:]


def _names(construct: Callable[..., Any]) -> tuple[str, ...]:
    function = inspect.unwrap(getattr(construct, "__func__", construct))
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    bound = getattr(construct, "__self__", None) is not None
    names: tuple[str, ...] = code.co_varnames[int(bound) : code.co_argcount]
    return names
