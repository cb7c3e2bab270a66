"""Which sample of a data-parallel batch is which row of the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mindrlhf_msprobe.comparison.layouts.joining import Held
from mindrlhf_msprobe.comparison.tokens.beginnings import longest_common
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError

_MOST_ROWS = 4096

#: (phase, entry, io, path), or ("", key, micro-step, path).
_Records = Mapping[tuple[Any, ...], Held]


def order_of_rows(mine: _Records, other: _Records, batch: tuple[str, int]) -> list[int] | None:
    """Return which row each row of the whole batch is, counted over the ranks of `mine`.

    Rows are the same that begin with the same tokens, as far as ids were recorded with all their
    elements. One without a partner takes the place that is left. [] where the rows stand in the
    order of the ranks, None where nothing tells.

    Args:
        mine: records of the run whose batches are divided.
        batch: (phase, call), or ("", micro-step).
    """
    for name, held in mine.items():
        whole = other.get(name)
        if whole is None or not _is_of(name, batch) or not (_ids(held) and _ids(whole)):
            continue
        rows, wanted = _rows(held), _rows(whole)
        if not rows or len(rows) != len(wanted) or len(rows) > _MOST_ROWS:
            continue
        found = _order(rows, wanted)
        return found if found != [*range(len(rows))] else []
    return None


def _is_of(name: tuple[Any, ...], batch: tuple[str, int]) -> bool:
    if name[0] != batch[0]:
        return False
    if name[0] == "":
        return bool(name[2] == batch[1])
    end = f".forward.{batch[1]}"
    return bool(name[2] == "input" and name[1].endswith(end))


def _ids(held: Held) -> bool:
    leaf = held.first.leaf
    return leaf.is_integer and len(leaf.shape or ()) == 2 and held.first.location is not None


def _rows(held: Held) -> list[np.ndarray]:
    """Return the rows that the ranks hold, those of one place after those of the one before."""
    ranks: dict[tuple[int, ...], int] = {}
    for rank in sorted(held.records):
        place: tuple[int, ...] = ()
        if held.layout is not None:
            place = tuple(held.layout.place(rank, axis) for axis in held.batches)
        ranks.setdefault(place, rank)
    try:
        arrays = [held.records[ranks[place]].array() for place in sorted(ranks)]
    except (ArrayFileError, OSError, ValueError):
        return []
    return [row for array in arrays if array.ndim == 2 for row in array.astype(np.int64)]


def _order(rows: list[np.ndarray], wanted: list[np.ndarray]) -> list[int]:
    partners, _ = longest_common(rows, wanted)
    places: dict[int, int] = {}
    for row, place in enumerate(partners.tolist()):
        if (
            place >= 0
            and len(rows[row]) == len(wanted[place])
            and (rows[row] == wanted[place]).all()
        ):
            places.setdefault(place, row)
    taken = {*places.values()}
    for row, place in enumerate(partners.tolist()):
        if row not in taken and place >= 0 and place not in places:
            places[place] = row
            taken.add(row)
    left = iter([row for row in range(len(rows)) if row not in taken])
    return [places[place] if place in places else next(left) for place in range(len(wanted))]
