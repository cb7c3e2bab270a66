"""What looks at the calls of a phase beside the recorder, and may have them computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mindspore import nn

    from mindrlhf_msprobe.capture.operators.inventory import Operator


class ObservedCall(Protocol):
    """A call that is running."""

    def left(self, output: Any) -> Any:
        """Take what it returned; return what its caller is given instead, or None: the same."""

    def abandoned(self) -> None:
        """Take note that it raised, or that the phase ended before it returned."""


class CallObserver(Protocol):
    """Takes the calls of recorded cells, and of operators, in one opening of a phase.

    Where operators are recorded (`level`), `compute` is asked for each of them. Else an observer
    that needs them listens to them itself.
    """

    def open(self) -> None:
        """Begin."""

    def entered(
        self, entry: str, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ObservedCall | None:
        """Take note that a cell was called; None where its end does not matter.

        Args:
            entry: the forward entry of the call.
        """

    def compute(
        self,
        operator: Operator,
        compute: Callable[..., Any],
        entry: str | None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Return what a call of an operator returns, which `compute` does.

        Args:
            entry: its forward entry; None where it is not recorded.
        """

    def close(self) -> None:
        """End: no call is running."""
