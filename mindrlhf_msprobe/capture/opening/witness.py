"""Who looks at calls while they are recorded, beside the recording itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor, nn

    from mindrlhf_msprobe.capture.operators.inventory import Operator


class Witness(Protocol):
    """Is told of the recorded calls of one opening of a phase, in PyNative mode.

    What it is given is the training's own and must not be changed. It is called in the thread that
    trains, in which its time is the recording's.
    """

    def cell_begins(
        self, entry: str, name: str, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Take note of a recorded cell that is about to run."""

    def operator_begins(
        self,
        entry: str,
        around: str,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Take note of a recorded operator that is about to run; `around` is the cell it is in."""

    def ended(self, entry: str, output: Any) -> None:
        """Take note of what a call returned."""

    def raised(self, entry: str) -> None:
        """Take note that a call did not return."""

    def operator_ran(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
    ) -> None:
        """Take note of an operator that ran, recorded or not."""

    def gradient(
        self, entry: str, key: int, *, of_input: bool, gradient: Tensor, after: Any, whole: bool
    ) -> None:
        """Take note of a gradient.

        Args:
            entry: the backward entry.
            key: the id of the tensor whose gradient it is.
            of_input: whether that was an input of the call, else an output.
            after: of an input the part of its gradient that comes from after the call, or None.
            whole: whether it holds more than what passes through the call.
        """

    def gradients_ended(self, entry: str) -> None:
        """Take note that no more gradients of a backward entry come."""

    def parameter_gradient(self, parameter: Parameter, gradient: Tensor) -> None:
        """Take note of a parameter's gradient of one backward pass."""

    def closed(self) -> None:
        """Take note that the phase ends."""
