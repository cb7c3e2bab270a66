"""The construct of a cell: its own, and whether a wrapper with probes stands in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.framework.private import JITTED

#: The cell's attributes that hold its own construct while a wrapper stands in its place, and the
#: wrapper.
CONSTRUCT = "msprobe_construct"
WRAPPER = "msprobe_wrapper"


def is_wrapped(cell: nn.Cell) -> bool:
    """Tell whether a wrapper stands in the place of a cell's construct at this moment."""
    attributes = vars(cell)
    return WRAPPER in attributes and attributes.get("construct") is attributes[WRAPPER]


def own_construct(cell: nn.Cell) -> Callable[..., Any]:
    """Return a cell's construct, as it is without a wrapper."""
    construct: Callable[..., Any] = vars(cell)[CONSTRUCT] if is_wrapped(cell) else cell.construct
    return construct


def is_jitted(cell: nn.Cell) -> bool:
    """Tell whether a cell's construct is compiled also where Python runs the cell."""
    construct = own_construct(cell)
    return hasattr(getattr(construct, "__func__", construct), JITTED)
