"""The first difference of two runs → which of A's tensors are put into B to try it.

All that may be to blame in the same way is put in at once: all cells of a class, or the own code of
all of them, the weights at every moment, all that the trainer hands to networks. A graft leaves
alone what B computes as A does, so those that changed something are the ones to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import CODE
from mindrlhf_msprobe.errors import MsprobeError
from mindrlhf_msprobe.findings import Comparison, Finding
from mindrlhf_msprobe.findings.proof import OF_WEIGHTS
from mindrlhf_msprobe.findings.words import Cause, Status
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase
from mindrlhf_msprobe.storage.manifest.run_file import Changed
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import (
    PARAMETERS_GRAD,
    Entry,
    cell_name,
    class_name,
    direction_of,
    head_of,
)

#: What a cell computes, forward and backward; what the trainer hands to networks.
OF_A_CELL = ("output", "input_gradient", "parameters_grad")
_OF_TRAINER = ("input", "gradient")
PARAMETERS = "parameters"
#: What each of them is computed of: direction and part of an entry's records.
_FORWARD = (("forward", "input"), ("forward", PARAMETERS))
_BACKWARD = (*_FORWARD, ("backward", "input"))
_COMPUTED_OF = {
    "output": _FORWARD,
    **dict.fromkeys(("input_gradient", PARAMETERS_GRAD, CODE), _BACKWARD),
}
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
        first: of these entries, the one at which the runs first differ; "" for what the trainer
            hands to networks.
    """

    entries: tuple[str, ...] = ()
    what: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    replaces: str | None = None
    between: tuple[str, ...] = field(default=(), compare=False)
    first: str = field(default="", compare=False)

    def settings(self, run: str) -> dict[str, Any]:
        """Return the graft of a run's records."""
        parts = {"entries": list(self.entries), "what": list(self.what)}
        return {"from": run, **parts, "phases": list(self.phases), "steps": list(self.steps)}


class NoPlaceError(MsprobeError):
    """Nothing of A can be put in for a difference."""


def disagreeing(comparison: Comparison) -> Iterator[Finding]:
    """Yield the records that are not the same, in causal order."""
    return (finding for finding in comparison.findings if not finding.status.agrees)


def count_differing(comparison: Comparison) -> int:
    """Return how many records are not the same."""
    return sum(1 for _ in disagreeing(comparison))


def count_agreeing_now(before: Comparison, after: Comparison) -> int:
    """Return how many records were not the same before, and are now.

    What differs anew, as by noise, does not count against them.
    """

    def named(finding: Finding) -> tuple[Any, ...]:
        return finding.step, finding.rank, finding.phase, finding.record, finding.micro_step

    left = {named(finding) for finding in disagreeing(after)}
    return sum(1 for finding in disagreeing(before) if named(finding) not in left)


class Given:
    """What cells were given in a run that A's tensors were put into: A's, or something else."""

    def __init__(self, after: Comparison) -> None:
        steps = (finding.step for finding in disagreeing(after) if of_layers(finding))
        self._since = min(steps, default=None)
        self._differing = {
            (f.step, f.phase, head_of(f.entry), direction_of(f.entry), f.io)
            for f in disagreeing(after)
            if f.entry is not None
        }

    def agrees(self, changed: Changed) -> bool:
        """Return whether a part of a cell was computed of what is A's, where it first changed.

        If it was not, it may be A's computation of something else, and says nothing of the cell.
        """
        step, what = min(changed.steps), changed.what or ""
        if (
            self._since is not None and what in OF_WEIGHTS
        ):  # a cell that differs before reaches them
            return step < self._since or (step == self._since and what == PARAMETERS)
        at = (step, changed.phase, changed.entry)
        return not any((*at, *part) in self._differing for part in _COMPUTED_OF.get(what, ()))


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
    if entry is not None and first.cause is Cause.MISSING and entry.direction != "forward":
        raise _no_gradient(entry, finding)
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
    kind, own = class_name(around), head_of(around)
    heads = _heads(tensors, tensors.phases, lambda one: class_name(one.name) == kind)
    if any(head_of(one.parent or "") == own for one in within):
        between = _between(around, within, entry)
        return [Place(heads, (CODE,), tuple(tensors.phases), between=between, first=own)]
    return [Place(heads, OF_A_CELL, tuple(tensors.phases), first=own)]


def _no_gradient(entry: Entry, finding: Finding) -> NoPlaceError:
    """Return why nothing is put in where one run has no gradient: whose code may cut it."""
    around = entry.parent or entry.name
    cell = {"kind": class_name(around), "cell": cell_name(around)}
    side = "B" if finding.status is Status.ONLY_IN_A else "A"
    return NoPlaceError.saying("proof.no_gradient", record=finding.record, side=side, **cell)


def _trainer(tensors: Run) -> Place:
    """Return what the trainer hands to networks: inputs, and the gradients of what they return."""
    phases = tuple(tensors.phases)

    def is_outermost(entry: Entry) -> bool:
        return entry.parent is None and entry.direction != PARAMETERS_GRAD

    return Place(_heads(tensors, phases, is_outermost), _OF_TRAINER, phases)


def _between(around: str, within: Sequence[Entry], first: Entry) -> tuple[str, str]:
    """Return the cells between which a cell's own code computed something else first.

    In the order in which they run forward; gradients come the other way.

    Args:
        around: the call of the cell, forward or backward.
        within: the entries of its phase.
        first: what was given that, or the call itself, where it returned that.
    """
    ends = first.name == around
    inside = [one for one in within if one.parent == around and (ends or one.seq < first.seq)]
    last = max(inside, key=lambda one: one.seq).cell if inside else ""
    own = "" if ends else first.cell
    return (own, last) if first.direction == "backward" else (last, own)


def _weights(finding: Finding, tensors: Run, of_role: tuple[str, ...]) -> list[Place]:
    """Return where weights may be put in: those a run begins with, behind updates, before phases.

    They are apart, because each has its own fault.
    """
    heads = _heads(tensors, of_role, lambda one: any(r.io == PARAMETERS for r in one.records))
    at = head_of(finding.entry or "")
    updates = tuple(name for name in of_role if name in UPDATE_PHASES)
    first = tensors.steps[0] if finding.step == tensors.steps[0] else None
    later = tuple(step for step in tensors.steps if step >= finding.step and step != first)
    return [
        *([Place(heads, (PARAMETERS,), of_role, (first,), first=at)] if first is not None else ()),
        *([Place(heads, (f"updated_{PARAMETERS}",), updates, first=at)] if updates else ()),
        *([Place(heads, (PARAMETERS,), of_role, later, first=at)] if later else ()),
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
