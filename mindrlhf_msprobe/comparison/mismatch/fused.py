"""Several weights of one network that are one weight of the other: found by their rows.

A fused projection (`w_qkv` of `wq`, `wk` and `wv`) has the rows of its parts, in whatever order:
one behind the other, or interleaved by head. Which row is which is read from the values. Where they
differ in one layer, because it was not synchronised, the order of the other layers holds for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import xxhash

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    ArrayFileError,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.records import Record

_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_MOST_ROWS = 1 << 22

#: What a fused cell is called, and its parts, in networks of MindFormers and of Hugging Face.
PRESETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("w_qkv", ("wq", "wk", "wv")),
    ("w_gate_hidden", ("w1", "w3")),
    ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    ("gate_up_proj", ("gate_proj", "up_proj")),
    ("linear_qkv", ("linear_q", "linear_k", "linear_v")),
    ("linear_fc1", ("gating", "hidden")),
)


@dataclass(frozen=True)
class Fused:
    """One cell of the rollout network that does what several of the training network do.

    Attributes:
        cell: of the rollout network.
        parts: the cells of the training network.
        order: int64 [rows of the fused weight], which row of the parts, one behind the other, each
            of its rows is. Columns of its output are in the same order.
    """

    cell: str
    parts: tuple[str, ...]
    order: np.ndarray


def find_fused(rollout: Mapping[str, Record], training: Mapping[str, Record]) -> dict[str, Fused]:
    """Return the fused cells of the rollout network.

    Args:
        rollout, training: parameters by name that the other network has not.
    """
    found: dict[str, Fused] = {}
    matrices = {name: keys for name, r in training.items() if (keys := row_keys(r)) is not None}
    columns = {name: (record.leaf.shape or (0,))[-1] for name, record in training.items()}
    for name, record in rollout.items():
        mine = row_keys(record)
        wide = (record.leaf.shape or (0,))[-1]
        fitting = {other: keys for other, keys in matrices.items() if columns[other] == wide}
        if mine is not None and (fused := _by_rows(name, mine, fitting)) is not None:
            found[fused.cell] = fused
    for name, record in rollout.items():
        cell = cell_of(name)
        if cell not in found and len(record.leaf.shape or ()) == 2:
            fused = _as_elsewhere(cell, found.values()) or _by_name(cell, record)
            if fused is not None and _fits(fused, record, training):
                found[cell] = fused
    return found


def cell_of(parameter: str) -> str:
    """Return the cell of a parameter, by its name in the network."""
    return parameter.rpartition(".")[0] or "root"


def parts_of(
    fused: Fused, parameter: str, training: Mapping[str, Record]
) -> tuple[Record, ...] | None:
    """Return what a fused parameter is made of in the training network; None if one is missing."""
    own = parameter.rpartition(".")[2]
    found = [training.get(f"{part}.{own}") for part in fused.parts]
    return tuple(record for record in found if record) if all(found) else None


def row_keys(record: Record) -> np.ndarray | None:
    """Return a fingerprint of each row of a matrix of weights, uint64; None if none can be had."""
    shape = record.leaf.shape or ()
    if len(shape) != 2 or not 0 < shape[0] <= _MOST_ROWS or not shape[1]:
        return None
    try:
        if record.leaf.sketch is not None:
            return record.sketch().fingerprints
        values = np.ascontiguousarray(record.array())
    except ArrayFileError:
        return None
    if record.leaf.dtype == BFLOAT16:
        values = float32_to_bfloat16_bits(values)
    rows = values.view(np.uint8).reshape(len(values), -1)
    return np.array([xxhash.xxh3_64_intdigest(row) for row in rows], np.uint64)


def _by_rows(name: str, mine: np.ndarray, training: Mapping[str, np.ndarray]) -> Fused | None:
    """Return the parts whose rows are exactly those of a weight, or None."""
    places: dict[int, list[tuple[str, int]]] = {}
    wanted = {*mine.tolist()}
    for other, keys in training.items():
        for number, key in enumerate(keys.tolist()):
            if key in wanted:
                places.setdefault(key, []).append((other, number))
    taken: list[tuple[str, int]] = []
    for key in mine.tolist():
        left = places.get(key)
        if not left:
            return None
        taken.append(left.pop(0) if len(left) > 1 else left[0])
    names = [*dict.fromkeys(other for other, _ in taken)]
    sizes = [len(training[other]) for other in names]
    if sum(sizes) != len(mine) or len({*taken}) != len(mine):
        return None
    starts = dict(zip(names, np.cumsum([0, *sizes]).tolist()))
    order = np.array([starts[other] + number for other, number in taken], np.int64)
    return Fused(cell_of(name), tuple(map(cell_of, names)), order)


def _as_elsewhere(cell: str, known: Iterable[Fused]) -> Fused | None:
    """Return what holds for the cell of the same name in another layer."""
    numbers = _NUMBER.findall(cell)
    for fused in known:
        if _NUMBER.sub("*", fused.cell) == _NUMBER.sub("*", cell):
            before = _NUMBER.findall(fused.cell)
            if all(_NUMBER.findall(part) == before for part in fused.parts):
                parts = (_with_numbers(part, numbers) for part in fused.parts)
                return Fused(cell, tuple(parts), fused.order)
    return None


def _with_numbers(cell: str, numbers: Iterable[str]) -> str:
    left = iter(numbers)
    return _NUMBER.sub(lambda _: next(left), cell)


def _by_name(cell: str, record: Record) -> Fused | None:
    """Return what a preset says of a cell: its parts one behind the other."""
    around, _, own = cell.rpartition(".")
    for name, parts in PRESETS:
        if own == name:
            cells = tuple(f"{around}.{part}" if around else part for part in parts)
            return Fused(cell, cells, np.arange((record.leaf.shape or (0,))[0]))
    return None


def _fits(fused: Fused, record: Record, training: Mapping[str, Record]) -> bool:
    """Return whether the parts are there, and have as many rows together."""
    shapes = [
        other.leaf.shape
        for part in fused.parts
        for name, other in training.items()
        if cell_of(name) == part and len(other.leaf.shape or ()) == 2
    ]
    rows = sum(shape[0] for shape in shapes if shape)
    return len(shapes) == len(fused.parts) and rows == (record.leaf.shape or (0,))[0]
