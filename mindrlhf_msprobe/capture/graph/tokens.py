"""Tokens of a generating network that is compiled: counted also where a graph has no probes.

A graph with probes tells which calls of cells it makes. A graph without tells nothing, so it runs
only where a run with probes has shown what it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from mindrlhf_msprobe.capture.framework.private import EXECUTOR
from mindrlhf_msprobe.capture.graph.compiled_graph import Graph


class TokenCount:
    """The token that runs: a new one begins when the first of the outermost cells is called again.

    Args:
        records: tells by a token's number whether it is recorded; None where none is counted.
        running: returns the token that runs in PyNative around the graph, or None.
    """

    def __init__(
        self, records: Callable[[int], bool] | None, running: Callable[[], int | None]
    ) -> None:
        self._records = records
        self._running = running
        self._first: int | None = None
        self._token = -1

    @property
    def counted(self) -> bool:
        """Whether tokens are counted at all."""
        return self._records is not None

    def of(self, cell: int, outermost: bool) -> tuple[int | None, bool]:
        """Return the token to which a call of a cell that begins belongs, and if it is recorded."""
        if self._records is None:
            return None, True
        token = self._running()
        if token is None:
            if outermost:
                if self._first is None:
                    self._first = cell
                if self._first == cell:
                    self._token += 1
            token = self._token
        return token, self._records(token)

    def any_recorded(self, calls: Sequence[tuple[int, bool]]) -> bool:
        """Tell whether one of the calls that come next belongs to a token that is recorded."""
        ahead = TokenCount(self._records, self._running)
        ahead._first, ahead._token = self._first, self._token
        return any(ahead.of(cell, outermost)[1] for cell, outermost in calls if outermost)


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


def wait() -> None:
    """Return when all that runs has handed over what it hands over."""
    EXECUTOR.sync()
