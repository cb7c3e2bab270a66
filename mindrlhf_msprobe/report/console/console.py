"""Findings → the answer on the console, one screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.findings import (
    Cause,
    Comparison,
    Divergence,
    Outcome,
    Spread,
    Verdict,
    counted,
)
from mindrlhf_msprobe.report.console.inside import inside_words
from mindrlhf_msprobe.report.console.preflight import check_lines, preflight_lines
from mindrlhf_msprobe.report.console.wording import (
    CONFIG_JSON,
    before,
    bisection_of,
    chosen_of,
    earlier_of,
    factor,
    merged,
    place_of,
    place_of_settings,
    ranks_parted,
    rule_use,
    size_of_next,
    stop_lines,
)
from mindrlhf_msprobe.report.staging import VERDICT_FILE

_YAML_WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
_PLACES = 8  # phases and keys, or layers
_LINES = 4  # of each: what was not compared, what is incomplete, notes
_RULES = 2
_RANKS = 4


def render(comparison: Comparison, seconds: float | None = None) -> str:
    """Return what a comparison says, as plain text; names cannot move the cursor or hide lines."""
    verdict = comparison.verdict
    more = "in summary.xlsx" if comparison.tables else ""
    lines = [*stop_lines(comparison.stops), *preflight_lines(comparison.preflight, more)]
    lines += _headline(verdict)
    if verdict.first_divergence is not None:
        lines += _divergence(verdict.first_divergence)
        lines += _check_first(verdict.first_divergence)
        lines += _spread(verdict)
        lines += _parted(verdict, more)
        one = comparison.run_a == comparison.run_b
        lines += _look_closer(verdict.first_divergence, comparison.output_path, one)
        if verdict.non_finite.records:
            lines.append(f"Records that agree{_non_finite(verdict)}.")
    if comparison.earlier is not None:
        words = earlier_of(*comparison.earlier)
        lines.append(words[0].upper() + words[1:] + ".")
    lines += _chosen(comparison)
    lines += _tolerance(comparison, more)
    lines += _capped("Note", list(comparison.notes), more)
    lines += _capped("Not compared", _not_compared(comparison), more)
    lines += _capped("Incomplete", list(comparison.problems), more)
    lines += _files(comparison)
    lines.append(_summary(verdict, seconds))
    return "\n".join(map(printable, lines))


def _headline(verdict: Verdict) -> list[str]:
    scope = _scope(verdict)
    if verdict.status is Outcome.IDENTICAL:
        agree = "agrees" if verdict.compared == 1 else "agree"
        what = f"{_records(verdict.compared)} of {scope} {agree} bit for bit"
        return [f"IDENTICAL: {what}{_non_finite(verdict)}."]
    if verdict.status is Outcome.WITHIN_TOLERANCE:
        close = verdict.counts["within_tolerance"]
        which = f"agree, {close} of them" if verdict.compared > 1 else "agrees"
        return [
            f"WITHIN TOLERANCE: {_records(verdict.compared)} of {scope} {which} within the "
            f"tolerance or by statistics only{_non_finite(verdict)}."
        ]
    if verdict.unread:
        agree = "agrees" if verdict.compared == 1 else "agree"
        left = len(verdict.unread) - _LINES
        return [
            f"INCOMPARABLE: {_records(verdict.compared)} of {scope} {agree}, but not all that was "
            f"recorded could be read, so the runs cannot be called the same:",
            *(f"  {unread}" for unread in verdict.unread[:_LINES]),
            *([f"  … {left} more"] if left > 0 else []),
            "Restore these files from where they were copied, or record again, and compare once "
            "more.",
        ]
    if verdict.status is Outcome.INCOMPARABLE:
        return [
            "INCOMPARABLE: the two runs have nothing in common that could be compared. Check that "
            "both recorded the same phases, steps and keys, and that these are the right two."
        ]
    first = verdict.first_divergence
    assert first is not None
    return [f"DIVERGED at {place_of(first)}"]


def _non_finite(verdict: Verdict) -> str:
    """Say how many of the records that agree are NaN or infinite on both sides, and the first."""
    found = verdict.non_finite
    if not found.records:
        return ""
    where = ", ".join(filter(None, (f"step {found.step}", found.phase, f"rank {found.rank}")))
    hold = "hold" if found.records > 1 else "holds"
    which = f"{found.records} of them {hold}" if verdict.compared > 1 else "it holds"
    return f"; {which} NaN or Inf on both sides, first at {where}: {found.record}"


def _divergence(first: Divergence) -> list[str]:
    # Where a setting can explain key data, the settings are named instead of "data".
    says = "" if first.is_explained and first.cause is Cause.DATA else f"cause: {first.cause}. "
    lines = [f"  {first.entry or first.record}", f"  {says}{first.explanation}"]
    if first.max_abs_err:  # 0 where what differs is no finite element: NaN, a dtype, …
        relative = "" if first.max_rel_err is None else f", max rel {first.max_rel_err:.2g}"
        lines.append(f"  max abs {first.max_abs_err:.2g}{relative}")
    if words := inside_words(first.inside):
        lines.append(f"  inside: {words}")
    if first.source:
        lines.append(f"  source: {first.source}")
    agreed = before(first)
    if not agreed:
        return lines
    last = f" The last: {first.last_agreeing}" if first.last_agreeing else ""
    return [*lines, f"Before it: {agreed}{last}"]


def _check_first(first: Divergence) -> list[str]:
    """Return what differs before any tensor and can explain the finding."""
    lines = check_lines(first.check_first, f"in {VERDICT_FILE}")
    if not lines:
        return []
    return ["Check this first: it differs between the runs and can have this effect", *_in(lines)]


def _in(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _look_closer(first: Divergence, output: str | None, one_run: bool) -> list[str]:
    if first.next_step is None:
        return []
    if first.is_explained and first.key is not None and output is not None:
        # Recording every layer of the phase comes after a look at what is known to differ.
        return [
            f"If that is meant to differ: next_step in {VERDICT_FILE} says what to record to look "
            f"closer."
        ]
    unless = "Look closer"
    if first.check_first:
        unless = (
            "If that is meant to differ" if first.is_explained else "If that does not explain it"
        )
        unless += ", look closer"
    again = "it again, into another" if one_run else "both again, each into its own"
    lines = [
        f"{unless}: record {again} dump_path{size_of_next(first, one_run)}, with",
        f"  {place_of_settings(first.next_step)}: {_settings(first.next_step)}",
    ]
    if words := bisection_of(first):
        lines.append(f"  {words}")
    if output is not None and "msprobe" in first.next_step:
        lines.append(f"  and compare them with --after {output}")
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
    chains += [(f"step {first.step}", after, _place)] if after else []
    return [
        f"After it, in {where}{'' if i else _key([*inside, *after])}: {_chain(places, show)}"
        for i, (where, places, show) in enumerate(chains)
    ]


def _parted(verdict: Verdict, more: str) -> list[str]:
    """Return which ranks part first, then, and not at all."""
    lines = ranks_parted(verdict)
    if len(lines) <= _RANKS:
        return [f"Ranks: {line}" for line in lines]
    *shown, last = [*lines[: _RANKS - 1], lines[-1]]
    rest = f"… {len(lines) - _RANKS} more places {more}".rstrip()
    return [f"Ranks: {line}" for line in (*shown, rest, last)]


def _key(places: Sequence[Spread]) -> str:
    """Return what the numbers behind the places are, as far as there are any."""
    parts = []
    if any(place.max_abs_err for place in places):
        parts.append("max abs error")
    if any(place.factor is not None for place in places):
        parts.append("× relative distance, the first divergence being ×1")
    return f" ({'; '.join(parts)})" if parts else ""


def _chain(places: Sequence[Spread], show: Callable[[Spread], str]) -> str:
    shown = [show(place) for place in places[:_PLACES]]
    if len(places) > len(shown):
        shown.append(f"… {len(places) - len(shown)} more")
    return " → ".join(shown)


def _layer(layer: Spread) -> str:
    return f"{layer.place}{_size(layer)}" if _size(layer) else _place(layer)


def _place(place: Spread) -> str:
    records = f" ({place.different} of {place.compared} records)" if place.compared > 1 else ""
    return f"{place.place}{_size(place)}{records}"


def _size(place: Spread) -> str:
    error = f" {place.max_abs_err:.1e}" if place.max_abs_err else ""
    return error if place.factor is None else f"{error} {factor(place.factor)}"


def _tolerance(comparison: Comparison, more: str) -> list[str]:
    if not comparison.rules:
        return []
    shown = [rule_use(rule) for rule in comparison.rules[:_RULES]]
    if len(comparison.rules) > len(shown):
        shown.append(f"… {len(comparison.rules) - len(shown)} more {more}".rstrip())
    return [f"Tolerance: {'; '.join(shown)}"]


def _chosen(comparison: Comparison) -> list[str]:
    """Return which part of the runs was compared, where the caller wanted a part."""
    lines = [] if comparison.chosen is None else chosen_of(comparison.chosen)
    return [line[0].upper() + line[1:] for line in lines]


def _not_compared(comparison: Comparison) -> list[str]:
    gaps = [
        f"{_records(gap.records)} only in {gap.only_in} — {gap.reason}."
        if gap.only_in != "both"
        else f"{gap.records} {gap.reason}."
        for gap in comparison.verdict.coverage
    ]
    return gaps + merged(comparison.preflight.unknown)


def _capped(what: str, lines: Sequence[str], more: str) -> list[str]:
    shown = [f"{what}: {line}" for line in lines[:_LINES]]
    if len(lines) > len(shown):
        shown.append(f"{what}: … {len(lines) - len(shown)} more {more}".rstrip())
    return shown


def _files(comparison: Comparison) -> list[str]:
    if comparison.output_path is None:
        return []
    output = Path(comparison.output_path)
    lines = [f"Machine-readable: {output / comparison.verdict_file}"]
    if comparison.tables:
        first, *others = comparison.tables
        rest = f" and {len(others)} more" if others else ""
        lines.insert(0, f"Tables: {output / first}{rest}")
    return lines


def _settings(settings: Mapping[str, Any]) -> str:
    in_yaml = place_of_settings(settings) != CONFIG_JSON
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
    parts = [counted(verdict.steps, "step"), counted(verdict.ranks, "rank")]
    if verdict.phases:
        parts.append(counted(len(verdict.phases), "phase"))
    return ", ".join(parts)


def _summary(verdict: Verdict, seconds: float | None) -> str:
    counts = ", ".join(f"{n} {status}" for status, n in verdict.counts.items() if n)
    took = "" if seconds is None else f" in {seconds:.1f} s"
    return f"{_scope(verdict)} · {_records(verdict.compared)}{took}: {counts or 'none'}"


def _records(number: int) -> str:
    return counted(number, "record")
