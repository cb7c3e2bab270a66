"""What stands on top of a page: findings of checks, differences, what is missing.

Each is made in the language spoken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.findings.health import CheckFinding, CheckResult, Evidence, json_values
from mindrlhf_msprobe.report.checks import again, link_of, not_checked_in_one_line, place_in_words
from mindrlhf_msprobe.report.comparison import next_step_of
from mindrlhf_msprobe.report.messages import say, text_of
from mindrlhf_msprobe.report.page.data import known
from mindrlhf_msprobe.report.preflight import in_order, merged, values_of, weights_line


def preflight_of(comparison: Comparison) -> dict[str, Any]:
    """Return what differs before any tensor, the most important first."""
    preflight, first = comparison.preflight, comparison.verdict.first_divergence
    near = {id(check.what) for check in (first.check_first if first else ())}
    rows = []
    for one in in_order(preflight.differences):
        a, b = values_of(one)
        section = say("preflight.section", name=one.section)
        place = one.is_place or one.is_of_recording
        rows.append(
            {
                **{"section": section, "name": text_of(one.label), "a": a or None, "b": b or None},
                **{"near": id(one) in near, "place": place},
            }
        )
    unlike = [weights for weights in preflight.weights if weights.differ]
    return {
        "rows": rows,
        "weights": [weights_line(weights, most=5, more="") for weights in unlike],
        "unknown": [*map(str, merged(preflight.not_compared))],
    }


def not_checked_of(checks: Sequence[CheckResult]) -> dict[str, Any] | None:
    """Return how much was not checked, in one line, and what: the rules that lack the same at once.

    Args:
        checks: of one run, or of A and B; what both lack is said once.
    """
    lacking: dict[str, tuple[Message, list[str], list[str]]] = {}
    for side, check in zip("AB", checks):
        for one in check.not_checked:
            _, rules, sides = lacking.setdefault(repr(one.why), (one.why, [], []))
            rules += [one.rule] if one.rule not in rules else []
            sides += [side] if side not in sides else []
    if not lacking:
        return None
    items = []
    for why, rules, sides in lacking.values():
        name, text = ", ".join(filter(None, rules)), text_of(why)
        of = sides[0] if len(checks) > 1 and len(sides) == 1 else None
        items.append({"text": f"{name}: {text}" if name else text, "of": of})
    every = [one for check in checks for one in check.not_checked]
    return {"line": not_checked_in_one_line(every), "items": items}


_MOST_FINDINGS = 1000
_MOST_EVIDENCE = 20  # of a finding
_MOST_FRAMES = 50


def findings_of(checks: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the findings of one run, or of two, what follows from one under it.

    `left_out` says how many are not shown, as there are too many.
    """
    found: dict[str, Any] = {"shown": [], "left_out": 0}
    numbers = itertools.count()

    def shown(side: str, findings: Iterable[CheckFinding]) -> Iterator[dict[str, Any]]:
        for finding in findings:
            number = next(numbers)
            if number >= _MOST_FINDINGS:
                found["left_out"] += 1
                continue
            closer = finding.next_step
            yield {
                **{"id": number, "side": side, "rule": finding.rule},
                "severity": finding.severity.value,
                "text": finding.text,
                "link": link_of(finding.place),
                "where": place_in_words(finding.place),
                "name": finding.place.name,
                "again": again(finding) or None,
                **{"times": finding.times, "last_step": finding.last_step},
                "ranks": finding.ranks,
                "causes": [*map(text_of, finding.causes)],
                "evidence": [*map(_evidence, finding.evidence[:_MOST_EVIDENCE])],
                "next_step": closer and next_step_of(closer),
                "stack": finding.stack[:_MOST_FRAMES],
                "follows": [*shown(side, finding.followed_by)],
            }

    for side, check in zip("AB", checks):
        found["shown"] += shown(side, check.findings)
    return found


def _evidence(one: Evidence) -> dict[str, Any]:
    return {
        "link": link_of(one.place),
        "name": one.place.name,
        "where": place_in_words(one.place),
        "values": [[name, value] for name, value in json_values(one.values).items()],
        **known(note=None if one.note is None else text_of(one.note)),
    }
