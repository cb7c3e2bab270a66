"""A comparison of checkpoints → the answer on the console."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.printable import printable, shortened
from mindrlhf_msprobe.findings import Finding, Status
from mindrlhf_msprobe.findings.checkpoints import CheckpointComparison
from mindrlhf_msprobe.report.answer import capped
from mindrlhf_msprobe.report.messages import say, text_of

_MOST_SHOWN = 8
_LONGEST = 120
_ALONE = (Status.ONLY_IN_A, Status.ONLY_IN_B)


def render(found: CheckpointComparison, seconds: float, *, lang: str | None = None) -> str:
    """Return the answer as plain text; names cannot move the cursor or hide lines.

    Args:
        seconds: how long it took.
        lang: `en` or `zh`; None: the one that was chosen, else the locale's.
    """
    with speaking(lang):
        return "\n".join(map(printable, _lines(found, seconds)))


def _lines(found: CheckpointComparison, seconds: float) -> Iterator[str]:
    differing = [*found.differing]
    of_status = {"compared": len(found.findings), "different": len(differing)}
    yield say(f"checkpoint.headline_{found.status.value}", **of_status)
    yield say("checkpoint.side_a", path=found.a, kind=found.kinds[0])
    yield say("checkpoint.side_b", path=found.b, kind=found.kinds[1])
    yield from _group("checkpoint.differing", [f for f in differing if f.status not in _ALONE])
    for status in _ALONE:
        yield from _group(
            f"checkpoint.{status.value}", [f for f in differing if f.status is status]
        )
    suspicious = [finding for finding in found.findings if finding.suspicions]
    yield from _group("checkpoint.suspicious", suspicious)
    if found.optimizer:
        agreeing = sum(1 for finding in found.optimizer if finding.status.agrees)
        yield say("checkpoint.optimizer", count=len(found.optimizer), agreeing=agreeing)
    yield from _notes(found)
    if found.output_path is not None:
        tables = ", ".join(found.tables)
        yield say("checkpoint.tables", output=found.output_path, tables=tables)
    counts = ", ".join(f"{n} {status}" for status, n in found.counts.items())
    yield say("checkpoint.summary", elements=found.elements, seconds=seconds, counts=counts)


def _notes(found: CheckpointComparison) -> Iterator[str]:
    """Yield what was not compared, what is to be known, and what the rules let pass."""
    for said in found.coverage:
        yield say("checkpoint.coverage", what=text_of(said))
    for said in found.remarks:
        yield say("checkpoint.remark", what=text_of(said))
    for rule in found.rules:
        yield say("checkpoint.rule", rule=rule.rule, records=rule.records, passed=rule.passed)


def _group(code: str, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a heading and the findings furthest apart, or the first ones."""
    if not findings:
        return
    yield say(code, count=len(findings))
    nearest = sorted(findings, key=_nearness)
    yield from capped(nearest, _MOST_SHOWN, "checkpoint.more", show=_finding)


def _nearness(finding: Finding) -> float:
    """Return a number that is the smaller the further apart both sides are."""
    distance = finding.distance if finding.metrics is not None else None
    return -math.inf if distance is None or math.isnan(distance) else -distance


def _finding(finding: Finding) -> str:
    name = shortened(finding.record, _LONGEST)
    if finding.b.name not in (None, finding.record) and finding.a.name is not None:
        name = f"{name} = {shortened(finding.b.name, _LONGEST)}"
    if finding.rank:
        name = say("checkpoint.of_rank", name=name, rank=finding.rank)
    parts = [name]
    if not finding.suspicions and finding.status not in (*_ALONE, Status.DIFFERENT):
        parts.append(finding.status.value)
    metrics = finding.metrics
    if metrics is not None and not finding.status.agrees:
        cosine = say("checkpoint.no_cosine") if metrics.cosine is None else f"{metrics.cosine:.6g}"
        parts.append(
            say(
                "checkpoint.apart",
                cosine=cosine,
                l2=metrics.euclidean or 0.0,
                relative=finding.distance or 0.0,
                largest=float(metrics.max_abs_err or 0),
                percent=100 - metrics.equal_percent,
                elements=math.prod(finding.a.shape or ()),
            )
        )
    said = finding.suspicion or finding.note
    return "  " + " · ".join([*parts, *([said] if said else [])])
