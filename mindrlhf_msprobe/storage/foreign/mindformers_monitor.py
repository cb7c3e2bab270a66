"""The numbers of MindFormers' monitors, in TensorBoard's event files or in its log.

MindFormers writes events by tensorboardX, each rank below `rank_<R>`. An event file is a row of
TFRecords: the length of an event, its checksum, the event, its checksum. An event is a message of
protobuf, of which step, tag and number are read; texts and histograms are left out.

TrainStateMonitor of MindFormers 2.0 has no files of its own: in PyNative mode the Trainer writes to
`info.log`. A line of this log ends with one of

    {"step": 1, "micro_step": 2, "local_loss": 1.73}            a number
    { "step": 1, "micro_step": 2 }                              where the norms that follow belong
    { "local_norm": decoder.layers.0.mlp.fc1.weight:   0.0024 } the norm of a parameter's gradient
    {"iter": 2, "step": 1, "micro_step": 2, "block": "decoder", "layer": 3, "tpe": [[5, 3]]}
                                                                MoeMonitor: tokens of each expert
    { step:[    1/    2], loss:   3.468179, lr: 1.0e-02, … }    what LossCallback prints

All else is passed over.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.varint import varint
from mindrlhf_msprobe.storage.foreign.dialect import MINDFORMERS, Format, OnProblem
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.place import KeyPlace
from mindrlhf_msprobe.storage.reading.problems import Problem
from mindrlhf_msprobe.storage.records import Record

_RANK = re.compile(r"rank_([0-9]{1,18})")
#: The same scalars over the number of samples instead of the steps; tensorboardX writes no spaces.
_OVER_SAMPLES = (" vs samples", "_vs_samples")
#: Scalars that tell of the clock: they differ between two runs that compute the same.
_OF_TIME = (
    *("iteration-time", "throughput", "throughput_linearity", "B-samples-per-day"),
    "model-flops-throughput-per-npu",
)
_HEAD = struct.Struct("<QI")  # length of an event, and its checksum
_TAIL = struct.Struct("<I")
_STEP, _SUMMARY, _VALUE, _TAG, _NUMBER = 2, 5, 1, 1, 2
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5

#: Step → key → path below it → number.
Scalars = dict[int, dict[str, dict[str, float]]]


def _files(directory: Path) -> list[Path]:
    """Return the logs and the event files of a directory, the oldest first.

    The names of event files begin with the time, those of logs end with how often they were moved.
    """
    try:
        with os.scandir(directory) as found:
            names = [item.name for item in found]
    except OSError:  # whoever lists it says why
        return []
    logs = [(int(log[1] or 0), name) for name in names if (log := LOG_FILE.fullmatch(name))]
    events = sorted(name for name in names if name.startswith("events.out.tfevents."))
    return [directory / name for name in (*(name for _, name in sorted(logs)[::-1]), *events)]


def _read(root: Path, directory: Path) -> tuple[Scalars, tuple[tuple[Path, Message], ...]]:
    """Return the scalars of a directory, and what could not be read of which file."""
    files = _files(directory)
    changed = tuple((path.name, path.lstat().st_size, path.lstat().st_mtime_ns) for path in files)
    return _read_files(root, directory, changed)


@lru_cache(maxsize=8)
def _read_files(
    root: Path, directory: Path, files: tuple[tuple[str, int, int], ...]
) -> tuple[Scalars, tuple[tuple[Path, Message], ...]]:
    scalars: Scalars = {}
    problems: list[tuple[Path, Message]] = []
    last = -1  # the step of the log
    for name, _, _ in files:
        path = directory / name
        try:
            if not layout.inside(root, directory):
                raise layout.UnreadError.saying("unread.a_link_leaves")
            with layout.open_inside(root, path, bounds.JOURNAL) as file:
                of_log = LOG_FILE.fullmatch(name) is not None
                for step, key, at, value in numbers_of(file) if of_log else _events(file):
                    if of_log and step < last:  # a later training, or one that went on from there
                        for later in [one for one in scalars if one >= step]:
                            del scalars[later]
                    last = step if of_log else last
                    scalars.setdefault(step, {}).setdefault(key, {})[at] = value
        except (OSError, ValueError) as error:
            problems.append((path, layout.why_unread(error)))
    return scalars, tuple(problems)


def _events(file: BinaryIO) -> Iterator[Logged]:
    """Yield the numbers of an event file; its tags are `<key>/<path>`.

    Raises:
        ValueError: an event is damaged or cut short: what stands behind it cannot be found.
    """
    for number in count(1):
        head = file.read(_HEAD.size)
        if not head:
            return
        if len(head) < _HEAD.size:
            raise layout.UnreadError.saying("unread.event_cut_short", number=number)
        length, checksum = _HEAD.unpack(head)
        if _masked_crc(head[:8]) != checksum or length > bounds.LINE:
            raise layout.UnreadError.saying("unread.event_damaged", number=number)
        event = file.read(length + _TAIL.size)
        if len(event) < length + _TAIL.size:
            raise layout.UnreadError.saying("unread.event_cut_short", number=number)
        body = event[:length]
        if _masked_crc(body) != _TAIL.unpack(event[length:])[0]:
            raise layout.UnreadError.saying("unread.event_damaged", number=number)
        try:
            yield from _scalars_of(body)
        except (IndexError, ValueError, struct.error):
            raise layout.UnreadError.saying("unread.event_damaged", number=number) from None


def _scalars_of(event: bytes) -> Iterator[Logged]:
    step, summaries = 0, []
    for number, content in _fields(event):
        if number == _STEP and isinstance(content, int):
            step = content
        elif number == _SUMMARY and isinstance(content, bytes):
            summaries.append(content)
    for summary in summaries:
        for number, content in _fields(summary):
            if number != _VALUE or not isinstance(content, bytes):
                continue
            value = dict(_fields(content))
            tag, held = value.get(_TAG), value.get(_NUMBER)
            if not (isinstance(tag, bytes) and isinstance(held, float)):
                continue  # a text, a histogram
            name = tag.decode("utf-8")
            if not bounds.is_place(step) or len(name) > bounds.NAME:
                raise ValueError(step)
            if name and name not in _OF_TIME and not name.endswith(_OVER_SAMPLES):
                key, _, path = name.partition("/")
                yield Logged(step, key, path, held)


def _fields(content: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (number, value) of the fields of a message of protobuf."""
    at = 0
    while at < len(content):
        key, at = varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = varint(content, at)
            yield number, value
        elif kind == _BYTES:
            size, at = varint(content, at)
            if size > len(content) - at:
                raise ValueError(size)
            yield number, content[at : at + size]
            at += size
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            form, size = ("<f", 4) if kind == _FOUR_BYTES else ("<d", 8)
            yield number, struct.unpack_from(form, content, at)[0]
            at += size
        else:
            raise ValueError(kind)


def _table() -> list[int]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return found


_CRC32C = _table()


def _masked_crc(content: bytes) -> int:
    """Return the CRC-32C of bytes as TFRecords have it: turned by 15 bits, and a constant added."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class MindFormersMonitor(Format):
    """`show`, `trend` and `compare` take a directory of this form."""

    dialect = MINDFORMERS

    def places(self, root: Path, problem: OnProblem) -> Iterator[tuple[KeyPlace, Path]]:
        """Yield the places of what lies in a directory, or by ranks."""

        def unlisted(path: Path, error: OSError) -> None:
            why = message("unread.unlisted", why=error.strerror or str(error))
            problem(Problem(path, why, key_data=True))

        ranks = {0: root} if _files(root) else {}
        own = _RANK.fullmatch(root.absolute().name)
        if ranks and own:
            ranks = {int(own[1]): root}
        elif not ranks:
            for directory in layout.subdirectories(root, links=True, unlisted=unlisted):
                found = _RANK.fullmatch(directory.name)
                if not (found and _files(directory)):
                    continue
                rank = int(found[1])
                if rank in ranks:
                    why = message("unread.same_place")
                    problem(Problem(directory, why, rank=rank, key_data=True))
                ranks.setdefault(rank, directory)
        for rank, directory in sorted(ranks.items()):
            scalars, problems = _read(root, directory)
            for path, why in problems:
                problem(Problem(path, why, rank=rank, key_data=True))
            for step, keys in sorted(scalars.items()):
                yield from ((KeyPlace(key, step, rank, 0), directory) for key in sorted(keys))

    def key_data(self, root: Path, directory: Path, at: KeyPlace) -> tuple[Record, ...]:
        """Return the numbers of a key in a step, each with its path below the key."""
        values = _read(root, directory)[0].get(at.step, {}).get(at.key, {})
        found = []
        for path, value in sorted(values.items()):
            leaf = Leaf("float", value=value, dialect=MINDFORMERS.name)
            found.append(Record(f"{at.key}.{path}" if path else at.key, "data", path, leaf))
        return tuple(found)


#: The log, and what was moved aside when it had grown, the latest first.
LOG_FILE = re.compile(r"info\.log(?:\.([0-9]{1,4}))?")
_NORM = re.compile(r'\{ "(local_norm|device_norm)": (.{1,1024}?): +(\S{1,32}) \}')
_PRINTED = re.compile(r"\{ step:\[ *([0-9]{1,12})/ *[0-9]{1,12}\], (.*) \}")
_EXPERTS = "tokens_per_expert"
_MICRO_STEPS = ("local_loss", "local_norm", _EXPERTS)
#: The clock's, which differs between two runs that compute the same.
_TIMES_LOGGED = ("per_step_time", "throughput")
#: LossCallback prints the rate of the step that follows.
_NAMES = {"lr": "next_lr"}
_NONE = "NaN"  # printed where there is none; one that is not a number is printed as nan


class Logged(NamedTuple):
    """A number of one step.

    Attributes:
        path: below the key: the parameter, the micro-step, from 0 on, or both.
    """

    step: int
    key: str
    path: str
    value: float


class _At(NamedTuple):
    step: int
    micro_step: int | None


def numbers_of(file: BinaryIO) -> Iterator[Logged]:
    """Yield the numbers of a log, in its order; lines that are none of these are passed over."""
    at: _At | None = None
    for line in iter(lambda: file.readline(bounds.LINE), b""):
        start = line.find(b"{")
        if start < 0 or not line.rstrip().endswith(b"}"):
            continue
        text = line[start:].decode("utf-8", "replace").rstrip()
        if printed := _PRINTED.fullmatch(text):
            for part in printed[2].split(", "):
                name, _, number = (piece.strip() for piece in part.partition(":"))
                value = None if number == _NONE else _number(number)
                known = name and name not in _TIMES_LOGGED and len(name) <= bounds.NAME
                if known and value is not None:
                    yield Logged(int(printed[1]), _NAMES.get(name, name), "", value)
        elif norm := _NORM.fullmatch(text):
            value = _number(norm[3])
            if at is not None and value is not None:
                yield Logged(at.step, norm[1], _path(norm[1], norm[2], at.micro_step), value)
        elif text.startswith('{"iter"'):
            yield from _tokens_per_expert(text)
        elif text.startswith(('{"step"', '{ "step"')) and (found := _object(text)) is not None:
            at = found[0]
            for key in ("local_loss", "device_loss"):
                if (value := _plain_number(found[1].get(key))) is not None:
                    yield Logged(at.step, key, _path(key, "", at.micro_step), value)


def _object(text: str) -> tuple[_At, dict[str, Any]] | None:
    """Return where a JSON object belongs, and what it holds; None where it is of another form."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    step: Any = content.get("step")
    micro_step: Any = content.get("micro_step")
    if not bounds.is_place(step) or not (micro_step is None or bounds.is_place(micro_step)):
        return None
    return _At(step, micro_step), content


def _tokens_per_expert(text: str) -> Iterator[Logged]:
    """Yield how many tokens each expert of a layer got in a micro-step."""
    found = _object(text)
    if found is None:
        return
    at, content = found
    block, layer, outer = (content.get(name) for name in ("block", "layer", "mtp_idx"))
    counts = content.get("tpe")
    if not (isinstance(block, str) and len(block) <= bounds.NAME and bounds.is_place(layer)):
        return
    if not (isinstance(counts, list) and len(counts) == 1 and isinstance(counts[0], list)):
        return
    layers = f"{block}.layers.{outer}.layers" if bounds.is_place(outer) else f"{block}.layers"
    for expert, tokens in enumerate(counts[0]):
        if (value := _plain_number(tokens)) is not None:
            path = _path(_EXPERTS, f"{layers}.{layer}.mlp.{expert}", at.micro_step)
            yield Logged(at.step, _EXPERTS, path, value)


def _plain_number(value: Any) -> float | None:
    """Return a number of JSON; None of anything else, and of one that no float can be."""
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:
        return None


def _path(key: str, parameter: str, micro_step: int | None) -> str:
    """Return where a number stands below its key; MindFormers counts micro-steps from 1 on."""
    parts = [parameter] if parameter else []
    if key in _MICRO_STEPS and micro_step is not None:
        parts.append(f"{micro_step - 1}")
    return ".".join(parts)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
