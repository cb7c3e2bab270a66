"""What two networks do not have in common: cells that ran in one alone, parameters, modes,
and lines of a mapping that fit nothing in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.judging.moves import moved, said_of_change, swapped
from mindrlhf_msprobe.comparison.mismatch.growth import kind_of
from mindrlhf_msprobe.comparison.mismatch.sides import Side, read_parameters
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.mismatch.weights import WeightPair, compare_weights
from mindrlhf_msprobe.comparison.pairing.fused import by_rule
from mindrlhf_msprobe.comparison.pairing.mapping import CellMapping, FusedRule, FusedRules
from mindrlhf_msprobe.comparison.pairing.names import NUMBER, Name, NameRule, with_numbers
from mindrlhf_msprobe.comparison.preflight.networks import mode_of
from mindrlhf_msprobe.errors import nearest_of
from mindrlhf_msprobe.findings.mismatch import InFlight, Weight
from mindrlhf_msprobe.storage.manifest.run_file import Mode
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter, is_around


def ran_alone(walk: Walk, name: Name, around: str) -> Message | None:
    """Say which cells ran before a value in one network, and not in the other; None if none did.

    Where both have cells of their own there, these may be the same under two names.

    Args:
        around: the cell whose code or inner cells made the value.
    """
    alone = [_before(walk, side, name, around) for side in (0, 1)]
    if bool(alone[0]) == bool(alone[1]):
        return None
    side = 0 if alone[0] else 1
    cells = [cell for cell in alone[side] if not _is_usual(walk, name, cell)]
    if not cells:
        return None
    own = walk.sides[side].cells
    return message(
        "mismatch.ran_alone",
        **{"cell": name.cell, "io": name.io, "side": ("rollout", "training")[side]},
        **{"cells": [f"{cell} ({own[cell]})" for cell in cells], "first": cells[0]},
        skipped=walk.is_given_to(name, 1 - side, cells[0]),
    )


def _before(walk: Walk, side: int, name: Name, around: str) -> list[str]:
    """Return the outermost cells of one network alone that ran inside a cell before a value.

    Those behind the last value before it that was compared, if any is: nothing else lies between.
    Cells that return what they are given, such as dropout in evaluation, do nothing.
    """
    own = walk.sides[side]
    order = [*walk.stages]
    compared = [v.time for n in order[: order.index(name)] for v in walk.sources[n][side].values]
    until = walk.sources[name][side].values[0].time
    since = max((time for time in compared if time < until), default=-1)
    times: dict[str, int] = {}
    for of, value in own.values.items():
        is_inside = is_around(around, walk.names_of[side](of.cell) or of.cell)
        if of.io != "output" or not is_inside or of.cell not in walk.cells_alone[side]:
            continue
        given = own.values.get(of._replace(io="input"))
        does_nothing = given is not None and given.prints_in_order == value.prints_in_order
        if value.time < until and not (does_nothing and value.prints_in_order):
            times[of.cell] = max(times.get(of.cell, -1), value.time)
    nearest = [cell for cell, time in times.items() if time > since] or [*times]
    return [cell for cell in nearest if not any(is_around(outer, cell) for outer in nearest)]


def _is_usual(walk: Walk, name: Name, cell: str) -> bool:
    """Return whether its like stands in an earlier layer, behind which nothing parts."""
    order = [*walk.stages]
    for other in order[: order.index(name)]:
        if kind_of(other) == kind_of(name) and not walk.stages[other].arising:
            numbers = NUMBER.findall(other.cell)
            like = with_numbers(cell, [*numbers, *NUMBER.findall(cell)[len(numbers) :]])
            if any(like in cells for cells in walk.cells_alone):
                return True
    return False


def unlike_weights(walk: Walk) -> list[Weight]:
    """Return the parameters that differ: since when, and whose they still are."""
    unlike, in_flight = _in_flight(walk)
    unlike += [p for p in walk.weights.unequal if p.rollout not in walk.merged]
    since = {pair.rollout: walk.rollout.step for pair in unlike}
    stale: dict[str, int] = {}
    differing = {*since}
    both, rank = [(side.run, side.phase) for side in walk.sides], walk.rollout.rank
    before = {step for run, _ in both for step in run.steps if step < walk.rollout.step}
    for step in sorted(before, reverse=True) if unlike else ():
        if not all(phase in run.phases_at(StepPlace(step, rank)) for run, phase in both):
            break
        rollout, training = (read_parameters(run, phase, step, rank) for run, phase in both)
        for pair in _pairs(walk, walk.rollout.parameters, training):
            if pair.is_brought_over and pair.rollout in since:
                stale.setdefault(pair.rollout, step)
        differing &= {p.rollout for p in _pairs(walk, rollout, training) if p.equal is False}
        since |= dict.fromkeys(differing, step)
        if not differing and len(stale) == len(unlike):
            break
    return [
        Weight(
            *(p.rollout, p.training, p.relative, p.dtypes),
            *(since[p.rollout], stale.get(p.rollout), p.rounded, in_flight.get(p.rollout)),
            *(p.lacks, _in_other_places(p, walk.weights.pairs)),
        )
        for p in unlike
    ]


def _in_other_places(pair: WeightPair, pairs: Sequence[WeightPair]) -> Message | None:
    """Say where the elements of a parameter that differs stand, as a comparison of runs does.

    The training is A, the rollout B. None where they stand in no other places, or were not stored.
    """
    if len(pair.theirs) != 1 or pair.rounded is not None or pair.lacks:
        return None
    others = (
        (p.theirs[0], p.mine, p.training[0], p.rollout)
        for p in pairs
        if len(p.theirs) == 1 and p.rollout != pair.rollout
    )
    change = swapped(pair.theirs[0], pair.mine, others)
    if change is not None:
        return said_of_change(change)
    said = moved(pair.theirs[0], pair.mine)
    return next((one for one in said if one.code != "note.unreadable"), None)


def _in_flight(walk: Walk) -> tuple[list[WeightPair], dict[str, InFlight]]:
    """Return what updates changed while the rollout generated.

    Returns:
        The parameters that agree at first and differ later; and when each parameter, by name,
        began to agree, or to differ.
    """
    held = dict(walk.rollout.parameters)
    before = {pair.rollout: pair for pair in walk.weights.pairs}
    changes: dict[str, tuple[int, WeightPair]] = {}  # the call of the last change, and since then
    for call, update in sorted(walk.rollout.updates.items()):
        held |= update
        for pair in _pairs(walk, held, walk.training.parameters):
            known = changes.get(pair.rollout, (0, before.get(pair.rollout, pair)))[1]
            if known.is_brought_over != pair.is_brought_over:
                changes[pair.rollout] = call, pair
    unlike = []
    found = {}
    places = {call: walk.last_place(call) for call in {call for call, _ in changes.values()}}
    for name, (call, pair) in changes.items():
        was, brought = before[name], pair.is_brought_over
        if was.is_brought_over == brought:
            continue  # changed twice: it ends as it began
        found[name] = InFlight(call, places[call], brought)
        if not brought:
            unlike.append(pair)
    return unlike, found


def _pairs(
    walk: Walk, rollout: Mapping[str, Record], training: Mapping[str, Record]
) -> tuple[WeightPair, ...]:
    return compare_weights(rollout, training, walk.names, walk.mapping.fused).pairs


_DROPS = "dropout"  # part of the class of what leaves values out at random in training


def said_of_modes(walk: Walk) -> Message | None:
    """Say in which modes both networks ran, where these differ or random values are left out.

    None where that is not known: another framework, or a mode that changed within the phase.
    """
    sides = walk.sides
    mine, theirs = (side.run.mode(side.phase, side.step, side.rank) for side in sides)
    if mine is None or theirs is None:
        return None
    unlike = ["root"]  # alone, if the network itself ran in another mode
    if bool(mine.training) == bool(theirs.training):
        own = {walk.names.common_a(cell): cell for cell in walk.rollout.cells}
        unlike = [
            cell
            for cell in walk.training.cells
            if (common := walk.names.common_b(cell)) in own
            and mode_of(own[common], _of(mine)) != mode_of(cell, _of(theirs))
        ]
    dropping = [*_dropping(sides[0], mine), *_dropping(sides[1], theirs)]
    if not unlike and not dropping:
        return None
    words = ["training" if mode.training else "evaluation" for mode in (mine, theirs)]
    values = {"rollout": words[0], "training": words[1], "cells": unlike}
    return message("mismatch.modes", **values, dropping=[*dict.fromkeys(dropping)])


def _dropping(side: Side, mode: Mode) -> list[str]:
    """Return the cells of a side that leave out values, by their class, mode, and what they did."""
    found = []
    for cell, kind in side.cells.items():
        if _DROPS in kind.lower() and mode_of(cell, _of(mode)):
            values = (v for n, v in side.values.items() if n.cell == cell and n.path == "0")
            prints = [value.prints_in_order for value in values]
            if None in prints or len({*prints}) != 1:  # else it returned what it was given
                found.append(cell)
    return found


def _of(mode: Mode) -> tuple[bool, dict[str, bool]]:
    return bool(mode.training), {cell: bool(on) for cell, on in mode.others.items()}


def unused_rules(mapping: CellMapping, rollout: Side, training: Side) -> Messages:
    """Say of each line of a mapping that fits nothing why it does not."""
    names = (_unused_name(rule, rollout, training) for rule in mapping.names)
    fused = (_unused_fused(rule, rollout, training) for rule in mapping.fused)
    return tuple(why for why in (*names, *fused) if why is not None)


def _unused_name(rule: NameRule, rollout: Side, training: Side) -> Message | None:
    targets = [name for cell in rollout.cells if (name := rule.rename(cell)) is not None]
    if not targets:
        return _no_cell(rule.source, rollout)
    if any(name in training.cells for name in targets):
        return None
    return _no_part(rule.source, "cell", targets[0], training)


def _unused_fused(rule: FusedRule, rollout: Side, training: Side) -> Message | None:
    source = rule.parts[0].source
    meant = {cell: parts for cell in rollout.cells if (parts := rule.parts_of(cell)) is not None}
    if not meant:
        return _no_cell(source, rollout)
    own, theirs = _matrices(rollout), _matrices(training)
    if any(
        cell in own and by_rule(cell, own[cell], FusedRules((rule,)), theirs) is not None
        for cell in meant
    ):
        return None
    cell, parts = next(iter(meant.items()))
    for part in parts:
        if part not in training.cells:
            return _no_part(source, "cell", part, training)
    if cell not in own:
        return None  # it has no weight: its values are what the mapping is about
    for part in parts:
        if part not in theirs:
            return _no_part(source, "weight of", part, training)
    shapes = [f"{part} {[*theirs[part]]}" for part in parts]
    said = {"source": source, "cell": cell, "shape": [*own[cell]], "parts": shapes}
    return message("mismatch.mapping_shapes", **said)


def _no_cell(source: str, rollout: Side) -> Message:
    inside = [cell for cell in rollout.cells if cell != "root"]
    example = next((cell for cell in inside if "." in cell), inside[0] if inside else "root")
    hint = nearest_of(source, inside)
    return message("mismatch.mapping_no_cell", source=source, example=example, hint=hint)


def _no_part(source: str, what: str, part: str, training: Side) -> Message:
    hint = nearest_of(part, training.cells)
    return message("mismatch.mapping_no_part", source=source, what=what, part=part, hint=hint)


def _matrices(side: Side) -> dict[str, tuple[int, int]]:
    """Return the shape of the first matrix of weights of each cell that has one."""
    found: dict[str, tuple[int, int]] = {}
    for name, record in side.parameters.items():
        shape = record.leaf.shape or ()
        if len(shape) == 2:
            found.setdefault(cell_of_parameter(name), (shape[0], shape[1]))
    return found
