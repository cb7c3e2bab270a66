"""A small numerical error in one cell: the demo's wrong kernel."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import UsageError, nearest_of
from mindrlhf_msprobe.findings import Cause

RELATIVE_ERROR = 1e-3


@dataclass(frozen=True)
class Fault:
    """A cell that computes slightly wrong values in one phase, from one training step on.

    Args:
        phase: the name of the phase.
        cell_name: the cell as `cells_and_names()` of the phase's network names it; "root" is the
            network itself.
        from_step: the first training step in which it is wrong.
    """

    phase: str
    cell_name: str
    from_step: int

    first_token = 0
    """The generated token that it changes first, in a phase that counts tokens."""

    def __str__(self) -> str:
        return f"{self.phase}:{self.cell_name}"

    def is_named_by(self, cell: str | None, cause: Cause) -> bool:
        """Return whether a verdict that blames this cell names the fault."""
        return cell == self.cell_name

    def plant(self, network: nn.Cell, is_active: Callable[[], bool]) -> "PlantedFault":
        """Make the cell of `network` return wrong values whenever `is_active()` is true.

        The cell's own `construct` is replaced, so that whoever watches the cell from outside sees
        right inputs, right parameters and a wrong output, now or later; gradients flow as before.

        Raises:
            UsageError: the network has no such cell.
        """
        return PlantedFault(find_cell(network, self.cell_name), is_active)


class PlantedFault:
    """A cell whose `construct` is replaced.

    Attributes:
        calls: how often the cell has returned wrong values.
    """

    def __init__(self, cell: nn.Cell, is_active: Callable[[], bool]) -> None:
        self._cell = cell
        self.calls = 0
        right_construct = cell.construct

        def construct(*args: Any, **kwargs: Any) -> Any:
            output = right_construct(*args, **kwargs)
            if not is_active():
                return output
            self.calls += 1
            return disturb(output)

        cell.construct = construct


def find_cell(network: nn.Cell, name: str) -> nn.Cell:
    """Return the cell of that name, "root" being the network itself.

    Raises:
        UsageError: the network has no such cell.
    """
    cells = dict(network.cells_and_names())
    cells["root"] = network
    if name not in cells:
        known = [cell for cell in cells if cell]
        network_name, hint = type(network).__name__, nearest_of(name, known)
        raise UsageError.saying(
            "demo.no_cell",
            network=network_name,
            name=repr(name),
            nearest=hint,
            cells=", ".join(known),
        )
    return cells[name]


def disturb(output: Any) -> Any:
    """Return a cell's output with an error in its first floating tensor, else in its first tensor.

    Tuples, lists and dicts are searched in order; everything but that tensor stays the same object.

    Raises:
        TypeError: if there is no tensor in the output.
    """
    tensors = list(tensors_of(output))
    if not tensors:
        raise TypeError(message("demo.no_tensor", kind=type(output).__name__))
    chosen = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
    return replace(output, chosen, disturb_tensor(chosen))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def replace(value: Any, old: Tensor, new: Tensor) -> Any:
    """Return nested tuples, lists and dicts with `new` wherever the object `old` was."""
    if value is old:
        return new
    if isinstance(value, (tuple, list)):
        return type(value)([replace(item, old, new) for item in value])
    if isinstance(value, dict):
        return {key: replace(item, old, new) for key, item in value.items()}
    return value


def disturb_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor with an error in channel 0, the first place of its last axis.

    There a floating value x becomes x * (1 + RELATIVE_ERROR), but 0 becomes RELATIVE_ERROR;
    integers grow by 1, booleans flip. The gradient is that of the identity.
    """
    values = tensor.asnumpy()
    channel = np.zeros_like(values, bool)
    np.atleast_1d(channel)[..., :1] = True
    if not tensor.is_floating_point():
        wrong = values ^ channel if values.dtype == bool else values + channel
        return Tensor(wrong.astype(values.dtype))
    error = RELATIVE_ERROR * np.where(values == 0, 1, values)
    return tensor + Tensor(np.where(channel, error, 0), tensor.dtype)
