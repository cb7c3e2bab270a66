"""Which graph of a cell or a function runs: the one with probes, or the trainer's own without any.

Both are MindSpore's: it keeps every graph it has compiled under a name, of which a key of the
arguments is a part. The graph with probes has a mark in that key. So each is compiled when it is
called first, once, and which of them a call runs is decided when it is made.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.graph.compiled_graph import MARK, Graph
from mindrlhf_msprobe.capture.graph.probes import SITES, Receiver

#: In these phases of a cell MindSpore looks for a graph by the phase alone, once it has one.
_BY_PHASE = frozenset({"prefill", "increment"})


@dataclass(eq=False, slots=True)
class TopCall:
    """A call of a cell or function that MindSpore compiles as a whole; one a thread.

    Attributes:
        target: the cell or function.
        name: tells the graphs of one target apart, beside the key of the arguments.
        runs: whether the graph will run now; else it is only compiled.
        graph, probed: what has been decided.
    """

    target: Any
    name: Any
    runs: bool
    graph: Graph | None = None
    probed: bool = True


class Variants:
    """Decides which graph a call runs.

    Attributes:
        holds_watched: says whether a cell holds one that is watched.
        will_record: tells of a cell whether anything of it is recorded from now on.
        watches: how often something has been watched.
    """

    def __init__(
        self, holds_watched: Callable[[nn.Cell], bool], will_record: Callable[[nn.Cell], bool]
    ) -> None:
        self.holds_watched = holds_watched
        self.will_record = will_record
        self.watches = 0
        self._graphs: weakref.WeakKeyDictionary[Any, dict[Any, Graph]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def choose(self, call: TopCall, key: str) -> bool:
        """Decide which graph a call takes, and have its calls counted if it runs without probes.

        Args:
            key: of its arguments, as MindSpore made it.

        Returns:
            whether it is the one with probes.
        """
        graph = self._graph(call.target, (call.name, key))
        if self._may_hold_probes_now(call.target, graph):
            graph = self._graph(call.target, (call.name, key), anew=True)
        call.graph = graph
        receiver = SITES.receiver
        probed = self._wants(call, graph, receiver)
        if graph.only is not None:
            probed = graph.only
        if call.runs and receiver is not None:
            receiver.begins(graph, probed)
        # Where it holds no probes, one serves both.
        if graph.only is None and graph.cells is not None and not graph.cells:
            probed = False not in graph.phases
        call.probed = probed
        return probed

    def by_phase(self, cell: nn.Cell, *, any_phase: bool = False) -> None:
        """Decide which graph a call takes that MindSpore looks for by the cell's phase alone.

        Where that graph is not there, MindSpore is left to look for it by the arguments.

        Args:
            any_phase: whether it does so in every phase.
        """
        phase = cell.phase
        if not any_phase and phase not in _BY_PHASE:
            return
        cache = cell.phase_cache
        name = cache.get(phase)
        graphs = self._graphs.get(cell) if name is not None else None
        for graph in [*graphs.values()] if graphs else ():
            if name in graph.phases.values():
                if self._may_hold_probes_now(cell, graph):
                    del cache[phase]
                    return
                receiver = SITES.receiver
                probed = self._wants(TopCall(cell, phase, True), graph, receiver)
                if graph.cells is not None and not graph.cells and graph.phases:
                    probed = next(iter(graph.phases))
                if graph.only is not None:
                    probed = graph.only
                if probed not in graph.phases:
                    del cache[phase]
                    return
                cache[phase] = graph.phases[probed]
                if receiver is not None:
                    receiver.begins(graph, probed)
                return

    def keep_probes(self) -> bool:
        """Return whether a graph has to run with its probes from now on, recorded or not."""
        with self._lock:
            return any(
                graph.only and graph.cells
                for graphs in self._graphs.values()
                for graph in graphs.values()
            )

    def _may_hold_probes_now(self, target: Any, graph: Graph) -> bool:
        """Return whether more has been watched since a graph was compiled that held no probes."""
        if graph.cells is None or graph.cells or graph.only is not None:
            return False
        if graph.watches == self.watches:
            return False
        if isinstance(target, nn.Cell) and not self.holds_watched(target):
            graph.watches = self.watches
            return False
        return True

    def _graph(self, target: Any, key: Any, *, anew: bool = False) -> Graph:
        with self._lock:
            graphs = self._graphs.get(target)
            if graphs is None:
                graphs = self._graphs[target] = {}
            if anew or key not in graphs:
                graphs[key] = Graph(mark=f"{MARK}{self.watches}", watches=self.watches)
            return graphs[key]

    def _wants(self, call: TopCall, graph: Graph, receiver: Receiver | None) -> bool:
        if receiver is not None:
            if graph.cells is None:
                return receiver.wants(graph)
            return any(map(receiver.knows, graph.cells)) and receiver.wants(graph)
        if not call.runs and self.will_record(call.target):
            return True  # what is compiled ahead is what will be recorded
        # Wrappers do nothing to what holds no watched cell; compiled with them, it serves both.
        return (
            not graph.phases
            and isinstance(call.target, nn.Cell)
            and not self.holds_watched(call.target)
        )
