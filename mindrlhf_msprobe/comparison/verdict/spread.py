"""How a difference spreads from where it arose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_finite
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.findings import Finding, Spread
from mindrlhf_msprobe.storage.records import cell_name

_LAYER = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


def spread(difference: FirstDifference) -> tuple[Spread, ...]:
    """Return each phase and key from the first divergence on that holds a difference."""
    base = relative_distance(difference.finding)
    found: dict[str, list[Finding]] = {}
    for _, finding in difference.pairs[difference.index :]:
        if finding is not None:
            found.setdefault(finding.key or finding.phase or "", []).append(finding)
    return tuple(
        _spread_of(place, findings, base, _layers(findings, base))
        for place, findings in found.items()
        if not _agree(findings)
    )


def relative_distance(finding: Finding) -> float | None:
    """Return ‖a−b‖ / max(‖a‖, ‖b‖) of the elements, else of the recorded norms; None if unknown."""
    norms = [side.norm for side in (finding.a, finding.b)]
    if _is_text(finding) or not all(map(is_finite, norms)):
        return None
    larger = max(abs(norm) for norm in norms)
    if not larger:
        return 0.0
    if finding.metrics is not None and finding.metrics.euclidean is not None:
        return finding.metrics.euclidean / larger
    return abs(norms[0] - norms[1]) / larger


def _is_text(finding: Finding) -> bool:
    """Return whether text was compared; the distance of its bytes means nothing."""
    return any(
        isinstance(side.value, str) and side.shape is not None for side in (finding.a, finding.b)
    )


def _layers(findings: Sequence[Finding], base: float | None) -> tuple[Spread, ...]:
    """Return the layers of a phase that hold a difference, in causal order."""
    layers: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.entry is not None:
            layers.setdefault(_layer(cell_name(finding.entry)), []).append(finding)
    containers = {
        ".".join(parts[:n])
        for name in layers
        for parts in [name.split(".")]
        for n in range(len(parts))
    }
    return tuple(
        _spread_of(name, found, base)
        for name, found in layers.items()
        if name not in containers and name != "root" and not _agree(found)
    )


def _layer(cell: str) -> str:
    """Return the layer a cell lies in: up to the first number in its name, else the cell itself."""
    match = _LAYER.match(cell)
    return match.group() if match else cell


def _agree(findings: Iterable[Finding]) -> bool:
    return all(finding.status.agrees for finding in findings)


def _spread_of(
    place: str,
    findings: Sequence[Finding],
    base: float | None,
    layers: tuple[Spread, ...] = (),
) -> Spread:
    metrics = [f.metrics for f in findings if f.metrics is not None and not _is_text(f)]
    distances = [d for f in findings if not f.status.agrees and (d := relative_distance(f))]
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
    )
