"""What a comparison says: the facts that console, page and summary.xlsx show; its whole answer."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.language import language, speaking
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import size
from mindrlhf_msprobe.findings import (
    STAND_INS,
    VERDICT_FILE,
    Cause,
    Comparison,
    Divergence,
    Inside,
    Outcome,
    Spread,
    Status,
    Stopped,
    Verdict,
    Weights,
)
from mindrlhf_msprobe.report.answer import Code, Fact, Head, Lines, as_text, capped, texts
from mindrlhf_msprobe.report.messages import paragraph, say
from mindrlhf_msprobe.report.preflight import difference_line, merged, preflight_lines, weights_line
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.records import direction_of

_STOPS = 4  # places where runs stopped
_YAML_WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
_PLACES = 8  # phases and keys, or layers
_LINES = 4  # of each: what to check, what was not compared, what is incomplete, notes
_RULES = 2
_RANKS = 4
#: Facts that stand in places of their own among the lines.
_PLACED = (
    *("stops", "operator", "to_do", "evidence", "agreed", "checks", "check_first"),
    *("ranks", "suspicious", "earlier", "chosen"),
)


def facts_of(comparison: Comparison, *, table: bool = False) -> list[Fact]:
    """Return what a comparison found: what console, page and summary.xlsx show of it, once.

    The lines are those beside its headline and its cause, in this order: where runs stopped
    (`stops`); of the first divergence which operator it is (`operator`), what to do where neither a
    recording nor a setting can tell more (`to_do`), what is known of the difference (`evidence`),
    what agreed before it (`agreed`), and, after the sentence `checks`, what to check first
    (`check_first`); which `ranks` differ; what is `suspicious`; how it compares to an `earlier`
    answer; which records were `chosen`.

    Args:
        table: whether facts that a table alone shows and that take time to find are wanted, too.
    """
    verdict, first = comparison.verdict, comparison.verdict.first_divergence
    stops = (
        say("console.stopped_run", run=stop.run, stopped=stopped_at(stop, stop.ranks))
        for stop in comparison.stops
    )
    facts = [
        Fact("status", row=("verdict", "status", verdict.status)),
        Fact("runs", row=("verdict", "A (baseline)", comparison.run_a)),
        Fact("runs", row=("verdict", "B (under test)", comparison.run_b)),
        *(Fact("stops", line) for line in capped(stops, _STOPS)),
        *([] if first is None else _of_divergence(first)),
        *(Fact("ranks", line, ("ranks", None, line)) for line in _ranks(verdict)),
        *(_for_tables(comparison) if table else ()),
    ]
    if verdict.suspicious.records:
        at = verdict.suspicious
        place = {"step": at.step, "rank": at.rank, "phase": at.phase, "record": at.record}
        link = {"view": "where"} | {k: v for k, v in place.items() if v is not None}
        facts.append(Fact("suspicious", at.text, link=link))
    if comparison.earlier is not None:
        earlier, relation = comparison.earlier
        named = {"named": str(earlier.entry or earlier.record)}
        all_cells = bool(earlier.all_cells and earlier.entry)
        line = say("console.earlier", earlier, relation=relation, **named, all_cells=all_cells)
        facts.append(Fact("earlier", line, ("earlier", relation.value, line)))
    if comparison.chosen is not None:  # which records were compared, and what that leaves out
        said = (say(f"console.{one}", comparison.chosen) for one in ("compared_only", "left_out"))
        facts += [Fact("chosen", line, ("chosen", None, line)) for line in said if line]
    return facts


def _of_divergence(first: Divergence) -> Iterator[Fact]:
    def row(item: str, value: Any) -> Fact:
        return Fact("divergence", row=("verdict", item, value))

    yield row("where", occasion_in_words(first))
    yield row("record", first.record)
    for item, known in (("argument", first.argument), ("origin", first.entry)):
        if known:
            yield row(item, known)
    if first.operator:
        line = origin_in_words(first)
        yield Fact("operator", line, ("verdict", "operator", line))
    yield row("cause", first.cause.value)
    yield row("explanation", first.explanation)
    if first.next_step is None and first.culprit is None and not first.check_first:
        line = say("console.to_do", first, of_cell=first.key is None)
        if line:
            yield Fact("to_do", line, ("verdict", "what to do", line))
    if first.max_abs_err:  # 0 where what differs is no finite element: NaN, a dtype, …
        apart = {"absolute": first.max_abs_err, "relative": first.max_rel_err}
        line = say("console.max_abs", **apart)
        yield Fact("evidence", line, ("verdict", "max abs error", rounded(first.max_abs_err)))
        yield row("max rel error", rounded(first.max_rel_err))
    words = inside_words(first.inside)
    line = say("console.inside", words=words) if words else ""
    yield Fact("evidence", line, ("verdict", "inside", words or say("tables.nothing_holds")))
    if first.source:
        line = say("console.source", source=first.source)
        yield Fact("evidence", line, ("verdict", "source", first.source))
    agreed = say("console.before", first)  # "" if nothing was compared before it
    last = first.last_agreeing
    line = say("console.agreed_before", agreed=agreed, last=last) if agreed else ""
    yield Fact("agreed", line, ("verdict", "agreed before", agreed or say("tables.nothing_before")))
    if last:
        yield row("last that agreed", last)
    if first.check_first:
        yield Fact("checks", say("console.check_first"))
    for what in (check.what for check in first.check_first):  # the nearest first
        if isinstance(what, Weights):
            line = say("console.load_checkpoint", weights=weights_line(what))
        else:
            line = difference_line(what)
        yield Fact("check_first", line, ("verdict", "check first", line))


def _for_tables(comparison: Comparison) -> Iterator[Fact]:
    """Yield the settings of the next step as they can be pasted into a YAML file, and counts."""
    verdict, first = comparison.verdict, comparison.verdict.first_divergence
    if first is not None and first.next_step is not None:
        import yaml  # slow to import

        section = {settings_file(first.next_step): first.next_step}
        text = yaml.safe_dump(section, sort_keys=False, allow_unicode=True, width=10_000)
        yield Fact("next_step", row=("verdict", "next step", str(text).rstrip()))
        if (takes := first.next_step_bytes) is not None:
            item = "size of the next step, of one rank"
            yield Fact("next_step", row=("verdict", item, size(takes)))
    suspicious = sum(1 for finding in comparison.findings if finding.suspicions)
    suspicious += sum(agreement.suspicious for agreement in comparison.agreements)
    some: dict[str, int] = {one: verdict.counts.get(one.value, 0) for one in Status}
    some["of those that agree, suspicious"] = suspicious
    whole = {"steps": verdict.steps, "ranks": verdict.ranks, "phases": len(verdict.phases)}
    counted = {item: number for item, number in some.items() if number}
    for item, number in ({"records": verdict.compared} | counted | whole).items():
        yield Fact("counts", row=("counts", item, number))


def rounded(value: float | None) -> float | None:
    """Return a number as a summary shows it; verdict.json has every digit."""
    return None if value is None else float(f"{value:.4g}")


def head_of(comparison: Comparison) -> Head:
    """Return what a comparison says first."""
    verdict, first = comparison.verdict, comparison.verdict.first_divergence
    close = (Status.IDENTICAL, Status.WITHIN_TOLERANCE)
    head = Head(
        tone="warn" if verdict.suspicious.records and first is None else verdict.status.tone,
        headline=" ".join(line.strip() for line in texts(headline(verdict))),
        facts=facts_of(comparison),
        counts=[
            (status.value, number, "good" if status in close else "bad")
            for status in Status
            if (number := verdict.counts.get(status.value, 0))
        ],
    )
    if first is None:
        return head
    place: dict[str, Any] = {"step": first.step, "rank": first.rank, "phase": first.phase}
    place = {k: v for k, v in {**place, "entry": first.entry}.items() if v is not None}
    own: dict[str, Any] = {"record": first.record}
    if first.key is not None:
        own = {"key": first.key, "micro_step": first.occasion.number}
    closer = first.next_step
    return replace(
        head,
        sentence=paragraph(first.reasons) if first.reasons else first.explanation,
        cause=first.cause.value,
        place={**place, "view": "where", **own},
        next_step=None if closer is None else next_step_of(closer),
        next_step_note=None if closer is None else size_of_next(first, False).strip() or None,
    )


def occasion_in_words(first: Divergence) -> str:
    """Return where two runs first differ: step, phase, rank, and which time in the step it is."""
    occasion = first.occasion
    times: dict[str, int | None] = {"micro_step": None, "call": None}
    if occasion.times > 1 and first.key is not None:
        times["micro_step"] = occasion.number
    elif occasion.times > 1:
        times["call"] = occasion.number + 1
    return say("console.place", first, **times)


def origin_in_words(first: Divergence) -> str:
    """Return what is to blame: an entry, or a key; of an operator where it was called, too."""
    if not first.operator or first.entry is None:
        return first.entry or first.record
    return say("console.operator", first, backward=direction_of(first.entry) == "backward")


def _ranks(verdict: Verdict) -> list[str]:
    """Return which ranks diverge, the first ones first, and which agree; [] of one rank."""
    if verdict.ranks < 2 or not verdict.parted:
        return []
    groups: dict[tuple[Any, ...], list[int]] = {}
    for one in verdict.parted:
        groups.setdefault((one.step, one.phase, one.record, one.micro_step), []).append(one.rank)
    names = ("step", "phase", "record", "micro_step")
    lines = [
        say("console.parted", ranks=ranks, first=number == 0, **dict(zip(names, where)))
        for number, (where, ranks) in enumerate(groups.items())
    ]
    if verdict.agreeing_ranks:
        lines.append(say("console.agreeing_ranks", ranks=verdict.agreeing_ranks))
    return lines


def stopped_at(stop: Stopped | Stop, ranks: Sequence[int]) -> str:
    """Return where a run stopped, as the rest of a sentence that begins with the run."""
    text = str(STAND_INS.get(stop.text, " ".join(stop.text.split())))
    error = ": ".join(part for part in (stop.error, text) if part)
    return say("console.stopped", stop, error=error, ranks=ranks)


def size_of_next(first: Divergence, one_run: bool) -> str:
    """Return what the next recording takes, as far as it is known.

    Args:
        one_run: whether the run is compared with itself, and recorded once more alone.
    """
    if first.next_step_bytes is not None:
        return say(
            "console.size_of_next",
            size=size(first.next_step_bytes),
            one_run=one_run,
            estimated=first.next_step_estimated,
        )
    return say("console.size_of_next_unknown") if "msprobe" in (first.next_step or {}) else ""


def next_step_of(settings: Mapping[str, Any]) -> str:
    """Return settings of a next step in one line, behind where they stand."""
    return f"{settings_file(settings)}: {settings_in_one_line(settings)}"


def settings_file(settings: Mapping[str, Any]) -> str:
    """Return where the settings of a next step stand: a section of a YAML file, or config.json."""
    return "msprobe_config" if "msprobe" in settings else "config.json"


def inside_words(inside: Inside | None) -> str:
    """Return what differs inside a record as one sentence, "" where nothing certain is known."""
    if inside is None:
        return ""
    axes = dict(inside.axes)
    where = [
        message("inside.axis", **some.to_json(), name=axes.get(some.axis))
        if some.what == "axis"
        else message("inside.element", **some.to_json())
        for some in inside.where
    ]
    change = None
    if inside.change is not None:
        known = inside.change.parameters
        of_axis = {"name": axes.get(known["axis"])} if "axis" in known else {}
        params = {**known, "basis": inside.basis, **of_axis}
        change = Message(f"inside.{inside.change.kind}", params)
    return say(
        "inside.differs",
        where=where,
        prompts=list(inside.prompts),
        change=change,
        elements=inside.elements,
        size=inside.size,
    )


def render(comparison: Comparison, seconds: float | None = None, *, lang: str | None = None) -> str:
    """Return what a comparison says, as plain text; names cannot move the cursor or hide lines.

    Args:
        seconds: how long it took.
        lang: `en` or `zh`; None: the one that was chosen, else the locale's.
    """
    with speaking(lang):
        return as_text(lines_of(comparison, seconds))


def lines_of(comparison: Comparison, seconds: float | None = None, replay: str = "") -> Lines:
    """Return the whole answer.

    Args:
        seconds: how long it took.
        replay: the command that computes the entry that is to blame again; "" for none.
    """
    verdict, first = comparison.verdict, comparison.verdict.first_divergence
    more = say("console.in_summary") if comparison.tables else ""
    told: dict[str, list[str]] = defaultdict(list)
    for fact in facts_of(comparison):
        if fact.line:
            told[fact.about].append(fact.line)
    preflight = preflight_lines(comparison.preflight, more)
    lines: list[Any] = [*told["stops"], *headline(verdict)]
    if first is not None:
        # Where a setting can explain key data, the settings are named instead of "data".
        explained = first.is_explained and first.cause is Cause.DATA
        cause = {"cause": first.cause.value, "explanation": first.explanation}
        says = first.explanation if explained else say("console.cause", **cause)
        lines.append([origin_in_words(first), says, *told["to_do"], *told["evidence"]])
        if checks := told["check_first"]:
            in_verdict = say("console.in_verdict", file=VERDICT_FILE)
            lines += [*told["checks"], capped(checks, _LINES, where=in_verdict)]
        lines += _look_closer(comparison, first)
        lines += [Code(replay, words=say("replay.command"))] * bool(replay)
        lines += [*preflight, *told["agreed"], *_spread(verdict)]
        ranks = told["ranks"]
        if len(ranks) > _RANKS:
            left = say("console.more", count=len(ranks) - _RANKS)
            ranks = [*ranks[: _RANKS - 1], f"{left}{more}", ranks[-1]]
        lines += [say("console.ranks", line=line) for line in ranks]
        if verdict.non_finite.records and not told["suspicious"]:
            lines.append(say("console.agree_non_finite", non_finite=_non_finite(verdict)))
    else:
        lines += preflight
    lines += told["suspicious"]
    for words in told["earlier"]:
        end = "" if words.endswith("。") else "。" if language() == "zh" else "."
        lines.append(words[0].upper() + words[1:] + end)
    lines += [line[0].upper() + line[1:] for line in told["chosen"]]
    lines += [line for about, found in told.items() if about not in _PLACED for line in found]
    if comparison.rules:
        rule_use = partial(say, "console.rule_use")
        rules = "; ".join(capped(comparison.rules, _RULES, where=more, show=rule_use))
        lines.append(say("console.tolerance", rules=rules))
    gaps = [say("console.gap", gap) for gap in verdict.coverage]
    for code, found in (
        ("console.note", comparison.notes),
        ("console.not_compared", (*gaps, *map(str, merged(comparison.preflight.not_compared)))),
        ("console.incomplete", comparison.problems),
    ):
        lines += [say(code, line=line) for line in capped(found, _LINES, where=more)]
    if comparison.run_a != comparison.run_b:
        lines.append(say("console.sides", a=comparison.run_a, b=comparison.run_b))
    if comparison.output_path is not None:
        output, tables = Path(comparison.output_path), comparison.tables
        if tables:
            lines.append(say("console.tables", file=output / tables[0], more=len(tables) - 1))
        lines.append(say("console.machine_readable", file=output / comparison.verdict_file))
    counts = [f"{n} {status}" for status, n in verdict.counts.items() if n]
    scope = _scope(verdict)
    return [*lines, say("console.summary", verdict, scope=scope, seconds=seconds, counts=counts)]


def headline(verdict: Verdict) -> Lines:
    """Return what a comparison concludes: a line, and more where something was not read."""
    kind, first = verdict.status.value, verdict.first_divergence
    if verdict.unread and verdict.status in (Outcome.DIVERGED, Outcome.INCOMPARABLE):
        kind = "unread"
    known = {
        "scope": _scope(verdict),
        "non_finite": _non_finite(verdict),
        "close": verdict.counts.get("within_tolerance", 0),
        "place": "" if first is None else occasion_in_words(first),
    }
    line = say(f"console.{kind}", verdict, **known)
    if kind != "unread":
        return [line]
    return [line, capped(verdict.unread, _LINES), say("console.restore")]


def _non_finite(verdict: Verdict) -> str:
    """Say how many of the records that agree are NaN or infinite on both sides, and the first."""
    found = verdict.non_finite
    several = verdict.compared > 1
    return say("console.non_finite", found, several=several) if found.records else ""


def _look_closer(comparison: Comparison, first: Divergence) -> Lines:
    if first.next_step is None:
        return []
    output, one_run = comparison.output_path, comparison.run_a == comparison.run_b
    if first.is_explained and first.key is not None and output is not None:
        # Recording every layer of the phase comes after a look at what is known to differ.
        return [say("console.meant", file=VERDICT_FILE)]
    unless = ("meant" if first.is_explained else "unexplained") if first.check_first else ""
    takes = size_of_next(first, one_run)
    steps: list[str] = [Code(next_step_of(first.next_step))]
    if first.next_step_whole is not None:
        steps.append(say("console.bisection", size=size(first.next_step_whole)))
    if output is not None and "msprobe" in first.next_step:
        steps.append(say("console.compare_after", output=shlex.quote(str(output))))
    return [say("console.look_closer", unless=unless, one_run=one_run, size=takes), steps]


def _spread(verdict: Verdict) -> Iterator[str]:
    """Yield where the difference went after the place where it arose."""
    first = verdict.first_divergence
    assert first is not None
    origin = first.phase if first.entry is not None else first.record
    inside = [layer for place in verdict.spread if place.place == origin for layer in place.layers]
    after = [place for place in verdict.spread if place.place != origin]
    places = [*inside, *after]
    # What the numbers behind the places are, as far as there are any.
    key = say(
        "console.chain_key",
        absolute=any(place.max_abs_err for place in places),
        relative=any(place.factor is not None for place in places),
        zero=any(place.zero for place in places),
    )
    chains: list[tuple[str, list[Spread], Callable[[Spread], str]]] = []
    if inside:
        chains.append((str(origin), inside, lambda layer: _place(layer, records=not _size(layer))))
    if after:
        chains.append((say("console.of_step", step=first.step), after, _place))
    for where, found, show in chains:
        chain = " → ".join(capped(found, _PLACES, show=show))
        yield say("console.chain", where=where, key=key, chain=chain)
        key = ""


def _place(place: Spread, *, records: bool = True) -> str:
    not_finite = "" if place.non_finite is None else say("console.not_finite", place.non_finite)
    counted = records and place.compared > 1
    return say("console.spread", place, size=_size(place), records=counted, not_finite=not_finite)


def _size(place: Spread) -> str:
    """Return how far a place is apart: the error, and the growth as ×12, as far as known."""
    error = f" {place.max_abs_err:.1e}" if place.max_abs_err else ""
    if place.zero:
        return f"{error} {say('console.zero', place)}"
    if place.factor is None:
        return error
    return f"{error} ×{place.factor:.2g}" if place.factor < 100 else f"{error} ×{place.factor:.0f}"


def settings_in_one_line(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML in one line, those of PrecisionDebugger as JSON."""
    return _yaml(settings) if "msprobe" in settings else json.dumps(settings)


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
    return say("console.scope", verdict, phases=len(verdict.phases))
