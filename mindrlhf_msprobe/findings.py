"""What comparisons conclude: statuses, findings and the verdict. All that report/ knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mindrlhf_msprobe.storage.atomic import number_to_json

SCHEMA = 1


class Status(str, Enum):
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

    def __str__(self) -> str:
        return self.value

    @property
    def agrees(self) -> bool:
        """Whether such a pair counts as the same."""
        return self in (Status.WITHIN_TOLERANCE, Status.IDENTICAL)


class Outcome(str, Enum):
    """What a whole comparison says."""

    IDENTICAL = "identical"
    WITHIN_TOLERANCE = "within_tolerance"
    DIVERGED = "diverged"
    INCOMPARABLE = "incomparable"

    def __str__(self) -> str:
        return self.value


class Cause(str, Enum):
    """Why two runs first part; see docs/en/comparing.md."""

    COMPUTATION = "computation"
    PARAMETER = "parameter"
    INPUT = "input"
    DATA = "data"
    MISSING = "missing"
    SHAPE = "shape"
    DTYPE = "dtype"
    NON_FINITE = "non_finite"
    UNREADABLE = "unreadable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Finding:
    """The comparison of one pair of records.

    Attributes:
        step, rank, phase: where it stands; for key data the phase is the one whose result they
            are, or None.
        entry: the entry it belongs to; None for key data.
        key, micro_step: of key data; None for an entry's record.
        io: input, output, parameters, parameters_grad, or data.
        path: the place inside the structure of its entry or key.
        note: what a reader should know about the status, e.g. that only statistics were compared.
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
    note: str = ""
    stack: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Divergence:
    """Where two runs first part, and why.

    Attributes:
        record: the first record that differs, in causal order.
        entry: the origin: the innermost cell to blame; None for key data.
        agreed_before: how many records of this step and rank, before it, agree.
        next_step: an msprobe_config section that records the place more closely, or None.
    """

    step: int
    rank: int
    phase: str | None
    record: str
    entry: str | None
    cause: Cause
    max_abs_err: float | None
    max_rel_err: float | None
    explanation: str
    agreed_before: int = 0
    next_step: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that stands in verdict.json."""
        return {
            "step": self.step,
            "rank": self.rank,
            "phase": self.phase,
            "record": self.record,
            "entry": self.entry,
            "cause": self.cause.value,
            "max_abs_err": number_to_json(self.max_abs_err),
            "max_rel_err": number_to_json(self.max_rel_err),
            "explanation": self.explanation,
            "agreed_before": self.agreed_before,
            "next_step": self.next_step,
        }


@dataclass(frozen=True)
class Spread:
    """How one phase or one key of the diverged step differs, from the first divergence on.

    Attributes:
        place: the phase or the key.
        different, compared: how many of its records differ, and of how many.
        max_abs_err, max_rel_err: the largest errors where elements were compared, else None.
    """

    place: str
    different: int
    compared: int
    max_abs_err: float | None
    max_rel_err: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that stands in verdict.json."""
        return {
            "place": self.place,
            "different": self.different,
            "compared": self.compared,
            "max_abs_err": number_to_json(self.max_abs_err),
            "max_rel_err": number_to_json(self.max_rel_err),
        }


@dataclass(frozen=True)
class CoverageGap:
    """Records of one run that the other was configured not to record: listed, not a divergence."""

    reason: str
    only_in: str
    records: int

    def to_json(self) -> dict[str, Any]:
        """Return the object that stands in verdict.json."""
        return {"reason": self.reason, "only_in": self.only_in, "records": self.records}


@dataclass(frozen=True)
class Verdict:
    """What a comparison concludes.

    Attributes:
        spread: in causal order, where the difference went in the step and rank of the first
            divergence.
    """

    status: Outcome
    counts: dict[str, int]
    first_divergence: Divergence | None
    coverage: tuple[CoverageGap, ...] = ()
    spread: tuple[Spread, ...] = ()
    steps: int = 0
    ranks: int = 0
    phases: tuple[str, ...] = ()

    @property
    def compared(self) -> int:
        """How many pairs were looked at, missing ones included."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Comparison:
    """A finished comparison; true only if something was compared and nothing diverged.

    Attributes:
        findings: one for each pair, in causal order.
        problems: what could not be read of either run, and what it lost while recording.
        tables: the files written, by name, relative to `output_path`.
    """

    run_a: str
    run_b: str
    verdict: Verdict
    findings: tuple[Finding, ...] = field(repr=False)
    problems: tuple[str, ...] = ()
    output_path: str | None = None
    tables: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        verdict, first = self.verdict, self.verdict.first_divergence
        return {
            "schema": SCHEMA,
            "status": verdict.status.value,
            "counts": verdict.counts,
            "first_divergence": first.to_json() if first else None,
            "tables": list(self.tables),
            "spread": [place.to_json() for place in verdict.spread],
            "coverage": [gap.to_json() for gap in verdict.coverage],
            "problems": list(self.problems),
        }
