"""What a run's manifest says of its networks: their cells, and what these were built with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.storage.reading.reader import Run


def role_of(run: Run, rank: int, phase: str) -> str | None:
    """Return whose network runs in a phase; None for a phase that is not known."""
    config = run.config(rank)
    known = (config.phase_table() if config else phase_table({})).get(phase)
    return known.role if known else None


def cells_of(run: Run, role: str | None, phase: str | None = None) -> list[str]:
    """Return the names of all cells of a role's network, as far as they are known.

    Args:
        phase: only of the network that ran in it; None for any.
    """
    groups = _groups(run, role, phase)
    return list(dict.fromkeys(name for names, _ in groups for name in names))


def all_inside_recorded(runs: tuple[Run, Run], rank: int, phase: str, cell: str) -> bool:
    """Return whether both runs were to record all cells inside one; False where it is not known."""
    for run in runs:
        config = run.config(rank)
        cells = cells_of(run, role_of(run, rank, phase), phase)
        if config is None or cell not in cells:
            return False
        inside = [c for c in cells if cell == ROOT or c.startswith(f"{cell}.")]
        if not all(map(config.records_cell, inside)):
            return False
    return True


def attributes_of(run: Run, role: str | None, cell: str) -> list[Mapping[str, Any]]:
    """Return the attributes of a cell and of those around it, the innermost first."""
    around = [cell]
    while "." in around[-1]:
        around.append(around[-1].rpartition(".")[0])
    around += [] if cell == ROOT else [ROOT]
    found: dict[str, Mapping[str, Any]] = {}
    for names, attributes in _groups(run, role):
        for name in {*around} & {*names}:
            found.setdefault(name, attributes)
    return [found[name] for name in around if name in found]


def _groups(
    run: Run, role: str | None, phase: str | None = None
) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """Yield cells that were built alike, with their attributes."""
    for network in (network for file in run.run_files for network in file.networks):
        ran = phase is None or network.phases is None or phase in network.phases
        for group in network.cells if ran and network.role == role else ():
            if group.cells is not None:
                yield group.cells, group.attributes
