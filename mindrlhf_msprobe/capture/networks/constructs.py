"""The construct of a cell: its own, a wrapper with probes in its place, and its arguments."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.framework.private import JITTED

#: The cell's attributes that hold its own construct while a wrapper stands in its place, and the
#: wrapper.
CONSTRUCT = "msprobe_construct"
WRAPPER = "msprobe_wrapper"
#: The network's attribute that holds the names of arguments that are left out.
_LEFT_OUT = "msprobe_left_out_arguments"
_MOST_DECORATED = 16  # lines before a function's own


def is_wrapped(cell: nn.Cell) -> bool:
    """Return whether a wrapper stands in the place of a cell's construct at this moment."""
    attributes = vars(cell)
    return WRAPPER in attributes and attributes.get("construct") is attributes[WRAPPER]


def own_construct(cell: nn.Cell) -> Callable[..., Any]:
    """Return a cell's construct, as it is without a wrapper."""
    construct: Callable[..., Any] = vars(cell)[CONSTRUCT] if is_wrapped(cell) else cell.construct
    return construct


def is_jitted(cell: nn.Cell) -> bool:
    """Return whether a cell's construct is compiled also where Python runs the cell."""
    construct = own_construct(cell)
    return hasattr(getattr(construct, "__func__", construct), JITTED)


def argument_names(cell: nn.Cell) -> tuple[str, ...]:
    """Return the names of a cell's positional arguments, in their order; () if it names none.

    A construct that was put in the place of the class's, and takes whatever it is given, says
    nothing: the class's own does.
    """
    return _names(own_construct(cell)) or _names(type(cell).construct)[1:]


def construct_frames(cell: nn.Cell) -> tuple[str, ...]:
    """Return where a cell's construct stands, as the one frame of a call stack; () if not known."""
    for construct in (own_construct(cell), type(cell).construct):
        function = inspect.unwrap(getattr(construct, "__func__", construct))
        code = getattr(function, "__code__", None)
        if code is not None:
            file, line = code.co_filename, code.co_firstlineno
            source = _first_line(file, line, code.co_name)
            return (f"File {file}, line {source[0]}, in {code.co_name}, \n {source[1]}",)
    return ()


@lru_cache(maxsize=1 << 12)
def _first_line(file: str, line: int, name: str) -> tuple[int, str]:
    """Return the line of a function's `def`, which follows its decorators, and its text."""
    for number in range(line, line + _MOST_DECORATED):
        text = linecache.getline(file, number).strip()
        if text.startswith((f"def {name}(", "lambda")):
            return number, text
    return line, linecache.getline(file, line).strip()


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
