"""The answer of a comparison, on the console and in summary.xlsx."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.console import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.en.words import count, few, ordinal, spans
from mindrlhf_msprobe.report.messages.lists import clauses, either

_either = partial(either, word="or")
_KEY = clauses(
    " ({clauses})",
    "; ",
    {
        "absolute": "max abs error",
        "relative": "× relative distance, the first divergence being ×1",
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

_PIECES: Mapping[str, Text] = {
    **VALUES,
    "n_steps": count("steps", "step"),
    "n_ranks": count("ranks", "rank"),
    "all_phases": count("phases", "phase"),
    "n_compared": count("compared", "record"),
    "n_records": count("records", "record"),
    "n_parameters": count("compared", "parameter"),
    "n_earlier_steps": count("steps", "earlier step"),
    "n_places": count("number", "more place"),
    "nth": lambda call, **_: ordinal(call),
    "of_gradient": "the gradient of ",
    "inside_cell": " inside {cell}",
    "outside_cells": " outside every cell",
    "on_line": ", {line}",
    "agree": lambda compared, **_: "agrees" if compared == 1 else "agree",
    "steps_agree": lambda steps, **_: "agrees" if steps == 1 else "agree",
    "they_agree": lambda records, phases, **_: "agree" if phases or records > 1 else "agrees",
    "hold": lambda records, **_: "hold" if records > 1 else "holds",
    "diverge": lambda ranks, **_: "diverges" if len(ranks) == 1 else "diverge",
    "ranks_agree": lambda ranks, **_: "agrees" if len(ranks) == 1 else "agree",
    "rank_or_ranks": lambda ranks, **_: "rank" if len(ranks) == 1 else "ranks",
    "those_ranks": "{rank_or_ranks} {sorted_ranks}",
    "n_phases": ", {all_phases}",
    "some_close": "agree, {close} of them",
    "one_close": "agrees",
    "in_phase": ", {phase}",
    "some_hold": "{records} of them {hold}",
    "it_holds": "it holds",
    "max_relative": ", max rel {relative:.2g}",
    "last_that_agrees": " The last: {last}",
    "begin": "Look closer",
    "begin_meant": "If that is meant to differ, look closer",
    "begin_unexplained": "If that does not explain it, look closer",
    "one_again": "it again, into another",
    "both_again": "both again, each into its own",
    "in_both": "{records} {reason}.",
    "in_one": "{n_records} only in {only_in} — {reason}.",
    "took_seconds": " in {seconds:.1f} s",
    "each_count": joined("counts", ", "),
    "none": "none",
    "of_micro_step": ", micro-step {micro_step}",
    "nth_call": ", {nth} call of this phase",
    "at_first": "first",
    "later": "later",
    "there": "step {step}{of_phase}{on_other_ranks}",
    "on_ranks": ", {rank_or_several} {rank_spans}",
    "rank_or_several": lambda ranks, **_: "ranks" if len(ranks) > 1 else "rank",
    "stop_running": "still runs, in {there}",
    "stop_killed": "was killed in {there}, without a word",
    "stop_interrupted": "ended inside {there}, without close()",
    "stop": "stopped in {there}",
    "its_error": ": {error}",
    "some_earlier_steps": "all of {n_earlier_steps}",
    "step_0": "all of step 0",
    "steps_from_0": "all of steps 0 to {step_before}",
    "steps_before": "{earlier_steps} {steps_agree}.",
    "records_before": "{phases_before}{n_records} of step {step} {they_agree}{and_earlier}.",
    "phases_and": "{all_phases} and ",
    "earlier_too": ", and {earlier_steps}",
    "repeatable": "record the same configuration twice to see whether the training is repeatable",
    "named_there": "{named} at step {step}{of_phase}",
    "looked_at_all": "; all cells were recorded then, and",
    "agreed_before_it": "{then_sign} {agreed} records of that step before it agreed",
    "then_sign": lambda all_cells, **_: "" if all_cells else ";",
    "then_same": "it named the same place{looked}{agreed_then}",
    "then_inside": "it named {named_there}, which comes of this",
    "then_before": "it named {named_there}; this lies in another phase of that step",
    "then_elsewhere": "it named another place, {named_there}: {repeatable}",
    "then_new": "it ended {status}: what differs now was not recorded then, or {repeatable}",
    "then_not_seen": (
        "it named {named_there}, and nothing that was recorded now differs: {repeatable}"
    ),
    "then_agreed": "it ended {status}, too",
    "each_run": " each",
    "estimated_from_cells": ", estimated from its cells",
    "all_weights_agree": "all {n_parameters} agree bit for bit",
    "no_weights": "nothing to compare",
    "some_weights_differ": "{different} of {n_parameters} differ{alone_in_a}{alone_in_b}",
    "n_only_in_a": ", {only_in_a} only in A",
    "n_only_in_b": ", {only_in_b} only in B",
    "in_words": lambda section, **_: section.replace("_", " "),
    "with_name": "{name}: ",
    "records_agree": lambda records, **_: "record agrees" if records == 1 else "records agree",
    "first_place": "step {step}{of_phase}, rank {rank}",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "scope": "{n_steps}, {n_ranks}{and_phases}",
        "identical": "IDENTICAL: {n_compared} of {scope} {agree} bit for bit{non_finite}.",
        "within_tolerance": (
            "WITHIN TOLERANCE: {n_compared} of {scope} {how_close} within the tolerance or by "
            "statistics only{non_finite}."
        ),
        "unread": (
            "INCOMPARABLE: {n_compared} of {scope} {agree}, but not all that was recorded could be "
            "read, so the runs cannot be called the same:"
        ),
        "restore": (
            "Restore these files from where they were copied, or record again, and compare once "
            "more."
        ),
        "incomparable": (
            "INCOMPARABLE: the two runs have nothing in common that could be compared. Check that "
            "both recorded the same phases, steps and keys, and that these are the right two."
        ),
        "diverged": "DIVERGED at {place}",
        "non_finite": "; {which_hold} NaN or Inf on both sides, first at {first_place}: {record}",
        "suspicious": (
            "SUSPICIOUS: {records} {records_agree} but should not hold NaN or Inf; first at "
            "{first_place}{in_micro_step}: {record} ({what}). `mindrlhf-msprobe check RUN` says "
            "where it arises."
        ),
        "agree_non_finite": "Records that agree{non_finite}.",
        "more": "… {number} more",
        "in_summary": " in summary.xlsx",
        "in_verdict": " in {file}",
        "operator": "{entry}: {its_gradient}{operator}{where_called}{at_line}",
        "cause": "cause: {cause}. {explanation}",
        "max_abs": "max abs {absolute:.2g}{relative_too}",
        "inside": "inside: {words}",
        "source": "source: {source}",
        "agreed_before": "Before it: {agreed}{the_last}",
        "check_first": "Check this first: it differs between the runs and can have this effect",
        "meant": (
            "If that is meant to differ: next_step in {file} says what to record to look closer."
        ),
        "look_closer": "{beginning}: record {again} dump_path{size}, with",
        "compare_after": "and compare them with --after {output}",
        "chain": "After it, in {where}{key}: {chain}",
        "chain_key": _KEY,
        "of_step": "step {step}",
        "spread": "{place}{size} ({different} of {compared} records)",
        "ranks": "Ranks: {line}",
        "more_places": "… {number} more places",
        "note": "Note: {line}",
        "not_compared": "Not compared: {line}",
        "incomplete": "Incomplete: {line}",
        "gap": "{where_alone}",
        "tolerance": "Tolerance: {rules}",
        "rule_use": "{rule}: {n_records}, {passed} agree only by it",
        "sides": "Baseline (A): {a}; under test (B): {b}",
        "tables": "Tables: {file}",
        "tables_and_more": "Tables: {file} and {more} more",
        "machine_readable": "Machine-readable: {file}",
        "summary": "{scope} · {n_compared}{took}: {all_counts}",
        "place": "{first_place}{occasion}",
        "parted": (
            "{those_ranks} {diverge} {at_what_time}, at step {step}{of_phase}{in_micro_step}: "
            "{record}"
        ),
        "agreeing_ranks": "{those_ranks} {ranks_agree} throughout",
        "stopped": "{how_stopped}{with_error}",
        "stopped_run": "{run} {stopped}",
        "more_stops": "… and {n_places} where ranks stopped",
        "before": "{what_agreed}",
        "earlier": "the earlier comparison {path}: {found_then}",
        "compared_only": _COMPARED_ONLY,
        "left_out": _LEFT_OUT,
        "size_of_next": " (about {size}{of_each}, of a rank{from_cells})",
        "size_of_next_unknown": (
            " (how much that takes is not known: after one step of it, mindrlhf-msprobe estimate "
            "says it)"
        ),
        "bisection": (
            "All cells that may be to blame would take about {size}: this is one round of a "
            "bisection over the layers; the comparison of it says which to record next."
        ),
        "weights": "{of_weights}",
        "before_any_tensor": "Before any tensor, these differ:",
        "load_checkpoint": "{weights}: look at the checkpoint that was loaded",
        "initial_weights": "initial weights of {role}: {weights} ({names})",
        "difference": "{in_words}: {of_name}{a} in A, {b} in B",
        "withheld": "<withheld: it could be a secret>",
        "another_withheld": "<withheld: it could be a secret>, another value",
        "other_on_each_rank": "other values on each rank",
        "no_value": "nothing",
        "comparing": "Comparing",
        "unit_records": "records",
    },
)
