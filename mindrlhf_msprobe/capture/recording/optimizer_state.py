"""The state of optimizers as an entry: what each holds beside the parameters that it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.framework.private import parameters_of
from mindrlhf_msprobe.capture.networks.cells import named_cells
from mindrlhf_msprobe.capture.opening.entries import HostEntries
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.records import OPTIMIZER_STATE, entry_name


def lines_of(
    optimizers: Iterable[nn.Cell], entries: HostEntries, seq: int, end: int, opening: int
) -> Iterator[JournalLine]:
    """Yield an entry for each optimizer, with its state as it is now as the output.

    Args:
        seq, end: places in time behind the end of the update phase.
        opening: how often the phase had been opened in the step before its last opening.
    """
    for number, optimizer in enumerate(optimizers, start=1):
        cell = OPTIMIZER_STATE if number == 1 else f"{OPTIMIZER_STATE}_{number}"
        name = entry_name(cell, type(optimizer).__name__, "forward", 0)
        if state := state_of(optimizer):
            line = JournalLine(name, seq, end, None, opening)
            line.values = {
                "input_args": [],
                "input_kwargs": {},
                "output": [entries.describer.describe(state, f"{name}.output.0")],
            }
            yield line


def state_of(optimizer: nn.Cell) -> dict[str, Any]:
    """Return the parameters of an optimizer that it does not train, by their names.

    Moments, step counters, a learning rate that is a parameter. Without those that were never
    initialised.
    """
    groups = vars(optimizer).get("param_groups") or ()
    trained = {id(p) for p in getattr(optimizer, "parameters", None) or ()}
    trained |= {id(p) for group in groups if isinstance(group, dict) for p in group["params"]}
    held = [p for cell in named_cells(optimizer).values() for p in parameters_of(cell).values()]
    known = (p for p in held if p is not None and not getattr(p, "has_init", False))
    return {str(p.name): p for p in known if id(p) not in trained}
