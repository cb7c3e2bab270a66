"""What the watched networks and their optimizers are set to, and when that changed.

Taken when a network is watched and when it first runs. From then on a step looks at the attributes
when the network first runs in it, and again in an update; at learning rates then and at every
opening of an update; at the cells' modes at the first opening of each phase; at the root's mode at
every opening. A look compares objects and walks through no cells. Nothing is hooked, and no network
is kept alive.
"""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.cells import ROOT_NAME, named_cells
from mindrlhf_msprobe.capture.framework.private import parameters_of
from mindrlhf_msprobe.capture.settings.generation import (
    PLAIN_TYPES,
    cell_attributes,
    is_optimizer,
    learning_rates,
    optimizer_settings,
    plain_value,
)
from mindrlhf_msprobe.capture.tensors.summary import mesh_of
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase
from mindrlhf_msprobe.storage.manifest.run_file import (
    MOST_OF_ONE,
    Cells,
    Change,
    Mode,
    Network,
    Optimizer,
    Settings,
)
from mindrlhf_msprobe.storage.manifest.variables import sizes_in
from mindrlhf_msprobe.storage.records import network_name
from mindrlhf_msprobe.storage.writing.ledger import Counted, FaultSink

MAX_VALUES = 200_000  # attributes of one network
MAX_CHANGES = 1000  # of one network, one optimizer or one phase
_MAX_READ = 8  # learning rates that are looked at in every step
_MOST_PARAMETERS = 1 << 16
#: What stands in the manifest of every network that was looked at.
_ALWAYS = ("role", "phases", "kind", "training", "cells")


class NetworkSettings:
    """Modes, attributes and optimizers of one recorded run, for the manifest.

    Args:
        fault: called with every fault while looking; may raise only in strict mode.
    """

    def __init__(self, fault: FaultSink) -> None:
        self._fault = fault
        self._networks: list[_Network] = []
        self._modes: dict[str, _Modes] = {}
        self._optimizers: dict[str, list[_Optimizer]] = {}
        self._looked_for: set[str] = set()  # roles whose optimizer was searched in an update
        self._looked_before = False
        self._changed = False
        self._twins: set[tuple[str, str]] = set()  # roles of one network, of which that was said

    def watch(self, networks: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Take the settings of networks and optimizers that the trainer named."""
        for role, optimizer in optimizers.items():
            if optimizer is not None:
                with Counted(self._fault, "lost.optimizer", role=role):
                    self._add_optimizer(role, optimizer)
        for role, network in networks.items():
            if network is not None:
                with Counted(self._fault, "lost.settings", role=role):
                    self._network(role, network)

    def enter(self, phase: Phase, network: nn.Cell, step: int) -> None:
        """Look at what is set while a phase opens."""
        with Counted(self._fault, "lost.settings", role=phase.role):
            known = self._network(phase.role, network)
            if known is None or known.broken:
                return
            if not known.phases:  # the trainer may have set it up further since it was watched
                self._look(known, network)
            if phase.name not in known.phases:
                known.phases.append(phase.name)
                known.renew(phases=known.phases)
                self._changed = True
            # Optimizers are looked for before the first phase, and once more in an update.
            in_update = phase.name in UPDATE_PHASES
            first_update = in_update and phase.role not in self._looked_for
            if first_update:
                self._looked_for.add(phase.role)
            if not self._looked_before or (first_update and phase.role not in self._optimizers):
                self._find_optimizers()
            modes = self._modes.setdefault(phase.name, _Modes())
            first = modes.step != step
            if first or in_update:  # the trainer may set a learning rate for each micro-step
                for optimizer in self._optimizers.get(phase.role, ()):
                    self._changed |= optimizer.note_changes(step, again=in_update)
            if first and (known.step != step or in_update):
                self._changed |= known.note_changes(step, phase.name)
            self._changed |= modes.note(step, known, first=first)

    def end_step(self) -> None:
        """Look for optimizers where no phase was opened by the end of a step.

        And at how networks that were compiled in it are cut.
        """
        for network in self._networks:
            with Counted(self._fault, "lost.settings", role=network.role):
                self._changed |= network.note_strategy()
        if not self._looked_before:
            with Counted(self._fault, "lost.optimizers"):
                self._find_optimizers()

    def take(self) -> Settings | None:
        """Return what the manifest should hold; None where it holds that already.

        What is the same object as before has not changed.
        """
        if not self._changed:
            return None
        self._changed = False
        return Settings.make(
            networks=[network.content for network in self._networks],
            modes={phase: list(modes.changes) for phase, modes in self._modes.items()},
            optimizers={
                role if i == 0 else f"{role}.{i + 1}": optimizer.content()
                for role, all_of_role in self._optimizers.items()
                for i, optimizer in enumerate(all_of_role)
            },
        )

    def _network(self, role: str, cell: nn.Cell) -> _Network | None:
        for known in self._networks:
            if known.role == role and known.cell() is cell:
                return known
        if len(self._networks) == 32:
            return None
        # A network that no phase has run, and that another one replaces, was no part of it.
        self._networks = [n for n in self._networks if n.phases or n.role != role]
        network = _Network(role, cell)
        self._networks.append(network)
        self._look(network, cell)
        other = next((n.role for n in self._networks if network.is_twin_of(n)), None)
        if other is not None:
            network.renew(same_as=other)
            if (role, other) not in self._twins:
                self._twins.add((role, other))
                warn("log.one_network", role=other, other=role)
        return network

    def _look(self, network: _Network, cell: nn.Cell) -> None:
        self._changed = True
        try:
            optimizers = network.look(cell)
        except Exception:
            network.broken = True  # said once, and not tried again at each phase
            raise
        for optimizer in optimizers:
            self._add_optimizer(network.role, optimizer)

    def _find_optimizers(self) -> None:
        """Find the optimizers of this process that update a network whose optimizers are not known.

        Of two networks that share a parameter the first one's role counts.
        """
        self._looked_before = True
        owners: dict[int, str] = {}
        for network in self._networks:
            cell = None if network.role in self._optimizers else network.cell()
            for parameter in () if cell is None else parameters_in(named_cells(cell).values()):
                if parameter.requires_grad:
                    owners.setdefault(id(parameter), network.role)
        if not owners:
            return
        # By its type: isinstance would ask a weak proxy for what may no longer exist.
        for cell in [c for c in gc.get_objects() if issubclass(type(c), nn.Cell)]:
            if is_optimizer(cell):
                updated: Iterable[Any] = getattr(cell, "parameters", ())
                for role in dict.fromkeys(owners[id(p)] for p in updated if id(p) in owners):
                    self._add_optimizer(role, cell)

    def optimizers_of(self, role: str) -> list[nn.Cell]:
        """Return the optimizers that update a role's network."""
        cells = (optimizer.cell() for optimizer in self._optimizers.get(role, ()))
        return [cell for cell in cells if cell is not None]

    def _add_optimizer(self, role: str, optimizer: nn.Cell) -> None:
        known = self._optimizers.setdefault(role, [])
        if len(known) < 4 and all(o.cell() is not optimizer for o in known):
            known.append(_Optimizer(optimizer))
            self._changed = True


def parameters_in(cells: Iterable[nn.Cell]) -> Iterator[Any]:
    """Yield the parameters that cells hold themselves."""
    for cell in cells:
        yield from (p for p in parameters_of(cell).values() if p is not None)


@dataclass
class _Cell:
    """The attributes of one cell of which a look says whether they changed.

    Attributes:
        own: all attributes of the cell.
        names: of those that are looked at.
        values: what these were at the last look, None of one that was deleted: the same objects
            are the same values, so that comparing them costs next to nothing.
    """

    name: str
    own: dict[str, Any]
    names: list[str]
    values: list[Any]


class _Network:
    """One watched network: its cells' attributes, and their modes.

    Attributes:
        content: what the manifest holds of it; another object only where that has changed.
        broken: whether its attributes could not be read.
        step: the one of the last look at its attributes.
    """

    def __init__(self, role: str, cell: nn.Cell) -> None:
        self.role = role
        self.cell = weakref.ref(cell, self._forget)
        self.phases: list[str] = []
        self.broken = False
        self.step: int | None = None
        # In the order in which it stands in the file; what is empty is left out.
        self._said: dict[str, Any] = {"role": role, "same_as": None, "phases": []}
        self._parameters: dict[int, bool] = {}  # their ids, and whether each is trained
        self._cells_looked: list[_Cell] = []
        self._own_of: dict[str, dict[str, Any]] = {}  # the attributes of each cell
        self._root: dict[str, Any] = {}
        self.renew(kind=type(cell).__name__)

    def _forget(self, _: object) -> None:
        """Let go of the cells' attributes: the network is gone."""
        self._cells_looked, self._own_of, self._root = [], {}, {}

    def renew(self, **news: Any) -> None:
        """Make the content for the manifest anew, with what is other than before."""
        self._said.update(news)
        empty: tuple[Any, ...] = (None, [], {})
        self.content = Network.make(
            **{n: v for n, v in self._said.items() if n in _ALWAYS or v not in empty}
        )

    def look(self, root: nn.Cell) -> list[nn.Cell]:
        """Take all attributes of all cells as they are now; return the optimizers among them."""
        cells = named_cells(root)
        optimizers = [cell for cell in cells.values() if is_optimizer(cell)]
        inside = {id(c) for optimizer in optimizers for c in named_cells(optimizer).values()}
        cells = {name: cell for name, cell in cells.items() if id(cell) not in inside}
        groups: dict[str, tuple[str, dict[str, Any], list[str]]] = {}
        left = MAX_VALUES
        self._cells_looked = []
        for name, cell in cells.items():
            attributes = dict(list(cell_attributes(cell).items())[:left])
            left -= len(attributes)
            kind = type(cell).__name__
            groups.setdefault(f"{kind} {attributes}", (kind, attributes, []))[2].append(name)
            own = vars(cell)
            names = [a for a in own if a in attributes and type(own[a]) in PLAIN_TYPES]
            if names:
                self._cells_looked.append(_Cell(name, own, names, [own[a] for a in names]))
        self._own_of = {name: vars(cell) for name, cell in cells.items()}
        self._root = vars(cells.get(ROOT_NAME, root))
        self._changes: list[Change] = []
        self._counts: dict[tuple[str, str], int] = {}
        self._parameters = {id(p): bool(p.requires_grad) for p in parameters_in(cells.values())}
        trained = {
            network_name(name, own): bool(parameter.requires_grad)
            for name, cell in cells.items()
            for own, parameter in parameters_of(cell).items()
            if parameter is not None
        }
        untrained = [name for name in trained if not trained[name]]
        self.renew(
            kind=type(root).__name__,
            training=self.training,
            cells=[
                Cells.make(kind=kind, attributes=attributes, cells=names)
                for kind, attributes, names in groups.values()
            ],
            changes=[],
            # Of a network that is not trained at all, as a reference, none is told.
            untrained=untrained[:_MOST_PARAMETERS] if any(trained.values()) else [],
            parallel=parallel_sizes(cells.values()),
            strategy=strategy_of(root),
            mesh=mesh_of(parameters_in(cells.values())),
            cut_at=None if left > 0 else MAX_VALUES,
        )
        return optimizers

    def is_twin_of(self, other: _Network) -> bool:
        """Return whether it is the network of another role, by its parameters.

        All of the smaller one's are in the other, and some of these are trained: an update of the
        one changes both. Of a base that is not trained that is not so.
        """
        if self.role == other.role or None in (self.cell(), other.cell()):
            return False
        ours, theirs = self._parameters, other._parameters
        common = ours.keys() & theirs.keys()
        whole = bool(common) and len(common) == min(len(ours), len(theirs))
        return whole and any(ours[p] or theirs[p] for p in common)

    def note_changes(self, step: int, phase: str) -> bool:
        """Note the attributes that are other objects than at the last look, and other values."""
        self.step = step
        known = len(self._changes)
        for cell in self._cells_looked:
            now = [*map(cell.own.get, cell.names)]
            if all(map(operator.is_, now, cell.values)):
                continue
            before, cell.values = cell.values, now
            for name, old, value in zip(cell.names, before, now):
                if value is old:
                    continue
                plain, scalars = (
                    plain_value(name, value),
                    {type(value), type(old)} <= {*PLAIN_TYPES},
                )
                # Of scalars all characters count; of others what can be shown.
                if not (bool(value != old) if scalars else plain != plain_value(name, old)):
                    continue
                count = self._counts.get((cell.name, name), 0)
                if len(self._changes) >= MAX_CHANGES or count >= MOST_OF_ONE:
                    continue
                self._counts[cell.name, name] = count + 1
                at = {"step": step, "phase": phase, "cell": cell.name, "name": name}
                # One that has no JSON value, such as a tensor that replaced a number, is None.
                shown = isinstance(plain, (bool, int, float, str, list))
                self._changes.append(Change.make(**at, value=plain if shown else None))
        if len(self._changes) == known:
            return False
        self.renew(changes=self._changes)
        return True

    def note_strategy(self) -> bool:
        """Note how parameters are cut, which is known when the network has been compiled."""
        root = self.cell()
        if self.broken or self._said.get("strategy") or root is None:
            return False
        strategy = strategy_of(root)
        if strategy:
            self.renew(strategy=strategy)
        return bool(strategy)

    @property
    def training(self) -> bool:
        """Whether the network as a whole is in training mode."""
        return bool(self._root.get("training"))

    def modes(self) -> list[bool]:
        """Return each cell's mode, in the order of the cells."""
        return [bool(own.get("training")) for own in self._own_of.values()]

    def modes_named(self, modes: list[bool]) -> dict[str, Any]:
        """Return the root's mode, and those cells whose mode is not that of the cell around."""
        mode_of = dict(zip(self._own_of, modes))
        others: dict[str, bool] = {}
        for name, training in mode_of.items():
            around = name
            while "." in around:
                around = around.rpartition(".")[0]
                if around in mode_of:
                    break
            else:
                around = ROOT_NAME
            if name != around and mode_of.get(around, training) is not training:
                others[name] = training
        return {"training": self.training, **({"others": others} if others else {})}


class _Modes:
    """In which mode one phase ran, and when that changed."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.changes: list[Mode] = []
        self._last: tuple[Any, ...] = ()

    def note(self, step: int, network: _Network, *, first: bool) -> bool:
        """Note the mode if it is another one; of openings that are not the step's first, look at
        the root alone."""
        self.step = step
        if not first and self._last[:1] == (network.training,):
            return False
        modes = network.modes()
        now = (network.training, id(network), modes)
        if now == self._last:
            return False
        self._last = now
        mode = Mode.make(step=step, **network.modes_named(modes))
        last = self.changes[-1] if self.changes else Mode({})
        same = (mode.training, mode.others) == (last.training, last.others)
        if same or len(self.changes) >= MAX_CHANGES:
            return False
        self.changes.append(mode)
        return True


class _Optimizer:
    """One optimizer: its settings, and the learning rates that changed."""

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = weakref.ref(cell)
        self._class = type(cell).__name__
        self._settings = optimizer_settings(cell)
        self._rates = learning_rates(cell, _MAX_READ)
        self._step: int | None = None
        self._changes: list[Change] = []

    def content(self) -> Optimizer:
        """Return what the manifest holds of it."""
        changes = {"changes": self._changes} if self._changes else {}
        return Optimizer.make(kind=self._class, settings=self._settings, **changes)

    def note_changes(self, step: int, *, again: bool) -> bool:
        """Note learning rates, and other settings of groups, that are not those of before.

        Args:
            again: look also where this step has looked already.
        """
        cell = self.cell()
        if cell is None or (step == self._step and not again):
            return False
        self._step = step
        now = learning_rates(cell, _MAX_READ)
        changed = {name: value for name, value in now.items() if self._rates.get(name) != value}
        self._rates = now
        if len(self._changes) >= MAX_CHANGES:
            return False
        self._changes += [Change.make(step=step, name=n, value=v) for n, v in changed.items()]
        return bool(changed)


def parallel_sizes(cells: Iterable[nn.Cell]) -> dict[str, int]:
    """Return the parallel sizes of the first cell that has any, by their names here.

    Read is the `parallel_config` of a cell or of its `config`, as MindFormers has it, then the
    `config` itself, as it is where Megatron's names are used.
    """
    for cell, _ in zip(cells, range(64)):
        own = vars(cell)
        config = own.get("config", own.get("transformer_config"))
        for held in (own.get("parallel_config"), _of(config, "parallel_config"), config):
            found = sizes_in(partial(_of, held)) if held is not None else {}
            if found:
                return found
    return {}


def strategy_of(root: nn.Cell) -> dict[str, dict[str, list[int]]]:
    """Return how the parameters of a network that was compiled in parallel are cut.

    Returns:
        Name → `devices`, the device matrix, and `map`, the axes of it over which each axis of the
        parameter is cut, as `Cell.parameter_layout_dict` has them. Parameters that are cut
        unevenly, or once more by the optimizer, are left out: their shapes tell it.
    """
    try:
        layouts = dict(root.parameter_layout_dict)
    except Exception:  # a property of the trainer's
        return {}
    found: dict[str, dict[str, list[int]]] = {}
    for name, layout in [*layouts.items()][:_MOST_PARAMETERS]:
        if not isinstance(layout, (list, tuple)) or len(layout) < 2:
            continue
        devices, tensor_map, *rest = layout
        uneven = len(rest) > 2 and (rest[1] != 0 or not rest[2])
        by_optimizer = len(rest) > 3 and bool(rest[3])
        sizes = all(
            isinstance(value, (list, tuple)) and all(type(n) is int for n in value)
            for value in (devices, tensor_map)
        )
        if sizes and not uneven and not by_optimizer:
            found[str(name)] = {"devices": [*devices], "map": [*tensor_map]}
    return found


def _of(held: Any, name: str) -> Any:
    if isinstance(held, Mapping):
        return held.get(name)
    try:
        return getattr(held, name, None)
    except Exception:  # a property of the trainer's
        return None
