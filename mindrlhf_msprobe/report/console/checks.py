"""The checks of runs → the answer on the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import Message, in_words
from mindrlhf_msprobe.common.printable import few_numbers, printable, shortened, spans
from mindrlhf_msprobe.findings.health import (
    CheckFinding,
    CheckResult,
    CheckResults,
    Evidence,
    Health,
    NotChecked,
)
from mindrlhf_msprobe.report.answer import capped, indented, stopped_at
from mindrlhf_msprobe.report.console.comparison import settings_in_one_line
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.place import Place

_MOST_FINDINGS = 20  # of one run, and of what follows from one finding
_MOST_EVIDENCE = 4
_MOST_FRAMES = 4
_MOST_CAUSES = 4
_MOST_STOPS = 4
_MOST_LINES = 12  # of what was not checked, and of problems
_LONGEST = 200  # characters of one value


def render(
    results: CheckResults,
    seconds: float | None = None,
    *,
    lang: str | None = None,
    not_checked: bool = False,
) -> str:
    """Return what checks say, as plain text; names cannot move the cursor or hide lines.

    Args:
        seconds: how long they took.
        lang: `en` or `zh`; None: the one that was chosen, else the locale's.
        not_checked: whether all that was not checked is listed, not only counted by reason.
    """
    with speaking(lang):
        lines: list[str] = []
        for run in results.runs:
            of_run = _run(run, not_checked=not_checked)
            lines += ["", *of_run] if lines else of_run
        if seconds is not None:
            lines.append(say("checks.took", runs=len(results.runs), seconds=seconds))
        return "\n".join(map(printable, lines))


def place_in_words(place: Place) -> str:
    """Return where something is: step, rank, phase, micro-step."""
    said = [say("checks.at_step", step=place.step)]
    if place.rank is not None:
        said.append(say("checks.at_rank", rank=place.rank))
    if place.phase is not None:
        said.append(place.phase)
    if place.micro_step:
        said.append(say("checks.at_micro_step", micro_step=place.micro_step))
    return say("checks.comma").join(said)


def again(finding: CheckFinding) -> str:
    """Return how often the same was found, and on which ranks; "" if once."""
    if finding.times < 2:
        return ""
    ranks = few_numbers(finding.ranks) if len(finding.ranks) > 1 else ""
    return say("checks.again", times=finding.times, last=finding.last_step, ranks=ranks)


def values_in_words(evidence: Evidence) -> str:
    """Return what a record shows: `max 3.1, nan_count 2`."""
    return ", ".join(f"{name} {_value(value)}" for name, value in evidence.values.items())


def run_headline(run: CheckResult) -> str:
    """Return whether a run is healthy, in one line."""
    if run.status is Health.NOT_CHECKED and run.failed:
        return say("checks.run_failed", path=run.path, rules=", ".join(run.failed))
    return say(f"checks.run_{run.status.value}", path=run.path, **run.counts)


def not_checked_in_one_line(not_checked: Iterable[NotChecked]) -> str:
    """Return how much was not checked, by reason; "" if all was."""
    whys = {in_words(one.why): one.why for one in not_checked}.values()
    counts = Counter(_reason(why) for why in whys)
    reasons = [say(f"checks.lacking_{reason}", count=n) for reason, n in counts.most_common()]
    shown = say("checks.comma").join(reasons)
    return say("checks.not_checked", count=len(whys), reasons=shown) if reasons else ""


def _reason(why: Message) -> str:
    kind = why.params.get("kind") if why.code == "checks.lacks" else None
    if kind is None:
        return "other"
    return str(kind) if kind in ("key", "phase", "ranks", "steps", "healthy") else "recorded"


def _run(run: CheckResult, *, not_checked: bool) -> list[str]:
    lines = [run_headline(run)]
    for stop in run.stopped[:_MOST_STOPS]:
        lines.append("  " + say("checks.stopped", stopped=stopped_at(stop, stop.ranks)))
    lines += _findings(run.findings, "", "  ")
    lines += _listed("checks.not_read", [in_words(problem) for problem in run.problems])
    if line := not_checked_in_one_line(run.not_checked):
        lines.append(line if not_checked else say("checks.lists_them", line=line))
    whys: dict[str, list[str]] = {}
    for one in run.not_checked:
        if not_checked or one.failed:
            whys.setdefault(in_words(one.why), []).append(one.rule)
    lines += [f"  {_lacking(why, of)}" for why, of in whys.items()]
    counts = {"entries": run.entries, "saves": run.saves}
    lines.append(
        say(
            "checks.scope",
            rules=len(run.checked),
            steps=run.steps,
            ranks=run.ranks,
            **counts,
        )
    )
    return lines


def _lacking(why: str, rules: list[str]) -> str:
    """Return what was not checked, by which rules; without a name it is of all of them."""
    named = ", ".join(filter(None, rules))
    return say("unread.at", path=named, why=why) if named and why else named or why


def _listed(head: str, found: list[str]) -> list[str]:
    shown = indented(capped(found, _MOST_LINES, "checks.more"))
    return [say(head, count=len(found)), *shown] if found else []


def _findings(findings: Sequence[CheckFinding], indent: str, of_rest: str) -> list[str]:
    """Return the first findings, and how many more there are, indented by `of_rest`."""
    lines = [line for one in findings[:_MOST_FINDINGS] for line in _finding(one, indent)]
    if (left := len(findings) - _MOST_FINDINGS) > 0:
        lines.append(of_rest + say("checks.more", count=left))
    return lines


def _finding(finding: CheckFinding, indent: str) -> list[str]:
    severity = say(f"checks.severity_{finding.severity.value}")
    lines = [f"{indent}{severity}  {place_in_words(finding.place)}  [{finding.rule}]"]
    inside = indent + "  "
    name = finding.place.record or finding.place.entry or finding.place.key
    if name:
        lines.append(inside + shortened(name, _LONGEST))
    lines.append(f"{inside}{in_words(finding.said)}")
    if more := again(finding):
        lines.append(inside + more)
    show = partial(_evidence, finding=finding)
    lines += indented(capped(finding.evidence, _MOST_EVIDENCE, "checks.more", show=show), inside)
    if finding.causes:
        causes = [in_words(cause) for cause in finding.causes[:_MOST_CAUSES]]
        numbered = (f"{n}) {cause}" for n, cause in enumerate(causes, start=1))
        lines.append(inside + say("checks.causes", causes=" ".join(numbered)))
    for number, frame in enumerate(finding.stack[:_MOST_FRAMES]):
        lines.append(inside + (say("checks.stack") if not number else "") + " " + frame.strip())
    if finding.next_step is not None:
        settings = settings_in_one_line(finding.next_step)
        lines.append(inside + say("checks.look_closer", settings=settings))
    if finding.followed_by:
        lines.append(inside + say("checks.followed_by", count=len(finding.followed_by)))
        lines += _findings(finding.followed_by, inside + "  ", inside + "  ")
    return lines


def _evidence(one: Evidence, finding: CheckFinding) -> str:
    note = "" if one.note is None else f"{in_words(one.note)}: "
    return f"· {note}{shortened(_named(one, finding), _LONGEST)}  {values_in_words(one)}"


def _named(one: Evidence, finding: CheckFinding) -> str:
    """Return where a piece of evidence is, as far as it is not where its finding is."""
    own, other = finding.place, one.place
    where = []
    if other.step != own.step:
        where.append(say("checks.at_step", step=other.step))
    if other.rank is not None and other.rank != own.rank:
        where.append(say("checks.at_rank", rank=other.rank))
    if other.phase is not None and other.phase != own.phase:
        where.append(other.phase)
    return say("checks.comma").join([*where, other.name])


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        if value and all(type(item) is int for item in value):
            return (
                spans(value)
                if sorted(set(value)) == list(value) and len(value) > 4
                else str(list(value))
            )
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_value(item)}" for name, item in value.items()) + "}"
    return shortened(str(value), _LONGEST)
