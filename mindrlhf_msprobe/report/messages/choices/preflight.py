"""Which pieces say what could not be compared before any tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.report.messages.chosen import Choice, unless_none, when


def _name(setting: str, phases: Sequence[str], more: int, of_phase: bool, **_: Any) -> str:
    """Return where the phases stand: before the setting, behind it, or alone."""
    if not phases:
        return "setting_and_more"
    if not of_phase:
        return "setting_in_phases"
    return "setting_of_phases" if setting or more else "all_phases"


def _placed(ranks: Sequence[int], setting: str, step: int | None, **known: Any) -> str:
    what = setting or known["more"] or known["phases"] or step is not None
    return "name_of_step" if not ranks else "name_of_ranks" if what else "of_ranks"


CHOICES: Mapping[str, Choice] = {
    "placed": _placed,
    "whole_name": _name,
    "and_more": when("more", "more_cells"),
    "from_step": unless_none("step", "on_from_step"),
    "no_run_file": lambda sides, **_: "one_has_none" if len(sides) == 1 else "both_have_none",
    "whose_ranks": when("ranks", "of_some_ranks"),
    "kind_of_cell": when("kind", "cell_of_kind", "any_cell"),
}

#: Pieces that are the same in both languages.
VALUES = {"rank_numbers": lambda ranks, **_: few_numbers(ranks)}
