"""What networks and optimizers of runs were set to: modes, attributes of cells, learning rates.

And what they generated with, and how random generators went on. A setting that changes while the
training runs is compared step by step, from the first step that both runs have to the last; the
first step at which it differs is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.preflight.values import ABSENT, Notes, RankPair, named, same, shown
from mindrlhf_msprobe.findings import Difference
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.random_states import UNKNOWN
from mindrlhf_msprobe.storage.manifest.run_file import (
    CHANGED_BY_UPDATES,
    MOST_OF_ONE,
    Network,
    RunFile,
    Timeline,
    timelines,
)
from mindrlhf_msprobe.storage.reading.reader import Run

MODES, CELLS, OPTIMIZERS = "modes", "cells", "optimizers"
GENERATION, SEEDS = "generation", "seeds"
_ROOT = "root"
#: Stands for both values where two settings do not differ.
SAME: Any = object()
_BEGINNING = -1  # before the first step

#: What settings were from which step on, by their names.
Timelines = dict[str, Timeline]


def compare_networks(pair: RankPair) -> None:
    """Add how modes, attributes, optimizers, generation and random generators of one rank differ.

    Nothing is said where neither run watched a network.
    """
    optimizers = _optimizers(pair.a), _optimizers(pair.b)
    watched = [_networks(pair.a) or optimizers[0], _networks(pair.b) or optimizers[1]]
    if pair.notes.both_know("networks", watched[0] or None, watched[1] or None, neither=False):
        _compare_modes(pair)
        _compare_cells(pair)
        _compare_groups(pair, OPTIMIZERS, *optimizers)
    if pair.both_know("generation_settings", lambda of: of.generation or None, neither=False):
        _compare_groups(pair, GENERATION, _generation(pair.a), _generation(pair.b))
    _compare_random_states(pair)


def _networks(file: RunFile) -> list[Network]:
    return [network for network in file.networks if network.role is not None]


def _compare_modes(pair: RankPair) -> None:
    networks = _networks(pair.a), _networks(pair.b)
    sides = _modes(pair.a), _modes(pair.b)
    for phase, step, a, b in settings_apart(*sides, pair.last_step, (MODES,), pair.notes):
        ran = [n.role for n in networks[0] if phase in (n.phases or ())]
        table = phase_table({})
        role = ran[0] if ran else table[phase].role if phase in table else None
        if a[0] != b[0]:
            what = Difference(MODES, "", role=role, phases=(phase,), step=step)
            pair.add(what, _word(a[0]), _word(b[0]))
            continue
        unlike: dict[tuple[bool, bool], list[str]] = {}
        for cell in dict.fromkeys([*a[1], *b[1]]):
            modes = mode_of(cell, a), mode_of(cell, b)
            if modes[0] != modes[1]:
                unlike.setdefault(modes, []).append(cell)
        for (mine, other), cells in unlike.items():
            name = named((cells[0],))
            what = Difference(
                MODES, name, role=role, phases=(phase,), step=step, cells=tuple(cells)
            )
            pair.add(what, _word(mine), _word(other))
    phased = {network.role for side in networks for network in side if network.phases}
    for role, a, b in _by_role(*networks):
        trains = a.training, b.training
        if role not in phased and None not in trains and trains[0] is not trains[1]:
            what = Difference(MODES, role, role=role)
            pair.add(what, _word(trains[0]), _word(trains[1]))


def _modes(file: RunFile) -> Timelines:
    """Return in which mode each phase ran, and which of its cells in another one."""
    found = {
        phase: [
            (mode.step, (bool(mode.training), {n: bool(v) for n, v in mode.others.items()}))
            for mode in modes
            if mode.step is not None
        ]
        for phase, modes in file.modes.items()
    }
    return {phase: timeline for phase, timeline in found.items() if timeline}


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


_Pair = tuple[Network, Network, list[str]]


def _pairs(a: list[Network], b: list[Network]) -> list[_Pair]:
    """Return the networks that ran in the same phases of both runs, with those phases."""
    found: dict[tuple[int, int], _Pair] = {}
    of_b = {phase: network for network in b for phase in network.phases or ()}
    for network in a:
        for phase in network.phases or ():
            if phase in of_b:
                key = id(network), id(of_b[phase])
                found.setdefault(key, (network, of_b[phase], []))[2].append(phase)
    paired = {network.role for network, _, _ in found.values()}
    alone: list[_Pair] = [(a, b, []) for role, a, b in _by_role(a, b) if role not in paired]
    return [*found.values(), *alone]


def _by_role(a: list[Network], b: list[Network]) -> Iterator[tuple[str, Network, Network]]:
    """Yield the networks of roles that both runs have one network of."""
    for role in dict.fromkeys(str(network.role) for network in a):
        mine, others = ([n for n in side if n.role == role] for side in (a, b))
        if len(mine) == len(others) == 1:
            yield role, mine[0], others[0]


#: An attribute that differs: the cell's class, the attribute, "" for the class itself, from which
#: step on, and both values.
_Unlike = tuple[str, str, int | None, Any, Any]


def _compare_cells(pair: RankPair) -> None:
    """Add the attributes that differ; cells that differ in the same way stand in one line."""
    pairs = _pairs(_networks(pair.a), _networks(pair.b))
    found: dict[tuple[Any, ...], tuple[_Unlike, list[str]]] = {}
    for mine, other, phases in pairs:
        groups: dict[tuple[Any, ...], tuple[_Unlike, list[str]]] = {}
        for cell, one in _unlike(mine, other, pair):
            kind, attribute, step, a, b = one
            how = kind if attribute else "", attribute, repr(a), repr(b), step
            groups.setdefault(how, (one, []))[1].append(cell)
        for how, (one, of_group) in groups.items():
            found.setdefault((mine.role, how, tuple(of_group)), (one, []))[1].extend(phases)
    for (role, _, cells), ((kind, attribute, step, a, b), phases) in found.items():
        of_role = {phase for network, _, ran in pairs if network.role == role for phase in ran}
        only = tuple(dict.fromkeys(phases)) if {*phases} != of_role else ()
        path = (role, "" if cells[0] == _ROOT else cells[0], attribute)
        name = named(tuple(filter(None, path)))
        what = Difference(CELLS, name, role=role, phases=only, step=step, cells=cells, kind=kind)
        pair.add(what, *shown(CELLS, (attribute,), a, b))


def _unlike(a: Network, b: Network, pair: RankPair) -> Iterator[tuple[str, _Unlike]]:
    """Yield the attributes that differ, each with its cell."""
    sides = _cells(a), _cells(b)
    last, unknown = pair.last_step, None if pair.same_versions else pair.notes
    for cell in dict.fromkeys([*sides[0], *sides[1]]):
        (kind, mine), (other_kind, other) = (side.get(cell, (ABSENT, {})) for side in sides)
        if kind != other_kind:
            yield cell, (str(other_kind if kind is ABSENT else kind), "", None, kind, other_kind)
            continue
        whose = (CELLS, str(kind))
        for name, *how in settings_apart(mine, other, last, whose, unknown, most=MOST_OF_ONE):
            yield cell, (str(kind), name, *how)


def _cells(network: Network) -> dict[str, tuple[str, Timelines]]:
    """Return the class and the attributes of each cell."""
    cells: dict[str, tuple[str, Timelines]] = {}
    for group in network.cells:
        own = str(group.kind), timelines_of(group.attributes, {})
        cells |= dict.fromkeys(group.cells or (), own)
    changes = timelines(network.changes, lambda change: (str(change.cell), str(change.name)))
    for (cell, name), timeline in changes.items():
        kind, settings = cells.get(cell, ("", {}))
        if name in settings:
            cells[cell] = kind, {**settings, name: [*settings[name], *timeline]}
    return cells


#: Settings of optimizers, or of what phases generate with: name → class, settings.
_Groups = dict[str, tuple[str, Timelines]]


def _optimizers(file: RunFile) -> _Groups:
    """Return the class and the settings of each optimizer."""
    found: _Groups = {}
    for name, optimizer in file.optimizers.items():
        if optimizer.json:
            rates = timelines(optimizer.changes, lambda change: str(change.name))
            found[name] = str(optimizer.kind), timelines_of(optimizer.settings, rates)
    return found


def _generation(file: RunFile) -> _Groups:
    """Return what each phase generated with."""
    found: _Groups = {}
    for phase, content in file.generation.items():
        if content.step is not None:
            settings: Timelines = {n: [(content.step, v)] for n, v in content.settings.items()}
            later = timelines(content.changes, lambda change: str(change.name))
            for name, changes in later.items():
                settings.setdefault(name, [(content.step, ABSENT)]).extend(changes)
            found |= {phase: ("", settings)} if settings else {}
    return found


def _compare_groups(pair: RankPair, section: str, a: _Groups, b: _Groups) -> None:
    """Add what differs of optimizers, or of what phases generate with.

    Of runs that began with unlike steps, what an update changes by itself differs.
    """
    table = phase_table({})
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            pair.notes.only_in(section, name in a, name)
            continue
        (kind, mine), (other_kind, other) = a[name], b[name]
        whose = Difference(section, named((name,)), role=name.partition(".")[0])
        if section == GENERATION:
            role = table[name].role if name in table else None
            whose = replace(whose, role=role, phases=(name,))
        unknown = None if pair.same_versions else pair.notes
        if kind != other_kind:
            pair.add(whose, *shown(section, ("",), kind, other_kind))
            unknown = Notes()  # not kept: each class has settings of its own
        counters = CHANGED_BY_UPDATES if section == OPTIMIZERS and pair.begun_apart else ()
        firsts = (min((t[0][0] for t in of.values()), default=_BEGINNING) for of in (mine, other))
        for setting, step, *values in settings_apart(
            mine, other, pair.last_step, (section, name), unknown, begin=max(firsts)
        ):
            if setting not in counters:
                what = replace(whose, setting=named((name, setting)), step=step)
                pair.add(what, *shown(section, (setting,), *values))


def _compare_random_states(pair: RankPair) -> None:
    """Add the generators whose states are equal at first, and differ from a later step on.

    Those that differ in the first step stand among the seeds already. A step counts in which both
    states are known, and in which neither is that of a generator which nobody seeded or used.
    """
    sides = [random_states.by_step(file.random_states) for file in (pair.a, pair.b)]
    for name, of_a in sides[0].items():
        of_b = sides[1].get(name, {})
        both = [(step, state, of_b.get(step, UNKNOWN)) for step, state in sorted(of_a.items())]
        known = [states for states in both if UNKNOWN not in states]
        apart = [states for states in known if states[1] != states[2]]
        if apart and apart[0] != known[0]:
            step, *states = apart[0]
            pair.add(Difference(SEEDS, name, step=step), *states)


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
            if not _same_values(mine, other):
                return None if step == first else step, mine, other
    return None, SAME, SAME


def _values(timeline: Timeline, step: int) -> list[Any]:
    """Return what a setting was in a step: one value, or several in turn."""
    before = [value for at, value in timeline if at < step][-1:]
    return [value for at, value in timeline if at == step] or before


def _same_values(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):  # a mode
        return bool(a == b)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(_same_values(x, y) for x, y in zip(a, b))
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
    """Yield cells of one class with the same attributes."""
    for network in (network for file in run.run_files for network in file.networks):
        ran = phase is None or network.phases is None or phase in network.phases
        for group in network.cells if ran and network.role == role else ():
            if group.cells is not None:
                yield group.cells, group.attributes
