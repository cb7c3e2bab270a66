"""The nodes that hand over what passes in a graph on Ascend: files that the device writes.

The writing itself is tensor_dump.py's, which has not run on Ascend yet; all else of it runs
on CPU, with stand_in.py in its place.

The device hands what it dumps to a thread of the host, which writes it later, in order. So a mark
that is dumped last has been written when everything has.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.framework.private import EXECUTOR
from mindrlhf_msprobe.capture.graph import reading
from mindrlhf_msprobe.capture.graph.folder import FENCE, FOLDERS
from mindrlhf_msprobe.capture.graph.keydata import DATA, NO_CELL, VALUES
from mindrlhf_msprobe.capture.graph.probes import SITES, Question, Site
from mindrlhf_msprobe.capture.graph.reduced import EMPTY, REDUCTION, WHOLE, reduced
from mindrlhf_msprobe.capture.graph.structure import Lines, Visit
from mindrlhf_msprobe.capture.graph.switch import stands_in
from mindrlhf_msprobe.common.message import message

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.graph.calls import Receiver

if stands_in():
    from mindrlhf_msprobe.capture.graph.stand_in import dump, dump_gradient, write_now
else:
    from mindrlhf_msprobe.capture.graph.tensor_dump import dump, dump_gradient, write_now


_depend = ops.Depend()
READING = reading.GraphReading()
MARK = Tensor(np.zeros(1, np.int32))


class Border(nn.Cell):
    """Passes a tensor on as it is, and writes the gradient that comes back, or its statistics."""

    def construct(self, tensor, file, how, written):
        """Return the tensor."""
        return tensor

    def bprop(self, tensor, file, how, written, out, dout):
        """Return the gradient as it is; its file comes behind those that `written` waits for."""
        leaves = reduced(how, _depend(dout, written))
        return _depend(dout, dump_gradient(file, leaves)), file, how, written


BORDER = Border()


class _File(Question):
    """The file a probe writes, without what TensorDump appends to the name."""

    in_python = "nothing"  # not read

    def answer(
        self, kind: str, cell: int, part: str, path: tuple[Any, ...], value: Any, how: str = WHOLE
    ) -> str:
        """Return the path."""
        number = SITES.number(Site(cell, part, path, value))
        kind = kind if how in (WHOLE, EMPTY) else reading.REDUCED + kind
        return FOLDERS.file(f"{kind}.{number}", lambda: READING)


FILE = _File()


def opened(cell, given):
    """Open a call and return what stands for it."""
    dump(FILE(reading.OPEN, cell, "", (), given), MARK)
    return MARK


def closed(cell, call, returned):
    """Close a call."""
    dump(FILE(reading.CLOSE, cell, "", (), returned), call)


def handed_over(cell, part, path, tensor, call):
    """Hand a tensor over."""
    how = REDUCTION(cell, tensor)
    dump(FILE(reading.TENSOR, cell, part, path, tensor, how), reduced(how, F.stop_gradient(tensor)))


def watched(cell, part, path, tensor, call):
    """Hand a tensor over, and later its gradient; return the tensor."""
    how = REDUCTION(cell, tensor)
    leaves = reduced(how, F.stop_gradient(tensor))
    written = _depend(MARK, dump(FILE(reading.TENSOR, cell, part, path, tensor, how), leaves))
    return BORDER(tensor, FILE(reading.GRADIENT, cell, part, path, tensor, how), how, written)


# What a call is given and what it returns.

_HEAD = ("from mindrlhf_msprobe.capture.graph.ascend import closed, handed_over, opened, watched",)


def entering(visit: Visit, returned: str) -> Lines:
    """Write the function that opens a call, hands over tensors of it and returns an expression."""
    opening = f"call = opened(constants[0], {visit.source})"
    return _HEAD, (opening, *_handing_over(visit), f"return {returned}"), (visit.cell,)


def leaving(visit: Visit, returned: str) -> Lines:
    """Write the function that hands over what a call returns and closes it; as `entering`."""
    closing = f"closed(constants[0], call, {visit.source})"
    return _HEAD, (*_handing_over(visit), closing, f"return {returned}"), (visit.cell,)


def _handing_over(visit: Visit) -> Iterator[str]:
    for found in visit.found:
        place = f"constants[0], {found.site.part!r}, {found.site.path!r}"
        if found.watched:
            yield f"{found.passed} = watched({place}, {found.source}, call)"
        else:
            yield f"handed_over({place}, {found.source}, call)"


def wait() -> None:
    """Return when everything that graphs have written so far has been read, or removed.

    Raises:
        TimeoutError: it does not come.
    """
    if FOLDERS.is_used:
        EXECUTOR.sync()
        FOLDERS.fence(write_now, FENCE)


def before_phase() -> None:
    """Save the key data that graphs wrote while no phase was open, and forget the rest."""
    try:
        wait()
    except OSError as error:  # they do not come, or the folder cannot be listed
        VALUES.fault(error)


VALUES.flush = before_phase


def after_phase(receiver: Receiver) -> None:
    """Hand over what graphs wrote."""
    try:
        wait()
    except OSError as error:
        receiver.fault(message("lost.graph_files"), error)


# Key data: a value that `save` is given, and the gradient that `save_grad` waits for.


def value_opened(name, data):
    """Open a value that is saved and return what stands for it."""
    dump(FILE(reading.OPEN_VALUE, NO_CELL, DATA, (name,), data), MARK)
    return MARK


def value_tensor(path, tensor, value):
    """Hand over a tensor of a value that is saved."""
    dump(FILE(reading.VALUE, NO_CELL, DATA, path, tensor), F.stop_gradient(tensor))


def value_closed(name, data, value):
    """Close a value that is saved."""
    dump(FILE(reading.CLOSE_VALUE, NO_CELL, DATA, (name,), data), value)


def gradient_saved(name, tensor):
    """Return a tensor, whose gradient will be saved."""
    return BORDER(
        tensor, FILE(reading.VALUE_GRADIENT, NO_CELL, DATA, (name,), tensor), "whole", MARK
    )
