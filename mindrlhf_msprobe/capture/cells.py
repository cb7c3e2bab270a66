"""The cells of a network: what they are called in records, and their constructs."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.framework.generated_modules import GENERATED
from mindrlhf_msprobe.capture.framework.private import (
    JITTED,
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
    inner = inside_wrappers(inner)
    if not any(cell is inner for cell in named_cells(network).values()):
        known = {"inner": type(inner).__name__, "network": type(network).__name__}
        raise ValueError(message("trainer.no_cell_of", **known))
    if inner is not inside_wrappers(network):
        vars(network)[_INNER] = inner


def inside_wrappers(cell: nn.Cell) -> nn.Cell:
    """Return the cell that wrappers around it stand for; the cell itself if it is none.

    A wrapper holds one cell and leaves its own part out of that cell's names in cells_and_names(),
    as the CheckpointWrapper of hyper-parallel, which recomputes what it holds.
    """
    while type(cell).cells_and_names is not nn.Cell.cells_and_names:
        held = [(key, child) for key, child in children_of(cell).items() if child is not None]
        if len(held) != 1:
            break
        key, child = held[0]
        named = [name for name, _ in cell.cells_and_names()]
        named += [name for name, _ in cell.parameters_and_names()]
        below = {name for name in named if name not in ("", key)}
        leaves_out = not any(name.startswith(f"{key}.") for name in below)
        if not below:  # what it holds has no names that could tell
            leaves_out = key not in named or key.startswith("_")
        if not leaves_out:
            break
        cell = child
    return cell


def named_cells(root: nn.Cell) -> dict[str, nn.Cell]:
    """Return every cell below `root` by name, each cell once, `root` itself as "root".

    The cells by which MindSpore recomputes another one are not among them, and what a wrapper holds
    has the wrapper's name.
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
        cell = inside_wrappers(cell)
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


#: The cell's attributes that hold its own construct while a wrapper stands in its place, and the
#: wrapper.
CONSTRUCT = "msprobe_construct"
WRAPPER = "msprobe_wrapper"
#: The attribute that holds the number by which the probes of a cell know it.
NUMBER = "msprobe_cell"
#: The attribute of a copy of a function that holds the function.
COPY_OF = "msprobe_copy_of"
#: The network's attribute that holds the names of arguments that are left out.
_LEFT_OUT = "msprobe_left_out_arguments"


def is_wrapped(cell: nn.Cell) -> bool:
    """Return whether a wrapper stands in the place of a cell's construct at this moment."""
    attributes = vars(cell)
    return WRAPPER in attributes and attributes.get("construct") is attributes[WRAPPER]


def number_of(cell: nn.Cell) -> int:
    """Return the number by which the probes of a cell know it; 0 where it has never had any."""
    return int(vars(cell).get(NUMBER, 0))


def own_construct(cell: nn.Cell) -> Callable[..., Any]:
    """Return a cell's construct, as it is without a wrapper."""
    construct: Callable[..., Any] = vars(cell)[CONSTRUCT] if is_wrapped(cell) else cell.construct
    return construct


def is_jitted(cell: nn.Cell) -> bool:
    """Return whether a cell's construct is compiled also where Python runs the cell."""
    construct = own_construct(cell)
    return hasattr(getattr(construct, "__func__", construct), JITTED)


def argument_names(cell: nn.Cell) -> tuple[str, ...]:
    """Return the names of a cell's positional arguments, in their order; () if it names none.

    A construct that was put in the place of the class's, and takes whatever it is given, says
    nothing: the class's own does.
    """
    return _names(own_construct(cell)) or _names(type(cell).construct)[1:]


def construct_frames(cell: nn.Cell) -> tuple[str, ...]:
    """Return where a cell's construct stands, as the one frame of a call stack; () if not known."""
    for construct in (own_construct(cell), type(cell).construct):
        function = inspect.unwrap(getattr(construct, "__func__", construct))
        function = getattr(function, COPY_OF, function)
        code = getattr(function, "__code__", None)
        if code is not None and code.co_filename != GENERATED:
            file, line = code.co_filename, code.co_firstlineno
            source = _first_line(file, line, code.co_name)
            return (f"File {file}, line {source[0]}, in {code.co_name}, \n {source[1]}",)
    return ()


@lru_cache(maxsize=1 << 12)
def _first_line(file: str, line: int, name: str) -> tuple[int, str]:
    """Return the line of a function's `def`, which follows its decorators, and its text."""
    for number in range(line, line + 16):  # its decorators come first
        text = linecache.getline(file, number).strip()
        if text.startswith((f"def {name}(", "lambda")):
            return number, text
    return line, linecache.getline(file, line).strip()


def leave_out_arguments(network: nn.Cell, names: Collection[str]) -> None:
    """Let arguments of these names be left out of what is recorded of a network's cells.

    For what is no value of the computation, such as blocks of memory that are never written.
    """
    vars(network)[_LEFT_OUT] = frozenset(names)


def left_out_arguments(network: nn.Cell) -> frozenset[str]:
    """Return the names of a network's arguments that are left out."""
    found: frozenset[str] = vars(network).get(_LEFT_OUT, frozenset())
    return found


def _names(construct: Callable[..., Any]) -> tuple[str, ...]:
    function = inspect.unwrap(getattr(construct, "__func__", construct))
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    bound = getattr(construct, "__self__", None) is not None
    names: tuple[str, ...] = code.co_varnames[int(bound) : code.co_argcount]
    return names
