"""What comparisons conclude: statuses, findings and the verdict. All that report/ knows."""

from __future__ import annotations

import math
import os
import pickle
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from enum import Enum
from fractions import Fraction
from itertools import groupby, islice
from typing import Any, overload

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, in_words, message
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.layout import WITHHELD

SCHEMA = 1
#: Values of a difference that stand for others: see `layout.WITHHELD`.
ANOTHER_WITHHELD = f"{WITHHELD}, another value"
OTHER_ON_EACH_RANK = "other values on each rank"
#: Values that stand for others, and what they are called.
STAND_INS = {
    WITHHELD: message("console.withheld"),
    ANOTHER_WITHHELD: message("console.another_withheld"),
    OTHER_ON_EACH_RANK: message("console.other_on_each_rank"),
}
#: Who wrote a verdict.json.
TOOL = "mindrlhf_msprobe"


class Keyword(str, Enum):
    """A word of ours that is shown as it is, in any language."""

    def __str__(self) -> str:
        return str(self.value)


class Status(Keyword):
    """What the comparison of one pair of records says; where several fit, the first of these."""

    UNREADABLE = "unreadable"
    ONLY_IN_A = "only_in_a"
    ONLY_IN_B = "only_in_b"
    DTYPE_MISMATCH = "dtype_mismatch"
    SHAPE_MISMATCH = "shape_mismatch"
    NON_FINITE = "non_finite"
    DIFFERENT = "different"
    WITHIN_TOLERANCE = "within_tolerance"
    IDENTICAL = "identical"

    @property
    def agrees(self) -> bool:
        """Whether such a pair counts as the same."""
        return self in (Status.WITHIN_TOLERANCE, Status.IDENTICAL)


class Outcome(Keyword):
    """What a whole comparison says."""

    IDENTICAL = "identical"
    WITHIN_TOLERANCE = "within_tolerance"
    DIVERGED = "diverged"
    INCOMPARABLE = "incomparable"


class CulpritCode(Keyword):
    """What beyond a record and its cell is to blame; see docs/en/comparing.md."""

    EARLIER_UPDATE = "earlier_update"
    OPTIMIZER = "optimizer"
    OPTIMIZER_OR_SYNCHRONISATION = "optimizer_or_synchronisation"
    UPDATE_CLOSE = "update_close"
    BEFORE_OPTIMIZER = "before_optimizer"
    GRADIENTS_NOT_RECORDED = "gradients_not_recorded"
    UPDATE_NOT_RECORDED = "update_not_recorded"
    NOT_SYNCHRONISED = "not_synchronised"
    SYNCHRONISATION = "synchronisation"
    FOLLOWS_TRAINED = "follows_trained"
    NOT_MOVED = "not_moved"
    CHANGED_BETWEEN = "changed_between"
    SAMPLING = "sampling"
    SAMPLING_OR_LOGITS = "sampling_or_logits"
    LOSS = "loss"
    SCHEDULE = "schedule"


#: Of the remark of a comparison that left out layer data, as msprobe's SingleComparator does.
KEY_DATA_ONLY = "pairing.key_data_only"


class Cause(Keyword):
    """Why two runs first diverge; see docs/en/comparing.md."""

    COMPUTATION = "computation"
    PARAMETER = "parameter"
    INPUT = "input"
    DATA = "data"
    MISSING = "missing"
    SHAPE = "shape"
    DTYPE = "dtype"
    NON_FINITE = "non_finite"
    UNREADABLE = "unreadable"
    STOPPED = "stopped"
    FILE = "file"


class _Shown:
    """What verdict.json holds with all its fields, under their names."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return _by_fields(self)


def _by_fields(found: Any) -> dict[str, Any]:
    return {of.name: _as_json(getattr(found, of.name)) for of in fields(found)}


def _as_json(value: Any) -> Any:
    """Return what JSON holds of a value, and of those inside it."""
    if isinstance(value, Message):
        return value.as_json()
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_as_json(item) for item in value]
    return number_to_json(value)


def _by_slots(one: Any) -> tuple[Any, ...]:
    """Return how an object is made again: pickled so, it comes back in half the time."""
    return type(one), tuple(getattr(one, name) for name in one.__slots__)


@dataclass(frozen=True, slots=True)
class Side:
    """One run's record as a table shows it: dtype, shape and statistics, None where not there."""

    name: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    max: Any = None
    min: Any = None
    mean: Any = None
    norm: Any = None
    value: Any = None
    fingerprint: str | None = None
    data_name: str | None = None
    nan_count: int | None = None
    inf_count: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_slots(self)


@dataclass(frozen=True, slots=True)
class Metrics:
    """How far two arrays of one shape are apart, element by element.

    Attributes:
        equal_percent: share of equal elements; two NaNs are equal, −0.0 equals 0.0.
        first_mismatch: flat index of the first different element, None if there is none.
        max_abs_err: largest |a−b| over elements that are finite on both sides.
        max_rel_err: largest |a−b| / max(|a|, |b|) over the same elements, 0 where both are 0.
        within_1e3_percent, within_5e3_percent, within_1e2_percent: share of elements whose
            relative error is below 1/1000, 5/1000 and 1/100.
        cosine: cosine of the angle between the arrays over the same elements, None if one is zero.
        euclidean: L2 norm of a−b over the same elements.
        nan_a, nan_b, inf_a, inf_b: how many elements are NaN, infinite.
    """

    equal_percent: float
    first_mismatch: int | None
    max_abs_err: float | None
    max_rel_err: float | None
    within_1e3_percent: float
    within_5e3_percent: float
    within_1e2_percent: float
    cosine: float | None
    euclidean: float | None
    nan_a: int = 0
    nan_b: int = 0
    inf_a: int = 0
    inf_b: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_slots(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one pair of records.

    Attributes:
        step, rank, phase: where it stands; for key data the phase is the one whose result they
            are, or None.
        entry: the entry it belongs to; None for key data.
        key, micro_step: of key data; None for an entry's record.
        io: input, output, parameters, parameters_grad, or data.
        path: the place inside the structure of its entry or key.
        argument: of a positional input, what `construct` calls the argument; "" if not known.
        notes: what a reader should know about the status, e.g. that only statistics were compared.
        compared_by: a tolerance and the rule that gave it, and the noise of further runs; empty if
            bitwise.
        suspicions: why a record that agrees deserves a look all the same; empty if it does not.
    """

    record: str
    status: Status
    step: int
    rank: int
    phase: str | None
    io: str
    path: str
    a: Side
    b: Side
    entry: str | None = None
    key: str | None = None
    micro_step: int | None = None
    metrics: Metrics | None = None
    notes: Messages = ()
    compared_by: Messages = ()
    suspicions: Messages = ()
    stack: tuple[str, ...] = field(default=(), repr=False)
    argument: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_slots(self)

    @property
    def of_text(self) -> bool:
        """Whether text was compared; the distance of its bytes means nothing."""
        sides = (self.a, self.b)
        return any(isinstance(side.value, str) and side.shape is not None for side in sides)

    @property
    def distance(self) -> float | None:
        """‖a−b‖ / max(‖a‖, ‖b‖) of the elements, else of the recorded norms; None if unknown."""
        a, b = self.a.norm, self.b.norm
        if not (_is_finite(a) and _is_finite(b)) or self.of_text:
            return None
        larger = max(abs(a), abs(b))
        if not larger:
            return 0.0
        if self.metrics is not None and self.metrics.euclidean is not None:
            return self.metrics.euclidean / larger
        return float(abs(a - b) / larger)

    @property
    def note(self) -> str:
        """What `notes` say, in the language that was chosen, else the locale's."""
        return _in_words(self.notes)

    @property
    def tolerance(self) -> str:
        """What `compared_by` says, likewise; "" if bitwise."""
        return _in_words(self.compared_by)

    @property
    def suspicion(self) -> str:
        """What `suspicions` say, likewise; "" if there are none."""
        return _in_words(self.suspicions)


def _is_finite(norm: Any) -> bool:
    """Return whether a norm is a number that is neither NaN nor infinite."""
    return isinstance(norm, (int, Fraction)) or (isinstance(norm, float) and math.isfinite(norm))


def _in_words(messages: Messages) -> str:
    if not messages:
        return ""
    from mindrlhf_msprobe.report.messages import texts_of  # the words are made when asked for

    return texts_of(messages)


def _with_codes(name: str, messages: Messages) -> dict[str, Any]:
    """Return messages as JSON, in words and as codes; nothing of none."""
    said = {name: list(map(str, messages)), f"{name}_codes": _as_json(messages)}
    return said if messages else {}


class Nearness(Keyword):
    """How near what differs before any tensor lies to a finding."""

    CELL = "cell"
    PHASE = "phase"
    ROLE = "role"
    RUN = "run"


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


@dataclass(frozen=True, slots=True)
class Agreement:
    """The records of one phase, step and rank that agree, where they are not listed one by one.

    Attributes:
        identical, within_tolerance: how many there are.
        suspicious: how many of them deserve a look all the same.
        suspicion: which is the first of those, and why; None if there is none.
    """

    step: int
    rank: int
    phase: str
    identical: int
    within_tolerance: int = 0
    suspicious: int = 0
    suspicion: Message | None = None

    @property
    def records(self) -> int:
        """How many records agree."""
        return self.identical + self.within_tolerance


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
class Some(_Shown):
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
            "parameters": {} if self.change is None else _as_json(self.change.parameters),
            "where": _as_json(self.where),
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
        shown = _by_fields(self)
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
        for name, value in _by_fields(self).items():
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
        shown = _by_fields(self)
        if not self.layers:
            del shown["layers"]
        return shown


@dataclass(frozen=True)
class RankDivergence(_Shown):
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


@dataclass(frozen=True)
class Difference:
    """Something about two runs that differs before any tensor is looked at.

    Attributes:
        section: what it belongs to: schema, versions, device, world, seeds, determinism, modes,
            cells, optimizers, environment, configurations, msprobe_config or initial_weights; of
            `preflight compare` also packages, checkpoints, data, script and random_calls.
        setting: by its path inside the section, e.g. `actor.model.num_layers`; "" where it is the
            mode of a phase, or the section as a whole.
        a, b: what each run says, as text; None where it says nothing.
        role, phases: of modes, cells and optimizers, whose network it is, and the phases if it does
            not hold for all of that role.
        step: the step from which on they differ, if not from the first.
        cells, kind: of modes and cells, the cells it holds for, and their class.
        ranks: those it holds for, if not for all.
    """

    section: str
    setting: str
    a: str | None
    b: str | None
    role: str | None = None
    phases: tuple[str, ...] = ()
    step: int | None = None
    cells: tuple[str, ...] = field(default=(), repr=False)
    kind: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def label(self) -> Message:
        """What it is called: the setting, and for what it holds where that is not everything."""
        where = {"phases": list(self.phases) if self.section in ("modes", "cells") else []}
        of_cells = {"more": max(0, len(self.cells) - 1), "kind": self.kind}
        which = {"of_phase": self.section == "modes", "step": self.step, "ranks": list(self.ranks)}
        return Message("preflight.name", {"setting": self.setting, **of_cells, **where, **which})

    @property
    def name(self) -> str:
        """What it is called, in English: a name in verdict.json stays in any language."""
        return in_words(self.label, "en")

    @property
    def phase(self) -> str | None:
        """The phase, if it holds for one alone."""
        return self.phases[0] if len(self.phases) == 1 else None

    @property
    def is_place(self) -> bool:
        """Whether both say where a file lies, which each run has to say otherwise."""
        return os.sep in (self.a or "") and os.sep in (self.b or "")

    @property
    def is_of_recording(self) -> bool:
        """Whether it says what was recorded, as a second round has to say otherwise."""
        return self.section == SECTION or SECTION in self.setting.split(".")

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        several = list(self.phases) if len(self.phases) > 1 else None
        name = self.name
        more = {
            **{"role": self.role, "phase": self.phase, "phases": several, "step": self.step},
            "setting": self.setting if name != self.setting else None,
            "ranks": list(self.ranks) or None,
        }
        return {
            **{"section": self.section, "name": name, "a": self.a, "b": self.b},
            **{key: value for key, value in more.items() if value is not None},
        }


@dataclass(frozen=True)
class Weights(_Shown):
    """The parameters of one role's network when it was first entered, by their fingerprints.

    Attributes:
        compared: how many parameters both runs have.
        different: the names of those whose bytes, dtype or shape differ.
        only_in_a, only_in_b: the names that one run has alone.
    """

    role: str
    compared: int
    different: tuple[str, ...] = ()
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether both runs started with the same parameters, and at least one was compared."""
        return self.compared > 0 and not self.differ

    @property
    def differ(self) -> bool:
        """Whether any parameter is another one, or one run's alone."""
        return bool(self.different or self.only_in_a or self.only_in_b)


@dataclass(frozen=True)
class Preflight:
    """What differs between two runs before any tensor: settings, versions, weights.

    Attributes:
        differences: in the order of the sections.
        weights: one for each role whose initial parameters both runs recorded.
        unknown: what could not be compared, and why.
    """

    differences: tuple[Difference, ...] = ()
    weights: tuple[Weights, ...] = ()
    not_compared: Messages = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """What `not_compared` says, each in the language that was chosen, else the locale's."""
        return tuple(map(str, self.not_compared))

    @property
    def differ(self) -> bool:
        """Whether anything that both sides say is said otherwise."""
        return bool(self.differences) or any(weights.differ for weights in self.weights)

    def as_result(self, a: str, b: str) -> dict[str, Any]:
        """Return what `preflight compare` writes of two sides."""
        status = "different" if self.differ else "same"
        head = {"schema": SCHEMA, "tool": TOOL, "kind": "preflight_comparison", "status": status}
        return {**head, "a": a, "b": b, **self.to_json()}

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return {
            "differences": _as_json(self.differences),
            "initial_weights": _as_json(self.weights),
            "unknown": list(self.unknown),
            "unknown_codes": _as_json(self.not_compared),
        }


@dataclass(frozen=True)
class CoverageGap:
    """Records of one run that the other was configured not to record: listed, not a divergence.

    Attributes:
        reason: why, in the language of the answer; "" before there is one.
        only_in: A, B or both.
        message: the same, as a code with parameters.
    """

    reason: str
    only_in: str
    records: int
    message: Message | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        said = {"reason": self.reason, "only_in": self.only_in, "records": self.records}
        return said if self.message is None else {**said, **self.message.as_json()}


def gathered(gaps: Iterable[CoverageGap]) -> tuple[CoverageGap, ...]:
    """Return gaps of which those for one reason on one side are one, with the records of all."""
    first: dict[tuple[Any, ...], CoverageGap] = {}
    records: Counter[tuple[Any, ...]] = Counter()
    for gap in gaps:
        what = gap.message or gap.reason, gap.only_in
        first.setdefault(what, gap)
        records[what] += gap.records
    return tuple(replace(gap, records=records[what]) for what, gap in first.items())


@dataclass(frozen=True)
class NonFinite:
    """The records that agree and hold NaN or infinity on both sides.

    Attributes:
        records: how many there are.
        step, rank, phase, record: the first of them in causal order; None if there is none.
    """

    records: int = 0
    step: int | None = None
    rank: int | None = None
    phase: str | None = None
    record: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        first = {"step": self.step, "rank": self.rank, "phase": self.phase, "record": self.record}
        return {"records": self.records, "first": first if self.records else None}


@dataclass(frozen=True)
class Suspicious(NonFinite):
    """The records that agree although they are unhealthy: NaN or infinity that is not meant.

    Left out are -inf in a forward pass and in key data of masks, and gradients of a step that
    overflowed and is retried.

    Attributes:
        micro_step: of the first, if it is key data; else None.
        what: what the first holds.
    """

    micro_step: int | None = None
    what: Message | None = None

    @property
    def text(self) -> str:
        """How many there are and the first, in the language that was chosen, else the locale's."""
        known = {of.name: getattr(self, of.name) for of in fields(self)}
        return _in_words((message("console.suspicious", **known),)) if self.records else ""

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        first = super().to_json()["first"]
        if first is not None and self.what is not None:
            first |= {"micro_step": self.micro_step, **self.what.as_json()}
        return {"count": self.records, "first": first, "text": self.text}


@dataclass(frozen=True)
class Verdict:
    """What a comparison concludes.

    Attributes:
        spread: in causal order, where the difference went in the step and rank of the first
            divergence.
        parted: every rank that diverges, the one that does so first at the head, in the order in
            which they do; see `comparison.verdict.conclude`.
        agreeing_ranks: the ranks of which everything that was compared agrees.
        not_read: where all that was compared agrees and the runs are incomparable all the same:
            what of them could not be read.
        non_finite: what agrees although it is NaN or infinite, on both sides.
        suspicious: what of that is not meant to be so.
    """

    status: Outcome
    counts: dict[str, int]
    first_divergence: Divergence | None
    coverage: tuple[CoverageGap, ...] = ()
    spread: tuple[Spread, ...] = ()
    steps: int = 0
    ranks: int = 0
    phases: tuple[str, ...] = ()
    parted: tuple[RankDivergence, ...] = ()
    agreeing_ranks: tuple[int, ...] = ()
    not_read: Messages = ()
    non_finite: NonFinite = NonFinite()
    suspicious: Suspicious = Suspicious()

    @property
    def unread(self) -> tuple[str, ...]:
        """What `not_read` says, each in the language that was chosen, else the locale's."""
        return tuple(map(str, self.not_read))

    @property
    def compared(self) -> int:
        """How many pairs were looked at, missing ones included."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Stopped(_Shown):
    """Where a run stopped that did not finish.

    Attributes:
        run: A or B.
        state: failed, interrupted (it ended inside a step, without close()), killed, or running.
        phase: the phase that was open then; None where none was, or it is not known.
        error, text: the exception's type and text; None and "" where there was none.
        ranks: those that stopped there.
    """

    run: str
    state: str
    step: int
    phase: str | None
    error: str | None
    text: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RuleUse:
    """How often one tolerance, or the noise of further runs, decided.

    Attributes:
        compared_by: the tolerance, or the noise, as `Finding.compared_by` has it.
        records: how many records were compared by it.
        passed: how many of them agree only because of it.
    """

    compared_by: Messages
    records: int
    passed: int

    @property
    def rule(self) -> str:
        """What `compared_by` says, in the language that was chosen, else the locale's."""
        return _in_words(self.compared_by)

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        codes = {"codes": _as_json(self.compared_by)}
        return {"rule": self.rule, "records": self.records, "passed": self.passed, **codes}


class Relation(Keyword):
    """How the first divergence stands to that of an earlier comparison."""

    SAME = "same"  #: the same cell, or the same key
    INSIDE = "inside"  #: a cell of the phase that the earlier key came of
    BEFORE = "before"  #: a cell of another phase of the same step
    ELSEWHERE = "elsewhere"  #: another place
    NEW = "new"  #: the earlier comparison found none
    NOT_SEEN = "not_seen"  #: only the earlier comparison found one
    AGREED = "agreed"  #: neither found one


@dataclass(frozen=True)
class Earlier:
    """What an earlier comparison found, of the same training recorded otherwise.

    Attributes:
        path: where it was written.
        step, rank, phase, record, entry: of its first divergence; None where it found none.
        all_cells: whether its runs left no cell out by name, and all of them were compared.
        agreed_before: how many records of that step and rank, before it, agreed.
    """

    path: str
    status: Outcome
    step: int | None = None
    rank: int | None = None
    phase: str | None = None
    record: str | None = None
    entry: str | None = None
    all_cells: bool = False
    agreed_before: int | None = None

    def knows(self, finding: Finding, origin: str | None) -> bool:
        """Return whether it looked at all cells and blamed the same one."""
        place = (self.step, self.phase, self.entry)
        return (
            self.all_cells and origin is not None and place == (finding.step, finding.phase, origin)
        )

    def to_json(self, relation: Relation) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return {"path": self.path, "relation": relation.value, **_by_fields(self)}


@dataclass(frozen=True)
class Chosen:
    """Which part of two runs the caller wanted compared, and what was left out by that.

    Attributes:
        steps: ranges of steps, e.g. 2-5; "" for all.
        include, exclude: regular expressions on the names of records.
        keys: a key, or two that are compared, with a `=` between them.
        common: what one run alone has is coverage.
        first_only: nothing was compared after the first divergence.
        steps_left_out: those that were not asked for.
        keys_left_out: those that were not asked for; with `keys`, no cell was compared either.
        steps_after: those behind the first divergence, with `first_only`.
    """

    steps: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    common: bool = False
    first_only: bool = False
    steps_left_out: tuple[int, ...] = ()
    keys_left_out: tuple[str, ...] = ()
    steps_after: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        shown = {**_by_fields(self), "steps": self.steps or None}
        left_out = {
            "steps": shown.pop("steps_left_out"),
            "keys": shown.pop("keys_left_out"),
            "layer_data": bool(self.keys),
            "steps_after_the_first_divergence": shown.pop("steps_after"),
        }
        return {**shown, "left_out": left_out}


@dataclass(frozen=True)
class Comparison:
    """A finished comparison; true only if something was compared and nothing diverged.

    Attributes:
        findings: one for each pair, in causal order; those of cells that agree are left out where
            they are in `agreements`.
        agreements: of a comparison of very many records, what agrees, by phase, step and rank.
        preflight: what differs before any tensor.
        rules: the tolerances that were used, and how often.
        remarks: how the runs were brought together, e.g. which prefix was taken off.
        incomplete: what could not be read of either run, and what it lost while recording.
        tables: the files written, by name, relative to `output_path`.
        fingerprints: (name, fingerprint) of each, by which a later comparison knows them again.
        verdict_file: what the verdict is called beside them.
        chosen: which part of the runs was compared; None: all of it.
        all_cells: whether neither run left out cells by their names.
        earlier: what an earlier comparison found, and how this one stands to it.
        stops: where the runs stopped, as far as they did not finish.
    """

    run_a: str
    run_b: str
    verdict: Verdict
    findings: Sequence[Finding] = field(repr=False)
    preflight: Preflight = Preflight()
    rules: tuple[RuleUse, ...] = ()
    remarks: Messages = ()
    incomplete: Messages = ()
    output_path: str | None = None
    tables: tuple[str, ...] = ()
    fingerprints: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    verdict_file: str = "verdict.json"
    chosen: Chosen | None = None
    agreements: tuple[Agreement, ...] = field(default=(), repr=False)
    all_cells: bool = True
    earlier: tuple[Earlier, Relation] | None = None
    stops: tuple[Stopped, ...] = ()

    def by_place(self) -> Iterator[tuple[tuple[int, int], Iterator[Finding]]]:
        """Yield each step and rank, and its findings in causal order."""
        if isinstance(self.findings, KeptFindings):
            yield from self.findings.by_place()
        else:
            yield from groupby(self.findings, lambda finding: (finding.step, finding.rank))

    @property
    def notes(self) -> tuple[str, ...]:
        """What `remarks` say, each in the language that was chosen, else the locale's."""
        return tuple(map(str, self.remarks))

    @property
    def problems(self) -> tuple[str, ...]:
        """What `incomplete` says, likewise."""
        return tuple(map(str, self.incomplete))

    def __bool__(self) -> bool:
        return self.verdict.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        verdict, first = self.verdict, self.verdict.first_divergence
        return {
            "schema": SCHEMA,
            "tool": TOOL,
            "status": verdict.status.value,
            "counts": verdict.counts,
            **_with_codes("unread", verdict.not_read),
            "non_finite_on_both_sides": verdict.non_finite.to_json(),
            "suspicious": verdict.suspicious.to_json(),
            "first_divergence": _as_json(first),
            "tables": list(self.tables),
            "fingerprints": dict(self.fingerprints),
            "spread": _as_json(verdict.spread),
            "ranks": _as_json({"parted": verdict.parted, "agreeing": verdict.agreeing_ranks}),
            "preflight": self.preflight.to_json(),
            "tolerance": _as_json(self.rules),
            "coverage": _as_json(verdict.coverage),
            "notes": list(self.notes),
            "note_codes": _as_json(self.remarks),
            "problems": list(self.problems),
            "problem_codes": _as_json(self.incomplete),
            "recorded": {"all_cells": self.all_cells},
            **({} if self.chosen is None else {"chosen": self.chosen.to_json()}),
            **({} if self.earlier is None else {"after": self.earlier[0].to_json(self.earlier[1])}),
            "stopped": _as_json(self.stops),
        }


#: Which table a finding stands in: (key, True), or (phase, False).
TableName = tuple[str, bool]


def table_of(finding: Finding) -> TableName:
    """Return which table a finding stands in."""
    return (finding.phase or "", False) if finding.key is None else (finding.key, True)


def _holds_text(finding: Finding) -> bool:
    """Return whether a finding is of a text on either side."""
    return isinstance(finding.a.value, str) or isinstance(finding.b.value, str)


class FindingsByTable:
    """The findings of one place, by their tables.

    Attributes:
        ranks: which of them stand in each table, with their numbers of findings.
        by_elements, texts: the tables in which elements were compared, or texts.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._groups: dict[TableName, list[Finding]] = {}
        for finding in findings:
            self._groups.setdefault(table_of(finding), []).append(finding)
        groups = self._groups.items()
        self.ranks = {table: Counter(f.rank for f in found) for table, found in groups}
        self.by_elements = {t for t, found in groups if any(f.metrics is not None for f in found)}
        self.texts = {table for table, found in groups if any(map(_holds_text, found))}

    def in_table(self, table: TableName, rank: int | None = None) -> Iterable[Finding]:
        """Return the findings of one table, those of one rank if one is given."""
        if rank is None:
            return self._held(table)
        held = rank in self.ranks.get(table, ())
        return (finding for finding in self._held(table) if finding.rank == rank) if held else ()

    def _held(self, table: TableName) -> list[Finding]:
        return self._groups.get(table, [])


class PackedFindings(FindingsByTable, Sequence["Finding | None"]):
    """The findings of one place, compressed: a fifteenth of what they take as objects."""

    def __init__(self, findings: Iterable[Finding | None]) -> None:
        findings = list(findings)
        super().__init__(finding for finding in findings if finding is not None)
        #: The step and rank they are of.
        self.place = next(((f.step, f.rank) for f in findings if f is not None), None)
        numbers = {table: number for number, table in enumerate(self._groups)}
        #: Of each finding the number of its table, -1 for None.
        self._order = array("l", (-1 if f is None else numbers[table_of(f)] for f in findings))
        self._packed = {
            table: zlib.compress(pickle.dumps(found, pickle.HIGHEST_PROTOCOL), 1)
            for table, found in self._groups.items()
        }
        self._groups.clear()

    def _held(self, table: TableName) -> list[Finding]:
        packed = self._packed.get(table)
        return [] if packed is None else list(pickle.loads(zlib.decompress(packed)))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Finding | None]:
        groups = [iter(self._held(table)) for table in self._packed]
        return (None if number < 0 else next(groups[number]) for number in self._order)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def _unpacked(place: PackedFindings) -> Iterator[Finding]:
    for finding in place:
        if finding is not None:
            yield finding


class KeptFindings(Sequence[Finding]):
    """The findings of all places, one after another, unpacked as they are looked at.

    Attributes:
        ranks, by_elements, texts: of all places, as `FindingsByTable` has them of one.
    """

    def __init__(self, places: Iterable[Iterable[Finding | None]]) -> None:
        self._places = [
            place if isinstance(place, PackedFindings) else PackedFindings(place)
            for place in places
        ]
        self.ranks: dict[TableName, Counter[int]] = {}
        for place in self._places:
            for table, ranks in place.ranks.items():
                self.ranks.setdefault(table, Counter()).update(ranks)
        self.by_elements = {table for place in self._places for table in place.by_elements}
        self.texts = {table for place in self._places for table in place.texts}

    def by_place(self) -> Iterator[tuple[tuple[int, int], Iterator[Finding]]]:
        """Yield each step and rank, and its findings, which are unpacked when they are taken."""
        for place in self._places:
            if place.place is not None:
                yield place.place, _unpacked(place)

    def in_table(self, table: TableName, rank: int | None = None) -> Iterator[Finding]:
        """Yield the findings of one table, those of one rank if one is given."""
        for place in self._places:
            yield from place.in_table(table, rank)

    def __len__(self) -> int:
        return sum(ranks.total() for ranks in self.ranks.values())

    def __iter__(self) -> Iterator[Finding]:
        return (finding for place in self._places for finding in place if finding is not None)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        index += len(self) if index < 0 else 0
        found = next(islice(self, index, None), None) if index >= 0 else None
        if found is None:
            raise IndexError(message("error.no_finding"))
        return found
