"""What stands on top of a page: the answer, findings of checks, differences, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.findings import Comparison, Divergence, Outcome, Status
from mindrlhf_msprobe.findings.health import (
    CheckFinding,
    CheckResult,
    Evidence,
    Health,
    json_values,
)
from mindrlhf_msprobe.report.answer import texts
from mindrlhf_msprobe.report.checks import (
    again,
    not_checked_in_one_line,
    place_in_words,
    run_headline,
)
from mindrlhf_msprobe.report.comparison import facts_of, headline, next_step_of, size_of_next
from mindrlhf_msprobe.report.messages import paragraph, say, text_of
from mindrlhf_msprobe.report.page.data import both, each_said, known, said
from mindrlhf_msprobe.report.preflight import in_order, merged, values_of, weights_line
from mindrlhf_msprobe.storage.place import Place

_TONES = {
    Outcome.IDENTICAL: "good",
    Outcome.WITHIN_TOLERANCE: "good",
    Outcome.DIVERGED: "bad",
    Outcome.INCOMPARABLE: "unknown",
}
_HEALTH = {Health.HEALTHY: "good", Health.UNHEALTHY: "bad", Health.NOT_CHECKED: "unknown"}
_OF_STATUS = {Status.IDENTICAL: "good", Status.WITHIN_TOLERANCE: "good"}


def of_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return the head's `answer` of a comparison."""
    verdict, first = comparison.verdict, comparison.verdict.first_divergence
    found = verdict.suspicious
    at = known(view="where", step=found.step, rank=found.rank, phase=found.phase)
    links = {"suspicious": at | known(record=found.record)}
    told = facts_of(comparison)
    said = each_said(lambda: [fact.line for fact in facts_of(comparison)])
    lines = [{"text": text, "link": links.get(fact.about)} for fact, text in zip(told, said)]
    closer = None if first is None else first.next_step
    takes = both(lambda: "" if first is None else size_of_next(first, False).strip())
    return {
        "tone": "warn" if verdict.suspicious.records and first is None else _TONES[verdict.status],
        "headline": both(lambda: " ".join(line.strip() for line in texts(headline(verdict)))),
        "sentence": None
        if first is None
        else both(lambda: paragraph(first.reasons))
        if first.reasons
        else first.explanation,
        "cause": None if first is None else first.cause.value,
        "place": None if first is None else link_of(first),
        "lines": lines,
        "next_step": None if closer is None else next_step_of(closer),
        "next_step_note": None if closer is None else takes or None,
        "counts": [
            [status.value, number, _OF_STATUS.get(status, "bad")]
            for status in Status
            if (number := verdict.counts.get(status.value, 0))
        ],
    }


def link_of(first: Divergence) -> dict[str, Any]:
    """Return where the page shows the first divergence."""
    at = known(step=first.step, rank=first.rank, phase=first.phase, entry=first.entry)
    if first.key is not None:
        return at | {"view": "where", "key": first.key, "micro_step": first.occasion.number}
    return at | {"view": "where", "record": first.record}


def of_check(check: CheckResult) -> dict[str, Any]:
    """Return the head's `answer` of one run's check."""
    worst = next((f for f in check.findings if f.severity.counts), None)
    tones = {"error": "bad", "warning": "warn", "note": "good"}

    def about() -> Iterator[str]:
        if worst is None:
            return
        yield from filter(None, (place_in_words(worst.place), again(worst)))
        if worst.causes:
            causes = "; ".join(text_of(cause) for cause in worst.causes)
            yield say("checks.causes", causes=causes)

    return {
        "tone": _HEALTH[check.status],
        "headline": both(lambda: run_headline(check)),
        "sentence": None if worst is None else said(worst.said),
        "cause": None if worst is None else worst.rule,
        "place": None if worst is None else link_of_place(worst.place),
        "lines": [{"text": text, "link": None} for text in each_said(about)],
        "next_step": worst and worst.next_step and next_step_of(worst.next_step),
        "next_step_note": None,
        "counts": [[name, number, tones[name]] for name, number in check.counts.items() if number],
    }


def link_of_place(place: Place) -> dict[str, Any]:
    """Return where the page shows a place of a check."""
    view = "course" if place.entry is None and place.key is None else "where"
    return known(
        view=view,
        step=place.step,
        rank=place.rank,
        phase=place.phase,
        entry=place.entry,
        record=place.record,
        key=place.key,
        micro_step=place.micro_step,
    )


def preflight_of(comparison: Comparison) -> dict[str, Any]:
    """Return what differs before any tensor, the most important first."""
    preflight, first = comparison.preflight, comparison.verdict.first_divergence
    near = {id(check.what) for check in (first.check_first if first else ())}
    ordered = in_order(preflight.differences)
    sections = each_said(lambda: [say("preflight.section", name=one.section) for one in ordered])
    of_a = each_said(lambda: [values_of(one)[0] or "" for one in ordered])
    of_b = each_said(lambda: [values_of(one)[1] or "" for one in ordered])
    rows = [
        {
            **{"section": section, "name": said(one.label), "a": a or None, "b": b or None},
            **{"near": id(one) in near, "place": one.is_place or one.is_of_recording},
        }
        for one, section, a, b in zip(ordered, sections, of_a, of_b)
    ]
    return {
        "rows": rows,
        "weights": [
            both(partial(weights_line, weights, most=5, more=""))
            for weights in preflight.weights
            if weights.differ
        ],
        "unknown": each_said(lambda: map(str, merged(preflight.not_compared))),
    }


def coverage_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return what was not compared, and why."""
    return [
        {
            "text": gap.reason if gap.message is None else said(gap.message),
            "only_in": gap.only_in,
            "records": gap.records,
        }
        for gap in comparison.verdict.coverage
    ]


def not_checked_of(checks: Sequence[CheckResult]) -> dict[str, Any] | None:
    """Return how much was not checked, in one line, and what: the rules that lack the same at once.

    Args:
        checks: of one run, or of A and B; what both lack is said once.
    """
    lacking: dict[str, tuple[Any, list[str], list[str]]] = {}
    for side, check in zip("AB", checks):
        for one in check.not_checked:
            _, rules, sides = lacking.setdefault(repr(one.why), (one.why, [], []))
            rules += [one.rule] if one.rule not in rules else []
            sides += [side] if side not in sides else []
    if not lacking:
        return None
    every = [one for check in checks for one in check.not_checked]
    names = [", ".join(filter(None, rules)) for _, rules, _ in lacking.values()]
    whys = [why for why, _, _ in lacking.values()]
    lines = each_said(
        lambda: [
            f"{name}: {text_of(why)}" if name else text_of(why) for name, why in zip(names, whys)
        ]
    )
    items = [
        {"text": text, "of": sides[0] if len(checks) > 1 and len(sides) == 1 else None}
        for text, (_, _, sides) in zip(lines, lacking.values())
    ]
    return {"line": both(lambda: not_checked_in_one_line(every)), "items": items}


_MOST_EVIDENCE = 20  # of a finding
_MOST_FRAMES = 50


class CheckFindings:
    """The findings of one or two runs.

    Attributes:
        left_out: how many are not shown, as there are too many.
    """

    def __init__(self, most: int = 1000) -> None:
        self.left_out = 0
        self._most, self._count = most, 0

    def of_run(self, side: str, check: CheckResult) -> list[dict[str, Any]]:
        """Return the findings of a run, what follows from one under it."""
        return [*self._shown(side, check.findings)]

    def _shown(self, side: str, findings: tuple[CheckFinding, ...]) -> Iterator[dict[str, Any]]:
        for finding in findings:
            if self._count >= self._most:
                self.left_out += 1
                continue
            number, self._count = self._count, self._count + 1
            yield self._finding(number, side, finding)

    def _finding(self, number: int, side: str, finding: CheckFinding) -> dict[str, Any]:
        return {
            **{"id": number, "side": side, "rule": finding.rule},
            "severity": finding.severity.value,
            "text": said(finding.said),
            "link": link_of_place(finding.place),
            "where": both(lambda: place_in_words(finding.place)),
            "name": finding.place.name,
            "again": both(lambda: again(finding)) or None,
            **{"times": finding.times, "last_step": finding.last_step},
            "ranks": [*finding.ranks],
            "causes": [said(cause) for cause in finding.causes],
            "evidence": [_evidence(one) for one in finding.evidence[:_MOST_EVIDENCE]],
            "next_step": finding.next_step and next_step_of(finding.next_step),
            "stack": [*finding.stack[:_MOST_FRAMES]],
            "follows": [*self._shown(side, finding.followed_by)],
        }


def _evidence(one: Evidence) -> dict[str, Any]:
    note = None if one.note is None else said(one.note)
    return {
        "link": link_of_place(one.place),
        "name": one.place.name,
        "where": both(lambda: place_in_words(one.place)),
        "values": [[name, value] for name, value in json_values(one.values).items()],
        **known(note=note),
    }
