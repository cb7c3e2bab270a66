"""Which pieces say where inside a record the difference is, and by which change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.chosen import Choice, unless_none, when
from mindrlhf_msprobe.report.messages.numbers import few_spans, is_to_the_end, other_run


def _changed(
    change: str | None, where: Sequence[str], prompts: Sequence[int], **_: Any
) -> str | None:
    if not change:
        return None
    return "and_change" if where or prompts else "change_alone"


CHOICES: Mapping[str, Choice] = {
    "only": when("where", "only_there"),
    "of_prompts": when("prompts", "all_of_prompts"),
    "changed": _changed,
    "how_many": unless_none("elements", "n_elements"),
    "places": unless_none("name", "named_axis", "plain_axis"),
    "from_there": lambda spans, size, **_: "to_the_end" if is_to_the_end(spans, size) else None,
    "from_there_alone": (
        lambda spans, size, **_: "to_the_end_alone" if is_to_the_end(spans, size) else None
    ),
}

#: Pieces that are the same in both languages.
VALUES = {
    "few_spans": lambda spans, **_: few_spans(spans),
    "other_side": lambda side, **_: other_run(side),
    "shifted_index": lambda by, **_: f"A[i{-by:+d}]",
}
