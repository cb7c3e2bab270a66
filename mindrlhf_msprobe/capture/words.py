"""What recording cannot do: how it is counted, and what stands in a record instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, SpokenError, message

if TYPE_CHECKING:
    from mindrlhf_msprobe.storage.writing.ledger import Charge

#: Takes what was being recorded and what went wrong; may raise only in strict mode.
FaultSink = Callable[[Message, BaseException], None]


@dataclass(eq=False, slots=True)
class Counted:
    """A context that no exception leaves, but those that end the process: it is counted.

    Attributes:
        fault: counts it.
        what: is lost with it.
        charge: takes the time inside; None: it is part of another charge.
    """

    fault: FaultSink
    what: Message
    charge: Charge | None = None

    def __enter__(self) -> None:
        if self.charge is not None:
            self.charge.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self.charge is not None:
            self.charge.__exit__(kind, error, trace)
        if not isinstance(error, Exception):
            return False
        self.fault(self.what, error)
        return True


def counted(fault: FaultSink, what: str, /, **params: Any) -> Counted:
    """Return a context in which exceptions are counted.

    Args:
        what: the code of what is lost with one, in the area `lost`, of the parameters.
    """
    return Counted(fault, message(what, **params))


def why_not_in_graph(reason: Message) -> Message:
    """Return what stands in the place of a value that a graph cannot hand over."""
    return message("coverage.graph_mode", why=[reason])


def why_raised(error: BaseException) -> Message:
    """Return what stands in the place of a value that could not be recorded."""
    return message("unread.raised", error=type(error).__name__, why=error)


class NotThere(SpokenError, LookupError):
    """Something of a trainer is not as it should be, so that data are not recorded."""
