"""What is known of one opening of one phase, however its cells run, and what it makes of tensors.

On the host a tensor is summarised at the hook that saw it: nothing can change it before. On an
accelerator the same would bring every tensor to the host: there device.py takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.capture.opening.observer import CallObserver
from mindrlhf_msprobe.capture.opening.overflow import HELD, OverflowEntries
from mindrlhf_msprobe.capture.tensors.summary import (
    HostTensor,
    Summaries,
    bytes_of_sketch,
    fingerprint_of,
    is_tensor,
    local_of,
    rounding_of,
    subtract,
    to_host,
    unread,
)
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import Selection
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16
from mindrlhf_msprobe.storage.arrays.signs import packed_signs, shares_within
from mindrlhf_msprobe.storage.arrays.sketches import (
    ALGORITHM,
    MASK,
    SKETCH,
    STATISTICS,
    WHOLE,
    MaskRoom,
    SketchPlace,
    block_for,
    kept_of,
)
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf, child_path
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name, entry_name, network_name
from mindrlhf_msprobe.storage.writing.ledger import Charge, Counted, FaultSink

if TYPE_CHECKING:
    from mindspore import nn

    from mindrlhf_msprobe.capture.framework.hooks import ParameterHooks
    from mindrlhf_msprobe.capture.playback.graft import PhaseGraft
    from mindrlhf_msprobe.capture.pynative.gradients import CallGradients
    from mindrlhf_msprobe.storage.writing.writer import Sink

_FORWARD = ".forward"  # ends the name of an operator's entry


class CallCounter(dict[str, int]):
    """How often each of some names has come."""

    def count(self, name: str) -> int:
        """Count a name once more; return how often it had come before."""
        number = self.get(name, 0)
        self[name] = number + 1
        return number


class ParameterLog(dict[str, str]):
    """The state of each parameter when it was last recorded, e.g. its fingerprint."""

    def changes(self, name: str, state: str | None) -> bool:
        """Return whether a parameter is to be recorded, and note its state.

        Args:
            state: None where it is not known yet, so that it is to be recorded.
        """
        if state is None:
            return True
        changed = self.get(name) != state
        self[name] = state
        return changed


@dataclass(eq=False)
class TokenCounter:
    """The token that runs: a new one begins when the first of the outermost cells is called again.

    Attributes:
        records: tells by a token's number whether it is recorded; None where none is counted.
        around: returns the token that runs in PyNative around what is counted here, or None.
        first: the first of the outermost cells.
    """

    records: Callable[[int], bool] | None
    around: Callable[[], int | None] | None = None
    first: int | None = None
    _token: int = -1

    @property
    def token(self) -> int | None:
        """The token that runs; None where none is counted."""
        return None if self.records is None else self._token

    def begin(self, cell: int, outermost: bool) -> tuple[int | None, bool]:
        """Return the token to which a call of a cell that begins belongs, and if it is recorded."""
        if self.records is None:
            return None, True
        token = None if self.around is None else self.around()
        if token is None:
            if outermost:
                if self.first is None:
                    self.first = cell
                if self.first == cell:
                    self._token += 1
            token = self._token
        return token, self.records(token)

    def any_recorded(self, calls: Sequence[tuple[int, bool]]) -> bool:
        """Return whether one of the calls that come next belongs to a token that is recorded.

        Args:
            calls: the number of each cell, and whether it is one of the outermost.
        """
        ahead = replace(self)
        return any(ahead.begin(cell, outermost)[1] for cell, outermost in calls if outermost)


@dataclass
class StepCounters:
    """What is counted per phase and step, over all openings of the phase.

    Attributes:
        selection: which entries are recorded.
        calls: how often each entry's cell ran.
        parameters: the fingerprint of each cell's parameters when they were last recorded.
        gradients: how many gradients of each parameter were seen.
        openings: how often the phase was opened.
        optimizers: those that were called in Python, and whose gradients were taken there.
        hard_parameters: by cell, which of its parameters held NaN or an infinity when they were
            last recorded; filled for `task: overflow_check` alone.
    """

    selection: Selection
    calls: CallCounter = field(default_factory=CallCounter)
    parameters: ParameterLog = field(default_factory=ParameterLog)
    gradients: CallCounter = field(default_factory=CallCounter)
    openings: int = 0
    optimizers: list[nn.Cell] = field(default_factory=list)
    hard_parameters: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class GradientDirections:
    """What `task: grad_probe` adds to the description of a parameter's gradient.

    Attributes:
        parameters: the names of those it is added to; empty: to all.
        bounds: of the intervals whose shares are counted; None: none are.
    """

    parameters: frozenset[str]
    bounds: tuple[float, ...] | None

    def wants(self, parameter: str) -> bool:
        """Return whether it is added to a parameter's, by its name in the network."""
        return not self.parameters or parameter in self.parameters

    def described(self, gradient: HostTensor, record: str, sink: Sink) -> dict[str, Any]:
        """Return the file of its signs and the shares of its elements; of complex ones nothing."""
        if gradient.array.dtype.kind == "c":
            return {}
        bfloat16 = gradient.dtype == BFLOAT16
        bits = packed_signs(gradient.array, bfloat16=bfloat16)
        found: dict[str, Any] = {"signs": sink.save(f"{record}.signs", bits, None)}
        if self.bounds is not None:
            found["shares"] = shares_within(gradient.array, self.bounds, bfloat16=bfloat16)
        return found


@dataclass(eq=False)
class HostEntries:
    """Describes the tensors of one open phase, at once, in host memory, and takes its entries.

    Attributes:
        sink: takes entries, and elements.
        summaries: of the whole run: what they remember helps all phases.
        fingerprint: whether fingerprints are written.
        charge: what the time is charged to.
        fault: called with every fault.
        elements: whether elements are stored, too (task: tensor), or of which records they are.
        sketches: whether sketches are, and tensors that have none (task: sketch).
        directions: what is added to the gradients of parameters (task: grad_probe).
        overflows: holds tensors, and takes entries before the sink does (task: overflow_check).
    """

    sink: Sink
    summaries: Summaries
    fingerprint: bool
    charge: Charge
    fault: FaultSink
    elements: bool | Callable[[str], bool] = False
    sketches: bool = False
    directions: GradientDirections | None = None
    overflows: OverflowEntries | None = None

    def __post_init__(self) -> None:
        self._ended = self.sink.append if self.overflows is None else self.overflows.append
        self._masks = MaskRoom()
        # What graphs hand over is overwritten: nothing of it is held.
        self.describer = self.of_graphs = TreeDescriber(is_tensor, self._describe)
        if self.overflows is not None:
            self.describer = TreeDescriber(is_tensor, self._held)

    def append(self, line: JournalLine) -> None:
        """Take an entry that ended."""
        with self.charge:
            self._ended(line)

    def state_of(self, parameter: Any) -> str | None:
        """Return what changes when a parameter does, its fingerprint; None if not known at once."""
        return fingerprint_of(to_host(parameter))

    def glance(self, parameter: Any) -> bytes | None:
        """Return some of its elements, evenly spaced; None where looking at all is as cheap.

        They change when the parameter changes as a whole.

        A single-token pass reads every weight once; a fingerprint of all of them would read them
        all once more, at every token.
        """
        if local_of(parameter).nbytes < 1 << 14:
            return None
        flat = to_host(parameter).array.reshape(-1)
        return flat[:: flat.size // 64 + 1].tobytes()

    def taken(self, gradient: Any) -> HostTensor:
        """Return what the describer takes: it in host memory; an operator computed it."""
        return to_host(gradient, computed=True)

    def parameter_gradient(self, gradient: Any, record: str, parameter: str) -> dict[str, Any]:
        """Return the description of a parameter's gradient, as JSON.

        Args:
            parameter: its name in the network.
        """
        if self.directions is None or not self.directions.wants(parameter):
            describer = self.of_graphs if isinstance(gradient, np.ndarray) else self.describer
            return describer.describe(self.taken(gradient), record)
        with self.charge:
            host = to_host(gradient, computed=True) if is_tensor(gradient) else gradient
            described: dict[str, Any] = self.describer.describe(host, record)
            if isinstance(host, HostTensor):
                described |= self.directions.described(host, record, self.sink)
            return described

    def keep(self, gradient: Any) -> HostTensor:
        """Return a gradient that stays as it is now: a copy in host memory."""
        host = self.taken(gradient)
        return replace(host, array=host.array.copy())

    def difference(self, gradient: Any, kept: HostTensor) -> tuple[HostTensor | None, float | None]:
        """Return a gradient less a kept one, rounded once; None where the kept one has overflowed.

        With it, how much each element may be off by rounding; None if that is not known.
        """
        if not np.isfinite(kept.values()).all():
            return None, None
        total = self.taken(gradient)
        return subtract(total, kept), rounding_of(total, kept)

    def flush(self) -> None:
        """Hand over whatever still waits."""
        if self.overflows is not None:
            with self.charge:
                self.overflows.flush()

    def _describe(self, value: Any, record: str) -> Leaf:
        with self.charge:
            try:
                host = to_host(value)
                leaf = self.summaries.describe(host)
                kept = kept_of(leaf.dtype, leaf.shape) if self.sketches else STATISTICS
                if kept == MASK:
                    room = self._masks.has(host.array.nbytes, leaf.fingerprint)
                    kept = WHOLE if room else SKETCH
                name = sketch = None
                stored = self.elements(record) if callable(self.elements) else self.elements
                if stored or kept == WHOLE:
                    name = self.sink.save(record, host.values(), leaf.fingerprint)
                elif kept == SKETCH:
                    sketch = self._sketch(host, leaf.fingerprint)
                return leaf.stored(name, fingerprint=self.fingerprint, sketch=sketch)
            except Exception as error:
                return self._failed(value, error)

    def _sketch(self, host: HostTensor, fingerprint: str | None) -> SketchPlace:
        assert fingerprint is not None

        def made() -> np.ndarray:
            self._masks.sketched(host.array.nbytes)
            return bytes_of_sketch(host)

        offset = self.sink.save_sketch(fingerprint, made)
        return SketchPlace(ALGORITHM, block_for(host.dtype), offset)

    def _held(self, value: Any, record: str) -> Any:
        """Return a tensor's description as JSON, with what is held of it."""
        assert self.overflows is not None
        with self.charge:
            try:
                host = to_host(value)
                leaf = self.summaries.describe(host)
                held = self.overflows.hold(record, host, leaf.fingerprint)
                described = leaf.stored(None, fingerprint=self.fingerprint).to_json()
                if held is not None:
                    described[HELD] = record, held
                return described
            except Exception as error:
                return self._failed(value, error)

    def _failed(self, value: Any, error: Exception) -> Leaf:
        self.fault(message("lost.tensor"), error)
        return unread(value, error)


@dataclass(eq=False)
class Opening:
    """What one opening of one phase is recorded with.

    Attributes:
        number: how often the phase had been opened in this step before.
        root: the network whose cells are recorded.
        counters: the phase's counters of this step.
        sequence: the process's clock: one number for every event.
        entries: describes tensors and takes each entry when it ended.
        is_recorded: tells by a cell's name whether it is recorded.
        records_token: tells by a token's number whether it is recorded; None in phases that do
            not count tokens.
        with_parameters: whether parameters are recorded.
        directions: what is recorded of a cell: forward, backward.
        forward, backward: whether each of them is.
        selection: what decides which entries are recorded.
        parameter_hooks: hooks parameters; the same at every opening.
        buffer_bytes: of gradients that may wait to be summarised.
        fault: called with every fault while recording; may raise only in strict mode.
        at_optimizer: ids of parameters whose gradients are recorded as they enter an optimizer
            that runs in Python.
        operators: tells by the name of the cell around an operator, "" outside every cell, whether
            it is recorded; None where no operator is.
        observer: is told of the calls, too; None: nothing is.
        graft: what of another run takes the place of what is computed; None: nothing.
        closed: whether it has ended: what comes now is not recorded.
    """

    number: int
    root: nn.Cell
    counters: StepCounters
    sequence: Iterator[int]
    entries: HostEntries
    is_recorded: Callable[[str], bool]
    records_token: Callable[[int], bool] | None
    with_parameters: bool
    directions: Collection[str]
    parameter_hooks: ParameterHooks
    buffer_bytes: int
    fault: FaultSink
    at_optimizer: Collection[int] = ()
    operators: Callable[[str], bool] | None = None
    observer: CallObserver | None = None
    graft: PhaseGraft | None = None
    closed: bool = False
    _guards: dict[str, Counted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.selection = self.counters.selection
        self.forward, self.backward = (d in self.directions for d in ("forward", "backward"))

    def now(self) -> int:
        """Return the next place in the process's time."""
        return next(self.sequence)

    def line(
        self, entry: str, seq: int, end: int | None = None, parent: str | None = None, **more: Any
    ) -> JournalLine:
        """Return the line of an entry of this opening; see `JournalLine`."""
        return JournalLine(entry, seq, end, parent, self.number, **more)

    def describe(self, value: Any, path: str) -> Any:
        """Return the JSON structure of a value, whose record path is `path`."""
        return self.entries.describer.describe(value, path)

    def gradient_entry(self, head: str) -> str | None:
        """Return the entry of a cell's gradients that enter an optimizer now; None: none is.

        Args:
            head: the cell's part of its entries' names.
        """
        call_name = f"{head}.{PARAMETERS_GRAD}"
        entry = f"{call_name}.{self.counters.calls.get(call_name, 0)}"
        return entry if self.selection.takes_parameter_gradient(head, entry) else None

    def parameter_gradient(self, gradient: Any, entry: str, name: str) -> dict[str, Any]:
        """Return the description of a parameter's gradient, by its entry and its name there."""
        in_network = network_name(cell_name(entry), name)
        return self.entries.parameter_gradient(gradient, child_path(entry, name), in_network)

    def append_update(self, gradients: Mapping[str, Mapping[str, Any]]) -> None:
        """Hand on the gradients that entered an optimizer: one entry for each cell that has some.

        Args:
            gradients: the cell's part of its entries' names → parameter's name → description.
        """
        for head, of_cell in gradients.items():
            call_name = f"{head}.{PARAMETERS_GRAD}"
            entry = f"{call_name}.{self.counters.calls.count(call_name)}"
            described = {name: [{**leaf, "at_optimizer": True}] for name, leaf in of_cell.items()}
            line = self.line(entry, self.now(), self.now())
            line.values[PARAMETERS_GRAD] = described
            self.entries.append(line)

    def guard(self, what: str) -> Counted:
        """Return a context whose time is charged to the phase, and whose faults are counted.

        Args:
            what: the code of what is lost with a fault, in the area `lost`.
        """
        guard = self._guards.get(what)
        if guard is None:
            guard = Counted(self.fault, what, charge=self.entries.charge)
            self._guards[what] = guard
        return guard


def backward_name(forward: str) -> str:
    """Return the backward entry of a forward entry: the same call of the cell or operator."""
    if forward.endswith(_FORWARD):  # of an operator
        return f"{forward.removesuffix(_FORWARD)}.backward"
    head, _, call = forward.rpartition(".forward.")
    return f"{head}.backward.{call}"


@dataclass(eq=False, slots=True)
class CellSlot:
    """A cell of the network of an opening.

    Attributes:
        recorded: whether it is recorded.
        arguments: what its positional arguments are called.
        frames: where its construct stands, as a call stack has a line of code; () if not known. A
            compiled graph calls no line of Python.
        head: the cell's part of its entries' names.
        call_name: the name of its forward entries, without the number.
    """

    name: str
    class_name: str
    recorded: bool
    arguments: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    head: str = field(init=False)
    call_name: str = field(init=False)

    def __post_init__(self) -> None:
        self.call_name = entry_name(self.name, self.class_name, "forward", 0).removesuffix(".0")
        self.head = self.call_name.removesuffix(".forward")


@dataclass(eq=False, slots=True)
class Call:
    """A call of a cell or an operator, from when it begins until its entries are handed on.

    Attributes:
        entry: its forward entry; of a call that is repeated, that of the first time.
        token: the token it belongs to.
        in_range: whether that token is recorded.
        in_cell: of an operator, the name of the cell in which it is called, "" outside every cell.
        recorded: whether its forward entry is recorded.
        traced: whether its backward entry may be recorded.
        repeats: whether a recomputed cell runs it once more, for its gradients.
        parent, traced_parent: the innermost entry around it that is, or may be.
        line: what is recorded of it so far.
        gradients: its backward entry, where gradients flow in PyNative mode.
    """

    opening: Opening
    entry: str = ""
    token: int | None = None
    in_range: bool = True
    in_cell: str | None = None
    recorded: bool = False
    traced: bool = False
    repeats: bool = False
    parent: str | None = None
    traced_parent: str | None = None
    line: JournalLine | None = None
    gradients: CallGradients | None = None

    def inside(self, around: Call | None) -> None:
        """Put it inside a call that is running; None: nothing runs around it."""
        if around is not None:
            self.parent = around.entry if around.recorded else around.parent
            self.traced_parent = around.entry if around.traced else around.traced_parent

    def begin(self, entry: str) -> None:
        """Give it its name, and find out what of it is recorded."""
        self.entry = entry
        if self.in_range:
            self.recorded = self.opening.selection.begin(entry)
            self.traced = self.opening.selection.may_begin(backward_name(entry))

    def given(
        self, args: Iterable[Any], kwargs: Any, names: tuple[str, ...] = (), **about: Any
    ) -> None:
        """Begin its forward entry, if that is recorded, with what it is given.

        Args:
            names: what its positional arguments are called.
            about: see `JournalLine`.
        """
        opening = self.opening
        if not (self.recorded and opening.forward):
            return
        self.line = opening.line(
            *(self.entry, opening.now(), None, self.parent),
            token=self.token,
            around=self.in_cell,
            **about,
        )
        if opening.selection.inputs:
            values, inputs = self.line.values, f"{self.entry}.input"
            described = [opening.describe(a, f"{inputs}.{i}") for i, a in enumerate(args)]
            values["input_args"] = described
            values["input_kwargs"] = opening.describe(kwargs, inputs)
            self.line.input_names = names[: len(described)]

    def returned(self, output: Any) -> None:
        """Note what it returned, and hand on its forward entry."""
        opening = self.opening
        several = isinstance(output, tuple) and not hasattr(output, "_fields")
        results = list(output) if several else [output]
        if (line := self.line) is not None:
            if opening.selection.outputs:
                line.values["output"] = opening.describe(results, f"{line.entry}.output")
            line.end = opening.now()
            if not opening.closed:
                opening.entries.append(line)
        opening.selection.end(self.entry)
        if self.gradients is not None:
            self.gradients.leave(results)

    def raised(self, *, at_end: bool = False) -> None:
        """Hand on its forward entry though it did not return: that has no end and no output.

        Args:
            at_end: because the phase ends, and it is still running.
        """
        opening = self.opening
        if self.gradients is not None:
            self.gradients.done = True  # what comes by now is not its own
        opening.selection.end(self.entry)
        if self.line is not None:
            if opening.selection.outputs:
                self.line.values["output"] = []
            if at_end or not opening.closed:
                opening.entries.append(self.line)
