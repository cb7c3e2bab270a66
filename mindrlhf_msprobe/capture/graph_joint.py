"""Several phases that are open together, because one call runs the networks of all of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from mindrlhf_msprobe.capture.graph import PhaseCapture, hand_over, listen
from mindrlhf_msprobe.capture.graph_calls import GraphCalls
from mindrlhf_msprobe.capture.graph_probes import Site
from mindrlhf_msprobe.capture.graph_variants import Graph
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.storage.leaves import Leaf


class JointCapture:
    """One opening of a phase, or of several that open and close together.

    Args:
        phases: what records each of them; a cell that several networks hold is recorded in each.
    """

    def __init__(self, phases: Mapping[Phase, PhaseCapture]) -> None:
        self.phases = phases
        graphs = [capture.graph for capture in phases.values()]
        self._receiver = graphs[0] if len(graphs) == 1 else JointCalls(graphs)

    def open(self) -> None:
        """Begin to record; where one cannot, none does."""
        with ExitStack() as undo:
            for capture in self.phases.values():
                capture.begin()
                undo.callback(capture.end)
            listen(self._receiver)
            undo.pop_all()

    def close(self) -> None:
        """End to record; waits for what still runs."""
        with ExitStack() as ends:
            for capture in reversed([*self.phases.values()]):
                ends.callback(capture.end)
            hand_over(self._receiver)


class JointCalls:
    """Hands what graphs hand over to each network that holds the cell; a `graph_probes.Receiver`.

    The calls are numbered here, so that a number means the same call to all of them.
    """

    def __init__(self, receivers: Sequence[GraphCalls]) -> None:
        self._receivers = receivers
        self._numbers = itertools.count(1)

    def knows(self, cell: int) -> bool:
        """Tell whether any of the networks holds a cell."""
        return any(receiver.knows(cell) for receiver in self._receivers)

    def wants(self, graph: Graph) -> bool:
        """Tell whether any of them needs what the next run of a graph hands over."""
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

    def fault(self, what: str, error: BaseException) -> None:
        """Count a fault, once."""
        self._receivers[0].fault(what, error)
