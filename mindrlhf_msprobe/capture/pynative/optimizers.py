"""PyNative: the gradients that enter optimizers, so that they are counted by update.

Between a backward pass and the update they may be added up over several passes, reduced over ranks,
unscaled and clipped. An optimizer is often called after the phase whose gradients it takes: it is
hooked as long as the run lasts, and what it takes belongs to the phase of its role that was opened
last in the step.

The state of optimizers is an entry, too: what each holds beside the parameters that it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.cells import named_cells, parameter_owners
from mindrlhf_msprobe.capture.framework.hooks import CellHooks
from mindrlhf_msprobe.capture.framework.private import parameters_of
from mindrlhf_msprobe.capture.opening.opening import CellSlot, HostEntries, Opening
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.records import OPTIMIZER_STATE, entry_name


class OptimizerHooks:
    """Records the gradients that enter optimizers: a `parameters_grad` entry a cell and call.

    A parameter that several cells share belongs to the first.

    Args:
        opening_of: returns what the phase of a role was last opened with in this step, or None.
    """

    def __init__(self, opening_of: Callable[[str], Opening | None]) -> None:
        self._opening_of = opening_of
        self._hooks = CellHooks(self._before, lambda cell, output: None)
        self._watched: dict[int, tuple[nn.Cell, set[int], list[str]]] = {}

    def watch(self, role: str, optimizer: nn.Cell) -> None:
        """Record what enters an optimizer of a role from now on.

        Raises:
            AttributeError: it does not say which parameters it updates.
        """
        if id(optimizer) not in self._watched:
            own = {id(parameter) for parameter in optimizer.parameters}
            self._watched[id(optimizer)] = optimizer, own, []
            self._hooks.add(optimizer)
        _, _, roles = self._watched[id(optimizer)]
        if role not in roles:
            roles.append(role)

    def parameters(self, role: str) -> set[int]:
        """Return the ids of the parameters that the optimizers of a role update."""
        watched = [own for _, own, roles in self._watched.values() if role in roles]
        return set().union(*watched)

    def remove(self) -> None:
        """Remove the hooks."""
        self._hooks.remove()

    def _before(self, optimizer: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _, _, roles = self._watched[id(optimizer)]
        given = args[0] if args else next(iter(kwargs.values()), ())
        gradients = given if isinstance(given, (tuple, list)) else (given,)
        for role in roles:
            opening = self._opening_of(role)
            if opening is not None:
                with opening.guard("lost.parameter_gradient"):
                    _take(opening, optimizer, gradients)


def _take(opening: Opening, optimizer: nn.Cell, gradients: Any) -> None:
    owners = parameter_owners(opening.root)
    found: dict[str, dict[str, Any]] = {}
    for parameter, gradient in zip(optimizer.parameters, gradients):
        cell_name, cell, name = owners.get(id(parameter), ("", None, ""))
        if cell is None or not opening.is_recorded(cell_name):
            continue
        slot = CellSlot(cell_name, type(cell).__name__, True)
        if (entry := opening.gradient_entry(slot.head)) is not None:
            described = opening.parameter_gradient(gradient, entry, name)
            found.setdefault(slot.head, {})[name] = described
    opening.append_update(found)
    opening.entries.flush()  # the phase may be over
    opening.counters.optimizers.append(optimizer)


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
