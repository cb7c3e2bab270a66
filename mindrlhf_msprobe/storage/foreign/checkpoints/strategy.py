"""MindSpore's strategy files: how each parameter is cut, and over which devices of its stage.

A device matrix numbers the devices of a stage, row-major. The tensor map names for each axis of a
parameter the axes of the matrix over which it is cut, counted from the last one, or -1. Over the
axes that cut nothing, the first axis of the parameter may be cut once more (`opt_weight_shard_*`,
optimizer parallel), into parts of what the tensor map leaves.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.foreign.checkpoints.mindspore_ckpt import BYTES, VARINT, Wire
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError, DataFile

_STAGE = re.compile(r"(?P<stage>[0-9]{1,6})-(?P<name>.+)", re.DOTALL)
_ALL = -1  # devices over which an optimizer cuts: as many as there are
_MAP_FIELDS = ((1, VARINT), (2, BYTES), (3, BYTES))
_ITEM = ((1, BYTES), (2, BYTES))
_STRATEGIES = ((1, VARINT), (2, BYTES))
_LAYOUT = (*((n, BYTES) for n in range(1, 5)), *((n, VARINT) for n in range(5, 8)))
_SIZES = ((1, VARINT), (1, BYTES))


@dataclass(frozen=True)
class Cut:
    """How one parameter is cut over the devices of a stage.

    Attributes:
        devices: the device matrix.
        axes: for each axis of the parameter, the axes of the matrix over which it is cut, outermost
            first.
        by_optimizer: into how many parts the first axis is cut once more.
    """

    devices: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    by_optimizer: int = 1

    @property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each axis is cut."""
        parts = [math.prod(self.devices[i] for i in of) for of in self.axes]
        return tuple([parts[0] * self.by_optimizer, *parts[1:]] if parts else parts)

    def part_of(self, device: int) -> tuple[int, ...]:
        """Return which part of each axis a device holds, by its number in its stage."""
        place = []
        for size in reversed(self.devices):
            device, at = divmod(device, size)
            place.append(at)
        place.reverse()
        parts = [self._number(place, of) for of in self.axes]
        if parts and self.by_optimizer > 1:
            used = {i for of in self.axes for i in of}
            free = [i for i in range(len(self.devices)) if i not in used]
            inner = self._number(place, free) % self.by_optimizer
            parts[0] = parts[0] * self.by_optimizer + inner
        return tuple(parts)

    def _number(self, place: Sequence[int], axes: Iterable[int]) -> int:
        number = 0
        for axis in axes:
            number = number * self.devices[axis] + place[axis]
        return number


#: For each stage, how its parameters are cut; or why that is not known.
Strategy = dict[int, dict[str, "Cut | Message"]]


def read_strategies(paths: Iterable[Path], root: Path) -> Strategy:
    """Return what several strategy files say together: those of each stage, or a merged one.

    Raises:
        CheckpointError: one cannot be read, or two say other things of the same parameter.
    """
    found: Strategy = {}
    seen: set[bytes] = set()
    for path in paths:
        if not layout.inside(root, path):
            raise CheckpointError.of_file(path, message("unread.link_leaves"))
        file = DataFile(path)
        if file.size > bounds.METADATA:
            most = bounds.in_bytes(bounds.METADATA)
            raise file.error("unread.too_large", size=file.size, most=most)
        content = bytes(file.read(0, file.size))
        if content in seen:
            continue
        seen.add(content)
        stage, cuts = (_read_json if path.suffix == ".json" else _read)(file)
        for name, cut in cuts.items():
            of_merged = _STAGE.fullmatch(name)
            own = (int(of_merged["stage"]), of_merged["name"]) if of_merged else (stage, name)
            known = found.setdefault(own[0], {}).setdefault(own[1], cut)
            if known != cut:
                raise file.error("checkpoint.two_strategies", name=shortened(own[1]))
    return found


def recorded_cut(held: object) -> Cut | None:
    """Return how a parameter is cut by what run.json has of it; None where that is nothing."""
    if not isinstance(held, dict):
        return None
    devices, tensor_map = held.get("devices"), held.get("map")
    if not isinstance(devices, list) or not isinstance(tensor_map, list):
        return None
    found = _cut(devices, [[n] for n in tensor_map], [], 0, 0)
    return found if isinstance(found, Cut) else None


def _read(file: DataFile) -> tuple[int, dict[str, Cut | Message]]:
    """Return the stage of a file and how parameters are cut."""
    wire = Wire(file)
    stage, cuts = None, {}
    for number, _, start, end in wire.fields(0, file.size, _MAP_FIELDS):
        if number == 2 and stage is None:
            for item, _, first, last in wire.fields(start, end, _ITEM):
                if item == 2:
                    of = wire.fields(first, last, _STRATEGIES)
                    stage = next((value for n, _, value, _ in of if n == 1), None)
        elif number == 3:
            name, cut = "", None
            for item, _, first, last in wire.fields(start, end, _ITEM):
                if item == 1:
                    most = min(last, first + bounds.NAME)
                    name = wire.read(first, most).decode("utf-8", "backslashreplace")
                else:
                    cut = _layout(wire, first, last)
            if cut is not None:
                cuts[name] = cut
    if not cuts:
        raise file.error("checkpoint.no_strategy")
    return stage or 0, cuts


def _layout(wire: Wire, start: int, end: int) -> Cut | Message:
    sizes: dict[int, list[list[int]]] = {}
    numbers: dict[int, int] = {}
    for number, kind, first, last in wire.fields(start, end, _LAYOUT):
        if kind == VARINT:
            numbers[number] = _signed(first)
        else:
            found: list[int] = []
            for _, inner, value, stop in wire.fields(first, last, _SIZES):
                found += [value] if inner == VARINT else wire.varints(value, stop)
            sizes.setdefault(number, []).append([_signed(n) for n in found])
    maps = sizes.get(2, [[]])
    # Of several lists each is of one axis; one alone has a number for each axis.
    tensor_map = [m for m in maps if m] if len(maps) > 1 else [[n] for n in maps[0]]
    devices = sizes.get(1, [[]])[0]
    return _cut(devices, tensor_map, sizes.get(3, [[]])[0], numbers.get(5, 0), numbers.get(7, 0))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _read_json(file: DataFile) -> tuple[int, dict[str, Cut | Message]]:
    try:
        content = json.loads(file.read(0, file.size).decode("utf-8"))
        items = dict(content["parallel_layout_item"])
        of_stage: Any = next(iter(content["parallel_strategy_item"].values()), {})
        cuts = {
            str(name): _cut(
                list(item["dev_matrix"]),
                [[n] for n in item["tensor_map"]],
                list(item.get("param_split_shape") or []),
                item.get("field") or 0,
                item.get("opt_weight_shard_size") or 0,
            )
            for name, item in items.items()
        }
        stage = int(of_stage.get("stage", 0))
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        why = shortened(f"{type(error).__name__}: {error}")
        raise file.error("checkpoint.strategy_json", why=why) from None
    if not cuts:
        raise file.error("checkpoint.no_strategy")
    return stage, cuts


def _cut(
    devices: list[Any], tensor_map: list[list[Any]], split: list[Any], field: Any, shards: Any
) -> Cut | Message:
    """Return how a parameter is cut, or why that is not known."""
    named = [n for of in tensor_map for n in of]
    numbers = [*devices, *named, *split, field, shards]
    if not all(type(n) is int for n in numbers) or not all(n > 0 for n in devices):
        return message("checkpoint.layout")
    if math.prod(devices) > 1 << 20 or not all(-1 <= n < len(devices) for n in named):
        return message("checkpoint.layout")
    if any(split) or field:
        return message("checkpoint.uneven")
    axes = tuple(tuple(len(devices) - 1 - n for n in of if n >= 0) for of in tensor_map)
    used = [i for of in axes for i in of]
    if len(used) > len(set(used)):
        return message("checkpoint.layout")
    # An optimizer cuts over the axes of the matrix that are not used.
    free = math.prod(size for i, size in enumerate(devices) if i not in used)
    parts = free if shards == _ALL else max(shards, 1)
    if free % parts or (parts > 1 and not axes):
        return message("checkpoint.layout")
    return Cut(tuple(devices), axes, parts)
