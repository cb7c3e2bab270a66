"""Findings in causal order → the first divergence and its cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from mindrlhf_msprobe.common.message import Messages
from mindrlhf_msprobe.comparison.pairing.planner import StepPlan
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.steps.step_of_rank import JudgedPlace
from mindrlhf_msprobe.comparison.verdict.compared_place import (
    ONE_SIDED,
    FirstDifference,
    LeftOut,
)
from mindrlhf_msprobe.comparison.verdict.explain import explain, not_reached, unreadable_place
from mindrlhf_msprobe.comparison.verdict.history import History
from mindrlhf_msprobe.comparison.verdict.spread import spread
from mindrlhf_msprobe.findings import (
    Cause,
    CoverageGap,
    Divergence,
    Earlier,
    Finding,
    NonFinite,
    Outcome,
    Preflight,
    RankDivergence,
    Spread,
    Status,
    Verdict,
    gathered,
)
from mindrlhf_msprobe.storage.reading.reader import Run


def conclude(
    places: Sequence[JudgedPlace],
    sides: tuple[View, View],
    plan: Callable[[int, int], StepPlan],
    judge: Callable[[int, int], JudgedPlace],
    preflight: Preflight,
    left_out: Callable[[StepPlan, int], LeftOut] | None = None,
    earlier: Earlier | None = None,
    unread: Messages = (),
) -> Verdict:
    """Return the verdict over all steps and ranks.

    Among ranks, whose clocks cannot be compared, the one that diverges in the earliest phase of its
    step comes first; within that, after the fewest entry events, key data in the order of a step;
    of equal ones the lowest.

    Args:
        places: in the order of their steps and ranks.
        plan, judge: pairs, and compares, a place once more; asked for that of the first divergence,
            and of the update before it.
        left_out: says, of a plan and the first divergence in it, what the caller left out.
        earlier: what an earlier comparison of the same training found.
        unread: what of either run could not be read. With some of it unknown, records that agree
            are no agreement of the runs.
    """
    counts: Counter[str] = Counter()
    for place in places:
        counts.update(place.tally.counts)
    candidates = _in_causal_order(places)
    first: Divergence | None
    places_reached: tuple[Spread, ...] = ()
    if not _compared_something(counts):
        first = None
    elif candidates:
        history = History(sides, candidates[0].rank, places, plan, judge)
        first, places_reached = _explained(candidates[0], history, preflight, left_out, earlier)
    else:
        first = _first_not_reached(places, (sides[0].run, sides[1].run), plan, judge)
    status = _outcome(counts) if first is None else Outcome.DIVERGED
    undecided = bool(unread) and status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)
    return Verdict(
        status=Outcome.INCOMPARABLE if undecided else status,
        not_read=unread if undecided else (),
        counts={str(status): counts.get(str(status), 0) for status in Status},
        first_divergence=first,
        coverage=_coverage(places),
        spread=places_reached,
        steps=len({place.step for place in places}),
        ranks=len({place.rank for place in places}),
        phases=tuple(dict.fromkeys(phase for place in places for phase in place.tally.phases)),
        parted=_parted(candidates) if first else (),
        agreeing_ranks=_agreeing(places, candidates) if first else (),
        non_finite=_non_finite(places),
    )


def _in_causal_order(places: Sequence[JudgedPlace]) -> list[JudgedPlace]:
    """Return the places that differ, the one that diverges first in front."""
    differing = (place for place in places if place.order is not None)
    return sorted(differing, key=lambda place: place.order or ())


def _explained(
    place: JudgedPlace,
    history: History,
    preflight: Preflight,
    left_out: Callable[[StepPlan, int], LeftOut] | None,
    earlier: Earlier | None,
) -> tuple[Divergence, tuple[Spread, ...]]:
    """Return the first divergence of the place that holds it, and where it reached from there."""
    compared = history.judged(place.step)
    if compared is None:  # the step could not be compared as a whole
        return unreadable_place(_first_finding(place)), ()
    index = next(i for i, (_, f) in enumerate(compared.judged) if f and not f.status.agrees)
    unseen = LeftOut() if left_out is None else left_out(compared.plan, index)
    step = replace(compared, left_out=unseen, earlier=earlier)
    difference = FirstDifference(step, index, (history.sides[0].run, history.sides[1].run))
    agreed = len({other.step for other in history.places if other.step < place.step})
    first = explain(difference, preflight, history, agreed_steps=agreed)
    return first, () if first.cause is Cause.FILE else spread(difference)


def _first_not_reached(
    places: Sequence[JudgedPlace],
    runs: tuple[Run, Run],
    plan: Callable[[int, int], StepPlan],
    judge: Callable[[int, int], JudgedPlace],
) -> Divergence | None:
    """Return where one run had stopped and the other went on, all that both have agreeing."""
    lacking = [place for place in places if place.not_reached]
    if not lacking:
        return None
    place = min(lacking, key=lambda place: (place.step, place.rank))
    index = place.first_not_reached
    pair = plan(place.step, place.rank).pairs[index]
    records = sum(other.not_reached for other in lacking)
    findings = (place if place.whole else judge(place.step, place.rank)).findings
    before = sum(finding is not None for finding in findings[:index])
    earlier = len({other.step for other in places if other.step < place.step})
    return not_reached(pair, (place.step, place.rank), runs, records, before, earlier)


def _parted(candidates: Sequence[JudgedPlace]) -> tuple[RankDivergence, ...]:
    """Return each rank's first divergence, of candidates in causal order."""
    parted: dict[int, RankDivergence] = {}
    for place in candidates:
        if place.rank not in parted:
            finding = _first_finding(place)
            phase = finding.phase if finding.entry is not None else None
            parted[place.rank] = RankDivergence(
                place.rank, place.step, phase, finding.record, finding.micro_step
            )
    return tuple(parted.values())


def _agreeing(places: Sequence[JudgedPlace], candidates: Sequence[JudgedPlace]) -> tuple[int, ...]:
    compared = {place.rank for place in places if place.tally.compared}
    return tuple(sorted(compared - {place.rank for place in candidates}))


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
    return gathered(gap for place in places for gap in place.gaps)


def _non_finite(places: Sequence[JudgedPlace]) -> NonFinite:
    found = [place.tally.non_finite for place in places if place.tally.non_finite.records]
    return replace(found[0], records=sum(n.records for n in found)) if found else NonFinite()


def _first_finding(place: JudgedPlace) -> Finding:
    assert place.tally.first is not None
    return place.tally.first.finding
