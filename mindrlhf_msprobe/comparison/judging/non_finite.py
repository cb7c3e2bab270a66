"""NaN and infinity: on which side they stand, and where both sides have them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_nan
from mindrlhf_msprobe.findings import Finding, NonFinite, Side
from mindrlhf_msprobe.storage.leaves import Leaf

#: How many elements are NaN, and how many are infinite.
Counts = tuple[int, int]


def one_sided(a: Counts, b: Counts) -> Message:
    """Say which side holds NaN or infinity where the other one is finite."""
    if sum(a) and sum(b):
        return message("note.in_both", nan_a=a[0], inf_a=a[1], nan_b=b[0], inf_b=b[1])
    side, (nan, inf) = ("A", a) if sum(a) else ("B", b)
    return message("note.in_one", side=side, nan=nan, inf=inf)


def on_both_sides(findings: Iterable[Finding]) -> NonFinite:
    """Return how many records agree and hold NaN or infinity on both sides, and the first.

    Args:
        findings: in causal order.
    """
    count, first = 0, None
    for finding in findings:
        if finding.status.agrees and all(map(any, counts_of(finding))):
            count, first = count + 1, first or finding
    if first is None:
        return NonFinite()
    phase = first.phase if first.entry is not None else None
    return NonFinite(count, first.step, first.rank, phase, first.record)


def sides(finding: Finding) -> tuple[str, ...]:
    """Return the sides, "A" and "B", on which a record holds NaN or infinity."""
    found = zip("AB", counts_of(finding))
    return tuple(side for side, counts in found if sum(counts))


def holds_non_finite(leaf: Leaf) -> bool:
    """Tell whether a recorded value is, or has elements that are, NaN or infinite."""
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
