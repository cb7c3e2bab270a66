"""What a second computation and `replay` conclude of one run: all that report knows of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages
from mindrlhf_msprobe.errors import DIVERGED, SAME, UNDECIDED
from mindrlhf_msprobe.findings.words import SCHEMA, Keyword, Shown, by_names
from mindrlhf_msprobe.storage.step_lines import CallOpinion, TensorOpinion


class Accuracy(Keyword):
    """What is thought of one tensor, of all calls of a cell or operator, or of a run."""

    ORDINARY = "ordinary"
    WRONG = "wrong"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class RankedTensor(Shown):
    """One tensor of a cell or operator, over all its calls in one phase.

    Attributes:
        phase: of the calls.
        call: entry without the number of the call, e.g. `Functional.softmax.forward`.
        cell: the cell it is, or is in; "" outside every cell.
        tensor: the record's name behind the entry's, e.g. `output.0`.
        opinion: the gravest of all calls.
        counts: opinion → calls.
        precision: the floating dtype whose rounding counts.
        worst: the call's tensor with the largest ratio among those of that opinion.
        step, rank, entry: where that is.
        origin: whether it is wrong and nothing inside it is, in the call that is wrong first.
        gaps: calls that are undecided, and whose opinion is missed.
        first: place of the first wrong call in the order of the run; None where none is wrong.
        first_call, first_tensor: that call, and what is thought of the tensor there.
    """

    phase: str
    call: str
    cell: str
    tensor: str
    opinion: Accuracy
    counts: dict[str, int]
    precision: str
    worst: TensorOpinion
    step: int
    rank: int
    entry: str
    origin: bool = False
    gaps: int = 0
    first: int | None = None
    first_call: CallOpinion | None = None
    first_tensor: TensorOpinion | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        own = ("phase", "call", "cell", "tensor", "opinion", "calls=counts", "precision")
        worst = ("record", "index=at", "ratio", "error", "explained", "actual", "exact", "reason")
        return {
            **by_names(self, *own, "origin", "step", "rank", "entry"),
            **by_names(self.worst, *worst),
            "first_step": None if self.first_call is None else self.first_call.step,
        }


@dataclass(frozen=True, slots=True)
class NotComputed(Shown):
    """Calls on which there is no second opinion.

    Attributes:
        calls: how many.
        entry: the first of them.
        needed: whether an opinion is missed; see `CallOpinion`.
    """

    _shown = ("call", "cell", "calls", "entry", "needed", "why!s", "why_code=why")

    call: str
    cell: str
    why: Message
    calls: int
    entry: str
    needed: bool = True

    @property
    def name(self) -> str:
        """What lacks an opinion: the operator that has no formula, else the call, and its cell."""
        return str(self.why.params.get("operator") or _named(self.call, self.cell))


@dataclass(frozen=True)
class AccuracyResult:
    """What a run's opinions come to.

    Attributes:
        path: of the run.
        ranked: the gravest first, each by its ratio.
        not_computed: what there is no opinion on, and why.
        calls, seconds: that were computed again, and what it took.
        gaps: calls of these that have no opinion, or are undecided, and whose opinion is missed;
            and lines that are not what they should be.
        problems: what of the run could not be read.
    """

    path: str
    ranked: tuple[RankedTensor, ...]
    not_computed: tuple[NotComputed, ...] = ()
    calls: int = 0
    seconds: float = field(default=0.0)
    gaps: int = 0
    problems: Messages = ()

    @property
    def status(self) -> Accuracy:
        """Wrong where anything is; ordinary where all that computes has an opinion."""
        found = {one.opinion for one in self.ranked}
        if Accuracy.WRONG in found:
            return Accuracy.WRONG
        decided = Accuracy.ORDINARY in found and not self.gaps
        return Accuracy.ORDINARY if decided else Accuracy.UNDECIDED

    @property
    def without_opinion(self) -> tuple[str, ...]:
        """What there should be an opinion on and is none, by name, each once."""
        names = [one.name for one in self.not_computed if one.needed]
        names += [_named(one.call, one.cell) for one in self.ranked if one.gaps]
        return tuple(dict.fromkeys(names))

    @property
    def origins(self) -> tuple[RankedTensor, ...]:
        """What is wrong while nothing inside it is, in the order of the run."""
        found = [one for one in self.ranked if one.origin]
        return tuple(sorted(found, key=lambda one: one.first or 0))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        origins = [one.to_json() for one in self.origins]
        return {
            "schema": SCHEMA,
            **by_names(self, "run=path", "status"),
            "first": origins[0] if origins else None,
            "origins": origins,
            **by_names(self, "ranked", "not_computed", "without_opinion", "calls", "gaps"),
            **by_names(self, "problems!s"),
            "seconds": round(self.seconds, 3),
        }


def _named(call: str, cell: str) -> str:
    return call if call.startswith("Cell.") or not cell else f"{call} @ {cell}"


#: Verdicts, the most suspicious first.
VERDICTS = ("wrong", "undecided", "unjudged", "ordinary")


def exit_code_of(verdicts: Iterable[str]) -> int:
    """Return the exit code that says whether what was recorded is right.

    What computes nothing in floating point, and has no opinion, does not count beside what does.
    """
    found = {*verdicts} - {"unjudged"}
    if "wrong" in found:
        return DIVERGED
    return SAME if found == {"ordinary"} else UNDECIDED


@dataclass(frozen=True)
class ReplayedOperator(Shown):
    """One call of an operator that was computed again.

    Attributes:
        entry, phase, step, rank: where it was recorded.
        verdict: ordinary (rounding explains how far it is from float64), wrong, undecided, or
            unjudged: there is no opinion, and no floating-point tensor to compute with.
        value: the output or gradient that is furthest off; "" where none was compared.
        share: how far it is, as a multiple of what rounding explains; None as before.
        ulp, max_abs, relative: how far it is from what it was compared with.
        dtype: of the value.
        drawn: whether its inputs were drawn in the recorded range, as there were statistics alone:
            then it is judged as it computes here, not as it was recorded.
        notes: what else is to be said, in the language that was spoken.
    """

    entry: str
    phase: str
    step: int
    rank: int
    verdict: str
    value: str = ""
    share: float | None = None
    ulp: float | None = None
    max_abs: float | None = None
    relative: float | None = None
    dtype: str = ""
    drawn: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplayedOperators(Shown):
    """All operators of a run, the most suspicious first.

    Attributes:
        run: its path.
        file: the table that was written.
    """

    _shown = ("run", "file!s", "operators")

    run: str
    operators: tuple[ReplayedOperator, ...]
    file: Path

    @property
    def verdicts(self) -> list[str]:
        """Those of all."""
        return [one.verdict for one in self.operators]
