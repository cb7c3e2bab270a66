"""What an entry, a record and a tensor's description are, and their JSON both ways.

A structure of inputs or outputs is stored as nested JSON lists and objects whose leaves describe
one value each: a tensor by its statistics, a Python scalar or None by its value. The same form
stands in the journal, in dump.json and, with lower-case names, in the JSON of key data.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import ArrayFileError, dtype_name, open_npy
from mindrlhf_msprobe.storage.atomic import number_from_json, number_to_json

_ENTRY = re.compile(
    r"(?P<scope>\w+)\.(?P<cell>.+)\.(?P<cls>[^.]+)\."
    r"(?P<direction>forward|backward|parameters_grad)\.(?P<call>\d+)"
)
_ENTRY_FIELDS = ("input_args", "input_kwargs", "input", "output", "output_kwargs", "parameters")

#: The direction of an entry that holds gradients of parameters.
PARAMETERS_GRAD = "parameters_grad"
_MOST_SHOWN = 100  # characters of a file name from elsewhere
_ESCAPED = re.compile(r"[.%/\\\x00-\x1f\x7f]")

#: The dtypes that are stored as they are; all others, e.g. BFloat16, as a wider one.
_EXACT_DTYPES = frozenset(
    dtype_name(np.dtype(code)) for code in np.typecodes["AllInteger"] + "?efdFD"
)


def entry_name(cell: str, class_name: str, direction: str, call: int) -> str:
    """Return an entry's name, e.g. `Cell.model.norm.RMSNorm.forward.0`."""
    return f"Cell.{cell}.{class_name}.{direction}.{call}"


def cell_name(entry: str) -> str:
    """Return the cell's part of an entry's name, e.g. `model.norm`."""
    match = _ENTRY.fullmatch(entry)
    return match["cell"] if match else entry


def child_path(path: str, key: object) -> str:
    """Return the path of an element below `path`; a key's own dots and slashes are escaped."""
    name = _ESCAPED.sub(lambda m: f"%{ord(m.group()):02X}", str(key)) or "%"
    return f"{path}.{name}" if path else name


@dataclass(frozen=True, slots=True)
class Leaf:
    """One described value.

    Attributes:
        type: `mindspore.Tensor`, `numpy.ndarray`, `str` for a text of key data, or the name of a
            Python type.
        dtype, shape: of a tensor, dtype by MindSpore's name (`Float32`, `BFloat16`, …).
        max, min, mean, norm: over all elements, IEEE rules (one NaN makes them NaN); norm is the
            L2 norm. None for an empty tensor; for bool only max and min.
        nan_count, inf_count: None where not counted (msprobe's files).
        fingerprint: `<algorithm>:<hex>`, or None.
        rounding: of a gradient that is the difference of two, how much each element may be off.
        md5: what msprobe calls so: the CRC-32 of the bytes, bfloat16 as float32; or None.
        value: of a Python scalar; the text of a `str` leaf.
        data_name: the .npy file that holds all elements, or None.
        error: why this value could not be recorded, or None.
        opaque: nothing but the type is known.
        whole: a gradient of a tensor that the cell was given in several places, or returned as it
            was: it is that of all places together.
    """

    type: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    max: Any = None
    min: Any = None
    mean: Any = None
    norm: Any = None
    nan_count: int | None = None
    inf_count: int | None = None
    fingerprint: str | None = None
    value: Any = None
    data_name: str | None = None
    error: str | None = None
    opaque: bool = False
    whole: bool = False
    md5: str | None = None
    rounding: float | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether the value has elements, a dtype and a shape."""
        return self.shape is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return Leaf, tuple(
            getattr(self, name) for name in self.__slots__
        )  # pickles in half the time

    def stored(self, data_name: str | None, *, fingerprint: bool) -> Leaf:
        """Return the leaf with the file that holds its elements, its fingerprint kept or not."""
        if data_name is None and fingerprint:
            return self
        return replace(
            self, data_name=data_name, fingerprint=self.fingerprint if fingerprint else None
        )

    def to_json(self) -> dict[str, Any]:
        """Return the leaf as dump.json holds it (msprobe's names, then ours)."""
        return self._json("Max", "Min", "Mean", "Norm")

    def to_key_data_json(self) -> dict[str, Any]:
        """Return the leaf as a key's JSON holds it (msprobe's lower-case names, then ours)."""
        return self._json("max", "min", "mean", "norm")

    def _json(self, *statistics: str) -> dict[str, Any]:
        if not self.is_tensor:
            content: dict[str, Any] = {"type": self.type, "value": number_to_json(self.value)}
            if self.opaque:
                content["opaque"] = True
            if self.error is not None:
                content["error"] = self.error
            return content
        assert self.shape is not None
        content = {"type": self.type, "dtype": self.dtype, "shape": list(self.shape)}
        values = (self.max, self.min, self.mean, self.norm)
        content.update(zip(statistics, map(number_to_json, values)))
        extra = {
            "nan_count": self.nan_count,
            "inf_count": self.inf_count,
            "fingerprint": self.fingerprint,
            "md5": self.md5,
            "text": self.value,
            "data_name": self.data_name,
            "error": self.error,
            "whole": self.whole or None,
            "rounding": self.rounding,
        }
        content.update({name: value for name, value in extra.items() if value is not None})
        return content


def is_leaf(content: Any) -> bool:
    """Tell whether a JSON value describes one value rather than a structure of values."""
    if not isinstance(content, dict):
        return False
    if isinstance(content.get("type"), str):
        return True
    shape = content.get("shape")
    is_shape = isinstance(shape, list) and all(isinstance(n, int) for n in shape)
    return is_shape and "max" in content and not isinstance(content["max"], (dict, list))


def leaf_from_json(content: dict[str, Any]) -> Leaf:
    """Read a leaf of ours or of msprobe's.

    Raises:
        ValueError: the content is not a leaf's.
    """
    shape = content.get("shape")
    kind = content.get("type", "mindspore.Tensor" if shape is not None else None)
    error = content.get("error")
    if shape is None:
        value = content.get("value")
        return Leaf(
            type=str(kind),
            value=value if kind == "str" else number_from_json(value),
            opaque=bool(content.get("opaque")),
            error=error if error is None else str(error),
        )
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"shape is {shape!r}, expected a list of sizes")
    fingerprint, md5 = _text(content.get("fingerprint")), _text(content.get("md5") or None)
    if fingerprint is None and md5 is not None:
        fingerprint = f"crc32:{md5}"
    largest, smallest, mean, norm = [
        _statistic(content[name] if name in content else content.get(lower))
        for name, lower in _STATISTICS
    ]
    return Leaf(
        type=str(kind),
        dtype=_text(content.get("dtype")),
        shape=tuple(shape),
        max=largest,
        min=smallest,
        mean=mean,
        norm=norm,
        nan_count=_count(content.get("nan_count")),
        inf_count=_count(content.get("inf_count")),
        fingerprint=fingerprint,
        value=content.get("text"),
        data_name=_text(content.get("data_name")),
        error=_text(error),
        whole=content.get("whole") is True,
        md5=md5,
        rounding=_positive(content.get("rounding")),
    )


#: The statistics of a tensor as dump.json calls them, and as the JSON of key data does.
_STATISTICS = (("Max", "max"), ("Min", "min"), ("Mean", "mean"), ("Norm", "norm"))


def _statistic(value: Any) -> Any:
    """Return a statistic; what cannot be one is kept as text, so that it shows and never counts."""
    if type(value) is float:
        return value
    value = number_from_json(value)
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return str(value)
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise ValueError(f"a statistic is {str(value)[:40]}, expected a number")


def _positive(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value < math.inf else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield (path, leaf) for every leaf below a JSON structure, in order.

    Raises:
        ValueError: something in it is neither a structure nor a leaf.
    """
    if content is None:  # msprobe writes null for None and for what it does not know
        yield path, Leaf("NoneType")
    elif is_leaf(content):
        yield path, leaf_from_json(content)
    elif isinstance(content, list):
        for index, item in enumerate(content):
            yield from leaves(item, child_path(path, index))
    elif isinstance(content, dict):
        for key, item in content.items():
            yield from leaves(item, child_path(path, key))
    else:
        raise ValueError(f"expected a description of a value, found {str(content)[:60]!r}")


@dataclass(frozen=True, slots=True)
class Record:
    """One value of an entry, or one element of key data.

    Attributes:
        name: `<entry>.<io>.<path>`, or for key data `<key>` or `<key>.<path>`.
        io: input, output, parameters, parameters_grad, or data for key data.
        path: the place inside the structure, e.g. `0` or `0.hidden_states`.
        leaf: the value's description.
        location: where the .npy lies that holds its elements, or None. Text, because a Path takes
            ten times as long to make, and a run has many records.
    """

    name: str
    io: str
    path: str
    leaf: Leaf
    location: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (self.name, self.io, self.path, self.leaf, self.location)

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
        if self.leaf.error is not None:
            raise ArrayFileError(self.leaf.error)
        if self.location is None:
            raise ArrayFileError("only its statistics were recorded (task: tensor stores elements)")
        array = open_npy(self.location)
        if self.leaf.shape is not None and array.shape != self.leaf.shape:
            raise ArrayFileError(
                f"holds shape {list(array.shape)}, but {list(self.leaf.shape)} was recorded"
            )
        if self.leaf.dtype in _EXACT_DTYPES and dtype_name(array.dtype) != self.leaf.dtype:
            raise ArrayFileError(f"holds {array.dtype}, but {self.leaf.dtype} was recorded")
        return array


@dataclass(frozen=True)
class Entry:
    """One cell in one direction at one call, with its records.

    Attributes:
        seq, end: places in the process's time when the cell was entered and left; end is None for
            a cell that never returned.
        parent: the nearest recorded entry that was running around this one, or None.
        opening: how many times its phase had been opened in this step before (0, 1, …).
        token: the generated token it belongs to, in the generate phase, else None.
        stack: the call stack, innermost first; one `File …, line …` text a frame.
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

    @property
    def cell(self) -> str:
        """The cell's name in its network, `root` for the network itself."""
        return self._parts["cell"]

    @property
    def class_name(self) -> str:
        """The cell's class."""
        return self._parts["cls"]

    @property
    def direction(self) -> str:
        """forward, backward or parameters_grad."""
        return self._parts["direction"]

    @property
    def call(self) -> int:
        """The n-th time the cell ran in its phase and step, from 0."""
        return int(self._parts["call"])

    @property
    def call_name(self) -> str:
        """The entry's name without its call number: the same for all calls of one cell."""
        return self.name.rpartition(".")[0]

    @cached_property
    def _parts(self) -> dict[str, str]:
        match = _ENTRY.fullmatch(self.name)
        if match is None:
            return {"cell": self.name, "cls": "", "direction": "", "call": "0"}
        return match.groupdict()


class Locator:
    """Finds the files of one directory of a run, and what of them leaves the run.

    Args:
        root: the run's directory.
        directory: lies inside it.
    """

    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        self._directory = f"{directory}{os.sep}"
        try:
            with os.scandir(directory) as found:
                self._links = {item.name for item in found if item.is_symlink()}
        except OSError:  # what lies in it cannot be opened either
            self._links = set()

    def locate(self, leaf: Leaf, name: str | None) -> tuple[Leaf, str | None]:
        """Return a leaf and the path of the file of that name.

        A name or a symbolic link that leaves the run makes the leaf unreadable: dumps from
        elsewhere are data, and never decide what is opened.
        """
        if name is None or name == "-1":  # msprobe's word for "no file"
            return leaf, None
        path = self._directory + name
        leaves_it = "/" in name or name in ("", ".", "..")
        if leaves_it or (name in self._links and not layout.inside(self._root, Path(path))):
            shown = name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}…"
            error = f"its file {shown!r} lies outside the run's directory, so it was not opened"
            return replace(leaf, error=error), None
        return leaf, path


def entry_records(name: str, content: dict[str, Any]) -> Iterator[tuple[str, str, str, Leaf]]:
    """Yield (record name, io, path, leaf) of one entry's JSON, ours or msprobe's.

    Raises:
        ValueError: something in it does not describe a value.
    """
    if ".parameters_grad." in f"{name}.":
        for parameter, grads in content.items():
            if parameter in JOURNAL_FIELDS:
                continue
            items = grads if isinstance(grads, list) else [grads]
            for item in items:
                for path, leaf in leaves(item, child_path("", parameter)):
                    yield f"{name}.{path}", "parameters_grad", path, leaf
        return
    for part in _ENTRY_FIELDS:
        if part not in content or content[part] is None:
            continue
        io = part.partition("_")[0]
        for path, leaf in leaves(content[part]):
            yield f"{name}.{io}.{path}", io, path, leaf


#: What a journal line holds beside the values themselves.
JOURNAL_FIELDS = frozenset({"entry", "seq", "end", "parent", "opening", "token", "stack", "frames"})


def values_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a journal line that stands in dump.json."""
    return {key: value for key, value in line.items() if key not in JOURNAL_FIELDS}


def with_lost_files(content: Any, lost: Mapping[str, str]) -> Any:
    """Return an entry's JSON whose leaves name none of the `lost` files, but why they are lost.

    Args:
        lost: file name → reason.
    """
    if isinstance(content, list):
        return [with_lost_files(item, lost) for item in content]
    if not isinstance(content, dict):
        return content
    name = content.get("data_name")
    if isinstance(name, str) and name in lost:
        kept = {key: value for key, value in content.items() if key != "data_name"}
        return {**kept, "error": f"its elements could not be stored: {lost[name]}"}
    return {key: with_lost_files(value, lost) for key, value in content.items()}


def count_leaves(content: Any) -> int:
    """Return how many values a JSON structure describes."""
    if isinstance(content, dict):
        if isinstance(content.get("type"), str):
            return 1
        content = content.values()
    elif not isinstance(content, list):
        return 0
    return sum(map(count_leaves, content))
