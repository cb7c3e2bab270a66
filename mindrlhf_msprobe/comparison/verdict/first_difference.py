"""A step of a rank whose pairs have been compared, and the first of them that does not agree."""

from __future__ import annotations

from functools import cached_property

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.planner import Pair, StepPlan
from mindrlhf_msprobe.comparison.pairing.timeline import EventKey
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import Earlier, Finding, Status
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Record, is_optimizer_state

#: Pairs in causal order, each with its finding.
PairFindings = tuple[tuple[Pair, "Finding | None"], ...]

ONE_SIDED = (Status.ONLY_IN_A, Status.ONLY_IN_B)


@dataclass(frozen=True)
class LeftOut:
    """What the caller left out of a comparison, as far as the first divergence may come of it.

    Attributes:
        records: how many stand before it; where it is an entry's output, inside that entry.
        all_else: all cells and other keys were left out, not some by their names.
        given: what the entry was given, as far as it was left out and differs.
    """

    records: int = 0
    all_else: bool = False
    given: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.given)


@dataclass(frozen=True)
class StepFindings:
    """The pairs of one step and rank in causal order, each with its finding.

    A pair without a finding was not recorded by choice on one side, cannot be compared, or was left
    out of the comparison.
    """

    plan: StepPlan
    pairs: PairFindings
    left_out: LeftOut = LeftOut()
    earlier: Earlier | None = None


@dataclass(frozen=True)
class FirstDifference:
    """The first pair of a step and rank, in causal order, that does not agree.

    Attributes:
        index: its number among the pairs of the step.
    """

    step: StepFindings
    index: int
    runs: tuple[Run, Run]

    @property
    def pairs(self) -> PairFindings:
        """All pairs of the step."""
        return self.step.pairs

    @property
    def before(self) -> PairFindings:
        """The pairs before it."""
        return self.pairs[: self.index]

    @property
    def may_hold_cells(self) -> bool:
        """Whether both runs are of tools that record cells at all."""
        return all(run.dialect.records_cells for run in self.runs)

    @property
    def left_out(self) -> LeftOut:
        """What the caller left out of the comparison."""
        return self.step.left_out

    @property
    def pair(self) -> Pair:
        """The pair itself."""
        return self.pairs[self.index][0]

    @property
    def finding(self) -> Finding:
        """What its comparison found."""
        finding = self.pairs[self.index][1]
        assert finding is not None
        return finding

    @property
    def event(self) -> EventKey:
        """Where it is in the order of the step."""
        return self.pair.event

    @property
    def entry(self) -> Entry | None:
        """The entry it belongs to; None for key data."""
        return self.pair.entry

    @property
    def is_of_state(self) -> bool:
        """Whether it is of the state of an optimizer."""
        return self.entry is not None and is_optimizer_state(self.entry.cell)

    @property
    def record(self) -> Record:
        """The record of A, or that of B if A has none."""
        return self.pair.record

    @cached_property
    def config(self) -> ProbeConfig | None:
        """What A was configured to record on its rank; None where that is not known."""
        return self.runs[0].config(self.finding.rank)

    @cached_property
    def filtered(self) -> bool:
        """Whether either run left out cells or entries by their names."""
        return is_filtered(self.runs)


def configs(runs: tuple[Run, Run]) -> list[ProbeConfig | None]:
    """Return what each run was configured to record, None where that is not known."""
    return [run.config() for run in runs]


def is_filtered(runs: tuple[Run, Run]) -> bool:
    """Return whether either run left out cells or entries by their names."""
    return any(
        config and (config.include or config.exclude or config.entries or config.scope)
        for config in configs(runs)
    )
