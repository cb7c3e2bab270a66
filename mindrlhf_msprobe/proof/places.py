"""The first difference of two runs → which of A's tensors are put into B to try it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.findings import Comparison, Finding
from mindrlhf_msprobe.findings.proof import OF_TRAINER
from mindrlhf_msprobe.findings.words import Cause, CulpritCode
from mindrlhf_msprobe.phases import REPLACED, UPDATE_PHASES, Phase
from mindrlhf_msprobe.storage.reading.reader import Run

#: What a cell computes, forward and backward.
OF_A_CELL = ("output", "input_gradient", "parameters_grad")
PARAMETERS = ("parameters",)
#: Differences that no tensor of A can stand in for.
_NO_TENSOR = (Cause.MISSING, Cause.SHAPE, Cause.DTYPE, Cause.UNREADABLE, Cause.STOPPED, Cause.FILE)
#: Of parameters that were right when the update before them began.
_OF_AN_UPDATE = (
    *(CulpritCode.OPTIMIZER, CulpritCode.BEFORE_OPTIMIZER, CulpritCode.UPDATE_CLOSE),
    *(CulpritCode.GRADIENTS_NOT_RECORDED, CulpritCode.EARLIER_UPDATE),
    *(CulpritCode.UPDATE_NOT_RECORDED, CulpritCode.OPTIMIZER_OR_SYNCHRONISATION),
)


@dataclass(frozen=True)
class Place:
    """What is put in for one first difference.

    Attributes:
        entries, what, phases, steps: as `graft` has them; of key data that are replaced, none; of
            parameters, all cells that have some.
        replaces: the name of a value that `probe.replace` gives to the training.
    """

    entries: tuple[str, ...] = ()
    what: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    replaces: str | None = None
    steps: tuple[int, ...] = ()

    def settings(self, run: str) -> dict[str, Any]:
        """Return the graft of a run's records."""
        parts = {"entries": list(self.entries), "what": list(self.what)}
        return {"from": run, **parts, "phases": list(self.phases), "steps": list(self.steps)}

    @property
    def of_trainer(self) -> bool:
        """Whether nothing of a network is put in."""
        return OF_TRAINER.issuperset(self.what)

    def contains(self, other: Place) -> bool:
        """Return whether all that is put in for another place is put in for this one."""
        return (
            self.what == other.what
            and bool(other.entries)
            and {*other.entries} <= {*self.entries}
            and {*other.phases} <= {*self.phases}
            and (not self.steps or {*other.steps} <= {*self.steps})
        )

    def holds(self, finding: Finding) -> bool:
        """Return whether a record is one of those that are put in."""
        if finding.key is not None:
            return finding.key == f"{REPLACED}.{self.replaces}"
        return finding.phase in self.phases and head_of(finding.entry or "") in self.entries


class NoPlaceError(Exception):
    """Nothing of A can be put in for a difference; `why` is what a user is told."""

    def __init__(self, why: Message) -> None:
        super().__init__(why)
        self.why = why


def head_of(entry: str) -> str:
    """Return the part of an entry's name that all calls of its cell have: `Cell.<name>.<class>`."""
    return re.sub(r"\.(forward|backward|parameters_grad)\.\d+$", "", entry)


def without_layer(head: str) -> str:
    """Return a cell with its layer's number left out: the same cell of all layers."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", head)


def disagreeing(comparison: Comparison) -> Iterator[Finding]:
    """Yield the records that are not the same, in causal order."""
    return (finding for finding in comparison.findings if not finding.status.agrees)


def of_layers(finding: Finding) -> bool:
    """Return whether a record is of a cell, and no key data."""
    return finding.key is None


def places_of(layers: Comparison, tensors: Run, phases: Mapping[str, Phase]) -> list[Place]:
    """Return what may be put in for the first record of a cell that differs.

    Args:
        layers: what a comparison says of the cells' records; something of them differs.
        tensors: a run of A with elements.
        phases: by their names.

    Raises:
        NoPlaceError: nothing can be.
    """
    first = layers.verdict.first_divergence
    assert first is not None
    if first.cause in _NO_TENSOR:
        cause = message(f"page.cause_{first.cause.value}")
        raise NoPlaceError(message("proof.no_tensor", cause=cause, record=first.record))
    at = (first.step, first.rank, first.phase, first.record)  # findings go through rank by rank
    finding = next(f for f in disagreeing(layers) if (f.step, f.rank, f.phase, f.record) == at)
    entry, phase = finding.entry or "", finding.phase or ""
    if not entry.startswith("Cell."):
        raise NoPlaceError(message("proof.no_cell", entry=entry))
    role = phases[phase].role if phase in phases else None
    of_role = tuple(name for name, one in phases.items() if one.role == role) or (phase,)
    if finding.io == "parameters":
        return _of_parameters(finding, layers, tensors, of_role)
    head, backward = (head_of(entry),), ".backward." in entry
    if finding.io == "input":
        return [Place(head, ("gradient" if backward else "input",), (phase,))]
    return [Place(head, OF_A_CELL, _of_one_network(tensors, phase, of_role))]


def _of_one_network(tensors: Run, phase: str, of_role: tuple[str, ...]) -> tuple[str, ...]:
    """Return the phases of a role in which the network runs that ran in one of them."""
    own = tensors.network_of(phase)
    if own is None:
        return (phase,)
    known = ((name, tensors.network_of(name)) for name in of_role if name in tensors.phases)
    return tuple(name for name, one in known if one is not None and one.json == own.json)


def _of_parameters(
    finding: Finding,
    comparison: Comparison,
    tensors: Run,
    of_role: tuple[str, ...],
) -> list[Place]:
    """Return where weights may be put in: once, behind each update, or before each phase."""
    first = comparison.verdict.first_divergence
    culprit = None if first is None or first.culprit is None else first.culprit.code
    updates = tuple(name for name in of_role if name in UPDATE_PHASES and name in tensors.phases)
    since = tuple(step for step in tensors.steps if step >= finding.step)
    always = Place((), PARAMETERS, of_role, steps=since)
    alone = replace(always, phases=(finding.phase or "",))
    if culprit is None and finding.step == tensors.steps[0]:
        return [replace(always, steps=(finding.step,)), always]
    if (culprit is None or culprit in _OF_AN_UPDATE) and updates:
        return [Place((), ("updated_parameters",), updates), alone, always]
    return [alone, always]
