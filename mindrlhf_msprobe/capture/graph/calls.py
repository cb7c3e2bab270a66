"""What compiled graphs hand over in one opening of one phase → entries, as PyNative makes them."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.capture.cells import number_of
from mindrlhf_msprobe.capture.framework.private import EXECUTOR
from mindrlhf_msprobe.capture.graph.compiled_graph import Graph, WatchedRun
from mindrlhf_msprobe.capture.graph.probes import SITES, Site
from mindrlhf_msprobe.capture.opening.opening import (
    Call,
    CellSlot,
    Opening,
    TokenCounter,
    backward_name,
)
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, fingerprint_of, to_host
from mindrlhf_msprobe.capture.tensors.tree import Path, TensorOutline, UnknownOutline, filled
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf, child_path

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.pynative.phase import EagerCapture

_RECORD_PARTS = {"input_args": "input", "input_kwargs": "input", "output_kwargs": "output"}
_NOTHING = Leaf("NoneType").to_json()


@dataclass(eq=False, slots=True, kw_only=True)
class GraphCall(Call):
    """One run of a cell, or of an optimizer; tensors and gradients by part and path.

    Attributes:
        number: what the graph calls it by.
        cell: the cell's number.
        inputs, output: the outlines of what it is given, and of what it returns.
        seq, end: places in the process's time when it began and ended.
        outer: the entry that is running around it in PyNative.
        selected: whether its backward entry is recorded, once that is known.
        differentiated: whether any gradient of it has come.
        group: the calls among which it ran, up to the gradients of all of them.
    """

    number: int
    cell: int
    slot: CellSlot | None = None
    around: GraphCall | None = None
    inputs: Any = ()
    output: Any = None
    seq: int = -1
    end: int | None = None
    tensors: dict[tuple[Any, Path], Any] = field(default_factory=dict)
    backward: dict[tuple[str, Path], Any] = field(default_factory=dict)
    outer: str | None = None
    backward_seq: int | None = None
    backward_end: int | None = None
    selected: bool | None = None
    differentiated: bool = False
    group: list[GraphCall] = field(default_factory=list)


def _reversed(calls: list[GraphCall]) -> list[tuple[str, GraphCall]]:
    """Return when the backward entries of calls begin and end: the reverse of forward."""
    moments = [(call.seq, "end", call) for call in calls]
    moments += [(call.end, "begin", call) for call in calls if call.end]
    moments.sort(key=lambda moment: moment[0], reverse=True)
    return [(moment, call) for _, moment, call in moments]


def _backward_around(call: GraphCall) -> str | None:
    """Return the innermost backward entry around that of a call, in the graph or in PyNative."""
    around = call.around
    while around is not None and not (around.differentiated and around.selected):
        around = around.around
    if around is not None:
        return backward_name(around.entry)
    known: GraphCall | None = call
    while known is not None and known.outer is None:
        known = known.around
    return backward_name(known.outer) if known is not None and known.outer else None


def _gradients_of(call: GraphCall, part: str, tree: Any) -> Any:
    """Return the gradients of one part, nested as the part is; None stands where there is none."""
    return filled(tree, lambda _, path: call.backward.get((part, path), _NOTHING))


def _record_name(entry: str, part: str, path: Path) -> str:
    """Return the name of a record of an entry."""
    return functools.reduce(child_path, path, f"{entry}.{_RECORD_PARTS.get(part, part)}")


#: Where a gradient stands in a backward entry: what arrives is its input, what leaves its output.
_BACKWARD_PARTS = {"output": "input", "input_args": "output", "input_kwargs": "output_kwargs"}

#: So many calls are kept for gradients that may still come: some 50 MB.
_MOST_CALLS = 50_000


@dataclass(eq=False)
class GraphCalls:
    """The calls of one opening of a phase.

    Forward entries are handed on when their call ends, in the program's order. Gradients come when
    they come: a backward entry is handed on two runs of the network later, or at the end, with the
    place in time that reversing the forward pass gives it.

    Attributes:
        slots: cell number → the cell's slot.
        optimizers: cell number of an optimizer → the (slot, parameter name) of each gradient that
            enters it, None for one of no cell of this network.
        opening: shared with PyNative.
        around: what runs in PyNative, and is recorded there; None where everything is compiled.
        learns: whether a graph has handed over everything once it has been waited for.
    """

    opening: Opening
    slots: Mapping[int, CellSlot]
    optimizers: Mapping[int, list[tuple[CellSlot, str] | None]]
    around: EagerCapture | None
    learns: bool

    def __post_init__(self) -> None:
        token = self.around.token if self.around else None
        self._tokens = TokenCounter(self.opening.records_token, token)
        self._watched_run: WatchedRun | None = None
        self._calls: dict[int, GraphCall] = {}
        self._running: list[GraphCall] = []
        self._group: list[GraphCall] = []
        self._earlier: list[GraphCall] = []
        self._group_has_gradients = False
        self._forgotten = 0
        self._strict_fault: Exception | None = None
        # Held for moments only, never while a tensor is summarised.
        self._lock = threading.RLock()
        self.cells_seen = 0
        self.ran: set[int] = set()  # numbers of the cells that ran in a graph
        self.has_gradients = False
        self.reduced: set[int] = set()  # numbers of the cells of which only statistics came

    def knows(self, cell: int) -> bool:
        """Return whether this network holds a cell, or an optimizer takes its gradients."""
        return cell in self.slots or cell in self.optimizers

    def wants(self, graph: Graph) -> bool:
        """Return whether the next run of a graph is recorded, or has to show its calls."""
        if self._tokens.token is None:
            return True
        EXECUTOR.sync()  # until all that runs has handed over what it hands over
        cells = self._cells_in(graph)
        self._end_watched_run()
        calls = graph.calls.get(cells)
        return calls is None or self._tokens.any_recorded(calls)

    def begins(self, graph: Graph, probed: bool) -> None:
        """Count the calls of a run without probes; learn them from one with probes."""
        if self._tokens.token is None:
            return
        cells = self._cells_in(graph)
        if not probed:
            self._count(graph.calls.get(cells, ()))
        elif self.learns and not graph.unsteady and cells not in graph.calls:
            self._watched_run = WatchedRun(graph)

    def _cells_in(self, graph: Graph) -> frozenset[int]:
        return frozenset(cell for cell in graph.cells or () if cell in self.slots)

    def _end_watched_run(self) -> None:
        run, self._watched_run = self._watched_run, None
        if run is not None:
            run.end(self._cells_in(run.graph))

    def _count(self, calls: Sequence[tuple[int, bool]]) -> None:
        """Count calls as if they had been opened."""
        with self._lock:
            for cell, outermost in calls:
                slot = self.slots[cell]
                call_name = slot.call_name
                self.ran.add(cell)
                self.cells_seen += slot.recorded
                if not (outermost and self._has_counted(call_name)):
                    self._tokens.begin(cell, outermost)
                    self.opening.counters.calls.count(call_name)

    def opened(self, site: Site, number: int) -> bool:
        """Open a call of a cell, or of an optimizer, by its number; return whether it is known."""
        with self._lock:
            if site.cell in self.optimizers:
                inside = all(call.outer or call.around for call in self._group)
                if self.around is not None and inside:
                    return False  # the network ran in PyNative, where parameters have hooks
                if site.cell in map(number_of, self.opening.counters.optimizers):
                    return False  # PyNative called it, and took what entered it
                self._end_group()
                call = GraphCall(self.opening, number=number, cell=site.cell)
                call.recorded = True
                self._calls[number] = call
                return True
            if site.cell not in self.slots:
                return False
            call = self._open_call(number, site)
            self.ran.add(site.cell)
            self._calls[number] = call
            self._running.append(call)
            return True

    def tensor(self, call: int, site: Site, array: np.ndarray | Leaf) -> None:
        """Describe an input, an output or a parameter of a call; its statistics may be known."""
        found = self._calls.get(call)
        if found is None or not found.recorded:
            return
        if site.part == "gradients":
            self._describe_parameter_gradient(found, site, array)
            return
        if isinstance(array, Leaf):
            self.reduced.add(found.cell)
        if not self.opening.forward or not self.opening.selection.takes_part(site.part):
            return
        record = _record_name(found.entry, site.part, site.path)
        if site.part == "parameters":
            key = f"{found.entry.rpartition('.')[0]}.{site.path[0]}"
            state = "recorded"  # all that is known of it where statistics alone came
            if not isinstance(array, Leaf):
                host = HostTensor("", site.outline.dtype, to_host(array).array)
                state = fingerprint_of(host)
            if not self.opening.counters.parameters.changes(key, state):
                return
        found.tensors[site.part, site.path] = self._describe(array, site.outline, record)

    def gradient(self, call: int, site: Site, array: np.ndarray | Leaf) -> None:
        """Describe the gradient of an input or an output of a call."""
        found = self._calls.get(call)
        if found is None and call <= self._forgotten:
            late = LookupError(message("fault.late", most=_MOST_CALLS))
            self.fault(message("lost.gradient"), late)
        if found is None or not found.traced or SITES.passes_parameter(found.cell):
            return
        part = _BACKWARD_PARTS[site.part]
        with self._lock:
            if found.selected is None:
                self._select(found.group)
            found.differentiated = self._group_has_gradients = self.has_gradients = True
        if not found.selected or not self.opening.selection.takes_part(part):
            return
        record = _record_name(backward_name(found.entry), part, site.path)
        described = self._describe(array, site.outline, record)
        with self._lock:
            found.backward[part, site.path] = described

    def closed(self, call: int, site: Site) -> None:
        """Hand on the entry of a call that has ended."""
        with self._lock:
            found = self._calls.get(call)
            if found is None:
                return
            if found.cell in self.optimizers:
                del self._calls[call]
                # One entry for each cell whose parameters had a gradient.
                gradients: dict[str, dict[str, Any]] = {}
                for (_, (index,)), leaf in sorted(found.tensors.items(), key=lambda t: t[0][1]):
                    slot, name = self.optimizers[found.cell][index]  # type: ignore[misc]
                    gradients.setdefault(slot.head, {})[name] = leaf
                self.opening.append_update(gradients)
                return
            while self._running and self._running[-1] is not found:
                self._give_up(self._running.pop())
            if self._running:
                self._running.pop()
            self.opening.selection.end(found.entry)
            if not (found.recorded or found.traced):
                del self._calls[call]
                return
            output = site.outline
            found.output = output if isinstance(output, tuple) else [output]
            found.end = self.opening.now()
            line = self._forward_line(found, found.output) if found.recorded else None
            found.tensors.clear()
        if self.opening.forward and line is not None:
            self.opening.entries.append(line)

    def fault(self, what: Message, error: BaseException) -> None:
        """Count a fault; a strict run's exception waits until the graph has run."""
        try:
            self.opening.fault(what, error)
        except Exception as strict:
            self._strict_fault = strict

    def end(self) -> None:
        """Hand on what has not been handed on yet; raise what a strict run is to raise."""
        self._end_watched_run()
        with self._lock:
            while self._running:
                self._give_up(self._running.pop())
            self._end_group()
            self._emit_backward(self._earlier)
            self._earlier = []
            self._calls.clear()
        if self._strict_fault is not None:
            raise self._strict_fault

    def _has_counted(self, call_name: str) -> bool:
        """Return whether PyNative has made the entry of a cell that begins to run in a graph."""
        return self.around is not None and self.around.has_counted(call_name)

    # Forward.

    def _open_call(self, number: int, site: Site) -> GraphCall:
        slot = self.slots[site.cell]
        while any(call.cell == site.cell for call in self._running):
            # A cell does not run inside itself: its last run, and all in it, was given up.
            self._give_up(self._running.pop())
        around = self._running[-1] if self._running else None
        outermost = around is None
        if outermost and (self._group_has_gradients or len(self._group) > _MOST_CALLS):
            self._end_group()
        if self._watched_run is not None:
            self._watched_run.calls.append((site.cell, outermost))
        call = GraphCall(
            self.opening, number=number, cell=site.cell, slot=slot, inputs=site.outline
        )
        if outermost and self._has_counted(slot.call_name):
            self.cells_seen += 1
            return call
        call.around = around
        call.inside(around)
        call.token, call.in_range = self._tokens.begin(site.cell, outermost)
        call.entry = f"{slot.call_name}.{self.opening.counters.calls.count(slot.call_name)}"
        self.cells_seen += slot.recorded
        if slot.recorded:
            call.begin(call.entry)
        if not (call.recorded or call.traced):
            return call
        if call.parent is None and self.around is not None:
            call.parent = call.outer = self.around.innermost()
        call.seq = self.opening.now()
        self._group.append(call)
        call.group = self._group
        return call

    def _forward_line(self, call: GraphCall, output: Any = ()) -> JournalLine:
        args, kwargs = call.inputs
        line = self.opening.line(call.entry, call.seq, call.end, call.parent, token=call.token)
        slot, values = call.slot, line.values
        assert slot is not None
        line.frames = slot.frames
        if self.opening.selection.inputs:
            values["input_args"] = self._filled(call, "input_args", args)
            values["input_kwargs"] = self._filled(call, "input_kwargs", kwargs)
            line.input_names = slot.arguments[: len(args)]
        parameters = {
            path[0]: leaf for (part, path), leaf in call.tensors.items() if part == "parameters"
        }
        if parameters:
            values["parameters"] = parameters
        if self.opening.selection.outputs:
            values["output"] = self._filled(call, "output", output)
        return line

    def _give_up(self, call: GraphCall) -> None:
        """Hand on a call that did not return."""
        self.opening.selection.end(call.entry)
        if call.recorded and self.opening.forward:
            self.opening.entries.append(self._forward_line(call))

    def _filled(self, call: GraphCall, part: str, tree: Any) -> Any:
        """Return the JSON structure of one part of a call."""

        def leaf(known: Any, path: Path) -> Any:
            if isinstance(known, TensorOutline):
                missing = Leaf("mindspore.Tensor", why=message("unread.not_handed_over"))
                return call.tensors.get((part, path)) or missing.to_json()
            if isinstance(known, UnknownOutline):
                return Leaf(known.type, why=known.why).to_json()
            return self.opening.describe(known, _record_name(call.entry, part, path))

        return filled(tree, leaf)

    def _describe(self, array: np.ndarray | Leaf, tensor: TensorOutline, record: str) -> Any:
        describer = self.opening.entries.of_graphs
        return self._described(array, tensor, lambda array: describer.describe(array, record))

    def _described(
        self,
        array: np.ndarray | Leaf,
        tensor: TensorOutline,
        describe: Callable[[np.ndarray], dict[str, Any]],
    ) -> dict[str, Any]:
        if isinstance(array, Leaf):
            return array.to_json()
        return {**describe(array), "type": "mindspore.Tensor", "dtype": tensor.dtype}

    # Backward.

    def _end_group(self) -> None:
        """Give the backward pass of what ran so far its places in time: the reverse of forward."""
        for moment, call in _reversed(self._group):
            if moment == "begin":
                call.backward_seq = self.opening.now()
            else:
                call.backward_end = self.opening.now()
        # Gradients of a run may still come while the next one begins, not while the one after it.
        self._emit_backward(self._earlier)
        self._earlier, self._group, self._group_has_gradients = self._group, [], False

    def _emit_backward(self, calls: list[GraphCall]) -> None:
        with_gradients = [call for call in calls if call.differentiated and call.selected]
        for call in sorted(with_gradients, key=lambda call: call.backward_end or 0):
            args, kwargs = call.inputs
            end = call.backward_end
            begin = call.backward_seq if call.backward_seq is not None else end
            assert begin is not None
            line = self.opening.line(backward_name(call.entry), begin, end, _backward_around(call))
            parts = {"input": call.output or [], "output": args, "output_kwargs": kwargs}
            for part, tree in parts.items():
                if self.opening.selection.takes_part(part):
                    line.values[part] = _gradients_of(call, part, tree)
            self.opening.entries.append(line)
        for call in calls:
            self._calls.pop(call.number, None)
            self._forgotten = max(self._forgotten, call.number)

    def _select(self, calls: list[GraphCall]) -> None:
        """Decide which backward entries of calls that ran one after another are recorded.

        Called once gradients come, so that what was never differentiated opens no scope.
        """
        undecided = [call for call in calls if call.selected is None]
        # What has not ended yet will end last, so its gradients come first.
        moments = [("begin", call) for call in undecided if not call.end]
        for moment, call in [*moments, *_reversed(undecided)]:
            if moment == "begin":
                call.selected = self.opening.selection.begin(backward_name(call.entry))
            else:
                self.opening.selection.end(backward_name(call.entry))

    def _describe_parameter_gradient(
        self, call: GraphCall, site: Site, array: np.ndarray | Leaf
    ) -> None:
        index = site.path[-1] if len(site.path) > 1 else 0
        of_cells = self.optimizers[call.cell]
        target = of_cells[index] if index < len(of_cells) else None
        if target is None or not target[0].recorded:
            return
        slot, name = target
        with self._lock:
            self._select(self._earlier)
            self._select(self._group)
        if (entry := self.opening.gradient_entry(slot.head)) is not None:
            call.tensors[slot.name, (index,)] = self._described(
                *(array, site.outline),
                lambda array: self.opening.parameter_gradient(array, entry, name),
            )


class Receiver:
    """Takes what the probes of running graphs hand over, for each network that holds the cell.

    Called from any thread. The calls are numbered here: a number means the same call to all.
    """

    def __init__(self, networks: Sequence[GraphCalls]) -> None:
        self._networks = networks
        self._numbers = itertools.count(1)

    def knows(self, cell: int) -> bool:
        """Return whether it takes what the probes of a cell hand over."""
        return any(network.knows(cell) for network in self._networks)

    def wants(self, graph: Graph) -> bool:
        """Return whether it needs what the next run of a graph hands over."""
        wants = [network.wants(graph) for network in self._networks]  # each looks at its calls
        return any(wants)

    def begins(self, graph: Graph, probed: bool) -> None:
        """Take note that a graph runs next, with probes or without."""
        for network in self._networks:
            network.begins(graph, probed)

    def _of(self, site: Site) -> list[GraphCalls]:
        return [network for network in self._networks if network.knows(site.cell)]

    def opened(self, site: Site) -> int:
        """Take note of a call that begins and return its number, 0 if it is not recorded."""
        number = next(self._numbers)
        known = [network.opened(site, number) for network in self._of(site)]
        return number if any(known) else 0

    def tensor(self, call: int, site: Site, found: np.ndarray | Leaf) -> None:
        """Take a tensor of a call, or its statistics; an array is valid until this returns."""
        for network in self._of(site):
            network.tensor(call, site, found)

    def closed(self, call: int, site: Site) -> None:
        """Take note of a call that has ended."""
        for network in self._of(site):
            network.closed(call, site)

    def gradient(self, call: int, site: Site, found: np.ndarray | Leaf) -> None:
        """Take the gradient of a tensor of a call, or its statistics; as `tensor`."""
        for network in self._of(site):
            network.gradient(call, site, found)

    def fault(self, what: Message, error: BaseException) -> None:
        """Take note of a fault, once; never raises."""
        self._networks[0].fault(what, error)
