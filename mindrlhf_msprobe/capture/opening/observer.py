"""Who looks at calls while they are recorded, beside the recording, and may replace their results.

What computes calls again while training is one: `replay/second_opinion.py`, and
`replay/free_benchmark.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor, nn

    from mindrlhf_msprobe.capture.operators.inventory import Operator
    from mindrlhf_msprobe.phases import Phase


@dataclass(frozen=True, slots=True)
class CellCall:
    """A call of a recorded cell.

    Attributes:
        entry: its forward entry.
        name: the cell's name.
        args, kwargs: what it was called with. By the ids of these tensors gradients are told.
        given: what it runs with, which gradients flow through: args and kwargs of the same values.
    """

    entry: str
    name: str
    cell: nn.Cell
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A call of an operator.

    Attributes:
        compute: what computes it, of `args` and `kwargs`.
        entry: its forward entry; None where that is not recorded.
        around: of a recorded one the name of the cell it is called in, "" outside every cell.
        repeats: of one that a recomputed cell calls once more for its gradients, the forward entry
            of the first time.
    """

    operator: Operator
    compute: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entry: str | None = None
    around: str = ""
    repeats: str | None = None


class ObservedCall:
    """A call that is running. Exactly one of its methods is called."""

    def ended(self, output: Any) -> Any:
        """Take what it returned; return what its caller is given instead, or None: the same."""
        return None

    def raised(self) -> None:
        """Take note that it raised, or that the phase ended before it returned."""


class CallObserver:
    """Is told of the calls in one opening of a phase, in PyNative mode. It does nothing by itself.

    What it is given is the training's own and must not be changed. It is called in the thread that
    trains, in which its time is the recording's, and what it raises is counted as a fault.

    Attributes:
        lost: the code of what is lost with a fault, in the area `lost`.
    """

    lost: str

    def open(self) -> None:
        """Begin."""

    def cell_begins(self, call: CellCall) -> ObservedCall | None:
        """Take note of a recorded cell that is about to run; None: its end does not matter."""
        return None

    def cell_repeats(self, call: CellCall) -> ObservedCall | None:
        """Take note of a recorded cell that a recomputed one runs once more for its gradients.

        What its end returns is left alone. Its gradients come to the entry of the first time.
        """
        return None

    def operator_begins(self, call: OperatorCall) -> ObservedCall | None:
        """Take note of an operator, recorded or not, that is about to run; None as of a cell.

        Under `to_float` the operators that are called here, and when it ended, are cast as it is.
        """
        return None

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

    def close(self) -> None:
        """End: no call is running, and no gradient comes any more."""


#: Makes the observer of an opening: of its phase, and how often that was opened before in the step.
ObserverOf = Callable[["Phase", int], CallObserver]
