"""What a preflight's findings say about a divergence, in a sentence or two."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from mindrlhf_msprobe.findings import Difference, Preflight, Weights, counted

#: Seeds of which only a fingerprint of the generator's state is known.
GENERATOR_STATES = ("numpy_state", "random_state", "mindspore_state")


def without_consequences(preflight: Preflight, step: int) -> Preflight:
    """Return a preflight without the states of generators that part after runs have parted.

    Args:
        step: of the first divergence: what is drawn after it may be another number of numbers.
    """
    kept = tuple(
        d
        for d in preflight.differences
        if d.step is None or d.step <= step or not d.name.startswith(GENERATOR_STATES)
    )
    return dataclasses.replace(preflight, differences=kept)


def remark(preflight: Preflight, role: str | None, *, told: bool = False) -> str:
    """Return a sentence or two that explain a divergence by what was given, "" if nothing can.

    Args:
        role: the role whose phase diverged first; None where all networks could be the cause.
        told: whether what differs and can explain it is told otherwise, so that only what agrees
            is left to say.
    """
    weights = [w for w in preflight.weights if role is None or w.role == role]
    unlike = [w for w in weights if w.different or w.only_in_a or w.only_in_b]
    same = [w for w in weights if w.agree]
    differences = [d for d in preflight.differences if not d.is_of_recording]
    others = "" if told else _about_settings(differences)
    if told and unlike:
        return ""
    if unlike:
        sentence = _about_weights(unlike[0])
        return f"{sentence} {_sentence(others)}".rstrip()
    if not same:
        return _sentence(others)
    whose = same[0].role if len(same) == 1 else f"{len(same)} networks"
    count = sum(w.compared for w in same)
    agree = f"The initial weights of the {whose} agree ({counted(count, 'parameter')})"
    if others:
        return f"{agree}, but {others}."
    if told:
        return f"{agree}."
    if any(d.section == "seeds" for d in differences):
        return f"{agree}; of the settings, only the state of Python's random generator differs."
    settings = any(d.section != "schema" for d in differences)
    return f"{agree}." if settings else f"{agree}, and no setting that both recorded differs."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _about_weights(weights: Weights) -> str:
    if weights.different:
        return (
            f"The initial weights of the {weights.role} differ in {len(weights.different)} of "
            f"{counted(weights.compared, 'parameter')}, first {weights.different[0]}: look at "
            f"the checkpoint that was loaded."
        )
    name, run = (weights.only_in_a[0], "A") if weights.only_in_a else (weights.only_in_b[0], "B")
    count = len(weights.only_in_a) + len(weights.only_in_b)
    return (
        f"The networks of the {weights.role} do not have the same parameters: {count} stand in "
        f"one run alone, first {name} in {run}."
    )


def _about_settings(differences: Iterable[Difference]) -> str:
    """Return the clause on what most probably matters: a seed, determinism, else a count."""
    by_section: dict[str, list[Difference]] = {}
    for difference in differences:
        by_section.setdefault(difference.section, []).append(difference)
    for difference in by_section.get("seeds", []):
        if not difference.name.startswith(GENERATOR_STATES):
            name = "" if difference.name == "mindspore" else f" {difference.name}"
            return f"the seed{name} differs: {_against(difference)}"
    for difference in by_section.get("seeds", []):
        for name, whose in (("numpy_state", "numpy"), ("mindspore_state", "MindSpore")):
            if difference.name.startswith(name):
                since = "" if difference.step is None else f" from step {difference.step} on"
                return f"{whose}'s random generator was in another state{since}"
    for difference in by_section.get("determinism", []):
        return f"the determinism setting {difference.name} differs: {_against(difference)}"
    explaining = (
        *("modes", "cells", "optimizers", "generation", "versions", "configurations"),
        *("device", "world", "environment"),
    )
    rest = [d for section in explaining for d in by_section.get(section, [])]
    rest.sort(key=lambda difference: difference.is_place)
    if not rest:
        return ""
    first = f"{rest[0].section} {rest[0].name}: {_against(rest[0])}"
    if len(rest) == 1:
        return f"1 setting differs: {first}"
    return f"{counted(len(rest), 'setting')} differ, the first: {first}"


def _against(difference: Difference) -> str:
    a, b = (
        "not set" if text is None else text if len(text) <= 60 else f"{text[:60]}…"
        for text in (difference.a, difference.b)
    )
    return f"{a} against {b}"
