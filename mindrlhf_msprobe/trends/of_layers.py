"""What is derived from the entries of a step: norms of gradients, updates, and Adam's moments.

Each is of a whole network in a phase, and of each of its layers. A layer is what a cell's name says
up to its last number that is a name of its own: `model.layers.0` of `model.layers.0.attention.wo`;
a cell without one is a layer of its own, and so is the network itself, `root`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import PHASES, UPDATE_PHASES
from mindrlhf_msprobe.storage.arrays.atomic import loads
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.leaves import leaf_from_json
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, flat, statistic, values_of
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.reading.series import Gathered
from mindrlhf_msprobe.storage.records import (
    OPTIMIZER_STATE,
    PARAMETERS_GRAD,
    Entry,
    Record,
    cell_of_parameter,
    is_optimizer_state,
    network_name,
)
from mindrlhf_msprobe.trends.formulas import joint_norm, squared_distance

_ESCAPED = re.compile("%([0-9A-F]{2})")
_STATE = OPTIMIZER_STATE.encode()


class Value(NamedTuple):
    """One value of a line.

    Attributes:
        path: the place inside the structure.
        leaf: what was recorded of it.
        record: it with its file, where the line was read as an entry.
    """

    path: str
    leaf: LeafJson
    record: Record | None = None


class Line:
    """One line of a journal; only what is asked for is made of it.

    Attributes:
        name: the entry's.
        phase, step, rank: where it is.
        cell, call: whose it is, and which call of its cell.
        of_gradients, of_optimizer: whether it holds gradients of parameters, an optimizer's state.
    """

    __slots__ = (
        *("_content", "_entry", "_run", "_values", "call", "cell", "name"),
        *("of_gradients", "of_optimizer", "phase", "rank", "step"),
    )

    def __init__(self, run: Run, content: Any, phase: str, step: int, rank: int) -> None:
        self._run, self._content = run, content
        self._entry: Entry | None = None
        self._values: dict[str, list[Value]] = {}
        self.phase, self.step, self.rank = phase, step, rank
        self.name: str = content["entry"]
        self.cell, self.call, self.of_gradients, self.of_optimizer = _of_name(self.name)

    @classmethod
    def of_entry(cls, run: Run, entry: Entry) -> Line:
        """Return the line of an entry that was read already."""
        line = cls(run, {"entry": entry.name}, entry.phase, entry.step, entry.rank)
        line._entry = entry
        return line

    def values(self, io: str) -> list[Value]:
        """Return its parameters, outputs, or gradients (`PARAMETERS_GRAD`)."""
        found = self._values.get(io)
        if found is None:
            found = self._values[io] = self._made(io)
        return found

    def _made(self, io: str) -> list[Value]:
        if self._entry is not None:
            of = (record for record in self._entry.records if record.io == io)
            return [Value(record.path, record.leaf.to_json(), record) for record in of]
        if io == PARAMETERS_GRAD:
            found = values_of(self._content) if self.of_gradients else ()
            return [Value(path, leaf) for _, path, leaf in found]
        return [Value(path, leaf) for path, leaf in flat(self._content.get(io))]

    def elements(self, value: Value) -> np.ndarray:
        """Map the elements of a value into memory, read-only.

        Raises:
            ArrayFileError, ValueError: they were not stored, or cannot be read.
        """
        if value.record is not None:
            return value.record.array()
        leaf = leaf_from_json(dict(value.leaf))
        files = self._run.locator(self.phase, self.step, self.rank)
        return Record("", "", value.path, *files.locate(leaf, leaf.data_name)).array()

    def parameter(self, value: Value) -> str:
        """Return the name in its network of the parameter that a value is, or is a gradient of."""
        own = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value.path)
        return network_name(self.cell, own)


@lru_cache(maxsize=1 << 16)
def _of_name(name: str) -> tuple[str, int, bool, bool]:
    entry = Entry(name, "", 0, 0, 0, None)
    return entry.cell, entry.call, holds_gradients(name), is_optimizer_state(entry.cell)


def lines_of(run: Run, phase: str, step: int, rank: int) -> Iterator[Line]:
    """Yield the lines of one place that hold parameters, gradients, or an optimizer's state."""
    raw = None if run.times_are_lost(step, rank) else run.journal_lines(phase, step, rank)
    found = None if raw is None else _plain(run, raw, phase, step, rank)
    if found is not None:
        yield from found
        return
    # Another tool's, damaged or cut off: reading it whole says so.
    for entry in run.entries(phase, step, rank):
        yield Line.of_entry(run, entry)


def _plain(run: Run, raw: list[bytes], phase: str, step: int, rank: int) -> list[Line] | None:
    """Return the lines of a journal as it ought to be; None of any other."""
    wanted = [line for line in raw if b"parameters" in line or _STATE in line]
    try:
        lines = [Line(run, loads(line), phase, step, rank) for line in wanted]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return lines if len({line.name for line in lines}) == len(lines) else None


_LAYER = re.compile(r"(?:.+\.)?[0-9]+(?=\.|$)")
_MOMENTS = {
    "adam_first_moment": re.compile(r"(?:^|%2E|\.)(?:moments?1|adam_m|exp_avg|m)(?:%2E|\.)"),
    "adam_second_moment": re.compile(r"(?:^|%2E|\.)(?:moments?2|adam_v|exp_avg_sq|v)(?:%2E|\.)"),
}
_OTHER_PHASES = frozenset(phase.name for phase in PHASES) - set(UPDATE_PHASES)

GRADIENT_NORM, UPDATE_TO_WEIGHT = "gradient_norm", "update_to_weight"


class OfEntries:
    """Gathers what it derives from entries, place by place, the steps of a rank in order."""

    def line(self, line: Line) -> None:
        """Take one line of the place that is read."""
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
        for layer in ("", layer_of(cell_of_parameter(parameter))):
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

    def line(self, line: Line) -> None:
        for value in line.values(PARAMETERS_GRAD) if line.of_gradients else ():
            norm = _norm_of(value.leaf)
            if norm is not None:
                self._norms.add(line.phase, line.call, line.parameter(value), norm)

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

    def line(self, line: Line) -> None:
        for value in line.values("output" if line.of_optimizer else "parameters"):
            is_part = "." in value.path or "%2E" in value.path
            found = self._pattern.search(value.path) if is_part else None
            norm = None if found is None else _norm_of(value.leaf)
            if found is not None and norm is not None:
                parameter = value.path[found.end() :].replace("%2E", ".")
                self._norms.add(line.phase, line.call, parameter, norm)

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
        self._last: dict[tuple[int, str, str], tuple[int, int, _Parameter]] = {}
        self._sums: dict[tuple[int, str, int, int, str], list[float]] = {}
        self._seen: list[_Parameter] = []
        self._parameters = self._compared = 0

    def line(self, line: Line) -> None:
        if line.phase in _OTHER_PHASES:
            return
        parameters = [value for value in line.values("parameters") if "shape" in value.leaf]
        # An optimizer's own: a cell's parameters have no dot in their names, its copies of them do.
        if not any("%2E" in value.path for value in parameters):
            self._seen += (_Parameter(line, value) for value in parameters)

    def end(self, step: int, rank: int, into: Gathered) -> None:
        self._parameters += len(self._seen)
        for seen in self._seen:
            # A name without the call: its parameters are recorded again where they changed.
            line, path = seen.line, seen.value.path
            at = rank, line.phase, f"{line.name.rpartition('.')[0]}.{path}"
            before = self._last.get(at)
            number = 0
            if before is not None:
                number = before[1] + 1 if before[0] == step else 0
                self._compare(at, before, seen, layer_of(line.cell))
            self._last[at] = step, number, seen
        self._seen.clear()

    def _compare(
        self,
        at: tuple[int, str, str],
        before: tuple[int, int, _Parameter],
        after: _Parameter,
        layer: str,
    ) -> None:
        step, number, old = before
        distance = _moved(old, after)
        norm = _norm_of(old.value.leaf)
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


class _Parameter(NamedTuple):
    """A parameter as it was recorded once."""

    line: Line
    value: Value

    def elements(self) -> np.ndarray:
        return self.line.elements(self.value)


def _moved(old: _Parameter, new: _Parameter) -> float | None:
    """Return ‖new − old‖² of a parameter; None where it is not known."""
    before, after = old.value.leaf, new.value.leaf
    if before.get("shape") != after.get("shape"):
        return None
    fingerprint = before.get("fingerprint")
    if fingerprint is not None and fingerprint == after.get("fingerprint"):
        return 0.0
    if before.get("data_name") is None or after.get("data_name") is None:
        return None
    try:
        return squared_distance(new.elements(), old.elements())
    except (ArrayFileError, ValueError, TypeError):
        return None


def _norm_of(leaf: LeafJson) -> float | None:
    return statistic(leaf, "Norm") if "shape" in leaf else None


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
