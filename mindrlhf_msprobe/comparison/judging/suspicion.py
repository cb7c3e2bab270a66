"""Records that agree and deserve a look all the same.

NaN and infinity: on which side they stand, and where both sides have them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.judging.tolerance import is_finite, is_nan
from mindrlhf_msprobe.findings import Finding, Side, Status
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
    of_gradients = (
        finding.key in SCALE_KEYS
        if finding.entry is None
        else direction_of(finding.entry) != "forward"
    )
    return not (is_mask(finding) or (overflowed and of_gradients))


def has_overflowed(finding: Finding) -> bool:
    """Return whether this is key data by which both runs say that the step was not applied."""
    if finding.key != OVERFLOW or not finding.status.agrees:
        return False
    found = (finding.a.value, finding.a.max)
    return any(isinstance(value, (bool, int, float)) and value > 0 for value in found)


def is_mask(finding: Finding) -> bool:
    """Return whether all that is not finite is -inf, in a forward pass or in key data of masks."""
    largest = [value for side in (finding.a, finding.b) for value in (side.max, side.value)]
    if any(nan for nan, _ in counts_of(finding)) or math.inf in largest:
        return False
    if finding.entry is None:
        return may_be_mask(finding.record)
    if finding.io == "parameters" or is_optimizer_state(cell_name(finding.entry)):
        return False
    return direction_of(finding.entry) == "forward"


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


def are_counted(finding: Finding) -> bool:
    """Return whether `counts_of` are numbers of elements; else 1 stands for some."""
    both = (finding.a, finding.b)
    return finding.metrics is not None or not any(
        s.shape is not None and None in (s.nan_count, s.inf_count) for s in both
    )


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


GROWTH = 10.0  # times the largest error of what a cell was given

#: The code of the reason that a record holds NaN or infinities on both sides.
NON_FINITE = "suspicion.non_finite"

_GIVEN = ("input", "parameters")

#: The largest relative error of what an entry was given; None if one is not known.
_Given = dict[tuple[str | None, str], float | None]


def suspicions(findings: Sequence[Finding]) -> list[Messages]:
    """Return for each finding of one step and rank why it deserves a look; empty if it does not.

    Only a finding that agrees can: it holds NaN or infinities on both sides, or it is the output
    of a cell in which the error grew to `GROWTH` times the largest one of its inputs and
    parameters, or arose.
    """
    given = _errors_of_given(findings)
    return [
        tuple(filter(None, (_non_finite(finding), _growth(finding, given))))
        if finding.status.agrees
        else ()
        for finding in findings
    ]


def _non_finite(finding: Finding) -> Message | None:
    a, b = counts_of(finding)
    if not (any(a) and any(b)):
        return None
    if finding.metrics is None and None in (finding.a.nan_count, finding.b.nan_count):
        return message(NON_FINITE, nan=0, inf=0)
    nan, inf = (n if m else 0 for n, m in zip(a, b))
    return message(NON_FINITE, nan=nan, inf=inf)


def non_finite_of(finding: Finding) -> Message | None:
    """Return the reason that NaN or infinities are on both sides; None if they are not."""
    return next((found for found in finding.suspicions if found.code == NON_FINITE), None)


def _growth(finding: Finding, given: _Given) -> Message | None:
    if finding.status is not Status.WITHIN_TOLERANCE or finding.io != "output":
        return None
    if finding.entry is None:
        return None
    error, before = relative_error(finding), given.get((finding.phase, finding.entry))
    if not error or before is None or error < GROWTH * before:
        return None
    if not before:
        return message("suspicion.arises", error=error)
    return message("suspicion.grows", factor=error / before, before=before, error=error)


def _errors_of_given(findings: Sequence[Finding]) -> _Given:
    """Return the largest relative error of the inputs and parameters of each entry with inputs."""
    largest: _Given = {}
    with_inputs = set()
    for finding in findings:
        if finding.entry is None or finding.io not in _GIVEN:
            continue
        place = finding.phase, finding.entry
        if finding.io == "input":
            with_inputs.add(place)
        error, known = relative_error(finding), largest.get(place, 0.0)
        largest[place] = None if error is None or known is None else max(error, known)
    return {place: error for place, error in largest.items() if place in with_inputs}


def relative_error(finding: Finding) -> float | None:
    """Return how far two records are apart, relative to their size; None if that is not known.

    With the elements it is the L2 norm of A−B over the larger one of the two norms, with
    statistics alone the largest distance of two of them, relative to the size of the tensors.
    """
    if finding.status is Status.IDENTICAL:
        return 0.0
    a, b = finding.a, finding.b
    norm = _largest(a.norm, b.norm)
    if finding.metrics is not None and norm is not None:
        return _ratio(finding.metrics.euclidean, norm)
    if a.shape is None or b.shape is None:
        return _ratio(_distance(a.value, b.value), _largest(a.value, b.value))
    size = _largest(a.max, b.max, a.min, b.min)
    sizes = {"norm": norm, "max": size, "min": size, "mean": size}
    errors = [_ratio(_distance(getattr(a, name), getattr(b, name)), sizes[name]) for name in sizes]
    error = max((error for error in errors if error is not None), default=None)
    # Elements that are known to differ, by how much their statistics do not tell.
    return None if not error and a.fingerprint and b.fingerprint else error


def _distance(a: Any, b: Any) -> float | None:
    if not (is_finite(a) and is_finite(b)):
        return None
    try:
        return float(abs(a - b))
    except OverflowError:  # integers beyond every float
        return None


def _largest(*values: Any) -> float | None:
    """Return the largest absolute value, None if there is none."""
    try:
        return max((float(abs(value)) for value in values if is_finite(value)), default=None)
    except OverflowError:
        return None


def _ratio(distance: float | None, size: float | None) -> float | None:
    if distance is None or size is None:
        return None
    if not distance:
        return 0.0
    return distance / size if size else None
