"""What a comparison says: the facts that console, page and summary.xlsx show, in their order."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from mindrlhf_msprobe.common.message import TEXT, Message, message
from mindrlhf_msprobe.common.printable import size
from mindrlhf_msprobe.findings import (
    STAND_INS,
    CheckFirst,
    Chosen,
    Comparison,
    Difference,
    Divergence,
    Earlier,
    Inside,
    Relation,
    Stopped,
    Verdict,
    Weights,
)
from mindrlhf_msprobe.report.messages import say, text_of
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.records import direction_of

_T = TypeVar("_T")
_STOPS = 4  # places where runs stopped


def capped(
    items: Iterable[_T],
    most: int,
    more: str = "console.more",
    *,
    where: str = "",
    show: Callable[[_T], str] = str,
) -> list[str]:
    """Return a line of each item, at most so many; of further ones how many there are.

    Args:
        more: the code that says how many, of `count`.
        where: behind it, where they stand.
    """
    whole = [*items]
    left = len(whole) - most
    rest = [f"{say(more, count=left)}{where}"] if left > 0 else []
    return [*map(show, whole[:most]), *rest]


def indented(lines: Iterable[str], by: str = "  ") -> list[str]:
    """Return lines with spaces before them."""
    return [by + line for line in lines]


class Fact(NamedTuple):
    """One line of an answer, and what it is about, e.g. `ranks`."""

    about: str
    line: str


def facts_of(comparison: Comparison) -> list[Fact]:
    """Return what a comparison says beside its headline and its cause, in this order.

    That is where runs stopped (`stops`); of the first divergence which operator it is
    (`operator`), what is known of the difference (`evidence`), what agreed before it (`agreed`),
    and, after the sentence `checks`, what to check first (`check_first`); which `ranks` differ;
    what is `suspicious`; how it compares to an `earlier` answer; which records were `chosen`.
    """
    verdict = comparison.verdict
    first = verdict.first_divergence
    facts = [Fact("stops", line) for line in stop_lines(comparison.stops)]
    if first is not None:
        facts += [Fact("operator", origin_in_words(first))] if first.operator else []
        facts += [Fact("evidence", line) for line in _evidence(first)]
        if agreed := before(first):
            said = say("console.agreed_before", agreed=agreed, last=first.last_agreeing)
            facts.append(Fact("agreed", said))
        if checks := check_lines(first.check_first):
            facts.append(Fact("checks", say("console.check_first")))
            facts += [Fact("check_first", line) for line in checks]
    facts += [Fact("ranks", line) for line in ranks_in_words(verdict)]
    if verdict.suspicious.records:
        facts.append(Fact("suspicious", verdict.suspicious.text))
    if comparison.earlier is not None:
        facts.append(Fact("earlier", earlier_of(*comparison.earlier)))
    if comparison.chosen is not None:
        facts += [Fact("chosen", line) for line in chosen_of(comparison.chosen)]
    return facts


def by_subject(facts: Iterable[Fact]) -> dict[str, list[str]]:
    """Return the lines of each subject; [] of one of which nothing is said."""
    lines: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        lines[fact.about].append(fact.line)
    return lines


def _evidence(first: Divergence) -> Iterator[str]:
    if first.max_abs_err:  # 0 where what differs is no finite element: NaN, a dtype, …
        yield say("console.max_abs", absolute=first.max_abs_err, relative=first.max_rel_err)
    if words := inside_words(first.inside):
        yield say("console.inside", words=words)
    if first.source:
        yield say("console.source", source=first.source)


def occasion_in_words(first: Divergence) -> str:
    """Return where two runs first differ: step, phase, rank, and which time in the step it is."""
    occasion = first.occasion
    several = occasion.times > 1
    return say(
        "console.place",
        step=first.step,
        phase=first.phase,
        rank=first.rank,
        micro_step=occasion.number if several and first.key is not None else None,
        call=occasion.number + 1 if several and first.key is None else None,
    )


def origin_in_words(first: Divergence) -> str:
    """Return what is to blame: an entry, or a key; of an operator where it was called, too."""
    if not first.operator or first.entry is None:
        return first.entry or first.record
    return say(
        "console.operator",
        entry=first.entry,
        operator=first.operator,
        cell=first.cell,
        line=first.line,
        backward=direction_of(first.entry) == "backward",
    )


def ranks_in_words(verdict: Verdict) -> list[str]:
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


def stop_lines(stops: Sequence[Stopped]) -> list[str]:
    """Return where the runs stopped that did not finish, in lines."""

    def line(stop: Stopped) -> str:
        return say("console.stopped_run", run=stop.run, stopped=stopped_at(stop, stop.ranks))

    return capped(stops, _STOPS, "console.more_stops", show=line)


def stopped_at(stop: Stopped | Stop, ranks: Sequence[int]) -> str:
    """Return where a run stopped, as the rest of a sentence that begins with the run."""
    text = str(STAND_INS.get(stop.text, " ".join(stop.text.split())))
    error = ": ".join(part for part in (stop.error, text) if part)
    return say(
        "console.stopped",
        state=stop.state,
        step=stop.step,
        phase=stop.phase,
        ranks=ranks,
        error=error,
    )


def before(first: Divergence) -> str:
    """Return what agreed before the first divergence, "" if nothing was compared before it."""
    return say(
        "console.before",
        records=first.agreed_before,
        phases=first.agreed_phases,
        steps=first.agreed_steps,
        step=first.step,
    )


def earlier_of(earlier: Earlier, relation: Relation) -> str:
    """Return how the answer compares to that of an earlier comparison."""
    return say(
        "console.earlier",
        path=earlier.path,
        relation=relation.value,
        status=str(earlier.status),
        named=str(earlier.entry or earlier.record),
        step=earlier.step,
        phase=earlier.phase,
        all_cells=bool(earlier.all_cells and earlier.entry),
        agreed=earlier.agreed_before or 0,
    )


def chosen_of(chosen: Chosen) -> list[str]:
    """Return which records of the runs were compared, and what was left out by that, in lines."""
    wanted = ("steps", "keys", "include", "exclude", "common", "first_only")
    only = {name: getattr(chosen, name) for name in wanted}
    left_out = {
        "steps": chosen.steps_left_out,
        "cells": bool(chosen.keys),
        "keys": chosen.keys_left_out,
        "steps_after": chosen.steps_after,
    }
    said = (("console.compared_only", only), ("console.left_out", left_out))
    return [say(code, **params) for code, params in said if any(params.values())]


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


def weights_of(weights: Weights) -> str:
    """Return how many of a role's initial parameters differ, without their names."""
    return say(
        "console.weights",
        compared=weights.compared,
        different=len(weights.different),
        only_in_a=len(weights.only_in_a),
        only_in_b=len(weights.only_in_b),
    )


def factor(value: float | None) -> str:
    """Return a growth as ×12, empty where it is not known."""
    return "" if value is None else f"×{value:.2g}" if value < 100 else f"×{value:.0f}"


def merged(messages: Iterable[Message]) -> list[Message]:
    """Return messages of which those that differ in one name stand in one: x / y was not recorded.

    Messages that differ only in which run they are about stay apart.
    """
    found: list[tuple[Message, str | None, list[str]]] = []
    for said in messages:
        for index, (first, name, values) in enumerate(found):
            other = _only_difference(first, said)
            if other is not None and name in (None, other):
                found[index] = first, other, [*values, said.params[other]]
                break
        else:
            found.append((said, None, []))
    return [
        first
        if name is None
        else Message(first.code, {**first.params, name: _joined(name, first.params[name], *values)})
        for first, name, values in found
    ]


def _joined(name: str, *values: str) -> Message | str:
    """Return several values as one; sections of run.json have words in each language."""
    return message("preflight.sections", names=values) if name == "section" else " / ".join(values)


def _only_difference(a: Message, b: Message) -> str | None:
    """Return the one parameter, a name, in which two messages differ; None of others."""
    if a.code != b.code or a.code == TEXT or a.params.keys() != b.params.keys():
        return None
    unlike = [name for name in a.params if a.params[name] != b.params[name]]
    values = [side.params[name] for side in (a, b) for name in unlike]
    if len(unlike) != 1 or unlike == ["side"]:
        return None
    return unlike[0] if all(isinstance(value, str) for value in values) else None


#: Where PrecisionDebugger's settings stand.
CONFIG_JSON = "config.json"


def settings_file(settings: Mapping[str, Any]) -> str:
    """Return where the settings of a next step stand: a section of a YAML file, or config.json."""
    return "msprobe_config" if "msprobe" in settings else CONFIG_JSON


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


INITIAL_WEIGHTS = "initial_weights"
#: What explains most comes first; a section that is not named comes last.
_ORDER = (
    INITIAL_WEIGHTS,
    "modes",
    "cells",
    "optimizers",
    "generation",
    "seeds",
    "determinism",
    "versions",
    "configurations",
    "environment",
    "device",
    "world",
    "msprobe_config",
)
_TEXT = 40  # characters of a value
_BEFORE = 12  # of them, before the first difference of a pair


def in_order(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences, what explains most first; a mode of several phases is one."""
    return sorted(_modes_together(differences), key=_order)


def _modes_together(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences with one for each mode that is another one in several phases."""
    together: dict[object, list[Difference]] = {}
    for i, found in enumerate(differences):
        of_mode = found.section == "modes" and found.phase is not None
        key = (found.role, found.cells, found.a, found.b, found.step) if of_mode else i
        together.setdefault(key, []).append(found)
    return [
        dataclasses.replace(found[0], phases=tuple(p for one in found for p in one.phases))
        for found in together.values()
    ]


def _order(difference: Difference) -> tuple[bool, bool, int]:
    section = difference.section
    order = _ORDER.index(section) if section in _ORDER else len(_ORDER)
    return difference.is_of_recording, difference.is_place, order


def check_lines(checks: Sequence[CheckFirst]) -> list[str]:
    """Return what to check first, the nearest first, a line each."""
    return [
        say("console.load_checkpoint", weights=weights_line(check.what))
        if isinstance(check.what, Weights)
        else difference_line(check.what)
        for check in checks
    ]


def weights_line(weights: Weights, most: int = 3, more: str = ", …") -> str:
    """Return how the initial weights of a role differ, with the names of some parameters."""
    names = (*weights.different, *weights.only_in_a, *weights.only_in_b)
    some = ", ".join(names[:most]) + (more if len(names) > most else "")
    return say(
        "console.initial_weights", role=weights.role, weights=weights_of(weights), names=some
    )


def difference_line(difference: Difference) -> str:
    """Return what a setting is on either side."""
    a, b = _values(*values_of(difference))
    return say("console.difference", section=difference.section, name=difference.label, a=a, b=b)


def values_of(difference: Difference) -> tuple[str | None, ...]:
    """Return both values as they are shown; None for what is not set."""
    values = (difference.a, difference.b)
    return tuple(text_of(STAND_INS[v]) if v in STAND_INS else v for v in values)


def _values(a: str | None, b: str | None) -> tuple[str, str]:
    """Return both values; of long ones what stands around their first difference."""
    pairs = enumerate(zip(a or "", b or ""))
    common = 0 if a is None or b is None else min(len(a), len(b))
    first = next((i for i, (x, y) in pairs if x != y), common)
    return _value(a, first), _value(b, first)


def _value(text: str | None, first: int) -> str:
    if text is None:
        return say("console.no_value")
    if len(text) <= _TEXT:
        return text
    start = max(0, min(first - _BEFORE, len(text) - _TEXT))
    shown = text[start : start + _TEXT]
    return ("…" if start else "") + shown + ("…" if start + _TEXT < len(text) else "")
