"""Which pieces say what a first difference is, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages.chosen import Choice, when


def _fingerprints(fingerprints_agree: bool | None, **_: Any) -> str | None:
    if fingerprints_agree is None:
        return None
    return "fingerprints_agree_then" if fingerprints_agree else "fingerprints_differ"


CHOICES: Mapping[str, Choice] = {
    "named": when("argument", "of_argument", "unnamed"),
    "happened_to_it": lambda status, **_: f"is_{status}",
    "noted": when("note", "with_note"),
    "where": when("inside", "inside_cell", "before_in_step"),
    "fingerprints": _fingerprints,
    "whose_file": lambda run=None, **_: "file_of_run" if run else "file_of_one",
    "around_it": when("cell", "in_cell_around", "unnamed"),
    "at_line": when("line", "in_line", "unnamed"),
    "what_entered": when("entered", "entered_close", "entered_equal"),
    "what_agrees": lambda given, **_: f"agree_{given}",
    "children": when("inside", "children_agree"),
    "in_container": when("container", "inside_container", "unnamed"),
    "makers": when("not_recorded", "makers_not_recorded"),
    "which_cells": when("phase", "cells_of_phase", "cells_before"),
    "from_where": when("close", "some_close", "all_agree"),
    "others": lambda between, **_: "others_between" if between else None,
    "after_which": when("updated", "after_update", "after_call"),
    "still": lambda weights_moved, **_: "weights_kept" if weights_moved is False else None,
    "gradients_too": when("gradients", "gradients_agree"),
    "unrecorded_gradients": when("gradients", None, "or_gradients"),
    "state_too": when("before", "state_agrees"),
    "initial_state": when("before", None, "or_initial_state"),
}
