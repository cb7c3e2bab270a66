"""What a preflight's findings say about a divergence: a message or two."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.findings import STAND_INS, Difference, Preflight, Weights
from mindrlhf_msprobe.phases import role_of

#: Seeds of which only a fingerprint of the generator's state is known.
GENERATOR_STATES = ("numpy_state", "random_state", "mindspore_state")
_EXPLAINING = (
    *("modes", "cells", "optimizers", "generation", "versions", "configurations"),
    *("device", "world", "environment"),
)
_WHOSE = {"numpy_state": "numpy", "mindspore_state": "MindSpore"}


def without_consequences(preflight: Preflight, step: int) -> Preflight:
    """Return a preflight without the states of generators that differ once runs have diverged.

    Args:
        step: of the first divergence: what is drawn after it may be another number of numbers.
    """
    kept = tuple(
        d
        for d in preflight.differences
        if d.step is None or d.step <= step or d.setting not in GENERATOR_STATES
    )
    return dataclasses.replace(preflight, differences=kept)


def remark(preflight: Preflight, role: str | None, *, known: bool = False) -> Messages:
    """Return what explains a divergence by what was given, a sentence or two; () if nothing can.

    Args:
        role: the role whose phase diverged first; None where all networks could be the cause.
        known: whether what differs and can explain it is reported already, so that only what agrees
            is left to say.
    """
    weights = [w for w in preflight.weights if role is None or role_of(w.role) == role]
    unlike, same = [w for w in weights if w.differ], [w for w in weights if w.agree]
    differences = [d for d in preflight.differences if not d.is_of_recording]
    others = None if known else _about_settings(differences)
    if unlike:
        return () if known else (_about_weights(unlike[0]), *_sentence(others))
    return (_agreeing(same, differences, known, others),) if same else _sentence(others)


def _agreeing(
    same: Sequence[Weights],
    differences: Sequence[Difference],
    known: bool,
    others: Message | None,
) -> Message:
    """Return that weights agree, and what of the settings stands beside it."""
    agree: dict[str, Any] = {
        "role": same[0].role if len(same) == 1 else None,
        "networks": len(same),
        "parameters": sum(w.compared for w in same),
    }
    if others is not None:
        return message("remark.weights_agree_but", **agree, but=others)
    sections = {d.section for d in differences}
    if not known and "seeds" in sections:
        return message("remark.only_random", **agree)
    if known or sections - {"schema"}:
        return message("remark.weights_agree", **agree)
    return message("remark.no_setting", **agree)


def _sentence(clause: Message | None) -> Messages:
    return () if clause is None else (message("remark.sentence", what=clause),)


def _about_weights(weights: Weights) -> Message:
    if weights.different:
        return message(
            "remark.weights_differ",
            role=weights.role,
            different=len(weights.different),
            compared=weights.compared,
            first=weights.different[0],
        )
    name, run = (weights.only_in_a[0], "A") if weights.only_in_a else (weights.only_in_b[0], "B")
    count = len(weights.only_in_a) + len(weights.only_in_b)
    return message("remark.other_parameters", role=weights.role, count=count, first=name, side=run)


def _about_settings(differences: Sequence[Difference]) -> Message | None:
    """Return the clause on what most probably matters: a seed, determinism, else a count."""
    seeds = [d for d in differences if d.section == "seeds"]
    for seed in seeds:
        if seed.setting not in GENERATOR_STATES:
            return message("remark.seed", name=seed.label, **_values(seed))
    for seed in seeds:
        if (whose := _WHOSE.get(seed.setting)) is not None:
            return message("remark.generator", whose=whose, step=seed.step)
    for found in (d for d in differences if d.section == "determinism"):
        return message("remark.determinism", name=found.label, **_values(found))
    rest = [d for d in differences if d.section in _EXPLAINING]
    rest.sort(key=lambda d: (d.is_place, _EXPLAINING.index(d.section)))
    if not rest:
        return None
    which = {"section": rest[0].section, "name": rest[0].label}
    return message("remark.settings", count=len(rest), **which, **_values(rest[0]))


def _values(difference: Difference) -> dict[str, Message | str | None]:
    """Return both values, None for what is not set."""
    return {"a": _value(difference.a), "b": _value(difference.b)}


def _value(text: str | None) -> Message | str | None:
    if text is None or text in STAND_INS:
        return text and STAND_INS[text]
    return text if len(text) <= 60 else f"{text[:60]}…"
