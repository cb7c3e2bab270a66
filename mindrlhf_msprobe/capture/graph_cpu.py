"""The nodes that hand over what passes in a graph on CPU: calls of host functions.

MindSpore compiles these functions. They change nothing: a value passes as it is, and only waits
until it has been handed over.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from mindspore import nn, ops
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.graph_keydata import (
    CLOSE_VALUE,
    DATA,
    NO_CELL,
    OPEN_VALUE,
    VALUE_GRADIENT,
    VALUE_TENSOR,
)
from mindrlhf_msprobe.capture.graph_probes import (
    CLOSE,
    GRADIENT,
    HELD_AS,
    OPEN,
    SITE,
    TENSOR,
)

_cast = ops.Cast()
_concat = ops.Concat(0)
_depend = ops.Depend()
_reshape = ops.Reshape()


def packed(call, site, tensor):
    """Return the digits of a call and of a probe, and a tensor's elements, as one flat array."""
    tensor = F.stop_gradient(tensor)
    held_as = HELD_AS(tensor)
    elements = _reshape(_cast(tensor, held_as), (-1,))
    return _concat((_cast(call, held_as), _cast(site, held_as), elements))


class Border(nn.Cell):
    """Passes a tensor on as it is, and hands over the gradient that comes back."""

    def construct(self, tensor, call, site):
        """Return the tensor."""
        return tensor

    def bprop(self, tensor, call, site, out, dout):
        """Return the gradient as it is."""
        return _depend(dout, GRADIENT(packed(call, site, dout))), call, site


BORDER = Border()


def opened(cell, args, kwargs):
    """Open a call and return its number."""
    return OPEN(SITE(cell, "", (), (args, kwargs)))


def closed(cell, call, output):
    """Close a call."""
    return CLOSE(_concat((call, SITE(cell, "", (), output))))


def watched(cell, part, path, tensor, call):
    """Hand a tensor over, and later its gradient; return the tensor."""
    site = SITE(cell, part, path, tensor)
    return BORDER(_depend(tensor, TENSOR(packed(call, site, tensor))), call, site)


def handed_over(cell, part, path, tensor, call):
    """Hand a tensor over and return the call, which waits for it."""
    return _depend(call, TENSOR(packed(call, SITE(cell, part, path, tensor), tensor)))


# Key data: a value that `save` is given, and the gradient that `save_grad` waits for.


class KeyDataBorder(nn.Cell):
    """Passes a tensor on as it is, and saves the gradient that comes back."""

    def construct(self, tensor, site):
        """Return the tensor."""
        return tensor

    def bprop(self, tensor, site, out, dout):
        """Return the gradient as it is."""
        return _depend(dout, VALUE_GRADIENT(packed(site, site, dout))), site


KEY_DATA_BORDER = KeyDataBorder()


def value_opened(name, data):
    """Open a value that is saved and return its number."""
    return OPEN_VALUE(SITE(NO_CELL, DATA, (name,), data))


def value_tensor(path, tensor, value):
    """Hand over a tensor of a value that is saved."""
    VALUE_TENSOR(packed(value, SITE(NO_CELL, DATA, path, tensor), tensor))


def value_closed(name, data, value):
    """Close a value that is saved."""
    CLOSE_VALUE(_concat((value, SITE(NO_CELL, DATA, (name,), data))))


def gradient_saved(name, tensor):
    """Return a tensor, whose gradient will be saved."""
    return KEY_DATA_BORDER(tensor, SITE(NO_CELL, DATA, (name,), tensor))
