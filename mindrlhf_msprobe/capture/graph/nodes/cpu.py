"""The nodes that hand over what passes in a graph on CPU: calls of host functions.

MindSpore compiles these functions. They change nothing: a value passes as it is, and only waits
until it has been handed over.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from mindspore import nn, ops

from mindrlhf_msprobe.capture.graph.array import as_array
from mindrlhf_msprobe.capture.graph.keydata import (
    CLOSE_VALUE,
    DATA,
    NO_CELL,
    OPEN_VALUE,
    VALUE_GRADIENT,
    VALUE_TENSOR,
)
from mindrlhf_msprobe.capture.graph.probes import (
    CLOSE,
    GRADIENT,
    GROUP,
    OPEN,
    PARAMETER,
    PYTHON_AROUND,
    SITE,
    TAKING,
    TENSOR,
)

_depend = ops.Depend()


class Border(nn.Cell):
    """Passes a tensor on as it is, and hands over the gradient that comes back."""

    def construct(self, tensor, call, site):
        """Return the tensor."""
        return tensor

    def bprop(self, tensor, call, site, out, dout):
        """Return the gradient as it is."""
        return _depend(dout, GRADIENT(call, site, as_array(dout))), call, site


BORDER = Border()


def opened(cell, args, kwargs):
    """Open a call and return its number."""
    return OPEN(SITE(cell, "", (), (args, kwargs)))


def closed(cell, call, output):
    """Close a call."""
    return CLOSE(call, SITE(cell, "", (), output))


def watched(cell, part, path, tensor, call):
    """Hand a tensor over, and later its gradient; return the tensor."""
    site = SITE(cell, part, path, tensor)
    if PYTHON_AROUND(cell):
        return BORDER(_depend(tensor, TENSOR(call, site, as_array(tensor))), call, site)
    TENSOR(call, site, as_array(tensor))
    return BORDER(tensor, call, site)


def handed_over(cell, part, path, tensor, call):
    """Hand a tensor over and return the call, which waits for it."""
    site = SITE(cell, part, path, tensor)
    if part == "parameters":
        return _depend(call, PARAMETER(call, site, as_array(tensor)))
    return _depend(call, TENSOR(call, site, as_array(tensor)))


def all_handed_over(cell, part, places, tensors, call):
    """Hand several tensors over by one call, if `TOGETHER` says so; return the call."""
    hand_over = TAKING(part, tensors)
    # MindSpore does not see that a function which is found while it compiles has side effects.
    return _depend(call, hand_over(call, GROUP(cell, part, places, tensors), *tensors))


# Key data: a value that `save` is given, and the gradient that `save_grad` waits for.


class KeyDataBorder(nn.Cell):
    """Passes a tensor on as it is, and saves the gradient that comes back."""

    def construct(self, tensor, site):
        """Return the tensor."""
        return tensor

    def bprop(self, tensor, site, out, dout):
        """Return the gradient as it is."""
        return _depend(dout, VALUE_GRADIENT(site, as_array(dout))), site


KEY_DATA_BORDER = KeyDataBorder()


def value_opened(name, data):
    """Open a value that is saved and return its number."""
    return OPEN_VALUE(SITE(NO_CELL, DATA, (name,), data))


def value_tensor(path, tensor, value):
    """Hand over a tensor of a value that is saved."""
    VALUE_TENSOR(value, SITE(NO_CELL, DATA, path, tensor), as_array(tensor))


def value_closed(name, data, value):
    """Close a value that is saved."""
    CLOSE_VALUE(value, SITE(NO_CELL, DATA, (name,), data))


def gradient_saved(name, tensor):
    """Return a tensor, whose gradient will be saved."""
    return KEY_DATA_BORDER(tensor, SITE(NO_CELL, DATA, (name,), tensor))
