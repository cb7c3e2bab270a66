"""The graphs that MindSpore has compiled of one cell or function, and which of them a call runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mindspore import nn
from mindspore.train import anf_ir_pb2, mind_ir_pb2

from mindrlhf_msprobe.capture.graph.probes import SITES

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.graph.calls import Receiver
    from mindrlhf_msprobe.capture.graph.watched import GraphProbes

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
    """Decides which graph a call runs: the one with probes, or the trainer's own without any.

    Both are MindSpore's: it keeps every graph it has compiled under a name, of which a key of the
    arguments is a part. The graph with probes has a mark in that key. So each is compiled when it
    is called first, once, and which of them a call runs is decided when it is made.

    Args:
        wrappings: know which cells are watched, and whether they are recorded from now on.

    Attributes:
        watches: how often something has been watched.
    """

    def __init__(self, wrappings: Sequence[GraphProbes]) -> None:
        self._wrappings = wrappings
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
        if isinstance(target, nn.Cell) and not self._holds_watched(target):
            graph.watches = self.watches
            return False
        return True

    def _graph(self, target: Any, key: Any, *, anew: bool = False) -> Graph:
        with self._lock:
            graphs = self._graphs.setdefault(target, {})
            if anew or key not in graphs:
                graphs[key] = Graph(mark=f"{MARK}{self.watches}", watches=self.watches)
            return graphs[key]

    def _wants(self, call: TopCall, graph: Graph, receiver: Receiver | None) -> bool:
        if receiver is not None:
            if graph.cells is None:
                return receiver.wants(graph)
            return any(map(receiver.knows, graph.cells)) and receiver.wants(graph)
        if not call.runs and any(
            wrapping.will_record() and wrapping.holds_watched(call.target)
            for wrapping in self._wrappings
        ):
            return True  # what is compiled ahead is what will be recorded
        # Wrappers do nothing to what holds no watched cell; compiled with them, it serves both.
        return (
            not graph.phases
            and isinstance(call.target, nn.Cell)
            and not self._holds_watched(call.target)
        )

    def _holds_watched(self, cell: nn.Cell) -> bool:
        return any(wrapping.holds_watched(cell) for wrapping in self._wrappings)


#: How the names of operators begin that change their first input, any tensor, and return it. Those
#: that take Parameters alone (Assign, ScatterUpdate) reach them wherever a probe stands.
_CHANGES = "Inplace", "CopyWithSlice"
#: How the names of operators begin whose output may be the memory of their first input.
_PASSES = (
    *("Load", "Depend", "TensorMove", "TupleGetItem", "ListGetItem", "DictGetItem", "Identity"),
    *("Reshape", "View", "Flatten", "ExpandDims", "Squeeze", "Unsqueeze", "Transpose", "Permute"),
    *("Swap", "Broadcast", "Expand", "StridedSlice", "Slice", "Narrow", "Select", "Split"),
    *("Chunk", "Unstack", "Unbind", "AsStrided", "Diagonal", "Real", "Imag", "Unfold", *_CHANGES),
)
_HOLDS = "MakeTuple", "MakeList", "MakeDict"  # their output holds all their inputs
#: How the names of nodes begin that MindSpore adds where it differentiates; what they change in
#: place is their own.
_OF_GRADIENTS = "Gradients/"
#: The operator that has Python compute a value while the graph runs.
_PYTHON = "PyExecute"


def is_differentiated(graph: bytes) -> bool:
    """Return whether a graph computes gradients."""
    return _OF_GRADIENTS.encode() in graph


def changes_in_place(graph: bytes, *, weights_are_passed: bool) -> bool:
    """Return whether a graph may change a tensor in place that cells pass to each other.

    Args:
        graph: in MindSpore's `mind_ir` format.
        weights_are_passed: whether weights are among the arguments or outputs of cells.
    """
    if not any(change.encode() in graph for change in _CHANGES):
        return False  # most graphs, and reading one takes time
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(graph)
    every = (node for each in (model.graph, *model.functions) for node in each.node)
    nodes = {node.output[0]: node for node in every if node.output}  # by what they return
    operators = {f"REF::{operator.name}": operator for operator in model.primitives}
    weights = {weight.name for weight in model.graph.parameter}
    kinds = {name: each.op_type for name, each in operators.items()}
    changed = [
        node
        for node in nodes.values()
        if kinds.get(node.op_type, "").startswith(_CHANGES)
        and not node.domain.startswith(_OF_GRADIENTS)
    ]
    if weights_are_passed:
        return bool(changed)
    roots = {root for node in changed for root in _roots_of(node.input[0], nodes, operators)}
    # A branch has an input for each weight that it uses, of the weight's name behind its own.
    return not {root.rpartition(":")[2] for root in roots} <= weights


def may_change_in_place(graph: bytes, *, weights_are_passed: bool) -> bool:
    """Tell the same of a graph that has no such format, as far as that can be known.

    Args:
        graph: in MindSpore's `anf_ir` format, which leaves out what stands in branches.
        weights_are_passed: as of `changes_in_place`.
    """
    model = anf_ir_pb2.ModelProto()
    model.ParseFromString(graph)
    weights = set() if weights_are_passed else {w.name for w in model.graph.parameters}
    return any(
        node.op_type.startswith(_CHANGES) and node.input[0].name not in weights
        for node in model.graph.node
        if not node.full_name.startswith(_OF_GRADIENTS)
    )


def _roots_of(name: str, nodes: Mapping[str, Any], operators: Mapping[str, Any]) -> set[str]:
    """Return the names of the nodes, weights and arguments that some memory comes from."""
    roots: set[str] = set()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node = nodes.get(name)
        kind = operators[node.op_type].op_type if node and node.op_type in operators else ""
        if kind in _HOLDS:
            waiting += node.input  # type: ignore[union-attr]
        elif kind.startswith(_PASSES) or "View" in kind:
            waiting.append(node.input[0])  # type: ignore[union-attr]
        else:
            roots.add(name)
    return roots


def are_only_returned(graph: bytes) -> bool:
    """Return whether a graph only returns what Python computes, as MindFormers' train step None.

    Where anything else waits for such a value or uses it, MindSpore infers shapes while the graph
    runs, which fails for host functions. The format leaves out what stands in branches: where
    Python computes there, this is not known, and counts as a use.

    Args:
        graph: in MindSpore's `anf_ir` format.
    """
    model = anf_ir_pb2.ModelProto()
    model.ParseFromString(graph)
    returned: set[str] = set()
    for node in model.graph.node:  # each comes after its inputs
        given = [each.name for each in node.input]
        if node.op_type == _PYTHON:
            returned.add(node.name)
        elif not returned.isdisjoint(given):
            passes = node.op_type == "MakeTuple" or (
                node.op_type == "Depend" and returned.isdisjoint(given[1:])
            )
            if not passes:
                return False
            returned.add(node.name)
        elif any(size.size < 0 for size in node.output_type.tensor_type.shape.dim):
            return False  # its shape is not known before the graph runs
    return bool(returned)
