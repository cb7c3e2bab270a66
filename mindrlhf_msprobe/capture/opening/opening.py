"""What is known of one opening of one phase, however its cells run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.capture.opening.counters import StepCounters
from mindrlhf_msprobe.capture.opening.entries import HostEntries
from mindrlhf_msprobe.capture.opening.observer import CallObserver
from mindrlhf_msprobe.capture.words import FaultSink
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import Selection
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD
from mindrlhf_msprobe.storage.writing.ledger import Charge

if TYPE_CHECKING:
    from mindspore import nn

    from mindrlhf_msprobe.capture.framework.hooks import ParameterHooks


@dataclass(eq=False, slots=True)
class Guarded:
    """A context that no exception leaves, but those that end the process."""

    _charge: Charge
    _fault: FaultSink
    _what: Message

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


@dataclass(frozen=True, eq=False)
class Opening:
    """What one opening of one phase is recorded with.

    Attributes:
        number: how often the phase had been opened in this step before.
        root: the network whose cells are recorded.
        counters: the phase's counters of this step.
        sequence: the process's clock: one number for every event.
        entries: describes tensors and takes each entry when it ended.
        is_recorded: tells by a cell's name whether it is recorded.
        records_token: tells by a token's number whether it is recorded; None in phases that do
            not count tokens.
        with_parameters: whether parameters are recorded.
        directions: what is recorded of a cell: forward, backward.
        parameter_hooks: hooks parameters; the same at every opening.
        buffer_bytes: of gradients that may wait to be summarised.
        fault: called with every fault while recording; may raise only in strict mode.
        at_optimizer: ids of parameters whose gradients are recorded as they enter an optimizer
            that runs in Python.
        operators: tells by the name of the cell around an operator, "" outside every cell, whether
            it is recorded; None where no operator is.
        observer: is told of the calls, too; None: nothing is.
    """

    number: int
    root: nn.Cell
    counters: StepCounters
    sequence: Iterator[int]
    entries: HostEntries
    is_recorded: Callable[[str], bool]
    records_token: Callable[[int], bool] | None
    with_parameters: bool
    directions: Collection[str]
    parameter_hooks: ParameterHooks
    buffer_bytes: int
    fault: FaultSink
    at_optimizer: Collection[int] = ()
    operators: Callable[[str], bool] | None = None
    observer: CallObserver | None = None
    _guards: dict[str, Guarded] = field(default_factory=dict)

    @property
    def selection(self) -> Selection:
        """What decides which entries are recorded."""
        return self.counters.selection

    @property
    def forward(self) -> bool:
        """Whether forward entries are recorded."""
        return "forward" in self.directions

    @property
    def backward(self) -> bool:
        """Whether backward entries are recorded."""
        return "backward" in self.directions

    def now(self) -> int:
        """Return the next place in the process's time."""
        return next(self.sequence)

    def line(
        self, entry: str, seq: int, end: int | None = None, parent: str | None = None, **more: Any
    ) -> JournalLine:
        """Return the line of an entry of this opening; see `JournalLine`."""
        return JournalLine(entry, seq, end, parent, self.number, **more)

    def describe(self, value: Any, path: str) -> Any:
        """Return the JSON structure of a value, whose record path is `path`."""
        return self.entries.describer.describe(value, path)

    def append_update(self, gradients: Mapping[str, Mapping[str, Any]]) -> None:
        """Hand on the gradients that entered an optimizer: one entry for each cell that has some.

        Args:
            gradients: call name of `parameters_grad` entries → parameter's name → description.
        """
        for call_name, of_cell in gradients.items():
            entry = f"{call_name}.{self.counters.calls.count(call_name)}"
            described = {name: [{**leaf, "at_optimizer": True}] for name, leaf in of_cell.items()}
            line = self.line(entry, self.now(), self.now())
            line.values[PARAMETERS_GRAD] = described
            self.entries.append(line)

    def guard(self, what: str) -> Guarded:
        """Return a context whose time is charged to the phase, and whose faults are counted.

        Args:
            what: the code of what is lost with a fault, in the area `lost`.
        """
        guard = self._guards.get(what)
        if guard is None:
            guard = Guarded(self.entries.charge, self.fault, message(what))
            self._guards[what] = guard
        return guard
