"""How a difference spreads in a step: over which phases, layers and keys; how far, what is NaN."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from mindrlhf_msprobe.comparison.judging.suspicion import are_counted, counts_of, is_mask
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.findings import Finding, NotFinite, Side, Spread, Status
from mindrlhf_msprobe.phases import SET_KEYS
from mindrlhf_msprobe.storage.records import direction_of

_OF_ITS_SIZE = 0.1  # a smaller relative distance is none from zero
_ROUNDING = 2.0**-20  # of what stands beside it: no more than rounding leaves of it
_OF_KEYS = 2.0**-22  # what rounding leaves of log-probabilities, losses, …

#: NaN and infinite elements of A, then of B, in `counts_of`.
_COUNTS = ((0, 0), (0, 1), (1, 0), (1, 1))
_LAYER = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


def spread(difference: FirstDifference) -> tuple[Spread, ...]:
    """Return each phase and key from the first divergence on that holds a difference."""
    base, pairs = difference.finding.distance, difference.pairs[difference.index :]
    # For each phase how large the elements of its largest gradient are, on average.
    sizes: dict[str | None, float] = {}
    for _, finding in pairs:
        if finding is not None and _is_gradient(finding):
            sizes[finding.phase] = max(sizes.get(finding.phase, 0.0), *_sizes(finding))
    found: dict[str, list[tuple[str | None, Finding]]] = {}
    for pair, finding in pairs:
        if finding is not None:
            of_place = found.setdefault(finding.key or finding.phase or "", [])
            entry = pair.entry  # of an operator the cell around it: itself where there is none
            of_place.append((None if entry is None else entry.around or entry.cell, finding))
    result = []
    for place, of_place in found.items():
        findings = [finding for _, finding in of_place]
        if _agree(findings):
            continue
        layers: dict[str, list[Finding]] = {}
        for cell, finding in of_place:
            if cell is not None:
                match = _LAYER.match(cell)  # up to the first number in its name, else the cell
                layers.setdefault(match.group() if match else cell, []).append(finding)
        parts = [name.split(".") for name in layers]
        containers = {".".join(names[:n]) for names in parts for n in range(len(names))} | {"root"}
        differing = tuple(
            _spread_of(name, of_layer, base, sizes)
            for name, of_layer in layers.items()
            if name not in containers and not _agree(of_layer)
        )
        result.append(_spread_of(place, findings, base, sizes, differing))
    return tuple(result)


def _agree(findings: Iterable[Finding]) -> bool:
    return all(finding.status.agrees for finding in findings)


def _spread_of(
    place: str,
    findings: Sequence[Finding],
    base: float | None,
    sizes: Mapping[str | None, float],
    layers: tuple[Spread, ...] = (),
) -> Spread:
    metrics = [f.metrics for f in findings if f.metrics is not None and not f.of_text]
    apart = [(d, _zero(f, sizes)) for f in findings if not f.status.agrees and (d := f.distance)]
    distances = [distance for distance, zero in apart if zero is None]
    return Spread(
        place=place,
        different=sum(not finding.status.agrees for finding in findings),
        compared=len(findings),
        max_abs_err=max(
            (m.max_abs_err for m in metrics if m.max_abs_err is not None), default=None
        ),
        max_rel_err=max(
            (m.max_rel_err for m in metrics if m.max_rel_err is not None), default=None
        ),
        factor=max(distances) / base if distances and base else None,
        layers=layers,
        zero=None if distances else next((zero for _, zero in apart), None),
        non_finite=_not_finite(findings),
    )


def _is_gradient(finding: Finding) -> bool:
    return finding.entry is not None and direction_of(finding.entry) != "forward"


def _sizes(finding: Finding) -> list[float]:
    """Return how large the elements of both sides are, as the root of their mean square."""
    known = finding.distance is not None
    sides = (finding.a, finding.b)
    return [float(abs(s.norm)) / math.sqrt(max(_elements(s), 1)) if known else 0.0 for s in sides]


def _elements(side: Side) -> int:
    return math.prod(side.shape or ())


def _zero(finding: Finding, sizes: Mapping[str | None, float]) -> Literal["from", "to"] | None:
    """Return whether B differs from zero, or to zero; None where neither has nothing but rounding.

    Zero is what is no more than rounding: of the other run's values, of the log-probabilities that
    key data are made of, and of the largest gradient of the phase.
    """
    if (finding.distance or 0.0) < _OF_ITS_SIZE:
        return None
    a, b = _sizes(finding)
    most = _ROUNDING * max(a, b)
    if finding.key is not None and finding.key not in SET_KEYS:
        most = max(most, _OF_KEYS)
    elif _is_gradient(finding):
        most = max(most, _ROUNDING * sizes[finding.phase])
    return "from" if a <= most else "to" if b <= most else None


def _not_finite(findings: Iterable[Finding]) -> NotFinite | None:
    """Return how many elements are NaN or infinite; None where none is, or -inf of masks alone."""
    held = [f for f in findings if not f.of_text]
    meant = [f.status is not Status.NON_FINITE and is_mask(f) for f in held]
    counts = [counts_of(finding) for finding, skipped in zip(held, meant) if not skipped]
    nan_a, inf_a, nan_b, inf_b = (sum(c[side][kind] for c in counts) for side, kind in _COUNTS)
    if not (nan_a or inf_a or nan_b or inf_b):
        return None
    known = all(map(are_counted, held))
    elements = sum(max(_elements(f.a), _elements(f.b)) for f in held)
    return NotFinite(nan_a, inf_a, nan_b, inf_b, elements if known else None)
