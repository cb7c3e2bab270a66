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
from mindrlhf_msprobe.capture.framework.hooks import (
    Args,
    Arguments,
    CallStacks,
    CellHooks,
    Kwargs,
    Repetitions,
    encloses,
    given_again,
    running_frame,
)
from mindrlhf_msprobe.capture.framework.private import (
    FIRST_RUN,
    INNER_EXECUTOR,
    gradients_flow,
    has_run,
    recomputing_cell,
)
from mindrlhf_msprobe.capture.graph.probes import writes_files
from mindrlhf_msprobe.capture.opening.observer import CellCall, ObservedCall
from mindrlhf_msprobe.capture.opening.opening import Call, CellSlot, Opening, TokenCounter
from mindrlhf_msprobe.capture.pynative.gradients import (
    Backlog,
    CallGradients,
    ParameterGradients,
    Taps,
    inside_the_graph,
)
from mindrlhf_msprobe.common.message import message


class LeftOut:
    """Stands in an entry for an argument that is not recorded."""


LEFT_OUT = LeftOut()
_KEPT_GRADIENTS = 4096
_OF_CELL = Taps()


@dataclass(eq=False, slots=True, kw_only=True)
class HookedCell(CellSlot):
    """A hooked cell: whether the operators in it are recorded, and which cells it holds."""

    cell: nn.Cell
    operators: bool
    children: Children


@dataclass(eq=False, slots=True, kw_only=True)
class CellRun(Call):
    """A call of a cell that is running now.

    Attributes:
        slot: what is known of the cell; None outside every cell.
        runs: MindSpore's Python frame that runs it.
        operators: whether the operators that are called in it are recorded.
        observed: what the opening's observer made of it.
        grafted: where records of another run are put in, the arguments it runs with; else None.
    """

    slot: HookedCell | None
    cell: int = 0  # its id
    runs: FrameType | None = None
    operators: bool
    observed: ObservedCall | None = None
    grafted: Arguments | None = None

    @property
    def name(self) -> str:
        """The cell's name; "" outside every cell."""
        return "" if self.slot is None else self.slot.name


class EagerCapture:
    """The hooks of one opening of one phase.

    Args:
        opening: its `root` is the network whose cells are hooked.

    Attributes:
        outside: stands for what runs outside every cell.
        stacks: of calls.
        repetitions: of what recomputed cells run.
        cells_seen: how many calls of recorded cells it has seen.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        outside = bool(opening.operators and opening.operators(""))
        self.outside = CellRun(opening, slot=None, operators=outside)
        self._left_out = left_out_arguments(opening.root)
        self._tokens = TokenCounter(opening.records_token)
        self._in_range = True  # whether the token that was counted last is recorded
        self._passed_over: str | None = None  # what was counted last, and no more
        self._hooks = CellHooks(self._before, self._after)
        self._slots: dict[int, HookedCell] = {}
        self._recomputed: dict[int, int] = {}  # id of what runs a recomputed cell → the cell's own
        self._cells: dict[int, nn.Cell] = {}  # all that were in the network, hooked or not
        self._held_twice: dict[int, set[str]] = {}
        # Parameters that this opening has looked at: what a glance showed, and which of them were
        # only glanced at since.
        self._glances: dict[str, bytes] = {}
        self._glanced_at: dict[str, Any] = {}
        self._running = threading.local()
        self._threads: list[list[CellRun]] = []
        # Held for moments only, never while a tensor is brought to the host.
        self._lock = threading.Lock()
        self._reads_files = writes_files()
        self.stacks = CallStacks()
        self.repetitions = Repetitions()
        self._backlog = Backlog(opening.buffer_bytes)
        self._gradients: list[CallGradients] = []
        self._most_gradients = _KEPT_GRADIENTS  # then those that are done are let go
        self._mark = object()  # outlives it on the tensors it tapped, and holds nothing
        self._parameter_gradients: ParameterGradients | None = None
        self.cells_seen = 0

    def open(self) -> None:
        """Register the hooks; none stays where that fails."""
        cells = named_cells(self.opening.root)
        try:
            if self.opening.backward:
                self._backlog.open(waits=not any(cell.has_bprop for cell in cells.values()))
            self._hook(cells)
            if self.opening.observer is not None:
                self.opening.observer.open()
        except BaseException:
            self._hooks.remove()
            self._backlog.close()
            raise

    def _hook(self, cells: Mapping[str, nn.Cell]) -> None:
        """Hook the cells of the network that are not hooked yet."""
        if self.opening.with_parameters:
            self._held_twice = parameters_held_twice(cells.values())
        for name, cell in cells.items():
            if id(cell) in self._cells:
                continue
            self._cells[id(cell)] = cell
            recorded = self.opening.is_recorded(name)
            # Tokens are counted by the outermost cells, recorded or not.
            counts = self.opening.records_token is not None
            grafted = self.opening.graft is not None and name in self.opening.graft.cells
            if recorded or counts or grafted or self._bounds_operators(name):
                self._slots[id(cell)] = HookedCell(
                    *(name, type(cell).__name__, recorded, argument_names(cell)),
                    cell=cell,
                    operators=bool(self.opening.operators and self.opening.operators(name)),
                    children=Children(cell),
                )
                self._hooks.add(cell)
            repeats = self.opening.backward or self.opening.operators is not None
            if repeats and (repeating := recomputing_cell(cell)) is not None:
                self._recomputed[id(repeating)] = id(cell)
                self._hooks.add_before(repeating, self._before_repetition)

    def _bounds_operators(self, name: str) -> bool:
        """Return whether it must be known that a cell runs, for the operators in it."""
        chosen = self.opening.operators
        if chosen is None:
            return False
        parts = name.split(".")
        outer = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return chosen("") or chosen(ROOT_NAME) or any(map(chosen, outer))

    def _hook_new_cells(self) -> None:
        """Hook the cells that were put into the network since; count those that ran unseen."""
        with self._lock:
            if self.opening.closed:
                return
            cells = named_cells(self.opening.root)
            new = {name: cell for name, cell in cells.items() if id(cell) not in self._cells}
            self._hook(cells)
            for slot in self._slots.values():
                slot.children = Children(slot.cell)
            if self._parameter_gradients is not None:
                self._parameter_gradients.watch(self._recorded_cells())
        self._count_unseen(new)

    def _count_unseen(self, new: Mapping[str, nn.Cell]) -> None:
        for name, cell in new.items():
            if self.opening.is_recorded(name) and has_run(cell):
                error = LookupError(message("fault.unseen", name=name))
                self.opening.fault(message("lost.new_cell"), error)

    def close(self) -> None:
        """Remove the hooks and hand over what is not whole: no more will come of it."""
        self._hooks.remove()
        with self.opening.guard("lost.new_cell"):
            cells = named_cells(self.opening.root).items()
            self._count_unseen({n: cell for n, cell in cells if id(cell) not in self._cells})
        self._backlog.close()
        with self._lock:
            self.opening.closed = True
            left = [frame for frames in self._threads for frame in reversed(frames)]
            self._threads.clear()
        for frame in left:
            with self.opening.guard("lost.open_cell"):
                self._raised(frame, at_end=True)
        for gradients in self._gradients:
            with self.opening.guard("lost.gradient"):
                gradients.finish()
        self._gradients.clear()
        entries, known = self.opening.entries, self.opening.counters.parameters
        for key, parameter in self._glanced_at.items():
            with self.opening.guard("lost.changed_parameter"):
                # What changed as a whole did so after the last call; a change that no glance showed
                # is counted: calls after it were taken for unchanged.
                same = self._glances[key] == entries.glance(parameter)
                if same and known.get(key) != entries.state_of(parameter):
                    raise RuntimeError(message("fault.changed", parameter=key))
        if self._parameter_gradients is not None:
            with self.opening.guard("lost.parameter_gradient"):
                self._parameter_gradients.remove()
        if self.opening.observer is not None:
            with self.opening.guard(self.opening.observer.lost):
                self.opening.observer.close()
        with self.opening.guard("lost.phase_entries"):
            self.opening.entries.flush()

    def around(self) -> CellRun:
        """Return the cell in which an operator is called in this thread; `outside` every cell."""
        frames = self._frames()
        here = sys._getframe(1)
        while frames and not encloses(frames[-1].runs, here):
            with self.opening.guard("lost.output"):
                self._raised(frames.pop())  # and somebody caught that
        return frames[-1] if frames else self.outside

    def count(self, name: str) -> int:
        """Count a call of an operator; return how often it had come before."""
        with self._lock:
            return self.opening.counters.calls.count(name)

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

    def _all_frames(self) -> list[CellRun]:
        """Return the cells running in all threads."""
        with self._lock:
            return [frame for frames in self._threads for frame in frames]

    def _frames(self) -> list[CellRun]:
        """Return the cells running in this thread, the outermost first."""
        frames: list[CellRun] | None = getattr(self._running, "frames", None)
        if frames is None:
            frames = self._running.frames = []
            with self._lock:
                self._threads.append(frames)
        return frames

    def _before(self, cell: nn.Cell, args: Args, kwargs: Kwargs) -> Arguments | None:
        self._read_files(cell)
        if self._passes_over(cell):
            return None
        frame = None
        with self.opening.guard("lost.inputs"):
            frame = self._enter(cell, args, kwargs)
        if frame is None:
            return None
        given: Arguments | None = None
        if frame.grafted is not None:
            args, kwargs = given = frame.grafted
        if frame.gradients is not None:
            with self.opening.guard("lost.gradients"):
                given = frame.gradients.enter(args, kwargs) or given
        if (observer := self.opening.observer) is not None and (frame.recorded or frame.repeats):
            call = (frame.entry, frame.name, cell, args, kwargs, given or (args, kwargs))
            begins = observer.cell_repeats if frame.repeats else observer.cell_begins
            with self.opening.guard(observer.lost):
                frame.observed = begins(CellCall(*call))
        return given

    def _before_repetition(self, cell: nn.Cell, args: Args, kwargs: Kwargs) -> Arguments | None:
        opening = self.opening
        with opening.guard("lost.gradients"):
            slot = self._slots.get(self._recomputed[id(cell)])
            if opening.operators is not None and slot is not None and not opening.closed:
                # No hook shows that the cell around its operators runs again.
                frames = self._frames()
                run = CellRun(
                    opening,
                    slot=slot,
                    cell=id(cell),
                    runs=running_frame(),
                    operators=slot.operators,
                )
                if frames and frames[-1].slot is slot:  # its first run
                    run.token, run.in_range = frames[-1].token, frames[-1].in_range
                self._push(run)
            if opening.backward and gradients_flow():
                return inside_the_graph(args, kwargs)
        return None

    def _push(self, run: CellRun) -> None:
        """Put a cell that begins to run inside those that are running in this thread."""
        frames = self._frames()
        run.inside(frames[-1] if frames else None)
        frames.append(run)

    def _after(self, cell: nn.Cell, output: Any) -> Any:
        self._read_files(cell)
        if not self._reads_files and is_jitted(cell):
            INNER_EXECUTOR.sync()  # its cells are known as its own while it runs
        frames = self._frames()
        innermost = frames and frames[-1].cell == id(cell)
        if not innermost and not any(frame.cell == id(cell) for frame in frames):
            return None  # it was entered before the phase opened, or passed over
        instead = self._handed_on(cell, output)
        with self.opening.guard("lost.output"):
            if self.opening.closed:
                return instead
            slot = self._slots.get(id(cell))
            if slot is not None and slot.children.changed():
                self._hook_new_cells()  # it made them while it ran
            while (run := frames.pop()).cell != id(cell):
                self._raised(run)
            run.runs = None  # a call that may be repeated is remembered, what runs it is not
            run.returned(output if instead is None else instead)
        return instead

    def _handed_on(self, cell: nn.Cell, output: Any) -> Any:
        """Return what the training goes on with instead of an output, or None.

        Another run's, where that is grafted; else what the observer has it go on with.
        """
        observer, graft = self.opening.observer, self.opening.graft
        if observer is None and graft is None:
            return None
        frame = next(frame for frame in reversed(self._frames()) if frame.cell == id(cell))
        if graft is not None and frame.grafted is not None and not self.opening.closed:
            with self.opening.guard("lost.graft"):
                return graft.output(frame.entry, output, frame.grafted)
        if observer is None:
            return None
        observed, frame.observed = frame.observed, None
        if observed is None or self.opening.closed:
            return None
        with self.opening.guard(observer.lost):
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
        with self.opening.guard("lost.graph_wrote"):
            from mindrlhf_msprobe.capture.graph import ascend as graph_ascend

            graph_ascend.wait()

    def _passes_over(self, cell: nn.Cell) -> bool:
        """Return whether a cell that runs inside a token out of the range need only be counted.

        Whatever runs outermost may begin a token, and what is computed again is counted once, so
        both take the long way.
        """
        frames = self._frames()
        if self._in_range or self.opening.closed or not frames or gradients_flow():
            return False
        if self.opening.operators is not None:
            return False  # operators are counted in the cell around them
        slot = self._slots.get(id(cell))
        if slot is None or id(cell) == self._tokens.first or slot.children.changed():
            return False
        if not encloses(frames[-1].runs, running_frame()):
            return False
        with self._lock:
            self.cells_seen += slot.recorded
            self.opening.counters.calls.count(slot.call_name)
            self._passed_over = slot.call_name
        return True

    def _enter(self, cell: nn.Cell, args: Args, kwargs: Kwargs) -> CellRun | None:
        slot = self._slots.get(id(cell))
        if slot is None or self.opening.closed:
            return None
        if slot.children.changed():
            self._hook_new_cells()
        runs = running_frame()
        frames = self._frames()
        while frames and not encloses(frames[-1].runs, runs):
            self._raised(frames.pop())  # and somebody caught that
        stack, repeating = self.stacks.here() if slot.recorded or slot.operators else ((), None)
        run = CellRun(self.opening, slot=slot, cell=id(cell), runs=runs, operators=slot.operators)
        if repeating is not None and repeating.f_code is not FIRST_RUN:  # it runs once more
            if slot.recorded and (first := self.repetitions.again(repeating, id(cell))) is not None:
                self.repeat(
                    run, first, *self._shown(slot, *self._graft(run, first.entry, args, kwargs))
                )
            self._push(run)
            return run
        with self._lock:
            self.cells_seen += slot.recorded or slot.operators
            run.token, run.in_range = self._tokens.begin(id(cell), outermost=not frames)
            number = self.opening.counters.calls.count(slot.call_name)
        self._in_range = run.in_range
        run.entry = f"{slot.call_name}.{number}"
        if slot.recorded:
            run.begin(run.entry)
        self._push(run)
        if run.traced:
            if repeating is not None:
                self.repetitions.first(repeating, id(cell), run)
            self.take_gradients(run, run.traced_parent)
        given, named = self._shown(slot, *self._graft(run, run.entry, args, kwargs))
        run.given(given, named, slot.arguments, frames=stack)
        wanted = self.opening.with_parameters and self.opening.selection.outputs
        if run.line is not None and wanted and (parameters := self._parameters(cell, run)):
            run.line.values["parameters"] = parameters
        return run

    def repeat(
        self, call: Call, first: Call, args: Any, kwargs: Any, taps: Taps = _OF_CELL
    ) -> None:
        """Record only the gradients of a call that a recomputed cell runs once more.

        Args:
            first: the same call, when it ran first.
        """
        call.entry = first.entry
        again = given_again(first, args, kwargs)
        self.take_gradients(call, first.traced_parent, taps, again)
        call.repeats = call.gradients is not None

    def _graft(self, run: CellRun, entry: str, args: Any, kwargs: Any) -> Arguments:
        """Return what a call runs with: what it is given, or records of another run instead."""
        if (graft := self.opening.graft) is not None and run.in_range:
            run.grafted = args, kwargs
            with self.opening.guard("lost.graft"):
                run.grafted = graft.inputs(entry, args, kwargs)
        return run.grafted or (args, kwargs)

    def _shown(self, slot: HookedCell, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of a call, with a mark in the place of those that are left out."""
        if not self._left_out:
            return args, kwargs
        names = [*slot.arguments[: len(args)], *[""] * (len(args) - len(slot.arguments))]
        left_out = self._left_out
        return (
            [LEFT_OUT if name in left_out else value for name, value in zip(names, args)],
            {name: LEFT_OUT if name in left_out else kwargs[name] for name in kwargs},
        )

    def take_gradients(
        self, call: Call, parent: str | None, taps: Taps = _OF_CELL, recomputed: str = ""
    ) -> None:
        """Have the backward entry of a call recorded, where it has one.

        Args:
            parent, taps, recomputed: what `CallGradients` takes.
        """
        if not self.opening.backward or not gradients_flow():
            return
        if self._backlog.nested:
            error = NotImplementedError(message("fault.second_order"))
            self.opening.fault(message("lost.second_order"), error)
            return
        watched = None
        with self._lock:
            if self._parameter_gradients is None:
                watched = ParameterGradients(self.opening, self._backlog)
                self._parameter_gradients = watched
        if watched is not None:  # gradients are known to flow
            watched.watch(self._recorded_cells())
        gradients = CallGradients(call, parent, self._backlog, self._mark, taps, recomputed)
        call.gradients = gradients
        with self._lock:
            self._gradients.append(gradients)
            if len(self._gradients) > self._most_gradients:
                self._gradients = [one for one in self._gradients if not one.done]
                self._most_gradients = max(_KEPT_GRADIENTS, 2 * len(self._gradients))

    def _recorded_cells(self) -> dict[str, nn.Cell]:
        """Return the recorded cells by the head of their entries' names."""
        return {slot.head: slot.cell for slot in self._slots.values() if slot.recorded}

    def _parameters(self, cell: nn.Cell, run: CellRun) -> dict[str, Any]:
        """Describe the cell's own parameters where they changed since they were last recorded."""
        described = {}
        call_name = run.entry.rpartition(".")[0]
        held_twice = self._held_twice.get(id(cell), ())
        for name, parameter in cell.parameters_and_names(expand=False):
            if name in held_twice:
                continue  # recorded where it belongs
            if getattr(parameter, "has_init", False):
                continue  # reading its elements would initialise it
            key = f"{call_name}.{name}"
            glance = None if gradients_flow() else self.opening.entries.glance(parameter)
            if glance is not None:
                if self._glances.get(key) == glance:
                    self._glanced_at[key] = parameter
                    continue
                self._glances[key] = glance
                self._glanced_at.pop(key, None)
            state = self.opening.entries.state_of(parameter)
            if self.opening.counters.parameters.changes(key, state):
                path = f"{run.entry}.parameters.{name}"
                described[name] = self.opening.describe(parameter, path)
        return described

    def _raised(self, run: CellRun, *, at_end: bool = False) -> None:
        run.runs = None
        observed, run.observed = run.observed, None
        if observed is not None and (observer := self.opening.observer) is not None:
            with self.opening.guard(observer.lost):
                observed.raised()
        run.raised(at_end=at_end)
