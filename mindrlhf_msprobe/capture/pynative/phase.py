"""PyNative: hooks of one open phase → entries, forward and backward.

Hooks are registered when the phase opens and removed when it closes. A hook never changes what it
sees, and a fault inside one never reaches the training.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import mindspore
from mindspore import nn

from mindrlhf_msprobe.capture.cells import (
    ROOT_NAME,
    Children,
    argument_names,
    is_jitted,
    left_out_arguments,
    named_cells,
    parameters_held_twice,
)
from mindrlhf_msprobe.capture.framework.callstack import CallStacks, encloses, running_frame
from mindrlhf_msprobe.capture.framework.hooks import Arguments, CellHooks
from mindrlhf_msprobe.capture.framework.private import (
    FIRST_RUN,
    INNER_EXECUTOR,
    has_run,
    recomputing_cell,
)
from mindrlhf_msprobe.capture.graph.switch import writes_files
from mindrlhf_msprobe.capture.opening.counters import TokenCounter
from mindrlhf_msprobe.capture.opening.observer import CellCall, ObservedCall
from mindrlhf_msprobe.capture.opening.opening import Opening
from mindrlhf_msprobe.capture.pynative.gradients import (
    Backlog,
    CallGradients,
    ParameterGradients,
    backward_name,
    gradients_flow,
    inside_the_graph,
)
from mindrlhf_msprobe.capture.recompute import MARKS, Call, Repetitions, given_again
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.records import entry_name


class LeftOut:
    """Stands in an entry for an argument that is not recorded."""


LEFT_OUT = LeftOut()
_KEPT_GRADIENTS = 4096


@dataclass
class _Slot:
    """A hooked cell: its name, in entries, too, whether it is recorded, whether the operators in it
    are, which cells it holds, and what its positional arguments are called."""

    cell: nn.Cell
    name: str
    call_name: str
    recorded: bool
    operators: bool
    children: Children
    arguments: tuple[str, ...]


@dataclass(eq=False, slots=True)
class _Frame:
    """A cell that is running now.

    Attributes:
        cell: its id.
        runs: MindSpore's Python frame that runs it.
        entry: its forward entry; of a repeated run, that of the first.
        recorded: whether its forward entry is recorded.
        traced: whether its backward entry may be recorded.
        repeats: whether it runs once more, for its gradients.
        parent, traced_parent: the innermost entry around it that is, or may be.
        line: what is recorded of it so far.
        gradients: its backward entry, where gradients flow.
        slot: what is known of the cell; None where it is not hooked.
        token: the token it belongs to.
        in_range: whether that token is recorded.
        observed: what the opening's observer made of it.
    """

    cell: int
    runs: FrameType | None
    entry: str = ""
    recorded: bool = False
    traced: bool = False
    repeats: bool = False
    parent: str | None = None
    traced_parent: str | None = None
    line: JournalLine | None = None
    gradients: CallGradients | None = None
    slot: _Slot | None = None
    token: int | None = None
    in_range: bool = True
    observed: ObservedCall | None = None

    def inside(self, frames: list[_Frame]) -> None:
        """Put it inside the cells that are running."""
        if frames:
            around = frames[-1]
            self.parent = around.entry if around.recorded else around.parent
            self.traced_parent = around.entry if around.traced else around.traced_parent
        frames.append(self)


@dataclass(frozen=True, slots=True)
class Around:
    """Where an operator is called.

    Attributes:
        cell: the name of the innermost cell that is running, "" outside every cell.
        inside: whether any cell is running.
        chosen: whether operators are recorded there.
        in_range: whether that token is.
        token: the token that runs.
        parent, traced_parent: the innermost entry around it that is, or may be recorded.
    """

    cell: str
    inside: bool
    chosen: bool
    in_range: bool = True
    token: int | None = None
    parent: str | None = None
    traced_parent: str | None = None


_NOT_CHOSEN = Around("", True, False)


class EagerCapture:
    """The hooks of one opening of one phase.

    Args:
        opening: its `root` is the network whose cells are hooked.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._outside = Around("", False, bool(opening.operators and opening.operators("")))
        self._left_out = left_out_arguments(opening.root)
        self._tokens = TokenCounter(opening.records_token)
        self._in_range = True  # whether the token that was counted last is recorded
        self._passed_over: str | None = None  # what was counted last, and no more
        self._hooks = CellHooks(self._before, self._after)
        self._slots: dict[int, _Slot] = {}
        self._recomputed: dict[int, int] = {}  # id of what runs a recomputed cell → the cell's own
        self._cells: dict[int, nn.Cell] = {}  # all that were in the network, hooked or not
        self._held_twice: dict[int, set[str]] = {}
        # Parameters that this opening has looked at: what a glance showed, and which of them were
        # only glanced at since.
        self._glances: dict[str, bytes] = {}
        self._glanced_at: dict[str, Any] = {}
        self._running = threading.local()
        self._threads: list[list[_Frame]] = []
        # Held for moments only, never while a tensor is brought to the host.
        self._lock = threading.Lock()
        self._closed = False
        self._reads_files = writes_files()
        self.stacks = CallStacks(mindspore.__file__, MARKS)
        self.repetitions = Repetitions()
        self._backlog = Backlog(opening.buffer_bytes)
        self._gradients: list[CallGradients] = []
        self._most_gradients = _KEPT_GRADIENTS  # then those that are done are let go
        self._mark = object()  # outlives it on the tensors it tapped, and holds nothing
        self._parameter_gradients: ParameterGradients | None = None
        self.cells_seen = 0

    def open(self) -> None:
        """Register the hooks; none stays where that fails."""
        cells = named_cells(self._opening.root)
        try:
            if self._opening.backward:
                self._backlog.open(waits=not any(cell.has_bprop for cell in cells.values()))
            self._hook(cells)
            if self._opening.observer is not None:
                self._opening.observer.open()
        except BaseException:
            self._hooks.remove()
            self._backlog.close()
            raise

    def _hook(self, cells: Mapping[str, nn.Cell]) -> None:
        """Hook the cells of the network that are not hooked yet."""
        if self._opening.with_parameters:
            self._held_twice = parameters_held_twice(cells.values())
        for name, cell in cells.items():
            if id(cell) in self._cells:
                continue
            self._cells[id(cell)] = cell
            recorded = self._opening.is_recorded(name)
            # Tokens are counted by the outermost cells, recorded or not.
            counts = self._opening.records_token is not None
            if recorded or counts or self._bounds_operators(name):
                call_name = entry_name(name, type(cell).__name__, "forward", 0)[:-2]
                operators = bool(self._opening.operators and self._opening.operators(name))
                self._slots[id(cell)] = _Slot(
                    *(cell, name, call_name, recorded, operators),
                    *(Children(cell), argument_names(cell)),
                )
                self._hooks.add(cell)
            repeats = self._opening.backward or self._opening.operators is not None
            if repeats and (repeating := recomputing_cell(cell)) is not None:
                self._recomputed[id(repeating)] = id(cell)
                self._hooks.add_before(repeating, self._before_repetition)

    def _bounds_operators(self, name: str) -> bool:
        """Return whether it must be known that a cell runs, for the operators in it."""
        chosen = self._opening.operators
        if chosen is None:
            return False
        parts = name.split(".")
        outer = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return chosen("") or chosen(ROOT_NAME) or any(map(chosen, outer))

    def _hook_new_cells(self) -> None:
        """Hook the cells that were put into the network since; count those that ran unseen."""
        with self._lock:
            if self._closed:
                return
            cells = named_cells(self._opening.root)
            new = {name: cell for name, cell in cells.items() if id(cell) not in self._cells}
            self._hook(cells)
            for slot in self._slots.values():
                slot.children = Children(slot.cell)
            if self._parameter_gradients is not None:
                self._parameter_gradients.watch(self._recorded_cells())
        self._count_unseen(new)

    def _count_unseen(self, new: Mapping[str, nn.Cell]) -> None:
        for name, cell in new.items():
            if self._opening.is_recorded(name) and has_run(cell):
                error = LookupError(message("fault.unseen", name=name))
                self._opening.fault(message("lost.new_cell"), error)

    def close(self) -> None:
        """Remove the hooks and hand over what is not whole: no more will come of it."""
        self._hooks.remove()
        with self._opening.guard("lost.new_cell"):
            cells = named_cells(self._opening.root).items()
            self._count_unseen({n: cell for n, cell in cells if id(cell) not in self._cells})
        self._backlog.close()
        with self._lock:
            self._closed = True
            left = [frame for frames in self._threads for frame in reversed(frames)]
            self._threads.clear()
        for frame in left:
            with self._opening.guard("lost.open_cell"):
                self._emit_unfinished(frame)
        for gradients in self._gradients:
            with self._opening.guard("lost.gradient"):
                gradients.finish()
        self._gradients.clear()
        for key, parameter in self._glanced_at.items():
            with self._opening.guard("lost.changed_parameter"):
                self._check(key, parameter)
        if self._parameter_gradients is not None:
            with self._opening.guard("lost.parameter_gradient"):
                self._parameter_gradients.remove()
        if self._opening.observer is not None:
            with self._opening.guard(self._opening.observer.lost):
                self._opening.observer.close()
        with self._opening.guard("lost.phase_entries"):
            self._opening.entries.flush()

    @property
    def network(self) -> nn.Cell:
        """The network whose cells are hooked."""
        return self._opening.root

    @property
    def opening(self) -> Opening:
        """What the phase is recorded with."""
        return self._opening

    def around(self) -> Around:
        """Return where an operator is called, by the cells that are running in this thread."""
        frames = self._frames()
        if not frames:
            return self._outside
        here = sys._getframe(1)
        while frames and not encloses(frames[-1].runs, here):
            with self._opening.guard("lost.output"):
                self._emit_unfinished(frames.pop())  # it raised, and somebody caught that
        if not frames:
            return self._outside
        frame = frames[-1]
        slot = frame.slot
        if slot is None or not slot.operators:
            return _NOT_CHOSEN
        return Around(
            slot.name,
            True,
            not self._closed,
            frame.in_range,
            frame.token,
            frame.entry if frame.recorded else frame.parent,
            frame.entry if frame.traced else frame.traced_parent,
        )

    def count(self, name: str) -> int:
        """Count a call of an operator; return how often it had come before."""
        with self._lock:
            return self._opening.counters.calls.count(name)

    def append(self, line: JournalLine) -> None:
        """Take an operator's entry that ended."""
        if not self._closed:
            self._opening.entries.append(line)

    def innermost(self) -> str | None:
        """Return the entry of the innermost recorded cell that is running.

        Where graphs write files, which are read later, only a jitted cell is known to be around
        them: they are read before it begins and before it ends.
        """
        running = [frame for frame in self._all_frames() if frame.recorded]
        if not running or (self._reads_files and not is_jitted(self._cells[running[-1].cell])):
            return None
        return running[-1].entry

    def token(self) -> int | None:
        """Return the token to which what runs belongs; None where no cell runs, or none counts."""
        return self._tokens.token if self._all_frames() else None

    def has_counted(self, call_name: str) -> bool:
        """Return whether the cell that begins to run in a graph is the one that was called here."""
        if self._passed_over == call_name:
            self._passed_over = None  # a graph may call it again
            return True
        running = self._all_frames()
        return bool(running) and running[-1].entry.rpartition(".")[0] == call_name

    def _all_frames(self) -> list[_Frame]:
        """Return the cells running in all threads."""
        with self._lock:
            return [frame for frames in self._threads for frame in frames]

    def _frames(self) -> list[_Frame]:
        """Return the cells running in this thread, the outermost first."""
        frames: list[_Frame] | None = getattr(self._running, "frames", None)
        if frames is None:
            frames = self._running.frames = []
            with self._lock:
                self._threads.append(frames)
        return frames

    def _before(
        self, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        self._read_files(cell)
        if self._passes_over(cell):
            return None
        frame = None
        with self._opening.guard("lost.inputs"):
            frame = self._enter(cell, args, kwargs)
        if frame is None:
            return None
        given: Arguments | None = None
        if frame.gradients is not None:
            with self._opening.guard("lost.gradients"):
                given = frame.gradients.enter(args, kwargs)
        if (observer := self._opening.observer) is not None and (frame.recorded or frame.repeats):
            assert frame.slot is not None
            call = (frame.entry, frame.slot.name, cell, args, kwargs, given or (args, kwargs))
            begins = observer.cell_repeats if frame.repeats else observer.cell_begins
            with self._opening.guard(observer.lost):
                frame.observed = begins(CellCall(*call))
        return given

    def _before_repetition(
        self, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        with self._opening.guard("lost.gradients"):
            if self._opening.operators is not None:
                self._enter_repetition(cell)
            if self._opening.backward and gradients_flow():
                return inside_the_graph(args, kwargs)
        return None

    def _enter_repetition(self, cell: nn.Cell) -> None:
        """Let operators know the recomputed cell around them: no hook shows that it runs again.

        Args:
            cell: the one inside MindSpore that runs it.
        """
        slot = self._slots.get(self._recomputed[id(cell)])
        if slot is None or self._closed:
            return
        frame = _Frame(id(cell), running_frame(), slot=slot)
        frames = self._frames()
        if frames and frames[-1].slot is slot:  # its first run
            frame.token, frame.in_range = frames[-1].token, frames[-1].in_range
        frame.inside(frames)

    def _after(self, cell: nn.Cell, output: Any) -> Any:
        self._read_files(cell)
        if not self._reads_files and is_jitted(cell):
            INNER_EXECUTOR.sync()  # its cells are known as its own while it runs
        frames = self._frames()
        innermost = frames and frames[-1].cell == id(cell)
        if not innermost and not any(frame.cell == id(cell) for frame in frames):
            return None  # it was entered before the phase opened, or passed over
        instead = self._handed_on(cell, output)
        with self._opening.guard("lost.output"):
            self._leave(cell, output if instead is None else instead)
        return instead

    def _handed_on(self, cell: nn.Cell, output: Any) -> Any:
        """Return what the observer has the training go on with instead of an output, or None."""
        if (observer := self._opening.observer) is None:
            return None
        frame = next(frame for frame in reversed(self._frames()) if frame.cell == id(cell))
        observed, frame.observed = frame.observed, None
        if observed is None or self._closed:
            return None
        with self._opening.guard(observer.lost):
            instead = observed.ended(output)
            return None if frame.repeats else instead
        return None

    def _read_files(self, cell: nn.Cell) -> None:
        """Read what graphs wrote, before a jitted or an outermost cell begins and ends."""
        if not self._reads_files:
            return
        outermost = all(frame.cell == id(cell) for frame in self._frames())
        if not (outermost or is_jitted(cell)):
            return
        with self._opening.guard("lost.graph_wrote"):
            from mindrlhf_msprobe.capture.graph import ascend as graph_ascend

            graph_ascend.wait()

    def _passes_over(self, cell: nn.Cell) -> bool:
        """Return whether a cell that runs inside a token out of the range need only be counted.

        Whatever runs outermost may begin a token, and what is computed again is counted once, so
        both take the long way.
        """
        frames = self._frames()
        if self._in_range or self._closed or not frames or gradients_flow():
            return False
        if self._opening.operators is not None:
            return False  # operators are counted in the cell around them
        slot = self._slots.get(id(cell))
        if slot is None or id(cell) == self._tokens.first or slot.children.changed():
            return False
        if not encloses(frames[-1].runs, running_frame()):
            return False
        with self._lock:
            self.cells_seen += slot.recorded
            self._opening.counters.calls.count(slot.call_name)
            self._passed_over = slot.call_name
        return True

    def _enter(self, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Frame | None:
        slot = self._slots.get(id(cell))
        if slot is None or self._closed:
            return None
        if slot.children.changed():
            self._hook_new_cells()
        runs = running_frame()
        frames = self._frames()
        while frames and not encloses(frames[-1].runs, runs):
            self._emit_unfinished(frames.pop())  # it raised, and somebody caught that
        looked = slot.recorded or slot.operators
        stack, repeating = self.stacks.here() if looked else ((), None)
        if repeating is not None and repeating.f_code is not FIRST_RUN:  # it runs once more
            frame = self._again(slot, runs, repeating, args, kwargs)
            frame.inside(frames)
            return frame
        frame = self._counted(slot, runs, outermost=not frames)
        frame.inside(frames)
        first = Call(frame.entry, frame.traced_parent)
        if frame.traced:
            self.repetitions.first(repeating, id(cell), first)
            frame.gradients = self.call_gradients(frame.entry, frame.traced_parent)
        if frame.recorded and self._opening.forward:
            about = {"token": frame.token, "frames": stack}
            now, parent = self._opening.now(), frame.parent
            frame.line = self._opening.line(frame.entry, now, None, parent, **about)
            self._describe_call(frame.line, cell, slot, args, kwargs)
            first.values = frame.line.values
        return frame

    def _counted(self, slot: _Slot, runs: FrameType | None, *, outermost: bool) -> _Frame:
        """Count a call of a cell; return its frame, with what will be recorded of it."""
        with self._lock:
            self.cells_seen += slot.recorded or slot.operators
            token, in_range = self._tokens.begin(id(slot.cell), outermost=outermost)
            call = self._opening.counters.calls.count(slot.call_name)
        self._in_range = in_range
        entry = f"{slot.call_name}.{call}"
        frame = _Frame(id(slot.cell), runs, entry, slot=slot, token=token, in_range=in_range)
        if slot.recorded and in_range:
            frame.recorded = self._opening.selection.begin(entry)
            frame.traced = self._opening.selection.may_begin(backward_name(entry))
        return frame

    def _describe_call(
        self,
        line: JournalLine,
        cell: nn.Cell,
        slot: _Slot,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Note what a cell is called with, and the parameters it computes with."""
        describe, values = self._opening.describe, line.values
        inputs = f"{line.entry}.input"
        if self._opening.selection.inputs:
            shown, kwargs = self._without(slot, args, kwargs) if self._left_out else (args, kwargs)
            values["input_args"] = [describe(a, f"{inputs}.{i}") for i, a in enumerate(shown)]
            values["input_kwargs"] = describe(kwargs, inputs)
            line.input_names = slot.arguments[: len(args)]
        if self._opening.with_parameters and self._opening.selection.outputs:
            parameters = self._parameters(cell, slot.call_name, f"{line.entry}.parameters")
            if parameters:
                values["parameters"] = parameters

    def _without(self, slot: _Slot, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, with a mark in the place of those that are left out."""
        names = [*slot.arguments[: len(args)], *[""] * (len(args) - len(slot.arguments))]
        left_out = self._left_out
        return (
            [LEFT_OUT if name in left_out else value for name, value in zip(names, args)],
            {name: LEFT_OUT if name in left_out else kwargs[name] for name in kwargs},
        )

    def _again(
        self, slot: _Slot, runs: FrameType | None, repeating: FrameType, args: Any, kwargs: Any
    ) -> _Frame:
        """Return the frame of a cell that runs once more: only its gradients are recorded."""
        frame = _Frame(id(slot.cell), runs, slot=slot)
        call = self.repetitions.again(repeating, id(slot.cell)) if slot.recorded else None
        if call is not None:
            frame.entry = call.entry
            shown = self._without(slot, args, kwargs) if self._left_out else (args, kwargs)
            same = given_again(call, *shown)
            frame.gradients = self.call_gradients(call.entry, call.parent, recomputed=same)
            frame.repeats = frame.gradients is not None
        return frame

    def call_gradients(
        self,
        entry: str,
        parent: str | None,
        *,
        around: str | None = None,
        in_place: bool = False,
        taps_parameters: bool = False,
        recomputed: str = "",
    ) -> CallGradients | None:
        """Return what records the backward entry of a forward entry; None where there is none.

        Args:
            around, in_place, taps_parameters, recomputed: what `CallGradients` takes.
        """
        if not self._opening.backward or not gradients_flow():
            return None
        if self._backlog.nested:
            error = NotImplementedError(message("fault.second_order"))
            self._opening.fault(message("lost.second_order"), error)
            return None
        self._watch_parameters()
        gradients = CallGradients(
            backward_name(entry),
            parent and backward_name(parent),
            self._opening,
            self._backlog,
            self._mark,
            around=around,
            in_place=in_place,
            taps_parameters=taps_parameters,
            recomputed=recomputed,
        )
        with self._lock:
            self._gradients.append(gradients)
            if len(self._gradients) > self._most_gradients:
                self._gradients = [one for one in self._gradients if not one.done]
                self._most_gradients = max(_KEPT_GRADIENTS, 2 * len(self._gradients))
        return gradients

    def _watch_parameters(self) -> None:
        """Hook the parameters of the recorded cells, once gradients are known to flow."""
        with self._lock:
            if self._parameter_gradients is not None:
                return
            self._parameter_gradients = ParameterGradients(self._opening, self._backlog)
        self._parameter_gradients.watch(self._recorded_cells())

    def _recorded_cells(self) -> dict[str, nn.Cell]:
        """Return the recorded cells by the head of their entries' names."""
        return {
            slot.call_name.removesuffix(".forward"): slot.cell
            for slot in self._slots.values()
            if slot.recorded
        }

    def _parameters(self, cell: nn.Cell, call_name: str, path: str) -> dict[str, Any]:
        """Describe the cell's own parameters where they changed since they were last recorded."""
        described = {}
        elsewhere = self._held_twice.get(id(cell), ())
        for name, parameter in cell.parameters_and_names(expand=False):
            if name in elsewhere:
                continue  # recorded where it belongs
            if getattr(parameter, "has_init", False):
                continue  # asking for its elements would initialise it
            key = f"{call_name}.{name}"
            glance = None if gradients_flow() else self._opening.entries.glance(parameter)
            if glance is not None:
                if self._glances.get(key) == glance:
                    self._glanced_at[key] = parameter
                    continue
                self._glances[key] = glance
                self._glanced_at.pop(key, None)
            state = self._opening.entries.state_of(parameter)
            if self._opening.counters.parameters.changes(key, state):
                described[name] = self._opening.describe(parameter, f"{path}.{name}")
        return described

    def _check(self, key: str, parameter: Any) -> None:
        """Count a change that no glance showed: calls after it were taken for unchanged."""
        if self._glances[key] != self._opening.entries.glance(parameter):
            return  # it changed as a whole, after the last call
        state = self._opening.entries.state_of(parameter)
        if self._opening.counters.parameters.get(key) != state:
            raise RuntimeError(message("fault.changed", parameter=key))

    def _leave(self, cell: nn.Cell, output: Any) -> None:
        frames = self._frames()
        if self._closed:
            return
        slot = self._slots.get(id(cell))
        if slot is not None and slot.children.changed():
            self._hook_new_cells()  # it made them while it ran
        while True:
            frame = frames.pop()
            if frame.cell == id(cell):
                break
            self._emit_unfinished(frame)
        several = isinstance(output, tuple) and not hasattr(output, "_fields")
        results = list(output) if several else [output]
        if (line := frame.line) is not None:
            if self._opening.selection.outputs:
                line.values["output"] = self._opening.describe(results, f"{line.entry}.output")
            line.end = self._opening.now()
            if not self._closed:
                self._opening.entries.append(line)
        self._opening.selection.end(frame.entry)
        if frame.gradients is not None:
            frame.gradients.leave(results)

    def _emit_unfinished(self, frame: _Frame) -> None:
        if frame.gradients is not None:
            frame.gradients.abandon()
        if frame.observed is not None and (observer := self._opening.observer) is not None:
            with self._opening.guard(observer.lost):
                frame.observed.raised()
        self._opening.selection.end(frame.entry)
        if frame.line is not None:
            if self._opening.selection.outputs:
                frame.line.values["output"] = []
            self._opening.entries.append(frame.line)
