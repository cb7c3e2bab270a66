"""An opening of a phase, or of several: what runs in Python and what runs in graphs → entries.

Several are open together where one call runs the networks of all of them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
from mindspore import nn

from mindrlhf_msprobe.capture.cells import (
    argument_names,
    construct_frames,
    in_a_tuple,
    is_jitted,
    named_cells,
    parameters_held_twice,
)
from mindrlhf_msprobe.capture.framework.private import EXECUTOR, is_inner_recurrent
from mindrlhf_msprobe.capture.graph.calls import GraphCalls
from mindrlhf_msprobe.capture.graph.compiled_graph import Graph
from mindrlhf_msprobe.capture.graph.moments import COMPILATIONS
from mindrlhf_msprobe.capture.graph.probes import SITES, Site
from mindrlhf_msprobe.capture.graph.switch import writes_files
from mindrlhf_msprobe.capture.graph.watched import (
    GraphProbes,
    graph_mode,
    why_no_gradients,
)
from mindrlhf_msprobe.capture.graph.wrappers import OPTIMIZER, has_mark, number_of
from mindrlhf_msprobe.capture.opening.opening import CellSlot, Opening
from mindrlhf_msprobe.capture.pynative.phase import EagerCapture
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.operators.calls import OperatorCalls


class PhaseCapture:
    """One opening of one phase: what runs in Python and what runs in graphs.

    Args:
        probes, role: where the network's probes, and those of its role's optimizers, are known.

    Attributes:
        graph: takes what compiled cells hand over.
    """

    def __init__(self, opening: Opening, *, probes: GraphProbes, role: str) -> None:
        self._opening = opening
        self._eager = None if graph_mode() else EagerCapture(opening)
        self._probes, self._role = probes, role
        self._names: dict[int, tuple[str, nn.Cell]] = {}
        self._slots: dict[int, CellSlot] = {}
        self._optimizers: dict[int, list[tuple[CellSlot, str] | None]] = {}
        self._find_cells()
        self.graph = GraphCalls(
            opening, self._slots, self._optimizers, self._eager, learns=not writes_files()
        )

    @property
    def network(self) -> nn.Cell:
        """The network whose cells are recorded."""
        return self._opening.root

    @property
    def of_operators(self) -> EagerCapture | None:
        """What knows the cells around operators that Python calls; None where nobody asks."""
        wanted = self._opening.operators is not None or self._opening.observer is not None
        return self._eager if wanted else None

    @property
    def cells_seen(self) -> int:
        """How many calls of recorded cells, and optimizers called in Python, it has seen."""
        in_python = self._eager.cells_seen if self._eager else 0
        return len(self._opening.counters.optimizers) + self.graph.cells_seen + in_python

    def begin(self) -> None:
        """Begin to record what runs in Python, and what is compiled from now on."""
        if self._eager is not None:
            self._eager.open()
        COMPILATIONS.listeners.append(self._after_compiling)

    def end(self) -> None:
        """End to record; what compiled cells handed over must have arrived."""
        COMPILATIONS.listeners.remove(self._after_compiling)
        try:
            self.graph.end()
        finally:
            if self._eager is not None:
                self._eager.close()
            else:
                self._opening.entries.flush()

    def held_operators(self) -> list[tuple[str, str]]:
        """Return the operators that are held where none is recorded: where, and what."""
        if self._opening.operators is None or self._eager is None:
            return []
        from mindrlhf_msprobe.capture.operators.interception import held_operators

        return held_operators(self._opening.root)

    def replaced_operators(self) -> list[tuple[str, str]]:
        """Return the operators in whose place something else stands: which, and what."""
        if self._opening.operators is None or self._eager is None:
            return []
        from mindrlhf_msprobe.capture.operators.interception import replaced_operators

        return replaced_operators()

    def gaps(self) -> dict[str, tuple[Message, ...]]:
        """Return what could not be recorded: cell name → every reason why."""
        found: dict[str, list[Message]] = defaultdict(list)
        cells = [cell for _, cell in self._names.values()]
        elsewhere = parameters_held_twice(cells) if self._opening.with_parameters else {}
        for number, (name, cell) in self._names.items():
            found[name] += SITES.gaps_of(number)
            if number in SITES.compiled:
                found[name] += self._gaps_of_compiled(number, cell, elsewhere)
                chosen = self._opening.operators
                if chosen is not None and chosen(name):
                    found[name].append(message("coverage.operators_in_graph"))
        for name, around in self._compiled_early().items():
            found[name].append(message("coverage.compiled_before_watch", cell=around))
        for name in self._replaced():
            found[name].append(message("coverage.replaced"))
        for name in self._inside_recurrent():
            found[name].append(message("coverage.inside_recurrent"))
        watched = self._probes.has_optimizer(self._role)
        if self.graph.has_gradients and not watched and self._eager is None:
            found[PARAMETERS_GRAD].append(message("coverage.optimizer_not_watched"))
        return {name: tuple(dict.fromkeys(reasons)) for name, reasons in found.items() if reasons}

    def _inside_recurrent(self) -> list[str]:
        """Return the cells that a graph runs inside MindSpore's recurrent ones."""
        if not self.graph.cells_seen:
            return []
        cells = named_cells(self._opening.root).items()
        return [name for name, cell in cells if is_inner_recurrent(cell)]

    def _gaps_of_compiled(
        self, number: int, cell: nn.Cell, elsewhere: Mapping[int, set[str]]
    ) -> Iterator[Message]:
        """Yield what could not be recorded of a cell because a graph runs it.

        Args:
            elsewhere: as `parameters_held_twice` says.
        """
        if number in self.graph.reduced and self._probes.config.keeps_rows:
            yield message("coverage.elements_reduced")
        if self._probes.config.task == "overflow_check":
            yield message("coverage.overflow_in_graph")
        if self._probes.config.task == "accuracy_check":
            yield message("coverage.accuracy_in_graph")
        if self._opening.backward and number in SITES.without_gradients:
            yield message("coverage.gradients_in_python")
        if self._opening.backward:
            yield from why_no_gradients(cell)
        if has_mark(cell, OPTIMIZER):
            yield message("coverage.optimizer_itself")
        if id(cell) in elsewhere and in_a_tuple(cell) - elsewhere[id(cell)]:
            yield message("coverage.parameters_in_tuple")

    def _after_compiling(self) -> None:
        try:
            self._find_cells()
        except Exception as error:
            self._opening.fault(message("lost.compiled_network"), error)

    def _find_cells(self) -> None:
        """Find out whose probes this phase records: those of the network's cells, by number.

        A cell has its number once it has been compiled; one that has been compiled and replaced
        since goes on running until its place is compiled anew.
        """
        cells = named_cells(self._opening.root)
        slots = {
            id(cell): CellSlot(
                *(name, type(cell).__name__, self._opening.is_recorded(name)),
                argument_names(cell),
                construct_frames(cell) if number_of(cell) else (),
            )
            for name, cell in cells.items()
        }
        for name, cell in cells.items():
            if number := number_of(cell):
                self._names[number] = name, cell
                self._slots.setdefault(number, slots[id(cell)])
        for number, (name, class_name) in self._probes.compiled_in(self._opening.root).items():
            slot = CellSlot(name, class_name, self._opening.is_recorded(name))
            self._slots.setdefault(number, slot)
        root = self._opening.root
        self._optimizers.update(
            self._probes.gradients_of(self._role, lambda cell: slots.get(id(cell)), root)
        )

    def _compiled_early(self) -> dict[str, str]:
        """Return the cells inside jitted ones that ran and handed nothing over: name → the one."""
        opening, calls = self._opening, self._opening.counters.calls
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

    def _replaced(self) -> list[str]:
        """Return the cells that were put in the place of compiled ones, which still ran.

        Also where the new one is compiled by now, into other graphs.
        """
        unnamed = [number for number in self.graph.ran if number not in self._names]
        ran = {self._slots[number].name for number in unnamed}
        return [name for name in named_cells(self._opening.root) if name in ran]


class JointCapture:
    """One opening of a phase, or of several that open and close together.

    Args:
        phases: what records each of them; a cell that several networks hold is recorded in each.
    """

    def __init__(self, phases: Mapping[Phase, PhaseCapture]) -> None:
        self.phases = phases
        graphs = [capture.graph for capture in phases.values()]
        self._receiver = graphs[0] if len(graphs) == 1 else JointCalls(graphs)
        eager = [found for capture in phases.values() if (found := capture.of_operators)]
        self._operators = _operator_calls(eager) if eager else None

    def open(self) -> None:
        """Begin to record, what compiled cells hand over, too; where one cannot, none does."""
        with ExitStack() as undo:
            for capture in self.phases.values():
                capture.begin()
                undo.callback(capture.end)
            if writes_files():
                from mindrlhf_msprobe.capture.graph import ascend as graph_ascend

                graph_ascend.before_phase()
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

                graph_ascend.after_phase(self._receiver)
            else:
                EXECUTOR.sync()
            if SITES.receiver is self._receiver:
                SITES.receiver = None


def _operator_calls(captures: Sequence[EagerCapture]) -> OperatorCalls:
    # Not imported with this module: it looks through all of MindSpore.
    from mindrlhf_msprobe.capture.operators.calls import OperatorCalls

    return OperatorCalls(captures)


class JointCalls:
    """Hands what graphs hand over to each network that holds the cell; a `probes.Receiver`.

    The calls are numbered here, so that a number means the same call to all of them.
    """

    def __init__(self, receivers: Sequence[GraphCalls]) -> None:
        self._receivers = receivers
        self._numbers = itertools.count(1)

    def knows(self, cell: int) -> bool:
        """Return whether any of the networks holds a cell."""
        return any(receiver.knows(cell) for receiver in self._receivers)

    def wants(self, graph: Graph) -> bool:
        """Return whether any of them needs what the next run of a graph hands over."""
        wants = [receiver.wants(graph) for receiver in self._receivers]  # each is to be asked
        return any(wants)

    def begins(self, graph: Graph, probed: bool) -> None:
        """Let all of them know that a graph runs next."""
        for receiver in self._receivers:
            receiver.begins(graph, probed)

    def _of(self, site: Site) -> list[GraphCalls]:
        return [receiver for receiver in self._receivers if receiver.knows(site.cell)]

    def opened(self, site: Site) -> int:
        """Open a call of a cell, or of an optimizer, in each network that holds it."""
        number = next(self._numbers)
        recorded = [receiver.opened(site, number) for receiver in self._of(site)]
        return number if any(recorded) else 0

    def tensor(self, call: int, site: Site, found: np.ndarray | Leaf) -> None:
        """Pass on a tensor of a call."""
        for receiver in self._of(site):
            receiver.tensor(call, site, found)

    def closed(self, call: int, site: Site) -> None:
        """Pass on that a call has ended."""
        for receiver in self._of(site):
            receiver.closed(call, site)

    def gradient(self, call: int, site: Site, found: np.ndarray | Leaf) -> None:
        """Pass on the gradient of a tensor of a call."""
        for receiver in self._of(site):
            receiver.gradient(call, site, found)

    def fault(self, what: Message, error: BaseException) -> None:
        """Count a fault, once."""
        self._receivers[0].fault(what, error)
