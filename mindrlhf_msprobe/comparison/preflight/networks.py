"""What networks and optimizers of runs were set to: modes, attributes of cells, learning rates.

A setting that changes while the training runs is compared step by step, from the first step that
both runs have to the last; the first step at which it differs is reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.preflight.values import (
    ABSENT,
    Notes,
    Ranks,
    is_known,
    named,
    same,
    same_versions,
    shown,
)
from mindrlhf_msprobe.findings import Difference
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.run_file import (
    CHANGED_BY_UPDATES,
    Network,
    RunFile,
    Timeline,
    timelines,
)
from mindrlhf_msprobe.storage.reading.reader import Run

MODES, CELLS, OPTIMIZERS = "modes", "cells", "optimizers"
_ROOT = "root"
_MAX_OF_ONE = 8  # changes of one attribute are recorded, and no more
#: Stands for both values where two settings do not differ.
SAME: Any = object()
_BEGINNING = -1  # before the first step


def compare_networks(rank: int, a: RunFile, b: RunFile, merged: Ranks, notes: Notes) -> None:
    """Add how modes, attributes and optimizers of one rank differ, given both manifests.

    Nothing is said where neither run watched a network.
    """
    left, right = _Networks.from_run_file(a), _Networks.from_run_file(b)
    if not is_known("networks", left or None, right or None, notes, neither=False):
        return
    last, alike = min(last_step(a), last_step(b)), same_versions(a, b)
    for what, own, *both in itertools.chain(
        _modes(left, right, last, notes),
        _cells(left, right, last, notes, alike),
        _optimizers(left, right, last, notes, alike, begun_apart(a, b) is not None),
    ):
        if both[0] == both[1] == WITHHELD:
            notes.about("withheld", what.label, section=what.section)
        else:
            merged.add_one(what, rank, *shown(what.section, (own,), *both))


#: A setting that differs, its own name without whose it is, and both values.
_Found = tuple[Difference, str, Any, Any]


@dataclass
class _Network:
    role: str
    phases: list[str]
    training: bool | None
    cells: dict[str, tuple[str, dict[str, Timeline]]]


@dataclass
class _Networks:
    """What one manifest says of networks, as far as it can be read."""

    networks: list[_Network] = field(default_factory=list)
    modes: dict[str, Timeline] = field(default_factory=dict)
    optimizers: dict[str, tuple[str, dict[str, Timeline]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.networks or self.optimizers)

    @classmethod
    def from_run_file(cls, file: RunFile) -> _Networks:
        found = cls([_network(n, n.role) for n in file.networks if n.role is not None])
        for phase, modes in file.modes.items():
            timeline: Timeline = [
                (mode.step, (bool(mode.training), {n: bool(v) for n, v in mode.others.items()}))
                for mode in modes
                if mode.step is not None
            ]
            if timeline:
                found.modes[phase] = timeline
        for name, optimizer in file.optimizers.items():
            if optimizer.json:
                rates = timelines(optimizer.changes, lambda change: str(change.name))
                found.optimizers[name] = (
                    str(optimizer.kind),
                    timelines_of(optimizer.settings, rates),
                )
        return found

    def role_of(self, phase: str) -> str | None:
        roles = [network.role for network in self.networks if phase in network.phases]
        table = phase_table({})
        return roles[0] if roles else table[phase].role if phase in table else None


def _network(network: Network, role: str) -> _Network:
    changes = timelines(network.changes, lambda change: (str(change.cell), str(change.name)))
    cells: dict[str, tuple[str, dict[str, Timeline]]] = {}
    for group in network.cells:
        kind, settings = str(group.kind), timelines_of(group.attributes, {})
        cells |= dict.fromkeys(group.cells or (), (kind, settings))
    for (cell, name), timeline in changes.items():
        kind, settings = cells.get(cell, ("", {}))
        if name in settings:
            cells[cell] = kind, {**settings, name: [*settings[name], *timeline]}
    return _Network(role, network.phases or [], network.training, cells)


def _modes(a: _Networks, b: _Networks, last: float, notes: Notes) -> Iterator[_Found]:
    for phase in dict.fromkeys([*a.modes, *b.modes]):
        if phase in a.modes and phase in b.modes:
            role = a.role_of(phase)
            yield from _modes_of(phase, role, *first_apart(a.modes[phase], b.modes[phase], last))
        else:
            notes.only_in(MODES, phase in a.modes, phase)
    phased = {n.role for side in (a, b) for n in side.networks if n.phases}
    for role, of_a, of_b in _by_role(a, b):
        trains = of_a.training, of_b.training
        known = None not in trains
        if role not in phased and known and trains[0] is not trains[1]:
            yield Difference(MODES, role, None, None, role), "", _word(trains[0]), _word(trains[1])


def _modes_of(phase: str, role: str | None, step: int | None, a: Any, b: Any) -> Iterator[_Found]:
    """Yield what modes of a phase differ: of its network, or else of cells of it."""
    if a is SAME:
        return
    if a[0] != b[0]:
        yield Difference(MODES, "", None, None, role, (phase,), step), "", _word(a[0]), _word(b[0])
        return
    unlike = [
        (cell, mine, other)
        for cell in dict.fromkeys([*a[1], *b[1]])
        if (mine := mode_of(cell, a)) != (other := mode_of(cell, b))
    ]
    for (mine, other), group in _grouped(unlike, lambda one: one[1:]):
        cells = tuple(cell for cell, *_ in group)
        what = Difference(MODES, named(cells[:1]), None, None, role, (phase,), step, cells)
        yield what, "", _word(mine), _word(other)


def _word(training: bool | None) -> str:
    return "training" if training else "evaluation"


def mode_of(cell: str, mode: tuple[bool, dict[str, bool]]) -> bool:
    """Return whether a cell is in training mode, given its network's mode and cells of others."""
    training, others = mode
    while cell not in others:
        if "." not in cell:
            return training
        cell = cell.rpartition(".")[0]
    return others[cell]


def _pairs(a: _Networks, b: _Networks) -> Iterator[tuple[_Network, _Network, list[str]]]:
    """Yield the networks that ran in the same phases of both runs, with those phases."""
    found: dict[tuple[int, int], tuple[_Network, _Network, list[str]]] = {}
    of_b = {phase: network for network in b.networks for phase in network.phases}
    for network in a.networks:
        for phase in network.phases:
            if phase in of_b:
                key = id(network), id(of_b[phase])
                found.setdefault(key, (network, of_b[phase], []))[2].append(phase)
    yield from found.values()
    paired = {network.role for network, _, _ in found.values()}
    for role, mine, other in _by_role(a, b):
        if role not in paired:
            yield mine, other, []


def _by_role(a: _Networks, b: _Networks) -> Iterator[tuple[str, _Network, _Network]]:
    """Yield the networks of roles that both runs have one network of."""
    for role in dict.fromkeys(network.role for network in a.networks):
        mine, others = ([n for n in side.networks if n.role == role] for side in (a, b))
        if len(mine) == len(others) == 1:
            yield role, mine[0], others[0]


@dataclass(frozen=True)
class _Unlike:
    """An attribute of one cell that differs; `attribute` is "" for the cell's class."""

    cell: str
    kind: str
    attribute: str
    a: Any
    b: Any
    step: int | None = None

    @property
    def alike(self) -> tuple[str, str, str, str, int | None]:
        """What cells have in common that stand in one line."""
        kind = self.kind if self.attribute else ""
        return kind, self.attribute, repr(self.a), repr(self.b), self.step


def _cells(a: _Networks, b: _Networks, last: float, notes: Notes, alike: bool) -> Iterator[_Found]:
    pairs = list(_pairs(a, b))
    found: dict[tuple[str, Any], tuple[list[_Unlike], list[str]]] = {}
    for mine, other, phases in pairs:
        for key, group in _grouped(_unlike(mine, other, last, notes, alike), lambda one: one.alike):
            cells = tuple(one.cell for one in group)
            found.setdefault((mine.role, (key, cells)), (group, []))[1].extend(phases)
    for (role, _), (group, phases) in found.items():
        one = group[0]
        of_role = {phase for network, _, in_ in pairs if network.role == role for phase in in_}
        only = tuple(dict.fromkeys(phases)) if set(phases) != of_role else ()
        cells = tuple(u.cell for u in group)
        path = (role, "" if one.cell == _ROOT else one.cell, one.attribute)
        name = named(tuple(filter(None, path)))
        what = Difference(CELLS, name, None, None, role, only, one.step, cells, one.kind)
        yield what, one.attribute, one.a, one.b


def _unlike(a: _Network, b: _Network, last: float, notes: Notes, alike: bool) -> Iterator[_Unlike]:
    for cell in dict.fromkeys([*a.cells, *b.cells]):
        kind, mine = a.cells.get(cell, (None, {}))
        other_kind, other = b.cells.get(cell, (None, {}))
        if kind != other_kind:
            yield _Unlike(cell, str(kind or other_kind), "", kind, other_kind)
            continue
        whose, unknown = (CELLS, str(kind)), None if alike else notes
        found = settings_apart(mine, other, last, whose, unknown, most=_MAX_OF_ONE)
        for name, step, left, right in found:
            yield _Unlike(cell, str(kind), name, left, right, step)


def first_step(file: RunFile) -> int:
    """Return the step with which a run began."""
    return file.config.initial_step or 0


def begun_apart(a: RunFile, b: RunFile) -> tuple[int, int] | None:
    """Return the steps with which two runs began; None where it is the same one."""
    steps = first_step(a), first_step(b)
    return None if steps[0] == steps[1] else steps


def _optimizers(
    a: _Networks, b: _Networks, last: float, notes: Notes, alike: bool, apart: bool
) -> Iterator[_Found]:
    """Yield what differs of optimizers.

    Args:
        apart: the runs began with unlike steps, so that what an update changes by itself differs.
    """
    for name in dict.fromkeys([*a.optimizers, *b.optimizers]):
        if name not in a.optimizers or name not in b.optimizers:
            notes.only_in(OPTIMIZERS, name in a.optimizers, name)
            continue
        (kind, mine), (other_kind, other) = a.optimizers[name], b.optimizers[name]
        role = name.partition(".")[0]
        unknown = None if alike else notes
        if kind != other_kind:
            yield Difference(OPTIMIZERS, named((name,)), None, None, role), "", kind, other_kind
            unknown = Notes()  # of nobody: unlike classes have settings of their own
        found = settings_apart(mine, other, last, (OPTIMIZERS, name), unknown)
        for setting, step, left, right in found:
            if apart and setting in CHANGED_BY_UPDATES:
                continue
            whose = named((name, setting))
            yield Difference(OPTIMIZERS, whose, None, None, role, step=step), setting, left, right


def _grouped(items: Iterable[Any], key: Any) -> Iterator[tuple[Any, list[Any]]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.items()


def last_step(file: RunFile) -> float:
    """Return the last step that a run has; infinity where it does not say."""
    steps = [
        step
        for attempt in file.attempts
        for step in (attempt.last_completed_step, attempt.unfinished_step)
        if step is not None
    ]
    return max(steps, default=math.inf)


def first_apart(a: Timeline, b: Timeline, last: float) -> tuple[int | None, Any, Any]:
    """Return the step from which on two timelines differ, None for the first, and both values.

    Both values are `SAME` where they do not differ.
    """
    first = max(a[0][0], b[0][0])
    for step in sorted({first, *(s for s, _ in (*a, *b) if first < s <= last)}):
        # What both were in turn; the last of one that had fewer values stays.
        left, right = _values(a, step), _values(b, step)
        for i in range(max(len(left), len(right))):
            mine, other = left[min(i, len(left) - 1)], right[min(i, len(right) - 1)]
            if not _alike(mine, other):
                return None if step == first else step, mine, other
    return None, SAME, SAME


def _values(timeline: Timeline, step: int) -> list[Any]:
    """Return what a setting was in a step: one value, or several in turn."""
    before = [value for at, value in timeline if at < step][-1:]
    return [value for at, value in timeline if at == step] or before


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):  # a mode
        return bool(a == b)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(_alike(x, y) for x, y in zip(a, b))
    return same(a, b)


def timelines_of(
    settings: Mapping[str, Any], changes: Mapping[str, Timeline]
) -> dict[str, Timeline]:
    """Return what settings were from the beginning on, given what they were changed to."""
    return {name: [(_BEGINNING, v), *changes.get(name, ())] for name, v in settings.items()}


def settings_apart(
    a: Mapping[str, Timeline],
    b: Mapping[str, Timeline],
    last: float,
    whose: tuple[str, ...],
    notes: Notes | None,
    *,
    begin: int = _BEGINNING,
    most: float = math.inf,
) -> Iterator[tuple[str, int | None, Any, Any]]:
    """Yield the settings that differ: the name, from which step on (None: the first), both values.

    Args:
        whose: the section, and what stands before a setting's name in it.
        notes: where a setting that one run alone has is noted, as it is not known. None: it
            differs, and the other value is `ABSENT`.
        begin: the step from which on a run lacks what it does not have.
        most: how many changes are recorded; after so many nothing is known.
    """
    absent = [(begin, ABSENT)]
    for name in dict.fromkeys([*a, *b]):
        if notes is not None and not (name in a and name in b):
            notes.only_in(whose[0], name in a, *whose[1:], name)
            continue
        both = a.get(name, absent), b.get(name, absent)
        known = min([last, *(timeline[-1][0] for timeline in both if len(timeline) > most)])
        step, mine, other = first_apart(*both, known)
        if mine is not SAME:
            yield name, step, mine, other


def role_of(run: Run, rank: int, phase: str) -> str | None:
    """Return whose network runs in a phase; None for a phase that is not known."""
    config = run.config(rank)
    known = (config.phase_table() if config else phase_table({})).get(phase)
    return known.role if known else None


def cells_of(run: Run, role: str | None, phase: str | None = None) -> list[str]:
    """Return the names of all cells of a role's network, as far as they are known.

    Args:
        phase: only of the network that ran in it; None for any.
    """
    groups = _groups(run, role, phase)
    return list(dict.fromkeys(name for names, _ in groups for name in names))


def all_inside_recorded(runs: tuple[Run, Run], rank: int, phase: str, cell: str) -> bool:
    """Return whether both runs were to record all cells inside one; False where it is not known."""
    for run in runs:
        config = run.config(rank)
        cells = cells_of(run, role_of(run, rank, phase), phase)
        if config is None or cell not in cells:
            return False
        inside = [c for c in cells if cell == ROOT or c.startswith(f"{cell}.")]
        if not all(map(config.records_cell, inside)):
            return False
    return True


def attributes_of(run: Run, role: str | None, cell: str) -> list[Mapping[str, Any]]:
    """Return the attributes of a cell and of those around it, the innermost first."""
    around = [cell]
    while "." in around[-1]:
        around.append(around[-1].rpartition(".")[0])
    around += [] if cell == ROOT else [ROOT]
    found: dict[str, Mapping[str, Any]] = {}
    for names, attributes in _groups(run, role):
        for name in {*around} & {*names}:
            found.setdefault(name, attributes)
    return [found[name] for name in around if name in found]


def _groups(
    run: Run, role: str | None, phase: str | None = None
) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """Yield cells that were built alike, with their attributes."""
    for network in (network for file in run.run_files for network in file.networks):
        ran = phase is None or network.phases is None or phase in network.phases
        for group in network.cells if ran and network.role == role else ():
            if group.cells is not None:
                yield group.cells, group.attributes
