"""PyNative: forward hooks of one open phase → entries.

Hooks are registered when the phase opens and removed when it closes. A hook never changes what it
sees, and a fault inside one never reaches the training.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import mindspore
from mindspore import nn

from mindrlhf_msprobe.capture.callstack import CallStacks
from mindrlhf_msprobe.capture.hooks import CellHooks
from mindrlhf_msprobe.capture.summary import fingerprint_of, to_host
from mindrlhf_msprobe.capture.tree import TreeDescriber
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.records import entry_name

ROOT_NAME = "root"

#: Takes an entry's values and call stack.
EntrySink = Callable[[dict[str, Any], tuple[str, ...]], None]
#: Takes what was being recorded and what went wrong.
FaultSink = Callable[[str, BaseException], None]


def check_cell(call: str, cell: object) -> nn.Cell:
    """Return `cell` if it is a network.

    Raises:
        UsageError: it is not a mindspore.nn.Cell.
    """
    if not isinstance(cell, nn.Cell):
        kind = f"class {cell.__name__}" if isinstance(cell, type) else type(cell).__name__
        raise UsageError(
            f"{call} got {kind}, which is not a cell; expected a mindspore.nn.Cell "
            f"(the network itself, not its class, parameters or trainer)."
        )
    return cell


def named_cells(root: nn.Cell) -> dict[str, nn.Cell]:
    """Return every cell below `root` by name, each cell once, `root` itself as "root"."""
    # The same names in the same order as Cell.cells_and_names, which leaves out cells that are
    # false or equal to another one (a cell may define len or ==).
    cells: dict[str, nn.Cell] = {}
    seen: set[int] = set()
    pending: list[tuple[str, nn.Cell]] = [("", root)]
    while pending:
        path, cell = pending.pop()
        if id(cell) in seen:
            continue
        seen.add(id(cell))
        name = path or ROOT_NAME
        while name in cells:  # a child that is itself called root
            name += "~"
        cells[name] = cell
        prefix = f"{path}." if path else ""
        children = [(prefix + key, c) for key, c in cell._cells.items() if c is not None]
        pending += reversed(children)
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
    """A cell that is running now; `runs` is MindSpore's Python frame that runs it."""

    cell: int
    runs: FrameType | None
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
        self._hooks = CellHooks(self._before, self._after)
        self._slots: dict[int, _Slot] = {}
        self._running = threading.local()
        self._threads: list[list[_Frame]] = []
        # Held for moments only, never while a tensor is brought to the host.
        self._lock = threading.Lock()
        self._closed = False
        self._stacks = CallStacks(mindspore.__file__)
        self.cells_seen = 0

    def open(self) -> None:
        """Register the hooks; none stays where that fails."""
        try:
            for name, cell in named_cells(self._root).items():
                recorded = self._is_recorded(name)
                # Tokens are counted by the outermost cells, recorded or not.
                if recorded or self._records_token is not None:
                    call_name = entry_name(name, type(cell).__name__, "forward", 0)[:-2]
                    self._slots[id(cell)] = _Slot(call_name, recorded)
                    self._hooks.add(cell)
        except BaseException:
            self._hooks.remove()
            raise

    def close(self) -> None:
        """Remove the hooks and hand over what never returned."""
        self._hooks.remove()
        with self._lock:
            self._closed = True
            left = [frame for frames in self._threads for frame in reversed(frames)]
            self._threads.clear()
        for frame in left:
            with self._guard("a cell that did not return"):
                self._emit_unfinished(frame)

    def innermost(self) -> tuple[str | None, int | None]:
        """Return the entry of the innermost recorded cell that is running, and its token."""
        with self._lock:
            running = [frame for frames in self._threads for frame in frames if frame.recorded]
        if not running:
            return None, None
        return running[-1].entry, running[-1].values.get("token")

    def _frames(self) -> list[_Frame]:
        """Return the cells running in this thread, the outermost first."""
        frames: list[_Frame] | None = getattr(self._running, "frames", None)
        if frames is None:
            frames = self._running.frames = []
            with self._lock:
                self._threads.append(frames)
        return frames

    def _before(self, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._guard("the inputs of a cell"):
            self._enter(cell, args, kwargs)

    def _after(self, cell: nn.Cell, output: Any) -> None:
        with self._guard("the output of a cell"):
            self._leave(cell, output)

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._fault(what, error)

    def _enter(self, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        slot = self._slots.get(id(cell))
        if slot is None or self._closed:  # a copy of a hooked cell has its hooks too
            return
        runs = _running_frame()
        frames = self._frames()
        while frames and not _encloses(frames[-1].runs, runs):
            self._emit_unfinished(frames.pop())  # it raised, and somebody caught that
        with self._lock:
            self.cells_seen += slot.recorded
            token = self._count_token(id(cell), outermost=not frames)
            call = self._counters.calls.get(slot.call_name, 0)
            self._counters.calls[slot.call_name] = call + 1
        in_range = self._records_token is None or self._records_token(token or 0)
        entry = f"{slot.call_name}.{call}"
        frame = _Frame(id(cell), runs, entry, slot.recorded and in_range, {})
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
        if self._closed or not any(frame.cell == id(cell) for frame in frames):
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
        if not self._closed:
            self._sink(frame.values, frame.stack)

    def _emit_unfinished(self, frame: _Frame) -> None:
        if frame.recorded:
            self._sink({**frame.values, "output": []}, frame.stack)


def _running_frame() -> FrameType | None:
    """Return the Python frame of MindSpore that runs the cell whose hook asks, if it is known."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in ("_run_construct", "__call__"):
        frame = frame.f_back
    return frame


def _encloses(outer: FrameType | None, inner: FrameType | None) -> bool:
    """Tell whether `outer` is still running around `inner`; where that is not known, it is."""
    if outer is None or inner is None:
        return True
    frame: FrameType | None = inner
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None
