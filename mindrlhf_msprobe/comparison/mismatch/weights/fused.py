"""Several weights of one network that are one weight of the other: found by their rows.

A fused projection (`w_qkv` of `wq`, `wk` and `wv`) has the rows of its parts, in whatever order:
one behind the other, or interleaved by head. Which row is which is read from the values. Where they
differ in one layer, because it was not synchronised, the order of the other layers holds for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import xxhash

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.names import NUMBER, of_any_layer
from mindrlhf_msprobe.comparison.mismatch.rows.distance import roundoff
from mindrlhf_msprobe.comparison.mismatch.weights.mapping import FusedRule
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    ArrayFileError,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter

_MOST_ROWS = 1 << 22

#: What fused cells are called, and their parts, in networks of MindFormers, vLLM and Hugging Face.
PRESETS: tuple[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], ...] = (
    (
        ("w_qkv", "qkv_proj", "linear_qkv", "query_key_value"),
        (("wq", "wk", "wv"), ("q_proj", "k_proj", "v_proj"), ("linear_q", "linear_k", "linear_v")),
    ),
    (
        ("w_gate_hidden", "gate_up_proj", "linear_fc1"),
        (("w1", "w3"), ("gate_proj", "up_proj"), ("gating", "hidden")),
    ),
)


@dataclass(frozen=True)
class Fused:
    """One cell of the rollout network that does what several of the training network do.

    Attributes:
        cell: of the rollout network.
        parts: the cells of the training network.
        order: int64 [rows of the fused weight], which row of the parts, one behind the other, each
            of its rows is. Columns of its output are in the same order.
        transposed: whether the fused weight is [inputs, outputs] and the parts are not.
    """

    cell: str
    parts: tuple[str, ...]
    order: np.ndarray
    transposed: bool = False


def find_fused(
    rollout: Mapping[str, Record],
    training: Mapping[str, Record],
    rules: Sequence[FusedRule] = (),
) -> dict[str, Fused]:
    """Return the fused cells of the rollout network.

    Args:
        rollout, training: parameters by name that the other network has not.
        rules: what a user says of fused cells; it counts where the values of no layer say it.
    """
    found: dict[str, Fused] = {}
    left = {name: record for name, record in rollout.items() if _rows_of(record)}
    for transposed in (False, True):
        found |= _by_values(left, training, transposed)
        left = {n: record for n, record in left.items() if cell_of_parameter(n) not in found}
    sizes = {
        cell_of_parameter(name): rows
        for name, record in training.items()
        if (rows := _rows_of(record))
    }
    found = _in_their_layers(found, rules, sizes)
    for name, record in left.items():
        fused = _by_names(cell_of_parameter(name), rules, found.values(), sizes)
        if fused is not None and _fits(fused, record, sizes):
            found[fused.cell] = fused
    return found


def find_reordered(
    rollout: Mapping[str, Record], training: Mapping[str, Record]
) -> dict[str, Fused]:
    """Return the fused cells of both networks that have the same rows in another order.

    Heads stand together in one, queries, keys and values in the other. Only cells that are called
    as fused ones usually are: of any other, rows in another order are an error.

    Args:
        rollout, training: parameters of the same names and shapes that are unlike.
    """
    usual = {name for names, _ in PRESETS for name in names}
    found: dict[str, Fused] = {}
    for name, record in rollout.items():
        cell = cell_of_parameter(name)
        if cell.rpartition(".")[2] in usual and _rows_of(record):
            dtype = lower_dtype(record, training[name])
            mine, theirs = (row_keys(one, dtype=dtype) for one in (record, training[name]))
            if mine is not None and theirs is not None:
                fused = _by_rows(name, mine, {name: theirs})
                found |= {} if fused is None else {cell: fused}
    return found


def _rows_of(record: Record) -> int:
    """Return the number of rows of a matrix; 0 of what is none."""
    shape = record.leaf.shape or ()
    return shape[0] if len(shape) == 2 else 0


def _by_names(
    cell: str, rules: Sequence[FusedRule], known: Iterable[Fused], sizes: Mapping[str, int]
) -> Fused | None:
    """Return what a user, other layers or usual names say of a cell, in this order."""
    return _by_rule(cell, rules, sizes) or _as_elsewhere(cell, known) or _by_preset(cell, sizes)


def _by_rule(cell: str, rules: Sequence[FusedRule], sizes: Mapping[str, int]) -> Fused | None:
    for rule in rules:
        parts = rule.parts_of(cell)
        if parts is not None and all(part in sizes for part in parts):
            order = rule.order([sizes[part] for part in parts])
            return None if order is None else Fused(cell, parts, order)
    return None


def _by_values(
    rollout: Mapping[str, Record], training: Mapping[str, Record], transposed: bool
) -> dict[str, Fused]:
    """Return the cells whose weights have exactly the rows of others.

    Args:
        transposed: whether the rollout's columns are taken for its rows.
    """
    found = {}
    known: dict[tuple[str, str | None], np.ndarray | None] = {}
    columns = {name: (record.leaf.shape or (0,))[-1] for name, record in training.items()}
    for name, record in rollout.items():
        wide = (record.leaf.shape or (0, 0))[0 if transposed else 1]
        fitting: dict[str | None, dict[str, np.ndarray]] = defaultdict(dict)
        for other, theirs in training.items():
            dtype = lower_dtype(record, theirs)
            if columns[other] == wide:
                if (other, dtype) not in known:
                    known[other, dtype] = row_keys(theirs, dtype=dtype)
                if (keys := known[other, dtype]) is not None:
                    fitting[dtype][other] = keys
        for dtype, matrices in fitting.items():
            mine = row_keys(record, transposed=transposed, dtype=dtype)
            if mine is not None and (fused := _by_rows(name, mine, matrices)) is not None:
                found[fused.cell] = replace(fused, transposed=transposed)
    return found


def lower_dtype(a: Record, b: Record) -> str | None:
    """Return the dtype of two records that rounds more."""
    return max((a.leaf.dtype, b.leaf.dtype), key=roundoff)


def _in_their_layers(
    found: Mapping[str, Fused], rules: Sequence[FusedRule], sizes: Mapping[str, int]
) -> dict[str, Fused]:
    """Return the fused cells with the parts of their own layers.

    Rows that are those of another layer than a user or the other layers say are weights that were
    mixed up: they tell the order of the rows, and are no reason to compare with that layer.
    """
    usual: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for cell, fused in found.items():
        usual[of_any_layer(cell)].update({s for part in fused.parts if (s := _shift(cell, part))})
    result = {}
    for cell, fused in found.items():
        named = next((p for rule in rules if (p := rule.parts_of(cell)) is not None), None)
        seen = usual[of_any_layer(cell)]
        shift = max(seen, key=lambda s: (seen[s], not any(s)), default=())
        own = tuple(_own_part(cell, part, named or (), shift) for part in fused.parts)
        fits = len({*own}) == len(own) and all(
            sizes.get(mine) == sizes[part] for mine, part in zip(own, fused.parts)
        )
        result[cell] = replace(fused, parts=own) if fits else fused
    return result


def _own_part(cell: str, part: str, named: Sequence[str], shift: Sequence[int]) -> str:
    """Return the part of a cell's own layer that stands where a part of any layer does."""
    for other in named:
        if of_any_layer(other) == of_any_layer(part):
            return other
    if named or not _shift(cell, part):
        return part
    return _with_numbers(part, (str(int(n) + by) for n, by in zip(NUMBER.findall(cell), shift)))


def _shift(cell: str, part: str) -> tuple[int, ...]:
    """Return how far the numbers in a part's name are from those in its cell's; () if unknown."""
    of_cell, of_part = NUMBER.findall(cell), NUMBER.findall(part)
    if len(of_cell) != len(of_part):
        return ()
    return tuple(int(y) - int(x) for x, y in zip(of_cell, of_part))


def parts_of(
    fused: Fused, parameter: str, training: Mapping[str, Record]
) -> tuple[Record, ...] | None:
    """Return what a fused parameter is made of in the training network; None if one is missing."""
    own = parameter.rpartition(".")[2]
    found = [training.get(f"{part}.{own}") for part in fused.parts]
    return tuple(record for record in found if record) if all(found) else None


def row_keys(
    record: Record, *, transposed: bool = False, dtype: str | None = None
) -> np.ndarray | None:
    """Return a fingerprint of each row of a matrix of weights, uint64; None if none can be had.

    Args:
        transposed: of each column instead.
        dtype: to which the values are rounded before; None: to none.
    """
    own = record.leaf.dtype
    rounds = dtype is not None and roundoff(dtype) > roundoff(own)
    shape = record.leaf.shape or ()
    if len(shape) != 2 or not 0 < shape[0] <= _MOST_ROWS or not shape[1]:
        return None
    try:
        if record.leaf.sketch is not None:
            return None if transposed or rounds else record.sketch().fingerprints
        values = np.ascontiguousarray(record.array().T if transposed else record.array())
    except ArrayFileError:
        return None
    if BFLOAT16 in (own, dtype):
        values = float32_to_bfloat16_bits(values)
    elif rounds:
        with np.errstate(over="ignore"):
            values = values.astype(str(dtype).lower())
    rows = values.view(np.uint8).reshape(len(values), -1)
    return np.array([xxhash.xxh3_64_intdigest(row.data) for row in rows], np.uint64)


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
    return Fused(cell_of_parameter(name), tuple(map(cell_of_parameter, names)), order)


def _as_elsewhere(cell: str, known: Iterable[Fused]) -> Fused | None:
    """Return what holds for the cell of the same name in another layer."""
    numbers = NUMBER.findall(cell)
    for fused in known:
        if of_any_layer(fused.cell) == of_any_layer(cell):
            before = NUMBER.findall(fused.cell)
            if all(NUMBER.findall(part) == before for part in fused.parts):
                parts = (_with_numbers(part, numbers) for part in fused.parts)
                return replace(fused, cell=cell, parts=tuple(parts))
    return None


def _with_numbers(cell: str, numbers: Iterable[str]) -> str:
    left = iter(numbers)
    return NUMBER.sub(lambda _: next(left), cell)


def _by_preset(cell: str, sizes: Mapping[str, int]) -> Fused | None:
    """Return what a preset says of a cell: its parts one behind the other."""
    around, _, own = cell.rpartition(".")
    for names, each in PRESETS:
        for parts in each if own in names else ():
            cells = tuple(f"{around}.{part}" if around else part for part in parts)
            if all(part in sizes for part in cells):
                return Fused(cell, cells, np.arange(sum(sizes[part] for part in cells)))
    return None


def _fits(fused: Fused, record: Record, sizes: Mapping[str, int]) -> bool:
    """Return whether the parts are there, and have as many rows together."""
    rows = sum(sizes.get(part, 0) for part in fused.parts)
    return all(part in sizes for part in fused.parts) and rows in (record.leaf.shape or ())
