"""The nodes that hand over what passes in a graph on CPU: calls of host functions.

MindSpore compiles these functions, and those that `entering` and `leaving` write. They
change nothing: a value passes as it is, and only waits until it has been handed over.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Sequence

import mindspore
from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.graph.probes import (
    DATA,
    GRADIENT,
    MOST_TOGETHER,
    NO_CELL,
    SITE,
    SITES,
    HandedOver,
    Hands,
    Lines,
    Site,
    Visit,
    array_of,
    as_array,
)
from mindrlhf_msprobe.capture.tensors.tree import TensorOutline

_depend = ops.Depend()


class Border(nn.Cell):
    """Passes a tensor on as it is, and hands over the gradient that comes back."""

    def construct(self, tensor, call, site):
        """Return the tensor."""
        return tensor

    def bprop(self, tensor, call, site, out, dout):
        """Return the gradient as it is."""
        return _depend(dout, GRADIENT(call, site, F.stop_gradient(dout))), call, site


class UncommonBorder(Border):
    """The same for a tensor without axes or elements, which takes more to compile."""

    def bprop(self, tensor, call, site, out, dout):
        """Return the gradient as it is."""
        return _depend(dout, GRADIENT(call, site, as_array(dout))), call, site


BORDER, UNCOMMON_BORDER = Border(), UncommonBorder()


# What a call is given and what it returns: one host call each.

_HEAD = (
    "from mindspore import float32, ops",
    "from mindspore.ops.functional import stop_gradient",
    "from mindrlhf_msprobe.capture.graph.cpu import BORDER, UNCOMMON_BORDER",
    "from mindrlhf_msprobe.capture.graph.probes import Hands, host_function_of",
    "cast, depend, reshape = ops.Cast(), ops.Depend(), ops.Reshape()",
)


def entering(visit: Visit, returned: str, *, ends: bool = False) -> Lines:
    """Write the function that opens a call, hands over tensors of it and returns an expression.

    Args:
        ends: whether that closes the call, too.
    """
    writing = _Writing(visit)
    first, *others = writing.together()
    writing.hand_over(Hands.ENTERED, first)
    for found in others:
        writing.hand_over(Hands.MORE, found)
    if ends:
        writing.hand_over(Hands.LEFT, [])
    return writing.returning(returned)


def leaving(visit: Visit, returned: str) -> Lines:
    """Write the function that hands over what a call returns and closes it; as `entering`."""
    writing = _Writing(visit)
    *others, last = writing.together()
    for found in others:
        writing.hand_over(Hands.MORE, found)
    writing.hand_over(Hands.LEFT, last)
    return writing.returning(returned)


class _Writing:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._call = Site(visit.cell, "", visit.path, visit.outline)
        self._head = [*_HEAD]
        self._body = [f"{found.name} = {found.source}" for found in visit.found]
        self._constants: list[Tensor] = []

    def together(self) -> list[list[HandedOver]]:
        """Return the tensors of each call of a host function, at least one call."""
        found = self._visit.found
        starts = range(0, max(len(found), 1), MOST_TOGETHER)
        return [found[start : start + MOST_TOGETHER] for start in starts]

    def hand_over(self, hands: Hands, found: Sequence[HandedOver]) -> None:
        """Call a host function; what follows waits for it where it waits for the call."""
        sites = [each.site for each in found]
        group = SITES.group(sites if hands is Hands.MORE else [self._call, *sites])
        arrays = [_array(each) for each in found if 0 not in each.site.outline.shape]
        of_parameters = any(site.part == "parameters" for site in sites)
        function = f"HAND_OVER{len(self._constants)}"
        self._head.append(
            f"{function} = host_function_of({hands}, {len(arrays)}, of_parameters={of_parameters})"
        )
        call = [] if hands is Hands.ENTERED else ["call"]
        taken = f"{function}({', '.join([*call, self._constant(group), *arrays])})"
        self._body.append(f"call = {f'depend(call, {taken})' if call else taken}")

    def returning(self, returned: str) -> Lines:
        """Return the function, which watches tensors and returns an expression."""
        # What Python does next waits until tensors have been handed over.
        waits = mindspore.get_context("mode") != mindspore.GRAPH_MODE
        for each in self._visit.found:
            if each.watched:
                tensor = f"depend({each.name}, call)" if waits else each.name
                site = self._constant(SITES.number(each.site))
                shape = each.site.outline.shape
                border = "BORDER" if shape and 0 not in shape else "UNCOMMON_BORDER"
                self._body.append(f"{each.passed} = {border}({tensor}, call, {site})")
        self._body.append(f"return {returned}")
        return self._head, self._body, tuple(self._constants)

    def _constant(self, number: int) -> str:
        self._constants.append(Tensor(array_of(number)))
        return f"constants[{len(self._constants) - 1}]"


def _array(found: HandedOver) -> str:
    """Return the expression of a tensor that reaches the host as an array: see `as_array`."""
    tensor = f"stop_gradient({found.name})"
    outline: TensorOutline = found.site.outline
    if outline.shape:
        return tensor
    if outline.dtype == "BFloat16":
        tensor = f"cast({tensor}, float32)"
    return f"reshape({tensor}, (1,))"


# Key data: the gradient that `save_grad` waits for.

_CALL = Tensor(array_of(1))  # that is recorded


def gradient_saved(name, tensor):
    """Return a tensor, whose gradient will be saved."""
    return UNCOMMON_BORDER(tensor, _CALL, SITE(NO_CELL, DATA, (name,), tensor))
