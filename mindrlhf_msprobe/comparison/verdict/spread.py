"""How a difference spreads from where it arose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.findings import Finding, Spread
from mindrlhf_msprobe.storage.records import Entry

_LAYER = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


def spread(difference: FirstDifference) -> tuple[Spread, ...]:
    """Return each phase and key from the first divergence on that holds a difference."""
    base = difference.finding.distance
    found: dict[str, list[tuple[str | None, Finding]]] = {}
    for pair, finding in difference.pairs[difference.index :]:
        if finding is not None:
            of_place = found.setdefault(finding.key or finding.phase or "", [])
            of_place.append((_cell(pair.entry), finding))
    return tuple(
        _spread_of(place, findings, base, _layers(of_place, base))
        for place, of_place in found.items()
        for findings in [[finding for _, finding in of_place]]
        if not _agree(findings)
    )


def _cell(entry: Entry | None) -> str | None:
    """Return the cell of an entry, or that around an operator: itself where there is none."""
    return None if entry is None else entry.around or entry.cell


def _layers(
    findings: Sequence[tuple[str | None, Finding]], base: float | None
) -> tuple[Spread, ...]:
    """Return the layers of a phase that hold a difference, in causal order.

    Args:
        findings: each with its cell.
    """
    layers: dict[str, list[Finding]] = {}
    for cell, finding in findings:
        if cell is not None:
            layers.setdefault(_layer(cell), []).append(finding)
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
    metrics = [f.metrics for f in findings if f.metrics is not None and not f.of_text]
    distances = [d for f in findings if not f.status.agrees and (d := f.distance)]
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
