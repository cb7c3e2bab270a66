"""What is known of one opening of one phase, however its cells run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindrlhf_msprobe.capture.entries import Entries, FaultSink
from mindrlhf_msprobe.config import Selection

if TYPE_CHECKING:
    from mindspore import nn

    from mindrlhf_msprobe.capture.framework.hooks import ParameterHooks


@dataclass
class StepCounters:
    """What is counted per phase and step, over all openings of the phase.

    Attributes:
        selection: which entries are recorded.
        calls: how often each entry's cell ran.
        parameters: the fingerprint of each cell's parameters when they were last recorded.
        gradients: how many gradients of each parameter were seen.
        openings: how often the phase was opened.
    """

    selection: Selection
    calls: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    openings: int = 0


@dataclass(frozen=True)
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
        fault: told about every fault while recording; may raise only in strict mode.
    """

    number: int
    root: nn.Cell
    counters: StepCounters
    sequence: Iterator[int]
    entries: Entries
    is_recorded: Callable[[str], bool]
    records_token: Callable[[int], bool] | None
    with_parameters: bool
    directions: Collection[str]
    parameter_hooks: ParameterHooks
    buffer_bytes: int
    fault: FaultSink
