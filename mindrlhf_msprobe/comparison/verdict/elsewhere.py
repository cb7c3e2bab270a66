"""A parameter that one run holds in the place of another one."""

from __future__ import annotations

import numpy as np

from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_finite
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.findings import Change
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record, cell_name

_NEAR = 1e-5  # relative, of norms that two tools summed
_MOST_ELEMENTS = 1 << 26


def elsewhere(first: FirstDifference) -> Change | None:
    """Return that a parameter of A is, in B, that of another cell, or the other way round.

    Cells of one phase are looked at: another network may well hold the same values, as the
    reference does those of the actor.
    """
    pair = first.pair
    if first.finding.io != "parameters" or pair.a is None or pair.b is None:
        return None
    phase = first.finding.phase
    places: dict[str, str] = {}
    for other, finding in first.pairs:
        if finding is None or (finding.phase, finding.io) != (phase, "parameters"):
            continue
        if other.a is None or other.b is None or _named(other.a) == _named(pair.a):
            continue
        if "b" not in places and _is_one(pair.a, other.b):
            places["b"] = _named(other.b)
        if "a" not in places and _is_one(pair.b, other.a):
            places["a"] = _named(other.a)
    return Change("elsewhere", {"a": places.get("a"), "b": places.get("b")}) if places else None


def _named(record: Record) -> str:
    """Return its own name, also where it was put at the place of another framework's."""
    entry, _, path = record.name.rpartition(f".{record.io}.")
    return f"{cell_name(entry)}.{path}"


def _is_one(a: Record, b: Record) -> bool:
    """Return whether two records are one tensor: by elements, else by statistics."""
    x, y = a.leaf, b.leaf
    if x.shape != y.shape or x.dtype != y.dtype or not _may_be_one(x, y):
        return False
    if x.fingerprint is not None and y.fingerprint is not None:
        return x.fingerprint == y.fingerprint
    if a.location is None or b.location is None or np.prod(x.shape or ()) > _MOST_ELEMENTS:
        return True
    try:
        return np.array_equal(a.array(), b.array())
    except (ArrayFileError, OSError, ValueError):
        return False


def _may_be_one(a: Leaf, b: Leaf) -> bool:
    """Return whether two tensors, not of one number alone, have the same statistics."""
    values = (a.max, a.min, a.norm, b.max, b.min, b.norm)
    if not all(map(is_finite, values)) or a.max == a.min:
        return False
    same = (a.max, a.min) == (b.max, b.min)
    return same and abs(a.norm - b.norm) <= _NEAR * abs(a.norm)
