"""Graph mode and jit: probes are compiled into the cells of the watched networks.

While MindSpore compiles, the construct of every cell is replaced by a wrapper that holds probes: so
a network is recorded in GRAPH_MODE, and in PyNative mode where `ms.jit` compiles it or a part of
it. In GRAPH_MODE the wrappers are there from `watch` on. Opening and closing a phase only decides
who takes what the probes hand over; nothing is compiled again.
"""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import mindspore
from mindspore import nn

from mindrlhf_msprobe.capture.cells import (
    CONSTRUCT,
    NUMBER,
    WRAPPER,
    is_wrapped,
    named_cells,
    number_of,
    parameter_owners,
)
from mindrlhf_msprobe.capture.framework.generated_modules import function_of
from mindrlhf_msprobe.capture.framework.hooks import left_out_of_copies
from mindrlhf_msprobe.capture.framework.private import (
    any_compiled,
    children_of,
    has_all,
    is_compiled,
    is_inner_recurrent,
    is_recomputed,
)
from mindrlhf_msprobe.capture.graph.moments import COMPILATIONS
from mindrlhf_msprobe.capture.graph.probes import SITES, reduces
from mindrlhf_msprobe.capture.opening.opening import CellSlot
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.manifest.coverage import CASTS_INPUTS
from mindrlhf_msprobe.storage.writing.ledger import Counted, FaultSink, GraphCost


@dataclass(frozen=True)
class Probed:
    """What a wrapper hands over.

    Attributes:
        tensors: the call's inputs and outputs, not only that it happened.
        parameters: the attributes that hold the cell's own parameters.
        gradients: the gradients of inputs and outputs.
        elements: tensors as they are, where the graph would hand over their statistics alone.
    """

    tensors: bool = True
    parameters: tuple[str, ...] = ()
    gradients: bool = False
    elements: bool = False

    def __or__(self, other: Probed) -> Probed:
        return Probed(
            self.tensors or other.tensors,
            tuple(dict.fromkeys((*self.parameters, *other.parameters))),
            self.gradients or other.gradients,
            self.elements or other.elements,
        )


_HEAD = """\
\"\"\"Probes of {what}.\"\"\"

from mindrlhf_msprobe.capture.graph.compiled import ENTERING, LEAVING, UPDATING
from mindrlhf_msprobe.capture.graph.probes import HOLDS_PARAMETER, LEFT_ALONE


def construct(self, *args, **kwargs):
    if LEFT_ALONE(self.{NUMBER}):
        return self.{CONSTRUCT}(*args, **kwargs)
"""


def cell_source(probed: Probed) -> str:
    """Return the source of a module whose `construct` wraps a cell's.

    What it calls hands over where it stands, not where its result is used: as a statement of its
    own, or in every branch. MindSpore leaves out what only a branch that is never taken would use.
    """
    given = probed.tensors, probed.gradients, probed.parameters
    watches = probed.tensors and probed.gradients
    parameters = "".join(f"self.{name}, " for name in probed.parameters)
    lines = [
        f"parameters = ({parameters})",
        f"enter, constants = ENTERING(self.{NUMBER}, {given}, args, kwargs, parameters)",
    ]
    enter = "enter(args, kwargs, parameters, constants)"
    leave = "leave(returned, call, constants)"
    # Parameters are never passed on by a function of ours: see HOLDS_PARAMETER.
    if watches:
        lines += [
            f"call, seen_args, seen_kwargs = {enter}",
            f"if HOLDS_PARAMETER(self.{NUMBER}, (args, kwargs)):",
            f"    returned = self.{CONSTRUCT}(*args, **kwargs)",
            "else:",
            f"    returned = self.{CONSTRUCT}(*seen_args, **seen_kwargs)",
        ]
    else:
        lines += [f"call = {enter}", f"returned = self.{CONSTRUCT}(*args, **kwargs)"]
    lines.append(f"leave, constants = LEAVING(self.{NUMBER}, {given[:2]}, returned)")
    if watches:
        lines += [
            f"if HOLDS_PARAMETER(self.{NUMBER}, returned):",
            f"    {leave}",
            "    return returned",
            f"return {leave}",
        ]
    else:
        lines += [leave, "return returned"]
    return _source(f"a cell with the parameters {list(probed.parameters)}", lines)


def _source(what: str, lines: list[str]) -> str:
    head = _HEAD.format(what=what, CONSTRUCT=CONSTRUCT, NUMBER=NUMBER)
    return head + "".join(f"    {x}\n" for x in lines)


_PROBED = "msprobe_probed"
#: The attribute of a cell that is wrapped as what takes gradients, not as a cell among others.
OPTIMIZER = "msprobe_optimizer"
#: That of a cell which lies inside a recomputed one, and is computed again as a part of it.
INSIDE_RECOMPUTED = "msprobe_inside_recomputed"
_OWN_CONSTRUCT = "msprobe_own_construct"  # what stood in the cell's own attributes before
_ALL = (CONSTRUCT, NUMBER, _PROBED, WRAPPER, OPTIMIZER, INSIDE_RECOMPUTED, _OWN_CONSTRUCT)
_numbers = itertools.count(1)


class _Number(int):
    """A cell's number; a copy of the cell has none, for it is not watched."""

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return 0


def is_probed_for(cell: nn.Cell, probed: Probed) -> bool:
    """Return whether a cell has, or had while MindSpore compiled, a wrapper for this."""
    before: Probed | None = vars(cell).get(_PROBED)
    return before is not None and before | probed == before


def wrap(
    cell: nn.Cell, source: Callable[[Probed], str], probed: Probed, *, shows_signature: bool
) -> None:
    """Put a wrapper in the place of a cell's construct, for this and what was before.

    Args:
        source: returns the source of the wrapper's module.
        shows_signature: whether the wrapper shows the construct's own signature, not `(*args,
            **kwargs)`.
    """
    attributes = vars(cell)
    if is_wrapped(cell) and is_probed_for(cell, probed):
        return
    if _PROBED not in attributes:
        attributes[NUMBER] = _Number(next(_numbers))
        left_out_of_copies(cell, _without)
    else:
        probed = probed | attributes[_PROBED]
    if not is_wrapped(cell):
        known = attributes.get(CONSTRUCT)
        _note_own(cell)
        if known == attributes[CONSTRUCT] and probed == attributes.get(_PROBED):
            wrapper = attributes[WRAPPER]
            if hasattr(wrapper, "__signature__") == shows_signature:
                attributes["construct"] = wrapper
                return
    attributes[_PROBED] = probed
    like = attributes[CONSTRUCT] if shows_signature else None
    attributes[WRAPPER] = MethodType(function_of(source(probed), like=like), cell)
    attributes["construct"] = attributes[WRAPPER]


def unwrap(cell: nn.Cell) -> None:
    """Give a cell its own construct back; what was compiled keeps its probes."""
    if is_wrapped(cell):
        _restore(vars(cell))


def put_back(cell: nn.Cell) -> None:
    """Put back the wrapper that `unwrap` took off."""
    if WRAPPER in vars(cell) and not is_wrapped(cell):
        _note_own(cell)
        vars(cell)["construct"] = vars(cell)[WRAPPER]


def _note_own(cell: nn.Cell) -> None:
    attributes = vars(cell)
    if "construct" in attributes:
        attributes[_OWN_CONSTRUCT] = attributes["construct"]
    else:
        attributes.pop(_OWN_CONSTRUCT, None)
    attributes[CONSTRUCT] = cell.construct


def _restore(attributes: dict[str, Any]) -> None:
    attributes.pop("construct", None)
    if _OWN_CONSTRUCT in attributes:
        attributes["construct"] = attributes.pop(_OWN_CONSTRUCT)


def _without(attributes: dict[str, Any]) -> None:
    """Take out of a copy's attributes what stands in a wrapped cell's."""
    if attributes.get("construct") is attributes.get(WRAPPER):
        _restore(attributes)
    for name in _ALL:
        attributes.pop(name, None)


def graph_mode() -> bool:
    """Return whether a cell that is called is compiled."""
    mode = mindspore.get_context("mode")
    return bool(mode == mindspore.GRAPH_MODE) and os.environ.get("MS_JIT") != "0"


@dataclass
class _Watched:
    """A network whose cells get probes.

    Attributes:
        compiled: number of each cell that has been compiled in it → its name and class then.
    """

    role: str
    network: weakref.ref[nn.Cell]
    compiled: dict[int, tuple[str, str]] = field(default_factory=dict)


@dataclass(eq=False)
class GraphProbes:
    """The probes of one recorded run.

    Attributes:
        fault: called with every fault; may raise only in strict mode.
        will_record: says whether the layers of this step, or of a later one, are recorded.
        cost: takes what compiling and host functions cost.
        optimizers: by role, those of which the gradients that enter them are recorded.
    """

    config: ProbeConfig
    fault: FaultSink
    will_record: Callable[[], bool]
    cost: GraphCost
    optimizers: dict[str, list[nn.Cell]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        SITES.cost = self.cost
        self._wrapped_for_good: weakref.WeakSet[nn.Cell] = weakref.WeakSet()
        self._watched: list[_Watched] = []
        self._put_on: list[nn.Cell] = []
        self._too_late: weakref.WeakSet[nn.Cell] = weakref.WeakSet()

    def watch(self, role: str, network: nn.Cell) -> None:
        """Have probes put into a network wherever MindSpore compiles it or a part of it.

        An optimizer inside it that is watched as one stays so.

        Raises:
            UsageError: in GRAPH_MODE, it has been compiled already, by itself or inside another
                cell.
        """
        if graph_mode():
            probed = self._probed_in(role, network)
            if not all(is_probed_for(cell, what) for cell, what in probed):
                _refuse_compiled(f"watch({role}=…)", network)
            # MindSpore looks at the signature before it compiles.
            for cell, what in probed:
                wrap(cell, cell_source, what, shows_signature=False)
                self._wrapped_for_good.add(cell)
        if not any(w.network() is network and w.role == role for w in self._watched):
            self._watched.append(_Watched(role, weakref.ref(network)))
        self._listen()

    def put_into(self, role: str, network: nn.Cell) -> None:
        """Watch a network that a phase names and `watch` did not, unless that is too late for it.

        Probed at every opening of the phase: a network is looked at once.
        """
        if network in self._too_late or any(w.network() is network for w in self._watched):
            return
        try:
            self.watch(role, network)
        except UsageError:  # it is compiled; the phase says that no cell of it was recorded
            self._too_late.add(network)

    def watch_optimizer(self, role: str, optimizer: nn.Cell) -> None:
        """Have probes put on the gradients that enter an optimizer.

        Raises:
            UsageError: in GRAPH_MODE, it has been compiled already.
        """
        if graph_mode() and OPTIMIZER not in vars(optimizer):
            _refuse_compiled(f"watch(optimizers={{{role!r}: …}})", optimizer)
            self._wrap_optimizer(optimizer, shows_signature=False)
            self._wrapped_for_good.add(optimizer)
        optimizers = self.optimizers.setdefault(role, [])
        if not any(known is optimizer for known in optimizers):
            optimizers.append(optimizer)
        self._listen()

    def close(self) -> None:
        """Put probes into nothing more: what is compiled from now on is the trainer's own."""
        COMPILATIONS.remove(self)
        if SITES.cost is self.cost:
            SITES.cost = None
        for cell in [*self._wrapped_for_good]:
            unwrap(cell)

    def put_on(self) -> None:
        """Put wrappers on the cells of the watched networks, as these are now."""
        for optimizer in (cell for cells in self.optimizers.values() for cell in cells):
            if self._of_optimizer().elements:
                SITES.whole.add(number_of(optimizer))
            if not (OPTIMIZER in vars(optimizer) and is_wrapped(optimizer)):
                with Counted(self.fault, "lost.compiling_network"):
                    self._put_on.append(optimizer)
                    self._wrap_optimizer(optimizer, shows_signature=not graph_mode())
        for watched in self._watched:
            network = watched.network()
            if network is None:
                continue
            with Counted(self.fault, "lost.compiling_network"):
                for cell, what in self._probed_in(watched.role, network):
                    if not is_wrapped(cell):
                        self._put_on.append(cell)
                    wrap(cell, cell_source, what, shows_signature=not graph_mode())
                    if what.elements:
                        SITES.whole.add(number_of(cell))
                for name, cell in named_cells(network).items():
                    if is_wrapped(cell):
                        watched.compiled[number_of(cell)] = name, type(cell).__name__

    def take_off(self) -> None:
        """Take off the wrappers that were put on, not those that were there before."""
        while self._put_on:
            unwrap(self._put_on.pop())

    def lift(self) -> Callable[[], None]:
        """Take every wrapper off and return what puts them back."""
        lifted = [cell for cell in (*self._wrapped_for_good, *self._put_on) if is_wrapped(cell)]

        def put_all_back() -> None:
            for cell in lifted:
                put_back(cell)

        for cell in lifted:
            unwrap(cell)
        return put_all_back

    def holds_watched(self, cell: nn.Cell) -> bool:
        """Return whether a cell holds one of a watched network, or a watched optimizer."""
        watched = {id(known) for known in self._cells()}
        watched |= {id(known) for cells in self.optimizers.values() for known in cells}
        return any(id(held) in watched for held in named_cells(cell).values())

    def inside(self, numbers: set[int]) -> set[int]:
        """Return the numbers of the cells inside those with the given numbers."""
        outer = [cell for cell in self._cells() if number_of(cell) in numbers]
        return {number_of(cell) for each in outer for cell in named_cells(each).values()} - {0}

    def _cells(self) -> list[nn.Cell]:
        """Return the cells of the watched networks."""
        networks = [n for watched in self._watched if (n := watched.network()) is not None]
        return [cell for network in networks for cell in named_cells(network).values()]

    def compiled(self, seconds: float, without: float | None) -> None:
        """Note what compiling a graph with probes cost, or the second of two.

        Args:
            seconds: how long the graph with probes took; 0 where it was noted before.
            without: how long the same without probes took, if that has been compiled.
        """
        if seconds:
            self.cost.with_probes += 1
            self.cost.with_seconds += seconds
        if without is not None:
            self.cost.without_probes += 1
            self.cost.without_seconds += without

    def compiled_in(self, network: nn.Cell) -> Mapping[int, tuple[str, str]]:
        """Return number → (name, class) of each cell that has been compiled in a watched network.

        Also of those that have been replaced since: what was compiled goes on running them.
        """
        found = (w.compiled for w in self._watched if w.network() is network)
        return {number: cell for compiled in found for number, cell in compiled.items()}

    def gradients_of(
        self, role: str, slot_of: Callable[[nn.Cell], CellSlot | None], network: nn.Cell
    ) -> dict[int, list[tuple[CellSlot, str] | None]]:
        """Return optimizer number → the (slot, parameter name) of each gradient it takes."""
        optimizers = [cell for cell in self.optimizers.get(role, ()) if number_of(cell)]
        owners: dict[int, tuple[CellSlot, str]] = {}
        for parameter, (_, cell, name) in parameter_owners(network).items() if optimizers else ():
            if (slot := slot_of(cell)) is not None:
                owners[parameter] = slot, name
        return {
            number_of(cell): [owners.get(id(parameter)) for parameter in cell.parameters]
            for cell in optimizers
        }

    def _listen(self) -> None:
        if not has_all("mindspore.graphs"):
            self.put_on()  # for good, then
            return
        try:
            COMPILATIONS.add(self)
        except Exception as error:  # an executor unlike those of the versions that were tried
            self.fault(message("lost.compile_moments"), error)
            self.put_on()  # for good, then

    def _probed_in(self, role: str, network: nn.Cell) -> list[tuple[nn.Cell, Probed]]:
        """Return the cells of which something is recorded, and what."""
        cells = named_cells(network)
        for cell in filter(is_recomputed, cells.values()):
            for child in children_of(cell).values():
                if child is not None and is_recomputed(child):
                    vars(child)[INSIDE_RECOMPUTED] = True
        optimizers = {id(cell) for known in self.optimizers.values() for cell in known}
        probed = [
            (cell, self._probed(role, name, cell))
            for name, cell in cells.items()
            if not (OPTIMIZER in vars(cell) or id(cell) in optimizers)
        ]
        return [(cell, what) for cell, what in probed if what is not None]

    def _probed(self, role: str, name: str, cell: nn.Cell) -> Probed | None:
        """Return what is recorded of a cell; None for nothing."""
        config = self.config
        if is_inner_recurrent(cell):
            return None
        if not config.records_cell(name):
            # Tokens are counted by the outermost cells, recorded or not.
            phases = (p for p in config.phase_table().values() if config.records_phase(p))
            counts = any(phase.counts_tokens and phase.role == role for phase in phases)
            return Probed(tensors=False) if counts else None
        own = cell.parameters_and_names(expand=False) if config.parameters else ()
        return Probed(
            parameters=tuple(name for name, _ in own if name.isidentifier()),
            gradients="backward" in config.directions and not why_no_gradients(cell),
            elements=reduces() and (config.keeps_rows or config.md5),
        )

    def _of_optimizer(self) -> Probed:
        """Return what is recorded of an optimizer: the gradients that enter it."""
        config = self.config
        signs = config.task == "grad_probe" and config.grad_level != "L0"
        whole = config.keeps_rows or config.md5 or signs
        return Probed(gradients=True, elements=reduces() and whole)

    def _wrap_optimizer(self, optimizer: nn.Cell, *, shows_signature: bool) -> None:
        lines = [
            f"enter, constants = UPDATING(self.{NUMBER}, args)",
            "call = enter(args, constants)",
            f"leave, constants = LEAVING(self.{NUMBER}, (False, False), ())",
            "leave((), call, constants)",
            f"return self.{CONSTRUCT}(*args, **kwargs)",
        ]
        source, probed = _source("an optimizer", lines), self._of_optimizer()
        wrap(optimizer, lambda _: source, probed, shows_signature=shows_signature)
        vars(optimizer)[OPTIMIZER] = True


def why_no_gradients(cell: nn.Cell) -> tuple[Message, ...]:
    """Return every reason why the gradients of a cell are not recorded in graphs, if any."""
    reasons = []
    if cell.has_bprop:
        reasons.append("coverage.gradients_own_bprop")
    if INSIDE_RECOMPUTED in vars(cell):
        # MindSpore orders what it recomputes behind the gradients that arrive, and a probe of
        # those behind the forward pass: "Graph cycle exists".
        reasons.append("coverage.gradients_recomputed")
    if any(cell.get_flags().get(name) for name in ("fp16", "fp32", "bf16")):
        # MindSpore casts what it is given, by `to_float`, and folds the casts of cells that follow
        # each other, unless a probe lies between.
        reasons.append(CASTS_INPUTS)
    return tuple(map(Message, reasons))


def _refuse_compiled(call: str, network: nn.Cell) -> None:
    compiled = _compiled_around(network)
    if compiled is not None:
        inner = type(compiled).__name__
        where = message("error.it") if compiled is network else message("error.inside", of=inner)
        raise UsageError.saying(
            "error.compiled_already", call=call, name=type(network).__name__, where=where
        )


def _compiled_around(network: nn.Cell) -> nn.Cell | None:
    """Return a cell that has been compiled and that is, holds or is held by `network`."""
    for cell in named_cells(network).values():
        if cell.compile_cache:
            return cell
    if not any_compiled():
        return None
    # By its type: isinstance would ask a weak proxy for what may no longer exist.
    cells = (found for found in gc.get_objects() if issubclass(type(found), nn.Cell))
    for around in [cell for cell in cells if is_compiled(cell)]:
        if any(cell is network for cell in named_cells(around).values()):
            return around
    return None
