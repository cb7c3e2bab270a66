"""Which pieces say the answer of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.text.numbers import spans
from mindrlhf_msprobe.report.messages.chosen import Choice, unless_none, when


def _earlier_steps(steps: int, step: int, **_: Any) -> str | None:
    if not steps:
        return None
    if steps != step:  # some were not recorded, or the first is not step 0
        return "some_earlier_steps"
    return "step_0" if step == 1 else "steps_from_0"


def _before(records: int, steps: int, **_: Any) -> str | None:
    if records:
        return "records_before"
    return "steps_before" if steps else None


def _weights(compared: int, different: int, only_in_a: int, only_in_b: int) -> str:
    if compared and not (different or only_in_a or only_in_b):
        return "all_weights_agree"
    return "some_weights_differ" if compared or only_in_a or only_in_b else "no_weights"


def _stopped(state: str, **_: Any) -> str:
    return f"stop_{state}" if state in ("running", "killed", "interrupted") else "stop"


def _on_rank_0(ranks: Sequence[int], **_: Any) -> str | None:
    return None if tuple(ranks) == (0,) else "on_ranks"


def _occasion(micro_step: int | None, call: int | None, **_: Any) -> str | None:
    if call is not None:
        return "nth_call"
    return None if micro_step is None else "of_micro_step"


def _where_called(cell: str | None, **_: Any) -> str | None:
    if cell is None:
        return None
    return "inside_cell" if cell else "outside_cells"


CHOICES: Mapping[str, Choice] = {
    "its_gradient": when("backward", "of_gradient"),
    "where_called": _where_called,
    "at_line": when("line", "on_line"),
    "phases_before": when("phases", "phases_and"),
    "and_phases": when("phases", "n_phases"),
    "how_close": lambda compared, **_: "some_close" if compared > 1 else "one_close",
    "of_phase": when("phase", "in_phase"),
    "in_micro_step": when("micro_step", "of_micro_step"),
    "which_hold": when("several", "some_hold", "it_holds"),
    "relative_too": unless_none("relative", "max_relative"),
    "the_last": when("last", "last_that_agrees"),
    "beginning": lambda unless, **_: f"begin_{unless}" if unless else "begin",
    "again": when("one_run", "one_again", "both_again"),
    "where_alone": lambda only_in, **_: "in_both" if only_in == "both" else "in_one",
    "took": unless_none("seconds", "took_seconds"),
    "all_counts": when("counts", "each_count", "none"),
    "occasion": _occasion,
    "at_what_time": when("first", "at_first", "later"),
    "how_stopped": _stopped,
    "on_other_ranks": _on_rank_0,
    "with_error": when("error", "its_error"),
    "what_agreed": _before,
    "earlier_steps": _earlier_steps,
    "and_earlier": when("steps", "earlier_too"),
    "found_then": lambda relation, **_: f"then_{relation}",
    "looked": when("all_cells", "looked_at_all"),
    "agreed_then": when("agreed", "agreed_before_it"),
    "of_each": when("one_run", None, "each_run"),
    "from_cells": when("estimated", "estimated_from_cells"),
    "of_weights": _weights,
    "alone_in_a": when("only_in_a", "n_only_in_a"),
    "alone_in_b": when("only_in_b", "n_only_in_b"),
    "of_name": when("name", "with_name"),
}

#: Pieces that are the same in both languages.
VALUES = {
    "rank_spans": lambda ranks, **_: spans(ranks),
    "sorted_ranks": lambda ranks, **_: spans(sorted(ranks)),
    "step_before": lambda step, **_: str(step - 1),
}
