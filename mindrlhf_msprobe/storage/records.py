"""Entries and their records: what they are called, and where their files lie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.expression import Expression, InMemory
from mindrlhf_msprobe.storage.arrays.npy import PYTORCH_SUFFIX, ArrayFileError, dtype_name, open_npy
from mindrlhf_msprobe.storage.arrays.sketches import Sketch, read_sketch
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import Attributes, parse_operator

_Found = TypeVar("_Found", bound=tuple[Any, ...])

_ENTRY = re.compile(
    r"(?P<scope>\w+)\.(?P<cell>.+)\.(?P<cls>[^.]+)\."
    r"(?P<direction>forward|backward|parameters_grad)\.(?P<call>[0-9]{1,18})"
)

_CALL = re.compile(r"\.(?:forward|backward|parameters_grad)\.[0-9].*")

#: The direction of an entry that holds gradients of parameters.
PARAMETERS_GRAD = "parameters_grad"
#: What stands for the cell in entries of an optimizer's state; a second one is `…_2`.
OPTIMIZER_STATE = "optimizer_state"
_STATE = re.compile(rf"{OPTIMIZER_STATE}(?:_[0-9]+)?")
_LONGEST = 2 * bounds.NAME  # characters of a record's name: its entry's, and the path in it
_MOST_SHOWN = 100  # characters of a file name in a dump

#: The dtypes that are stored as they are; all others, e.g. BFloat16, as a wider one.
_EXACT_DTYPES = frozenset(
    dtype_name(np.dtype(code)) for code in np.typecodes["AllInteger"] + "?efdFD"
)


def entry_name(cell: str, class_name: str, direction: str, call: int) -> str:
    """Return an entry's name, e.g. `Cell.model.norm.RMSNorm.forward.0`."""
    return f"Cell.{cell}.{class_name}.{direction}.{call}"


def head_of(entry: str) -> str:
    """Return what the names of all entries of a cell begin with, e.g. `Cell.model.norm.RMSNorm`."""
    return _CALL.sub("", entry)


def is_optimizer_state(cell: str) -> bool:
    """Return whether an entry of this cell holds the state of an optimizer."""
    return _STATE.fullmatch(cell) is not None


@lru_cache(maxsize=1 << 16)
def has_plain_call(entry: str) -> bool:
    """Return whether an entry's name is one of ours, so that two names are two calls."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return parse_operator(entry) is not None
    return match["scope"] == "Cell" and str(int(match["call"])) == match["call"]


class EntryName(NamedTuple):
    """What the name of an entry says, as the properties of `Named` have it."""

    cell: str
    class_name: str
    direction: str
    call: int


@lru_cache(maxsize=1 << 16)
def parts_of_name(entry: str) -> EntryName:
    """Return what an entry's name says; one of another form is its own cell."""
    if operator := parse_operator(entry):
        return EntryName(operator.operator, "", operator.direction, operator.call)
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return EntryName(entry, "", "", 0)
    return EntryName(match["cell"], match["cls"], match["direction"], int(match["call"]))


def record_name(entry: str, io: str, path: str) -> str:
    """Return the full name of a record: `<entry>.<io>.<path>`; of a gradient without its io."""
    head = entry if io == PARAMETERS_GRAD else f"{entry}.{io}"
    return f"{head}.{path}" if path else head


class Named:
    """What has the name of an entry."""

    __slots__ = ()
    name: str

    @property
    def cell(self) -> str:
        """The name in its network, `root` for the network itself; of an operator `Mint.add`."""
        return parts_of_name(self.name).cell

    @property
    def class_name(self) -> str:
        """The cell's class; "" for an operator."""
        return parts_of_name(self.name).class_name

    @property
    def direction(self) -> str:
        """forward, backward or parameters_grad."""
        return parts_of_name(self.name).direction

    @property
    def call(self) -> int:
        """The n-th time the cell ran in its phase and step, from 0."""
        return parts_of_name(self.name).call


def cell_name(entry: str) -> str:
    """Return the cell's part of an entry's name, e.g. `model.norm`; of an operator `Mint.add`."""
    return parts_of_name(entry).cell


def cell_of(head: str) -> str:
    """Return the cell of which a head is, as `head_of` returns it."""
    return cell_name(f"{head}.forward.0")


def is_around(outer: str, cell: str) -> bool:
    """Return whether one cell is inside another, by their names; root is the network."""
    return outer != cell and (outer == "root" or cell.startswith(f"{outer}."))


def class_name(entry: str) -> str:
    """Return the class in the name of a cell's entry, e.g. `RMSNorm`; "" of all else."""
    return parts_of_name(entry).class_name


def direction_of(entry: str) -> str:
    """Return the direction in an entry's name; "" if it has none."""
    return parts_of_name(entry).direction


def network_name(cell: str, parameter: str) -> str:
    """Return what a parameter of a cell is called in its network, e.g. `model.norm.weight`."""
    return parameter if cell == "root" else f"{cell}.{parameter}"


def cell_of_parameter(name: str) -> str:
    """Return the cell of a parameter, by what it is called in its network."""
    return name.rpartition(".")[0] or "root"


@dataclass(frozen=True, slots=True)
class Record:
    """One value of an entry, or one element of key data.

    Attributes:
        name: `<entry>.<io>.<path>`, of key data `<key>` or `<key>.<path>`.
        io: input, output, parameters, parameters_grad, or data for key data.
        path: the place inside the structure, e.g. `0` or `0.hidden_states`.
        leaf: the value's description.
        location: `file` as text, or None; of a tensor in a JSON file the file, `#` and its name.
            Text, because a Path takes ten times as long to make, and a run has many records.
        argument: of a positional input, its name in `construct`, else "".
        sketches: the file that holds its sketch, or None.
    """

    name: str
    io: str
    path: str
    leaf: Leaf
    location: str | None = None
    argument: str = ""
    sketches: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, tuple(getattr(self, name) for name in Record.__slots__)

    @property
    def file(self) -> Path | None:
        """The .npy that holds its elements, or None."""
        return None if self.location is None else Path(self.location)

    def array(self) -> np.ndarray:
        """Map the record's elements into memory, read-only.

        bfloat16 comes as float32; `leaf.dtype` keeps the dtype that was recorded.

        Raises:
            ArrayFileError: nothing was stored, the file cannot be used, or what it holds is not
                what was recorded.
        """
        if self.leaf.why is not None:
            raise ArrayFileError(self.leaf.why)
        if self.location is None:
            raise ArrayFileError.saying("unread.statistics_alone")
        path = os.fspath(self.location)
        if path.endswith(PYTORCH_SUFFIX):
            from mindrlhf_msprobe.storage.arrays import pt  # brings zipfile and pickletools

            array, dtype = pt.open_pt(self.location)
        elif not path.endswith(".npy") and ".json#" in os.path.basename(path):
            from mindrlhf_msprobe.storage.arrays.rollout_json import open_rows

            array = open_rows(path)
            dtype = dtype_name(array.dtype)
        else:
            array = open_npy(self.location)
            dtype = dtype_name(array.dtype)
        if self.leaf.shape is not None and array.shape != self.leaf.shape:
            shapes = {"held": str(list(array.shape)), "recorded": str(list(self.leaf.shape))}
            raise ArrayFileError.saying("unread.other_shape", **shapes)
        if self.leaf.dtype in _EXACT_DTYPES and dtype != self.leaf.dtype:
            dtypes = {"held": dtype.lower(), "recorded": self.leaf.dtype}
            raise ArrayFileError.saying("unread.other_dtype", **dtypes)
        return array

    def opened(self) -> Expression:
        """Return the record's elements, its files opened, to be read by boxes and spans.

        Raises:
            ArrayFileError: as `array`.
        """
        return InMemory(self.array())

    def sketch(self) -> Sketch:
        """Map the sketch of the record's rows into memory, read-only.

        Raises:
            ArrayFileError: none was recorded, or it cannot be used; nothing else of the record is
                lost with it.
        """
        if self.leaf.why is not None:
            raise ArrayFileError(self.leaf.why)
        if self.leaf.sketch is None or self.sketches is None or self.leaf.shape is None:
            raise ArrayFileError.saying("unread.no_sketch")
        return read_sketch(self.sketches, self.leaf.sketch, self.leaf.shape)

    def holds_what_was_recorded(self) -> bool | None:
        """Return whether the file's elements have the fingerprint that was recorded.

        None where none was, or one that is not computed on the host. Reads the whole file.
        """
        from mindrlhf_msprobe.storage.arrays.npy import ALGORITHM, fingerprint_of_file

        leaf = self.leaf
        if leaf.dtype is None or not (leaf.fingerprint or "").startswith(f"{ALGORITHM}:"):
            return None
        try:
            array = self.array()
            if not array.flags.c_contiguous:
                return None
            return fingerprint_of_file(leaf.dtype, array) == leaf.fingerprint
        except (ArrayFileError, OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Entry(Named):
    """One cell in one direction at one call, with its records.

    Attributes:
        seq, end: when the cell was entered and left, in the process's time; end is None for a cell
            that never returned.
        parent: the nearest recorded entry around this one, or None.
        opening: how often its phase had been opened in this step before.
        token: in the generate phase the token it belongs to, else None.
        stack: the call stack, innermost first; one `File …, line …` text a frame.
        around: of an operator, the cell that called it, recorded or not: "" outside every cell,
            `root` for the network, None where it is not known.
        attributes: of a primitive, what it was made with, or None.
    """

    name: str
    phase: str
    step: int
    rank: int
    seq: int
    end: int | None
    parent: str | None = None
    opening: int = 0
    token: int | None = None
    stack: tuple[str, ...] = ()
    records: tuple[Record, ...] = field(default=(), repr=False)
    around: str | None = None
    attributes: Attributes | None = field(default=None, hash=False)

    @property
    def call_name(self) -> str:
        """The name without its call number, the same for all calls of one cell."""
        if operator := parse_operator(self.name):
            return f"{operator.operator}.{operator.direction}"
        return self.name.rpartition(".")[0]


def end_of(entry: Entry) -> int:
    """Return when the cell of an entry was left; when it was entered if it never returned."""
    return entry.seq if entry.end is None else entry.end


class Locator:
    """Finds the files of one directory of a run, and what of them leaves the run.

    Args:
        root: the run's directory.
        directory: lies inside it.
        gone: whether its files were removed (`keep_mb`): then there are statistics alone.
    """

    def __init__(self, root: Path, directory: Path, *, gone: bool = False) -> None:
        self._root = root
        self._gone = gone
        self._directory = f"{directory}{os.sep}"
        try:
            with os.scandir(directory) as found:
                items = [*found]
        except OSError:  # what lies in it cannot be opened either
            items = []
        self._links = {item.name for item in items if item.is_symlink()}
        self._of_pytorch = {item.name for item in items if item.name.endswith(PYTORCH_SUFFIX)}
        self._sketches: str | None = None  # "" where it leads out of the run

    def locate(self, leaf: Leaf, name: str | None) -> tuple[Leaf, str | None]:
        """Return a leaf and the path of the file of that name.

        A name or a symbolic link that leaves the run makes the leaf unreadable: dumps from
        others are data, and never decide what is opened.
        """
        if name is None or name == "-1" or self._gone:  # msprobe's word for "no file"
            return leaf, None
        if name.endswith(PYTORCH_SUFFIX) and name not in self._of_pytorch and "/" not in name:
            return leaf, None  # a dump whose elements were not kept has its statistics
        path = self._directory + name
        leaves_it = "/" in name or name in ("", ".", "..")
        if leaves_it or (name in self._links and not layout.inside(self._root, Path(path))):
            shown = name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}…"
            return replace(leaf, why=message("unread.outside", file=shown)), None
        return leaf, path

    def sketches_of(self, leaf: Leaf) -> str | None:
        """Return the path of the file of sketches, for a leaf that has one; else None."""
        if leaf.sketch is None or self._gone:
            return None
        if self._sketches is None:
            path = Path(self._directory).parent / layout.SKETCH_FILE
            self._sketches = str(path) if layout.inside(self._root, path) else ""
        return self._sketches or None


def bounded(found: Iterable[_Found], most: int) -> Iterator[_Found]:
    """Yield the records that were found, or the leaves, as long as they are what a run can hold.

    Args:
        found: tuples that begin with a name.
        most: how many there may be.

    Raises:
        ValueError: there are more, or a name is too long.
    """
    for number, item in enumerate(found):
        if number >= most:
            raise layout.UnreadError.saying("unread.too_many_values", most=most)
        if len(item[0]) > _LONGEST:
            length = len(item[0])
            raise layout.UnreadError.saying("unread.long_name_of_value", length=length)
        yield item
