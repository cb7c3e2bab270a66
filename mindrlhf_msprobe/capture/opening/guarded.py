"""Keeps the faults of recording from the training."""

from __future__ import annotations

from types import TracebackType

from mindrlhf_msprobe.capture.opening.entries import FaultSink
from mindrlhf_msprobe.storage.writing.ledger import Charge


class Guarded:
    """A context that no exception leaves, but those that end the process."""

    __slots__ = ("_charge", "_fault", "_what")

    def __init__(self, charge: Charge, fault: FaultSink, what: str) -> None:
        self._charge = charge
        self._fault = fault
        self._what = what

    def __enter__(self) -> None:
        self._charge.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._charge.__exit__(kind, error, trace)
        if not isinstance(error, Exception):
            return False
        self._fault(self._what, error)
        return True
