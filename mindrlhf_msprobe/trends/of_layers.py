"""What is derived from the entries of a step: norms of gradients, updates, and Adam's moments.

Each is of a whole network in a phase, and of each of its layers. A layer is what a cell's name says
up to its last number that is a name of its own: `model.layers.0` of `model.layers.0.attention.wo`;
a cell without one is a layer of its own, and so is the network itself, `root`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import PHASES, UPDATE_PHASES
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.reading.gradients import parameter_of
from mindrlhf_msprobe.storage.reading.series import Gathered, number_of
from mindrlhf_msprobe.storage.records import Entry, Record, is_optimizer_state
from mindrlhf_msprobe.trends.formulas import joint_norm, squared_distance

_LAYER = re.compile(r"(?:.+\.)?[0-9]+(?=\.|$)")
_MOMENTS = {
    "adam_first_moment": re.compile(r"(?:^|%2E|\.)(?:moments?1|adam_m|exp_avg|m)(?:%2E|\.)"),
    "adam_second_moment": re.compile(r"(?:^|%2E|\.)(?:moments?2|adam_v|exp_avg_sq|v)(?:%2E|\.)"),
}
_OTHER_PHASES = frozenset(phase.name for phase in PHASES) - set(UPDATE_PHASES)

GRADIENT_NORM, UPDATE_TO_WEIGHT = "gradient_norm", "update_to_weight"


class OfEntries:
    """Gathers what it derives from entries, place by place, the steps of a rank in order."""

    def entry(self, entry: Entry) -> None:
        """Take one entry of the place that is read."""
        raise NotImplementedError

    def end(self, step: int, rank: int, into: Gathered) -> None:
        """Take note that a place has been read; give what is known by now."""

    def settle(self, step: int, into: Gathered) -> None:
        """Give what was known only by the end of a step, for those who do not wait for the last."""

    def finish(self, into: Gathered) -> None:
        """Give what was known only at the end."""

    def missing(self) -> Message:
        """Return why nothing was found."""
        raise NotImplementedError


def layer_of(cell: str) -> str:
    """Return the layer of a cell, e.g. `model.layers.0` of `model.layers.0.attention.wo`."""
    numbered = _LAYER.match(cell)
    return cell if numbered is None else numbered[0]


class _ByLayer:
    """Numbers of one place by (phase, n-th of the step, layer), and of all layers together."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], list[float]] = {}

    def add(self, phase: str, number: int, parameter: str, value: float) -> None:
        for layer in ("", layer_of(parameter.rpartition(".")[0] or "root")):
            self._found.setdefault((phase, number, layer), []).append(value)

    def give(self, name: str, step: int, rank: int, into: Gathered) -> None:
        for (phase, number, layer), values in self._found.items():
            own = f"{name}[{layer}]" if layer else name
            into.add("derived", own, joint_norm(values), (step, rank, number), phase=phase)
        self._found.clear()


class _GradientNorms(OfEntries):
    """The L2 norm of the gradients of a network's parameters, together and by layer.

    The n-th point of a step is that of the n-th update; see storage/reading/gradients.py.
    """

    def __init__(self) -> None:
        self._norms = _ByLayer()

    def entry(self, entry: Entry) -> None:
        if not holds_gradients(entry.name):
            return
        for record in entry.records:
            norm = number_of(record.leaf, "norm") if record.leaf.is_tensor else None
            if norm is not None:
                self._norms.add(entry.phase, entry.call, parameter_of(entry, record), norm)

    def end(self, step: int, rank: int, into: Gathered) -> None:
        self._norms.give(GRADIENT_NORM, step, rank, into)

    def missing(self) -> Message:
        return message("trend.no_gradients")


class _Moments(OfEntries):
    """The norms of Adam's moments, where the parameters of an optimizer are recorded.

    Args:
        name: a key of `_MOMENTS`.
    """

    def __init__(self, name: str) -> None:
        self._name, self._pattern = name, _MOMENTS[name]
        self._norms = _ByLayer()

    def entry(self, entry: Entry) -> None:
        held = "output" if is_optimizer_state(entry.cell) else "parameters"
        for record in entry.records:
            if record.io == held and (found := self._pattern.search(record.path)):
                norm = number_of(record.leaf, "norm") if record.leaf.is_tensor else None
                parameter = record.path[found.end() :].replace("%2E", ".")
                if norm is not None:
                    self._norms.add(entry.phase, entry.call, parameter, norm)

    def end(self, step: int, rank: int, into: Gathered) -> None:
        self._norms.give(self._name, step, rank, into)

    def missing(self) -> Message:
        return message("trend.no_moments")


class _Updates(OfEntries):
    """How large updates are against the weights: ‖w' − w‖ / ‖w‖, together and by layer.

    w is a parameter as it was recorded, w' as it was recorded the next time in the same phase: at
    the next step, or earlier where it changed within the step. The point stands at the step of w.
    Needs the elements, unless the fingerprints say that nothing changed.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, str, str], tuple[int, int, Record]] = {}
        self._sums: dict[tuple[int, str, int, int, str], list[float]] = {}
        self._seen: list[tuple[Entry, Record]] = []
        self._parameters = self._compared = 0

    def entry(self, entry: Entry) -> None:
        if entry.phase in _OTHER_PHASES:
            return
        parameters = [r for r in entry.records if r.io == "parameters" and r.leaf.is_tensor]
        # An optimizer's own: a cell's parameters have no dot in their names, its copies of them do.
        if not any("%2E" in record.path for record in parameters):
            self._seen += ((entry, record) for record in parameters)

    def end(self, step: int, rank: int, into: Gathered) -> None:
        self._parameters += len(self._seen)
        for entry, record in self._seen:
            # A name without the call: its parameters are recorded again where they changed.
            at = rank, entry.phase, f"{entry.call_name}.{record.path}"
            before = self._last.get(at)
            number = 0
            if before is not None:
                number = before[1] + 1 if before[0] == step else 0
                self._compare(at, before, record, layer_of(entry.cell))
            self._last[at] = step, number, record
        self._seen.clear()

    def _compare(
        self, at: tuple[int, str, str], before: tuple[int, int, Record], after: Record, layer: str
    ) -> None:
        step, number, old = before
        distance = _moved(old, after)
        norm = number_of(old.leaf, "norm")
        if distance is None or norm is None:
            return
        self._compared += 1
        for of in ("", layer):
            sums = self._sums.setdefault((at[0], at[1], step, number, of), [0.0, 0.0])
            sums[0] += distance
            sums[1] += norm * norm

    def settle(self, step: int, into: Gathered) -> None:
        later = {at: sums for at, sums in self._sums.items() if at[2] >= step}
        self._sums = {at: sums for at, sums in self._sums.items() if at[2] < step}
        self.finish(into)
        self._sums = later

    def finish(self, into: Gathered) -> None:
        for (rank, phase, step, number, layer), (moved, weight) in self._sums.items():
            name = f"{UPDATE_TO_WEIGHT}[{layer}]" if layer else UPDATE_TO_WEIGHT
            value = (moved / weight) ** 0.5 if weight else float("nan")
            into.add("derived", name, value, (step, rank, number), phase=phase)

    def missing(self) -> Message:
        if not self._parameters:
            return message("trend.no_parameters")
        if len(self._last) == self._parameters:
            return message("trend.parameters_once")
        return message("trend.parameters_without_elements")


def _moved(old: Record, new: Record) -> float | None:
    """Return ‖new − old‖² of a parameter; None where it is not known."""
    if old.leaf.shape != new.leaf.shape:
        return None
    if old.leaf.fingerprint is not None and old.leaf.fingerprint == new.leaf.fingerprint:
        return 0.0
    try:
        return squared_distance(new.array(), old.array())
    except ArrayFileError:
        return None


#: What is derived from entries: name → what gathers it.
OF_ENTRIES = (GRADIENT_NORM, UPDATE_TO_WEIGHT, *_MOMENTS)


def gatherers(names: Iterable[str]) -> dict[str, OfEntries]:
    """Return what gathers each of these quantities."""
    made: dict[str, OfEntries] = {}
    for name in names:
        if name == GRADIENT_NORM:
            made[name] = _GradientNorms()
        elif name == UPDATE_TO_WEIGHT:
            made[name] = _Updates()
        else:
            made[name] = _Moments(name)
    return made
