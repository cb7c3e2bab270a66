"""The first difference of two runs → which of A's tensors are put into B to try it.

All that may be to blame in the same way is put in at once: a cell in every layer, the own code of
all cells of a class, the weights at every moment, all that the trainer hands to networks. A graft
leaves alone what B computes as A does, so those that changed something are the ones to blame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import CODE
from mindrlhf_msprobe.errors import MsprobeError
from mindrlhf_msprobe.findings import Comparison, Finding
from mindrlhf_msprobe.findings.words import Cause
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, class_name, head_of

#: What a cell computes, forward and backward; what the trainer hands to networks.
_OF_A_CELL = ("output", "input_gradient", "parameters_grad")
_OF_TRAINER = ("input", "gradient")
PARAMETERS = "parameters"
#: Differences that no tensor of A can stand in for.
_NO_TENSOR = (Cause.MISSING, Cause.SHAPE, Cause.DTYPE, Cause.UNREADABLE, Cause.STOPPED, Cause.FILE)


@dataclass(frozen=True)
class Place:
    """What is put in for one first difference.

    Attributes:
        entries, what, phases, steps: as `graft` has them; of key data that are replaced, none.
        replaces: the name of a value that `probe.replace` gives to the training.
        between: of a cell's own code, the cells between which it first computed something else;
            "" for its own beginning or end.
    """

    entries: tuple[str, ...] = ()
    what: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    replaces: str | None = None
    between: tuple[str, ...] = field(default=(), compare=False)

    def settings(self, run: str) -> dict[str, Any]:
        """Return the graft of a run's records."""
        parts = {"entries": list(self.entries), "what": list(self.what)}
        return {"from": run, **parts, "phases": list(self.phases), "steps": list(self.steps)}


class NoPlaceError(MsprobeError):
    """Nothing of A can be put in for a difference."""


def disagreeing(comparison: Comparison) -> Iterator[Finding]:
    """Yield the records that are not the same, in causal order."""
    return (finding for finding in comparison.findings if not finding.status.agrees)


def of_layers(finding: Finding) -> bool:
    """Return whether a record is of a cell, and no key data."""
    return finding.key is None


def places_of(layers: Comparison, tensors: Run, phases: Mapping[str, Phase]) -> list[Place]:
    """Return what is put in together for the first record of a cell that differs.

    Args:
        layers: what a comparison says of the cells' records; something of them differs.
        tensors: a run of A with elements.
        phases: by their names.

    Raises:
        NoPlaceError: nothing can be.
    """
    first = layers.verdict.first_divergence
    assert first is not None
    at = (first.step, first.rank, first.phase, first.record)  # findings go through rank by rank
    finding = next(f for f in disagreeing(layers) if (f.step, f.rank, f.phase, f.record) == at)
    name, phase = finding.entry or "", finding.phase or ""
    within = [*tensors.each_entry(*LayerPlace(phase, finding.step, finding.rank))]
    entry = next((one for one in within if one.name == name), None)
    if entry is None or first.cause in _NO_TENSOR:
        cause = message(f"page.cause_{first.cause.value}")
        raise NoPlaceError.saying("proof.no_tensor", cause=cause, record=first.record)
    if not name.startswith("Cell."):
        raise NoPlaceError.saying("proof.no_cell", entry=name)
    role = phases[phase].role if phase in phases else None
    of_role = tuple(one for one in tensors.phases if one in phases and phases[one].role == role)
    if finding.io == "parameters":
        return _weights(finding, tensors, of_role)
    around = entry.parent if finding.io == "input" else name
    if around is None:
        return [_trainer(tensors)]
    if any(head_of(one.parent or "") == head_of(around) for one in within):
        kind, between = class_name(around), _between(around, within, entry)
        heads = _heads(tensors, tensors.phases, lambda one: class_name(one.name) == kind)
        return [Place(heads, (CODE,), tuple(tensors.phases), between=between)]
    network = _of_one_network(tensors, phase, of_role)
    same = without_layer(head_of(name))
    heads = _heads(tensors, network, lambda one: without_layer(head_of(one.name)) == same)
    return [Place(heads, _OF_A_CELL, network)]


def without_layer(head: str) -> str:
    """Return a cell with its layer's number left out: the same cell of all layers."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", head)


def _trainer(tensors: Run) -> Place:
    """Return what the trainer hands to networks: inputs, and the gradients of what they return."""
    phases = tuple(tensors.phases)

    def is_outermost(entry: Entry) -> bool:
        return entry.parent is None and entry.direction != PARAMETERS_GRAD

    return Place(_heads(tensors, phases, is_outermost), _OF_TRAINER, phases)


def _between(around: str, within: Sequence[Entry], first: Entry) -> tuple[str, str]:
    """Return the cells between which a cell's own code computed something else first.

    Args:
        around: the call of the cell.
        within: the entries of its phase.
        first: what was given that, or the call itself, where it returned that.
    """
    ends = first.name == around
    inside = [one for one in within if one.parent == around and (ends or one.seq < first.seq)]
    last = max(inside, key=lambda one: one.seq).cell if inside else ""
    return last, "" if ends else first.cell


def _weights(finding: Finding, tensors: Run, of_role: tuple[str, ...]) -> list[Place]:
    """Return where weights may be put in: those a run begins with, behind updates, before phases.

    They are apart, because each has its own fault.
    """
    heads = _heads(tensors, of_role, lambda one: any(r.io == PARAMETERS for r in one.records))
    updates = tuple(name for name in of_role if name in UPDATE_PHASES)
    first = tensors.steps[0] if finding.step == tensors.steps[0] else None
    later = tuple(step for step in tensors.steps if step >= finding.step and step != first)
    return [
        *([Place(heads, (PARAMETERS,), of_role, (first,))] if first is not None else ()),
        *([Place(heads, (f"updated_{PARAMETERS}",), updates)] if updates else ()),
        *([Place(heads, (PARAMETERS,), of_role, later)] if later else ()),
    ]


def _heads(
    tensors: Run, phases: Collection[str], wanted: Callable[[Entry], bool]
) -> tuple[str, ...]:
    """Return the cells that some entries of phases are of, in the order in which they ran."""
    found = (
        head_of(entry.name)
        for at in tensors.layer_places()
        if at.phase in phases
        for entry in tensors.each_entry(*at)
        if wanted(entry)
    )
    return tuple(dict.fromkeys(found))


def _of_one_network(tensors: Run, phase: str, of_role: tuple[str, ...]) -> tuple[str, ...]:
    """Return the phases of a role in which the network runs that ran in one of them.

    Where that is not known, all phases of the role.
    """
    own = tensors.network_of(phase)
    if own is None:
        return of_role or (phase,)
    known = ((name, tensors.network_of(name)) for name in of_role)
    return tuple(name for name, one in known if one is not None and one.json == own.json)
