"""What of two runs could not be compared before any tensor, in English."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.preflight import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.en.words import section_words, some


def _as_many(one: str, several: str) -> Text:
    return lambda names, more, **_: several if len(names) + more > 1 else one


_PIECES: Mapping[str, Text] = {
    **VALUES,
    "was": _as_many("was", "were"),
    "it": _as_many("it", "them"),
    "some_names": lambda names, more, **_: some(names, more),
    "some_sections": lambda names, more, **_: some([*map(section_words, names)], more),
    "some_ranks": lambda ranks, more, **_: some(ranks, more),
    "of_section": lambda section, **_: section_words(section),
    "all_sections": lambda names, **_: ", ".join(map(section_words, names)),
    "each_section": lambda names, **_: " / ".join(map(section_words, names)),
    "all_sides": joined("sides", " and of run "),
    "other_sections": joined("sections", ", "),
    "one_has_none": "run {sides[0]} has no",
    "both_have_none": "neither run has a",
    "of_some_ranks": " of rank {some_ranks}",
    "all_phases": joined("phases", ", "),
    "setting_and_more": "{setting}{and_more}",
    "setting_of_phases": "{all_phases}: {setting_and_more}",
    "setting_in_phases": "{setting_and_more} in {all_phases}",
    "more_cells": " and {more} more {kind_of_cell}",
    "cell_of_kind": "{kind} {any_cell}",
    "any_cell": lambda more, **_: "cell" if more == 1 else "cells",
    "on_from_step": " from step {step} on",
    "of_ranks": "rank {rank_numbers}",
    "name_of_step": "{whole_name}{from_step}",
    "name_of_ranks": "{name_of_step} ({of_ranks})",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "section": "{name}",
        "sections": "{each_section}",
        "name": "{placed}",
        "only_one_side": "{some_sections}: only run {side} recorded {it}",
        "only_in": "{of_section}: only run {side} recorded {some_names}",
        "neither": "{all_sections}: neither run recorded them",
        "more": "… {count} more things that could not be compared",
        "changed_training": (
            "run {side} is no training of its own: handler_type: fix handed it results of second "
            "runs ({by})"
        ),
        "played": (
            "run {side} was given {name} of {path} instead of its own{order}: what made it is not "
            "compared"
        ),
        "ranks_alone": "rank {some_ranks}: only run {side} recorded it",
        "no_common_rank": "settings and initial weights: the runs have no rank in common",
        "no_manifest": (
            "versions, settings and initial weights: {no_run_file} run.json{whose_ranks} that can "
            "be read"
        ),
        "configurations_unread": "configurations: {file} of run {all_sides} cannot be read",
        "whose_rank": "a run.json of run {side} does not say whose rank it is",
        "two_manifests": "run {side} has two manifests of rank {rank}; the first was taken",
        "newer_schema": (
            "the run.json of run {side} has the schema {schema}, this version knows {known}: only "
            "what could be read was compared"
        ),
        "early_seed": (
            "seeds: {some_names} {was} looked at when the probe started, perhaps before the "
            "trainer set {it}, or in another phase than in the other run"
        ),
        "attempt": (
            "attempt {number} of run {side} ran with other {other_sections} than its first one, "
            "which was compared: see its run.json"
        ),
        "key_data_left_out": "{some_names}: left out of A and of B: {why}",
        "more_differences": "{of_section}: {count} more differences, which are not listed",
        "nested": "{section}: nested deeper than {levels} levels, not compared there",
        "withheld": "{section}: {some_names} {was} withheld in both runs, possibly secret",
        "stopped_script": (
            "random calls: the script of {side} was stopped, so how often places were reached is "
            "not compared, nor what it may not have come to"
        ),
        "calls_of_rank": "random calls: only {side} has a process of rank {rank}",
        "incomplete_calls": "how often {some_names} {was} called: a process was killed",
        "incomplete_seeds": "all seeds of {some_names}: a process was ended before its time",
        "batches": "data: {a} batches in A, {b} in B; the first ones are compared",
        "parameters_of_one": (
            "checkpoints: of {some_names} one side has the parameters, the other the files alone"
        ),
        "of_pack": "{some_names}: msprobe's pack counts and describes them in another way",
        "opaque_data": "data: of {some_names} nothing but the type is known",
        "weights_unreadable": "initial weights of {role}: run {side} has none that can be read",
        "weights_only_in": "initial weights of {some_names}: only run {side} recorded them",
        "weights_without_fingerprint": (
            "initial weights of {role}: {count} parameter(s) without a fingerprint in one run"
        ),
        "weights_other_algorithm": (
            "initial weights of {role}: {count} parameter(s) with fingerprints of different "
            "algorithms"
        ),
    },
)
