"""A place whose pairs have been judged, as the verdict looks at it."""

from __future__ import annotations

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.planner import Pair, StepPlan
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import Earlier, Finding, Status
from mindrlhf_msprobe.storage.reading.reader import Run

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
class JudgedStep:
    """The pairs of one step and rank in causal order, each with its finding.

    A pair without a finding was not recorded by choice on one side, cannot be compared, or was left
    out of the comparison.
    """

    plan: StepPlan
    judged: tuple[tuple[Pair, Finding | None], ...]
    left_out: LeftOut = LeftOut()
    earlier: Earlier | None = None


def configs(runs: tuple[Run, Run]) -> list[ProbeConfig | None]:
    """Return what each run was configured to record, None where that is not known."""
    return [run.config() for run in runs]


def is_filtered(runs: tuple[Run, Run]) -> bool:
    """Tell whether either run left out cells or entries by their names."""
    return any(
        config and (config.include or config.exclude or config.entries or config.scope)
        for config in configs(runs)
    )
