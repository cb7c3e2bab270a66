"""The answer of a comparison, on the console and in summary.xlsx."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages.choices import CONSOLE_VALUES
from mindrlhf_msprobe.report.messages.en.words import count, few, ordinal, spans
from mindrlhf_msprobe.report.messages.templates import clauses, either, joined, not_finite

_either = partial(either, word="or")
_KEY = clauses(
    " ({clauses})",
    "; ",
    {
        "absolute": "max abs error",
        "relative": "× relative distance, the first divergence being ×1",
        "zero": "zero within rounding has no relative distance",
    },
)
_COMPARED_ONLY = clauses(
    "compared: {clauses}",
    "; ",
    {
        "steps": "steps {}",
        "keys": "keys {}",
        "include": "records that match {}",
        "exclude": "no record that matches {}",
        "common": "what both runs have (--common)",
        "first_only": "up to the first divergence (--first-only)",
    },
    {"keys": ", ".join, "include": _either, "exclude": _either},
)
_LEFT_OUT = clauses(
    "left out: {clauses}",
    "; ",
    {
        "steps": "steps {}",
        "cells": "all cells",
        "keys": "keys {}",
        "steps_after": "steps {}, which come after it",
    },
    {"steps": spans, "keys": few, "steps_after": spans},
)

PIECES: Mapping[str, Any] = {
    **CONSOLE_VALUES,
    "n_steps": count("steps", "step"),
    "n_ranks": count("ranks", "rank"),
    "all_phases": count("phases", "phase"),
    "n_compared": count("compared", "record"),
    "n_records": count("records", "record"),
    "n_parameters": count("compared", "parameter"),
    "n_earlier_steps": count("steps", "earlier step"),
    "n_places": count("number", "more place"),
    "nth": lambda call, **_: ordinal(call),
    "agree": lambda compared, **_: "agrees" if compared == 1 else "agree",
    "steps_agree": lambda steps, **_: "agrees" if steps == 1 else "agree",
    "they_agree": lambda records, phases, **_: "agree" if phases or records > 1 else "agrees",
    "hold": lambda records, **_: "hold" if records > 1 else "holds",
    "diverge": lambda ranks, **_: "diverges" if len(ranks) == 1 else "diverge",
    "ranks_agree": lambda ranks, **_: "agrees" if len(ranks) == 1 else "agree",
    "rank_or_ranks": lambda ranks, **_: "rank" if len(ranks) == 1 else "ranks",
    "each_count": joined("counts", ", "),
    "rank_or_several": lambda ranks, **_: "ranks" if len(ranks) > 1 else "rank",
    "then_sign": lambda all_cells, **_: "" if all_cells else ";",
    "in_words": lambda section, **_: section.replace("_", " "),
    "records_agree": lambda records, **_: "record agrees" if records == 1 else "records agree",
}

TEXTS: Mapping[str, Any] = {
    "not_finite": not_finite(
        "{runs} of {n_elements}", "{runs}", " and ", n_elements=count("elements", "element")
    ),
    "chain_key": _KEY,
    "compared_only": _COMPARED_ONLY,
    "left_out": _LEFT_OUT,
}
