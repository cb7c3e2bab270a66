"""What recording cannot do: how it is counted, and its English words, for the log and a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mindrlhf_msprobe.common.message import Message, message

#: Takes what was being recorded and what went wrong; may raise only in strict mode.
FaultSink = Callable[[str, BaseException], None]


@contextmanager
def counted(fault: FaultSink, what: str) -> Iterator[None]:
    """Count an exception that is raised inside, and go on behind it."""
    try:
        yield
    except Exception as error:
        fault(what, error)


def in_english(*reasons: Message) -> str:
    """Return what reasons say, one behind the other."""
    from mindrlhf_msprobe.report.messages import texts_of  # only where something is said

    return texts_of(reasons, "en")


def why_not_in_graph(reason: Message) -> Message:
    """Return what stands in the place of a value that a graph cannot hand over."""
    return message("coverage.graph_mode", why=[reason])


def why_raised(error: BaseException) -> Message:
    """Return what stands in the place of a value that could not be recorded."""
    return message("unread.raised", error=type(error).__name__, why=str(error))


class NotThere(LookupError):
    """Something of a trainer is not as it should be, so that data are not recorded.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: Message) -> None:
        super().__init__(in_english(reason))
        self.reason = reason
