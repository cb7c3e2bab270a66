"""The cells of a network, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mindspore import nn

from mindrlhf_msprobe.capture.recompute import is_helper
from mindrlhf_msprobe.errors import UsageError

ROOT_NAME = "root"


@dataclass(frozen=True)
class CellGroup:
    """A network and cells around it, recorded as one network.

    Attributes:
        network: its cells are named from its root, as if it stood alone.
        around: name → a cell whose entries, and those of what it holds, are recorded too; what
            belongs to the network keeps the network's names.
    """

    network: nn.Cell
    around: Mapping[str, nn.Cell]


def check_cell(call: str, cell: object) -> nn.Cell | CellGroup:
    """Return `cell` if it is a network.

    Raises:
        UsageError: it is neither a mindspore.nn.Cell nor a group of them.
    """
    if not isinstance(cell, (nn.Cell, CellGroup)):
        kind = f"class {cell.__name__}" if isinstance(cell, type) else type(cell).__name__
        raise UsageError(
            f"{call} got {kind}, which is not a cell; expected a mindspore.nn.Cell "
            f"(the network itself, not its class, parameters or trainer)."
        )
    return cell


def root_of(network: nn.Cell | CellGroup) -> nn.Cell:
    """Return the cell that is called root."""
    return network.network if isinstance(network, CellGroup) else network


def named_cells(network: nn.Cell | CellGroup) -> dict[str, nn.Cell]:
    """Return every cell of a network by name, each cell once, the network itself as "root".

    The cells by which MindSpore recomputes another one are not among them.
    """
    # The same names in the same order as Cell.cells_and_names, which leaves out cells that are
    # false or equal to another one (a cell may define len or ==).
    cells: dict[str, nn.Cell] = {}
    seen: set[int] = set()
    around = network.around if isinstance(network, CellGroup) else {}
    pending: list[tuple[str, nn.Cell]] = [*reversed([*around.items()]), ("", root_of(network))]
    while pending:
        path, cell = pending.pop()
        if id(cell) in seen or is_helper(cell):
            continue
        seen.add(id(cell))
        name = path or ROOT_NAME
        while name in cells:  # a child that is itself called root
            name += "~"
        cells[name] = cell
        prefix = f"{path}." if path else ""
        children = [(prefix + key, c) for key, c in cell._cells.items() if c is not None]
        pending += reversed(children)
    return cells
