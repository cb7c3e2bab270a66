"""A place whose pairs have been judged, as the verdict looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from mindrlhf_msprobe.comparison.pairing import Pair, StepPlan
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import Finding, Status
from mindrlhf_msprobe.storage.reader import Run

ONE_SIDED = (Status.ONLY_IN_A, Status.ONLY_IN_B)


@dataclass(frozen=True)
class JudgedStep:
    """The pairs of one step and rank in causal order, each with its finding.

    A pair without a finding was not recorded by choice on one side, or cannot be compared.
    """

    plan: StepPlan
    judged: tuple[tuple[Pair, Finding | None], ...]


def configs(runs: tuple[Run, Run]) -> list[ProbeConfig | None]:
    """Return what each run was configured to record, None where that is not known."""
    return [run.config() for run in runs]


def is_filtered(runs: tuple[Run, Run]) -> bool:
    """Tell whether either run left out cells or entries by their names."""
    return any(
        config and (config.include or config.exclude or config.entries or config.scope)
        for config in configs(runs)
    )
