"""records.jsonl, the journal of a phase: a line an entry, as capture makes it, written and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import product
from types import NoneType
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, loads
from mindrlhf_msprobe.storage.leaves import Leaf, child_path, leaves
from mindrlhf_msprobe.storage.operators import Attributes, attributes_from_json, is_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

#: The values of an entry that holds no gradients of parameters, in the order of their records.
PARTS = ("input_args", "input_kwargs", "input", "output", "output_kwargs", "parameters")
#: What records of each part are: input, output, parameters, or gradients of these.
IO_OF = {**{part: part.partition("_")[0] for part in PARTS}, PARAMETERS_GRAD: PARAMETERS_GRAD}

#: What a line holds beside the values themselves: the first five always.
_ALWAYS = {"entry", "seq", "end", "parent", "opening"}
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
_TYPES = frozenset(product(*_HEAD.values()))
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
    def from_json(
        cls, content: dict[str, Any], stacks: Mapping[int | None, tuple[str, ...]]
    ) -> JournalLine:
        """Return a line of a journal that was read.

        Args:
            stacks: the call stacks of the journal, as `stacks_of` returns them.
        """
        values = {name: value for name, value in content.items() if name not in _HEAD}
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
            tuple(content.get("frames") or stacks.get(content.get("stack"), ())),
            content.get("stack"),
            around if isinstance(around, str) and len(around) <= bounds.NAME else None,
            attributes,
            recomputed if isinstance(recomputed, str) and len(recomputed) <= bounds.NAME else "",
        )

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
                yield IO_OF[part], "", self.values[part]

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
    return name if isinstance(name, str) and len(name) <= 100 else ""


def holds_gradients(entry: str) -> bool:
    """Return whether an entry holds gradients of parameters; msprobe's have no number."""
    return PARAMETERS_GRAD in entry.split(".")[-2:]


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
    """The lines of a journal, in the order in which the entries ended.

    Attributes:
        lines: those that can be read, as JSON.
        damaged: the others: number, from 1 on, → entry, "" if that is lost, too.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)


def read_lines(raw: Iterable[bytes], parse: Callable[[bytes], Any] = loads) -> JournalContent:
    """Read the lines of a journal, given without their ends; damaged ones are listed.

    Args:
        parse: returns what JSON holds; the usual one returns whole numbers beyond 64 bits as float.
    """
    content = JournalContent()
    entries: set[str] = set()
    for number, line in enumerate(raw, 1):
        if len(line) >= bounds.LINE:  # what follows it is not looked for
            content.damaged[number] = ""
            break
        if not line:
            continue
        try:
            found = parse(line)
            _check(found)
            if found["entry"] in entries:
                raise ValueError(found["entry"])
        except (ValueError, RecursionError):
            content.damaged[number] = entry_in(line)
            continue
        entries.add(found["entry"])
        content.lines.append(found)
    return content


def _check(line: Any) -> None:
    """Refuse what is no line, or has a field of another type or beyond its bounds.

    Raises:
        ValueError: it is.
    """
    if type(line) is not dict or not line.keys() >= _ALWAYS:
        raise ValueError(type(line))
    head: tuple[Any, ...] = (*map(line.get, _HEAD),)
    entry, seq, end, _, opening, token, stack, frames = head
    if (*map(type, head),) not in _TYPES or len(entry) > bounds.NAME:
        raise ValueError(head)
    numbers = seq, opening, end or 0, token or 0, stack or 0
    if max(numbers) >= bounds.PLACE or min(numbers) <= -bounds.PLACE:
        raise ValueError(numbers)
    if "frames" in line and (stack is None or not {*map(type, frames or ())} <= {str}):
        raise ValueError(frames)
    of_gradients = PARAMETERS_GRAD in entry and holds_gradients(entry)
    if of_gradients and type(line.get(PARAMETERS_GRAD)) is not dict and line.keys() - _HEAD.keys():
        raise ValueError(PARAMETERS_GRAD)


def stacks_of(lines: Iterable[Mapping[str, Any]]) -> dict[int | None, tuple[str, ...]]:
    """Return the frames of each call stack of a journal, by the number that lines have of it."""
    framed = (line for line in lines if "frames" in line)
    return {line.get("stack"): tuple(line["frames"] or ()) for line in framed}


def entry_in(raw: bytes) -> str:
    """Return the entry that a line names at its begin; "" where that is damaged as well."""
    name = _NAMED.match(raw[: bounds.NAME])
    return "" if name is None else name[1].decode("utf-8", errors="replace")
