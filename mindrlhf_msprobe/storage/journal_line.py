"""records.jsonl, the journal of a phase: a line an entry, as capture makes it, written and read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.leaves import Leaf, child_path, leaves
from mindrlhf_msprobe.storage.operators import Attributes, attributes_from_json, is_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

#: The values of an entry that holds no gradients of parameters, in the order of their records.
PARTS = ("input_args", "input_kwargs", "input", "output", "output_kwargs", "parameters")
_LONGEST_ARGUMENT = 100  # characters of an argument's name

#: What a line holds beside the values themselves: the first five always.
_ALWAYS = ("entry", "seq", "end", "parent", "opening")
_HEAD: dict[str, tuple[type, ...]] = {
    "entry": (str,),
    "seq": (int,),
    "end": (int, NoneType),
    "parent": (str, NoneType),
    "opening": (int,),
    "token": (int, NoneType),
    "stack": (int, NoneType),
    "frames": (list, NoneType),
}
#: All that may stand in a line before its values.
HEAD = frozenset((*_HEAD, "cell", "attributes", "recomputed", "input_names"))


@dataclass(slots=True)
class JournalLine:
    """One entry: where it stands, and the values it holds as JSON.

    Its end and its values become known while the cell runs; once it is handed to the writer it
    stays as it is.

    Attributes:
        entry: the entry's name.
        seq, end: places in the process's time when the cell was entered and left; end is None for
            a cell that never returned.
        parent: the nearest recorded entry that was running around this one, or None.
        opening: how many times its phase had been opened in this step before.
        token: the generated token it belongs to, in the generate phase, else None.
        values: part (`input_args`, `output`, `parameters`, …) → nested lists and dicts of leaves,
            in the order in which they are written.
        input_names: what `construct` calls its positional inputs.
        frames: its call stack, innermost first.
        stack: the number of that call stack in its journal; the first line with a number has the
            frames, too.
        around: of an operator, the name of the cell in which it was called, recorded or not: ""
            outside every cell, "root" for the network itself.
        attributes: of a primitive, what it was made with, as `storage.operators` has it; None
            where that is not known.
        recomputed: of a backward entry whose forward run MindSpore repeated (recompute), whether
            that was given what is recorded: same, other or unknown; "" where it was not repeated.
    """

    entry: str
    seq: int
    end: int | None = None
    parent: str | None = None
    opening: int = 0
    token: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    input_names: tuple[Any, ...] = ()
    frames: tuple[str, ...] = ()
    stack: int | None = None
    around: str | None = None
    attributes: Attributes | None = None
    recomputed: str = ""

    @classmethod
    def from_json(cls, content: Any) -> JournalLine:
        """Return the line that JSON holds.

        Raises:
            ValueError: it is none.
        """
        _check(content)
        values = {name: value for name, value in content.items() if name not in _HEAD}
        gradients = values.get(PARAMETERS_GRAD)
        if values and holds_gradients(content["entry"]) and not isinstance(gradients, dict):
            raise ValueError(PARAMETERS_GRAD)
        attributes = None
        if is_operator(content["entry"]):
            attributes = attributes_from_json(values.pop("attributes", None))
        names, around = values.pop("input_names", None), values.pop("cell", None)
        recomputed = values.pop("recomputed", "")
        return cls(
            content["entry"],
            content["seq"],
            content["end"],
            content["parent"],
            content["opening"],
            content.get("token"),
            values,
            tuple(names) if isinstance(names, list) else (),
            tuple(content.get("frames") or ()),
            content.get("stack"),
            around if isinstance(around, str) and len(around) <= bounds.NAME else None,
            attributes,
            recomputed if isinstance(recomputed, str) and len(recomputed) <= bounds.NAME else "",
        )

    @classmethod
    def read(cls, raw: bytes) -> JournalLine:
        """Return the line that bytes hold.

        Raises:
            ValueError, RecursionError: they are damaged.
        """
        return cls.from_json(json.loads(raw))

    def to_bytes(self, stack: int | None, *, first: bool) -> tuple[bytes, bytes]:
        """Return the line with its end, and its values alone as dump.json holds them.

        Args:
            stack: the number of its call stack.
            first: whether no line before has it.
        """
        head: dict[str, Any] = {"entry": self.entry, "seq": self.seq, "end": self.end}
        head |= {"parent": self.parent, "opening": self.opening}
        if self.token is not None:
            head["token"] = self.token
        if self.around is not None:
            head["cell"] = self.around
        if self.attributes is not None:
            head["attributes"] = self.attributes
        if self.recomputed:
            head["recomputed"] = self.recomputed
        if self.input_names:
            head["input_names"] = self.input_names
        if stack is not None:
            head["stack"] = stack
        if first:
            head["frames"] = self.frames
        gradients = self.values.get(PARAMETERS_GRAD)
        if isinstance(gradients, dict):
            inside = dump_json(gradients)
            values = b'{"%s": %s}' % (PARAMETERS_GRAD.encode(), inside)
        else:
            values = inside = dump_json(self.values)
        beside = b", " + values[1:] if len(values) > 2 else b"}"
        return dump_json(head)[:-1] + beside + b"\n", inside

    def parts(self) -> Iterator[tuple[str, str, Any]]:
        """Yield (io, path, structure of leaves) of its values, ours or msprobe's."""
        if holds_gradients(self.entry):
            gradients = self.values.get(PARAMETERS_GRAD)
            for parameter, grads in gradients.items() if isinstance(gradients, dict) else ():
                for item in grads if isinstance(grads, list) else [grads]:
                    yield PARAMETERS_GRAD, child_path("", parameter), item
            return
        for part in PARTS:
            if self.values.get(part) is not None:
                yield part.partition("_")[0], "", self.values[part]

    def records(self) -> Iterator[tuple[str, str, str, Leaf]]:
        """Yield (record name, io, path, leaf) of its values.

        Raises:
            ValueError: something in it does not describe a value.
        """
        for io, at, structure in self.parts():
            head = self.entry if io == PARAMETERS_GRAD else f"{self.entry}.{io}"
            for path, leaf in leaves(structure, at, together=True):
                yield f"{head}.{path}", io, path, leaf


def argument_of(input_names: Sequence[Any], io: str, path: str) -> str:
    """Return what `construct` calls the argument that a positional input is or lies in, or ""."""
    place = path.partition(".")[0] if io == "input" else ""
    if not (place.isascii() and place.isdigit() and len(place) < 4):
        return ""
    name = input_names[int(place)] if int(place) < len(input_names) else ""
    return name if isinstance(name, str) and len(name) <= _LONGEST_ARGUMENT else ""


def holds_gradients(entry: str) -> bool:
    """Return whether an entry holds gradients of parameters; msprobe's have no number."""
    return PARAMETERS_GRAD in entry.split(".")[-2:]


def _check(line: Any) -> None:
    if not (isinstance(line, dict) and line.keys() >= {*_ALWAYS}):
        raise ValueError(line)
    for name, types in _HEAD.items():
        value = line.get(name)
        if not isinstance(value, types) or (isinstance(value, int) and not bounds.is_place(value)):
            raise ValueError(name, value)
    if len(line["entry"]) > bounds.NAME:
        raise ValueError("entry", len(line["entry"]))
    if "frames" in line and not all(isinstance(frame, str) for frame in line["frames"] or ()):
        raise ValueError("frames", line["frames"])
    if "frames" in line and not isinstance(line.get("stack"), int):
        raise ValueError("stack", line.get("stack"))


def with_lost_files(content: Any, lost: Mapping[str | int, str]) -> Any:
    """Return an entry's JSON whose leaves name none of the `lost` files, but why they are lost.

    Args:
        lost: file name, or offset of a sketch, → reason. Of a tensor whose sketch is lost all else
            is there.
    """
    if isinstance(content, list):
        return [with_lost_files(item, lost) for item in content]
    if not isinstance(content, dict):
        return content
    sketch = content.get("sketch")
    if isinstance(sketch, dict) and sketch.get("offset") in lost and "dtype" in content:
        why = message("unread.sketch_not_stored", why=lost[sketch["offset"]])
        return {**content, "sketch": {**sketch, "error": why.as_json()}}
    for field_name in ("data_name", "signs"):
        name = content.get(field_name)
        if isinstance(name, str) and name in lost:
            kept = {key: value for key, value in content.items() if key != field_name}
            return {**kept, "error": message("unread.not_stored", why=lost[name]).as_json()}
    return {key: with_lost_files(value, lost) for key, value in content.items()}


_NAMED = re.compile(rb'\{"entry": "([^"\\]+)"')


@dataclass
class JournalContent:
    """The readable lines of a journal, in the order in which the entries ended.

    Attributes:
        lines: one an entry, each with its call stack.
        damaged: the lines that cannot be read: number, from 1 on, → entry, "" if that is lost, too.
        torn: the last line in the same way where it was cut short, as in the journal of a killed
            process.
    """

    lines: list[JournalLine] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    torn: dict[int, str] = field(default_factory=dict)


def read_journal(root: Path, path: Path) -> JournalContent:
    """Read a journal of the run in `root`; damaged lines are listed and left out.

    Raises:
        OSError, ValueError: the file cannot be read, or leaves the run.
    """
    content = JournalContent()
    stacks: dict[int | None, tuple[str, ...]] = {}
    entries: set[str] = set()
    with layout.open_inside(root, path, bounds.JOURNAL) as file:
        for number, raw in enumerate(iter(lambda: file.readline(bounds.LINE), b""), 1):
            if not raw.endswith(b"\n"):
                if len(raw) == bounds.LINE:  # where the next one begins is not looked for
                    content.damaged[number] = ""
                else:
                    content.torn[number] = _entry_in(raw)
                break
            if raw == b"\n":
                continue
            try:
                line = JournalLine.read(raw)
                if line.entry in entries:
                    raise ValueError(line.entry)
            except (ValueError, RecursionError):
                content.damaged[number] = _entry_in(raw)
                continue
            if line.frames:
                stacks[line.stack] = line.frames
            else:
                line.frames = stacks.get(line.stack, ())
            entries.add(line.entry)
            content.lines.append(line)
    return content


def line_ends(content: bytes) -> np.ndarray:
    """Return where the lines of a journal end, in bytes from its begin."""
    return np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines of a whole journal, without their ends."""
    ends = line_ends(content).tolist()
    begins = [0, *[end + 1 for end in ends]]
    return [content[begin:end] for begin, end in zip(begins, ends)]


def _entry_in(raw: bytes) -> str:
    """Return the entry that a line names at its begin; "" where that is damaged as well."""
    name = _NAMED.match(raw[: bounds.NAME])
    return "" if name is None else name[1].decode("utf-8", errors="replace")
