"""PyNative: the gradients that arrive at a cell's outputs and leave through its inputs.

A tap is an identity in the graph of gradients, `ops.HookBackward`, which shows the gradient that
passes it. It is put behind a tensor inside the tensor's own object (`Tensor.assign_value`): whoever
holds the tensor goes on through the tap, and the cell is given the very objects it would be given
without the probe. A tensor has one at each border of a cell:

    before the cell runs     x  →  x'     all that happens to x from now on
    when it returned         x' →  x''    what happens to x after the cell
    when it returned         y  →  y'     what happens to the output after the cell

What arrives is the gradient at y', what leaves the one at x' less the one at x''. The obvious other
way, to hand the cell a tapped copy of x, adds up what comes from inside the cell by itself first:
(L + g2) + g1 becomes L + (g2 + g1), and the training is no longer the same bit for bit. Here every
sum is what it was. Where nothing happens to x after the cell, what leaves is exact; else the
difference is right to one rounding of the gradient at x'.

Gradients that enter an optimizer are counted by update. Between a backward pass and the update they
may be added up over several passes, reduced over ranks, unscaled and clipped. An optimizer is often
called after the phase whose gradients it takes: it is hooked as long as the run lasts, and what it
takes belongs to the phase of its role that was opened last in the step.

The state of optimizers is an entry, too: what each holds beside the parameters that it trains.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe.capture.cells import named_cells, parameter_owners
from mindrlhf_msprobe.capture.framework.hooks import Args, CellHooks, Kwargs
from mindrlhf_msprobe.capture.framework.private import EXECUTOR, has_gradient_graph, parameters_of
from mindrlhf_msprobe.capture.opening.opening import (
    Call,
    CellSlot,
    HostEntries,
    Opening,
    backward_name,
)
from mindrlhf_msprobe.capture.tensors.summary import is_sharded, is_tensor, local_of
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf, child_path
from mindrlhf_msprobe.storage.records import OPTIMIZER_STATE, PARAMETERS_GRAD, entry_name


class _Depth(threading.local):
    """Which differentiated functions, and how many computations of gradients, run in this thread.

    Attributes:
        forward: the frames that run such functions, the outermost first.
    """

    backward = 0

    def __init__(self) -> None:
        self.forward: list[FrameType] = []

    def drop_left(self) -> None:
        """Forget functions that an exception has ended: MindSpore does not say so."""
        running: set[int] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        self.forward = [one for one in self.forward if id(one) in running]


class Backlog:
    """Holds gradients until the backward pass that computes them is over.

    Looking at a tensor's elements waits for everything that MindSpore has queued, and on a busy
    host one such wait can take longer than a layer. During a backward pass no code of the trainer
    runs that could change a gradient, so they are looked at together, at its end. Networks in which
    such code does run, in a bprop of their own, have theirs looked at one by one.

    Args:
        most_bytes: of gradients that wait; then all are looked at at once.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waits = True
        self._depth = _Depth()
        self._waiting: list[Callable[[], None]] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._own: dict[str, Callable[..., Any]] = {}

    @property
    def nested(self) -> bool:
        """Whether a function is differentiated inside another one that is: of second order.

        Gradients that are differentiated themselves cannot be tapped: MindSpore 2.7 refuses.
        """
        if len(self._depth.forward) > 1:
            self._depth.drop_left()
        return len(self._depth.forward) > 1

    def open(self, *, waits: bool) -> None:
        """Begin to notice when MindSpore differentiates.

        Args:
            waits: whether gradients wait at all.
        """
        self._waits = waits
        stands_in = {
            "new_graph": self._begin_forward,
            "end_graph": self._end_forward,
            "grad": self._compute,
        }
        for name, function in stands_in.items():
            self._own[name] = getattr(EXECUTOR, name)
            vars(EXECUTOR)[name] = function

    def close(self) -> None:
        """Give MindSpore its own functions back, and look at what still waits."""
        for name in self._own:
            vars(EXECUTOR).pop(name, None)
        self._depth.forward.clear()  # what they hold may go
        self.settle()

    def add(self, gradient: Tensor, look: Callable[[], None]) -> None:
        """Have `look` called once the gradient may be looked at: never later than the pass ends."""
        if not self._depth.backward or not self._waits:
            look()
            return
        with self._lock:
            self._waiting.append(look)
            self._bytes += local_of(gradient).nbytes
            full = self._bytes > self._most_bytes
        if full:
            self.settle()

    def settle(self) -> None:
        """Look at everything that waits, in the order in which it came."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._bytes = 0
        for look in waiting:
            look()

    def _begin_forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._depth.forward:
            self._depth.drop_left()
        self._depth.forward.append(sys._getframe(2))
        return self._own["new_graph"](*args, **kwargs)

    def _end_forward(self, *args: Any, **kwargs: Any) -> Any:
        frame, forward = sys._getframe(2), self._depth.forward
        if frame in forward:
            del forward[forward.index(frame) :]
        return self._own["end_graph"](*args, **kwargs)

    def _compute(self, *args: Any, **kwargs: Any) -> Any:
        depth = self._depth
        forward, depth.forward = depth.forward, []  # what a recomputed cell runs is no second order
        depth.backward += 1
        try:
            return self._own["grad"](*args, **kwargs)
        finally:
            depth.forward = forward
            depth.backward -= 1
            if not depth.backward:
                self.settle()


_TAPPED_BY = "_msprobe_tapped_by"

#: Shows a gradient that passes a tap.
Show = Callable[[Tensor], None]


def inside_the_graph(args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
    """Return arguments none of which is an argument of the differentiated function itself.

    Such a tensor cannot be tapped in place; its successor can.
    """

    def inside(tensor: Tensor) -> Tensor:
        is_argument = _can_have_gradient(tensor) and not has_gradient_graph(tensor)
        return _tapped(tensor, None) if is_argument else tensor

    return _replaced(args, kwargs, inside)


def _replaced(
    args: Args, kwargs: Kwargs, replace: Callable[[Tensor], Tensor], *, lists: bool = False
) -> tuple[Any, Any]:
    """Return the arguments with tensors replaced, also inside tuples.

    Lists and dicts are handed on as they are: the cell may change them for its caller.

    Args:
        lists: replace tensors inside lists, too: of an operator, which changes none.
    """

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            return replace(value)
        if lists and type(value) is list:
            return [visit(item) for item in value]
        if isinstance(value, tuple):
            items = [visit(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    return visit(tuple(args)), {name: visit(value) for name, value in kwargs.items()}


def _can_have_gradient(tensor: Any) -> bool:
    if not isinstance(tensor, Tensor) or isinstance(tensor, Parameter):
        return False
    # A tensor that is spread over ranks takes no tap: its dispatcher does not know the operator.
    return not is_sharded(tensor) and _has_fractions(tensor)


def _has_fractions(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def with_taps(args: Args, kwargs: Kwargs, tapped: Mapping[int, Tensor]) -> tuple[Any, Any]:
    """Return the arguments of an operator with parameters replaced, by their ids."""
    return _replaced(args, kwargs, lambda t: tapped.get(id(t), t), lists=True)


def _is_kept(tensor: Tensor, capture: object) -> bool:
    """Return whether a tensor has been tapped by so many captures that the model must keep it.

    A table that a model computes once and keeps would else get another row of taps in every step.
    """
    last, captures = vars(tensor).get(_TAPPED_BY, (None, 0))
    if last is not capture:
        if captures == 8:
            return True
        vars(tensor)[_TAPPED_BY] = capture, captures + 1
    return False


def _tapped(tensor: Tensor, show: Show | None) -> Tensor:
    # MindSpore takes plain functions only, and what they return replaces the gradient.
    def hook(gradients: tuple[Tensor, ...]) -> None:
        if show is not None:
            show(gradients[0])

    return ops.HookBackward(hook)(tensor)


@dataclass
class GradientPlace:
    """A tensor among the inputs or outputs of a cell, and where its gradient is written.

    Attributes:
        path: its record's path; of a tensor that was given several times, the first.
        leaves: the JSON leaves, one wherever it was given.
        after: the gradient at x'', if there was one.
        beside: the same, as it came, where the gradient of the call may be another run's.
        put_in: that one's, if it is.
        returned: whether the cell returned it as it was given.
        key: the tensor's id.
    """

    tensor: Tensor | None
    path: str
    leaves: list[dict[str, Any]] = field(default_factory=list)
    after: Any = None
    beside: Tensor | None = None
    put_in: Tensor | None = None
    returned: bool = False
    key: int = 0


class Taps(NamedTuple):
    """How the tensors of a call are tapped; as they stand, those of a cell.

    Attributes:
        in_place: whether it changes its first argument, which it may return or not.
        parameters: of an operator, whether it may be given taps in the place of parameters.
    """

    in_place: bool = False
    parameters: bool = False


class CallGradients:
    """The backward entry of one call of a cell or operator: taps its tensors, collects gradients.

    Args:
        call: the call.
        parent: the forward entry around it, or None.
        backlog: decides when a gradient is looked at.
        capture: stands for the opening on tensors that outlive it.
        taps: how its tensors are tapped.
        recomputed: of a call that is repeated, whether it was given the same again.

    Attributes:
        done: whether nothing more comes of it, as of a call that did not return.
    """

    def __init__(
        self,
        call: Call,
        parent: str | None,
        backlog: Backlog,
        capture: object,
        taps: Taps,
        recomputed: str,
    ) -> None:
        self._entry = backward_name(call.entry)
        self._recomputed = recomputed
        self._around = call.in_cell
        self._taps = taps
        self._capture = capture
        self._values: dict[str, Any] = {}
        self._parent = parent and backward_name(parent)
        self._opening = call.opening
        self._line: JournalLine | None = None  # begun by its first gradient
        self._backlog = backlog
        self._inputs: dict[int, GradientPlace] = {}
        self._parameters: dict[int, GradientPlace] = {}
        self._due = 0  # gradients that are still to be written
        self._coming = 0  # and those that have not come yet
        self._recorded = True  # known when its first gradient comes
        self.done = False

    def enter(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any] | None:
        """Tap the inputs of a cell that is about to run.

        Returns:
            The arguments to run it with, where they are not the very same: an argument of the
            differentiated function itself is replaced by its successor.
        """
        if not self._opening.selection.outputs:
            return None
        places: dict[int, GradientPlace] = {}
        self._values["output"] = self._places(list(args), "output", places)
        if kwargs:
            self._values["output_kwargs"] = self._places(kwargs, "output", places)
        replaced: dict[int, Tensor] = {}
        for key, place in places.items():
            tensor = place.tensor
            assert tensor is not None
            if isinstance(tensor, Parameter):
                self._parameters[key] = place
                continue
            if self._around is not None and not has_gradient_graph(tensor):
                continue
            tapped = self._grafted(_tapped(tensor, self._shown(self._leaves, place)), place)
            self._due += 1
            self._coming += 1
            if has_gradient_graph(tensor):
                tensor.assign_value(tapped)
                self._inputs[key] = place
            else:
                replaced[key] = tapped
        if not replaced:
            return None
        return _replaced(args, kwargs, lambda t: replaced.get(id(t), t))

    def tap_parameters(self, tapped: dict[int, Tensor]) -> None:
        """Tap the parameters that an operator is given as inputs.

        Those cannot be tapped in place: each use of one has a tap of its own, behind which its
        gradients are added up in the order they would be without. One that is given twice is not
        tapped: its two gradients would be added to each other first.

        Args:
            tapped: by the parameter's id, what the operator is to be given in its place; added to.
        """
        for key, place in self._parameters.items():
            parameter, place.tensor = place.tensor, None
            assert parameter is not None
            if len(place.leaves) > 1:
                continue
            show = self._shown(self._leaves, place)
            tapped[key] = _tapped(tapped.get(key, parameter), show)
            self._due += 1
            self._coming += 1
        self._parameters.clear()

    def leave(self, results: list[Any]) -> None:
        """Tap the outputs of a cell that returned."""
        outputs: dict[int, GradientPlace] = {}
        self._values["input"] = self._places(results, "input", outputs)
        for key, place in self._inputs.items():
            output = outputs.pop(key, None)
            tensor, place.tensor = place.tensor, None
            assert tensor is not None
            if output is None:
                tensor.assign_value(_tapped(tensor, self._shown(self._passes_by, place)))
            else:  # the cell returned this input as it is
                place.returned = output.returned = not self._taps.in_place
                self._tap_output(tensor, output)
        for place in outputs.values():
            tensor, place.tensor = place.tensor, None
            if tensor is not None and has_gradient_graph(tensor):
                self._tap_output(tensor, place)
        self._inputs.clear()

    def finish(self) -> None:
        """Hand over what was seen, if anything was; what was not has no gradient."""
        done, self.done = self.done, True
        if self._coming:
            self._opening.selection.end(self._entry)
        if not done and self._recorded and self._line is not None:
            if self._opening.selection.inputs:
                self._values.setdefault("input", [])
            else:
                self._values.pop("input", None)
            self._opening.entries.append(self._line)
        if not done and (observer := self._opening.observer) is not None:
            with self._opening.guard(observer.lost):
                observer.gradients_ended(self._entry)

    def _places(self, value: Any, io: str, places: dict[int, GradientPlace]) -> Any:
        """Return a structure of leaves without gradients, and note those that may get one."""

        def note(tensor: Any, path: str) -> Any:
            leaf = _none()
            is_given = False  # a parameter that may get a gradient
            if self._taps.parameters and io == "output" and isinstance(tensor, Parameter):
                is_given = bool(tensor.requires_grad) and _has_fractions(local_of(tensor))
            passes = _can_have_gradient(tensor) and not _is_kept(tensor, self._capture)
            if is_given or passes:
                place = places.setdefault(id(tensor), GradientPlace(tensor, path, key=id(tensor)))
                place.leaves.append(leaf)
            return leaf

        describer = TreeDescriber(
            is_tensor, note, to_json=lambda leaf: leaf if isinstance(leaf, dict) else _none()
        )
        return describer.describe(value, f"{self._entry}.{io}")

    def _tap_output(self, tensor: Tensor, place: GradientPlace) -> None:
        self._due += 1
        self._coming += 1
        tapped = _tapped(tensor, self._shown(self._arrives, place))
        tensor.assign_value(self._grafted(tapped, place))

    def _grafted(self, tensor: Tensor, place: GradientPlace) -> Tensor:
        """Return a tapped tensor behind which another run's gradient is put in, if any is."""
        if (graft := self._opening.graft) is None:
            return tensor
        return graft.behind(tensor, place)

    def _shown(self, take: Callable[[GradientPlace, Tensor], None], place: GradientPlace) -> Show:
        def show(gradient: Tensor) -> None:
            def look() -> None:
                with self._opening.guard("lost.gradient"):
                    take(place, gradient)

            if self.done:
                return
            if take == self._passes_by:
                place.beside = gradient if self._opening.graft is not None else None
            else:  # what passes by the cell is no part of its time
                self._coming -= 1
                if self._line is None:
                    self._recorded = self._opening.selection.begin(self._entry)
                    self._line = self._opening.line(
                        self._entry,
                        self._opening.now(),
                        parent=self._parent,
                        values=self._values,
                        around=self._around,
                        recomputed=self._recomputed,
                    )
                self._line.end = self._opening.now()
                if not self._coming:
                    self._opening.selection.end(self._entry)
            if self._recorded:
                with self._opening.guard("lost.gradient"):
                    self._backlog.add(gradient, look)

        return show

    def _tell(
        self, place: GradientPlace, gradient: Tensor, *, of_input: bool, after: Any = None
    ) -> None:
        """Tell the observer of a gradient."""
        if (observer := self._opening.observer) is None:
            return
        with self._opening.guard(observer.lost):
            observer.gradient(
                self._entry,
                place.key,
                of_input=of_input,
                gradient=gradient,
                after=after,
                whole=place.returned,
            )

    def _arrives(self, place: GradientPlace, gradient: Tensor) -> None:
        self._tell(place, gradient, of_input=False)
        if self._opening.selection.inputs:
            self._write(place, self._opening.entries.taken(gradient))
        else:
            self._wrote_one()

    def _passes_by(self, place: GradientPlace, gradient: Tensor) -> None:
        place.after = self._opening.entries.keep(gradient)

    def _leaves(self, place: GradientPlace, gradient: Tensor) -> None:
        after, place.after = place.after, None
        if place.put_in is not None:  # it is exact
            gradient, after = place.put_in, None
        self._tell(place, gradient, of_input=True, after=after)
        if after is None:
            self._write(place, self._opening.entries.taken(gradient))
        else:  # None where the gradient beside it has overflowed
            self._write(place, *self._opening.entries.difference(gradient, after))

    def _write(self, place: GradientPlace, gradient: Any, rounding: float | None = None) -> None:
        described = self._opening.describe(gradient, place.path)
        if gradient is None:  # there is one, but it cannot be known
            described["opaque"] = True
        if rounding is not None and math.isfinite(rounding):
            described["rounding"] = rounding
        if place.returned or len(place.leaves) > 1:
            described["whole"] = True
        for leaf in place.leaves:
            leaf.clear()
            leaf.update(described)
        self._wrote_one()

    def _wrote_one(self) -> None:
        self._due -= 1
        if self._due <= 0:
            self.finish()


def _none() -> dict[str, Any]:
    return Leaf("NoneType").to_json()


class ParameterGradients:
    """The gradients of a network's own parameters, cell by cell: `parameters_grad` entries.

    A parameter that several cells share belongs to the first. Its n-th gradient in a phase and
    step stands in its cell's n-th entry. Those that are recorded at an optimizer are left out.

    Args:
        opening: of the phase.
        backlog: decides when a gradient is looked at.
    """

    def __init__(self, opening: Opening, backlog: Backlog) -> None:
        self._opening = opening
        self._backlog = backlog
        self._open: dict[str, JournalLine] = {}
        self._due: dict[str, set[str]] = {}
        self._seen = set(opening.at_optimizer)

    def watch(self, cells: Mapping[str, nn.Cell]) -> None:
        """Hook the trainable parameters of cells, given by the head of their entries' names.

        Those of cells that come later, when it is called again, are hooked then.
        """
        for head, cell in cells.items():
            own: dict[str, Parameter] = {}
            for name, parameter in cell.parameters_and_names(expand=False):
                if id(parameter) not in self._seen and parameter.requires_grad:
                    self._seen.add(id(parameter))
                    own[name] = parameter
            for name, parameter in own.items():
                taker = self._taker(head, name, frozenset(own), parameter)
                self._opening.parameter_hooks.add(parameter, taker)

    def remove(self) -> None:
        """Remove the hooks and hand over the entries that are not whole."""
        self._opening.parameter_hooks.remove()
        for entry in list(self._open):
            self._finish(entry)

    def _taker(
        self, head: str, name: str, own: frozenset[str], parameter: Parameter
    ) -> Callable[[Tensor], Tensor | None]:
        def take(gradient: Tensor) -> Tensor | None:
            if (observer := self._opening.observer) is not None:
                with self._opening.guard(observer.lost):
                    observer.parameter_gradient(parameter, gradient)
            instead = None
            with self._opening.guard("lost.parameter_gradient"):
                number = self._opening.counters.gradients.count(f"{head}.{name}")
                entry = f"{head}.{PARAMETERS_GRAD}.{number}"
                if (graft := self._opening.graft) is not None:
                    instead = graft.gradient(child_path(entry, name), gradient)
                if self._opening.selection.takes_parameter_gradient(head, entry):
                    moment = self._opening.now(), self._opening.now()
                    shown = gradient if instead is None else instead
                    self._backlog.add(gradient, lambda: look(entry, moment, shown))
            return instead

        def look(entry: str, moment: tuple[int, int], gradient: Tensor) -> None:
            with self._opening.guard("lost.parameter_gradient"):
                self._write(entry, moment, name, own, gradient)

        return take

    def _write(
        self, entry: str, moment: tuple[int, int], name: str, own: frozenset[str], gradient: Tensor
    ) -> None:
        line = self._open.get(entry)
        if line is None:
            line = self._open[entry] = self._opening.line(entry, moment[0])
            line.values[PARAMETERS_GRAD] = {}
            self._due[entry] = set(own)
        described = self._opening.parameter_gradient(gradient, entry, name)
        line.values[PARAMETERS_GRAD][name] = [described]
        line.end = moment[1]
        self._due[entry].discard(name)
        if not self._due[entry]:
            self._finish(entry)

    def _finish(self, entry: str) -> None:
        del self._due[entry]
        self._opening.entries.append(self._open.pop(entry))


class OptimizerHooks:
    """Records the gradients that enter optimizers: a `parameters_grad` entry a cell and call.

    A parameter that several cells share belongs to the first.

    Args:
        opening_of: returns what the phase of a role was last opened with in this step, or None.
    """

    def __init__(self, opening_of: Callable[[str], Opening | None]) -> None:
        self._opening_of = opening_of
        self._hooks = CellHooks(self._before, lambda cell, output: None)
        self._watched: dict[int, tuple[nn.Cell, set[int], list[str]]] = {}

    def watch(self, role: str, optimizer: nn.Cell) -> None:
        """Record what enters an optimizer of a role from now on.

        Raises:
            AttributeError: it does not say which parameters it updates.
        """
        if id(optimizer) not in self._watched:
            own = {id(parameter) for parameter in optimizer.parameters}
            self._watched[id(optimizer)] = optimizer, own, []
            self._hooks.add(optimizer)
        _, _, roles = self._watched[id(optimizer)]
        if role not in roles:
            roles.append(role)

    def parameters(self, role: str) -> set[int]:
        """Return the ids of the parameters that the optimizers of a role update."""
        watched = [own for _, own, roles in self._watched.values() if role in roles]
        return set().union(*watched)

    def remove(self) -> None:
        """Remove the hooks."""
        self._hooks.remove()

    def _before(self, optimizer: nn.Cell, args: Args, kwargs: Kwargs) -> None:
        _, _, roles = self._watched[id(optimizer)]
        given = args[0] if args else next(iter(kwargs.values()), ())
        gradients = given if isinstance(given, (tuple, list)) else (given,)
        for role in roles:
            opening = self._opening_of(role)
            if opening is not None:
                with opening.guard("lost.parameter_gradient"):
                    _take(opening, optimizer, gradients)


def _take(opening: Opening, optimizer: nn.Cell, gradients: Any) -> None:
    owners = parameter_owners(opening.root)
    found: dict[str, dict[str, Any]] = {}
    for parameter, gradient in zip(optimizer.parameters, gradients):
        cell_name, cell, name = owners.get(id(parameter), ("", None, ""))
        if cell is None or not opening.is_recorded(cell_name):
            continue
        slot = CellSlot(cell_name, type(cell).__name__, True)
        if (entry := opening.gradient_entry(slot.head)) is not None:
            described = opening.parameter_gradient(gradient, entry, name)
            found.setdefault(slot.head, {})[name] = described
    opening.append_update(found)
    opening.entries.flush()  # the phase may be over
    opening.counters.optimizers.append(optimizer)


def lines_of(
    optimizers: Iterable[nn.Cell], entries: HostEntries, seq: int, end: int, opening: int
) -> Iterator[JournalLine]:
    """Yield an entry for each optimizer, with its state as it is now as the output.

    Args:
        seq, end: places in time behind the end of the update phase.
        opening: how often the phase had been opened in the step before its last opening.
    """
    for number, optimizer in enumerate(optimizers, start=1):
        cell = OPTIMIZER_STATE if number == 1 else f"{OPTIMIZER_STATE}_{number}"
        name = entry_name(cell, type(optimizer).__name__, "forward", 0)
        if state := state_of(optimizer):
            line = JournalLine(name, seq, end, None, opening)
            line.values = {
                "input_args": [],
                "input_kwargs": {},
                "output": [entries.describer.describe(state, f"{name}.output.0")],
            }
            yield line


def state_of(optimizer: nn.Cell) -> dict[str, Any]:
    """Return the parameters of an optimizer that it does not train, by their names.

    Moments, step counters, a learning rate that is a parameter. Without those that were never
    initialised.
    """
    groups = vars(optimizer).get("param_groups") or ()
    trained = {id(p) for p in getattr(optimizer, "parameters", None) or ()}
    trained |= {id(p) for group in groups if isinstance(group, dict) for p in group["params"]}
    held = [p for cell in named_cells(optimizer).values() for p in parameters_of(cell).values()]
    known = (p for p in held if p is not None and not getattr(p, "has_init", False))
    return {str(p.name): p for p in known if id(p) not in trained}
