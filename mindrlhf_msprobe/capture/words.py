"""What recording cannot do: how it is counted, and what stands in a record instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mindrlhf_msprobe.common.message import Message, SpokenError, message

#: Takes what was being recorded and what went wrong; may raise only in strict mode.
FaultSink = Callable[[Message, BaseException], None]


@contextmanager
def counted(fault: FaultSink, what: str, /, **params: Any) -> Iterator[None]:
    """Count an exception that is raised inside, and go on behind it.

    Args:
        what: the code of what is lost with it, in the area `lost`, of the parameters.
    """
    try:
        yield
    except Exception as error:
        fault(message(what, **params), error)


def why_not_in_graph(reason: Message) -> Message:
    """Return what stands in the place of a value that a graph cannot hand over."""
    return message("coverage.graph_mode", why=[reason])


def why_raised(error: BaseException) -> Message:
    """Return what stands in the place of a value that could not be recorded."""
    return message("unread.raised", error=type(error).__name__, why=error)


class NotThere(SpokenError, LookupError):
    """Something of a trainer is not as it should be, so that data are not recorded."""
