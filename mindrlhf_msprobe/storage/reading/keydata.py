"""One save of key data, read back."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import INPUT_KEYS
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, dtype_name, open_npy
from mindrlhf_msprobe.storage.foreign.dialect import MSPROBE, OWN
from mindrlhf_msprobe.storage.leaves import Leaf, child_path, is_leaf, leaves, made_by
from mindrlhf_msprobe.storage.place import KeyPlace
from mindrlhf_msprobe.storage.reading.places import saves_in
from mindrlhf_msprobe.storage.records import Locator, Record, bounded


@dataclass(frozen=True)
class KeyDatum:
    """What was saved under one key, at one step, rank and micro-step.

    Attributes:
        seq: when it was saved, in the process's time; None in msprobe's files.
        records: its elements; `record.path` is "" for a single tensor, else the place in the
            structure (`0`, `1`, `mask`, …). An empty list or dict is an element of its own, so
            that it is missed where it is not.
        structure: the JSON structure it was saved in.
        phase: the phase that had begun last, recorded or not, or None.
    """

    key: str
    step: int
    rank: int
    micro_step: int
    seq: int | None
    records: tuple[Record, ...]
    structure: Any = field(default=None, repr=False)
    phase: str | None = None

    @property
    def value(self) -> Any:
        """What was saved: arrays, texts, numbers and None, in lists and dicts as they were.

        bfloat16 comes as float32. Raises ArrayFileError if a file cannot be used.
        """
        by_path = {record.path: record for record in self.records}
        if self.structure is None and (errors := [r.leaf.why for r in self.records if r.leaf.why]):
            raise ArrayFileError(errors[0])
        if self.structure is None:
            return [_value(record) for record in self.records]
        return _rebuild(self.structure, "", by_path)


def _rebuild(content: Any, path: str, by_path: Mapping[str, Record]) -> Any:
    if content is None or is_leaf(content):
        return _value(by_path[path])
    if isinstance(content, list):
        return [_rebuild(item, child_path(path, i), by_path) for i, item in enumerate(content)]
    return {key: _rebuild(item, child_path(path, key), by_path) for key, item in content.items()}


def _value(record: Record) -> Any:
    if record.leaf.type == "str" or not record.leaf.is_tensor:
        return record.leaf.value
    array = record.array()
    return array if array.ndim else np.array(array)


def read_key_datum(
    root: Path, directory: Path, at: KeyPlace, *, ours: bool, completed: bool = False
) -> KeyDatum | None:
    """Read one micro-step's directory; None if it holds nothing that was ended.

    Args:
        root: the run's directory, which no file may leave.
        ours: whether this package wrote it: then the JSON comes last, and without it the save
            was cut off.
        completed: whether the step was ended, so that no save of it can have been cut off.
    """
    structure: Any = None
    seq: int | None = None
    phase: str | None = None
    problem: Message | None = None
    found: dict[str, Leaf] = {}
    key = at.key
    described = directory / layout.file_name(key, ".json")
    if not layout.inside(root, directory):
        leaf = Leaf("unreadable", why=message("unread.a_link_leaves"))
        return KeyDatum(*at, None, (Record(key, "data", "", leaf),))
    try:
        content = layout.read_json(root, described, bounds.DATA)
        if not isinstance(content, dict) or "data" not in content:
            raise layout.UnreadError.saying("unread.no_data")
        structure = content["data"]
        seq = content["seq"] if bounds.is_place(content.get("seq")) else None
        phase = content["phase"] if isinstance(content.get("phase"), str) else None
        dialect = (OWN if "seq" in content else MSPROBE).name
        described_leaves = bounded(leaves(structure, empty=True), bounds.KEY_VALUES)
        found = {path: made_by(dialect, leaf) for path, leaf in described_leaves}
        ours = ours and "seq" in content  # SingleSave may have continued what msprobe saved
    except FileNotFoundError:
        if ours and not completed:
            return None
        if ours:
            problem = _of_file(described, "", message("unread.missing"))
    except Exception as error:  # whatever stands there, it costs nothing else
        between = "" if isinstance(error, OSError) else "_colon"
        problem = _of_file(described, between, layout.why_unread(error))
        structure, found = None, {}
    try:
        files = {} if ours else _array_files(directory, at)
    except OSError as error:
        problem, files = message("unread.unlisted", why=error.strerror or str(error)), {}
    records = _records(Locator(root, directory), key, found, files)
    if problem is not None:
        records.append(Record(key, "data", "", Leaf("unreadable", why=problem)))
    elif not records and structure is None:
        return None
    return KeyDatum(*at, seq, tuple(records), structure, phase)


def _of_file(path: Path, between: str, why: Message) -> Message:
    return Message(f"unread.of_file{between}", {"file": path.name, "why": why})


def _records(
    located: Locator, key: str, found: Mapping[str, Leaf], files: Mapping[str, str]
) -> list[Record]:
    """Return the elements of a save: those that its JSON describes, and those of other files."""
    records = []
    for path in dict.fromkeys([*found, *files]):
        leaf = found.get(path, Leaf("numpy.ndarray"))
        leaf, file = located.locate(leaf, leaf.data_name or files.get(path))
        if file is not None and leaf.dtype is None:
            leaf = _with_dtype(leaf, file, may_be_text=key in INPUT_KEYS)
        records.append(Record(f"{key}.{path}" if path else key, "data", path, leaf, file))
    return records


def is_ours(root: Path, directory: Path, key: str) -> bool:
    """Return whether this package saved what lies in one micro-step's directory."""
    try:
        content = layout.read_json(root, directory / layout.file_name(key, ".json"), bounds.DATA)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "seq" in content


def _with_dtype(leaf: Leaf, file: str, *, may_be_text: bool) -> Leaf:
    """Complete a leaf of msprobe's, whose JSON does not say the dtype, from its file.

    Args:
        may_be_text: its key is one of texts, which MindRLHF saves as their bytes.
    """
    try:
        array = open_npy(file)
    except ArrayFileError as error:
        return replace(leaf, why=_of_file(Path(file), "", error.said))
    leaf = replace(leaf, dtype=dtype_name(array.dtype), shape=leaf.shape or array.shape)
    if may_be_text and array.dtype == np.uint8 and array.ndim == 1 and array.size <= 1 << 20:
        with contextlib.suppress(UnicodeDecodeError):
            return replace(leaf, type="str", value=array.tobytes().decode("utf-8"))
    return leaf


def _array_files(directory: Path, at: KeyPlace) -> dict[str, str]:
    """Return msprobe's array files of a save by path.

    `<key>.npy`, `<key>.<path>.npy`, and of its first versions `<key><i>.npy` and `<key>_<i>.npy`.
    Of its `save`, those of the micro-step.
    """
    saves = saves_in(directory, at.key).get(at.key, [])
    if at.micro_step < len(saves):
        return saves[at.micro_step]
    pattern = re.compile(re.escape(at.key) + r"(?:\.(?P<path>.+)|_?(?P<index>\d+))?\.npy")
    found = {}
    for name in sorted(os.listdir(directory)):
        match = pattern.fullmatch(name)
        if match:
            path = match["path"] or match["index"] or ""
            while path in found:  # key.0.npy beside key0.npy
                path += "~"
            found[path] = name
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))
