"""Findings in causal order → the first divergence and its cause, and how it spreads in its step.

Over which phases, layers and keys it does so, how far, and what is NaN.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Literal

from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.comparison.judging.suspicion import (
    are_counted,
    counts_of,
    is_mask,
    non_finite_of,
)
from mindrlhf_msprobe.comparison.pairing.planner import StepPlan
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN, END
from mindrlhf_msprobe.comparison.steps.step_of_rank import (
    Job,
    PairWork,
    StepResult,
    compare_pair,
    compare_whole_step,
)
from mindrlhf_msprobe.comparison.steps.tally import Several
from mindrlhf_msprobe.comparison.verdict.explain import explain, happened
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    ONE_SIDED,
    FirstDifference,
    History,
    LeftOut,
    StepFindings,
    in_time,
)
from mindrlhf_msprobe.findings import (
    Cause,
    Divergence,
    Earlier,
    Finding,
    NonFinite,
    NotFinite,
    Outcome,
    Preflight,
    RankDivergence,
    Side,
    Spread,
    Status,
    Suspicious,
    Verdict,
    gathered,
)
from mindrlhf_msprobe.phases import SET_KEYS
from mindrlhf_msprobe.storage.records import direction_of


def conclude(
    results: Sequence[StepResult],
    job: Job,
    preflight: Preflight,
    earlier: Earlier | None = None,
    unread: Messages = (),
) -> Verdict:
    """Return the verdict over all steps and ranks.

    Among ranks, whose clocks cannot be compared, the one that diverges in the earliest phase of its
    step comes first; within that, after the fewest entry events, key data in the order of a step;
    of equal ones the lowest.

    Args:
        results: in the order of their steps and ranks.
        job: pairs, and compares, the step of the first divergence once more, and that of the update
            before it.
        earlier: what an earlier comparison of the same training found.
        unread: what of either run could not be read. With some of it unknown, records that agree
            are no agreement of the runs.
    """

    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.tally.counts)
    differing = (result for result in results if result.order is not None)
    candidates = sorted(differing, key=lambda result: result.order or ())
    first: Divergence | None
    reached: tuple[Spread, ...] = ()
    if not _compared_something(counts):
        first = None
    elif candidates:
        of_first = History(job, candidates[0].rank, results)
        first, reached = _explained(candidates[0], of_first, preflight, earlier)
    else:
        first = _first_not_reached(results, job)
    count, bad = _together((result, result.tally.non_finite) for result in results)
    unhealthy, odd = _together((result, result.tally.unhealthy) for result in results)
    suspicious = Suspicious()
    if odd is not None:
        suspicious = Suspicious(unhealthy, *_place(odd), odd.micro_step, non_finite_of(odd))
    status = _outcome(counts) if first is None else Outcome.DIVERGED
    agreeing = {result.rank for result in results if result.tally.compared}
    agreeing -= {result.rank for result in candidates}
    undecided = bool(unread) and status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)
    return Verdict(
        status=Outcome.INCOMPARABLE if undecided else status,
        not_read=unread if undecided else (),
        counts={str(status): counts.get(str(status), 0) for status in Status},
        first_divergence=first,
        coverage=gathered(gap for result in results for gap in result.gaps),
        spread=reached,
        steps=len({result.step for result in results}),
        ranks=len({result.rank for result in results}),
        phases=tuple(dict.fromkeys(phase for result in results for phase in result.tally.phases)),
        parted=_diverged_ranks(candidates, first, job, results) if first else (),
        agreeing_ranks=tuple(sorted(agreeing)) if first else (),
        non_finite=NonFinite() if bad is None else NonFinite(count, *_place(bad)),
        suspicious=suspicious,
    )


def _explained(
    result: StepResult, history: History, preflight: Preflight, earlier: Earlier | None
) -> tuple[Divergence, tuple[Spread, ...]]:
    """Return the first divergence of the step that holds it, and where it reached from there."""
    compared = history.compared(result.step)
    if compared is None:  # the step could not be compared as a whole
        finding = _first_finding(result)
        why = happened(finding), message("explanation.place_unreadable")
        place = finding.step, finding.rank, None, finding.record
        return Divergence(*place, None, Cause.UNREADABLE, reasons=why, key=finding.key), ()
    index = _first_index(compared)
    unseen = _left_out(history.job, compared.plan, index)
    step = replace(in_time(compared, index, history), left_out=unseen, earlier=earlier)
    difference = FirstDifference(step, index, history)
    before = (other for other in history.results if other.step < result.step)
    # One run alone may have some of its records: these were not compared.
    compared_in = (one for one in before if one.records > sum(gap.records for gap in one.gaps))
    agreed = len({one.step for one in compared_in})
    first = explain(difference, preflight, agreed_steps=agreed)
    return first, () if first.cause is Cause.FILE else spread(difference)


def _left_out(job: Job, plan: StepPlan, index: int) -> LeftOut:
    """Return how much the caller left out of a step before its first divergence.

    What the entry there was given is compared, as far as it was left out by its name.
    """
    if not (job.chosen.by_name or job.sides[0].key_data_only):
        return LeftOut()
    if not job.chosen.by_name:
        hidden = []  # records of cells and of other keys that each run has
        for side in job.sides:
            everything = replace(side, keys={}, key_data_only=False).load(plan.step, plan.rank)
            chosen = side.load(plan.step, plan.rank)
            cells = sum(len(entry.records) for entry in everything.entries)
            keys = [sum(len(d.records) for d in data.key_data) for data in (everything, chosen)]
            hidden.append(cells + keys[0] - keys[1])
        return LeftOut(min(hidden), all_else=True)
    event = plan.pairs[index].event
    begin = [  # what its entry was given when it began
        number
        for number, other in enumerate(plan.pairs[:index])
        if other.event.kind == BEGIN
        and (other.event.phase, other.event.name) == (event.phase, event.name)
    ]
    inside = max(begin, default=-1) + 1 if event.kind == END else 0
    records = sum(job.chosen.leaves_out(pair) for pair in plan.pairs[inside:index])
    unlike = []
    for pair in (plan.pairs[i] for i in begin if job.chosen.leaves_out(plan.pairs[i])):
        agrees = pair.gap is not None
        if pair.a is not None and pair.b is not None:
            work = PairWork(plan.step, plan.rank, 0, pair.a, pair.b)
            agrees = compare_pair(job, work).status.agrees
        unlike += [] if agrees else [pair.record.name]
    return LeftOut(records, given=tuple(unlike))


def _first_not_reached(results: Sequence[StepResult], job: Job) -> Divergence | None:
    """Return where one run had stopped and the other went on, all that both have agreeing."""
    lacking = [result for result in results if result.not_reached]
    if not lacking:
        return None
    result = min(lacking, key=lambda result: (result.step, result.rank))
    step, rank = result.at
    index = result.first_not_reached
    pair = job.plan(result.at).pairs[index]
    findings = (result if result.whole else compare_whole_step(job, result.at)).findings
    missing = "B" if pair.b is None else "A"
    phase = pair.event.phase if pair.entry is not None else None
    stop = job.sides[missing == "B"].run.stop_of(rank)
    if stop is not None and stop.step == step and stop.phase is not None:
        phase = stop.phase
    records = sum(other.not_reached for other in lacking)  # that the run lacks for that
    who = {"stopped": missing, "other": "A" if missing == "B" else "B"}
    return Divergence(
        *(step, rank, phase, pair.record.name),
        entry=None,
        cause=Cause.STOPPED,
        reasons=(message("explanation.not_reached", **who, records=records),),
        agreed_before=sum(finding is not None for finding in findings[:index]),
        agreed_steps=len({other.step for other in results if other.step < step}),
    )


def _diverged_ranks(
    candidates: Sequence[StepResult], first: Divergence, job: Job, results: Sequence[StepResult]
) -> tuple[RankDivergence, ...]:
    """Return each rank's first divergence, of candidates in causal order."""
    late = bool(candidates) and first.record != _first_finding(candidates[0]).record
    diverged: dict[int, RankDivergence] = {}
    for result in candidates:
        if result.rank not in diverged:
            finding = _first_finding(result)
            of_rank = History(job, result.rank, results)
            compared = of_rank.compared(result.step) if late else None
            if compared is not None:  # a parameter may have been recorded late
                index = _first_index(compared)
                finding = in_time(compared, index, of_rank).pairs[index][1] or finding
            step, rank, phase, record = _place(finding)
            diverged[rank] = RankDivergence(rank, step, phase, record, finding.micro_step)
    return tuple(diverged.values())


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


def _together(found: Iterable[tuple[StepResult, Several]]) -> tuple[int, Finding | None]:
    """Return how many records there are over steps and ranks, and the first in causal order."""
    placed = [
        ((result.step, *several.first.order, result.rank), several.records, several.first.finding)
        for result, several in found
        if several.first is not None
    ]
    first = min(placed, key=itemgetter(0))[2] if placed else None
    return sum(records for _, records, _ in placed), first


def _place(finding: Finding) -> tuple[int, int, str | None, str]:
    phase = finding.phase if finding.entry is not None else None
    return finding.step, finding.rank, phase, finding.record


def _first_index(step: StepFindings) -> int:
    return next(i for i, (_, f) in enumerate(step.pairs) if f and not f.status.agrees)


def _first_finding(result: StepResult) -> Finding:
    assert result.tally.first is not None
    return result.tally.first.finding


_OF_ITS_SIZE = 0.1  # a smaller relative distance is none from zero
_ROUNDING = 2.0**-20  # of what stands beside it: no more than rounding leaves of it
_OF_KEYS = 2.0**-22  # what rounding leaves of log-probabilities, losses, …

#: NaN and infinite elements of A, then of B, in `counts_of`.
_COUNTS = ((0, 0), (0, 1), (1, 0), (1, 1))
_LAYER = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


def spread(difference: FirstDifference) -> tuple[Spread, ...]:
    """Return each phase and key from the first divergence on that holds a difference."""
    base, pairs = difference.finding.distance, difference.pairs[difference.index :]
    # For each phase how large the elements of its largest gradient are, on average.
    sizes: dict[str | None, float] = {}
    for _, finding in pairs:
        if finding is not None and _is_gradient(finding):
            sizes[finding.phase] = max(sizes.get(finding.phase, 0.0), *_sizes(finding))
    found: dict[str, list[tuple[str | None, Finding]]] = {}
    for pair, finding in pairs:
        if finding is not None:
            of_place = found.setdefault(finding.key or finding.phase or "", [])
            entry = pair.entry  # of an operator the cell around it: itself where there is none
            of_place.append((None if entry is None else entry.around or entry.cell, finding))
    result = []
    for place, of_place in found.items():
        findings = [finding for _, finding in of_place]
        if _agree(findings):
            continue
        layers: dict[str, list[Finding]] = {}
        for cell, finding in of_place:
            if cell is not None:
                match = _LAYER.match(cell)  # up to the first number in its name, else the cell
                layers.setdefault(match.group() if match else cell, []).append(finding)
        parts = [name.split(".") for name in layers]
        containers = {".".join(names[:n]) for names in parts for n in range(len(names))} | {"root"}
        differing = tuple(
            _spread_of(name, of_layer, base, sizes)
            for name, of_layer in layers.items()
            if name not in containers and not _agree(of_layer)
        )
        result.append(_spread_of(place, findings, base, sizes, differing))
    return tuple(result)


def _agree(findings: Iterable[Finding]) -> bool:
    return all(finding.status.agrees for finding in findings)


def _spread_of(
    place: str,
    findings: Sequence[Finding],
    base: float | None,
    sizes: Mapping[str | None, float],
    layers: tuple[Spread, ...] = (),
) -> Spread:
    metrics = [f.metrics for f in findings if f.metrics is not None and not f.of_text]
    apart = [(d, _zero(f, sizes)) for f in findings if not f.status.agrees and (d := f.distance)]
    distances = [distance for distance, zero in apart if zero is None]
    return Spread(
        place=place,
        different=sum(not finding.status.agrees for finding in findings),
        compared=len(findings),
        max_abs_err=max(
            (m.max_abs_err for m in metrics if m.max_abs_err is not None), default=None
        ),
        max_rel_err=max(
            (m.max_rel_err for m in metrics if m.max_rel_err is not None), default=None
        ),
        factor=max(distances) / base if distances and base else None,
        layers=layers,
        zero=None if distances else next((zero for _, zero in apart), None),
        non_finite=_not_finite(findings),
    )


def _is_gradient(finding: Finding) -> bool:
    return finding.entry is not None and direction_of(finding.entry) != "forward"


def _sizes(finding: Finding) -> list[float]:
    """Return how large the elements of both sides are, as the root of their mean square."""
    known = finding.distance is not None
    sides = (finding.a, finding.b)
    return [float(abs(s.norm)) / math.sqrt(max(_elements(s), 1)) if known else 0.0 for s in sides]


def _elements(side: Side) -> int:
    return math.prod(side.shape or ())


def _zero(finding: Finding, sizes: Mapping[str | None, float]) -> Literal["from", "to"] | None:
    """Return whether B differs from zero, or to zero; None where neither has nothing but rounding.

    Zero is what is no more than rounding: of the other run's values, of the log-probabilities that
    key data are made of, and of the largest gradient of the phase.
    """
    if (finding.distance or 0.0) < _OF_ITS_SIZE:
        return None
    a, b = _sizes(finding)
    most = _ROUNDING * max(a, b)
    if finding.key is not None and finding.key not in SET_KEYS:
        most = max(most, _OF_KEYS)
    elif _is_gradient(finding):
        most = max(most, _ROUNDING * sizes[finding.phase])
    return "from" if a <= most else "to" if b <= most else None


def _not_finite(findings: Iterable[Finding]) -> NotFinite | None:
    """Return how many elements are NaN or infinite; None where none is, or -inf of masks alone."""
    held = [f for f in findings if not f.of_text]
    meant = [f.status is not Status.NON_FINITE and is_mask(f) for f in held]
    counts = [counts_of(finding) for finding, skipped in zip(held, meant) if not skipped]
    nan_a, inf_a, nan_b, inf_b = (sum(c[side][kind] for c in counts) for side, kind in _COUNTS)
    if not (nan_a or inf_a or nan_b or inf_b):
        return None
    known = all(map(are_counted, held))
    elements = sum(max(_elements(f.a), _elements(f.b)) for f in held)
    return NotFinite(nan_a, inf_a, nan_b, inf_b, elements if known else None)
