"""What two runs' networks and optimizers were set to: modes, attributes of cells, learning rates.

A setting that changes while the training runs is compared step by step, from the first step that
both runs have to the last; the first step at which it differs is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.preflight.changing import (
    SAME,
    Timeline,
    apart,
    first_apart,
    last_step,
    steps_of,
)
from mindrlhf_msprobe.comparison.preflight.values import (
    ABSENT,
    Notes,
    Ranks,
    named,
    section_of,
    shown,
)
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.storage.manifest.manifest import WITHHELD

MODES, CELLS, OPTIMIZERS = "modes", "cells", "optimizers"
_ROOT = "root"
_MAX_OF_ONE = 8  # changes of one attribute are recorded, and no more


def compare_networks(
    rank: int, a: Mapping[str, Any], b: Mapping[str, Any], merged: Ranks, notes: Notes
) -> None:
    """Add how modes, attributes and optimizers of one rank differ, given both manifests.

    Nothing is said where neither run watched a network.
    """
    pair = _Networks.of(a), _Networks.of(b)
    if not pair[0] or not pair[1]:
        for name, mine, other in zip("AB", pair, reversed(pair)):
            if mine and not other:
                notes.about("only_one_side", "networks", side=name)
        return
    last = min(last_step(a), last_step(b))
    # Another version may have other attributes; of the same one, the trainer set what is there.
    versions = section_of(a, "versions")
    alike = versions is not None and versions == section_of(b, "versions")
    for section, found in (
        (MODES, _modes(*pair, last, notes)),
        (CELLS, _cells(*pair, last, notes, alike)),
        (OPTIMIZERS, _optimizers(*pair, last, notes, alike)),
    ):
        for one in found:
            values = shown(section, (one.setting,), one.a, one.b)
            if one.a == one.b == WITHHELD:
                notes.about("withheld", one.name, section=section)
                continue
            place = {"role": one.role, "phases": one.phases, "step": one.step, "cells": one.cells}
            merged.places[section, one.name] = place
            merged.add(section, rank, [(one.name, *values)])


@dataclass(frozen=True)
class _Found:
    """A setting that differs; `setting` is its own name, without whose it is."""

    name: str
    setting: str
    a: Any
    b: Any
    role: str | None
    phases: tuple[str, ...] = ()
    step: int | None = None
    cells: tuple[str, ...] = ()


@dataclass
class _Network:
    role: str
    phases: list[str]
    kind: str
    training: Any
    cells: dict[str, tuple[str, dict[str, Any]]]
    changes: dict[tuple[str, str], Timeline]


@dataclass
class _Networks:
    """What one manifest says of networks, as far as it can be read."""

    networks: list[_Network] = field(default_factory=list)
    modes: dict[str, Timeline] = field(default_factory=dict)
    optimizers: dict[str, tuple[str, dict[str, Any], dict[str, Timeline]]] = field(
        default_factory=dict
    )

    def __bool__(self) -> bool:
        return bool(self.networks or self.optimizers)

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> _Networks:
        found = cls()
        networks = manifest.get("networks")
        for entry in networks if isinstance(networks, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("role"), str):
                found.networks.append(_network(entry))
        for phase, changes in (section_of(manifest, MODES) or {}).items():
            timeline = [(step, _mode(change)) for step, change in steps_of(changes)]
            if timeline:
                found.modes[phase] = timeline
        for name, entry in (section_of(manifest, OPTIMIZERS) or {}).items():
            if isinstance(entry, dict):
                rates: dict[str, Timeline] = {}
                for step, change in steps_of(entry.get("changes")):
                    rates.setdefault(str(change.get("name")), []).append(
                        (step, change.get("value"))
                    )
                settings = section_of(entry, "settings") or {}
                found.optimizers[name] = str(entry.get("class")), settings, rates
        return found

    def role_of(self, phase: str) -> str | None:
        roles = [network.role for network in self.networks if phase in network.phases]
        table = phase_table({})
        return roles[0] if roles else table[phase].role if phase in table else None


def _network(entry: Mapping[str, Any]) -> _Network:
    cells: dict[str, tuple[str, dict[str, Any]]] = {}
    groups = entry.get("cells")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and isinstance(group.get("cells"), list):
            attributes = section_of(group, "attributes") or {}
            for name in group["cells"]:
                if isinstance(name, str):
                    cells[name] = str(group.get("class")), attributes
    changes: dict[tuple[str, str], Timeline] = {}
    for step, change in steps_of(entry.get("changes")):
        key = str(change.get("cell")), str(change.get("name"))
        changes.setdefault(key, []).append((step, change.get("value")))
    phases = entry.get("phases")
    return _Network(
        entry["role"],
        [p for p in phases if isinstance(p, str)] if isinstance(phases, list) else [],
        str(entry.get("class")),
        entry.get("training"),
        cells,
        changes,
    )


def _mode(change: Mapping[str, Any]) -> tuple[bool, dict[str, bool]]:
    others = section_of(change, "others") or {}
    return bool(change.get("training")), {name: bool(value) for name, value in others.items()}


def _modes(a: _Networks, b: _Networks, last: float, notes: Notes) -> Iterator[_Found]:
    for phase in dict.fromkeys([*a.modes, *b.modes]):
        if phase not in a.modes or phase not in b.modes:
            side = "A" if phase in a.modes else "B"
            notes.about("only_in", named((phase,)), section=MODES, side=side)
            continue
        role = a.role_of(phase)
        step, left, right = first_apart(a.modes[phase], b.modes[phase], last)
        if left is SAME:
            continue
        suffix = "" if step is None else f" from step {step} on"
        if left[0] != right[0]:
            yield _Found(phase + suffix, "", _word(left[0]), _word(right[0]), role, (phase,), step)
            continue
        unlike = [
            (cell, mine, other)
            for cell in dict.fromkeys([*left[1], *right[1]])
            if (mine := _mode_of(cell, left)) != (other := _mode_of(cell, right))
        ]
        for (mine, other), group in _grouped(unlike, lambda one: one[1:]):
            cells = tuple(cell for cell, *_ in group)
            name = named((f"{phase}: {_some(cells, 'cell')}{suffix}",))
            yield _Found(name, "", _word(mine), _word(other), role, (phase,), step, cells)
    phased = {n.role for side in (a, b) for n in side.networks if n.phases}
    for role, of_a, of_b in _by_role(a, b):
        trains = of_a.training, of_b.training
        known = all(isinstance(training, bool) for training in trains)
        if role not in phased and known and trains[0] is not trains[1]:
            yield _Found(role, "", _word(trains[0]), _word(trains[1]), role)


def _word(training: bool) -> str:
    return "training" if training else "evaluation"


def _mode_of(cell: str, mode: tuple[bool, dict[str, bool]]) -> bool:
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
        name = _some([_path(role, u.cell, u.attribute) for u in group], f"{one.kind} cell")
        name += f" in {', '.join(only)}" if only else ""
        name += "" if one.step is None else f" from step {one.step} on"
        cells = tuple(u.cell for u in group)
        yield _Found(named((name,)), one.attribute, one.a, one.b, role, only, one.step, cells)


def _path(role: str, cell: str, attribute: str) -> str:
    return ".".join(filter(None, [role, "" if cell == _ROOT else cell, attribute]))


def _unlike(a: _Network, b: _Network, last: float, notes: Notes, alike: bool) -> Iterator[_Unlike]:
    for cell in dict.fromkeys([*a.cells, *b.cells]):
        kind, mine = a.cells.get(cell, (None, {}))
        other_kind, other = b.cells.get(cell, (None, {}))
        if kind != other_kind:
            yield _Unlike(cell, str(kind or other_kind), "", kind, other_kind)
            continue
        for name in dict.fromkeys([*mine, *other]):
            if name not in mine or name not in other:
                if alike:
                    left, right = mine.get(name, ABSENT), other.get(name, ABSENT)
                    yield _Unlike(cell, str(kind), name, left, right)
                    continue
                side = "A" if name in mine else "B"
                notes.about("only_in", f"{kind}.{named((name,))}", section=CELLS, side=side)
                continue
            changes = [n.changes.get((cell, name), []) for n in (a, b)]
            step, left, right = apart(mine[name], other[name], changes, last, _MAX_OF_ONE)
            if left is not SAME:
                yield _Unlike(cell, str(kind), name, left, right, step)


def _optimizers(
    a: _Networks, b: _Networks, last: float, notes: Notes, alike: bool
) -> Iterator[_Found]:
    for name in dict.fromkeys([*a.optimizers, *b.optimizers]):
        role = name.partition(".")[0]
        if name not in a.optimizers or name not in b.optimizers:
            side = "A" if name in a.optimizers else "B"
            notes.about("only_in", named((name,)), section=OPTIMIZERS, side=side)
            continue
        (kind, mine, changes), (other_kind, other, other_changes) = (
            side.optimizers[name] for side in (a, b)
        )
        if kind != other_kind:
            yield _Found(named((name,)), "", kind, other_kind, role)
        for setting in dict.fromkeys([*mine, *other]):
            if setting not in mine or setting not in other:
                side = "A" if setting in mine else "B"
                if kind == other_kind and alike:
                    left, right = mine.get(setting, ABSENT), other.get(setting, ABSENT)
                    yield _Found(named((name, setting)), setting, left, right, role)
                elif kind == other_kind:
                    whose = named((name, setting))
                    notes.about("only_in", whose, section=OPTIMIZERS, side=side)
                continue
            both = changes.get(setting, []), other_changes.get(setting, [])
            step, left, right = apart(mine[setting], other[setting], both, last)
            if left is not SAME:
                suffix = "" if step is None else f" from step {step} on"
                whose = named((name, setting)) + suffix
                yield _Found(whose, setting, left, right, role, step=step)


def _grouped(items: Iterable[Any], key: Any) -> Iterator[tuple[Any, list[Any]]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.items()


def _some(names: Sequence[str], what: str) -> str:
    """Return the first name, and how many more there are."""
    if len(names) == 1:
        return names[0]
    return f"{names[0]} and {len(names) - 1} more {what}{'s' * (len(names) > 2)}"
