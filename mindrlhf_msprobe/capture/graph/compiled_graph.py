"""What is known of the graphs that MindSpore has compiled of one cell or function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

#: Stands in the key of the arguments of the graph with probes.
MARK = ".msprobe"

#: How MindSpore writes down that what a graph runs depends on what it computes.
_BRANCHES = b"\x06Switch", b"\x0bSwitchLayer", b"\x0cswitch_layer"

#: MindSpore's attribute of operators that keep a state in the graph, such as random numbers.
_HIDDEN_STATE = b"side_effect_hidden"


@dataclass(eq=False)
class Graph:
    """What is known of the graphs of one cell or function for one kind of arguments.

    Attributes:
        phases: MindSpore's name of each that has been compiled: with probes (True), without.
        cells: the numbers of the cells that the one with probes has probes of; None while it has
            not been compiled.
        calls: the calls that a run makes of some cells, by their numbers: in the program's order,
            each with whether none of these cells runs around it.
        unsteady: whether one run may make other calls than another.
        seconds: how long each took to compile when it was compiled last.
        only: which of them alone may run, because it draws random numbers; None: either.
        seeds: MindSpore's counters of seeds when the first of them was compiled.
        mark: stands in the key of the arguments of the one with probes.
        watches: how often something had been watched when that was known.
    """

    mark: str = MARK
    watches: int = 0
    phases: dict[bool, str] = field(default_factory=dict)
    cells: frozenset[int] | None = None
    calls: dict[frozenset[int], tuple[tuple[int, bool], ...]] = field(default_factory=dict)
    unsteady: bool = False
    seconds: dict[bool, float] = field(default_factory=dict)
    only: bool | None = None
    seeds: dict[Any, Any] | None = None
    _proto: Callable[[], bytes] | None = None

    def compiled(
        self, probed: bool, phase: str, cells: Iterable[int], executor: Any, seconds: float
    ) -> None:
        """Take note that MindSpore has compiled one of the graphs."""
        self.phases[probed] = phase
        self.seconds[probed] = seconds
        if probed:
            self.cells = frozenset(cells)
            self._proto = lambda: executor.get_func_graph_proto(phase, "mind_ir", False)

    def keep_to_one(self, probed: bool, executor: Any, will_record: bool) -> None:
        """Settle on one of the graphs, if what has been compiled draws random numbers.

        Args:
            probed: which of them has been compiled.
            will_record: whether anything will be recorded from now on.
        """
        if self.only is None:
            try:
                proto = executor.get_func_graph_proto(self.phases[probed], "anf_ir", False)
            except Exception:  # it cannot be looked at
                return
            if _HIDDEN_STATE in proto:
                self.only = probed or will_record

    def learn(self, cells: frozenset[int], calls: Iterable[tuple[int, bool]]) -> None:
        """Take note of the calls that a run made of some cells, unless another may make others."""
        try:
            proto = self._proto() if self._proto is not None else b""
        except Exception:  # it cannot be looked at
            proto = b""
        if not proto or any(branch in proto for branch in _BRANCHES):
            self.unsteady = True
        else:
            self.calls[cells] = tuple(calls)


class WatchedRun:
    """A run of a graph with probes, from which its calls are learned.

    Attributes:
        graph: what runs.
        calls: the calls that have begun.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.calls: list[tuple[int, bool]] = []
        self._thread = threading.get_ident()

    def end(self, cells: frozenset[int]) -> None:
        """Learn the calls of `cells`, if all of them ran, and nothing else did meanwhile."""
        if threading.get_ident() == self._thread and {cell for cell, _ in self.calls} == cells:
            self.graph.learn(cells, self.calls)
