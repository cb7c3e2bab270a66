"""An opening of a phase, or of several: what runs in Python and what runs in graphs → entries.

Several are open together where one call runs the networks of all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mindspore import nn

from mindrlhf_msprobe.capture.cells import (
    argument_names,
    construct_frames,
    in_a_tuple,
    is_jitted,
    named_cells,
    number_of,
    parameters_held_twice,
)
from mindrlhf_msprobe.capture.framework.private import EXECUTOR, is_inner_recurrent
from mindrlhf_msprobe.capture.graph.calls import GraphCalls, Receiver
from mindrlhf_msprobe.capture.graph.moments import COMPILATIONS
from mindrlhf_msprobe.capture.graph.probes import SITES, writes_files
from mindrlhf_msprobe.capture.graph.watched import (
    OPTIMIZER,
    GraphProbes,
    graph_mode,
    why_no_gradients,
)
from mindrlhf_msprobe.capture.opening.opening import CellSlot, Opening
from mindrlhf_msprobe.capture.pynative.phase import EagerCapture
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.operators.calls import OperatorCalls


class PhaseCapture:
    """One opening of one phase: what runs in Python and what runs in graphs.

    Args:
        probes, role: where the network's probes, and those of its role's optimizers, are known.

    Attributes:
        eager: records what runs in Python; None where everything is compiled.
        graph: takes what compiled cells hand over.
    """

    def __init__(self, opening: Opening, *, probes: GraphProbes, role: str) -> None:
        self.opening = opening
        self.eager = None if graph_mode() else EagerCapture(opening)
        self._probes, self._role = probes, role
        self._names: dict[int, tuple[str, nn.Cell]] = {}
        self._slots: dict[int, CellSlot] = {}
        self._optimizers: dict[int, list[tuple[CellSlot, str] | None]] = {}
        self._find_cells()
        self.graph = GraphCalls(
            opening, self._slots, self._optimizers, self.eager, learns=not writes_files()
        )

    @property
    def cells_seen(self) -> int:
        """How many calls of recorded cells, and optimizers called in Python, it has seen."""
        in_python = self.eager.cells_seen if self.eager else 0
        return len(self.opening.counters.optimizers) + self.graph.cells_seen + in_python

    def begin(self) -> None:
        """Begin to record what runs in Python, and what is compiled from now on."""
        if self.opening.graft is not None:
            self.opening.graft.open(self.opening.root)
        if self.eager is not None:
            self.eager.open()
        COMPILATIONS.listeners.append(self._after_compiling)

    def end(self) -> None:
        """End to record; what compiled cells handed over must have arrived."""
        COMPILATIONS.listeners.remove(self._after_compiling)
        try:
            self.graph.end()
        finally:
            if self.eager is not None:
                self.eager.close()
            else:
                self.opening.entries.flush()
        if self.opening.graft is not None:
            with self.opening.guard("lost.graft"):
                self.opening.graft.close(self.opening.root)

    def unseen_operators(self) -> dict[str, list[tuple[str, str]]]:
        """Return the operators that cannot be recorded where they are called, if any are recorded.

        `held`: where none is recorded, and what; `replaced`: which, and what stands in its place.
        """
        if self.opening.operators is None or self.eager is None:
            return {}
        from mindrlhf_msprobe.capture.operators.interception import unseen_operators

        return unseen_operators(self.opening.root)

    def gaps(self) -> dict[str, tuple[Message, ...]]:
        """Return what could not be recorded: cell name → every reason why."""
        found: dict[str, list[Message]] = defaultdict(list)
        cells = [cell for _, cell in self._names.values()]
        held_twice = parameters_held_twice(cells) if self.opening.with_parameters else {}
        for number, (name, cell) in self._names.items():
            found[name] += SITES.gaps_of(number)
            if number in SITES.compiled:
                found[name] += self._gaps_of_compiled(number, cell, held_twice)
                chosen = self.opening.operators
                if chosen is not None and chosen(name):
                    found[name].append(message("coverage.operators_in_graph"))
        for name, around in self._compiled_early().items():
            found[name].append(message("coverage.compiled_before_watch", cell=around))
        # Compiled cells that still ran where others stand now, compiled into other graphs or not.
        unnamed = [number for number in self.graph.ran if number not in self._names]
        ran = {self._slots[number].name for number in unnamed}
        for name in named_cells(self.opening.root):
            if name in ran:
                found[name].append(message("coverage.replaced"))
        for name, cell in named_cells(self.opening.root).items() if self.graph.cells_seen else ():
            if is_inner_recurrent(cell):  # a graph runs it inside one of MindSpore's
                found[name].append(message("coverage.inside_recurrent"))
        watched = self._probes.optimizers.get(self._role)
        if self.graph.has_gradients and not watched and self.eager is None:
            found[PARAMETERS_GRAD].append(message("coverage.optimizer_not_watched"))
        return {name: tuple(dict.fromkeys(reasons)) for name, reasons in found.items() if reasons}

    def _gaps_of_compiled(
        self, number: int, cell: nn.Cell, held_twice: Mapping[int, set[str]]
    ) -> Iterator[Message]:
        """Yield what could not be recorded of a cell because a graph runs it.

        Args:
            held_twice: as `parameters_held_twice` says.
        """
        if number in self.graph.reduced and self._probes.config.keeps_rows:
            yield message("coverage.elements_reduced")
        if self._probes.config.task == "overflow_check":
            yield message("coverage.overflow_in_graph")
        if self._probes.config.task == "accuracy_check":
            yield message("coverage.accuracy_in_graph")
        if self.opening.backward and number in SITES.without_gradients:
            yield message("coverage.gradients_in_python")
        if self.opening.backward:
            yield from why_no_gradients(cell)
        if OPTIMIZER in vars(cell):
            yield message("coverage.optimizer_itself")
        if id(cell) in held_twice and in_a_tuple(cell) - held_twice[id(cell)]:
            yield message("coverage.parameters_in_tuple")

    def _after_compiling(self) -> None:
        try:
            self._find_cells()
        except Exception as error:
            self.opening.fault(message("lost.compiled_network"), error)

    def _find_cells(self) -> None:
        """Find out whose probes this phase records: those of the network's cells, by number.

        A cell has its number once it has been compiled; one that has been compiled and replaced
        since goes on running until its place is compiled anew.
        """
        cells = named_cells(self.opening.root)
        slots = {
            id(cell): CellSlot(
                *(name, type(cell).__name__, self.opening.is_recorded(name)),
                argument_names(cell),
                construct_frames(cell) if number_of(cell) else (),
            )
            for name, cell in cells.items()
        }
        for name, cell in cells.items():
            if number := number_of(cell):
                self._names[number] = name, cell
                self._slots.setdefault(number, slots[id(cell)])
        for number, (name, class_name) in self._probes.compiled_in(self.opening.root).items():
            slot = CellSlot(name, class_name, self.opening.is_recorded(name))
            self._slots.setdefault(number, slot)
        root = self.opening.root
        self._optimizers.update(
            self._probes.gradients_of(self._role, lambda cell: slots.get(id(cell)), root)
        )

    def _compiled_early(self) -> dict[str, str]:
        """Return the cells inside jitted ones that ran and handed nothing over: name → the one."""
        opening, calls = self.opening, self.opening.counters.calls
        cells = {n: c for n, c in named_cells(opening.root).items() if opening.is_recorded(n)}
        slots = [CellSlot(name, type(cell).__name__, True) for name, cell in cells.items()]
        slots += self._slots.values()
        ran = {slot.name for slot in slots if slot.call_name in calls}
        silent: dict[str, str] = {}
        for name, cell in cells.items():
            if name in ran and is_jitted(cell):
                inside = {id(c) for c in named_cells(cell).values() if c is not cell}
                below = {n for n, c in cells.items() if id(c) in inside}
                if not below & ran:
                    silent |= dict.fromkeys(below, name)
        return silent


class JointCapture:
    """One opening of a phase, or of several that open and close together.

    Args:
        phases: what records each of them; a cell that several networks hold is recorded in each.
    """

    def __init__(self, phases: Mapping[Phase, PhaseCapture]) -> None:
        self.phases = phases
        self._receiver = Receiver([capture.graph for capture in phases.values()])
        # What knows the cells around operators that Python calls, where anybody asks.
        eager = [
            capture.eager
            for capture in phases.values()
            if capture.eager is not None
            and (capture.opening.operators is not None or capture.opening.observer is not None)
        ]
        self._operators: OperatorCalls | None = None
        if eager:  # not imported with this module: it looks through all of MindSpore
            from mindrlhf_msprobe.capture.operators.calls import OperatorCalls

            self._operators = OperatorCalls(eager)

    def open(self) -> None:
        """Begin to record, what compiled cells hand over, too; where one cannot, none does."""
        with ExitStack() as undo:
            for capture in self.phases.values():
                capture.begin()
                undo.callback(capture.end)
            if writes_files():
                from mindrlhf_msprobe.capture.graph import ascend as graph_ascend

                graph_ascend.read_written()
            elif SITES.compiled:
                EXECUTOR.sync()  # what ran before the phase may still be handing over
            SITES.receiver = self._receiver
            if self._operators is not None:
                self._operators.open()
            undo.pop_all()

    def close(self) -> None:
        """End to record; waits for what still runs, and takes nothing from then on."""
        with ExitStack() as ends:
            for capture in reversed([*self.phases.values()]):
                ends.callback(capture.end)
            if self._operators is not None:
                ends.callback(self._operators.close)
            if writes_files():
                from mindrlhf_msprobe.capture.graph import ascend as graph_ascend

                graph_ascend.read_written(self._receiver)
            else:
                EXECUTOR.sync()
            if SITES.receiver is self._receiver:
                SITES.receiver = None
