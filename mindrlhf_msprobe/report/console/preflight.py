"""What was collected, and what differs between two runs before any tensor, as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.findings import Preflight
from mindrlhf_msprobe.report.answer import (
    INITIAL_WEIGHTS,
    capped,
    difference_line,
    in_order,
    indented,
    merged,
    weights_line,
)
from mindrlhf_msprobe.report.messages import say

_LINES = 6
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
        if not (difference.section == INITIAL_WEIGHTS and difference.setting in shown)
    ]
    few = indented(capped(lines, _LINES, where=more))
    return [say("console.before_any_tensor"), *few] if lines else []


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
    lines = indented(capped(lines, _MOST_COMPARED, where=say("collect.in_the_table")))
    a, b = sides
    head = say("collect.different", count=count) if count else say("collect.same")
    unknown = [*map(str, merged(found.not_compared))]
    notes = indented(capped(unknown, _MOST_NOTES))
    if notes:
        notes.insert(0, say("collect.not_compared"))
    return [head, f"A: {a}", f"B: {b}", *lines, *notes]
