"""Entries of one cell made of those of several, and with their rows in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.comparison.mismatch.weights.fused import Fused
from mindrlhf_msprobe.comparison.pairing.frameworks.joined import joined
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

_WEIGHTS = ("parameters", PARAMETERS_GRAD)


def joined_entry(fused: Fused, each: Sequence[Entry], name: str) -> Entry:
    """Return the entry of a fused cell, by the name that it is to have.

    Args:
        each: the entries of one call of its parts, in their order.
    """
    made = [_record(fused, each, record, name) for record in each[0].records]
    ends = [entry.end for entry in each if entry.end is not None]
    return replace(
        each[0],
        name=name,
        seq=min(entry.seq for entry in each),
        end=max(ends) if len(ends) == len(each) else None,
        records=tuple(record for record in made if record is not None),
    )


def reordered_entry(entry: Entry, order: np.ndarray) -> Entry:
    """Return an entry with its rows in another order.

    Args:
        order: which row each one is; what has another number of rows stays as it is.
    """
    records = [_reordered(record, entry.direction, order) for record in entry.records]
    return replace(entry, records=tuple(records))


def _has_rows(record: Record, direction: str) -> bool:
    """Return whether a record has the rows of the weight, along one of its axes."""
    computed = "input" if direction == "backward" else "output"
    return record.io in _WEIGHTS or record.io == computed


def _record(fused: Fused, each: Sequence[Entry], first: Record, entry: str) -> Record | None:
    """Return a record of a fused cell by that of its first part; None where it is not known."""
    name = f"{entry}.{first.io}.{first.path}"
    several = len(each) > 1
    if first.io in _WEIGHTS or (several and _has_rows(first, each[0].direction)):
        return _of_all_rows(fused, each, first, name)
    if several and each[0].direction == "backward":
        return None  # the gradient of what all were given is a sum
    return replace(first, name=name)


def _of_all_rows(fused: Fused, each: Sequence[Entry], first: Record, name: str) -> Record | None:
    """Return the rows of all parts as one record; None where they are not those of the whole."""
    at = first.io, first.path
    same = [record for entry in each for record in entry.records if (record.io, record.path) == at]
    if len(same) < len(each) or not all(record.leaf.shape for record in same):
        return None
    several = len(each) > 1
    if several and sum(_rows(record, fused) for record in same) != len(fused.order):
        return None
    matrix = _is_matrix(first)
    return joined(
        same,
        name,
        axis=0 if first.io in _WEIGHTS else -1,
        order=fused.order.tolist() if several else None,
        turned=matrix and fused.parts_transposed,
        turned_back=matrix and fused.transposed,
    )


def _is_matrix(record: Record) -> bool:
    return record.io in _WEIGHTS and len(record.leaf.shape or ()) == 2


def _rows(record: Record, fused: Fused) -> int:
    """Return how many rows of a fused cell a record has; of what is no weight, in its last axis."""
    turned = _is_matrix(record) and fused.parts_transposed
    return (record.leaf.shape or ())[1 if turned else 0 if record.io in _WEIGHTS else -1]


def _reordered(record: Record, direction: str, order: np.ndarray) -> Record:
    shape = record.leaf.shape or ()
    axis = 0 if record.io in _WEIGHTS else len(shape) - 1
    if not _has_rows(record, direction) or not shape or shape[axis] != len(order):
        return record
    return joined([record], record.name, axis=axis, order=order.tolist())
