"""What was collected, and what differs between two runs before any tensor, as lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.findings import (
    STAND_INS,
    CheckFirst,
    Difference,
    Preflight,
    Weights,
)
from mindrlhf_msprobe.report.console.wording import capped, merged, weights_of
from mindrlhf_msprobe.report.messages import say, text_of

_WEIGHTS = "initial_weights"
#: What explains most comes first; a section that is not named comes last.
_ORDER = (
    _WEIGHTS,
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
_LINES = 6
_NAMES = 3  # of parameters
_TEXT = 40  # characters of a value
_BEFORE = 12  # of them, before the first difference of a pair
_MOST_COMPARED = 40
_MOST_NOTES = 10
#: What each section is counted in; others are counted by their own number of items.
_COUNTED = (
    *("versions", "packages", "environment", "determinism", "configurations"),
    *("checkpoints", "data", "random_calls"),
)


def preflight_lines(preflight: Preflight, more: str = "") -> list[str]:
    """Return what differs, at most a few lines; `more` says where the others stand."""
    unlike = [weights for weights in preflight.weights if weights.differ]
    shown = {weights.role for weights in unlike}
    lines = [weights_line(weights) for weights in unlike]
    lines += [
        difference_line(difference)
        for difference in in_order(preflight.differences)
        if not (difference.section == _WEIGHTS and difference.setting in shown)
    ]
    indented = [f"  {line}" for line in capped(lines, _LINES, more)]
    return [say("console.before_any_tensor"), *indented] if lines else []


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


def weights_line(weights: Weights) -> str:
    """Return how the initial weights of a role differ."""
    names = (*weights.different, *weights.only_in_a, *weights.only_in_b)
    some = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
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


def collected_lines(content: Mapping[str, Any], file: str) -> list[str]:
    """Return what a collection holds, a line a section."""
    lines = [say("collect.written", file=file)]
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
    return lines


def compared_lines(found: Preflight, sides: tuple[str, str]) -> list[str]:
    """Return how two sides differ: a headline, a line each, and what was not compared."""
    weights = [weights_line(one) for one in found.weights if one.differ]
    lines = [printable(one) for one in (*weights, *map(difference_line, found.differences))]
    count = len(lines)
    lines = [f"  {line}" for line in capped(lines, _MOST_COMPARED, say("collect.in_the_table"))]
    a, b = sides
    head = say("collect.different", count=count) if count else say("collect.same")
    unknown = [*map(str, merged(found.not_compared))]
    notes = [f"  {note}" for note in capped(unknown, _MOST_NOTES, "")]
    if notes:
        notes.insert(0, say("collect.not_compared"))
    return [head, f"A: {a}", f"B: {b}", *lines, *notes]
