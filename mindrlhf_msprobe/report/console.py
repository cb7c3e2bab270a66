"""Findings → the answer on the console, one screen."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.findings import Comparison, Divergence, Outcome, Spread, Verdict
from mindrlhf_msprobe.report import VERDICT_FILE

_YAML_WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
_SPREAD_SHOWN = 8  # places


def render(comparison: Comparison, seconds: float | None = None) -> str:
    """Return what a comparison says, as plain text; names cannot move the cursor or hide lines."""
    verdict = comparison.verdict
    lines = _headline(verdict)
    if verdict.first_divergence is not None:
        lines += _divergence(verdict.first_divergence)
        lines += _spread(verdict)
        lines += _look_closer(verdict.first_divergence)
    lines += [
        f"Not compared: {gap.records} records only in {gap.only_in} — {gap.reason}."
        if gap.only_in != "both"
        else f"Not compared: {gap.records} {gap.reason}."
        for gap in verdict.coverage
    ]
    lines += [f"Incomplete: {problem}" for problem in comparison.problems]
    if comparison.output_path is not None:
        output = Path(comparison.output_path)
        lines.append(f"Tables: {len(comparison.tables)} in {output}")
        lines.append(f"Machine-readable: {output / VERDICT_FILE}")
    lines.append(_summary(verdict, seconds))
    return "\n".join(map(printable, lines))


def printable(line: str) -> str:
    """Return a line with its control characters, and what has no UTF-8 form, as escapes."""
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char)[0] == "C" else char
        for char in line
    )


def _headline(verdict: Verdict) -> list[str]:
    scope = _scope(verdict)
    if verdict.status is Outcome.IDENTICAL:
        return [f"IDENTICAL: {verdict.compared} records of {scope} agree bit for bit."]
    if verdict.status is Outcome.WITHIN_TOLERANCE:
        close = verdict.counts["within_tolerance"]
        return [
            f"WITHIN TOLERANCE: {verdict.compared} records of {scope} agree, {close} of them "
            f"within the tolerance or by statistics only."
        ]
    if verdict.status is Outcome.INCOMPARABLE:
        return [
            "INCOMPARABLE: the two runs have nothing in common that could be compared. Check that "
            "both recorded the same phases, steps and keys, and that these are the right two."
        ]
    first = verdict.first_divergence
    assert first is not None
    where = ", ".join(filter(None, [f"step {first.step}", first.phase, f"rank {first.rank}"]))
    return [f"DIVERGED at {where}"]


def _divergence(first: Divergence) -> list[str]:
    lines = [f"  {first.entry or first.record}", f"  cause: {first.cause}. {first.explanation}"]
    if first.max_abs_err is not None:
        relative = "" if first.max_rel_err is None else f", max rel {first.max_rel_err:.2g}"
        lines.append(f"  max abs {first.max_abs_err:.2g}{relative}")
    lines.append(f"Before it: {first.agreed_before} records of step {first.step} agree.")
    return lines


def _look_closer(first: Divergence) -> list[str]:
    if first.next_step is None:
        return []
    return [
        "Look closer: record both again, each into its own dump_path, with",
        f"  msprobe_config: {_yaml(first.next_step)}",
    ]


def _spread(verdict: Verdict) -> list[str]:
    """Return where the difference went after the place where it arose."""
    first = verdict.first_divergence
    assert first is not None
    origin = first.phase if first.entry is not None else first.record
    after = [place for place in verdict.spread if place.place != origin]
    if not after:
        return []
    shown = [_spread_place(place) for place in after[:_SPREAD_SHOWN]]
    if len(after) > len(shown):
        shown.append(f"… {len(after) - len(shown)} more")
    return [f"After it, in step {first.step}: {' → '.join(shown)}"]


def _spread_place(place: Spread) -> str:
    error = "" if place.max_abs_err is None else f" {place.max_abs_err:.1e}"
    records = f" ({place.different} of {place.compared} records)" if place.compared > 1 else ""
    return f"{place.place}{error}{records}"


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
    parts = [_count(verdict.steps, "step"), _count(verdict.ranks, "rank")]
    if verdict.phases:
        parts.append(_count(len(verdict.phases), "phase"))
    return ", ".join(parts)


def _summary(verdict: Verdict, seconds: float | None) -> str:
    counts = ", ".join(f"{n} {status}" for status, n in verdict.counts.items() if n)
    took = "" if seconds is None else f" in {seconds:.1f} s"
    return f"{_scope(verdict)} · {verdict.compared} records{took}: {counts or 'none'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
