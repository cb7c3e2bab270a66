"""Graph mode and jit: probes are compiled into the cells of the watched networks.

`watch` replaces the construct of every cell by a wrapper that behaves as the construct itself
where Python runs it, and holds probes where MindSpore compiles it: so a network is recorded in
GRAPH_MODE, and in PyNative mode where `ms.jit` compiles it or a part of it. Opening and closing a
phase only decides who takes what the probes hand over; nothing is compiled again.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import mindspore
from mindspore import nn

from mindrlhf_msprobe.capture.cells import in_a_tuple, named_cells, parameters_held_twice
from mindrlhf_msprobe.capture.eager import EagerCapture
from mindrlhf_msprobe.capture.graph_calls import CellSlot, GraphCalls
from mindrlhf_msprobe.capture.graph_probes import SITES, Receiver
from mindrlhf_msprobe.capture.graph_source import (
    CONSTRUCT,
    NUMBER,
    Asked,
    WrapperSources,
    cell_source,
    optimizer_source,
)
from mindrlhf_msprobe.capture.mindspore_api import API, EXECUTOR
from mindrlhf_msprobe.capture.opening import Opening
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.manifest import CASTS
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

_ASKED = "msprobe_asked"
_INSIDE_RECOMPUTED = "msprobe_inside_recomputed"
_OPTIMIZER = "msprobe_optimizer"  # wrapped as what takes gradients, not as a cell among others
_numbers = itertools.count(1)
_sources = WrapperSources()


class _Number(int):
    """A cell's number; a copy of the cell has none, for it is not watched."""

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return 0


def _writes_files() -> bool:
    return bool(mindspore.get_context("device_target") == "Ascend")


def graph_mode() -> bool:
    """Tell whether a cell that is called is compiled."""
    mode = mindspore.get_context("mode")
    return bool(mode == mindspore.GRAPH_MODE) and os.environ.get("MS_JIT") != "0"


class GraphProbes:
    """The probes of one recorded run."""

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config
        # role → optimizers' (number, its parameters in the order of their gradients)
        self._optimizers: dict[str, list[tuple[int, list[Any]]]] = {}

    def watch(self, role: str, network: nn.Cell) -> None:
        """Put probes into a network that has not been compiled yet.

        An optimizer inside it that is watched as one stays so.

        Raises:
            UsageError: it has been compiled already, by itself or inside another cell.
        """
        cells = named_cells(network)
        for cell in filter(_is_recomputed, cells.values()):
            for child in cell._cells.values():
                if child is not None and _is_recomputed(child):
                    vars(child)[_INSIDE_RECOMPUTED] = True
        asked = [
            (cell, self._asked(role, name, cell))
            for name, cell in cells.items()
            if not vars(cell).get(_OPTIMIZER)
        ]
        missing = [(cell, what) for cell, what in asked if what and not has_probes(cell, what)]
        if missing and graph_mode():
            _refuse_compiled(f"watch({role}=…)", network)
        for cell, what in missing:
            self._wrap(cell, cell_source, what)

    def _asked(self, role: str, name: str, cell: nn.Cell) -> Asked | None:
        """Return what is recorded of a cell; None for nothing."""
        config = self.config
        if _is_inner_recurrent(cell):
            return None
        if not config.records_cell(name):
            # Tokens are counted by the outermost cells, recorded or not.
            phases = (p for p in config.phase_table().values() if config.records_phase(p))
            counts = any(phase.counts_tokens and phase.role == role for phase in phases)
            return Asked(tensors=False) if counts else None
        own = cell.parameters_and_names(expand=False) if config.parameters else ()
        return Asked(
            parameters=tuple(name for name, _ in own if name.isidentifier()),
            gradients="backward" in config.directions and not _why_no_gradients(cell),
        )

    def watch_optimizer(self, role: str, optimizer: nn.Cell) -> None:
        """Put probes on the gradients that enter an optimizer.

        Raises:
            UsageError: it has been compiled already.
        """
        asked = Asked(gradients=True)
        if not vars(optimizer).get(_OPTIMIZER):
            if graph_mode():
                _refuse_compiled(f"watch(optimizers={{{role!r}: …}})", optimizer)
            self._wrap(optimizer, lambda _: optimizer_source(), asked)
            vars(optimizer)[_OPTIMIZER] = True
        parameters = list(optimizer.parameters)
        self._optimizers.setdefault(role, []).append((vars(optimizer)[NUMBER], parameters))

    def _wrap(self, cell: nn.Cell, source: Callable[[Asked], str], asked: Asked) -> None:
        attributes = vars(cell)
        if CONSTRUCT in attributes:
            asked = asked | attributes[_ASKED]
        else:
            attributes[CONSTRUCT] = cell.construct
            attributes[NUMBER] = _Number(next(_numbers))
        attributes[_ASKED] = asked
        wrapper = _sources.function(
            source(asked), like=None if graph_mode() else attributes[CONSTRUCT]
        )
        attributes["construct"] = MethodType(wrapper, cell)

    def gradients_of(self, role: str, slots: Mapping[int, CellSlot], network: nn.Cell) -> Any:
        """Return optimizer number → the (slot, parameter name) of each gradient it takes."""
        optimizers = self._optimizers.get(role, [])
        owners: dict[int, tuple[CellSlot, str]] = {}
        for cell in named_cells(network).values() if optimizers else ():
            slot = slots.get(vars(cell).get(NUMBER, 0))
            for name, parameter in cell.parameters_and_names(expand=False):
                if slot is not None:
                    owners.setdefault(id(parameter), (slot, name))
        return {
            number: [owners.get(id(parameter)) for parameter in parameters]
            for number, parameters in optimizers
        }


def _why_no_gradients(cell: nn.Cell) -> str:
    """Return why the gradients of a cell are not recorded in graphs; empty if they are."""
    if cell.has_bprop:
        return "its gradients: it has a bprop of its own"
    if vars(cell).get(_INSIDE_RECOMPUTED):
        # MindSpore orders what it recomputes behind the gradients that arrive, and a probe of
        # those behind the forward pass: "Graph cycle exists".
        return "its gradients: it is recomputed as a part of another cell"
    if _casts(cell):
        # MindSpore folds the casts of cells that follow each other, unless a probe lies between.
        return f"its gradients, and the dtype its inputs had before: {CASTS}"
    return ""


def _is_recomputed(cell: nn.Cell) -> bool:
    """Tell whether MindSpore computes a cell again, by itself or as a part of another one."""
    return bool(vars(cell).get("_has_config_recompute"))


def _casts(cell: nn.Cell) -> bool:
    """Tell whether MindSpore casts what a cell is given, by `to_float`."""
    return any(cell.get_flags().get(name) for name in ("fp16", "fp32", "bf16"))


def _is_inner_recurrent(cell: nn.Cell) -> bool:
    """Tell whether a cell is one inside nn.LSTM, nn.GRU or nn.RNN.

    They are handed Parameters, and MindSpore cannot compile them with a probe beside.
    """
    kind = type(cell)
    return kind.__module__ == "mindspore.nn.layer.rnns" and kind.__name__.startswith("_")


def has_probes(cell: nn.Cell, asked: Asked) -> bool:
    """Tell whether a cell has been wrapped for at least what is asked."""
    present = vars(cell).get(_ASKED)
    return present is not None and present.covers(asked)


def _refuse_compiled(call: str, network: nn.Cell) -> None:
    compiled = _compiled_around(network)
    if compiled is not None:
        where = "it" if compiled is network else f"it, inside {type(compiled).__name__},"
        raise UsageError(
            f"{call} got {type(network).__name__}, but {where} has been compiled already, and a "
            f"compiled graph cannot be given probes. Call probe.watch() after the networks are "
            f"built and before the first one runs, trains or is compiled."
        )


def _compiled_around(network: nn.Cell) -> nn.Cell | None:
    """Return a cell that has been compiled and that is, holds or is held by `network`."""
    for cell in named_cells(network).values():
        if cell.compile_cache:
            return cell
    if not any(getattr(API, "cells_compile_cache", {}).values()):
        return None
    # By its type: isinstance would ask a weak proxy for what may no longer exist.
    cells = (found for found in gc.get_objects() if issubclass(type(found), nn.Cell))
    for around in [cell for cell in cells if vars(cell).get("_compile_cache")]:
        if any(cell is network for cell in named_cells(around).values()):
            return around
    return None


def listen(receiver: Receiver) -> None:
    """Let what compiled cells hand over from now on go to a receiver."""
    if _writes_files():
        from mindrlhf_msprobe.capture import graph_ascend

        graph_ascend.before_phase()
    elif SITES.compiled:
        EXECUTOR.sync()  # what ran before the phase may still be handing over
    SITES.receiver = receiver


def hand_over(receiver: Receiver) -> None:
    """Wait for what still runs, let the receiver have it, and nothing from then on."""
    if _writes_files():
        from mindrlhf_msprobe.capture import graph_ascend

        graph_ascend.after_phase(receiver)
    else:
        EXECUTOR.sync()
    if SITES.receiver is receiver:
        SITES.receiver = None


class PhaseCapture:
    """One opening of one phase: what runs in Python and what runs in graphs.

    Args:
        probes, role: where the network's probes, and those of its role's optimizers, are known.
    """

    def __init__(self, opening: Opening, *, probes: GraphProbes, role: str) -> None:
        root = opening.root
        self._root = root
        self._entries = opening.entries
        self._with_parameters = opening.with_parameters
        self._backward = "backward" in opening.directions
        self._eager = None if graph_mode() else EagerCapture(opening)
        self._names = {
            vars(cell)[NUMBER]: (name, cell)
            for name, cell in named_cells(root).items()
            if NUMBER in vars(cell)
        }
        self._counters = opening.counters
        self._slots = {
            number: CellSlot(name, type(cell).__name__, opening.is_recorded(name))
            for number, (name, cell) in self._names.items()
        }
        self._records_token = opening.records_token
        self._first_outermost: int | None = None
        self._token = -1
        self._optimizers = probes.gradients_of(role, self._slots, root)
        self._graph = GraphCalls(
            self._slots,
            self._optimizers,
            selection=opening.counters.selection,
            calls=opening.counters.calls,
            parameters=opening.counters.parameters,
            opening=opening.number,
            sequence=opening.sequence,
            describer=opening.entries.describer,
            token_of=self._token_of,
            outer=lambda: self._outer()[0],
            python_runs=self._eager is not None,
            forward="forward" in opening.directions,
            sink=opening.entries.sink,
            fault=opening.fault,
        )

    @property
    def cells_seen(self) -> int:
        """How many calls of recorded cells the phase has seen."""
        return self._graph.cells_seen + (self._eager.cells_seen if self._eager else 0)

    @property
    def graph(self) -> GraphCalls:
        """What takes what compiled cells hand over."""
        return self._graph

    def begin(self) -> None:
        """Begin to record what runs in Python."""
        if self._eager is not None:
            self._eager.open()

    def end(self) -> None:
        """End to record; what compiled cells handed over must have been `hand_over`ed."""
        try:
            self._graph.end()
        finally:
            if self._eager is not None:
                self._eager.close()
            else:
                self._entries.flush()

    def gaps(self) -> dict[str, str]:
        """Return what could not be recorded: cell name → why."""
        found = {}
        cells = [cell for _, cell in self._names.values()]
        elsewhere = parameters_held_twice(cells) if self._with_parameters else {}
        for number, (name, cell) in self._names.items():
            if number in SITES.gaps:
                found[name] = SITES.gaps[number]
            elif number not in SITES.compiled:
                continue
            elif self._backward and (why := _why_no_gradients(cell)):
                found[name] = why
            elif vars(cell).get(_OPTIMIZER):
                found[name] = "the optimizer's own call; the gradients that enter it are recorded"
            elif id(cell) in elsewhere and in_a_tuple(cell) - elsewhere[id(cell)]:
                found[name] = "its parameters: it holds them in a tuple"
        found |= self._compiled_early()
        if self._graph.cells_seen:
            for name, cell in named_cells(self._root).items():
                if _is_inner_recurrent(cell):
                    found[name] = (
                        "a cell inside MindSpore's recurrent cells, which takes Parameters"
                    )
        if self._graph.has_gradients and not self._optimizers and self._eager is None:
            found[PARAMETERS_GRAD] = "the optimizer was not given to watch(optimizers=…)"
        return found

    def _compiled_early(self) -> dict[str, str]:
        """Return the cells inside jitted ones that ran and handed nothing over."""
        calls = self._counters.calls
        ran = {s.name for s in self._slots.values() if s.call_name("forward") in calls}
        silent: dict[str, str] = {}
        for name, cell in self._names.values():
            construct = getattr(vars(cell)[CONSTRUCT], "__func__", None)
            if name in ran and hasattr(construct, "__wrapped_by_jit__"):
                inside = {id(c) for c in named_cells(cell).values() if c is not cell}
                below = {n for n, c in self._names.values() if id(c) in inside}
                if not below & ran:
                    silent |= dict.fromkeys(below, f"{name} was compiled before watch()")
        return silent

    def _outer(self) -> tuple[str | None, int | None]:
        return self._eager.innermost() if self._eager is not None else (None, None)

    def _token_of(self, outermost: bool, cell: int) -> tuple[int | None, bool]:
        """A new token begins when the first of the outermost cells is called again."""
        if self._records_token is None:
            return None, True
        token = self._outer()[1]
        if token is None:
            if outermost:
                if self._first_outermost is None:
                    self._first_outermost = cell
                if self._first_outermost == cell:
                    self._token += 1
            token = self._token
        return token, self._records_token(token)
