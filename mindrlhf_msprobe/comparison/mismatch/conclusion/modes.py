"""In which mode, training or evaluation, both networks ran, and which dropout was active in it."""

from __future__ import annotations

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.mismatch.sides import Side
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.preflight.networks import mode_of
from mindrlhf_msprobe.storage.manifest.run_file import Mode

_DROPS = "dropout"  # part of the class of what leaves values out at random in training


def said_of_modes(walk: Walk) -> Message | None:
    """Say in which modes both networks ran, where these differ or random values are left out.

    None where that is not known: another framework, or a mode that changed within the phase.
    """
    sides = walk.rollout, walk.training
    mine, theirs = (side.run.mode(side.phase, side.step, side.rank) for side in sides)
    if mine is None or theirs is None:
        return None
    unlike = _unlike(walk, mine, theirs)
    dropping = [*_dropping(sides[0], mine), *_dropping(sides[1], theirs)]
    if not unlike and not dropping:
        return None
    words = ["training" if mode.training else "evaluation" for mode in (mine, theirs)]
    values = {"rollout": words[0], "training": words[1], "cells": unlike}
    return message("mismatch.modes", **values, dropping=[*dict.fromkeys(dropping)])


def _unlike(walk: Walk, rollout: Mode, training: Mode) -> list[str]:
    """Return the cells that ran in another mode in the training; root alone if the network did."""
    if bool(rollout.training) != bool(training.training):
        return ["root"]
    own = {walk.names.common_a(cell): cell for cell in walk.rollout.cells}
    return [
        cell
        for cell in walk.training.cells
        if (common := walk.names.common_b(cell)) in own
        and mode_of(own[common], _of(rollout)) != mode_of(cell, _of(training))
    ]


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
