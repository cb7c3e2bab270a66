"""Records that agree and deserve a look all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_finite
from mindrlhf_msprobe.comparison.judging.non_finite import counts_of
from mindrlhf_msprobe.findings import Finding, Status

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
