"""What is derived from the entries of a step: norms of gradients, updates, and Adam's moments.

Each is of a whole network in a phase, and of each of its layers. A layer is what a cell's name says
up to its last number that is a name of its own: `model.layers.0` of `model.layers.0.attention.wo`;
a cell without one is a layer of its own, and so is the network itself, `root`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import PHASES, UPDATE_PHASES
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.columns.columns import Columns, elements_of
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, statistic
from mindrlhf_msprobe.storage.columns.rows import Rows
from mindrlhf_msprobe.storage.leaves import plain_path
from mindrlhf_msprobe.storage.place import LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.reading.series import Gathered
from mindrlhf_msprobe.storage.records import (
    OPTIMIZER_STATE,
    PARAMETERS_GRAD,
    Entry,
    cell_of_parameter,
    is_optimizer_state,
    network_name,
    parts_of_name,
)
from mindrlhf_msprobe.trends.formulas import joint_norm, squared_distance

#: Of the lines that hold parameters, gradients, or an optimizer's state.
MARKS = b"parameters", OPTIMIZER_STATE.encode()
_LAYER = re.compile(r"(?:.+\.)?[0-9]+(?=\.|$)")
_MOMENTS = {
    "adam_first_moment": re.compile(r"(?:^|%2E|\.)(?:moments?1|adam_m|exp_avg|m)(?:%2E|\.)"),
    "adam_second_moment": re.compile(r"(?:^|%2E|\.)(?:moments?2|adam_v|exp_avg_sq|v)(?:%2E|\.)"),
}
_OTHER_PHASES = frozenset(phase.name for phase in PHASES) - set(UPDATE_PHASES)

GRADIENT_NORM, UPDATE_TO_WEIGHT = "gradient_norm", "update_to_weight"


class OfEntries:
    """Gathers what it derives from entries, place by place, the steps of a rank in order."""

    def columns(self, columns: Columns) -> None:
        """Take the place that is read."""
        for entry in columns.entries():
            self.entry(entry)

    def entry(self, entry: Entry) -> None:
        """Take one entry of the place that is read."""
        raise NotImplementedError

    def end(self, at: StepPlace, into: Gathered) -> None:
        """Take note that a place has been read; give what is known by now."""

    def settle(self, step: int | None, into: Gathered) -> None:
        """Give what was known only by the end of a step; None: of the last one."""

    def missing(self) -> Message:
        """Return why nothing was found."""
        raise NotImplementedError


def layer_of(cell: str) -> str:
    """Return the layer of a cell, e.g. `model.layers.0` of `model.layers.0.attention.wo`."""
    numbered = _LAYER.match(cell)
    return cell if numbered is None else numbered[0]


class _Norms(OfEntries):
    """Norms of one place by (phase, n-th of the step, layer), and of all layers together.

    Args:
        name: of the quantity.
        without: why nothing was found.
    """

    def __init__(self, name: str, without: Message) -> None:
        self._name, self._without = name, without
        self._found: dict[tuple[str, int, str], list[float]] = {}

    def add(self, phase: str, number: int, layer: str, values: Iterable[float]) -> None:
        """Add values of the n-th of the step in a layer, "" standing for all of them."""
        self._found.setdefault((phase, number, layer), []).extend(values)

    def end(self, at: StepPlace, into: Gathered) -> None:
        for (phase, number, layer), values in self._found.items():
            own = f"{self._name}[{layer}]" if layer else self._name
            into.add("derived", own, joint_norm(values), (*at, number), phase=phase)
        self._found.clear()

    def missing(self) -> Message:
        return self._without


def _by_call_and_layer(rows: Rows) -> dict[tuple[int, str], np.ndarray]:
    """Return which rows are of each call and layer, "" standing for all layers."""
    found: dict[tuple[int, str], list[int]] = {}
    for row, (entry, path) in enumerate(rows.names):
        cell, _, _, call = parts_of_name(entry)
        parameter = network_name(cell, plain_path(path))
        for layer in ("", layer_of(cell_of_parameter(parameter))):
            found.setdefault((call, layer), []).append(row)
    return {key: np.array(of, np.intp) for key, of in found.items()}


class _GradientNorms(_Norms):
    """The L2 norm of the gradients of a network's parameters, together and by layer.

    The n-th point of a step is that of the n-th update; see storage/reading/gradients.py.
    """

    def columns(self, columns: Columns) -> None:
        records = columns.records(PARAMETERS_GRAD)
        norms = records.numbers("Norm")
        known = ~np.isnan(norms)
        if not known.all():  # NaN is a norm, none is not
            known = np.array([_norm_of(leaf) is not None for leaf in records.leaves], bool)
        for (call, layer), rows in records.rows.once(_by_call_and_layer).items():
            if known[rows].any():
                values = norms[rows][known[rows]].tolist()
                self.add(columns.phase, call, layer, values)


class _Moments(_Norms):
    """The norms of Adam's moments, where the parameters of an optimizer are recorded.

    Args:
        name: a key of `_MOMENTS`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, message("trend.no_moments"))
        self._pattern = _MOMENTS[name]

    def entry(self, entry: Entry) -> None:
        io = "output" if is_optimizer_state(entry.cell) else "parameters"
        for of, path, leaf in entry.values:
            is_part = of == io and ("." in path or "%2E" in path)
            found = self._pattern.search(path) if is_part else None
            norm = None if found is None else _norm_of(leaf)
            if found is not None and norm is not None:
                parameter = path[found.end() :].replace("%2E", ".")
                for layer in ("", layer_of(cell_of_parameter(parameter))):
                    self.add(entry.phase, entry.call, layer, [norm])


class _Updates(OfEntries):
    """How large updates are against the weights: ‖w' − w‖ / ‖w‖, together and by layer.

    w is a parameter as it was recorded, w' as it was recorded the next time in the same phase: at
    the next step, or earlier where it changed within the step. The point stands at the step of w.
    Needs the elements, unless the fingerprints say that nothing changed.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last: dict[tuple[int, str, str], tuple[int, int, _Parameter]] = {}
        self._sums: dict[tuple[int, str, int, int, str], list[float]] = {}
        self._seen: list[_Parameter] = []
        self._parameters = 0

    def entry(self, entry: Entry) -> None:
        if entry.phase in _OTHER_PHASES:
            return
        parameters = [
            _Parameter(entry.at, entry.name, entry.cell, path, leaf)
            for of, path, leaf in entry.values
            if of == "parameters" and "shape" in leaf
        ]
        # An optimizer's own: a cell's parameters have no dot in their names, its copies of them do.
        if not any("%2E" in one.path for one in parameters):
            self._seen += parameters

    def end(self, at: StepPlace, into: Gathered) -> None:
        self._parameters += len(self._seen)
        for seen in self._seen:
            # A name without the call: its parameters are recorded again where they changed.
            phase, *_ = seen.at
            key = at.rank, phase, f"{seen.name.rpartition('.')[0]}.{seen.path}"
            before = self._last.get(key)
            number = 0
            if before is not None:
                step, times, old = before
                number = times + 1 if step == at.step else 0
                distance, norm = _moved(self._run, old, seen), _norm_of(old.leaf)
                if distance is not None and norm is not None:
                    for layer in ("", layer_of(seen.cell)):
                        at_layer = at.rank, phase, step, times, layer
                        sums = self._sums.setdefault(at_layer, [0.0, 0.0])
                        sums[0] += distance
                        sums[1] += norm * norm
            self._last[key] = at.step, number, seen
        self._seen.clear()

    def settle(self, step: int | None, into: Gathered) -> None:
        for at in [at for at in self._sums if step is None or at[2] < step]:
            rank, phase, of, number, layer = at
            moved, weight = self._sums.pop(at)
            name = f"{UPDATE_TO_WEIGHT}[{layer}]" if layer else UPDATE_TO_WEIGHT
            value = (moved / weight) ** 0.5 if weight else float("nan")
            into.add("derived", name, value, (of, rank, number), phase=phase)

    def missing(self) -> Message:
        if not self._parameters:
            return message("trend.no_parameters")
        if len(self._last) == self._parameters:
            return message("trend.parameters_once")
        return message("trend.parameters_without_elements")


class _Parameter(NamedTuple):
    """A parameter as it was recorded once.

    Attributes:
        at: the phase, step and rank.
        name, cell: of its entry.
    """

    at: LayerPlace
    name: str
    cell: str
    path: str
    leaf: LeafJson


def _moved(run: Run, old: _Parameter, new: _Parameter) -> float | None:
    """Return ‖new − old‖² of a parameter; None where it is not known."""
    before, after = old.leaf, new.leaf
    if before.get("shape") != after.get("shape"):
        return None
    fingerprint = before.get("fingerprint")
    if fingerprint is not None and fingerprint == after.get("fingerprint"):
        return 0.0
    if before.get("data_name") is None or after.get("data_name") is None:
        return None
    try:
        return squared_distance(
            elements_of(run, new.at, new.leaf), elements_of(run, old.at, old.leaf)
        )
    except (ArrayFileError, ValueError, TypeError):
        return None


def _norm_of(leaf: LeafJson) -> float | None:
    return statistic(leaf, "Norm") if "shape" in leaf else None


#: What is derived from entries: name → what gathers it from a run.
OF_ENTRIES: dict[str, Callable[[Run], OfEntries]] = {
    GRADIENT_NORM: lambda _: _GradientNorms(GRADIENT_NORM, message("trend.no_gradients")),
    UPDATE_TO_WEIGHT: _Updates,
    "adam_first_moment": lambda _: _Moments("adam_first_moment"),
    "adam_second_moment": lambda _: _Moments("adam_second_moment"),
}
