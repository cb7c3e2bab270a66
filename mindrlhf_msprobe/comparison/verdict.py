"""Findings in causal order → the first divergence and its cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from mindrlhf_msprobe.comparison.explain import explain, unreadable_place
from mindrlhf_msprobe.comparison.judged import ONE_SIDED, JudgedStep, LeftOut
from mindrlhf_msprobe.comparison.non_finite import on_both_sides
from mindrlhf_msprobe.comparison.pairing import StepPlan
from mindrlhf_msprobe.comparison.place import JudgedPlace
from mindrlhf_msprobe.comparison.spread import spread
from mindrlhf_msprobe.findings import (
    CoverageGap,
    Divergence,
    Finding,
    Outcome,
    Preflight,
    RankDivergence,
    Spread,
    Status,
    Verdict,
)
from mindrlhf_msprobe.phases import (
    UPDATE_PHASES,
    key_data_home,
    key_order,
    phase_order,
    usual_place,
)
from mindrlhf_msprobe.storage.reader import Run


def conclude(
    places: Sequence[JudgedPlace],
    runs: tuple[Run, Run],
    plan: Callable[[int, int], StepPlan],
    preflight: Preflight,
    left_out: Callable[[StepPlan, int], LeftOut] | None = None,
) -> Verdict:
    """Return the verdict over all steps and ranks.

    Among ranks, whose clocks cannot be compared, the one that parts in the earliest phase of its
    step comes first; within that, after the fewest entry events, key data in the order of a step;
    of equal ones the lowest.

    Args:
        places: in the order of their steps and ranks.
        plan: pairs a place once more; asked for that of the first divergence alone.
        left_out: says, of a plan and the first divergence in it, what the caller left out.
    """
    counts = Counter(str(finding.status) for finding in _findings(places))
    candidates = [found for place in places if (found := _first_divergence(place)) is not None]
    candidates.sort(key=_causal_order)
    first: Divergence | None = None
    places_reached: tuple[Spread, ...] = ()
    if candidates and _compared_something(counts):
        place, index = candidates[0]
        earlier = {p.step for p in places if p.step < place.step}
        pairs = plan(place.step, place.rank)
        if len(pairs.pairs) == len(place.findings):
            unseen = LeftOut() if left_out is None else left_out(pairs, index)
            step = JudgedStep(pairs, tuple(zip(pairs.pairs, place.findings)), unseen)
            first = explain(step, index, runs, preflight, agreed_steps=len(earlier))
            places_reached = spread(step, index)
        else:  # the place could not be compared as a whole
            first = unreadable_place(_finding_at(place, index))
    return Verdict(
        status=_outcome(counts),
        counts={str(status): counts.get(str(status), 0) for status in Status},
        first_divergence=first,
        coverage=_coverage(places),
        spread=places_reached,
        steps=len({place.step for place in places}),
        ranks=len({place.rank for place in places}),
        phases=tuple(dict.fromkeys(f.phase for f in _findings(places) if f.phase and f.entry)),
        parted=_parted(candidates) if first else (),
        agreeing_ranks=_agreeing(places, candidates) if first else (),
        non_finite=on_both_sides(_findings(places)),
    )


def _parted(candidates: Sequence[tuple[JudgedPlace, int]]) -> tuple[RankDivergence, ...]:
    """Return each rank's first divergence, of candidates in causal order."""
    parted: dict[int, RankDivergence] = {}
    for place, index in candidates:
        if place.rank not in parted:
            finding = _finding_at(place, index)
            phase = finding.phase if finding.entry is not None else None
            parted[place.rank] = RankDivergence(
                place.rank, place.step, phase, finding.record, finding.micro_step
            )
    return tuple(parted.values())


def _agreeing(
    places: Sequence[JudgedPlace], candidates: Sequence[tuple[JudgedPlace, int]]
) -> tuple[int, ...]:
    compared = {place.rank for place in places if any(f is not None for f in place.findings)}
    return tuple(sorted(compared - {place.rank for place, _ in candidates}))


def _findings(places: Sequence[JudgedPlace]) -> Iterator[Finding]:
    return (finding for place in places for finding in place.findings if finding is not None)


def _outcome(counts: Counter[str]) -> Outcome:
    if not _compared_something(counts):
        return Outcome.INCOMPARABLE
    if any(n and not Status(status).agrees for status, n in counts.items()):
        return Outcome.DIVERGED
    if counts[Status.IDENTICAL.value] == counts.total():
        return Outcome.IDENTICAL
    return Outcome.WITHIN_TOLERANCE


def _compared_something(counts: Counter[str]) -> bool:
    return any(n and Status(status) not in ONE_SIDED for status, n in counts.items())


def _coverage(places: Sequence[JudgedPlace]) -> tuple[CoverageGap, ...]:
    gaps: Counter[tuple[str, str]] = Counter()
    for place in places:
        for gap in place.gaps:
            gaps[gap.reason, gap.only_in] += gap.records
    return tuple(CoverageGap(reason, only_in, n) for (reason, only_in), n in gaps.items())


def _first_divergence(place: JudgedPlace) -> tuple[JudgedPlace, int] | None:
    for index, finding in enumerate(place.findings):
        if finding is not None and not finding.status.agrees:
            return place, index
    return None


def _finding_at(place: JudgedPlace, index: int) -> Finding:
    finding = place.findings[index]
    assert finding is not None
    return finding


def _causal_order(found: tuple[JudgedPlace, int]) -> tuple[float, ...]:
    place, index = found
    finding = _finding_at(place, index)
    within: tuple[float, ...] = (math.inf, 0, 0)
    if finding.key is not None:
        within = (usual_place(finding.key), key_order(finding.key), finding.micro_step or 0)
        if _is_of_an_update(finding):  # these stand update by update, whichever key it is
            before = {
                (f.key, f.micro_step)
                for f in place.findings[:index]
                if f is not None and _is_of_an_update(f)
            }
            within = (float(phase_order(UPDATE_PHASES[0])), len(before), *within)
    return place.step, *place.positions[index], *within, place.rank


def _is_of_an_update(finding: Finding) -> bool:
    home = None if finding.key is None else key_data_home(finding.key)
    return home is not None and home.phase in UPDATE_PHASES
