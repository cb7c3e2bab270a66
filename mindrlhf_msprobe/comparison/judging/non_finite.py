"""NaN and infinity: on which side they stand, and where both sides have them."""

from __future__ import annotations

import math
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_nan
from mindrlhf_msprobe.findings import Finding, Side
from mindrlhf_msprobe.phases import OVERFLOW, SCALE_KEYS, may_be_mask
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import cell_name, direction_of, is_optimizer_state

#: How many elements are NaN, and how many are infinite.
Counts = tuple[int, int]


def one_sided(a: Counts, b: Counts) -> Message:
    """Say which side holds NaN or infinity where the other one is finite."""
    if sum(a) and sum(b):
        return message("note.in_both", nan_a=a[0], inf_a=a[1], nan_b=b[0], inf_b=b[1])
    side, (nan, inf) = ("A", a) if sum(a) else ("B", b)
    return message("note.in_one", side=side, nan=nan, inf=inf)


def is_unhealthy(finding: Finding, *, overflowed: bool) -> bool:
    """Return whether NaN or infinity, which a record holds on both sides, is not meant to be there.

    It is in a mask of -inf, and in gradients of a step that overflowed and is retried.

    Args:
        overflowed: whether both runs say of the step that it overflowed.
    """
    return not (_is_mask(finding) or (overflowed and _is_of_gradients(finding)))


def has_overflowed(finding: Finding) -> bool:
    """Return whether this is key data by which both runs say that the step was not applied."""
    if finding.key != OVERFLOW or not finding.status.agrees:
        return False
    return any(map(_is_above_zero, (finding.a.value, finding.a.max)))


def _is_above_zero(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) and value > 0


def _is_mask(finding: Finding) -> bool:
    """Return whether all that is not finite is -inf, in a forward pass or in key data of masks."""
    if any(nan for nan, _ in counts_of(finding)) or math.inf in _largest(finding):
        return False
    if finding.entry is None:
        return may_be_mask(finding.record)
    if finding.io == "parameters" or is_optimizer_state(cell_name(finding.entry)):
        return False
    return direction_of(finding.entry) == "forward"


def _largest(finding: Finding) -> tuple[Any, ...]:
    return tuple(value for side in (finding.a, finding.b) for value in (side.max, side.value))


def _is_of_gradients(finding: Finding) -> bool:
    if finding.entry is None:
        return finding.key in SCALE_KEYS
    return direction_of(finding.entry) != "forward"


def sides(finding: Finding) -> tuple[str, ...]:
    """Return the sides, "A" and "B", on which a record holds NaN or infinity."""
    found = zip("AB", counts_of(finding))
    return tuple(side for side, counts in found if sum(counts))


def holds_non_finite(leaf: Leaf) -> bool:
    """Return whether a recorded value is, or has elements that are, NaN or infinite."""
    values = (leaf.max, leaf.min, leaf.mean, leaf.value)
    found = any(is_nan(value) or _is_infinite(value) for value in values)
    return found or bool(leaf.nan_count or leaf.inf_count)


def counts_of(finding: Finding) -> tuple[Counts, Counts]:
    """Return for A and for B how many elements are NaN and how many infinite.

    Where neither the elements nor their counts are known, there is one if there is any.
    """
    metrics = finding.metrics
    if metrics is not None:
        return (metrics.nan_a, metrics.inf_a), (metrics.nan_b, metrics.inf_b)
    return _of_side(finding.a), _of_side(finding.b)


def _of_side(side: Side) -> Counts:
    if side.nan_count is not None and side.inf_count is not None:
        return side.nan_count, side.inf_count
    if side.shape is None:
        return int(is_nan(side.value)), int(_is_infinite(side.value))
    # The mean of infinities of both signs is NaN; that of finite elements may have overflowed.
    infinite = any(map(_is_infinite, (side.max, side.min, side.mean)))
    both = _is_infinite(side.max) and _is_infinite(side.min)
    nan = any(map(is_nan, (side.max, side.min, side.norm))) or (is_nan(side.mean) and not both)
    return int(nan), int(infinite)


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)
