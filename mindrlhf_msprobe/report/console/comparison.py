"""Findings → the answer on the console, one screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.language import language, speaking
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import printable, size
from mindrlhf_msprobe.findings import (
    Cause,
    Comparison,
    Divergence,
    Outcome,
    Spread,
    Verdict,
)
from mindrlhf_msprobe.report.answer import (
    CONFIG_JSON,
    by_subject,
    capped,
    factor,
    facts_of,
    indented,
    merged,
    occasion_in_words,
    origin_in_words,
    settings_file,
    size_of_next,
)
from mindrlhf_msprobe.report.console.preflight import preflight_lines
from mindrlhf_msprobe.report.messages import say, texts_of
from mindrlhf_msprobe.report.staging import VERDICT_FILE

_YAML_WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
_PLACES = 8  # phases and keys, or layers
_LINES = 4  # of each: what to check, what was not compared, what is incomplete, notes
_RULES = 2
_RANKS = 4


def render(
    comparison: Comparison,
    seconds: float | None = None,
    *,
    replay: str = "",
    lang: str | None = None,
) -> str:
    """Return what a comparison says, as plain text; names cannot move the cursor or hide lines.

    Args:
        seconds: how long it took.
        replay: the command that computes the entry that is to blame again; "" for none.
        lang: `en` or `zh`; None: the one that was chosen, else the locale's.
    """
    with speaking(lang):
        return "\n".join(map(printable, _lines(comparison, seconds, replay)))


def _lines(comparison: Comparison, seconds: float | None, replay: str) -> list[str]:
    verdict = comparison.verdict
    more = say("console.in_summary") if comparison.tables else ""
    told = by_subject(facts_of(comparison))
    lines = [*told["stops"], *preflight_lines(comparison.preflight, more), *headline(verdict)]
    if verdict.first_divergence is not None:
        lines += indented([*_cause(verdict.first_divergence), *told["evidence"]])
        lines += told["agreed"]
        if checks := told["check_first"]:
            in_verdict = say("console.in_verdict", file=VERDICT_FILE)
            lines += [*told["checks"], *indented(capped(checks, _LINES, where=in_verdict))]
        lines += _spread(verdict)
        lines += _ranks(told["ranks"], more)
        one = comparison.run_a == comparison.run_b
        lines += _look_closer(verdict.first_divergence, comparison.output_path, one)
        lines += [say("replay.command", command=replay)] * bool(replay)
        if verdict.non_finite.records and not told["suspicious"]:
            lines.append(say("console.agree_non_finite", non_finite=_non_finite(verdict)))
    lines += told["suspicious"]
    for words in told["earlier"]:
        end = "" if words.endswith("。") else "。" if language() == "zh" else "."
        lines.append(words[0].upper() + words[1:] + end)
    lines += [line[0].upper() + line[1:] for line in told["chosen"]]
    lines += _tolerance(comparison, more)
    for code, found in (
        ("console.note", comparison.notes),
        ("console.not_compared", _not_compared(comparison)),
        ("console.incomplete", comparison.problems),
    ):
        lines += [say(code, line=line) for line in capped(found, _LINES, where=more)]
    if comparison.run_a != comparison.run_b:
        lines.append(say("console.sides", a=comparison.run_a, b=comparison.run_b))
    lines += _files(comparison)
    lines.append(_summary(verdict, seconds))
    return lines


def headline(verdict: Verdict) -> list[str]:
    """Return what a comparison concludes: a line, and more where something was not read."""
    scope, non_finite = _scope(verdict), _non_finite(verdict)
    known = {"compared": verdict.compared, "scope": scope}
    if verdict.status is Outcome.IDENTICAL:
        return [say("console.identical", **known, non_finite=non_finite)]
    if verdict.status is Outcome.WITHIN_TOLERANCE:
        close = verdict.counts["within_tolerance"]
        return [say("console.within_tolerance", **known, close=close, non_finite=non_finite)]
    if verdict.unread:
        unread = indented(capped(verdict.unread, _LINES))
        return [say("console.unread", **known), *unread, say("console.restore")]
    if verdict.status is Outcome.INCOMPARABLE:
        return [say("console.incomparable")]
    first = verdict.first_divergence
    assert first is not None
    return [say("console.diverged", place=occasion_in_words(first))]


def _non_finite(verdict: Verdict) -> str:
    """Say how many of the records that agree are NaN or infinite on both sides, and the first."""
    found = verdict.non_finite
    several = verdict.compared > 1
    return say("console.non_finite", several=several, **vars(found)) if found.records else ""


def _cause(first: Divergence) -> list[str]:
    """Return what is to blame, and what kind of cause it is."""
    # Where a setting can explain key data, the settings are named instead of "data".
    explained = first.is_explained and first.cause is Cause.DATA
    says = (
        first.explanation
        if explained
        else say("console.cause", cause=first.cause.value, explanation=first.explanation)
    )
    return [origin_in_words(first), says]


def _look_closer(first: Divergence, output: str | None, one_run: bool) -> list[str]:
    if first.next_step is None:
        return []
    if first.is_explained and first.key is not None and output is not None:
        # Recording every layer of the phase comes after a look at what is known to differ.
        return [say("console.meant", file=VERDICT_FILE)]
    unless = ("meant" if first.is_explained else "unexplained") if first.check_first else ""
    takes = size_of_next(first, one_run)
    lines = [
        say("console.look_closer", unless=unless, one_run=one_run, size=takes),
        f"  {settings_file(first.next_step)}: {settings_in_one_line(first.next_step)}",
    ]
    if first.next_step_whole is not None:
        lines.append(f"  {say('console.bisection', size=size(first.next_step_whole))}")
    if output is not None and "msprobe" in first.next_step:
        lines.append(f"  {say('console.compare_after', output=output)}")
    return lines


def _spread(verdict: Verdict) -> list[str]:
    """Return where the difference went after the place where it arose."""
    first = verdict.first_divergence
    assert first is not None
    origin = first.phase if first.entry is not None else first.record
    inside = [layer for place in verdict.spread if place.place == origin for layer in place.layers]
    after = [place for place in verdict.spread if place.place != origin]
    chains: list[tuple[str, list[Spread], Callable[[Spread], str]]] = []
    chains += [(str(origin), inside, _layer)] if inside else []
    if after:
        chains.append((say("console.of_step", step=first.step), after, _place))
    return [
        say(
            "console.chain",
            where=where,
            key="" if i else _key([*inside, *after]),
            chain=" → ".join(capped(places, _PLACES, show=show)),
        )
        for i, (where, places, show) in enumerate(chains)
    ]


def _ranks(lines: list[str], more: str) -> list[str]:
    """Return which ranks diverge first, which later, and which not at all; few of many."""
    if len(lines) > _RANKS:
        left = say("console.more_places", count=len(lines) - _RANKS)
        lines = [*lines[: _RANKS - 1], f"{left}{more}", lines[-1]]
    return [say("console.ranks", line=line) for line in lines]


def _key(places: Sequence[Spread]) -> str:
    """Return what the numbers behind the places are, as far as there are any."""
    absolute = any(place.max_abs_err for place in places)
    relative = any(place.factor is not None for place in places)
    zero = any(place.zero for place in places)
    return say("console.chain_key", absolute=absolute, relative=relative, zero=zero)


def _layer(layer: Spread) -> str:
    return _place(layer, records=not _size(layer))


def _place(place: Spread, *, records: bool = True) -> str:
    within: list[Message] = []
    if records and place.compared > 1:
        differ = {"different": place.different, "compared": place.compared}
        within.append(message("console.records_differ", **differ))
    if place.non_finite is not None:
        within.append(message("console.not_finite", **vars(place.non_finite)))
    named = f"{place.place}{_size(place)}"
    return say("console.spread", place=named, within=texts_of(within)) if within else named


def _size(place: Spread) -> str:
    error = f" {place.max_abs_err:.1e}" if place.max_abs_err else ""
    far = say(f"console.{place.zero}_zero") if place.zero else factor(place.factor)
    return f"{error} {far}" if far else error


def _tolerance(comparison: Comparison, more: str) -> list[str]:
    if not comparison.rules:
        return []
    uses = (
        say("console.rule_use", rule=use.rule, records=use.records, passed=use.passed)
        for use in comparison.rules
    )
    return [say("console.tolerance", rules="; ".join(capped(uses, _RULES, where=more)))]


def _not_compared(comparison: Comparison) -> list[str]:
    gaps = [
        say("console.gap", records=gap.records, only_in=gap.only_in, reason=gap.reason)
        for gap in comparison.verdict.coverage
    ]
    return [*gaps, *map(str, merged(comparison.preflight.not_compared))]


def _files(comparison: Comparison) -> list[str]:
    if comparison.output_path is None:
        return []
    output = Path(comparison.output_path)
    lines = [say("console.machine_readable", file=str(output / comparison.verdict_file))]
    if comparison.tables:
        first, *others = comparison.tables
        code = "console.tables_and_more" if others else "console.tables"
        known = {"more": len(others)} if others else {}
        lines.insert(0, say(code, file=str(output / first), **known))
    return lines


def settings_in_one_line(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML in one line, those of PrecisionDebugger as JSON."""
    in_yaml = settings_file(settings) != CONFIG_JSON
    return _yaml(settings) if in_yaml else json.dumps(settings)


def _yaml(value: Any) -> str:
    """Return a value in YAML's one-line form."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str) and value.isidentifier() and value.lower() not in _YAML_WORDS:
        return value
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return json.dumps(value)


def _scope(verdict: Verdict) -> str:
    return say(
        "console.scope", steps=verdict.steps, ranks=verdict.ranks, phases=len(verdict.phases)
    )


def _summary(verdict: Verdict, seconds: float | None) -> str:
    return say(
        "console.summary",
        scope=_scope(verdict),
        compared=verdict.compared,
        seconds=seconds,
        counts=[f"{n} {status}" for status, n in verdict.counts.items() if n],
    )
