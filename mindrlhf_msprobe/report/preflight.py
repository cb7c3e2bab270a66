"""What was collected, and what differs between two runs before any tensor, as lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.message import TEXT, Message, message
from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.findings import STAND_INS, Comparison, Difference, Preflight, Weights
from mindrlhf_msprobe.report.answer import Lines, capped, listed
from mindrlhf_msprobe.report.messages import say, text_of

_LINES = 6
_MOST_COMPARED = 40
_MOST_NOTES = 10
#: What each section is counted in; others are counted by their own number of items.
_COUNTED = (
    *("versions", "packages", "environment", "determinism", "configurations"),
    *("checkpoints", "data", "random_calls"),
)
INITIAL_WEIGHTS = "initial_weights"
#: What explains most comes first; a section that is not named comes last.
_ORDER = (
    *(INITIAL_WEIGHTS, "modes", "cells", "optimizers", "generation", "seeds", "determinism"),
    *("versions", "configurations", "environment", "device", "world", "msprobe_config"),
)
_TEXT = 40  # characters of a value
_BEFORE = 12  # of them, before the first difference of a pair


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
    whole = []
    for first, name, values in found:
        if name is not None:
            names = [first.params[name], *values]
            # Sections of run.json have words in each language.
            is_section = name == "section"
            joined = message("preflight.sections", names=names) if is_section else " / ".join(names)
            first = Message(first.code, {**first.params, name: joined})
        whole.append(first)
    return whole


def _only_difference(a: Message, b: Message) -> str | None:
    """Return the one parameter, a name, in which two messages differ; None of others."""
    if a.code != b.code or a.code == TEXT or a.params.keys() != b.params.keys():
        return None
    unlike = [name for name in a.params if a.params[name] != b.params[name]]
    values = [side.params[name] for side in (a, b) for name in unlike]
    if len(unlike) != 1 or unlike == ["side"]:
        return None
    return unlike[0] if all(isinstance(value, str) for value in values) else None


def in_order(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences, what explains most first; a mode of several phases is one."""
    together: dict[object, list[Difference]] = {}
    for i, found in enumerate(differences):
        of_mode = found.section == "modes" and found.phase is not None
        key = (found.role, found.cells, found.a, found.b, found.step) if of_mode else i
        together.setdefault(key, []).append(found)

    def order(difference: Difference) -> tuple[bool, bool, int]:
        section = difference.section
        number = _ORDER.index(section) if section in _ORDER else len(_ORDER)
        return difference.is_of_recording, difference.is_place, number

    whole = (
        dataclasses.replace(found[0], phases=tuple(p for one in found for p in one.phases))
        for found in together.values()
    )
    return sorted(whole, key=order)


def weights_line(weights: Weights, most: int = 3, more: str = ", …") -> str:
    """Return how the initial weights of a role differ, with the names of some parameters."""
    names = (*weights.different, *weights.only_in_a, *weights.only_in_b)
    some = ", ".join(names[:most]) + (more if len(names) > most else "")
    differing = say("console.weights", weights)  # without names
    return say("console.initial_weights", role=weights.role, weights=differing, names=some)


def difference_line(difference: Difference) -> str:
    """Return what a setting is on either side; of long values what stands where they part."""
    a, b = values_of(difference)
    pairs = enumerate(zip(a or "", b or ""))
    common = 0 if a is None or b is None else min(len(a), len(b))
    first = next((i for i, (x, y) in pairs if x != y), common)
    values = {"a": _value(a, first), "b": _value(b, first)}
    return say("console.difference", section=difference.section, name=difference.label, **values)


def values_of(difference: Difference) -> tuple[str | None, ...]:
    """Return both values as they are shown; None for what is not set."""
    values = (difference.a, difference.b)
    return tuple(text_of(STAND_INS[v]) if v in STAND_INS else v for v in values)


def _value(text: str | None, first: int) -> str:
    if text is None:
        return say("console.no_value")
    if len(text) <= _TEXT:
        return text
    start = max(0, min(first - _BEFORE, len(text) - _TEXT))
    shown = text[start : start + _TEXT]
    return ("…" if start else "") + shown + ("…" if start + _TEXT < len(text) else "")


def preflight_lines(preflight: Preflight, more: str = "") -> Lines:
    """Return what differs, at most a few lines; `more` says where the others stand."""
    unlike = [weights for weights in preflight.weights if weights.differ]
    shown = {weights.role for weights in unlike}
    lines = [weights_line(weights) for weights in unlike]
    lines += [
        difference_line(difference)
        for difference in in_order(preflight.differences)
        if not (difference.section == INITIAL_WEIGHTS and difference.setting in shown)
    ]
    return listed(say("console.before_any_tensor"), capped(lines, _LINES, where=more))


def preflight_shown(comparison: Comparison) -> dict[str, Any]:
    """Return what a page shows of it: what differs, the most important first."""
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


def collected_lines(content: Mapping[str, Any], file: str) -> Lines:
    """Return what a collection holds, a line a section."""
    lines = []
    for section in _COUNTED:
        found = content.get(section)
        if section == "data" and found is not None:
            found = found["batches"]
        if found is not None:
            lines.append(say("collect.holds", section=section, count=len(found)))
    script = content.get("script")
    if script is not None and script["stopped"]:
        lines.append(say("collect.script_stopped", seconds=script["seconds"]))
    elif script is not None:
        lines.append(say("collect.script_ended", code=script["exit_code"]))
    return [say("collect.written", file=file), lines]


def compared_lines(found: Preflight, sides: tuple[str, str]) -> Lines:
    """Return how two sides differ: a headline, a line each, and what was not compared."""
    weights = [weights_line(one) for one in found.weights if one.differ]
    lines = [printable(one) for one in (*weights, *map(difference_line, found.differences))]
    count = len(lines)
    shown = capped(lines, _MOST_COMPARED, where=say("collect.in_the_table"))
    a, b = sides
    head = say("collect.different", count=count) if count else say("collect.same")
    notes = capped(map(str, merged(found.not_compared)), _MOST_NOTES)
    unknown = listed(say("collect.not_compared"), notes)
    return [head, shown, f"A: {a}", f"B: {b}", *unknown]
