"""What the comparison of one pair of records says."""

from __future__ import annotations

import math
from dataclasses import field
from fractions import Fraction
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages
from mindrlhf_msprobe.findings.as_json import words_of
from mindrlhf_msprobe.findings.words import Status


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
        return words_of(self.notes)

    @property
    def tolerance(self) -> str:
        """What `compared_by` says, likewise; "" if bitwise."""
        return words_of(self.compared_by)

    @property
    def suspicion(self) -> str:
        """What `suspicions` say, likewise; "" if there are none."""
        return words_of(self.suspicions)


def _is_finite(norm: Any) -> bool:
    """Return whether a norm is a number that is neither NaN nor infinite."""
    return isinstance(norm, (int, Fraction)) or (isinstance(norm, float) and math.isfinite(norm))


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
