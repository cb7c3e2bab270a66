"""The cells of a network, and what they are called in records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.framework.private import (
    children_of,
    is_recompute_helper,
    parameters_of,
    put_parameter,
)
from mindrlhf_msprobe.common.message import message

ROOT_NAME = "root"
OUTER_NAME = "outer"
_INNER = "msprobe_inner"


def name_as_seen_from(inner: nn.Cell, network: nn.Cell) -> None:
    """Let the cells of `network` be called what they are called in `inner`, a cell inside it.

    So that a policy has the same names wherever it runs, by itself or inside the cells that train
    it. `inner` is the "root" then; `network` is "outer", and the cells around `inner` are called
    after it, e.g. "outer.loss_fn".

    Raises:
        ValueError: `inner` is no cell of `network`.
    """
    vars(network).pop(_INNER, None)
    if not any(cell is inner for cell in named_cells(network).values()):
        known = {"inner": type(inner).__name__, "network": type(network).__name__}
        raise ValueError(message("trainer.no_cell_of", **known))
    if inner is not network:
        vars(network)[_INNER] = inner


def named_cells(root: nn.Cell) -> dict[str, nn.Cell]:
    """Return every cell below `root` by name, each cell once, `root` itself as "root".

    The cells by which MindSpore recomputes another one are not among them.
    """
    # The same names in the same order as Cell.cells_and_names, which leaves out cells that are
    # false or equal to another one (a cell may define len or ==).
    cells: dict[str, nn.Cell] = {}
    seen: set[int] = set()
    inner = vars(root).get(_INNER)
    pending = [(ROOT_NAME, "", root)]
    if inner is not None:  # its names come first, wherever else its cells are held
        pending = [(OUTER_NAME, f"{OUTER_NAME}.", root), (ROOT_NAME, "", inner)]
    while pending:
        name, prefix, cell = pending.pop()
        if id(cell) in seen or is_recompute_helper(cell):
            continue
        seen.add(id(cell))
        while name in cells:  # a child that is itself called root
            name += "~"
        cells[name] = cell
        children = [
            (prefix + key, f"{prefix}{key}.", c)
            for key, c in children_of(cell).items()
            if c is not None
        ]
        pending += reversed(children)
    return cells


class Children:
    """The children of a cell, and those of the lists and dicts of cells among them, at one moment.

    Such lists never run themselves, so that whoever runs their cells stands for them.
    """

    def __init__(self, cell: nn.Cell) -> None:
        # The cells are kept, so that no other one gets the id of one that was removed.
        self._known: list[tuple[Mapping[str, Any], list[nn.Cell], list[int]]] = []
        pending = [cell]
        while pending:
            holder = pending.pop()
            cells = list(children_of(holder).values())
            self._known.append((children_of(holder), cells, [id(child) for child in cells]))
            pending += [c for c in cells if isinstance(c, (nn.CellList, nn.CellDict))]

    def changed(self) -> bool:
        """Return whether a child has come, gone or been replaced since."""
        return any([*map(id, now.values())] != then for now, _, then in self._known)


def in_a_tuple(cell: nn.Cell) -> set[str]:
    """Return the names of the parameters that a cell holds in a ParameterTuple."""
    return {name for name in parameters_of(cell) if not name.isidentifier()}


class Parameters(nn.Cell):
    """Holds parameters by their own names, where their network is not known; it never runs."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__(auto_prefix=False)
        for parameter in parameters:
            put_parameter(self, parameter)


def parameter_owners(network: nn.Cell) -> dict[int, tuple[str, nn.Cell, str]]:
    """Return id of a parameter → the first cell that holds it, by name, and its name there."""
    owners: dict[int, tuple[str, nn.Cell, str]] = {}
    for cell_name, cell in named_cells(network).items():
        for name, parameter in cell.parameters_and_names(expand=False):
            owners.setdefault(id(parameter), (cell_name, cell, name))
    return owners


def parameters_held_twice(cells: Iterable[nn.Cell]) -> dict[int, set[str]]:
    """Return id of a cell → the names under which it holds parameters that other cells own.

    Those of a ParameterTuple, as cells that train and optimizers hold the network's.

    Args:
        cells: of a network, every cell before those inside it.
    """
    cells = list(cells)
    tuples = {id(cell): names for cell in cells if (names := in_a_tuple(cell))}
    if not tuples:
        return {}
    # Who holds it by a name of its own; else the innermost cell, which comes last.
    owners: dict[int, int] = {}
    by_rank = sorted(cells, key=lambda cell: not isinstance(cell, nn.Optimizer))
    for by_name in (False, True):
        for cell in by_rank:
            for name, parameter in parameters_of(cell).items():
                if name.isidentifier() is by_name:
                    owners[id(parameter)] = id(cell)
    return {
        id(cell): {n for n in tuples[id(cell)] if owners[id(parameters_of(cell)[n])] != id(cell)}
        for cell in cells
        if id(cell) in tuples
    }
