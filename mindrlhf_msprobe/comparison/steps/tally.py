"""What the findings of one step and rank add up to, and which of them are kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from operator import itemgetter

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.comparison.judging.suspicion import (
    has_overflowed,
    is_unhealthy,
    non_finite_of,
)
from mindrlhf_msprobe.findings import Agreement, Finding, Status
from mindrlhf_msprobe.phases import (
    UPDATE_PHASES,
    key_data_home,
    key_order,
    phase_order,
    usual_place,
)


@dataclass(frozen=True)
class Counted:
    """Records of a step that were counted without a pair of their own, all identical.

    Attributes:
        identical: phase → how many.
        phases: (how many findings come before it, phase), for the first one of each phase.
        rules: what they would be compared by → how many records were counted under it.
    """

    identical: Mapping[str, int] = field(default_factory=dict)
    phases: Sequence[tuple[int, str]] = ()
    rules: Mapping[Messages, int] = field(default_factory=dict)


@dataclass(frozen=True)
class First:
    """The first finding of a step of which something holds, e.g. that it does not agree.

    Attributes:
        order: by what it is sorted among those of other ranks in the same step.
    """

    finding: Finding
    order: tuple[float, ...]


@dataclass(frozen=True)
class Several:
    """Records of a step of which something holds: how many, and the first."""

    records: int = 0
    first: First | None = None


@dataclass(frozen=True)
class Tally:
    """What the findings of a step add up to.

    Attributes:
        counts: status → how many records ended in it.
        phases: whose cells were compared, in causal order.
        rules: what records were compared by → (how many were compared by it, how many of them
            agree only because of it).
        suspicious: how many records agree and deserve a look.
        agreements: what `is_folded` of each phase.
        first: the first finding that does not agree; None if all do.
        non_finite: the records that agree and hold NaN or infinity on both sides.
        unhealthy: those of them that are not meant to.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    phases: tuple[str, ...] = ()
    rules: Mapping[Messages, tuple[int, int]] = field(default_factory=dict)
    suspicious: int = 0
    agreements: tuple[Agreement, ...] = ()
    first: First | None = None
    non_finite: Several = field(default_factory=Several)
    unhealthy: Several = field(default_factory=Several)

    @property
    def compared(self) -> int:
        """How many records were compared."""
        return sum(self.counts.values())


def is_folded(finding: Finding) -> bool:
    """Return whether a finding goes into the row of its phase in a table that is folded."""
    return finding.key is None and finding.status.agrees


def tally_of(
    step: int,
    rank: int,
    findings: Sequence[Finding | None],
    positions: Sequence[tuple[int, int]],
    counted: Counted,
) -> Tally:
    """Add up the findings of one step, each with its position, and what was counted."""
    counts: Counter[str] = Counter()
    compared: Counter[Messages] = Counter(counted.rules)
    passed: Counter[Messages] = Counter()
    suspicious = 0
    different: list[int] = []
    both: list[int] = []
    bad: list[int] = []
    overflowed = any(finding is not None and has_overflowed(finding) for finding in findings)
    for index, finding in enumerate(findings):
        if finding is None:
            continue
        counts[finding.status.value] += 1
        if finding.compared_by:
            compared[finding.compared_by] += 1
            passed[finding.compared_by] += finding.status is Status.WITHIN_TOLERANCE
        suspicious += bool(finding.suspicions)
        if not finding.status.agrees:
            different.append(index)
        elif finding.suspicions and non_finite_of(finding) is not None:
            both.append(index)
            bad += [index] * is_unhealthy(finding, overflowed=overflowed)
    begun = [
        (index, finding.phase)
        for index, finding in enumerate(findings)
        if finding is not None and finding.entry and finding.phase
    ]
    # What was counted before the n-th finding comes before it.
    order = sorted([*counted.phases, *begun], key=itemgetter(0))
    phases = tuple(dict.fromkeys(phase for _, phase in order))
    counts[Status.IDENTICAL.value] += sum(counted.identical.values())
    return Tally(
        {status: number for status, number in counts.items() if number},
        phases,
        {by: (number, passed[by]) for by, number in compared.items()},
        suspicious,
        _agreements(step, rank, findings, counted, phases),
        _several(different, findings, positions).first,
        *(_several(of, findings, positions) for of in (both, bad)),
    )


def _several(
    found: Sequence[int], findings: Sequence[Finding | None], positions: Sequence[tuple[int, int]]
) -> Several:
    """Return how many findings have these indices, and the first of them."""
    finding = findings[found[0]] if found else None
    if finding is None:
        return Several()
    within: tuple[float, ...] = (math.inf, 0, 0)
    if finding.key is not None:  # by what key data are sorted beside the same events of entries
        within = usual_place(finding.key), key_order(finding.key), finding.micro_step or 0
    if _is_of_an_update(finding):  # these stand update by update, whichever key it is
        before = [f for f in findings[: found[0]] if f is not None and _is_of_an_update(f)]
        saves = {(f.key, f.micro_step) for f in before}
        within = float(phase_order(UPDATE_PHASES[0])), len(saves), *within
    return Several(len(found), First(finding, (*positions[found[0]], *within)))


def _is_of_an_update(finding: Finding) -> bool:
    home = None if finding.key is None else key_data_home(finding.key)
    return home is not None and home.phase in UPDATE_PHASES


def _agreements(
    step: int,
    rank: int,
    findings: Sequence[Finding | None],
    counted: Counted,
    phases: tuple[str, ...],
) -> tuple[Agreement, ...]:
    folded: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding is not None and is_folded(finding):
            folded.setdefault(finding.phase or "", []).append(finding)
    found = []
    for phase in dict.fromkeys([*phases, *folded]):
        mine = folded.get(phase, [])
        close = sum(f.status is Status.WITHIN_TOLERANCE for f in mine)
        suspicious = [f for f in mine if f.suspicions]
        identical = len(mine) - close + counted.identical.get(phase, 0)
        if identical or close:
            first = None
            if suspicious:
                why = list(suspicious[0].suspicions)
                what = {"count": len(suspicious), "record": suspicious[0].record}
                first = message("suspicion.of_many", **what, why=why)
            found.append(Agreement(step, rank, phase, identical, close, len(suspicious), first))
    return tuple(found)
