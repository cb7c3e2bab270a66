"""PyNative: forward hooks of one open phase → entries.

Hooks are registered when the phase opens and removed when it closes. A hook never changes what it
sees, and a fault inside one never reaches the training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mindspore
from mindspore import nn

from mindrlhf_msprobe.capture.callstack import CallStacks
from mindrlhf_msprobe.capture.summary import fingerprint_of, to_host
from mindrlhf_msprobe.capture.tree import TreeDescriber
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.records import entry_name

ROOT_NAME = "root"

#: Takes an entry's values and call stack.
EntrySink = Callable[[dict[str, Any], tuple[str, ...]], None]
#: Takes what was being recorded and what went wrong.
FaultSink = Callable[[str, BaseException], None]


def check_cell(role: str, cell: object) -> nn.Cell:
    """Return `cell` if it is a network.

    Raises:
        UsageError: it is not a mindspore.nn.Cell.
    """
    if not isinstance(cell, nn.Cell):
        kind = f"class {cell.__name__}" if isinstance(cell, type) else type(cell).__name__
        raise UsageError(
            f"watch({role}=…) got {kind}, which is not a cell; expected a mindspore.nn.Cell "
            f"(the network itself, not its class, parameters or trainer)."
        )
    return cell


def named_cells(root: nn.Cell) -> dict[str, nn.Cell]:
    """Return every cell below `root` by name, each cell once, `root` itself as "root"."""
    cells: dict[str, nn.Cell] = {}
    for name, cell in root.cells_and_names():
        name = name or ROOT_NAME
        while name in cells:  # a child that is itself called root
            name += "~"
        cells[name] = cell
    return cells


@dataclass
class StepCounters:
    """What is counted per phase and step, over all openings of the phase.

    Attributes:
        calls: how often each entry's cell ran.
        parameters: the fingerprint of each cell's parameters when they were last recorded.
        openings: how often the phase was opened.
    """

    calls: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    openings: int = 0


@dataclass
class _Slot:
    """A hooked cell: its name in entries, and whether it is recorded."""

    call_name: str
    recorded: bool


@dataclass
class _Frame:
    """A cell that is running now."""

    cell: int
    entry: str
    recorded: bool
    values: dict[str, Any]
    stack: tuple[str, ...] = ()


class EagerCapture:
    """The hooks of one opening of one phase.

    Args:
        root: the network whose cells are hooked.
        counters: the phase's counters of this step.
        sequence: the process's clock: one number for every event.
        describer: turns inputs and outputs into JSON structures.
        is_recorded: tells by a cell's name whether it is recorded.
        records_token: tells by a token's number whether it is recorded; None in phases that do
            not count tokens.
        with_parameters: whether parameters are recorded.
        sink: takes each entry when it ended.
        fault: told about every fault while recording; may raise only in strict mode.
    """

    def __init__(
        self,
        root: nn.Cell,
        *,
        counters: StepCounters,
        sequence: Iterator[int],
        describer: TreeDescriber,
        is_recorded: Callable[[str], bool],
        records_token: Callable[[int], bool] | None,
        with_parameters: bool,
        sink: EntrySink,
        fault: FaultSink,
    ) -> None:
        self._root = root
        self._counters = counters
        self._sequence = sequence
        self._describer = describer
        self._is_recorded = is_recorded
        self._records_token = records_token
        self._with_parameters = with_parameters
        self._sink = sink
        self._fault = fault
        self._opening = counters.openings
        counters.openings += 1
        self._first_outermost: int | None = None
        self._token = -1
        self._handles: list[Any] = []
        self._slots: dict[int, _Slot] = {}
        self._running = threading.local()
        self._stacks = CallStacks(mindspore.__file__)
        self.cells_seen = 0

    def open(self) -> None:
        """Register the hooks."""

        # MindSpore takes plain functions only, and passes what they return on to the training.
        def before(cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with self._guard("the inputs of a cell"):
                self._enter(cell, args, kwargs)

        def after(
            cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            with self._guard("the output of a cell"):
                self._leave(cell, output)

        for name, cell in named_cells(self._root).items():
            recorded = self._is_recorded(name)
            # Tokens are counted by the outermost cells, recorded or not.
            if recorded or self._records_token is not None:
                call_name = entry_name(name, type(cell).__name__, "forward", 0)[:-2]
                self._slots[id(cell)] = _Slot(call_name, recorded)
                self._handles.append(cell.register_forward_pre_hook(before, with_kwargs=True))
                self._handles.append(_register_forward_hook(cell, after))

    def close(self) -> None:
        """Remove the hooks and hand over what never returned."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with self._guard("the cells that did not return"):
            for frame in reversed(self._frames()):
                self._emit_unfinished(frame)
            self._frames().clear()

    def _frames(self) -> list[_Frame]:
        """Return the cells running in this thread, the outermost first."""
        frames: list[_Frame] | None = getattr(self._running, "frames", None)
        if frames is None:
            frames = self._running.frames = []
        return frames

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._fault(what, error)

    def _enter(self, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.cells_seen += 1
        slot = self._slots[id(cell)]
        frames = self._frames()
        token = self._count_token(id(cell), outermost=not frames)
        call = self._counters.calls.get(slot.call_name, 0)
        self._counters.calls[slot.call_name] = call + 1
        in_range = self._records_token is None or self._records_token(self._token)
        entry = f"{slot.call_name}.{call}"
        frame = _Frame(id(cell), entry, slot.recorded and in_range, {})
        parent = next((f.entry for f in reversed(frames) if f.recorded), None)
        frames.append(frame)
        if not frame.recorded:
            return
        frame.values.update(entry=entry, seq=next(self._sequence), end=None, parent=parent)
        frame.values["opening"] = self._opening
        if token is not None:
            frame.values["token"] = token
        frame.stack = self._stacks.here()
        describe = self._describer.describe
        inputs = f"{entry}.input"
        frame.values["input_args"] = [describe(a, f"{inputs}.{i}") for i, a in enumerate(args)]
        frame.values["input_kwargs"] = describe(kwargs, inputs)
        if self._with_parameters:
            parameters = self._parameters(cell, slot.call_name, f"{entry}.parameters")
            if parameters:
                frame.values["parameters"] = parameters

    def _count_token(self, cell: int, *, outermost: bool) -> int | None:
        """A new token begins when the first of the outermost cells is called again."""
        if self._records_token is None:
            return None
        if outermost:
            if self._first_outermost is None:
                self._first_outermost = cell
            if self._first_outermost == cell:
                self._token += 1
        return self._token

    def _parameters(self, cell: nn.Cell, call_name: str, path: str) -> dict[str, Any]:
        """Describe the cell's own parameters where they changed since they were last recorded."""
        described = {}
        for name, parameter in cell.parameters_and_names(expand=False):
            state = fingerprint_of(to_host(parameter))
            key = f"{call_name}.{name}"
            if self._counters.parameters.get(key) != state:
                self._counters.parameters[key] = state
                described[name] = self._describer.describe(parameter, f"{path}.{name}")
        return described

    def _leave(self, cell: nn.Cell, output: Any) -> None:
        frames = self._frames()
        if not any(frame.cell == id(cell) for frame in frames):
            return  # it was entered before the phase opened
        while True:
            frame = frames.pop()
            if frame.cell == id(cell):
                break
            self._emit_unfinished(frame)
        if not frame.recorded:
            return
        plain = isinstance(output, (list, tuple)) and not hasattr(output, "_fields")
        results = list(output) if plain else [output]
        frame.values["output"] = self._describer.describe(results, f"{frame.entry}.output")
        frame.values["end"] = next(self._sequence)
        self._sink(frame.values, frame.stack)

    def _emit_unfinished(self, frame: _Frame) -> None:
        if frame.recorded:
            frame.values["output"] = []
            self._sink(frame.values, frame.stack)


def _register_forward_hook(cell: nn.Cell, hook: Callable[..., None]) -> Any:
    """Register a forward hook; also on a cell with its own bprop.

    `Cell.register_forward_hook` silently ignores such a cell, although its forward hooks run like
    any other's. The hook changes no output, so its gradient stays what its bprop says.
    """
    has_bprop = cell.has_bprop
    try:
        cell.has_bprop = False
        return cell.register_forward_hook(hook, with_kwargs=True)
    finally:
        cell.has_bprop = has_bprop
