"""Where two runs first diverge, why, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages
from mindrlhf_msprobe.findings.as_json import Shown, as_json, by_fields
from mindrlhf_msprobe.findings.settings import Difference, Weights
from mindrlhf_msprobe.findings.words import Cause, CulpritCode, Nearness


@dataclass(frozen=True)
class CheckFirst:
    """A difference before any tensor that can explain a finding, though it need not.

    Attributes:
        near: what it has in common with the finding: the cell, the phase, the role, or the run
            alone.
        what: the setting, or the initial weights.
    """

    near: Nearness
    what: Difference | Weights

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        if isinstance(self.what, Difference):
            return {"near": self.near.value, **self.what.to_json()}
        weights = self.what
        names = (*weights.different, *weights.only_in_a, *weights.only_in_b)
        return {
            "near": self.near.value,
            "section": "initial_weights",
            "name": names[0] if names else "",
            "role": weights.role,
            "different": len(weights.different),
            "compared": weights.compared,
        }


@dataclass(frozen=True)
class Occasion:
    """Which time it is within the step that a phase was opened, or a key saved.

    Attributes:
        number: how often it had been before, from 0: of a key the micro-step.
        times: how often it was in this step.
        since: the phases that ran since the time before, in their order: all or part of them.
        weights_moved: whether parameters changed since the time before; None where that is not
            known, and for key data.
    """

    number: int = 0
    times: int = 1
    since: tuple[str, ...] = ()
    weights_moved: bool | None = None


@dataclass(frozen=True)
class Culprit:
    """What is to blame beyond the record that differs first, and the evidence.

    Attributes:
        details: the evidence: numbers, steps, phases, `A` or `B` for a run; plain JSON. What each
            code has is said where it is made, in comparison/.
    """

    code: CulpritCode
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return {"code": self.code.value, **self.details}


@dataclass(frozen=True)
class Some(Shown):
    """The places along one axis of a tensor, or of the list a key holds, where elements differ.

    Attributes:
        what: `axis` of a tensor, or `element` of a list.
        axis, size: which axis, and how many places it has.
        spans: first and last of each span of places, inclusive; of very many, the first 32.
        count: how many places differ.
    """

    what: str
    axis: int
    size: int
    spans: tuple[tuple[int, int], ...]
    count: int


@dataclass(frozen=True)
class Change:
    """The one thing that makes B of A in all elements that differ.

    Attributes:
        kind: factor, offset (B is A times, or plus, one number); rounded (one side is the other one
            rounded to a narrower dtype); order (the places along an axis stand in another order),
            order_inside (the elements along it do, within each row), moved (all elements do),
            shifted (along an axis, what fell off being lost), transposed (a square matrix),
            rotary_base (tables of a rotary embedding have two bases), epsilon (a norm was computed
            with another one), elsewhere (a parameter is that of another cell); rounding (a few
            numbers of the dtype lie between); same_statistics (all statistics are equal, the bytes
            are not).
        parameters: of that kind; `within` is the rounding that each element is known to, `every`
            says whether it holds for all elements of the tensor.
    """

    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Inside:
    """What differs inside the first divergence; only what holds for all of it.

    Attributes:
        basis: elements, statistics, or records (of the list a key holds).
        where: the axes along which not all places differ.
        change: None where nothing holds for all elements that differ.
        elements, size: how many elements differ, and of how many; None from statistics.
        prompts: numbers of the prompts that all samples which differ belong to.
        axes: what an axis is, as far as it is known: sample, token, head, channel, token_id (of the
            vocabulary), or row (sample and token in one).
    """

    basis: str
    where: tuple[Some, ...] = ()
    change: Change | None = None
    elements: int | None = None
    size: int | None = None
    prompts: tuple[int, ...] = ()
    axes: tuple[tuple[int, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return {
            "basis": self.basis,
            "kind": None if self.change is None else self.change.kind,
            "parameters": {} if self.change is None else as_json(self.change.parameters),
            "where": as_json(self.where),
            "different": self.elements,
            "size": self.size,
            "prompts": list(self.prompts),
            "axes": {str(axis): name for axis, name in self.axes},
        }


@dataclass(frozen=True)
class Birth:
    """The operator that makes an error of what came in as no more than rounding.

    Attributes:
        record: its output that is too far apart, of the same step and rank as the first divergence.
        entered: the largest relative distance of what it was given; 0 where that agrees.
        distance: that of the record; the relative distance is |a−b| / max(|a|, |b|) as L2 norms.
        operator, cell, line: as of a `Divergence`.
        beside: what but its own computation may be to blame.
    """

    phase: str
    record: str
    entry: str
    distance: float
    entered: float
    operator: str
    cell: str | None
    line: str
    beside: Messages = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        shown = by_fields(self)
        del shown["beside"]
        return shown


@dataclass(frozen=True)
class Divergence:
    """Where two runs first diverge, and why.

    Attributes:
        record: the first record that differs, in causal order.
        explanation: what `reasons` say, in the language that was asked for.
        reasons: what happened to the record and why, a sentence a message.
        entry: the origin: the innermost cell or operator to blame; None for key data.
        key: of key data, else None.
        occasion: which micro-step of key data it is, or which opening of the phase in this step.
        culprit: what else is to blame, where the records around tell it; None where they do not.
        agreed_before: how many records of this step and rank, before it, agree.
        agreed_phases: how many phases of this step and rank agree as a whole, before it.
        agreed_steps: how many earlier steps agree as a whole.
        last_agreeing: the last record before it, which agrees; None if it is the first.
        next_step: an msprobe_config section that records the place more closely (with "msprobe" in
            it; without, a config.json for PrecisionDebugger), or None.
        non_finite_in: of the cause non_finite, the sides that hold NaN or infinity: "A", "B".
        check_first: what differs before any tensor and can explain it, the nearest first.
        next_step_bytes: what that takes on disk, of one rank; None where that is not known.
        next_step_estimated: whether that is an estimate from the cells of the networks, of which
            nothing was recorded yet.
        next_step_whole: what all that may be to blame would take, where the next step is a round of
            a bisection over layers; else None.
        inside: what differs inside the record, as far as that is certain.
        argument: of a positional input, what `construct` calls the argument; "" if not known.
        source: where A called the origin, `File …, line …, in …` and the line; "" if not known.
        operator: of an operator, what it is called, e.g. `Mint.matmul`; "" where a cell or key data
            are to blame.
        cell: the cell to blame, or the one around the operator: "" outside every cell, None for key
            data and if not known.
        line: the file's own name and the line of `source`, e.g. `attention.py:88`; "" if not known.
        born: where what differs first is no more than rounding, the operator behind it that makes
            an error of it; None where there is none.
    """

    step: int
    rank: int
    phase: str | None
    record: str
    entry: str | None
    cause: Cause
    max_abs_err: float | None = None
    max_rel_err: float | None = None
    explanation: str = ""
    reasons: tuple[Message, ...] = ()
    agreed_before: int = 0
    agreed_phases: int = 0
    agreed_steps: int = 0
    last_agreeing: str | None = None
    next_step: dict[str, Any] | None = None
    next_step_bytes: int | None = None
    next_step_estimated: bool = False
    next_step_whole: int | None = None
    key: str | None = None
    occasion: Occasion = Occasion()
    culprit: Culprit | None = None
    non_finite_in: tuple[str, ...] = ()
    check_first: tuple[CheckFirst, ...] = ()
    inside: Inside | None = None
    argument: str = ""
    source: str = ""
    operator: str = ""
    cell: str | None = None
    line: str = ""
    born: Birth | None = None

    @property
    def is_explained(self) -> bool:
        """Whether a setting of its own cell, phase or role, or its initial weights, differ."""
        return any(check.near is not Nearness.RUN for check in self.check_first)

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        number, of_key = self.occasion.number, self.key is not None
        otherwise: dict[str, dict[str, Any]] = {
            "next_step_whole": {"next_step_whole_bytes": self.next_step_whole},
            "key": {
                "micro_step": number if of_key else None,
                "opening": None if of_key else number,
            },
            "occasion": {"times": self.occasion.times, "since": list(self.occasion.since)},
            "argument": {"argument": self.argument or None},
            "source": {"source": self.source or None},
            "operator": {"operator": self.operator or None},
            "line": {"line": self.line or None},
        }
        shown: dict[str, Any] = {}
        for name, value in by_fields(self).items():
            shown |= otherwise.get(name, {name: value})
        return shown


@dataclass(frozen=True)
class Spread:
    """How one phase, layer or key of the diverged step differs, from the first divergence on.

    Attributes:
        place: the phase, the layer's cell or the key.
        different, compared: how many of its records differ, and of how many.
        max_abs_err, max_rel_err: the largest errors where elements were compared, else None.
        factor: its largest relative distance, as a multiple of the one at the first divergence;
            the relative distance of two records is that of their elements, |a−b| / max(|a|, |b|)
            as L2 norms, or of their recorded L2 norms. None where neither is known.
        layers: of a phase, its layers in causal order.
    """

    place: str
    different: int
    compared: int
    max_abs_err: float | None
    max_rel_err: float | None
    factor: float | None = None
    layers: tuple[Spread, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        shown = by_fields(self)
        if not self.layers:
            del shown["layers"]
        return shown


@dataclass(frozen=True)
class RankDivergence(Shown):
    """Where one rank of two runs first diverges.

    Attributes:
        phase: None for key data.
        record: the first record of this rank that differs.
        micro_step: of key data; None for an entry's record.
    """

    rank: int
    step: int
    phase: str | None
    record: str
    micro_step: int | None = None
